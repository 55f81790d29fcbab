"""From judgements to a grade: weighted checkpoints whose feedback says what is wrong and never what is right.

What an agent gets by doing nothing earns nothing: a guard (nothing else was touched, the episode was finished) counts only beside something
done right, so an agent that does nothing and one that only finishes both score 0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coevo.errors import ConfigError
from coevo.records import Checkpoint, Grade

__all__ = ["NOT_SETTLED", "Judgement", "grade_settlements", "weigh"]

NOT_SETTLED = "not settled"
"""Problem of an item that nobody dealt with; localization reads it as open work."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One thing that the final state shows.

    Attributes:
        name: `noun:subject`; localization looks the subject up in the arguments of calls.
        problem: What is wrong, without the answer; None where nothing is.
        weight: Share of the score, relative to the others.
        guard: True where doing nothing is enough to pass.
    """

    name: str
    problem: str | None
    weight: float = 1.0
    guard: bool = False

    @property
    def subject(self) -> str:
        """What the feedback starts with."""
        return self.name.partition(":")[2] or self.name


def weigh(judgements: Iterable[Judgement], *, finished: bool, finish_weight: float = 1.0) -> Grade:
    """Grade a final state: one checkpoint per judgement, then `finished`.

    Args:
        judgements: In the order in which they are shown; at least one that is no guard.
        finished: The world's terminal tool was called.
        finish_weight: Weight of the last checkpoint.

    Raises:
        ConfigError: Nothing can be earned, or a weight is not above 0.
    """
    given = list(judgements)
    if all(one.guard for one in given) or min((one.weight for one in given), default=0) <= 0 or finish_weight <= 0:
        raise ConfigError("a grade needs something to earn and weights above 0", seen=[one.name for one in given], fix="add a judgement")
    earned = any(one.problem is None for one in given if not one.guard)
    checkpoints = [_checkpoint(one, earned=earned) for one in given]
    feedback = ("" if earned else "finished: nothing settled right") if finished else "finished: not finished"
    checkpoints.append(Checkpoint(name="finished", weight=finish_weight, passed=finished and earned, feedback=feedback))
    total, passed = sum(check.weight for check in checkpoints), sum(check.weight for check in checkpoints if check.passed)
    return Grade(success=all(check.passed for check in checkpoints), score=passed / total, checkpoints=tuple(checkpoints))


def grade_settlements(problems: Mapping[str, str | None], *, finished: bool) -> Grade:
    """Grade a list of items: one checkpoint `settled:ITEM` per item and one for finishing, all of weight 1.

    Args:
        problems: Item id -> what is wrong, without the answer; None where nothing is.
        finished: The world's terminal tool was called.
    """
    return weigh((Judgement(f"settled:{one}", problem) for one, problem in problems.items()), finished=finished)


def _checkpoint(one: Judgement, *, earned: bool) -> Checkpoint:
    problem = one.problem if one.problem is not None or earned or not one.guard else "nothing else is right yet"
    return Checkpoint(
        name=one.name, weight=one.weight, passed=problem is None, feedback="" if problem is None else f"{one.subject}: {problem}"
    )
