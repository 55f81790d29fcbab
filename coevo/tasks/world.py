"""Worlds with plain state: calls checked against the tool's schema, everything logged in a hash chain, forks and replays that agree.

A family subclasses `PlainWorld`, keeps what changes in `state` (JSON-able, nothing else may change) and what never changes in `data`, and
writes one method `tool_NAME` per tool. A tool method raises `ToolError` before it changes anything. Limits: the checker knows the part of
JSON Schema that tools need (string, integer, number, boolean, arrays of those; enum, minimum, maximum, required), and integers up to 2**53.
"""

from __future__ import annotations

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from coevo.chat import ToolCall, ToolSpec
from coevo.errors import ConfigError, ToolError
from coevo.identity import canonical_json
from coevo.records import Grade
from coevo.tasks.family import TaskFamily, TaskInstance, World

__all__ = ["MAX_INTEGER", "TERMINAL_TOOL", "PlainWorld", "Signature", "Toolbox", "replay"]

TERMINAL_TOOL = "finish"
"""The one tool that ends an episode, in every family."""

MAX_INTEGER = 2**53
"""Largest integer that JSON readers agree on (RFC 8259, section 6)."""

_Check = Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ValueError("must be a number")
    if abs(value) > MAX_INTEGER:
        raise ValueError("is too large")
    return int(value) if value == int(value) else value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("must be an integer")
    number = _number(value)
    if not isinstance(number, int):
        raise ValueError("must be an integer")
    return number


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


_TYPES: dict[str, _Check] = {"string": _text, "number": _number, "integer": _integer, "boolean": _boolean}


def _compile(schema: Mapping[str, Any]) -> _Check:
    """A function that returns the normalised value (1.0 becomes 1) or raises `ValueError` with the reason."""
    kind = schema.get("type")
    if kind == "array":
        return _array(_compile(schema.get("items", {"type": "string"})))
    if kind not in _TYPES:
        raise ConfigError("a tool parameter has a type that worlds do not check", seen=kind, fix=f"use one of {', '.join(_TYPES)}, array")
    check = _TYPES[kind]
    if "enum" in schema:
        return _among(check, tuple(schema["enum"]))
    if "minimum" in schema or "maximum" in schema:
        return _between(check, schema.get("minimum", -math.inf), schema.get("maximum", math.inf))
    return check


