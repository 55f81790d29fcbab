"""Gold solutions and do-nothing agents on every entry of the outside suites that are installed: `python tests/bench/bench_suites.py`.

Prints one line per suite and template: entries, solved by the suite's own solution, succeeded by doing nothing, and for tau2 how many
tickets satisfy their assertions before anything is done. Exits with 1 when a solution fails or an idle agent succeeds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from coevo.tasks.adapters import bfcl, tau2
from coevo.tasks.adapters.optional import missing
from coevo.tasks.family import Move, Size, Stream, Style, TaskFamily, TaskInstance, World
from coevo.tasks.world import TERMINAL_TOOL


class Count(NamedTuple):
    """Of one template."""

    entries: int
    solved: int
    idle: int
    held: int


def bfcl_worlds(category: str) -> Iterator[World]:
    for entry in bfcl.entries(category):
        yield bfcl.BfclWorld(TaskInstance("bfcl", category, Stream.TEST, 0, Size.STANDARD), entry)


def tau2_worlds(issue: str) -> Iterator[World]:
    for task in tau2.tickets():
        if task.id.startswith(f"[{issue}]"):
            yield tau2.Tau2World(TaskInstance("tau2", issue, Stream.TEST, 0, Size.STANDARD), task)


def count(family: TaskFamily, worlds: Iterator[World]) -> Count:
    """Play the suite's solution and an idle agent in every world."""
    entries = solved = idle = held = 0
    for world in worlds:
        entries += 1
        lazy = world.fork()
        held += all(
            check.passed or check.feedback.endswith("nothing else is right yet")
            for check in lazy.grade().checkpoints[:-1]
            if "assertion" in check.name
        )
        lazy.call(TERMINAL_TOOL, {})
        idle += lazy.grade().success or lazy.grade().score > 0
        policy = family.policy(Style.REACTIVE)
        while not world.finished:
            move = policy.move(world, ())
            if not isinstance(move, Move):
                break
            world.call(move.call.name, move.call.arguments)
        solved += world.grade().success
    return Count(entries, solved, idle, held)


SUITES: dict[str, tuple[str, TaskFamily, Callable[[str], Iterator[World]]]] = {
    "bfcl": ("bfcl_eval", bfcl.family, bfcl_worlds),
    "tau2": ("tau2.domains.telecom.environment", tau2.family, tau2_worlds),
}


def main() -> int:
    """Returns the exit status."""
    status = 0
    for name, (module, family, worlds) in SUITES.items():
        reason = missing(module)
        if reason is not None:
            print(f"{name}: skipped, {reason}")
            continue
        for template in family.templates(Size.STANDARD):
            began = time.perf_counter()
            found = count(family, worlds(template))
            extra: Any = f", {found.held} satisfy their assertions by inaction" if name == "tau2" else ""
            print(
                f"{name} {template}: {found.solved} of {found.entries} solved by the suite's solution, {found.idle} scored by doing nothing"
                f"{extra}, {time.perf_counter() - began:.1f} s"
            )
            status |= found.solved < found.entries or found.idle > 0
    return status


if __name__ == "__main__":
    sys.exit(main())
