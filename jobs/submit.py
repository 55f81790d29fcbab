"""`coevo submit`: hand a run to a cluster's Jobs server and follow it."""

from __future__ import annotations

import sys
from pathlib import Path

from cluster.submission import JobsServer, JobState, Submission, SubmissionPlan
from coevo.config import RunConfig
from coevo.display import Display
from coevo.errors import ConfigError, nearest
from jobs.cli import STAGES
from jobs.exits import INTERRUPTED

__all__ = ["main"]


def main(
    config: RunConfig,
    display: Display,
    *,
    address: str,
    verb: str,
    follow: bool,
    baked: bool,
    working_dir: Path | None,
    needs: tuple[str, ...],
    stop: bool,
) -> int:
    """Submit (or find) the job and follow it; the job's exit code. Without `follow` 0 once it is accepted.

    Args:
        config: The run.
        display: For what is said about the job; its own output goes to standard output.
        address: URL of the Jobs server.
        verb: Stage verb that the job runs.
        follow: Show its output until it ends.
        baked: See `SubmissionPlan`, as the next two.
        working_dir: A folder to upload as well.
        needs: Names of variables.
        stop: Stop the job of this run instead.
    """
    if verb not in STAGES:
        raise ConfigError("no stage has this verb", seen=verb, fix=nearest(verb, STAGES))
    plan = SubmissionPlan(config, verb=verb, baked=baked, working_dir=working_dir, needs=needs)
    server = JobsServer(address)
    if stop:
        return _stop(server, plan, display)
    job = server.submit(plan)
    display.note(_told(job, address))
    if not follow:
        display.result("submit", (job.id,))
        return 0
    try:
        code = server.follow(job.id, write=_output)
    except KeyboardInterrupt:
        ways = f"attach with the same command; stop with: coevo submit CONFIG --address {address} --stop"
        display.note(f"detached; job {job.id} goes on. {ways}")
        return INTERRUPTED
    display.note(f"job {job.id} ended with exit code {code}")
    return code


def _told(job: Submission, address: str) -> str:
    if not job.attached:
        return f"submitted job {job.id} (attempt {job.attempt}) to {address}"
    if job.state is JobState.SUCCEEDED:
        return f"job {job.id} has done this already; its output follows"
    return f"job {job.id} is {job.state.value.lower()} already: attached, nothing submitted"


def _stop(server: JobsServer, plan: SubmissionPlan, display: Display) -> int:
    job = server.current(plan)
    if job is None:
        display.note("no job of this run is pending or running")
        return 0
    server.stop(job.id)
    display.note(f"asked job {job.id} to stop; what is committed stays, the same submission again resumes it")
    return 0


def _output(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
