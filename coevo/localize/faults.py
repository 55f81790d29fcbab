"""Faults with a known place: one turn of a right episode, put wrong in one of six ways.

Most do their harm at once. Five of the six kinds can also strike a turn that only reads: nothing is wrong with the world then until, at
least `DELAY` turns later, a write rests on what was not read, and between the two stand turns that are right.

A generator looks at the calls of a successful episode and offers faults; whether an offered fault makes the episode fail, and its turn
alone is to blame, is for `coevo.localize.drill` to find out by playing it. Generators know no family: what writes, what is free to choose
and what a case is called come from the family's `Conduct` and the checkpoints' subjects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from types import MappingProxyType
from typing import Any

from coevo.chat import ToolCall, ToolSpec
from coevo.localize.detectors.family import values_of
from coevo.records import CallRecord, Episode
from coevo.tasks.family import TaskFamily, TaskInstance
from coevo.tasks.walks import literals
from coevo.tasks.world import TERMINAL_TOOL

__all__ = ["DELAY", "DELAYED", "GENERATORS", "Effect", "Fault", "FaultKind", "Script", "delayed_faults", "faults"]

DELAY = 2
"""Turns from a delayed fault to the first write that goes wrong, at least."""

_CODE = re.compile(r"([A-Za-z]+)(\d+)")


class FaultKind(StrEnum):
    """What goes wrong at the turn."""

    WRONG_ARGUMENT = "wrong_argument"
    """A call with one value changed: a number off, a code mistyped, another choice, a line left out."""
    SKIPPED_LOOKUP = "skipped_lookup"
    """Instead of a lookup, the write that rests on it, with a guess."""
    WRONG_TOOL = "wrong_tool"
    """Another writing tool than the right one, on the same case."""
    EARLY_FINISH = "early_finish"
    """The episode is ended with work undone."""
    SWAPPED_IDS = "swapped_ids"
    """A call is about another case; where that was a lookup, the later write decides by it."""
    STALE_VALUE = "stale_value"
    """A call carries the value of an earlier call with that tool instead of its own."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A later write that goes wrong because of the fault: `right` becomes `wrong` as long as the fault's intended call was never made."""

    right: ToolCall
    wrong: ToolCall


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: How it goes wrong.
        turn: 0-based turn of the right episode, and of the faulty one.
        intended: The right call there.
        made: The call made instead.
        believed: What the agent goes on to believe that it did there.
        effect: See `Effect`; None when the turn does the harm itself.
    """

    kind: FaultKind
    turn: int
    intended: ToolCall
    made: ToolCall
    believed: ToolCall
    effect: Effect | None = None


class Script:
    """The calls of a successful episode, one per turn, with what generators ask about them.

    Attributes:
        calls: In play order.
        results: What each was answered.
        subjects: Names of the cases that the grade knows.
    """

    def __init__(self, episode: Episode, family: TaskFamily) -> None:
        size = TaskInstance.parse(episode.spec.task_key).size
        conduct = family.conduct(size)
        self.tools: Mapping[str, ToolSpec] = {tool.name: tool for tool in family.tools(size)}
        self.writes, self.free = conduct.writes - {TERMINAL_TOOL}, conduct.free
        turns = [turn for turn in episode.turns if turn.call is not None]
        self.calls = tuple(ToolCall(turn.executed[0].name, turn.executed[0].arguments) for turn in turns)
        self.results = tuple(turn.result for turn in turns)
        checks = episode.grade.checkpoints if episode.grade is not None else ()
        self.subjects = frozenset(check.name.partition(":")[2] for check in checks) - {""}

    def writing(self) -> Iterator[tuple[int, ToolCall]]:
        """Turns that write, finishing apart."""
        return ((index, call) for index, call in enumerate(self.calls) if call.name in self.writes)

    def acting(self) -> Iterator[tuple[int, ToolCall]]:
        """Every turn but the finish: a form field that is filled in changes what a later write does."""
        return ((index, call) for index, call in enumerate(self.calls) if call.name != TERMINAL_TOOL)

    def reading(self) -> Iterator[tuple[int, ToolCall]]:
        """Turns that change nothing."""
        return ((index, call) for index, call in self.acting() if call.name not in self.writes)

    def resting(self, turn: int) -> tuple[int, ToolCall] | None:
        """The first write after a reading turn about the case that it read, or with a value that it was the first to show; None when there
        is none, or when it follows in less than `DELAY` turns.
        """
        call = self.calls[turn]
        new = set(literals(self.results[turn])) - {token for result in self.results[:turn] for token in literals(result)}
        about = self.subjects_of(call)[:1]
        for later, write in self.writing():
            if later > turn and (about == self.subjects_of(write)[:1] if about else new & set(_own_tokens(self, write))):
                return (later, write) if later >= turn + DELAY else None
        return None

    def subjects_of(self, call: ToolCall) -> tuple[str, ...]:
        """The cases that a call names, in argument order."""
        return tuple(value for value in _values(call) if value in self.subjects)


Generator = Callable[[Script, Random], Iterator[Fault]]
"""Offers the faults of one kind, in play order; draws come from the given generator alone."""


def faults(script: Script, kind: FaultKind, random: Random) -> tuple[Fault, ...]:
    """All faults of a kind that change a call, in play order."""
    return tuple(one for one in GENERATORS[kind](script, random) if one.made != one.intended)


def _wrong_argument(script: Script, random: Random) -> Iterator[Fault]:
    for turn, call in script.acting():
        for name in call.arguments:
            value = _other_value(script, call, name, random)
            if value is not None:
                yield _direct(FaultKind.WRONG_ARGUMENT, turn, call, _with(call, name, value))


def _stale_value(script: Script, _random: Random) -> Iterator[Fault]:
    held: dict[tuple[str, str], Any] = {}
    for turn, call in script.acting():
        for name, value in call.arguments.items():
            before = held.get((call.name, name))
            if before is not None and before != value and str(value) not in script.subjects and not _path_like(value):
                yield _direct(FaultKind.STALE_VALUE, turn, call, _with(call, name, before))
        held |= {(call.name, name): value for name, value in call.arguments.items()}


def _wrong_tool(script: Script, random: Random) -> Iterator[Fault]:
    given: dict[str, list[Any]] = {}
    for turn, call in script.writing():
        for tool in sorted(script.writes - {call.name}):
            made = _as_tool(script.tools[tool], call, given, random) if tool in script.tools else None
            if made is not None:
                yield _direct(FaultKind.WRONG_TOOL, turn, call, made)
        for name, value in call.arguments.items():
            given.setdefault(name, []).append(value)


def _early_finish(script: Script, _random: Random) -> Iterator[Fault]:
    for turn, call in enumerate(script.calls):
        undone = any(later.name in script.writes for later in script.calls[turn:])
        if call.name != TERMINAL_TOOL and undone and any(earlier.name in script.writes for earlier in script.calls[:turn]):
            finish = ToolCall(TERMINAL_TOOL, {})
            yield Fault(FaultKind.EARLY_FINISH, turn, call, finish, finish)


def _swapped_ids(script: Script, random: Random) -> Iterator[Fault]:
    """Both ways: the write itself names another case, or its lookup reads another case and the write decides as for that one."""
    settled = {subject: (turn, call) for turn, call in script.writing() for subject in script.subjects_of(call)}
    for turn, call in script.acting():
        for subject in script.subjects_of(call)[:1]:
            others = sorted(one for one in settled if one != subject and not _path_like(one))
            if others and not _path_like(subject):
                yield _direct(FaultKind.SWAPPED_IDS, turn, call, _renamed(call, subject, random.choice(others)))
    for turn, call in enumerate(script.calls):
        if call.name in script.writes or call.name == TERMINAL_TOOL:
            continue
        for subject in script.subjects_of(call):
            later, right = settled.get(subject, (-1, call))
            others = sorted(one for one in settled if one != subject)
            if later > turn and others and script.subjects_of(right)[:1] == (subject,):
                other = random.choice(others)
                wrong = _renamed(settled[other][1], other, subject)
                if wrong != right and subject in _values(wrong):
                    made = _renamed(call, subject, other)
                    yield Fault(FaultKind.SWAPPED_IDS, turn, call, made, call, Effect(right, wrong))


def _skipped_lookup(script: Script, random: Random) -> Iterator[Fault]:
    known: set[str] = set()
    for turn, call in enumerate(script.calls):
        new = set(literals(script.results[turn])) - known
        known |= new
        if call.name in script.writes or call.name == TERMINAL_TOOL:
            continue
        rests = next((one for later, one in script.writing() if later > turn and new & set(_own_tokens(script, one))), None)
        if rests is None or not script.subjects_of(rests):
            continue
        for name, value in rests.arguments.items():
            if str(value) not in script.subjects and new & set(literals(value)):
                guess = _other_value(script, rests, name, random)
                if guess is not None:
                    yield Fault(FaultKind.SKIPPED_LOOKUP, turn, call, _with(rests, name, guess), rests)


GENERATORS: Mapping[FaultKind, Generator] = MappingProxyType(
    {
        FaultKind.WRONG_ARGUMENT: _wrong_argument,
        FaultKind.SKIPPED_LOOKUP: _skipped_lookup,
        FaultKind.WRONG_TOOL: _wrong_tool,
        FaultKind.EARLY_FINISH: _early_finish,
        FaultKind.SWAPPED_IDS: _swapped_ids,
        FaultKind.STALE_VALUE: _stale_value,
    }
)


def delayed_faults(script: Script, kind: FaultKind, random: Random) -> tuple[Fault, ...]:
    """All delayed faults of a kind, in play order; none of a kind that has no such form."""
    made = DELAYED[kind](script, random) if kind in DELAYED else ()
    return tuple(one for one in made if one.made != one.intended and one.effect is not None and one.effect.wrong != one.effect.right)


def _blind(kind: FaultKind, script: Script, turn: int, made: ToolCall, random: Random) -> Iterator[Fault]:
    """A read that went wrong, and the write that rests on it with each of its values guessed in turn."""
    rests = script.resting(turn)
    if rests is None:
        return
    _, write = rests
    for name in write.arguments:
        guess = _other_value(script, write, name, random) if name not in script.free else None
        if guess is not None:
            call = script.calls[turn]
            yield Fault(kind, turn, call, made, call, Effect(write, _with(write, name, guess)))


def _misread(script: Script, random: Random) -> Iterator[Fault]:
    """One value of the read is off: a number, or the last digit of an id."""
    for turn, call in script.reading():
        for name, value in call.arguments.items():
            other = (
                _mistyped(value, random)
                if isinstance(value, str) and value in script.subjects
                else _other_value(script, call, name, random)
            )
            if other is not None:
                yield from _blind(FaultKind.WRONG_ARGUMENT, script, turn, _with(call, name, other), random)


def _unread(script: Script, random: Random) -> Iterator[Fault]:
    """Instead of the read, the read before it once more."""
    before: ToolCall | None = None
    for turn, call in script.reading():
        if before is not None:
            yield from _blind(FaultKind.SKIPPED_LOOKUP, script, turn, before, random)
        before = call


def _read_elsewhere(script: Script, random: Random) -> Iterator[Fault]:
    """Another reading tool than the right one, with what it can be given."""
    given: dict[str, list[Any]] = {}
    readers = sorted({call.name for _, call in script.reading()})
    for turn, call in script.reading():
        for tool in readers:
            made = _as_tool(script.tools[tool], call, given, random) if tool != call.name and tool in script.tools else None
            if made is not None:
                yield from _blind(FaultKind.WRONG_TOOL, script, turn, made, random)
        for name, value in call.arguments.items():
            given.setdefault(name, []).append(value)


def _read_of_another(script: Script, random: Random) -> Iterator[Fault]:
    """The read is of another case, and the write decides as for that one."""
    for turn, call in script.reading():
        yield from _mistaken(FaultKind.SWAPPED_IDS, script, turn, script.subjects_of(call)[:1], random, earlier=False)


def _read_again(script: Script, random: Random) -> Iterator[Fault]:
    """The read is of the case before it, and the write decides as it did there."""
    for turn, call in script.reading():
        yield from _mistaken(FaultKind.STALE_VALUE, script, turn, script.subjects_of(call)[:1], random, earlier=True)


def _mistaken(kind: FaultKind, script: Script, turn: int, about: tuple[str, ...], random: Random, *, earlier: bool) -> Iterator[Fault]:
    """A read of one case taken for a read of another: of one drawn among all, or of the last one that was settled before."""
    rests, settled = script.resting(turn), {one: (later, write) for later, write in script.writing() for one in script.subjects_of(write)}
    if rests is None or not about:
        return
    others = [one for one, (later, _) in settled.items() if one != about[0] and (later < turn or not earlier)]
    if not others:
        return
    other = max(others, key=lambda one: settled[one][0]) if earlier else random.choice(sorted(others))
    call, wrong = script.calls[turn], _renamed(settled[other][1], other, about[0])
    if about[0] in _values(wrong):
        yield Fault(kind, turn, call, _renamed(call, about[0], other), call, Effect(rests[1], wrong))


DELAYED: Mapping[FaultKind, Generator] = MappingProxyType(
    {
        FaultKind.WRONG_ARGUMENT: _misread,
        FaultKind.SKIPPED_LOOKUP: _unread,
        FaultKind.WRONG_TOOL: _read_elsewhere,
        FaultKind.SWAPPED_IDS: _read_of_another,
        FaultKind.STALE_VALUE: _read_again,
    }
)
"""The kinds whose harm can come later. Finishing early can't: nothing follows it."""


