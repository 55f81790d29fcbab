"""An engine core driven by one thread, seen from asyncio.

Inference libraries want to be built and stepped in one thread; agents want to await. `ThreadedEngine` puts a queue between the two:
callers leave work and await a future, the thread submits what came in, steps the core, and resolves futures. Some work must run alone
(weight swaps; scoring where a library's batched scoring is wrong): it waits until the core has drained, and holds back what came later.

If the core raises, the engine is dead: every waiting and every later caller gets an `InfraError` that carries the root traceback's tail.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from cluster.engines.family import EngineStats, RawCompletion
from coevo.chat import Sampling
from coevo.errors import CoevoError, InfraError, ModelError, root_traceback

__all__ = ["EngineCore", "GenerateWork", "Result", "ScoreWork", "ThreadedEngine"]

_CLOSE_WAIT_S = 15.0


@dataclass(frozen=True, slots=True)
class GenerateWork:
    """One completion to sample."""

    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int
    model_id: str


@dataclass(frozen=True, slots=True)
class ScoreWork:
    """One completion to score under teacher forcing."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    model_id: str


class Result(NamedTuple):
    """What a core reports for a ticket: a `RawCompletion`, a tuple of log-probabilities, or an error of this ticket alone."""

    ticket: int
    value: RawCompletion | tuple[float, ...] | CoevoError


class EngineCore(Protocol):
    """A library's engine, used from one thread only. A `CoevoError` concerns one ticket or call; anything else is the engine's death."""

    exclusive_scoring: bool
    dtype: str

    @property
    def busy(self) -> bool: ...

    def submit(self, ticket: int, work: GenerateWork | ScoreWork) -> None: ...

    def abort(self, ticket: int) -> None: ...

    def step(self) -> list[Result]: ...

    def load_weights(self, folder: str, model_id: str) -> None: ...

    def load_adapter(self, folder: str, model_id: str) -> None: ...

    def model_ids(self) -> tuple[str, ...]: ...

    def running(self) -> int: ...

    def kv_use(self) -> float | None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Command:
    ticket: int
    work: GenerateWork | ScoreWork | None = None
    call: Callable[[EngineCore], None] | None = None
    exclusive: bool = False


