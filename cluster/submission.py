"""A run as a job of Ray's Jobs server: submitted once, followed from anywhere, resumed after a loss.

A job's id is `coevo-<run>-<hash>-<attempt>`: the hash covers what the run computes and where it is stored, so the same command again finds
the job that runs instead of starting a second one; after a failed or stopped attempt the next number is taken. The Jobs server forgets its
jobs with its head, and that loses nothing: the next submission is a new job that resumes from the store.

What travels is a working folder: the resolved configuration, relative paths that it names, and (unless the image holds them) our packages.
Keys do not travel (I11): the job's environment is that of the cluster's nodes; `needs` names variables that must be set there, and the
job ends with the missing names before it does any work.

Limits: the store must be reachable from the cluster (`s3://`, or a folder that all nodes share).
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

import cluster
from coevo.config import FROM_ENVIRONMENT, RunConfig
from coevo.errors import ConfigError, InfraError, PrerequisiteError
from coevo.identity import content_hash

__all__ = ["JobState", "JobsServer", "Submission", "SubmissionPlan", "next_submission", "require_environment", "staged"]

CONFIG_FILE = "coevo-job.yaml"
PACKAGES = ("coevo", "cluster", "jobs")
IGNORED = ("__pycache__", "*.pyc", ".git", ".venv", "*.egg-info", ".mypy_cache", ".pytest_cache", ".ruff_cache")
LOST_HEAD_S = 60.0
"""Seconds without an answer after which the head counts as lost."""

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_POLL_S = 1.0


class JobState(StrEnum):
    """States of the Jobs server."""

    PENDING = "PENDING"
    """Accepted, not started."""
    RUNNING = "RUNNING"
    """The driver runs."""
    STOPPED = "STOPPED"
    """Ended by request."""
    SUCCEEDED = "SUCCEEDED"
    """The driver exited with 0."""
    FAILED = "FAILED"
    """The driver exited with another code, or was lost."""

    @property
    def over(self) -> bool:
        """No state follows."""
        return self in {JobState.STOPPED, JobState.SUCCEEDED, JobState.FAILED}


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
    """What to submit.

    Attributes:
        config: The run, resolved.
        verb: The verb of `coevo` that the job runs.
        baked: The image holds our packages; only the configuration is uploaded.
        working_dir: A folder of the user's to upload as well (task families of their own); None for none.
        excludes: Patterns of names in it that stay behind.
        needs: Names of variables that must be set on the cluster.
    """

    config: RunConfig
    verb: str = "run"
    baked: bool = False
    working_dir: Path | None = None
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        wrong = [name for name in self.needs if not _NAME.match(name)]
        if wrong:
            raise ConfigError("give names of variables, not values", seen=f"{len(wrong)} of them can't be names", fix="--needs API_KEY")
        store = self.config.store
        if "://" not in store and not os.path.isabs(store):
            raise ConfigError(
                "a submitted run needs a store that the cluster reaches",
                seen=store,
                fix="--set store=s3://BUCKET/PREFIX, or a shared folder",
            )

    @property
    def prefix(self) -> str:
        """Common start of the ids of all attempts."""
        return f"coevo-{self.config.name}-{content_hash([self.config.store, self.verb, self.config.identity()])[:12]}-"

    @property
    def entrypoint(self) -> str:
        """The job's command."""
        check = f"python -m cluster.submission {shlex.join(self.needs)} && " if self.needs else ""
        return f"{check}python -m jobs.cli {self.verb} {CONFIG_FILE} --display plain"

    @property
    def job_config(self) -> RunConfig:
        """The configuration inside the job: it runs on the cluster that runs the job."""
        section = self.config.cluster.model_copy(update={"address": FROM_ENVIRONMENT})
        return self.config.model_copy(update={"cluster": section})


@dataclass(frozen=True, slots=True)
class Submission:
    """A job on the server. `attached`: it was there before; `state` as it was found, PENDING for a new one."""

    id: str
    attempt: int
    attached: bool
    state: JobState


def next_submission(prefix: str, known: Sequence[tuple[str, JobState]]) -> Submission:
    """Which job the same command means: the one that runs or succeeded, else the next attempt.

    Args:
        prefix: `SubmissionPlan.prefix`.
        known: (id, state) of the server's jobs.
    """
    attempts = {int(id[len(prefix) :]): state for id, state in known if id.startswith(prefix) and id[len(prefix) :].isdigit()}
    last = max(attempts, default=0)
    if last and (not attempts[last].over or attempts[last] is JobState.SUCCEEDED):
        return Submission(f"{prefix}{last}", last, attached=True, state=attempts[last])
    return Submission(f"{prefix}{last + 1}", last + 1, attached=False, state=JobState.PENDING)


@contextmanager
def staged(plan: SubmissionPlan) -> Iterator[Path]:
    """The folder to upload.

    Raises:
        ConfigError: The working folder does not exist, or holds a file of a name that we need.
    """
    with TemporaryDirectory(prefix="coevo-submit-") as name:
        folder = Path(name)
        if plan.working_dir is not None:
            _copy(plan.working_dir, folder, plan.excludes)
        if not plan.baked:
            for package in PACKAGES:
                _copy(Path(cluster.__file__).resolve().parents[1] / package, folder / package)
        config = plan.job_config
        harness = config.evolve.harness
        if harness is not None and not os.path.isabs(harness):
            _copy(Path(harness), folder / harness)
        if (folder / CONFIG_FILE).exists():
            raise ConfigError("the working folder holds a file of this name", seen=CONFIG_FILE, fix="rename it, or exclude it")
        (folder / CONFIG_FILE).write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
        yield folder


