"""From one judgement per employee to a grade: the same weights in every size of the family."""

from __future__ import annotations

from collections.abc import Mapping

from coevo.records import Checkpoint, Grade

__all__ = ["grade_settlements"]


def grade_settlements(problems: Mapping[str, str | None], *, finished: bool) -> Grade:
    """Grade a department.

    One checkpoint per employee and one for finishing, all of weight 1. Finishing counts only beside an employee settled right, so an agent
    that does nothing and one that only finishes both score 0.0.

    Args:
        problems: Employee id -> what is wrong, without the answer; None where nothing is.
        finished: The world's terminal tool was called.
    """
    checkpoints = [
        Checkpoint(name=f"settled:{one}", weight=1.0, passed=problem is None, feedback="" if problem is None else f"{one}: {problem}")
        for one, problem in problems.items()
    ]
    ended = finished and any(check.passed for check in checkpoints)
    feedback = "" if ended else ("finished: nothing settled right" if finished else "finished: not finished")
    checkpoints.append(Checkpoint(name="finished", weight=1.0, passed=ended, feedback=feedback))
    passed = sum(check.passed for check in checkpoints)
    return Grade(success=passed == len(checkpoints), score=passed / len(checkpoints), checkpoints=tuple(checkpoints))
