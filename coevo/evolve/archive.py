"""All candidates of a search with their per-instance outcomes: a Pareto front over instances instead of one incumbent (H8).

A candidate is on the front of an instance when no other candidate that played it does better there, so a specialist survives as a parent
as long as it is best somewhere. Instances that nobody solves, or that only one candidate played, carry no weight: they can't tell
candidates apart. Only the search stream enters; the selection stream's verdicts stay with the gate (I8).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Self

from pydantic import Field

from coevo.errors import ConfigError, StoreError, nearest
from coevo.identity import short
from coevo.records import Record
from coevo.tasks.family import Stream, TaskInstance

__all__ = ["Archive", "ArchiveRecord", "Candidate"]


class Candidate(Record):
    """One harness of the search.

    Attributes:
        harness_hash: Identity.
        parent: Hash of the harness it was edited from; None for a seed.
        summary: The edit in one line; empty for a seed.
        restart, generation: Where in the search it was proposed.
        outcomes: Search-stream task key -> one 0/1 per repeat.
        accepted: A gate accepted it, or it is a seed.
    """

    harness_hash: str
    parent: str | None = None
    summary: str = ""
    restart: int = 0
    generation: int = 0
    outcomes: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    accepted: bool = False

    @property
    def mean(self) -> float | None:
        """Mean success over its instances; None before any was played."""
        rates = [_rate(row) for row in self.outcomes.values()]
        return sum(rates) / len(rates) if rates else None


class ArchiveRecord(Record):
    """An archive as stored: candidates in the order of arrival, parents first."""

    candidates: tuple[Candidate, ...]


class Archive:
    """Candidates by hash, in the order of arrival. One writer; equal calls in equal order give equal bytes.

    Args:
        candidates: Taken in one by one, parents first.
    """

    def __init__(self, candidates: Sequence[Candidate] = ()) -> None:
        self._candidates: dict[str, Candidate] = {}
        for candidate in candidates:
            self.add(candidate)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse what `to_bytes` wrote."""
        return cls(ArchiveRecord.from_bytes(data).candidates)

    def to_bytes(self) -> bytes:
        """Canonical JSON of an `ArchiveRecord`."""
        return ArchiveRecord(candidates=self.candidates).to_bytes()

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates, in the order of arrival."""
        return tuple(self._candidates.values())

    def get(self, harness_hash: str) -> Candidate:
        """A candidate. Raises `ConfigError` for an unknown hash."""
        if harness_hash not in self._candidates:
            raise ConfigError(
                "this harness is not in the archive", seen=harness_hash, fix=nearest(short(harness_hash), map(short, self._candidates))
            )
        return self._candidates[harness_hash]

    def add(self, candidate: Candidate) -> None:
        """Take a candidate in.

        Raises:
            ConfigError: The hash is there already, the parent is not, or an outcome is empty or not of the search stream.
        """
        if candidate.harness_hash in self._candidates:
            raise ConfigError("this harness is in the archive", seen=candidate.harness_hash, fix="use observe for more outcomes")
        if candidate.parent is not None and candidate.parent not in self._candidates:
            raise ConfigError("a candidate needs its parent in the archive", seen=candidate.parent, fix="add the parent first")
        _check_outcomes(candidate.outcomes)
        self._candidates[candidate.harness_hash] = candidate

    def observe(self, harness_hash: str, outcomes: Mapping[str, Sequence[int]]) -> None:
        """Add outcomes: new instances, or more repeats of known ones (the known repeats come first again).

        Raises:
            ConfigError: Unknown hash, or an outcome that is empty or not of the search stream.
            StoreError: A known repeat has another outcome now: an episode id has one outcome (I4).
        """
        known = self.get(harness_hash)
        _check_outcomes(outcomes)
        merged = dict(known.outcomes)
        for key, row in outcomes.items():
            old, new = merged.get(key, ()), tuple(row)
            shared = min(len(old), len(new))
            if old[:shared] != new[:shared]:
                raise StoreError("an outcome changed", seen=f"{key}: {old} -> {new}", fix="read outcomes from committed episodes only")
            merged[key] = max(old, new, key=len)
        self._candidates[harness_hash] = known.model_copy(update={"outcomes": merged})

    def accept(self, harness_hash: str) -> None:
        """Mark a candidate as accepted by a gate."""
        self._candidates[harness_hash] = self.get(harness_hash).model_copy(update={"accepted": True})

    def front(self) -> dict[str, tuple[str, ...]]:
        """Task key -> the hashes that do best on it, for instances that tell candidates apart; keys sorted."""
        players: dict[str, dict[str, float]] = {}
        for candidate in self._candidates.values():
            for key, row in candidate.outcomes.items():
                players.setdefault(key, {})[candidate.harness_hash] = _rate(row)
        best = {key: max(rates.values()) for key, rates in players.items()}
        telling = sorted(key for key, rates in players.items() if len(rates) > 1 and best[key] > 0)
        return {key: tuple(name for name, rate in players[key].items() if rate == best[key]) for key in telling}

    def weights(self) -> dict[str, int]:
        """Hash -> number of instances on whose front it is."""
        counts = dict.fromkeys(self._candidates, 0)
        for names in self.front().values():
            for name in names:
                counts[name] += 1
        return counts

    def choose_parent(self, rng: Random, *, barred: Collection[str] = ()) -> Candidate:
        """Draw a parent, weighted by `weights`; uniform when no instance tells candidates apart.

        Args:
            rng: Source of the draw.
            barred: Hashes that may not be drawn.

        Raises:
            ConfigError: The archive holds no other.
        """
        weights = {name: weight for name, weight in self.weights().items() if name not in barred}
        if not weights:
            seen = f"{len(self._candidates)} candidates, {len(barred)} barred"
            raise ConfigError("an empty archive has no parent to give", seen=seen, fix="add the base harness first")
        if not any(weights.values()):
            weights = dict.fromkeys(weights, 1)
        (chosen,) = rng.choices(list(weights), weights=list(weights.values()))
        return self._candidates[chosen]

    def lineage(self, harness_hash: str) -> tuple[Candidate, ...]:
        """From the seed to this candidate, by parent."""
        chain = [self.get(harness_hash)]
        while chain[-1].parent is not None:
            chain.append(self.get(chain[-1].parent))
        return tuple(reversed(chain))


def _rate(row: Sequence[int]) -> float:
    return sum(row) / len(row)


def _check_outcomes(outcomes: Mapping[str, Sequence[int]]) -> None:
    for key, row in outcomes.items():
        if TaskInstance.parse(key).stream is not Stream.SEARCH:
            raise ConfigError(
                "the archive takes outcomes of the search stream only", seen=key, fix="measure candidates on search instances"
            )
        if not row:
            raise ConfigError("an instance without repeats is not an outcome", seen=key, fix="leave owed instances out")
