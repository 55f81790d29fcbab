"""What a pretrained embedded model must show before it may ship, fixed before it was trained.

Measured per family on held-out instances of the pretraining stream only, three templates, temperature 0.7, under the base harness and the
hand-made one (`coevo.mini.harnesses`). The bands leave room above and below in every family: a base harness that already solves the task
leaves evolution nothing to find, a hand-made harness that solves everything leaves correction nothing to mend. They were worked out from
the teacher and nothing else: the demonstrator, its habits sharpened as sampling at 0.7 sharpens them (`sharpened`), is what a model without
errors of its own would reach, and `python -m jobs.pretrain --work W --teacher` prints it per family.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from coevo.chat import Sampling
from coevo.episode import Agent, play
from coevo.errors import InfraError
from coevo.evaluate.stats import wilson
from coevo.formats.mini import MiniFormat
from coevo.harness.sandbox import SandboxPool
from coevo.mini.demonstrator import Habits
from coevo.mini.harnesses import DemoHarness, base_demo, hand_made
from coevo.ports import ChatModel, Tokenizer
from coevo.tasks.family import Size, Stream, TaskFamily

__all__ = ["GATES", "GATE_INSTANCES", "GATE_SEED_FIRST", "MEAN_GAP", "Gate", "Rates", "check_gates", "judge", "measure", "sharpened"]

GATE_SEED_FIRST = 1_000_000
"""First instance seed of the gates; the corpus uses seeds below."""
GATE_INSTANCES = 200
"""Instances per family and harness."""
_TEMPLATES = 3
_SAMPLING = Sampling(0.7, 1.0, 96)
_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Gate:
    """A closed band for one success rate, or for the difference of two."""

    name: str
    low: float
    high: float

    def failure(self, value: float) -> list[str]:
        """Nothing, or the failure in words."""
        return [] if self.low <= value <= self.high else [f"{self.name} = {value:.3f}, outside [{self.low}, {self.high}]"]


GATES = (
    Gate("base", 0.10, 0.50),
    Gate("hand_made", 0.25, 0.85),
    Gate("hand_made - base", 0.05, 1.0),
)
"""Success in each family under the base harness, under the hand-made harness, and the gap. The gap of 200 instances has a standard error of
about 0.045, so a family's own gap is held to little and the mean over families to `MEAN_GAP`."""

MEAN_GAP = Gate("mean of hand_made - base", 0.10, 1.0)


@dataclass(frozen=True, slots=True)
class Rates:
    """Success of one model in one family.

    Attributes:
        instances: Episodes per harness.
        base, hand_made: Successes among them.
    """

    instances: int
    base: int
    hand_made: int

    @property
    def gap(self) -> float:
        """What the hand-made harness adds."""
        return (self.hand_made - self.base) / self.instances


def check_gates(base: float, hand_made: float) -> list[str]:
    """One family's failures in words; empty when every gate holds."""
    return [failure for gate, value in zip(GATES, (base, hand_made, hand_made - base), strict=True) for failure in gate.failure(value)]


def judge(measured: Mapping[str, Rates]) -> dict[str, Any]:
    """The gates' record, as it ships: rates with 95 % intervals per family, and all failures in words (each begins with its family).

    Args:
        measured: Family name -> rates; at least one.
    """
    families: dict[str, Any] = {}
    failures: list[str] = []
    for name, rates in measured.items():
        families[name] = {"instances": rates.instances}
        for harness, won in (("base", rates.base), ("hand_made", rates.hand_made)):
            families[name][harness] = {"success": won / rates.instances, "interval": list(wilson(won, rates.instances))[:2]}
        found = check_gates(rates.base / rates.instances, rates.hand_made / rates.instances)
        failures += [f"{name}: {failure}" for failure in found]
    mean = sum(rates.gap for rates in measured.values()) / len(measured)
    return {"families": families, "mean_gap": mean, "failures": failures + MEAN_GAP.failure(mean)}


async def measure(
    family: TaskFamily,
    source: Callable[[DemoHarness], ChatModel],
    *,
    tokenizer: Tokenizer,
    sandboxes: SandboxPool,
    instances: int = GATE_INSTANCES,
) -> Rates:
    """Play the gates' instances under both harnesses.

    Args:
        family: Its miniature.
        source: The model that plays a harness: the same one for both, or a demonstrator of each.
        tokenizer: Of the model.
        sandboxes: For the hand-made harness's components.
        instances: Per harness; fewer than `GATE_INSTANCES` for a look only.

    Raises:
        InfraError: An episode could not be graded.
    """
    keys = range(GATE_SEED_FIRST, GATE_SEED_FIRST + instances)
    chosen = [family.instance(Stream.PRETRAIN, seed, Size.MINI, diversity=_TEMPLATES) for seed in keys]
    won: list[int] = []
    for harness in (base_demo(family), hand_made(family)):
        agent = Agent(source(harness), harness.bundle, MiniFormat(), tokenizer, _CONTEXT, _SAMPLING)
        episodes = await asyncio.gather(*(play(one, family=family, agent=agent, sandboxes=sandboxes) for one in chosen))
        ungraded: Sequence[str] = [episode.error for episode in episodes if episode.grade is None]
        if ungraded:
            raise InfraError("gate episodes met infrastructure trouble", seen=ungraded[0][-1500:], fix="mend it and measure again")
        won.append(sum(episode.success for episode in episodes))
    return Rates(instances, *won)


def sharpened(habits: Habits, *, temperature: float = _SAMPLING.temperature) -> Habits:
    """The habits of a model that learnt `habits` exactly and samples at a temperature: odds to the power of its inverse."""

    def sharp(share: float) -> float:
        often, seldom = share ** (1 / temperature), (1 - share) ** (1 / temperature)
        return float(often / (often + seldom))

    return Habits(**{habit.name: sharp(getattr(habits, habit.name)) for habit in fields(habits)})
