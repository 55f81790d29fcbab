"""How the episode ended: finished with open work, or never finished."""

from __future__ import annotations

from collections.abc import Iterator

from coevo.localize.detectors.family import Scene, Suspect
from coevo.records import Status
from coevo.tasks.grading import NOT_SETTLED

__all__ = ["early_finish", "no_finish"]

_CUT = (Status.MAX_TURNS, Status.MAX_TOKENS, Status.PARSE_FAILURES, Status.CONTEXT_OVERFLOW)


def early_finish(scene: Scene) -> Iterator[Suspect]:
    """The agent ended the episode although checkpoints still fail: the finishing turn left work undone."""
    episode = scene.episode
    if episode.status is not Status.COMPLETED or not episode.turns or episode.grade is None or episode.success:
        return
    named = {str(value) for turn in episode.turns for call in turn.executed for value in call.arguments.values()}
    subjects = [(check.name.partition(":")[2], check) for check in scene.failed_checks]
    undone = [check for subject, check in subjects if subject and (NOT_SETTLED in check.feedback or subject not in named)]
    if undone:
        yield Suspect(len(episode.turns) - 1, "early_finish", f"finished with open work: {undone[0].feedback or undone[0].name}", 3.2)


def no_finish(scene: Scene) -> Iterator[Suspect]:
    """The last turn of an episode that ran out of turns, tokens, context or readable calls."""
    episode = scene.episode
    if episode.turns and episode.status in _CUT:
        yield Suspect(len(episode.turns) - 1, "no_finish", f"never finished: {episode.status}", 0.5)
