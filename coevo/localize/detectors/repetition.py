"""The same call again: an agent that does not take in what it reads."""

from __future__ import annotations

import json
from collections.abc import Iterator

from coevo.localize.detectors.family import Scene, Suspect

__all__ = ["repeated"]


def repeated(scene: Scene) -> Iterator[Suspect]:
    """Every repetition of an earlier call, naming the one before."""
    before: dict[str, int] = {}
    for index, turn in enumerate(scene.episode.turns):
        if turn.call is None:
            continue
        key = turn.call.name + json.dumps(turn.call.arguments, sort_keys=True)
        if key in before:
            yield Suspect(index, "repeated", f"the same call as at turn {before[key]}", 0.9)
        before[key] = index
