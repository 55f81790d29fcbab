"""What was not done: a subject that was never settled, and a lookup that its peers got and it did not.

Limits: peers are the subjects of checks with the same first name, and at least two of them must have passed; an agent that reads everything
in batches leaves no trace of a lookup that it skipped for one subject alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from coevo.localize.detectors.family import Scene, Suspect

__all__ = ["skipped_lookup", "turned_away", "untouched"]

_COMMON = 0.8
"""Share of the peers that got a lookup from which its absence is remarkable."""


def turned_away(scene: Scene) -> Iterator[Suspect]:
    """A failed subject without any accepted write: the write after its last mention dealt with something else instead."""
    for subject, check in scene.failed.items():
        about = scene.turns_about(subject)
        if not about or scene.writes_about(subject):
            continue
        for index in range(about[-1], len(scene.episode.turns)):
            if scene.writes_at(index):
                reason = f"{check.feedback or check.name}: looked at in turn {about[-1]}, and here something else was written instead"
                yield Suspect(index, "turned_away", reason, 3.5)
                break


def untouched(scene: Scene) -> Iterator[Suspect]:
    """A failed subject that no call ever named: the last turn ended the episode without it."""
    for subject, check in scene.failed.items():
        if not scene.turns_about(subject) and scene.episode.turns:
            last = len(scene.episode.turns) - 1
            yield Suspect(last, "untouched", f"{check.feedback or check.name}: no call ever named {subject}", 3.9)


def skipped_lookup(scene: Scene) -> Iterator[Suspect]:
    """A failed subject was settled without a lookup that most of its passed peers got."""
    for subject, check in scene.failed.items():
        kind = check.name.partition(":")[0]
        peers = [one for one in scene.subjects - scene.failed.keys() if f"{kind}:{one}" in _names(scene)]
        if len(peers) < 2:
            continue
        counts = Counter(tool for peer in peers for tool in _tools(scene, peer))
        usual = {tool for tool, count in counts.items() if count >= _COMMON * len(peers)}
        lacking = sorted(usual - _tools(scene, subject))
        written = scene.writes_about(subject)
        if lacking and written:
            yield Suspect(written[0], "skipped", f"{check.feedback or check.name}: written without {lacking[0]}, which its peers got", 4.2)
        for index in scene.stretch(subject) if lacking else ():
            if not scene.writes_at(index):
                yield Suspect(index, "skipped", f"{check.feedback or check.name}: {lacking[0]} is missing around here", 2.3)


def _names(scene: Scene) -> frozenset[str]:
    grade = scene.episode.grade
    return frozenset(check.name for check in grade.checkpoints) if grade is not None else frozenset()


def _tools(scene: Scene, subject: str) -> frozenset[str]:
    """Reading tools whose calls named the subject."""
    found = set()
    for index in scene.turns_about(subject):
        if not scene.writes_at(index):
            found |= {call.name for call in scene.episode.turns[index].executed}
    return frozenset(found)
