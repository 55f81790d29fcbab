"""Where evolved Python runs: worker processes of pydantic-monty that own no files, no network and no clock.

A `SandboxPool` lends sandboxes with a program loaded; an idle one with the same program is reused, because `coevo.harness.source` admits
only programs without state. Whatever passes a limit throws its sandbox away and arrives as `SandboxError`; an exception that the code
itself raises arrives as `SandboxFault`. Values cross as plain JSON within size limits in both directions.
The worker's clock stops while the host works, so host functions have their own count and deadline, checked between host calls: a single
host call that blocks is not interrupted.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pydantic_monty as monty

from coevo.errors import PrerequisiteError, SandboxError, ToolError

__all__ = ["HostFunction", "Sandbox", "SandboxFault", "SandboxLimits", "SandboxPool", "plain_json", "shared_pool"]

HostFunction = Callable[..., Any]

_CALLS_PER_SANDBOX = 5000
_MAX_DEPTH = 24
_GRACE_S = 15.0
"""Seconds past `call_s` after which the host kills a worker that does not stop by itself (a starved machine, mostly)."""

_POLICY: monty.OSPolicy = {"datetime": datetime(2000, 1, 1, tzinfo=UTC), "sleep": "zero", "random_start": {"seed": 0}}
_FATAL = (TimeoutError, MemoryError, RecursionError, SystemExit, KeyboardInterrupt)


class SandboxFault(SandboxError):
    """The evolved code raised. `seen` is `Type: message`; `tool_error` the message when it is a refusal by a tool that nobody caught."""

    def __init__(self, what: str, *, seen: object = None, fix: str = "", tool_error: str | None = None) -> None:
        super().__init__(what, seen=seen, fix=fix)
        self.tool_error = tool_error


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one call.

    Attributes:
        call_s: Seconds of sandboxed execution, host time excluded. A safety net, wide enough that a busy machine never meets it: ordinary
            components take under 0.001 s.
        memory_bytes: Heap of the worker.
        recursion: Call depth.
        host_calls: Tool calls that one composite call may make.
        host_s: Seconds of wall time of one call, host functions included.
        component_s: Seconds of sandboxed execution that one component may take in a whole episode; kept by the session. Without it a
            hook just below `call_s` would hold an episode for minutes.
        output_chars: Characters of a returned value or of one host call's arguments.
        output_nodes: JSON nodes of the same.
    """

    call_s: float = 5.0
    memory_bytes: int = 48 * 2**20
    recursion: int = 100
    host_calls: int = 64
    host_s: float = 30.0
    component_s: float = 20.0
    output_chars: int = 16_384
    output_nodes: int = 4096


def plain_json(value: Any, *, max_chars: int, max_nodes: int) -> Any:
    """A copy of `value` made of JSON types only (tuples become lists).

    Raises:
        SandboxError: Another type, a non-finite number, an integer beyond 64 bits, a lone surrogate, a key that is not text, or too large.
    """
    budget = [max_nodes, max_chars]
    return _copy(value, budget, 0)


def _copy(value: Any, budget: list[int], depth: int) -> Any:
    budget[0] -= 1
    kind = type(value)
    if kind is str:
        budget[1] -= len(value)
    if budget[0] < 0 or budget[1] < 0 or depth > _MAX_DEPTH:
        raise SandboxError("a value is too large", fix="return less: fewer items, shorter text, less nesting")
    if kind is str:
        return _storable(value)
    if kind is bool or value is None:
        return value
    if kind is dict:
        return {_key(key, budget): _copy(item, budget, depth + 1) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_copy(item, budget, depth + 1) for item in value]
    if (kind is int and -(2**63) <= value < 2**63) or (kind is float and math.isfinite(value)):
        return value
    raise SandboxError("a value is not plain JSON", seen=kind.__name__, fix="use dict, list, str, int, float, bool or None")


def _key(key: Any, budget: list[int]) -> str:
    if type(key) is not str:
        raise SandboxError("an object key is not text", seen=type(key).__name__, fix="use str keys")
    budget[1] -= len(key)
    return _storable(key)


def _storable(text: str) -> str:
    """Refuse lone surrogates: they are no Unicode text, and nothing could store them."""
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise SandboxError("a text holds a lone surrogate", seen=ascii(text)[:80], fix="write whole characters")
    return text


