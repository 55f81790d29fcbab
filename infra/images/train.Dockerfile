# Training nodes: Ray Train, DeepSpeed, TRL, PEFT; also merges adapters before they are published. No engine (R15).
# CPU form by default; for GPUs write a lock in an environment with the extra train on such a machine: none was run.
#   docker build -f infra/images/train.Dockerfile -t coevo-train .
# Everything is installed here, from the lock and without dependency resolution; a job installs nothing when it starts.
FROM python:3.11.7-slim-bookworm AS build
WORKDIR /src
ARG LOCK=infra/locks/train.lock
ARG TORCH_INDEX=
COPY ${LOCK} image.lock
RUN python -m venv /opt/coevo/venv \
 && /opt/coevo/venv/bin/pip install --no-cache-dir --no-deps ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r image.lock
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
