"""From a failed checkpoint to the turns that wrote the state which it reads, and to the work that led there."""

from __future__ import annotations

from collections.abc import Iterator

from coevo.localize.detectors.family import Scene, Suspect
from coevo.records import CallRecord
from coevo.tasks.world import TERMINAL_TOOL

__all__ = ["by_subject", "by_write", "stray_write", "work_on_subject"]


def by_subject(scene: Scene) -> Iterator[Suspect]:
    """The last accepted call about a failed checkpoint's subject; the calls about it before that are weaker suspects."""
    for subject, check in scene.failed.items():
        about = [
            index
            for index, turn in enumerate(scene.episode.turns)
            if not turn.result_error and any(_mentions(call, subject) for call in turn.executed)
        ]
        for rank, index in enumerate(reversed(about[-3:])):
            yield Suspect(index, "checkpoint", f"{check.feedback or check.name} (last touched here)", 3.0 - 0.5 * rank)


def by_write(scene: Scene) -> Iterator[Suspect]:
    """Every accepted write about a failed subject: the first put the state wrong, later ones may have failed to mend it."""
    for subject, check in scene.failed.items():
        for rank, index in enumerate(scene.writes_about(subject)):
            call = scene.episode.turns[index].executed[-1]
            yield Suspect(index, "write", f"{check.feedback or check.name}: {call.name} was called here", 4.0 - 0.2 * min(rank, 4))


def work_on_subject(scene: Scene) -> Iterator[Suspect]:
    """The turns that worked on a failed subject without naming it: a form field, a calculation, a lookup that its write rests on."""
    for subject, check in scene.failed.items():
        stretch = scene.stretch(subject)
        for place, index in enumerate(stretch):
            if not scene.finishes_at(index):
                weight = 2.6 if scene.writes_at(index) else 1.9
                yield Suspect(index, "work", f"{check.feedback or check.name}: part of the work on {subject}", weight - 0.01 * place)


def stray_write(scene: Scene) -> Iterator[Suspect]:
    """A write that names no subject of any check, where a check without a subject failed: something else was changed."""
    broken = [check for check in scene.failed_checks if not check.name.partition(":")[2] and check.name != "finished"]
    if not broken:
        return
    for index, touched in enumerate(scene.touched):
        if scene.writes_at(index) and not touched:
            yield Suspect(index, "stray", f"{broken[0].feedback or broken[0].name}: this call is about nothing that the task names", 2.4)


def _mentions(call: CallRecord, subject: str) -> bool:
    return call.name != TERMINAL_TOOL and subject in (str(value) for value in call.arguments.values())
