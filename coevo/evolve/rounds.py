"""What a search stores of itself: races, gates, restarts, and how its winner did when measured again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from coevo.evaluate.grid import measured
from coevo.evaluate.stats import compare
from coevo.evolve.archive import Candidate
from coevo.evolve.gate import GateDecision
from coevo.evolve.propose import PredictionScore
from coevo.harness.bundle import HarnessBundle
from coevo.records import Comparison, Episode, Measurement, Record

__all__ = ["Confirmation", "Finalist", "Race", "RestartRecord", "Round", "SearchRecord"]


class Race(BaseModel):
    """One edit's try on the search stream. `delta` is candidate minus incumbent on the same instances.

    Attributes:
        harness_hash, component, mechanism, hypothesis: The edit.
        delta, instances: Over the instances that both sides have.
        parent: Harness that was edited; empty in records written before there was a choice of parents.
        gains, losses: Instances that only the candidate and only the incumbent solved.
        futile: It was stopped after the first part of the instances, being behind.
        evidence: (episode id, turn) that the proposer cited, the first few.
        risks: What the proposer said it might break.
        forecast: Its prediction, scored; None in older records.
        faulty: Of these instances, in how many a component of the edited harness was switched off.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    harness_hash: str
    component: str
    mechanism: str
    hypothesis: str
    delta: float
    instances: int
    parent: str = ""
    gains: int = 0
    losses: int = 0
    futile: bool = False
    evidence: tuple[tuple[str, int], ...] = ()
    risks: tuple[str, ...] = ()
    forecast: PredictionScore | None = None
    faulty: int = 0

    @property
    def credit(self) -> float:
        """`delta` less the share of instances on which something of the harness was off: what the edit is ranked by."""
        return self.delta - self.faulty / max(1, self.instances)


class Round(BaseModel):
    """One generation of one restart: the races, and the gate's decision where an edit got that far.

    Attributes:
        generation, restart: Which.
        incumbent, incumbent_rate, incumbent_instances: Where it began, and how that did on the generation's search instances.
        races: Every edit tried.
        decision: None when no edit gained on the search stream.
        outcome: In words.
        episodes: Episodes of this generation, the null model's left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    generation: int
    incumbent: str
    incumbent_rate: float
    races: tuple[Race, ...] = ()
    decision: GateDecision | None = None
    outcome: str
    restart: int = 0
    incumbent_instances: int = 0
    episodes: int = 0

    @property
    def accepted(self) -> bool:
        """Whether the gate let an edit through."""
        return self.decision is not None and self.decision.accepted


class RestartRecord(BaseModel):
    """One restart.

    Attributes:
        restart: Number.
        best_hash: Its last accepted harness, or the base.
        accepted, generations: How many.
        stopped: Why it ended.
        rung_rates: Its incumbent's success on the instances that all restarts of a rung shared, per rung.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    restart: int
    best_hash: str
    accepted: int
    generations: int
    stopped: str
    rung_rates: tuple[float, ...] = ()


class Finalist(BaseModel):
    """A restart's best harness on the fresh selection instances that all finalists shared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    harness_hash: str
    successes: int
    instances: int


class Confirmation(BaseModel):
    """Two harnesses on selection instances that served no decision: for a winner, the figure to report.

    Attributes:
        base, best: Both sides on the same instances.
        comparison: best - base.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: Measurement
    best: Measurement
    comparison: Comparison

    @classmethod
    def of(
        cls,
        names: tuple[str, str],
        bundles: tuple[HarnessBundle, HarnessBundle],
        episodes: Sequence[Mapping[str, Episode]],
        *,
        seed: int,
        level: float = 0.95,
    ) -> Confirmation | None:
        """Measure and compare; items that one side owes are left out of both (I3). None when no item is left.

        Args:
            names: Of base and best.
            bundles: Base and best.
            episodes: What each played, by item.
            seed: Of the bootstrap.
            level: Coverage of the interval.
        """
        both = [item for item in episodes[0] if item in episodes[1]]
        if not both:
            return None
        owed = tuple(item for item in {**episodes[0], **episodes[1]} if item not in both)
        base, best = (
            measured(
                name,
                {item: played[item] for item in both},
                model_id=next((one.spec.model_id for one in played.values()), ""),
                harness_hash=bundle.hash,
                form="base",
                owed=owed,
            )
            for name, bundle, played in zip(names, bundles, episodes, strict=True)
        )
        return cls(base=base, best=best, comparison=compare(base, best, seed=seed, level=level))


class SearchRecord(Record):
    """What a search found and how. `best` holds the files of the winner (the base when nothing was accepted).

    Attributes:
        base_hash, best_hash, best: Where it began and what it found.
        rounds: All generations of all restarts, in the order played.
        stopped: Why it ended.
        episodes: Episodes asked for, the null model's left out, the confirmation's included.
        archive: All candidates, restart by restart.
        restarts: One per restart; empty in older records, which had one.
        finalists: Where several restarts accepted something.
        confirmation: None when nothing was accepted or it was not asked for.
        draws: Ids of the selection draws that were opened.
    """

    base_hash: str
    best_hash: str
    best: dict[str, str]
    rounds: tuple[Round, ...]
    stopped: str
    episodes: int
    archive: tuple[Candidate, ...] = ()
    restarts: tuple[RestartRecord, ...] = ()
    finalists: tuple[Finalist, ...] = ()
    confirmation: Confirmation | None = None
    draws: tuple[str, ...] = ()

    @property
    def accepted(self) -> int:
        """Edits that passed a gate."""
        return sum(one.accepted for one in self.rounds)
