# Driver, head and rollout workers: the control process and its executors. No torch, no engine (R15).
#   docker build -f infra/images/driver.Dockerfile -t coevo-driver .
# Everything is installed here, from the lock and without dependency resolution; a job installs nothing when it starts.
FROM python:3.11.7-slim-bookworm AS build
WORKDIR /src
COPY infra/locks/driver.lock infra/locks/driver.lock
RUN python -m venv /opt/coevo/venv \
 && /opt/coevo/venv/bin/pip install --no-cache-dir --no-deps -r infra/locks/driver.lock
COPY pyproject.toml README.md LICENSE ./
COPY coevo coevo
COPY cluster cluster
COPY jobs jobs
RUN /opt/coevo/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11.7-slim-bookworm
RUN useradd --uid 1000 --create-home ray
COPY --from=build --chown=ray:ray /opt/coevo /opt/coevo
COPY --chown=ray:ray infra/run.yaml /opt/coevo/run.yaml
COPY --chown=ray:ray infra/entrypoint.sh infra/skypilot/skypilot.sh /opt/coevo/
ENV PATH=/opt/coevo/venv/bin:$PATH PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 DO_NOT_TRACK=1
USER 1000
WORKDIR /home/ray
ENTRYPOINT ["/opt/coevo/entrypoint.sh"]