class Sandbox:
    """One worker with a program loaded. Not thread-safe; lent by `SandboxPool.checkout`.

    `broken` turns True when a limit was passed: its heap can't be trusted any more and the pool discards it. `spent_s` is what the last
    call took in seconds, host functions left out.
    """

    def __init__(self, session: monty.MontySession, limits: SandboxLimits) -> None:
        self._session = session
        self._limits = limits
        self.broken = False
        self.calls = 0
        self.spent_s = 0.0

    def load(self, program: str) -> None:
        """Run a program text's definitions. Raises `SandboxError` when it doesn't load."""
        try:
            self._session.feed_run(program, print_callback=_drop)
        except monty.MontyError as error:
            self.broken = True
            raise SandboxError("a component does not load", seen=str(error), fix="use the sandbox's subset of Python") from error

    def call(
        self,
        function: str,
        arguments: tuple[Any, ...] = (),
        keywords: Mapping[str, Any] | None = None,
        *,
        host: Mapping[str, HostFunction] | None = None,
    ) -> Any:
        """Call a loaded function and return its value as plain JSON.

        Args:
            function: A global name of the program.
            arguments: Positional arguments, plain JSON.
            keywords: Keyword arguments, plain JSON.
            host: Host functions by name: called with keyword arguments of plain JSON; a `ToolError` becomes an exception in the sandbox,
                any other exception ends the call and is raised here unchanged.

        Raises:
            SandboxFault: The code raised an exception.
            SandboxError: A limit was passed or the value is not plain JSON within the limits.
        """
        self.calls += 1
        names = [f"__a{index}" for index in range(len(arguments))]
        code = f"{function}({', '.join([*names, '**__k'] if keywords is not None else names)})"
        inputs: dict[str, Any] = dict(zip(names, arguments, strict=True))
        if keywords is not None:
            inputs["__k"] = dict(keywords)
        bridge = _HostBridge(host or {}, self._limits)
        started_s = time.monotonic()
        try:
            value = self._drive(code, inputs, bridge) if host else self._session.feed_run(code, inputs=inputs, print_callback=_drop)
        except monty.MontyError as error:
            if bridge.foreign is None:
                raise self._convert(error, bridge) from error
        except SandboxError:
            self.broken = True
            raise
        finally:
            self.spent_s = time.monotonic() - started_s - bridge.host_s
        if bridge.foreign is not None:
            self.broken = True
            raise bridge.foreign
        return plain_json(value, max_chars=self._limits.output_chars, max_nodes=self._limits.output_nodes)

    def close(self) -> None:
        """Give the worker back; it is wiped or replaced."""
        try:
            self._session.__exit__(None, None, None)
        except monty.MontyError:
            self.broken = True

    def _drive(self, code: str, inputs: dict[str, Any], bridge: _HostBridge) -> Any:
        step = self._session.feed_start(code, inputs=inputs, external_lookup=bridge.functions, print_callback=_drop)
        suspensions = 0
        while not isinstance(step, monty.MontyComplete):
            suspensions += 1
            if bridge.foreign is not None:
                return None
            if isinstance(step, monty.FutureSnapshot) or suspensions > 4 * self._limits.host_calls or bridge.late:
                fix = f"at most {self._limits.host_calls} tool calls and {self._limits.host_s:g} s in one call"
                raise SandboxError("a component asks too much of its tools", seen=f"{suspensions} requests", fix=fix)
            step = step.resume_auto()
        return step.output

    def _convert(self, error: monty.MontyError, bridge: _HostBridge) -> SandboxError:
        if not isinstance(error, monty.MontyRuntimeError):
            self.broken = True
            return SandboxError("the sandbox worker died", seen=str(error), fix="use less memory and recursion")
        inner = error.exception()
        seen = f"{type(inner).__name__}: {inner}"[:300]
        if isinstance(inner, _FATAL):
            self.broken = True
            return SandboxError("a limit of the sandbox was passed", seen=seen, fix="do less in one call")
        refused = bridge.refusal if bridge.refusal is not None and str(inner) == bridge.refusal else None
        return SandboxFault("evolved code raised", seen=seen, fix="handle the case in the component", tool_error=refused)


class _HostBridge:
    """Wraps host functions for one call: counts, deadline, plain arguments, and which exception goes where."""

    def __init__(self, host: Mapping[str, HostFunction], limits: SandboxLimits) -> None:
        self._limits = limits
        self._deadline_s = time.monotonic() + limits.host_s
        self._calls = 0
        self.host_s = 0.0
        self.refusal: str | None = None
        self.foreign: BaseException | None = None
        self.functions: dict[str, Any] = {name: self._wrap(name, function) for name, function in host.items()}

    @property
    def late(self) -> bool:
        return self._calls > self._limits.host_calls or time.monotonic() > self._deadline_s

    def _wrap(self, name: str, function: HostFunction) -> HostFunction:
        def call(*positional: Any, **keywords: Any) -> Any:
            if positional:
                raise TypeError(f"{name} takes keyword arguments only")
            self._calls += 1
            if self.late:
                raise RuntimeError("too many tool calls")
            started_s = time.monotonic()
            try:
                plain = plain_json(keywords, max_chars=self._limits.output_chars, max_nodes=self._limits.output_nodes)
                return function(**plain)
            except SandboxError as error:
                raise TypeError(error.what) from error
            except ToolError as error:
                self.refusal = error.what
                raise ValueError(error.what) from error
            except BaseException as error:
                self.foreign = error
                raise RuntimeError("the environment failed") from error
            finally:
                self.host_s += time.monotonic() - started_s

        return call


