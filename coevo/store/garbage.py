"""What of a run nobody needs, found from the store alone.

Needed is everything that a manifest names, that is a manifest, pointer or claim itself, and every committed record (episodes, corrections,
localizations, ledger entries, reports): paid work is never garbage. What is left are the parts of killed writers, files of adapters that no
manifest names, scratch, probes of the doctor and, if the retention says so, old attempts and whole old runs. Objects of an unknown form are
kept.

Nothing that a live writer is about to name may go: leftovers of a run are garbage only when nothing of the run was written for
`Retention.grace_s`. Limit: ages are the store's, compared with this machine's clock; a store that tells no age keeps everything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from coevo.ports import BlobInfo, BlobStore
from coevo.store.episodes import EpisodeStore
from coevo.store.threads import fetch_all

__all__ = ["Garbage", "GarbageKind", "Retention", "find_garbage", "find_old_runs", "remove_garbage"]

_PART = re.compile(r"[^/]+-\d{5}-[0-9a-f]{8,}(\.\w+)*")
_STAGE = re.compile(r"(?P<prefix>[^/]+/[0-9a-f]{64})/(?P<rest>.+)")
_ADAPTER_FILE = re.compile(r"(?P<folder>[0-9a-f]{16})/.+")
_LAST = "config.json"
"""Claims the run's name, so it goes last."""


class GarbageKind(StrEnum):
    """Why an object is not needed."""

    ORPHAN = "orphan"
    """A part, or a file of an adapter, that no manifest names: its writer was killed."""
    SCRATCH = "scratch"
    """Framework checkpoints and merged models: made again when needed."""
    ATTEMPT = "attempt"
    """A try at a committed episode, older than the retention."""
    PROBE = "probe"
    """What a killed doctor left."""
    OLD_RUN = "old run"
    """Belongs to a run that is not kept."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Seconds and counts of `coevo.config.RetentionConfig`."""

    grace_s: float = 86_400.0
    attempts_s: float | None = None
    keep_runs: int | None = None


@dataclass(frozen=True, slots=True)
class Garbage:
    """What can go: objects by kind, and the runs whose leftovers stay because they were written to within the grace."""

    found: Mapping[GarbageKind, tuple[BlobInfo, ...]]
    busy: tuple[str, ...] = ()

    @property
    def objects(self) -> Iterator[BlobInfo]:
        """All of it."""
        return (info for infos in self.found.values() for info in infos)

    def __add__(self, other: Garbage) -> Garbage:
        kinds = [kind for kind in GarbageKind if kind in self.found or kind in other.found]
        found = {kind: self.found.get(kind, ()) + other.found.get(kind, ()) for kind in kinds}
        return Garbage(found, tuple(dict.fromkeys(self.busy + other.busy)))


def find_garbage(store: BlobStore, run: str, retention: Retention, *, now_s: float) -> Garbage:
    """Leftovers and old attempts of one run, and probes.

    Args:
        store: The store.
        run: Run name.
        retention: What is kept.
        now_s: Unix time.
    """
    listed = list(store.list(f"{run}/"))
    found: dict[GarbageKind, list[BlobInfo]] = {}
    busy = bool(listed) and not _older(_youngest(listed), retention.grace_s, now_s)
    named = _Named.read(store, run, listed)
    committed = EpisodeStore(store, run).committed_ids() if retention.attempts_s is not None else frozenset()
    for info in listed:
        kind = named.kind_of(info.key[len(run) + 1 :])
        if kind is GarbageKind.ATTEMPT:
            id = info.key[len(run) + 1 :].split("/")[1]
            old = retention.attempts_s is not None and _older(info.modified_s, retention.attempts_s, now_s)
            if old and id in committed:
                found.setdefault(kind, []).append(info)
        elif kind is not None and not busy:
            found.setdefault(kind, []).append(info)
    probes = [info for info in store.list("doctor/") if _older(info.modified_s, retention.grace_s, now_s)]
    if probes:
        found[GarbageKind.PROBE] = probes
    return Garbage({kind: tuple(infos) for kind, infos in found.items()}, (run,) if busy else ())


