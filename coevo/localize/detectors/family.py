"""What a detector is: it reads a scene, a failed episode laid out for looking, and names turns with reasons in words.

Detectors know no task family. What they need of one is two sets of names from its `Conduct`: tools that change what is graded, and
arguments that the agent chooses freely. Both may be empty, and then every accepted call counts as a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from coevo.chat import Message, Role
from coevo.records import CallRecord, Checkpoint, Episode
from coevo.tasks.walks import literals, seen
from coevo.tasks.world import TERMINAL_TOOL

__all__ = ["Detector", "Scene", "Suspect", "values_of"]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A turn that may be to blame.

    Attributes:
        turn: 0-based turn.
        detector: Which rule named it.
        reason: Why, for people and experts.
        weight: Strength; orders suspects before replay, larger first.
    """

    turn: int
    detector: str
    reason: str
    weight: float


def values_of(call: CallRecord) -> Iterator[str]:
    """Every argument value as text, members of lists one by one."""
    for value in call.arguments.values():
        yield from _flat(value)


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    else:
        yield str(value)


class Scene:
    """A failed episode, laid out.

    Args:
        episode: The episode.
        writes: Tools that change what is graded; empty = not known.
        free: Arguments that the agent chooses by itself.

    Attributes:
        failed: Failed checkpoints that name a subject: subject -> checkpoint.
        subjects: Subjects of all checkpoints.
        touched: Per turn, the subjects that its calls name.
    """

    def __init__(self, episode: Episode, *, writes: frozenset[str] = frozenset(), free: frozenset[str] = frozenset()) -> None:
        self.episode, self.writes, self.free = episode, writes, free
        checks = episode.grade.checkpoints if episode.grade is not None else ()
        named = [(check.name.partition(":")[2], check) for check in checks]
        self.subjects = frozenset(subject for subject, _ in named if subject)
        self._kinds = {subject: check.name.partition(":")[0] for subject, check in named}
        self.failed: dict[str, Checkpoint] = {}
        for subject, check in named:
            if subject and not check.passed:
                self.failed.setdefault(subject, check)
        self.touched = tuple(self._touched(turn.executed) for turn in episode.turns)
        self._seen: dict[int, frozenset[str]] = {}

    @property
    def failed_checks(self) -> tuple[Checkpoint, ...]:
        """All failed checkpoints, those without a subject too."""
        return tuple(check for check in (self.episode.grade.checkpoints if self.episode.grade is not None else ()) if not check.passed)

    def kind_of(self, subject: str) -> str:
        """What stands before the colon in the name of the subject's checkpoint."""
        return self._kinds.get(subject, "")

    def writes_at(self, turn: int) -> bool:
        """The turn made an accepted call that changes what is graded, finishing apart."""
        played = self.episode.turns[turn]
        return not played.result_error and any(self._writes(call) for call in played.executed)

    def finishes_at(self, turn: int) -> bool:
        """The turn called the terminal tool."""
        return any(call.name == TERMINAL_TOOL for call in self.episode.turns[turn].executed)

    def writes_about(self, subject: str) -> tuple[int, ...]:
        """Turns with an accepted write that names the subject, in play order."""
        return tuple(index for index, touched in enumerate(self.touched) if subject in touched and self.writes_at(index))

    def turns_about(self, subject: str) -> tuple[int, ...]:
        """Turns whose calls name the subject, in play order."""
        return tuple(index for index, touched in enumerate(self.touched) if subject in touched)

    def stretch(self, subject: str) -> tuple[int, ...]:
        """The work on a subject: turns from where it alone is first dealt with up to where another subject is next written or opened."""
        about = [index for index in self.turns_about(subject) if self.touched[index] == {subject}]
        if not about:
            return ()
        start, stop = about[0], about[-1] + 1
        while stop < len(self.touched) and not self.touched[stop] - {subject} and not self.finishes_at(stop):
            stop += 1
        while start > 0 and not self.touched[start - 1] and not self.writes_at(start - 1):
            start -= 1
        return tuple(range(start, stop))

    def seen_before(self, turn: int) -> frozenset[str]:
        """Tokens of everything that the agent saw or said before a turn, apart from its guesses inside calls."""
        if turn not in self._seen:
            self._seen[turn] = frozenset(seen(self.messages(self.episode.turns[turn].message_index)))
        return self._seen[turn]

    def messages(self, indices: Sequence[int]) -> list[Message]:
        """Stored messages by index."""
        stored = (self.episode.messages[index] for index in indices)
        return [Message(Role(one.role), one.content) for one in stored]

    def tokens(self, call: CallRecord) -> frozenset[str]:
        """Tokens of the arguments that must come from somewhere."""
        return frozenset(token for name, value in call.arguments.items() if name not in self.free for token in literals(value))

    def _touched(self, calls: Sequence[CallRecord]) -> frozenset[str]:
        values = {value for call in calls for value in values_of(call)}
        parts = {part for value in values if "/" in value for part in value.split("/")}
        return self.subjects & (values | parts)

    def _writes(self, call: CallRecord) -> bool:
        return call.name != TERMINAL_TOOL and (not self.writes or call.name in self.writes)


Detector = Callable[[Scene], Iterator[Suspect]]
"""Names turns of a scene. Deterministic; reads nothing but the scene."""
