"""From what a proposer is given nothing leads to a selection or test instance (I8).

A proposer runs in the process of the search. Its arguments are walked here reference by reference: what they hold, what those objects
hold, the cells of functions included. Modules and classes are not walked, for every Python program has those.

1. In a managed search with archive parents and gates, no tier, task, stream, family, store or seed of the run is reached, and every task
   key is one of the search stream.
2. The walk notices what it should: a tier behind a closure, a key in a note.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from coevo.config import EvolveConfig
from coevo.evolve.gate import AlphaSpending, GateDecision, PairedGate, SelectionStream
from coevo.evolve.propose import Edit, Evidence
from coevo.evolve.rounds import Round
from coevo.evolve.search import SearchTask, search
from coevo.evolve.simulated import FutileProposer, SimulatedEvaluator
from coevo.evolve.tiers import SealedTier, SearchTier, SelectionTier
from coevo.harness.bundle import HarnessBundle
from coevo.records import Episode
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream

FAMILY = load_family("payroll")
BASE = HarnessBundle.load(FAMILY.base_harness(Size.MINI))
SEED = 8_675_309
CONFIG = EvolveConfig(
    generations=3,
    proposals=2,
    proposer_calls=2,
    search_instances=6,
    gate_instances=16,
    restarts=2,
    parents="pareto",
    crossovers=1,
    confirm_instances=0,
    max_lost_share=1.0,
)
BARRED = (SearchTask, SearchTier, SelectionTier, SealedTier, SelectionStream, PairedGate, AlphaSpending, GateDecision, Round, type(FAMILY))
"""Each of them draws instances, or says what was drawn or decided."""


def referents(found: object) -> Iterable[object]:
    """What an object holds. Of a function its cells and defaults, not the module that it stands in."""
    if isinstance(found, FunctionType):
        return (*(found.__closure__ or ()), *(found.__defaults__ or ()))
    return gc.get_referents(found)


def reached(*roots: object) -> Iterator[object]:
    """Everything that can be reached from the roots. What was seen is held: an id that is free again would hide its next owner."""
    seen, waiting = dict[int, object](), list(roots)
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | CodeType | FrameType | BuiltinFunctionType):
            continue
        seen[id(one)] = one
        yield one
        waiting += referents(one)


def escapes(*roots: object) -> list[str]:
    """What a proposer must not reach, in words."""
    found, keys = list[str](), [f"/{stream}/" for stream in Stream if stream is not Stream.SEARCH]
    for one in reached(*roots):
        if isinstance(one, BARRED) or hasattr(one, "put_if_absent"):
            found.append(type(one).__name__)
        elif isinstance(one, str) and any(key in one for key in keys):
            found.append(one)
        elif type(one) is int and one == SEED:
            found.append("the run's seed")
    return found


@dataclass
class Watching:
    """A proposer that looks around."""

    inner: FutileProposer
    name: str = "watching"
    found: list[str] = field(default_factory=list)
    calls: int = 0
    episodes: int = 0

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]:
        self.calls += 1
        self.found += escapes(parent, evidence, rng)
        self.episodes += sum(isinstance(one, Episode) for one in reached(parent, evidence, rng))
        return self.inner.propose(parent, evidence, rng)


def test_a_proposer_is_given_nothing_that_leads_to_other_instances() -> None:
    """Promise 1."""
    planted: dict[str, float] = {}
    proposer = Watching(FutileProposer(planted, effect=0.35))
    coins = SimulatedEvaluator(3, effects=planted)
    record = search(BASE, SearchTask(FAMILY, Size.MINI, 1, CONFIG, SEED), evaluator=coins, proposer=proposer)
    assert any(one.decision is not None for one in record.rounds), "gates were held, so there is something to hide"
    assert len(record.draws) > 1
    assert proposer.calls >= 8
    assert proposer.episodes >= 6 * proposer.calls, "the walk goes through the traces"
    assert proposer.found == []


def test_the_walk_notices_an_escape() -> None:
    """Promise 2."""
    tier = SearchTier.of(FAMILY, Size.MINI, 1, seed=SEED)

    def closure() -> Callable[[], Any]:
        return lambda: tier.draw(first=0, count=1)

    assert {"SearchTier", type(FAMILY).__name__} <= set(escapes([closure()]))
    assert escapes({"note": ("like payroll/mini/routine/selection/7#0",)}) == ["like payroll/mini/routine/selection/7#0"]
    assert escapes(SearchTask(FAMILY, Size.MINI, 1, CONFIG, SEED)).count("the run's seed") == 1
    assert escapes("payroll/mini/routine/search/7#0", Random(SEED)) == []