def _copy(source: Path, target: Path, excludes: Sequence[str] = ()) -> None:
    if not source.is_dir():
        raise ConfigError("a folder to upload does not exist", seen=str(source), fix="give an existing folder")
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*IGNORED, *excludes), dirs_exist_ok=True)


class JobsServer:
    """The Jobs server at `address` (`http://host:8265`).

    Raises:
        ConfigError: The address is not a URL.
        PrerequisiteError: Nobody answers there, or the token is not accepted.
    """

    def __init__(self, address: str) -> None:
        if not address.startswith(("http://", "https://")):
            raise ConfigError("the Jobs server's address is a URL", seen=address, fix="--address http://HEAD:8265")
        self.address = address
        token = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
        os.environ.setdefault("RAY_AUTH_MODE", "token" if token else "disabled")  # Ray reads it once, at import
        sdk: Any = importlib.import_module("ray.job_submission")
        try:
            self._client = sdk.JobSubmissionClient(address)
        except (ConnectionError, RuntimeError, OSError) as error:
            fix = "check the address (port 8265 of the head; forward it), RAY_AUTH_TOKEN, and the versions of Ray"
            raise PrerequisiteError("the Jobs server does not answer", seen=f"{address}: {str(error)[:300]}", fix=fix) from error

    def submit(self, plan: SubmissionPlan) -> Submission:
        """Submit, or find the job that the same command started before.

        Raises:
            ConfigError: See `staged`.
            InfraError: The server did not take it.
        """
        chosen = next_submission(plan.prefix, self._known())
        if chosen.attached:
            return chosen
        with staged(plan) as folder:
            try:
                self._client.submit_job(
                    entrypoint=plan.entrypoint,
                    submission_id=chosen.id,
                    runtime_env={"working_dir": str(folder), "env_vars": {"COEVO_SUBMISSION_ID": chosen.id}},
                    metadata={"run": plan.config.name, "store": plan.config.store, "attempt": str(chosen.attempt)},
                )
            except (RuntimeError, ValueError, OSError) as error:
                again = next_submission(plan.prefix, self._known())
                if again.id == chosen.id and again.attached:  # somebody else was faster, or the answer was lost
                    return again
                raise InfraError("the job was not accepted", seen=str(error)[-600:], fix="see the head's dashboard log") from error
        return chosen

    def current(self, plan: SubmissionPlan) -> Submission | None:
        """The job of this plan that is pending or running."""
        job = next_submission(plan.prefix, self._known())
        return job if job.attached and not job.state.over else None

    def state(self, id: str) -> JobState:
        """State of a job."""
        return JobState(str(self._client.get_job_status(id).value))

    def stop(self, id: str) -> bool:
        """Ask the job to end; what it committed stays."""
        return bool(self._client.stop_job(id))

    def follow(self, id: str, *, write: Callable[[str], object]) -> int:
        """Hand the job's output on until it ends; its exit code (1 where it has none).

        Raises:
            PrerequisiteError: The head was lost.
        """
        shown, silent_since = 0, time.monotonic()
        while True:
            try:
                shown += asyncio.run(self._tail(id, write, skip=shown))
                info = self._client.get_job_info(id)
                silent_since = time.monotonic()
                if JobState(str(info.status.value)).over:
                    return _exit_code(info)
            except (RuntimeError, OSError) as error:
                if time.monotonic() - silent_since > LOST_HEAD_S:
                    fix = "when a head is up again, submit once more: the run resumes from its store"
                    raise PrerequisiteError("the Jobs server was lost", seen=f"{self.address}: {str(error)[:300]}", fix=fix) from error
            time.sleep(_POLL_S)

    async def _tail(self, id: str, write: Callable[[str], object], *, skip: int) -> int:
        """Output that comes after the first `skip` characters; their number is returned."""
        seen = 0
        try:
            async for chunk in self._client.tail_job_logs(id):
                fresh = chunk[max(0, skip - seen) :]
                seen += len(chunk)
                if fresh:
                    write(fresh)
        except (RuntimeError, OSError):
            if seen <= skip:
                raise
        return max(0, seen - skip)

    def _known(self) -> list[tuple[str, JobState]]:
        jobs = self._client.list_jobs()
        return [(str(job.submission_id), JobState(str(job.status.value))) for job in jobs if job.submission_id]


def _exit_code(info: Any) -> int:
    if JobState(str(info.status.value)) is JobState.SUCCEEDED:
        return 0
    code = info.driver_exit_code
    return code if isinstance(code, int) and 0 < code < 256 else 1


def require_environment(names: Sequence[str]) -> None:
    """Raises: PrerequisiteError: Variables of these names are not set here; values are never shown."""
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        fix = "set them on the cluster's nodes (a secret mounted into the pods' environment); they do not travel with a job"
        raise PrerequisiteError("the job needs variables that the cluster does not set", seen=", ".join(missing), fix=fix)


if __name__ == "__main__":
    try:
        require_environment(sys.argv[1:])
    except PrerequisiteError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
