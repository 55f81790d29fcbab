"""`coevo run`: the whole loop once, phase by phase; every phase that is done already is read from the store."""

from __future__ import annotations

from jobs import dataset, evaluate, evolve, localize, publish, report, rewrite, rollout, train, transfer, tune
from jobs.context import RunContext, StageResult
from jobs.phases import phases_of

__all__ = ["PHASES", "main"]

PHASES = (
    ("evolve a harness with the weak model", evolve.main),
    ("measure weak model and expert under both harnesses", transfer.main),
    ("roll out the evolved agent", rollout.main),
    ("localize failing turns", localize.main),
    ("rewrite and verify them", rewrite.main),
    ("build the rows", dataset.main),
    ("choose learning rates", tune.main),
    ("fine-tune", train.main),
    ("publish", publish.main),
    ("measure again, on the test stream", evaluate.main),
    ("report", report.main),
)
"""The loop, in order: names as in `jobs.phases.RUN_PHASES`."""


def main(context: RunContext) -> StageResult:
    """Go round once."""
    lines: list[str] = []
    names = {one.name for one in phases_of(context.config)}
    phases = [(title, phase) for title, phase in PHASES if phase.__module__.rpartition(".")[2] in names]
    for number, (title, phase) in enumerate(phases, 1):
        context.display.note(f"[{number}/{len(phases)}] {title}")
        context.enter_phase(number - 1)
        result = phase(context)
        for line in result.lines:
            context.display.note(f"  {line}")
        if phase in (evolve.main, evaluate.main, report.main):
            lines += result.lines
    return StageResult("run", tuple(lines))
