"""Whether what a run stored holds together: for `coevo doctor`, for tests that kill, and for anybody who doubts a bucket.

Three promises of the store are read back from its objects alone: a manifest exists only when all that it names does (I5), no episode is
committed twice, and no outcome is played twice (I4). Nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from coevo.errors import StoreError
from coevo.identity import content_hash
from coevo.ports import BlobStore
from coevo.records import Adapter, Status
from coevo.store.artifacts import StageManifest
from coevo.store.episodes import EpisodeStore

__all__ = ["Verification", "verify_run"]

_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_WEIGHT_FILES = ("config.json", "model.safetensors")


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found below a run.

    Attributes:
        manifests: Manifests of stages and adapters.
        outputs: Objects that they name.
        orphans: `manifest: object` where the object is missing or holds other bytes.
        uncounted: Manifests whose counts do not add up to what was expected.
        episodes: Committed episodes.
        unreadable: Committed episodes that can't be read, or that lie under another id than their own.
        twice: Ids with more than one attempt that ended in an outcome, and how many.
    """

    manifests: int
    outputs: int
    orphans: tuple[str, ...]
    uncounted: tuple[str, ...]
    episodes: int
    unreadable: tuple[str, ...]
    twice: tuple[tuple[str, int], ...]

    @property
    def sound(self) -> bool:
        """Nothing is wrong."""
        return not (self.orphans or self.uncounted or self.unreadable or self.twice)


def verify_run(store: BlobStore, run: str, *, deep: bool = True) -> Verification:
    """Read a run back.

    Args:
        store: The store.
        run: Run name.
        deep: Read outputs and episodes and compare hashes and ids; else only look whether they are there.
    """
    keys = {info.key for info in store.list(f"{run}/")}
    manifests, adapters = _manifests(store, (key for key in keys if key.endswith("/manifest.json")))
    orphans, outputs = [], 0
    for key, manifest in manifests.items():
        for output in manifest.outputs:
            outputs += 1
            if output.key not in keys or (deep and content_hash(store.get(output.key)) != output.hash):
                orphans.append(f"{key}: {output.key}")
    for key, adapter in adapters.items():
        files = _WEIGHT_FILES if adapter.dense else _ADAPTER_FILES
        outputs += len(files)
        orphans += [f"{key}: {adapter.key}/{name}" for name in files if not _is_there(f"{adapter.key}/{name}", keys)]
    uncounted = [key for key, one in manifests.items() if one.rows.total + len(one.owed) != one.expected]
    episodes = EpisodeStore(store, run)
    committed = sorted(episodes.committed_ids())
    return Verification(
        manifests=len(manifests) + len(adapters),
        outputs=outputs,
        orphans=tuple(sorted(orphans)),
        uncounted=tuple(sorted(uncounted)),
        episodes=len(committed),
        unreadable=tuple(id for id in committed if deep and not _readable(episodes, id)),
        twice=_played_twice(episodes),
    )


def _is_there(key: str, keys: Collection[str]) -> bool:
    """Whether an object is there; large weights lie in parts beside an index."""
    return key in keys or f"{key}.index.json" in keys


def _manifests(store: BlobStore, keys: Iterable[str]) -> tuple[dict[str, StageManifest], dict[str, Adapter]]:
    stages: dict[str, StageManifest] = {}
    adapters: dict[str, Adapter] = {}
    for key in sorted(keys):
        data = store.get(key)
        try:
            stages[key] = StageManifest.from_bytes(data)
        except ValidationError:
            adapters[key] = Adapter.from_bytes(data)
    return stages, adapters


def _readable(episodes: EpisodeStore, id: str) -> bool:
    try:
        found = episodes.get(id)
    except (StoreError, ValueError):
        return False
    return found.id == id == found.spec.id


def _played_twice(episodes: EpisodeStore) -> tuple[tuple[str, int], ...]:
    """Only ids with several attempts can have several outcomes, so only those are read."""
    repeated = [id for id, count in episodes.attempt_counts().items() if count > 1]
    outcomes = Counter({id: sum(one.outcome != Status.INFRA_ERROR for one in episodes.attempts(id)) for id in repeated})
    return tuple(sorted((id, count) for id, count in outcomes.items() if count > 1))
