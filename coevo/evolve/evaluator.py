"""What a search asks for while it decides: episodes and proposals, many at once.

Every part of a search is a generator: it yields what it wants, gets the answers and goes on. `answer` gathers the wishes of all parts that
run side by side into one batch for the evaluator, so that K edits, both sides of a gate and all restarts are played together; and as the
parts are resumed in a fixed order, the search stays a function of the seed and of committed episodes whatever finishes first.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

from coevo.errors import ConfigError
from coevo.evolve.propose import Edit, Evidence, Proposer
from coevo.harness.bundle import HarnessBundle
from coevo.records import Episode
from coevo.tasks.family import Stream

__all__ = ["Answer", "Ask", "Evaluator", "Play", "Steps", "Wish", "alone", "side_by_side"]

Result = TypeVar("Result")
_SEALED = f"/{Stream.TEST}/"


@dataclass(frozen=True, slots=True)
class Play:
    """One harness on items.

    Attributes:
        bundle: The harness.
        items: `<task key>#<repeat>` each.
        purpose: Which part of the search asks: search, race, gate, null, rung, final, confirm, ablate or a baseline's name.
        null: Whether the model that knows nothing plays, in place of the weak model.

    Raises:
        ConfigError: An item of the test stream: no part of a search may ask for one (I8).
    """

    bundle: HarnessBundle
    items: tuple[str, ...]
    purpose: str
    null: bool = False

    def __post_init__(self) -> None:
        sealed = next((item for item in self.items if _SEALED in item), None)
        if sealed is not None:
            fix = "draw from the search or the selection tier; `evaluate` opens the test tier after the last decision"
            raise ConfigError("a search may not play this instance", seen=sealed, fix=fix)


class Evaluator(Protocol):
    """Plays harnesses and returns the committed episodes by item, one mapping per play; owed items are absent.

    The plays of one call belong together: an implementation runs them at the same time, as far as its machines go. A committed episode is
    read, never played again. Raises `BudgetExceeded` when the call can't be paid; what was paid stays committed.
    """

    def play(self, plays: Sequence[Play]) -> Sequence[Mapping[str, Episode]]: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of the proposer."""

    parent: HarnessBundle
    evidence: Evidence
    rng: Random


@dataclass(frozen=True, slots=True)
class Wish:
    """What a part of the search needs next."""

    plays: tuple[Play, ...] = ()
    asks: tuple[Ask, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Episodes per play and edits per ask, in the order of the wish."""

    episodes: tuple[Mapping[str, Episode], ...] = ()
    edits: tuple[tuple[Edit, ...], ...] = ()


Steps = Generator[Wish, Answer, Result]
"""A part of the search: yields wishes, is sent answers, returns its result."""


def side_by_side(parts: Sequence[Steps[Result]], *, evaluator: Evaluator, proposer: Proposer) -> list[Result]:
    """Run parts to their ends, all their wishes of a moment answered together; their results in order."""
    results: dict[int, Result] = {}
    wishes: dict[int, Wish] = {}
    answers: dict[int, Answer | None] = dict.fromkeys(range(len(parts)))
    while answers:
        for index, given in answers.items():
            try:
                wishes[index] = next(parts[index]) if given is None else parts[index].send(given)
            except StopIteration as end:
                results[index] = end.value
        answers = dict(zip(wishes, _answer(list(wishes.values()), evaluator, proposer), strict=True))
        wishes = {}
    return [results[index] for index in range(len(parts))]


def alone(part: Steps[Result], *, evaluator: Evaluator, proposer: Proposer) -> Result:
    """Run one part to its end."""
    return side_by_side([part], evaluator=evaluator, proposer=proposer)[0]


def _answer(wishes: Sequence[Wish], evaluator: Evaluator, proposer: Proposer) -> list[Answer]:
    plays = [play for wish in wishes for play in wish.plays]
    episodes = iter(evaluator.play(plays) if plays else ())
    edits = iter(_propose([ask for wish in wishes for ask in wish.asks], proposer))
    return [Answer(tuple(next(episodes) for _ in wish.plays), tuple(next(edits) for _ in wish.asks)) for wish in wishes]


def _propose(asks: Sequence[Ask], proposer: Proposer) -> list[tuple[Edit, ...]]:
    """One thread per call: a proposer that waits for a model waits once for all of them."""
    if len(asks) < 2:
        return [tuple(proposer.propose(ask.parent, ask.evidence, ask.rng)) for ask in asks]
    with ThreadPoolExecutor(len(asks)) as threads:
        return list(threads.map(lambda ask: tuple(proposer.propose(ask.parent, ask.evidence, ask.rng)), asks))
