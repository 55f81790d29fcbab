"""Turns that the harness or the world refused: no readable call, a call outside the schema, a tool error, a blocked finish."""

from __future__ import annotations

from collections.abc import Iterator

from coevo.localize.detectors.family import Scene, Suspect

__all__ = ["blocked_finish", "refused", "refused_write"]


def refused(scene: Scene) -> Iterator[Suspect]:
    """Turns without a readable call, and calls that were refused."""
    for index, turn in enumerate(scene.episode.turns):
        if turn.parse_failure is not None:
            yield Suspect(index, "parse", f"no readable call: {turn.parse_failure}", 1.0)
        elif turn.result_error:
            yield Suspect(index, "refused", f"the call was refused: {turn.result[:120]}", 0.8)


def refused_write(scene: Scene) -> Iterator[Suspect]:
    """A refused call about a failed subject that the agent never made good: it went on as if the work were done."""
    for subject, check in scene.failed.items():
        for index in scene.turns_about(subject):
            turn = scene.episode.turns[index]
            if turn.result_error and not any(later > index for later in scene.writes_about(subject)):
                yield Suspect(index, "refused_write", f"{check.feedback or check.name}: refused here and never made good", 3.1)


def blocked_finish(scene: Scene) -> Iterator[Suspect]:
    """A hook held the finish back: the blocked turn tried to end with work undone, and the next one had been told so."""
    for index, turn in enumerate(scene.episode.turns):
        blocks = [one for one in turn.firings if one.effect == "block_call" and one.event in ("before_finish", "before_tool")]
        if not blocks or turn.call is None:
            continue
        yield Suspect(index, "blocked", f"{turn.call.name} was blocked: {blocks[0].detail[:120]}", 1.2)
        if index + 1 < len(scene.episode.turns):
            yield Suspect(index + 1, "after_block", f"the turn after {turn.call.name} was blocked at turn {index}", 1.1)
