"""Failures are mined in waves until there are enough verified rewrites: how far that went, as a stored record.

With some models few failures can be pinned to one turn that a single rewrite turns, so the rollouts that one arm needs are not known
before they are played. A wave is a slice of one fixed order of instances and holds the same records whatever came before it: n waves hold
what one rollout of their sum would hold. Waves end with the first that brings the verified rewrites to what was wanted, or at the ceiling.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from coevo.config import LocalizeConfig
from coevo.records import Record

__all__ = ["MiningRecord", "WaveFigures", "wave_ranges"]


def wave_ranges(config: LocalizeConfig) -> tuple[range, ...]:
    """Places of each wave's items in the order of instances, all waves that there may be; the last one is cut at the ceiling."""
    ceiling = config.max_rollouts if config.max_rollouts is not None else config.rollouts
    return tuple(range(first, min(first + config.rollouts, ceiling)) for first in range(0, ceiling, config.rollouts))


class WaveFigures(BaseModel):
    """What came of one wave.

    Attributes:
        rollouts: Episodes played to an outcome.
        owed: Episodes, localizations and rewrites without a record.
        failures: Of the episodes.
        examined: Failures that were localized or found to be unlocalizable.
        localized: With a turn to blame.
        verified: With a rewrite of that turn whose gain replay has verified.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rollouts: int
    owed: int
    failures: int
    examined: int
    localized: int
    verified: int

    @classmethod
    def total(cls, waves: Iterable[WaveFigures]) -> WaveFigures:
        """The sum."""
        listed = list(waves)
        return cls(**{name: sum(getattr(one, name) for one in listed) for name in cls.model_fields})


class MiningRecord(Record):
    """All waves of a run that wanted a number of verified rewrites (`localize.rows`).

    Attributes:
        wanted: Verified rewrites.
        ceiling: Episodes that could be rolled out at most.
        waves: In order.
        met: Whether there are as many as were wanted.
    """

    wanted: int
    ceiling: int
    waves: tuple[WaveFigures, ...]
    met: bool

    @classmethod
    def of(cls, config: LocalizeConfig, waves: Iterable[WaveFigures]) -> MiningRecord:
        """The record of these waves under these settings."""
        listed = tuple(waves)
        met = WaveFigures.total(listed).verified >= config.rows
        return cls(wanted=config.rows, ceiling=wave_ranges(config)[-1].stop, waves=listed, met=met)

    @property
    def total(self) -> WaveFigures:
        """Over all waves."""
        return WaveFigures.total(self.waves)

    @property
    def words(self) -> str:
        """The outcome as a sentence."""
        sums, count = self.total, len(self.waves)
        played = (
            f"{count} {'wave' if count == 1 else 'waves'}: {sums.rollouts} episodes, {sums.failures} failures, {sums.localized} localized"
        )
        reached = f"{sums.verified} of {self.wanted} wanted rows verified"
        why = "target met" if self.met else f"target missed at the ceiling of {self.ceiling} rollouts (localize.max_rollouts)"
        return f"{played}, {reached}: {why}"