def find_old_runs(
    store: BlobStore, retention: Retention, *, keep: Collection[str], now_s: float, only: Collection[str] | None = None
) -> Garbage:
    """Whole runs that are not kept, each manifest before what it names.

    Args:
        store: The store.
        retention: Keeps the `keep_runs` last written ones; None keeps all.
        keep: Runs that stay whatever their age.
        now_s: Unix time.
        only: Take exactly these runs instead, as far as they are idle; `keep` and `keep_runs` do not hold then.
    """
    runs: dict[str, list[BlobInfo]] = {}
    for info in store.list("") if only is None else (info for name in only for info in store.list(f"{name}/")):
        runs.setdefault(info.key.partition("/")[0], []).append(info)
    known = [name for name, infos in runs.items() if any(info.key == f"{name}/{_LAST}" for info in infos)]
    last_first = sorted(known, key=lambda name: -(_youngest(runs[name]) or 0.0))
    if only is not None:
        gone = last_first
    else:
        gone = [] if retention.keep_runs is None else [name for name in last_first[retention.keep_runs :] if name not in keep]
    busy = [name for name in gone if not _older(_youngest(runs[name]), retention.grace_s, now_s)]
    objects = [info for name in gone if name not in busy for info in sorted(runs[name], key=_order)]
    return Garbage({GarbageKind.OLD_RUN: tuple(objects)} if objects else {}, tuple(busy))


def remove_garbage(store: BlobStore, garbage: Garbage, *, still: Garbage) -> int:
    """Delete what was found and is `still` garbage (looked up again after asking); the number deleted."""
    left = {(info.key, info.etag) for info in still.objects}
    doomed = [info for info in garbage.objects if (info.key, info.etag) in left]
    for info in doomed:
        store.delete(info.key)
    return len(doomed)


@dataclass(frozen=True, slots=True)
class _Named:
    """What the manifests of a run name; keys without the run.

    Attributes:
        outputs: Outputs of stages.
        closed: Stage prefixes with a manifest.
        adapters: Folders of adapters.
    """

    outputs: frozenset[str]
    closed: frozenset[str]
    adapters: frozenset[str]

    @classmethod
    def read(cls, store: BlobStore, run: str, listed: Iterable[BlobInfo]) -> _Named:
        keys = [info.key for info in listed if info.key.endswith("/manifest.json") and not info.key.startswith(f"{run}/scratch/")]
        manifests: list[dict[str, Any]] = [orjson.loads(data) for data in fetch_all(store, keys)]
        cut = len(run) + 1
        outputs = frozenset(output["key"][cut:] for one in manifests for output in one.get("outputs", ()))
        adapters = frozenset(one["key"][cut:] for one in manifests if "weights_hash" in one)
        return cls(outputs, frozenset(key[cut:].removesuffix("/manifest.json") for key in keys), adapters)

    def kind_of(self, key: str) -> GarbageKind | None:
        """The kind of an object of the run if nothing names it; attempts are judged by age."""
        top = key.partition("/")[0]
        if top == "scratch":
            return GarbageKind.SCRATCH
        if top == "attempts":
            return GarbageKind.ATTEMPT if key.count("/") == 2 else None
        place = _STAGE.fullmatch(key)
        if place is None or key in self.outputs:
            return None
        prefix, rest = place["prefix"], place["rest"]
        if _PART.fullmatch(rest):
            return GarbageKind.ORPHAN
        adapter = _ADAPTER_FILE.fullmatch(rest)
        if adapter is not None:
            return None if f"{prefix}/{adapter['folder']}" in self.adapters else GarbageKind.ORPHAN
        return GarbageKind.ORPHAN if rest == "curve.json" and prefix not in self.closed else None


def _youngest(infos: Iterable[BlobInfo]) -> float | None:
    """Time of the last write; None when some object tells no time."""
    times = [info.modified_s for info in infos]
    return None if None in times else max((time for time in times if time is not None), default=None)


def _older(moment_s: float | None, limit_s: float, now_s: float) -> bool:
    return moment_s is not None and now_s - moment_s >= limit_s


def _order(info: BlobInfo) -> tuple[int, str]:
    """Manifests first, so that none names what is gone (I5); the claim of the name last."""
    name = info.key.rpartition("/")[2]
    return (0 if name == "manifest.json" else 2 if info.key.count("/") == 1 and name == _LAST else 1, info.key)
