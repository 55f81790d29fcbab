"""The race: edits against the incumbent on the same search instances, all edits at once.

With a futility share the first part of the instances is played first, and an edit that is clearly behind there plays no more. The rule is
the exact one-sided McNemar test in the harmful direction at `FUTILE_P`: an edit that does nothing is dropped at most that often, one that
gains hardly ever. Dropping changes no error rate of the gate, which sees fresh instances of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coevo.evaluate.stats import mcnemar
from coevo.evolve.evaluator import Answer, Play, Steps, Wish
from coevo.evolve.faults import faulty_episodes
from coevo.evolve.propose import Edit, score_predictions
from coevo.evolve.rounds import Race
from coevo.records import Episode

__all__ = ["FUTILE_P", "Entrant", "Raced", "best_of", "race"]

FUTILE_P = 0.2
"""Chance with which the futility stop drops an edit that does nothing. With 20 instances, 34 % of pairs differing and a gain of 10 points
it drops the edit in about 3 % of races."""
_CITED = 6

Episodes = Mapping[str, Episode]


@dataclass(frozen=True, slots=True)
class Entrant:
    """An edit with its parent and what the parent did on the race's instances."""

    edit: Edit
    parent: str
    parent_traces: Episodes


@dataclass(slots=True)
class Raced:
    """An entrant with its episodes."""

    entrant: Entrant
    played: dict[str, Episode] = field(default_factory=dict)
    futile: bool = False

    def record(self, incumbent: Episodes) -> Race:
        """The race as stored."""
        shared = [item for item in self.played if item in incumbent]
        gains, losses = _discordant(self.played, incumbent, shared)
        edit = self.entrant.edit
        return Race(
            harness_hash=edit.bundle.hash,
            component=edit.component,
            mechanism=edit.mechanism,
            hypothesis=edit.hypothesis,
            delta=(gains - losses) / max(1, len(shared)),
            instances=len(shared),
            parent=self.entrant.parent,
            gains=gains,
            losses=losses,
            futile=self.futile,
            evidence=edit.evidence[:_CITED],
            risks=edit.predicted_risks,
            forecast=score_predictions(edit, list(self.entrant.parent_traces.values()), list(self.played.values())),
            faulty=faulty_episodes(self.played[item] for item in shared),
        )


def race(entrants: Sequence[Entrant], items: Sequence[str], incumbent: Episodes, *, futility_share: float) -> Steps[list[Raced]]:
    """Play every entrant on the incumbent's instances.

    Args:
        entrants: Edits to try.
        items: The instances, in order.
        incumbent: Its episodes on them.
        futility_share: Part of the instances after which an edit may be dropped; 0 plays all at once.
    """
    runs = [Raced(entrant) for entrant in entrants]
    first = round(futility_share * len(items))
    if 0 < first < len(items):
        yield from _play(runs, items[:first])
        for run in runs:
            gains, losses = _discordant(run.played, incumbent, [item for item in items[:first] if item in run.played and item in incumbent])
            run.futile = losses > gains and mcnemar(gains, losses, alternative="less") <= FUTILE_P
        yield from _play([run for run in runs if not run.futile], items[first:])
    else:
        yield from _play(runs, items)
    return runs


def best_of(races: Sequence[Race]) -> int | None:
    """Index of the edit with most credit, the first of equals; None when none gained."""
    best = max(range(len(races)), key=lambda index: (races[index].credit, -index), default=None)
    return best if best is not None and races[best].credit > 0 else None


def _play(runs: Sequence[Raced], items: Sequence[str]) -> Steps[None]:
    plays = tuple(Play(run.entrant.edit.bundle, tuple(items), "race") for run in runs)
    answer: Answer = yield Wish(plays=plays)
    for run, episodes in zip(runs, answer.episodes, strict=True):
        run.played.update(episodes)


def _discordant(candidate: Episodes, incumbent: Episodes, items: Sequence[str]) -> tuple[int, int]:
    """Instances that only the candidate and only the incumbent solved."""
    gains = sum(candidate[item].success and not incumbent[item].success for item in items)
    return gains, sum(incumbent[item].success and not candidate[item].success for item in items)
