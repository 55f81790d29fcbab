"""Contradictions between what the agent read and what it wrote: values from nowhere, from another subject, or from paper out of force.

An argument of a write is held against the observations before it, as whole tokens. `conflicting` reads JSON observations and compares
fields of the same name about the same subject. `out_of_force` knows the words by which a document says that it no longer or not yet
applies. Limits: prose that states a rule is not understood, so a decision against a rule whose values all stand in view is not seen here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from coevo.localize.detectors.family import Scene, Suspect, values_of
from coevo.records import CallRecord
from coevo.tasks.walks import literals

__all__ = ["conflicting", "foreign", "out_of_force", "unsourced"]

_STALE = re.compile(r"\b(superseded|not in force|no longer in force|draft for (discussion|comment)|draft, to be)\b", re.IGNORECASE)
_CODE = re.compile(r"[A-Za-z]+\d+|\d+(?:\.\d+)?")


def unsourced(scene: Scene) -> Iterator[Suspect]:
    """A write with a value that no message before it carries."""
    for index, call in _written(scene):
        invented = sorted(token for token in scene.tokens(call) - scene.seen_before(index) if _CODE.fullmatch(token))
        if invented:
            yield Suspect(index, "unsourced", f"{call.name} carries {invented[0]}, which nothing that was read before says", 3.7)


def foreign(scene: Scene) -> Iterator[Suspect]:
    """A write about one subject with a number that was last given in a write about another: a value carried over."""
    held: dict[str, tuple[int, str]] = {}
    for index, call in _written(scene):
        about = scene.touched[index]
        numbers = {token for value in values_of(call) for token in literals(value) if token.replace(".", "", 1).isdigit()}
        for token in sorted(numbers):
            turn, owner = held.get(token, (index, ""))
            if owner and about and owner not in about:
                yield Suspect(index, "foreign", f"{call.name} carries {token}, which turn {turn} wrote for {owner}", 3.8)
        held |= {token: (index, next(iter(sorted(about)))) for token in numbers} if about else {}


def conflicting(scene: Scene) -> Iterator[Suspect]:
    """A write whose argument differs from the field of that name in what was read about the same subject."""
    read: dict[str, dict[str, Any]] = {}
    for index, turn in enumerate(scene.episode.turns):
        if scene.writes_at(index):
            for call in turn.executed:
                for subject in scene.touched[index]:
                    fields = read.get(subject, {})
                    for name, value in call.arguments.items():
                        if name in fields and name not in scene.free and str(fields[name]) != str(value):
                            reason = f"{call.name} says {name} {value}, and what was read about {subject} says {fields[name]}"
                            yield Suspect(index, "conflicting", reason, 4.1)
        else:
            for entry in _entries(turn.result):
                owner = next((str(value) for value in entry.values() if str(value) in scene.subjects), None)
                if owner is not None:
                    read.setdefault(owner, {}).update({k: v for k, v in entry.items() if isinstance(v, (str, int, float)) and v != owner})


def out_of_force(scene: Scene) -> Iterator[Suspect]:
    """A document that calls itself superseded or a draft was read, and a later write carries a value that stands only there."""
    stale: dict[str, int] = {}
    valid: set[str] = set()
    for index, turn in enumerate(scene.episode.turns):
        if scene.writes_at(index):
            for call in turn.executed:
                only = sorted((scene.tokens(call) & stale.keys()) - valid)
                if only:
                    reason = f"{call.name} carries {only[0]}, which stands only in a document out of force, read at turn {stale[only[0]]}"
                    yield Suspect(index, "out_of_force", reason, 4.1)
                    yield Suspect(stale[only[0]], "out_of_force", f"read a document out of force; turn {index} acted on it", 4.0)
        tokens = {token for token in literals(turn.result) if _CODE.fullmatch(token) and not token.isdigit()}
        if _STALE.search(turn.result) and not scene.writes_at(index):
            for token in tokens:
                stale.setdefault(token, index)
        else:
            valid |= tokens


def _written(scene: Scene) -> Iterator[tuple[int, CallRecord]]:
    for index, turn in enumerate(scene.episode.turns):
        if scene.writes_at(index):
            for call in turn.executed:
                yield index, call


def _entries(text: str) -> Iterator[Mapping[str, Any]]:
    """Flat JSON objects in an observation, however deep they stand."""
    try:
        stack = [json.loads(text)]
    except json.JSONDecodeError:
        return
    while stack:
        value = stack.pop()
        if isinstance(value, Mapping):
            yield value
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