def _array(item: _Check) -> _Check:
    def check(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise ValueError("must be an array")
        return [item(one) for one in value]

    return check


def _among(check: _Check, allowed: tuple[Any, ...]) -> _Check:
    reason = f"must be one of {', '.join(map(str, allowed))}"

    def checked(value: Any) -> Any:
        value = check(value)
        if value not in allowed:
            raise ValueError(reason)
        return value

    return checked


def _between(check: _Check, low: float, high: float) -> _Check:
    def checked(value: Any) -> Any:
        value = check(value)
        if not low <= value <= high:
            raise ValueError(f"must lie between {low:g} and {high:g}")
        return value

    return checked


@dataclass(frozen=True, slots=True)
class Signature:
    """The compiled parameters of one tool.

    Attributes:
        usage: `name( first, second)`: what a refusal shows.
        checks: Parameter name -> check, in call order.
        required: Names that must be given.
        terse: Refusals leave out the reason (for models with a closed vocabulary).
    """

    usage: str
    checks: Mapping[str, _Check]
    required: frozenset[str]
    terse: bool

    @classmethod
    def of(cls, spec: ToolSpec, *, terse: bool = False) -> Signature:
        """Compile a tool's schema once. Raises `ConfigError` on a type outside the module's subset."""
        properties = spec.parameters.get("properties", {})
        usage = f"{spec.name}({','.join(f' {name}' for name in properties)})"
        checks = {name: _compile(schema) for name, schema in properties.items()}
        return cls(usage, checks, frozenset(spec.parameters.get("required", ())), terse)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Normalised arguments. Raises `ToolError` that names the tool's arguments."""
        bound: dict[str, Any] = {}
        for name, value in arguments.items():
            check = self.checks.get(name)
            if check is None:
                raise self._refusal(f"unknown argument {name[:40]}" if name else "arguments must be named")
            try:
                bound[name] = check(value)
            except ValueError as error:
                raise self._refusal(f"{name} {error}") from None
        if not self.required <= bound.keys():
            missing = next(name for name in self.checks if name in self.required and name not in bound)
            raise self._refusal(f"{missing} is missing")
        return bound

    def _refusal(self, reason: str) -> ToolError:
        return ToolError(f"bad arguments use {self.usage}" if self.terse else f"bad arguments: {reason}; use {self.usage}")


class Toolbox:
    """The tools of one family and size, compiled once and shared by all its worlds."""

    __slots__ = ("signatures", "specs")

    def __init__(self, specs: Iterable[ToolSpec], *, terse: bool = False) -> None:
        self.specs = tuple(specs)
        self.signatures = {spec.name: Signature.of(spec, terse=terse) for spec in self.specs}
        if TERMINAL_TOOL not in self.signatures:
            raise ConfigError("a family has no terminal tool", seen=sorted(self.signatures), fix=f"add a tool named {TERMINAL_TOOL!r}")

    def signature(self, name: str) -> Signature:
        """Raises `ToolError` for an unknown tool, naming the known ones."""
        try:
            return self.signatures[name]
        except (KeyError, TypeError):
            raise ToolError(f"unknown tool , tools {' '.join(self.signatures)}") from None


class PlainWorld(ABC):
    """Base of worlds whose state is plain data; see the module docstring and the protocol `coevo.tasks.family.World`."""

    toolbox: ClassVar[Toolbox]

    def __init__(self, instance: TaskInstance, *, instruction: str, data: Any, state: dict[str, Any]) -> None:
        self.instance = instance
        self._instruction = instruction
        self._data = data
        self._state = state
        self._finished = False
        self._log: list[ToolCall] = []
        self._hash = hashlib.sha256(instance.key.encode()).digest()

    @property
    def instruction(self) -> str:
        """What the user asks."""
        return self._instruction

    @property
    def finished(self) -> bool:
        """True once the terminal tool was called."""
        return self._finished

    @property
    def log(self) -> Sequence[ToolCall]:
        """Every call, applied or refused, in order."""
        return tuple(self._log)

    @property
    def log_hash(self) -> str:
        """SHA-256 over the previous hash, the call and its result; 64 hex digits."""
        return self._hash.hex()

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Apply one tool call. Raises `ToolError`, whose message is what the agent reads; refused calls are logged too."""
        given: dict[str, Any] = dict(arguments) if isinstance(arguments, Mapping) else {"": str(arguments)[:200]}
        try:
            bound = self.toolbox.signature(name).bind(given)
            if self._finished:
                raise ToolError("already done")
            result = self.apply(name, bound)
        except ToolError as error:
            self._record(str(name), copy.deepcopy(given), {"error": error.what})
            raise
        self._record(name, bound, result)
        return result

    def apply(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Run one tool on bound arguments: the method `tool_NAME`, unless a subclass finds tools in another way."""
        return getattr(self, f"tool_{name}")(**arguments)

    def tool_finish(self) -> dict[str, Any]:
        """End the episode; accepted at any time, finishing early is the agent's failure."""
        self._finished = True
        return {"ok": True}

    @abstractmethod
    def grade(self) -> Grade:
        """Judge the state. The expected result is computed inside and kept nowhere."""

    def fork(self) -> Self:
        """An independent copy, equal to `replay(family, instance, log)`."""
        twin = copy.copy(self)
        vars(twin).update(_state=copy.deepcopy(self._state), _log=list(self._log))
        return twin

    def snapshot(self) -> bytes:
        """Canonical bytes of everything that the world is: equal worlds give equal bytes. Never shown to an agent."""
        return canonical_json(
            {
                "instance": self.instance.key,
                "instruction": self._instruction,
                "data": self._data,
                "state": self._state,
                "finished": self._finished,
                "log_hash": self.log_hash,
            }
        )

    def _record(self, name: str, arguments: Mapping[str, Any], result: Any) -> None:
        self._log.append(ToolCall(name, arguments))
        entry = [name, arguments, result]
        try:
            data = canonical_json(entry)
        except TypeError:
            data = canonical_json(_printable(entry))
        self._hash = hashlib.sha256(self._hash + data).digest()


def _printable(value: Any) -> Any:
    """Stand-ins for what JSON can't carry: lone surrogates, integers past 64 bits, foreign objects. Only refused calls have them."""
    if isinstance(value, Mapping):
        return {ascii(key): _printable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return hex(value)
    return value if value is None or isinstance(value, (bool, float)) else ascii(value) if isinstance(value, str) else type(value).__name__


def replay(family: TaskFamily, instance: TaskInstance, log: Iterable[ToolCall]) -> World:
    """A fresh world with the logged calls applied again; refused calls are refused again and change nothing."""
    world = family.open(instance)
    for call in log:
        try:
            world.call(call.name, call.arguments)
        except ToolError:
            continue
    return world
