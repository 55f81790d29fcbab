"""`coevo gc`: list what no manifest, pointer or record of a run needs, and remove it after asking."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import typer

from cluster.stores import open_source
from coevo.config import RunConfig
from coevo.display import Display
from coevo.display.pace import quantity
from coevo.ports import BlobStore
from coevo.store.garbage import Garbage, Retention, find_garbage, find_old_runs, remove_garbage

__all__ = ["collect", "retention_of"]

HOUR_S, DAY_S = 3600.0, 86_400.0


@runtime_checkable
class Sweepable(Protocol):
    """A store whose killed writers leave something below the level of objects: temporary files, unfinished uploads."""

    def leftovers(self, *, older_than_s: float) -> Sequence[str]: ...

    def sweep(self, *, older_than_s: float) -> int: ...


@dataclass(frozen=True, slots=True)
class _Found:
    garbage: Garbage
    uploads: int


def retention_of(config: RunConfig) -> Retention:
    """The config's section in seconds."""
    kept = config.retention
    attempts_s = None if kept.attempts_days is None else kept.attempts_days * DAY_S
    return Retention(grace_s=kept.grace_hours * HOUR_S, attempts_s=attempts_s, keep_runs=kept.keep_runs)


def collect(config: RunConfig, display: Display, *, run: str = "", yes: bool = False, dry_run: bool = False) -> int:
    """List, ask, remove.

    Args:
        config: Names store, run and retention.
        display: Where the listing goes.
        run: Remove this whole run instead.
        yes: Do not ask.
        dry_run: List only.
    """
    if "://" not in config.store and not Path(config.store).is_dir():  # opening a local store would make its folder
        display.result("gc", (f"nothing stored in {config.store} yet",))
        return 0
    store = open_source(config.store).open()
    found = _find(store, config, run)
    _show(display, found, run or config.name)
    if not found.uploads and not any(found.garbage.objects):
        display.result("gc", ("nothing to remove",))
        return 0
    if dry_run or not (yes or _asked()):
        display.result("gc", ("nothing was removed; --yes removes it",))
        return 0
    removed = remove_garbage(store, found.garbage, still=_find(store, config, run).garbage)
    swept = store.sweep(older_than_s=config.retention.grace_hours * HOUR_S) if isinstance(store, Sweepable) and not run else 0
    display.result("gc", (f"removed {removed:,} objects and {swept:,} unfinished uploads",))
    return 0


def _find(store: BlobStore, config: RunConfig, run: str) -> _Found:
    retention, now_s = retention_of(config), time.time()
    if run:
        return _Found(find_old_runs(store, retention, keep=(), now_s=now_s, only=(run,)), 0)
    garbage = find_garbage(store, config.name, retention, now_s=now_s)
    if retention.keep_runs is not None:
        garbage += find_old_runs(store, retention, keep=(config.name,), now_s=now_s)
    return _Found(garbage, len(store.leftovers(older_than_s=retention.grace_s)) if isinstance(store, Sweepable) else 0)


def _show(display: Display, found: _Found, run: str) -> None:
    rows = [
        (str(kind), f"{len(infos):,}", f"{quantity(sum(info.size_bytes for info in infos))}B", infos[0].key)
        for kind, infos in found.garbage.found.items()
    ]
    if found.uploads:
        rows.append(("upload", f"{found.uploads:,}", "", "unfinished, of killed writers"))
    if rows:
        display.table(f"not needed by run {run!r}", ("kind", "objects", "size", "first"), rows)
    for name in found.garbage.busy:
        display.note(f"run {name!r} was written to within retention.grace_hours: its leftovers stay")


def _asked() -> bool:
    return sys.stdin.isatty() and typer.confirm("remove these?", err=True)
