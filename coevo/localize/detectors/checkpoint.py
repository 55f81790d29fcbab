"""From a failed checkpoint to the turns that wrote the state which it reads, and to the work that led there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from coevo.localize.detectors.family import Scene, Suspect
from coevo.records import CallRecord
from coevo.tasks.world import TERMINAL_TOOL

__all__ = ["by_field", "by_subject", "by_write", "stray_write", "work_on_subject"]


def by_subject(scene: Scene) -> Iterator[Suspect]:
    """The last accepted call about a failed checkpoint's subject; the calls about it before that are weaker suspects."""
    for check in scene.failed_checks:
        subject = check.name.partition(":")[2]
        about = [
            index
            for index, turn in enumerate(scene.episode.turns)
            if subject and not turn.result_error and any(_mentions(call, subject) for call in turn.executed)
        ]
        for rank, index in enumerate(reversed(about[-3:])):
            yield Suspect(index, "checkpoint", f"{check.feedback or check.name} (last touched here)", 3.0 - 0.5 * rank)


def by_write(scene: Scene) -> Iterator[Suspect]:
    """Every accepted write about a failed subject: the first put the state wrong, later ones may have failed to mend it."""
    for subject, check in scene.failed.items():
        for rank, index in enumerate(scene.writes_about(subject)):
            call = scene.episode.turns[index].executed[-1]
            yield Suspect(index, "write", f"{check.feedback or check.name}: {call.name} was called here", 4.0 - 0.2 * min(rank, 4))


def by_field(scene: Scene) -> Iterator[Suspect]:
    """Writes with an argument that the feedback names (`wrong unit`), where no write names the subject itself."""
    for subject, check in scene.failed.items():
        if scene.writes_about(subject):
            continue
        words = set(check.feedback.replace(":", " ").split())
        for index, turn in enumerate(scene.episode.turns):
            named = sorted({name for call in turn.executed for name in call.arguments if name in words})
            if named and scene.writes_at(index):
                yield Suspect(index, "field", f"{check.feedback}: this call sets {named[0]}", 3.3)


def work_on_subject(scene: Scene) -> Iterator[Suspect]:
    """The turns that worked on a failed subject without naming it: a form field, a calculation, a lookup that its write rests on."""
    for subject, check in scene.failed.items():
        stretch = scene.stretch(subject)
        calls = Counter(str(scene.episode.turns[index].call) for index in stretch)
        for place, index in enumerate(stretch):
            if not scene.finishes_at(index):
                again = calls[str(scene.episode.turns[index].call)] > 1
                weight = 2.6 if scene.writes_at(index) else 1.9
                said = f"{check.feedback or check.name}: part of the work on {subject}"
                yield Suspect(index, "work", said, weight + 0.3 * again + 0.01 * place)


def stray_write(scene: Scene) -> Iterator[Suspect]:
    """Writes, where a check without a subject failed: those about nothing that the task names, and weaker the others."""
    broken = [check for check in scene.failed_checks if not check.name.partition(":")[2] and check.name != "finished"]
    if not broken:
        return
    said = broken[0].feedback or broken[0].name
    for index, touched in enumerate(scene.touched):
        if scene.writes_at(index) and not touched:
            yield Suspect(index, "stray", f"{said}: this call is about nothing that the task names", 2.4)
        elif scene.writes_at(index) and not scene.failed:
            yield Suspect(index, "any_write", f"{said}: this call changed something", 1.8)


def _mentions(call: CallRecord, subject: str) -> bool:
    return call.name != TERMINAL_TOOL and subject in (str(value) for value in call.arguments.values())
