"""Episodes commit one by one, so a killed job loses at most what was in flight.

`episodes/<id>.json.zst` holds outcomes, never infrastructure errors; `attempts/<id>/<n>.json` holds every try. Owed = wanted minus
committed: resume counts finished keys, never counters (R9, H12). Compaction to Parquet comes after and loses nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import zstandard

from coevo.errors import StoreError
from coevo.identity import content_hash
from coevo.ports import BlobStore, PutResult
from coevo.records import Attempt, Episode, Status
from coevo.store.artifacts import OutputRecord
from coevo.store.keys import check_key, join
from coevo.store.tables import decode_records, encode_records, table_of
from coevo.store.threads import fetch_all

__all__ = ["EpisodeStore", "read_episodes"]

_SUFFIX = ".json.zst"
_LEVEL = 3


@dataclass(frozen=True, slots=True)
class EpisodeStore:
    """Episodes and attempts below `prefix` of a store. Safe to share among threads and processes as far as the store is.

    Attributes:
        store: The object store.
        prefix: Key prefix, usually the run name; may be empty.
    """

    store: BlobStore
    prefix: str = ""

    def commit(self, episode: Episode) -> PutResult:
        """Store an outcome: WRITTEN, or SAME when exactly this episode is there.

        Raises:
            StoreError: It is an infrastructure error or ungraded (I3), its id is not its spec's, or another outcome of the same id is
                committed (I4); the committed one stands.
        """
        _check(episode)
        result = self.store.put_if_absent(self.key(episode.id), _pack(episode))
        if result is PutResult.CONFLICT:
            if self.get(episode.id) == episode:  # compressed by another zstd version
                return PutResult.SAME
            raise StoreError(
                "another outcome of this episode is committed",
                seen=episode.id,
                fix="keep the committed one: read it with get, or use commit_first",
            )
        return result

    def commit_first(self, episode: Episode) -> Episode:
        """Store an outcome unless one is there; the one that stands. For tries that may race: an answer was lost, a straggler came back.

        Raises:
            StoreError: As `commit`, except for another outcome.
        """
        _check(episode)
        result = self.store.put_if_absent(self.key(episode.id), _pack(episode))
        return self.get(episode.id) if result is PutResult.CONFLICT else episode

    def get(self, id: str) -> Episode:
        """A committed episode. Raises `StoreError` when there is none."""
        return _unpack(self.store.get(self.key(id)))

    def get_all(self, ids: Sequence[str]) -> list[Episode]:
        """Committed episodes in the order of the ids, of a remote store many at once. Raises `StoreError` for the first that is missing."""
        return [_unpack(data) for data in fetch_all(self.store, [self.key(id) for id in ids])]

    def has(self, id: str) -> bool:
        """True when the id is committed."""
        return self.store.head(self.key(id)) is not None

    def key(self, id: str) -> str:
        """Key of an episode."""
        return check_key(join(self.prefix, "episodes", f"{id}{_SUFFIX}"))

    def committed_ids(self) -> frozenset[str]:
        """All committed ids: one listing per call, so call it once per stage."""
        folder = join(self.prefix, "episodes") + "/"
        return frozenset(info.key[len(folder) : -len(_SUFFIX)] for info in self.store.list(folder) if info.key.endswith(_SUFFIX))

    def owed(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Wanted ids without a committed episode, each once, in the order wanted."""
        committed = self.committed_ids()
        return tuple(id for id in dict.fromkeys(wanted) if id not in committed)

    def record_attempt(self, attempt: Attempt) -> Attempt:
        """Store a try under `attempt.number`, or the next free number; what was stored.

        A resumed stage starts at `attempt_counts()[id]`; the search for a free number only settles races.
        """
        for number in count(attempt.number):
            numbered = attempt.model_copy(update={"number": number})
            key = check_key(join(self.prefix, "attempts", attempt.id, f"{number}.json"))
            if self.store.put_if_absent(key, numbered.to_bytes()) is not PutResult.CONFLICT:
                return numbered
        raise AssertionError("unreachable")

    def attempts(self, id: str) -> tuple[Attempt, ...]:
        """All tries at an id, by number."""
        infos = self.store.list(join(self.prefix, "attempts", id) + "/")
        return tuple(sorted((Attempt.from_bytes(self.store.get(info.key)) for info in infos), key=lambda attempt: attempt.number))

    def attempt_counts(self) -> Counter[str]:
        """Tries per id over all runs of the stage: one listing."""
        folder = join(self.prefix, "attempts") + "/"
        return Counter(info.key[len(folder) :].partition("/")[0] for info in self.store.list(folder))

    def compact(self, ids: Sequence[str], key: str) -> OutputRecord:
        """Copy committed episodes, in the given order, into one Parquet file at `key`; equal ids give equal bytes.

        Raises:
            StoreError: An id is not committed, or `key` holds something else.
        """
        data = encode_records(self.get_all(ids), table_of(Episode))
        if self.store.put_if_absent(key, data) is PutResult.CONFLICT:
            raise StoreError("the compaction's key holds something else", seen=key, fix="compact to a key named after the ids")
        return OutputRecord(key=key, hash=content_hash(data), rows=len(ids))


def read_episodes(store: BlobStore, key: str) -> tuple[Episode, ...]:
    """The episodes of a compacted file, in its order."""
    return tuple(decode_records(store.get(key), Episode))


def _check(episode: Episode) -> None:
    if episode.status is Status.INFRA_ERROR or episode.grade is None:
        raise StoreError(
            "only graded outcomes are committed", seen=f"{episode.id}: {episode.status}", fix="record an attempt; the id stays owed"
        )
    if episode.id != episode.spec.id:
        raise StoreError("an episode's id must be the hash of its spec", seen=f"{episode.id}, spec {episode.spec.id}", fix="set id=spec.id")


def _pack(episode: Episode) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(episode.to_bytes())


def _unpack(data: bytes) -> Episode:
    return Episode.from_bytes(zstandard.ZstdDecompressor().decompress(data))
