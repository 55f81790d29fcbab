"""Deterministic evidence: which turns of a failed episode could have caused the failure, and why, in words.

Detectors read only what the episode records: failed checkpoints, executed calls, refused calls, hook effects, observations. They know no
family: a checkpoint's subject (the part behind the colon of its name) is looked up in the arguments of the calls that ran. A detector
proposes; replay decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from coevo.localize.detectors import checkpoint, document, ending, missing, refusal, repetition
from coevo.localize.detectors.family import Detector, Scene, Suspect
from coevo.records import Episode
from coevo.tasks.family import TaskFamily, TaskInstance

__all__ = ["DETECTORS", "Depth", "Suspect", "scene_of", "strongest", "suspects"]


class Depth(StrEnum):
    """Which detectors look."""

    BASIC = "basic"
    """Five cheap rules: last call about a failed subject, finish with open work, refusals, repetitions, no finish."""
    FULL = "full"
    """All of them: writes and the work behind them, missing actions, contradictions of what was read, blocked finishes."""


_BASIC: tuple[Detector, ...] = (
    checkpoint.by_subject,
    ending.early_finish,
    refusal.refused,
    repetition.repeated,
    ending.no_finish,
)

DETECTORS: Mapping[Depth, tuple[Detector, ...]] = MappingProxyType(
    {
        Depth.BASIC: _BASIC,
        Depth.FULL: (
            missing.skipped_lookup,
            document.out_of_force,
            document.conflicting,
            checkpoint.by_write,
            missing.untouched,
            document.foreign,
            document.unsourced,
            missing.turned_away,
            missing.went_back,
            checkpoint.by_field,
            refusal.refused_write,
            *_BASIC,
            checkpoint.work_on_subject,
            checkpoint.stray_write,
            refusal.blocked_finish,
        ),
    }
)
"""In the order in which equal weights count."""


def scene_of(episode: Episode, family: TaskFamily | None = None) -> Scene:
    """The scene, with what the family says of its tools."""
    if family is None:
        return Scene(episode)
    conduct = family.conduct(TaskInstance.parse(episode.spec.task_key).size)
    return Scene(episode, writes=conduct.writes, free=conduct.free)


def strongest(scene: Scene, *, limit: int, depth: Depth = Depth.BASIC) -> tuple[Suspect, ...]:
    """Up to `limit` turns, each with its strongest reason, the strongest first; of equals the earlier turn."""
    best: dict[int, Suspect] = {}
    for detector in DETECTORS[depth]:
        for suspect in detector(scene):
            held = best.get(suspect.turn)
            if held is None or suspect.weight > held.weight:
                best[suspect.turn] = suspect
    return tuple(sorted(best.values(), key=lambda suspect: (-suspect.weight, suspect.turn))[:limit])


def suspects(episode: Episode, *, limit: int, depth: Depth = Depth.BASIC, family: TaskFamily | None = None) -> tuple[Suspect, ...]:
    """Up to `limit` turns in play order: the strongest evidence first chooses, then the earliest is tried first."""
    return tuple(sorted(strongest(scene_of(episode, family), limit=limit, depth=depth), key=lambda suspect: suspect.turn))