def _drop(stream: str, text: str) -> None:
    """Printed text goes nowhere."""


class SandboxPool:
    """Lends sandboxes; workers start at the first checkout. Thread-safe; `close` ends the workers.

    Args:
        limits: Limits of every call.
        max_workers: Cap on live worker processes of this pool; a checkout beyond it waits.
    """

    def __init__(self, limits: SandboxLimits | None = None, *, max_workers: int = 4) -> None:
        self.limits = limits or SandboxLimits()
        self.max_workers = max_workers
        self._pid = os.getpid()
        self._monty: monty.Monty | None = None
        self._idle: list[tuple[str, Sandbox]] = []
        self._live = 0
        self._condition = threading.Condition()

    @contextmanager
    def checkout(self, program: str) -> Iterator[Sandbox]:
        """Lend a sandbox with `program` loaded, fresh or idle.

        Raises:
            SandboxError: The program does not load.
            PrerequisiteError: This process was forked from one that had used sandboxes.
        """
        sandbox = self._take(program)
        try:
            yield sandbox
        except BaseException as error:
            if not isinstance(error, SandboxError):
                sandbox.broken = True
            raise
        finally:
            self._give(program, sandbox)

    def close(self) -> None:
        """End all workers; a later checkout starts new ones. In a forked child it does nothing: the workers are the parent's."""
        if os.getpid() != self._pid:
            return
        with self._condition:
            idle, self._idle = self._idle, []
            self._live -= len(idle)
            pool, self._monty = self._monty, None
        for _, sandbox in idle:
            sandbox.close()
        if pool is not None:
            pool.__exit__(None, None, None)

    def _take(self, program: str) -> Sandbox:
        stale: Sandbox | None = None
        self._refuse_after_fork()
        with self._condition:
            while True:
                for index in range(len(self._idle) - 1, -1, -1):
                    if self._idle[index][0] == program:
                        return self._idle.pop(index)[1]
                if self._idle and self._live >= self.max_workers:
                    stale = self._idle.pop(0)[1]
                    break
                if self._live < self.max_workers:
                    self._live += 1
                    break
                self._condition.wait()
        return self._open(program, stale)

    def _refuse_after_fork(self) -> None:
        if _started_in and os.getpid() not in _started_in:
            fix = "start worker processes with the spawn method, or fork before the first sandbox is used"
            raise PrerequisiteError("a forked process can't use its parent's sandboxes", seen=f"process {os.getpid()}", fix=fix)

    def _open(self, program: str, stale: Sandbox | None) -> Sandbox:
        try:
            if stale is not None:
                stale.close()
            session = self._pool().checkout(limits=self._session_limits(), os_policy=_POLICY)
            session.__enter__()
            sandbox = Sandbox(session, self.limits)
            try:
                sandbox.load(program)
            except BaseException:
                sandbox.close()
                raise
            return sandbox
        except BaseException:
            with self._condition:
                self._live -= 1
                self._condition.notify()
            raise

    def _give(self, program: str, sandbox: Sandbox) -> None:
        keep = not sandbox.broken and sandbox.calls < _CALLS_PER_SANDBOX
        if not keep:
            sandbox.close()
        with self._condition:
            if keep:
                self._idle.append((program, sandbox))
            else:
                self._live -= 1
            self._condition.notify()

    def _pool(self) -> monty.Monty:
        with self._condition:
            if self._monty is None:
                _started_in.add(os.getpid())
                self._monty = monty.Monty(min_processes=1, max_processes=self.max_workers, feed_duration_limit_grace=_GRACE_S)
                self._monty.__enter__()
            return self._monty

    def _session_limits(self) -> monty.ResourceLimits:
        return {
            "max_feed_duration_secs": self.limits.call_s,
            "max_memory": self.limits.memory_bytes,
            "max_recursion_depth": self.limits.recursion,
            "max_suspensions": 2**30,
            "max_total_sleep_secs": 0.0,
        }


_shared: list[SandboxPool] = []
_started_in: set[int] = set()
"""Process ids in which workers were started: the library's threads don't survive a fork."""


def shared_pool() -> SandboxPool:
    """The pool of this process, closed at exit."""
    if not _shared:
        _shared.append(SandboxPool())
        atexit.register(_shared[0].close)
    return _shared[0]
