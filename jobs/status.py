"""`coevo status`: what is stored of a run, from the store alone. Works while the run is in progress, wherever it runs; starts nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from cluster.stores import open_source
from coevo.config import RESUMABLE, RunConfig, default_config
from coevo.display import Display
from coevo.display.pace import duration
from coevo.ports import BlobStore
from coevo.records import Status
from coevo.store.artifacts import StageManifest
from coevo.store.episodes import EpisodeStore
from coevo.store.ledger import Budget, Ledger, Spend
from coevo.store.run_directory import config_differences
from jobs.beacon import Beacon, read_beacon

__all__ = ["Attempts", "RunStatus", "StageStatus", "read_status", "show_run", "show_status"]

ORDER = ("evolve", "transfer", "rollout", "localize", "rewrite", "mining", "dataset", "tune", "train", "publish", "evaluate", "report")
NO_STAGES = {"episodes", "attempts", "scratch", "ledger", "expert"}
SHOWN_IDS = 5


@dataclass(frozen=True, slots=True)
class StageStatus:
    """One stage of one set of inputs: `objects` in the store, `done` when it is closed, `manifest` where it has one that counts rows."""

    stage: str
    input_hash: str
    objects: int
    done: bool
    manifest: StageManifest | None


@dataclass(frozen=True, slots=True)
class Attempts:
    """Tries at episodes.

    Attributes:
        ids: Episodes tried.
        tries: All tries.
        most: Most tries at one episode.
        open: Tried, not committed: in flight, or owed.
        retried: Episodes with more than one try, after infrastructure trouble.
        replayed: Episodes played to an outcome more than once: work done twice.
        examples: (id, tries) of those with most tries.
    """

    ids: int
    tries: int
    most: int
    open: int
    retried: int
    replayed: int
    examples: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Everything that `coevo status` says. `config` None: the run never started; `beacon` None: no job told of its progress."""

    run: str
    config: Mapping[str, Any] | None
    stages: tuple[StageStatus, ...]
    episodes: int
    attempts: Attempts
    beacon: Beacon | None
    spent: Spend
    held: Spend


def read_status(store: BlobStore, run: str) -> RunStatus:
    """Read the run's manifests and count its episodes and attempts."""
    keys = [info.key[len(run) + 1 :] for info in store.list(f"{run}/")]
    config = orjson.loads(store.get(f"{run}/config.json")) if "config.json" in keys else None
    episodes = sum(key.startswith("episodes/") for key in keys)
    ledger = Ledger(store, budget=Budget(), prefix=f"{run}/ledger")
    attempts = _attempts(EpisodeStore(store, run))
    return RunStatus(run, config, _stages(store, run, keys), episodes, attempts, read_beacon(store, run), ledger.spent, ledger.held)


def _stages(store: BlobStore, run: str, keys: list[str]) -> tuple[StageStatus, ...]:
    objects: Counter[tuple[str, str]] = Counter()
    for key in keys:
        parts = key.split("/")
        if len(parts) > 2 and parts[0] not in NO_STAGES:
            objects[parts[0], parts[1]] += 1
    closed = {key for key in keys if key.endswith("/manifest.json")}
    found = []
    for (stage, identity), count in objects.items():
        key = f"{stage}/{identity}/manifest.json"
        manifest = _manifest(store.get(f"{run}/{key}")) if key in closed else None
        found.append(StageStatus(stage, identity, count, key in closed, manifest))
    return tuple(sorted(found, key=lambda one: (_rank(one.stage), one.stage, not one.done, one.input_hash)))


def _manifest(data: bytes) -> StageManifest | None:
    """The manifest, or None for one that counts no rows (an adapter's)."""
    try:
        return StageManifest.from_bytes(data)
    except ValidationError:
        return None


def _rank(stage: str) -> int:
    return ORDER.index(stage) if stage in ORDER else len(ORDER)


def _attempts(episodes: EpisodeStore) -> Attempts:
    counts, committed = episodes.attempt_counts(), episodes.committed_ids()
    repeated = sorted((id for id, count in counts.items() if count > 1), key=lambda id: (-counts[id], id))
    outcomes = {id: sum(one.outcome != Status.INFRA_ERROR for one in episodes.attempts(id)) for id in repeated}
    return Attempts(
        ids=len(counts),
        tries=counts.total(),
        most=max(counts.values(), default=0),
        open=len(counts.keys() - committed),
        retried=len(repeated),
        replayed=sum(count > 1 for count in outcomes.values()),
        examples=tuple((id, counts[id]) for id in repeated[:SHOWN_IDS]),
    )


def show_status(config: RunConfig, display: Display) -> int:
    """Print the status of the run that `config` names; exit code 0."""
    return show_run(config.name, config.store, display, config=config)


def show_run(name: str, uri: str, display: Display, *, config: RunConfig | None = None) -> int:
    """Print the status of a run by its name and its store; with `config` also what differs from the stored one."""
    absent = "://" not in uri and not Path(uri).is_dir()  # opening a local store would make its folder
    status = read_status(open_source(uri).open(), name) if not absent else None
    if status is None or status.config is None:
        display.result("status", (f"run {name!r}: nothing stored in {uri} yet",))
        return 0
    header = ("stage", "inputs", "state", "written", "dropped", "failed", "owed", "tokens", "wall", "cost")
    display.table(f"run {name!r}", header, [_row(one) for one in status.stages])
    display.result("status", tuple(_closing(status, config)))
    return 0


def _row(one: StageStatus) -> tuple[str, ...]:
    if one.manifest is None:
        return (one.stage, one.input_hash[:8], "done" if one.done else "begun", *("",) * 7)
    rows, manifest = one.manifest.rows, one.manifest
    cost = "" if manifest.cost_usd is None else f"${manifest.cost_usd:.2f}"
    dropped, failed = sum(rows.dropped.values()), sum(rows.failed.values())
    counts = (f"{value:,}" for value in (rows.written, dropped, failed, len(manifest.owed), manifest.tokens))
    return (one.stage, one.input_hash[:8], "done", *counts, duration(manifest.wall_s), cost)


def _closing(status: RunStatus, config: RunConfig | None) -> list[str]:
    tries = status.attempts
    now = [status.beacon.line(time.time())] if status.beacon is not None else []
    per_id = f"{tries.tries:,} attempts at {tries.ids:,} ids, at most {tries.most} per id"
    lines = [
        *now,
        f"paid {_amount(status.spent)}; held for work under way {_amount(status.held)}",
        f"{status.episodes:,} episodes committed; {per_id}, {tries.open} ids in flight or owed",
        f"{tries.retried} ids tried again after infrastructure trouble; {tries.replayed} played to an outcome more than once",
    ]
    lines += [f"  {id[:16]}: {count} attempts" for id, count in tries.examples]
    if status.config is not None and config is not None:
        given = config.model_dump(mode="json")
        changed = config_differences(status.config, given, ignore=RESUMABLE, defaults=default_config())
        lines += [f"config differs from the stored one: {one.name}: {one.stored} -> {one.given}" for one in changed]
    return lines


def _amount(spend: Spend) -> str:
    dollars = "" if spend.usd is None else f", ${spend.usd:,.2f}"
    return f"{spend.episodes:,} episodes, {spend.tokens:,} tokens{dollars}"