def _mistyped(value: str, random: Random) -> str | None:
    """The id with another last digit; None where it ends otherwise."""
    return f"{value[:-1]}{(int(value[-1]) + random.randrange(1, 10)) % 10}" if value[-1:].isdigit() else None


def _direct(kind: FaultKind, turn: int, call: ToolCall, made: ToolCall) -> Fault:
    """The turn does the harm itself, and the agent believes that it did the right thing."""
    return Fault(kind, turn, call, made, call)


def _with(call: ToolCall, name: str, value: Any) -> ToolCall:
    return ToolCall(call.name, {**call.arguments, name: value})


def _renamed(call: ToolCall, old: str, new: str) -> ToolCall:
    """The call with one id replaced wherever it stands as a value of its own or as the last part of an address."""

    def renamed(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [renamed(one) for one in value]
        if isinstance(value, str) and "/" in value and old in value.split("/"):
            return "/".join(new if part == old else part for part in value.split("/"))
        return new if value == old else value

    return ToolCall(call.name, {name: renamed(value) for name, value in call.arguments.items()})


def _values(call: ToolCall) -> tuple[str, ...]:
    values = tuple(values_of(CallRecord(name=call.name, arguments=dict(call.arguments))))
    return (*values, *(part for value in values if "/" in value for part in value.split("/")))


def _own_tokens(script: Script, call: ToolCall) -> Iterator[str]:
    for name, value in call.arguments.items():
        if name not in script.free and str(value) not in script.subjects:
            yield from literals(value)


def _other_value(script: Script, call: ToolCall, name: str, random: Random) -> Any:
    """A plausible wrong value of the same kind; None where there is none: ids of cases, addresses, words."""
    value = call.arguments[name]
    schema = script.tools[call.name].parameters["properties"].get(name, {}) if call.name in script.tools else {}
    if "enum" in schema:
        others = [one for one in schema["enum"] if one != value]
        return random.choice(others) if others else None
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + random.choice((-1, 1, 10))
    if isinstance(value, float):
        return round(value + random.choice((-1.0, 1.0, 10.0)), 2)
    return _other_text(script, value, random) if isinstance(value, str) and value not in script.subjects else None


def _other_text(script: Script, value: str, random: Random) -> str | None:
    """Digits off, a code mistyped, a line left out of a longer text."""
    lines = value.splitlines(keepends=True)
    if len(lines) > 1:
        left_out = random.randrange(len(lines))
        return "".join(line for index, line in enumerate(lines) if index != left_out)
    if value.replace(".", "", 1).isdigit():
        return f"{float(value) + random.choice((1, 10)):g}"
    code = _CODE.fullmatch(value)
    if code is None:
        return f"{value}s" if value.isidentifier() and "_" in value else None
    seen = sorted({token for result in script.results for token in literals(result) if _like(token, code) and token != value})
    return random.choice(seen) if seen else None


def _like(token: str, code: re.Match[str]) -> bool:
    other = _CODE.fullmatch(token)
    return other is not None and len(other[1]) == len(code[1]) and len(other[2]) == len(code[2])


def _path_like(value: Any) -> bool:
    return isinstance(value, str) and ("/" in value or "\n" in value or "." in value.rstrip("0123456789"))


def _as_tool(spec: ToolSpec, call: ToolCall, given: Mapping[str, Sequence[Any]], random: Random) -> ToolCall | None:
    """The call with another tool: arguments by name, missing ones as they were last given or drawn from the choices; None without."""
    arguments: dict[str, Any] = {}
    for name, schema in spec.parameters["properties"].items():
        if name in call.arguments:
            arguments[name] = call.arguments[name]
        elif name not in spec.parameters.get("required", ()):
            continue
        elif given.get(name):
            arguments[name] = given[name][-1]
        elif "enum" in schema:
            arguments[name] = random.choice(schema["enum"])
        elif schema.get("type") in ("integer", "number"):
            arguments[name] = 100
        else:
            return None
    return ToolCall(spec.name, arguments)
