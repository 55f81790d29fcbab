"""What was not done: a subject that was never settled, and a lookup that its peers got and it did not.

Limits: peers are the subjects of checks with the same first name; where they need different lookups, a missing one means little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from coevo.localize.detectors.family import Scene, Suspect, values_of

__all__ = ["skipped_lookup", "turned_away", "untouched", "went_back"]

_COMMON = 0.8
"""Share of the peers that got a lookup from which its absence is remarkable."""


def turned_away(scene: Scene) -> Iterator[Suspect]:
    """A failed subject without any accepted write: the write after its last mention dealt with something else instead."""
    for subject, check in scene.failed.items():
        about = scene.turns_about(subject)
        if not about or scene.writes_about(subject):
            continue
        later = [index for index in range(about[-1] + 1, len(scene.episode.turns)) if scene.writes_at(index)]
        for index in sorted({*later[:1], *later[-1:]}):
            reason = f"{check.feedback or check.name}: looked at in turn {about[-1]}, and here something else was written instead"
            yield Suspect(index, "turned_away", reason, 3.5 if index == later[0] else 3.0)


def went_back(scene: Scene) -> Iterator[Suspect]:
    """While a failed subject waited for its write, the agent turned to one that was settled rightly before."""
    waiting = [subject for subject in scene.failed if not scene.writes_about(subject)]
    rightly = {subject: about[-1] for subject in scene.subjects - scene.failed.keys() if (about := scene.writes_about(subject))}
    for index, touched in enumerate(scene.touched):
        settled = sorted(subject for subject in touched & rightly.keys() if rightly[subject] < index)
        if waiting and settled and not touched & set(waiting):
            said = scene.failed[waiting[0]].feedback or waiting[0]
            yield Suspect(index, "went_back", f"{said}: here {settled[0]} was taken up again, which was settled before", 3.4)


def untouched(scene: Scene) -> Iterator[Suspect]:
    """A failed subject that no call ever named: the last turn ended the episode without it."""
    for subject, check in scene.failed.items():
        if not scene.turns_about(subject) and scene.episode.turns:
            last = len(scene.episode.turns) - 1
            yield Suspect(last, "untouched", f"{check.feedback or check.name}: no call ever named {subject}", 3.9)


def skipped_lookup(scene: Scene) -> Iterator[Suspect]:
    """A failed subject was settled without a lookup that most peers got: its write, and the lookups of that kind that left it out."""
    for subject, check in scene.failed.items():
        lacking, written = _lacking(scene, subject), scene.writes_about(subject)
        if not lacking:
            continue
        said = check.feedback or check.name
        if written:
            yield Suspect(written[0], "skipped", f"{said}: written without {lacking[0]}, which its peers got", 4.2)
        for index in scene.stretch(subject):
            if not scene.writes_at(index):
                yield Suspect(index, "skipped", f"{said}: {lacking[0]} is missing around here", 2.3)
        for tool in lacking:
            yield from _left_out(scene, subject, tool, said, stop=written[0] if written else len(scene.episode.turns))


def _left_out(scene: Scene, subject: str, tool: str, said: str, *, stop: int) -> Iterator[Suspect]:
    """Lookups with the tool before the write: the nearest ones, and strongest those that read a subject that is read twice."""
    lookups = [index for index in range(stop) if any(call.name == tool for call in scene.episode.turns[index].executed)]
    every = [index for index, turn in enumerate(scene.episode.turns) if any(call.name == tool for call in turn.executed)]
    asked = Counter(one for index in every for one in _named(scene, index))
    for rank, index in enumerate(reversed(lookups)):
        twice = [one for one in _named(scene, index) if asked[one] > 1]
        if twice:
            yield Suspect(index, "mixed_up", f"{said}: {tool} never read {subject}, but here {twice[0]}, which it read twice", 4.3)
        elif rank < 2:
            yield Suspect(index, "left_out", f"{said}: {tool} read others here and never {subject}", 3.4 - 0.1 * rank)


def _named(scene: Scene, turn: int) -> list[str]:
    return [value for call in scene.episode.turns[turn].executed for value in values_of(call) if value in scene.subjects]


def _lacking(scene: Scene, subject: str) -> list[str]:
    """Reading tools that most peers were given to and the subject was not."""
    kind = scene.kind_of(subject)
    peers = [one for one in sorted(scene.subjects) if one != subject and scene.kind_of(one) == kind]
    counts = Counter(tool for peer in peers for tool in _tools(scene, peer))
    return sorted({tool for tool, count in counts.items() if count >= _COMMON * len(peers)} - _tools(scene, subject))


def _tools(scene: Scene, subject: str) -> frozenset[str]:
    """Reading tools whose calls named the subject."""
    found = set()
    for index in scene.turns_about(subject):
        if not scene.writes_at(index):
            found |= {call.name for call in scene.episode.turns[index].executed}
    return frozenset(found)
