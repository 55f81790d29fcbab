"""Deterministic evidence: which turns of a failed episode could have caused the failure, and why, in words.

Detectors read only what the episode records: failed checkpoints, executed calls, refused calls, hook effects. They know no family: a
checkpoint's subject (the part behind the colon of its name) is looked up in the arguments of the calls that ran. A detector proposes;
replay decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from coevo.records import CallRecord, Episode, Status

__all__ = ["Suspect", "suspects"]

FINISH = "finish"


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


def suspects(episode: Episode, *, limit: int) -> tuple[Suspect, ...]:
    """Up to `limit` turns in play order: the strongest evidence first chooses, then the earliest is tried first."""
    best: dict[int, Suspect] = {}
    for suspect in (*_by_checkpoint(episode), *_early_finish(episode), *_refused(episode), *_repeated(episode), *_last_turn(episode)):
        held = best.get(suspect.turn)
        if held is None or suspect.weight > held.weight:
            best[suspect.turn] = suspect
    strongest = sorted(best.values(), key=lambda suspect: (-suspect.weight, suspect.turn))[:limit]
    return tuple(sorted(strongest, key=lambda suspect: suspect.turn))


def _by_checkpoint(episode: Episode) -> Iterator[Suspect]:
    """The last accepted call about a failed checkpoint's subject; the calls about it before that are weaker suspects."""
    for check in episode.grade.checkpoints if episode.grade is not None else ():
        subject = check.name.partition(":")[2]
        if check.passed or not subject:
            continue
        about = [
            index
            for index, turn in enumerate(episode.turns)
            if not turn.result_error and any(_mentions(call, subject) for call in turn.executed)
        ]
        for rank, index in enumerate(reversed(about[-3:])):
            yield Suspect(index, "checkpoint", f"{check.feedback or check.name} (last touched here)", 3.0 - 0.5 * rank)


def _early_finish(episode: Episode) -> Iterator[Suspect]:
    """The agent ended the episode although checkpoints still fail: the finishing turn left work undone."""
    if episode.status is not Status.COMPLETED or not episode.turns or episode.grade is None or episode.success:
        return
    touched = {value for turn in episode.turns for call in turn.executed for value in _values(call)}
    open_work = [check for check in episode.grade.checkpoints if not check.passed and check.name.partition(":")[2]]
    untouched = [check for check in open_work if check.name.partition(":")[2] not in touched]
    unfinished = [check for check in open_work if "not settled" in check.feedback or check in untouched]
    if unfinished:
        yield Suspect(
            len(episode.turns) - 1, "early_finish", f"finished with open work: {unfinished[0].feedback or unfinished[0].name}", 3.2
        )


def _refused(episode: Episode) -> Iterator[Suspect]:
    for index, turn in enumerate(episode.turns):
        if turn.parse_failure is not None:
            yield Suspect(index, "parse", f"no readable call: {turn.parse_failure}", 1.0)
        elif turn.result_error:
            yield Suspect(index, "refused", f"the call was refused: {turn.result[:120]}", 0.8)


def _repeated(episode: Episode) -> Iterator[Suspect]:
    seen: dict[str, int] = {}
    for index, turn in enumerate(episode.turns):
        if turn.call is None:
            continue
        key = turn.call.name + json.dumps(turn.call.arguments, sort_keys=True)
        if key in seen:
            yield Suspect(index, "repeated", f"the same call as at turn {seen[key]}", 0.9)
        seen[key] = index


def _last_turn(episode: Episode) -> Iterator[Suspect]:
    if episode.turns and episode.status in (Status.MAX_TURNS, Status.MAX_TOKENS, Status.PARSE_FAILURES, Status.CONTEXT_OVERFLOW):
        yield Suspect(len(episode.turns) - 1, "no_finish", f"never finished: {episode.status}", 0.5)


def _values(call: CallRecord) -> Iterator[str]:
    for value in call.arguments.values():
        yield str(value)


def _mentions(call: CallRecord, subject: str) -> bool:
    return call.name != FINISH and subject in _values(call)
