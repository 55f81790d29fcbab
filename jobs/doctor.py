"""`coevo doctor`: whether this machine, the store and a cluster can run a job, one line per check.

Nothing but throwaway objects in the store (removed again) is written. Ray is joined only with an address, an engine started only with
`--engine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cluster.s3 import S3Source
from cluster.stores import open_source
from coevo.config import RunConfig
from coevo.display import Display
from coevo.ports import StoreSource
from jobs import checks, checks_remote
from jobs.checks import Check, Outcome

__all__ = ["examine"]


def examine(config: RunConfig, display: Display, *, engine: bool = False, store: str = "", address: str = "") -> int:
    """Run all checks and print them; 0 when none failed, else 1.

    Args:
        config: The run, or an empty one.
        display: Where the lines go.
        engine: Also start the engine once.
        store: URI to check instead of the config's.
        address: Cluster to look at, `HOST:PORT`, or its Jobs server, `http://HOST:PORT`; empty takes the config's.
    """
    source = open_source(store or config.store)
    counts: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
    for check in _checks(config, source, engine=engine, address=address or config.cluster.address or ""):
        counts[check.outcome] += 1
        display.result("doctor", (check.line,))
    display.result("doctor", (_verdict(counts),))
    return 1 if counts[Outcome.FAIL] else 0


def _checks(config: RunConfig, source: StoreSource, *, engine: bool, address: str) -> Iterator[Check]:
    """All checks, cheap ones first."""
    yield from _here(config)
    yield from _store(source, config.name)
    yield checks_remote.check_expert_key(config)
    if address.startswith(("http://", "https://")):
        yield checks_remote.check_jobs_server(address)
    elif address:
        yield from checks_remote.check_cluster(address, source)
    yield checks.check_engine(config) if engine else Check("engine", Outcome.SKIP, "not started; --engine starts it once")


def _here(config: RunConfig) -> Iterator[Check]:
    yield checks.check_python()
    yield checks.check_packages()
    yield from (checks.check_owner(package) for package in ("cluster", "jobs"))
    yield checks.check_record()
    yield checks.check_space(config.store if "://" not in config.store else ".")
    yield checks.check_loopback()
    yield checks.check_sandbox()
    yield checks.check_weights()


def _store(source: StoreSource, run: str) -> Iterator[Check]:
    if isinstance(source, S3Source):
        keys = checks_remote.check_store_keys(source)
        yield keys
        if keys.outcome is not Outcome.OK:
            return
        yield checks_remote.check_clock(source)
        yield checks_remote.check_uploads(source)
    yield checks_remote.check_store(source.open())
    yield checks_remote.check_run(source.open(), run)


def _verdict(counts: Mapping[Outcome, int]) -> str:
    failed, warned = counts[Outcome.FAIL], counts[Outcome.WARN]
    return f"{failed} failed, {warned} warnings" if failed or warned else "all well"