class ThreadedEngine:
    """`cluster.engines.family.Engine` over an `EngineCore`. The constructor returns when the core can serve.

    Args:
        open_core: Builds the core; runs in the engine's thread.
        name: Thread name, for stack dumps.

    Raises:
        CoevoError: As raised by `open_core`.
        InfraError: Any other exception of `open_core`, with its traceback's tail.
    """

    def __init__(self, open_core: Callable[[], EngineCore], *, name: str = "engine") -> None:
        self._open_core = open_core
        self._inbox: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._backlog: deque[_Command] = deque()
        self._waiters: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._tickets = itertools.count(1)
        self._error = ""
        self._closing = False
        self._alone = False
        self._finished = self._completion_tokens = self._steps = 0
        self._progress_at = time.monotonic()
        self._core: EngineCore | None = None
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._started.result()

    @property
    def error(self) -> str:
        """Why the engine died; empty while it lives."""
        return self._error

    async def generate(self, prompt_token_ids: Sequence[int], sampling: Sampling, *, seed: int, model_id: str = "") -> RawCompletion:
        """Sample one completion; cancelling the caller aborts the request."""
        work = GenerateWork(tuple(prompt_token_ids), sampling, seed, model_id)
        completion: RawCompletion = await self._ask(work=work)
        return completion

    async def score(self, prompt: Sequence[int], completion: Sequence[int], *, model_id: str = "") -> tuple[float, ...]:
        """Natural-log probability of each completion token at temperature 1."""
        if not completion:
            return ()
        if not prompt:
            raise ModelError("a completion can't be scored without a prompt", seen="empty prompt", fix="pass at least one prompt token")
        exclusive = self._core is not None and self._core.exclusive_scoring
        scores: tuple[float, ...] = await self._ask(work=ScoreWork(tuple(prompt), tuple(completion), model_id), exclusive=exclusive)
        return scores

    async def load_weights(self, folder: str, *, model_id: str) -> None:
        """Swap all weights, between two requests."""
        await self._ask(call=lambda core: core.load_weights(folder, model_id), exclusive=True)

    async def load_adapter(self, folder: str, *, model_id: str) -> None:
        """Add an adapter, between two requests."""
        await self._ask(call=lambda core: core.load_adapter(folder, model_id), exclusive=True)

    def stats(self) -> EngineStats:
        """A snapshot; safe from any thread."""
        core, held = self._core, len(self._waiters)
        if core is None or self._error:
            return EngineStats(waiting=held, finished=self._finished, completion_tokens=self._completion_tokens, steps=self._steps)
        running = min(core.running(), held)
        return EngineStats(
            running=running,
            waiting=held - running,
            kv_use=core.kv_use(),
            finished=self._finished,
            completion_tokens=self._completion_tokens,
            steps=self._steps,
            idle_s=time.monotonic() - self._progress_at if held else 0.0,
            model_ids=core.model_ids(),
            dtype=core.dtype,
        )

    def close(self) -> None:
        """Stop the thread and free the core."""
        if not self._closing:
            self._closing = True
            self._inbox.put(_Command(0))
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_WAIT_S)

    async def _ask(
        self,
        *,
        work: GenerateWork | ScoreWork | None = None,
        call: Callable[[EngineCore], None] | None = None,
        exclusive: bool = False,
    ) -> Any:
        ticket = next(self._tickets)
        future: Future[Any] = Future()
        with self._lock:
            if self._error or self._closing:
                raise self._dead()
            if not self._waiters:
                self._progress_at = time.monotonic()
            self._waiters[ticket] = future
        self._inbox.put(_Command(ticket, work, call, exclusive))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._inbox.put(_Command(-ticket))
            raise

    def _dead(self) -> InfraError:
        what = "the inference engine has died" if self._error else "the inference engine is closed"
        return InfraError(what, seen=self._error or None, fix="the pool replaces it; retry")

    def _run(self) -> None:
        try:
            self._core = self._open_core()
        except CoevoError as error:
            self._started.set_exception(error)
            return
        except BaseException as error:  # noqa: BLE001 - whatever it is, the waiting constructor has to hear of it
            self._started.set_exception(InfraError("the inference engine failed to start", seen=root_traceback(error)))
            return
        self._started.set_result(None)
        try:
            while self._turn(self._core):
                self._progress_at = time.monotonic()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the waiting callers have to hear of it
            self._error = root_traceback(error)
        finally:
            self._end(self._core)

    def _end(self, core: EngineCore) -> None:
        with self._lock:
            self._closing = True
            orphans, self._waiters = list(self._waiters.values()), {}
        for future in orphans:
            _fail(future, self._dead())
        with contextlib.suppress(Exception):
            core.close()

    def _turn(self, core: EngineCore) -> bool:
        """Take in what came, run what may run, step once. False = close."""
        block = not core.busy and not self._backlog
        try:
            while True:
                command = self._inbox.get(block=block)
                block = False
                if command.ticket == 0:
                    return False
                self._take(core, command)
        except queue.Empty:
            pass
        self._drain_backlog(core)
        if core.busy:
            for ticket, value in core.step():
                self._resolve(ticket, value)
            self._steps += 1
        return True

    def _take(self, core: EngineCore, command: _Command) -> None:
        if command.ticket > 0:
            self._backlog.append(command)
            return
        ticket = -command.ticket
        with self._lock:
            known = self._waiters.pop(ticket, None)
        if known is None:
            return
        before = len(self._backlog)
        self._backlog = deque(held for held in self._backlog if held.ticket != ticket)
        if len(self._backlog) == before:
            core.abort(ticket)

    def _drain_backlog(self, core: EngineCore) -> None:
        self._alone = self._alone and core.busy
        while self._backlog and not self._alone:
            command = self._backlog[0]
            if command.exclusive and core.busy:
                return
            self._backlog.popleft()
            try:
                if command.call is not None:
                    command.call(core)
                    self._resolve(command.ticket, None)
                elif command.work is not None:
                    core.submit(command.ticket, command.work)
            except CoevoError as error:
                self._resolve(command.ticket, error)
            self._alone = command.exclusive and core.busy

    def _resolve(self, ticket: int, value: object) -> None:
        with self._lock:
            future = self._waiters.pop(ticket, None)
        if future is None:
            return
        if isinstance(value, CoevoError):
            _fail(future, value)
            return
        self._finished += 1
        if isinstance(value, RawCompletion):
            self._completion_tokens += len(value.token_ids)
        with contextlib.suppress(InvalidStateError):
            future.set_result(value)


def _fail(future: Future[Any], error: BaseException) -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)
