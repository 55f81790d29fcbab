"""Fan-out of items over one stage: bounded concurrency, retries, one deadline per item, a circuit breaker, and quorum close.

Pure asyncio: the cluster executors run the same `ItemRunner` inside their worker processes. Every item ends in exactly one
`ItemOutcome`; nothing that an item raises leaves this module.

Limits: an attempt that blocks the event loop (synchronous computation, `time.sleep`) can't be timed out from inside its own process;
the cluster executors notice it by its missing heartbeat. An attempt that ignores cancellation is abandoned after `abandon_s` and its
late result is discarded.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import pickle
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from coevo.errors import BudgetExceeded, CoevoError, ConfigError, InfraError, PrerequisiteError, StoreError, boundary, root_traceback
from coevo.identity import canonical_json
from coevo.limits import Breaker, Closing, FanoutPolicy, Tries
from coevo.ports import ItemOutcome, ItemState, MapReport, Progress, Skipped, Stage, StageWorker

__all__ = [
    "FanoutPolicy",
    "ItemRunner",
    "LocalExecutor",
    "LoopThread",
    "ProgressTally",
    "StageCache",
    "Tries",
    "check_items",
    "open_stage",
    "run_items",
]

log = logging.getLogger(__name__)

UNTRIED = Tries()
FINAL_ERRORS = (BudgetExceeded, ConfigError, PrerequisiteError)  # repeating the attempt can't mend these
_ASYNCIO = str(Path(asyncio.__file__).parent)
T = TypeVar("T")
OutcomeCallback = Callable[[ItemOutcome], None]
RetryCallback = Callable[[str, Tries, str], None]


def check_items(items: Iterable[str]) -> tuple[str, ...]:
    """The items as a tuple.

    Raises:
        ConfigError: An id occurs twice; its outcome would be ambiguous.
    """
    listed = tuple(items)
    if len(set(listed)) < len(listed):
        seen: set[str] = set()
        twice = next(item for item in listed if item in seen or seen.add(item))  # type: ignore[func-returns-value]
        raise ConfigError("an id occurs twice in one fan-out", seen=twice, fix="pass every id once")
    return listed


class _End(Enum):
    DONE = auto()
    INFRA = auto()
    OTHER = auto()
    FINAL = auto()
    TIMEOUT = auto()


class _Ended(NamedTuple):
    how: _End
    value: Any = None
    error: str = ""


@dataclass(slots=True)
class _ItemTry:
    """The moving part of one item."""

    item: str
    tries: Tries
    error: str = ""

    def owed(self, why: str = "") -> ItemOutcome:
        text = "\n".join(part for part in (self.error, why) if part)
        return ItemOutcome(self.item, ItemState.OWED, attempts=self.tries.made, error=text)


class ItemRunner:
    """Brings single items to their outcome inside one process; all items of the process share its breaker.

    Args:
        worker: The opened stage.
        policy: Limits.
        on_retry: Called after each failed attempt that will be repeated, before its backoff.
        rng: Source of the jitter.

    Attributes:
        abandoned: Attempts that ignored their cancellation.
    """

    def __init__(
        self, worker: StageWorker, policy: FanoutPolicy, *, on_retry: RetryCallback | None = None, rng: random.Random | None = None
    ) -> None:
        self._worker = worker
        self._policy = policy
        self._on_retry = on_retry
        self._rng = rng or random.Random()
        self.breaker = Breaker(policy)
        self.abandoned = 0
        self._closed: str | None = None

    def close(self, reason: str) -> None:
        """From now on a cancelled `run` returns an owed outcome that names `reason`, and no new attempt starts."""
        self._closed = reason

    async def run(self, item: str, tries: Tries = UNTRIED) -> ItemOutcome:
        """Try `item` until it is committed, skipped or owed. Raises nothing but the caller's own cancellation."""
        state = _ItemTry(item, tries)
        try:
            return await self._try(state)
        except asyncio.CancelledError:
            if self._closed is None:
                raise
            return state.owed(self._closed)

    async def _try(self, state: _ItemTry) -> ItemOutcome:
        while self._closed is None:
            try:
                probe = await self.breaker.admit()
            except InfraError as outage:
                return state.owed(str(outage))
            ended = await self._one_attempt(state, probe=probe)
            if ended.how is _End.DONE:
                return _finished(state, ended.value)
            state.error = "\n".join((state.error, ended.error)).strip() if ended.how is _End.TIMEOUT else ended.error
            if ended.how in {_End.TIMEOUT, _End.FINAL} or state.tries.charged >= self._policy.tries:
                return state.owed()
            if not await self._back_off(state):
                return state.owed(f"deadline of {self._policy.item_deadline_s} s over")
        return state.owed(self._closed)

    async def _one_attempt(self, state: _ItemTry, *, probe: bool) -> _Ended:
        made, charged, spent_s = state.tries
        state.tries = Tries(made + 1, charged, spent_s)
        started = time.monotonic()
        how = _End.OTHER
        try:
            ended = await self._bounded(state.item, made + 1, self._left_s(spent_s))
            how = ended.how
        finally:
            spent_s += time.monotonic() - started
            costs = self._tell_breaker(state.item, how)
            if probe:
                self.breaker.probe_ended(informative=how not in {_End.OTHER, _End.FINAL})
            state.tries = Tries(made + 1, charged + costs, spent_s)
        return ended

    def _tell_breaker(self, item: str, how: _End) -> bool:
        """Whether the attempt is charged."""
        if how is _End.DONE:
            self.breaker.succeeded()
            return True
        return how in {_End.OTHER, _End.FINAL} or self.breaker.failed(item)

    def _left_s(self, spent_s: float) -> float | None:
        limit_s = self._policy.item_deadline_s
        return None if limit_s is None else max(0.0, limit_s - spent_s)

    async def _bounded(self, item: str, attempt: int, limit_s: float | None) -> _Ended:
        """One attempt in a task of its own, so that a cancellation inside it can't be taken for ours."""
        task = asyncio.ensure_future(_call(self._worker, item, attempt))
        try:
            await asyncio.wait({task}, timeout=limit_s)
        except asyncio.CancelledError:
            await self._reap(item, task)
            if self._closed is None or _ended(task).how is not _End.DONE:
                raise
        if not task.done():
            where = _where(task)
            await self._reap(item, task)
            if _ended(task).how is not _End.DONE:
                return _Ended(_End.TIMEOUT, error=f"deadline of {self._policy.item_deadline_s} s over, {where}")
        return _ended(task)

    async def _reap(self, item: str, task: asyncio.Task[Any]) -> None:
        task.cancel()
        await asyncio.wait({task}, timeout=self._policy.abandon_s)
        if not task.done():
            self.abandoned += 1
            log.warning("item %s ignores cancellation: its attempt is abandoned", item)
            task.add_done_callback(_ended)

    async def _back_off(self, state: _ItemTry) -> bool:
        """Sleep before the next attempt; False when the item's deadline would pass."""
        if self._on_retry is not None:
            self._on_retry(state.item, state.tries, state.error)
        if self.breaker.is_open:
            return True
        pause_s = self._policy.backoff_s(state.tries.charged, self._rng)
        left_s = self._left_s(state.tries.spent_s)
        if left_s is not None and pause_s >= left_s:
            return False
        log.info("item %s failed %d times; next attempt in %.1f s", state.item, state.tries.made, pause_s)
        await asyncio.sleep(pause_s)
        state.tries = state.tries._replace(spent_s=state.tries.spent_s + pause_s)
        return True


def _where(task: asyncio.Task[Any]) -> str:
    """The innermost line outside asyncio that the suspended coroutine of `task` waits at."""
    where = "before its first await"
    coroutine: Any = task.get_coro()
    while isinstance(coroutine, Coroutine):
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith(_ASYNCIO):
            where = f"waiting at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        coroutine = getattr(coroutine, "cr_await", None)
    return where


async def _call(worker: StageWorker, item: str, attempt: int) -> Any:
    try:
        return await worker.run(item, attempt)
    except SystemExit as error:
        raise RuntimeError(f"the stage called sys.exit({error.code!r})") from error


def _ended(task: asyncio.Task[Any]) -> _Ended:
    """Read a task's end without raising it."""
    if not task.done():
        return _Ended(_End.OTHER, error="the attempt is still running")
    if task.cancelled():
        return _Ended(_End.OTHER, error="CancelledError inside the attempt")
    error = task.exception()
    if error is None:
        return _Ended(_End.DONE, value=task.result())
    how = _End.INFRA if isinstance(error, InfraError) else _End.FINAL if isinstance(error, FINAL_ERRORS) else _End.OTHER
    return _Ended(how, error=root_traceback(error))


def _finished(state: _ItemTry, value: Any) -> ItemOutcome:
    skipped = isinstance(value, Skipped)
    note = value.note if skipped else value
    return ItemOutcome(state.item, ItemState.SKIPPED if skipped else ItemState.COMMITTED, attempts=state.tries.made, note=_plain(note))


def _plain(note: Any) -> Any:
    """The note if it is JSON-able, else a short text: an odd value must not stop the outcome from travelling."""
    try:
        canonical_json(note)
    except TypeError:
        return repr(note)[:500]
    return note


@dataclass(slots=True)
class _Batch:
    """One `run_items`: lanes that pull items, and the closing time."""

    runner: ItemRunner
    pending: deque[str]
    tries: Mapping[str, Tries]
    closing: Closing
    on_outcome: OutcomeCallback | None
    outcomes: dict[str, ItemOutcome] = field(default_factory=dict)
    lanes: list[asyncio.Task[None]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None

    async def lane(self) -> None:
        while self.pending:
            item = self.pending.popleft()
            self.end(await self.runner.run(item, self.tries.get(item, UNTRIED)))

    def end(self, outcome: ItemOutcome) -> None:
        self.outcomes[outcome.item] = outcome
        if self.closing.ended():
            self.arm()
        if self.on_outcome is not None:
            self.on_outcome(outcome)

    def arm(self) -> None:
        self.disarm()
        left_s = self.closing.left_s()
        if left_s is not None:
            self.timer = asyncio.get_running_loop().call_later(left_s, self.close)

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def close(self) -> None:
        self.runner.close(self.closing.reason)
        for lane in self.lanes:
            lane.cancel()


async def run_items(
    worker: StageWorker,
    items: Sequence[str],
    policy: FanoutPolicy,
    on_outcome: OutcomeCallback | None = None,
    *,
    tries: Mapping[str, Tries] | None = None,
) -> list[ItemOutcome]:
    """Run every item of a stage in this process.

    Args:
        worker: The opened stage; it is not closed here.
        items: Distinct ids.
        policy: Limits; `policy.concurrency` items are in flight.
        on_outcome: Called in the loop's thread once per item, in order of completion; what it raises ends the call.
        tries: What was spent on an item before, for items that come from a lost worker.

    Returns:
        One outcome per item, in the order of `items`.
    """
    listed = check_items(items)
    batch = _Batch(ItemRunner(worker, policy), deque(listed), tries or {}, Closing(policy, len(listed)), on_outcome)
    batch.lanes = [asyncio.create_task(batch.lane()) for _ in range(min(policy.concurrency, len(listed)))]
    batch.arm()
    try:
        await asyncio.gather(*batch.lanes)
    finally:
        batch.disarm()
        for lane in batch.lanes:
            lane.cancel()
        await asyncio.gather(*batch.lanes, return_exceptions=True)
    return [batch.outcomes[item] for item in listed]


class ProgressTally:
    """Counts outcomes and tells the display. `done` counts every ended item, `owed` those of them without a record."""

    def __init__(self, stage: str, total: int, on_progress: Callable[[Progress], None] | None = None) -> None:
        self._progress = Progress(stage, 0, total)
        self._on_progress = on_progress

    def add(self, outcomes: Sequence[ItemOutcome]) -> None:
        """Count some outcomes and report once."""
        if not outcomes:
            return
        before = self._progress
        owed = sum(outcome.state is ItemState.OWED for outcome in outcomes)
        tokens = sum(_tokens(outcome.note) for outcome in outcomes)
        self._progress = Progress(before.stage, before.done + len(outcomes), before.total, before.owed + owed, before.tokens + tokens)
        if self._on_progress is not None:
            self._on_progress(self._progress)


def _tokens(note: Any) -> int:
    value = note.get("tokens") if isinstance(note, Mapping) else None
    return value if isinstance(value, int) else 0


async def open_stage(stage: Stage, policy: FanoutPolicy, *, rng: random.Random | None = None) -> StageWorker:
    """Open a stage, with the policy's tries and backoff.

    Raises:
        ConfigError, PrerequisiteError, StoreError: The user's to mend: raised at once.
        InfraError: Anything else, a store that is out included, after the last try, with the root traceback.
    """
    rng = rng or random.Random()
    error = ""
    for attempt in range(1, policy.tries + 1):
        try:
            with boundary(InfraError, f"stage {stage.name} did not open"):
                return stage.open()
        except (CoevoError, SystemExit) as caught:
            if isinstance(caught, ConfigError | PrerequisiteError | StoreError) and not isinstance(caught, InfraError):
                raise
            error = root_traceback(caught)
            log.warning("stage %s did not open (try %d of %d): %s", stage.name, attempt, policy.tries, caught)
        if attempt < policy.tries:
            await asyncio.sleep(policy.backoff_s(attempt, rng))
    raise InfraError(f"stage {stage.name} did not open in {policy.tries} tries", seen=error, fix="see the traceback")


class StageCache:
    """Opened stages of one process by identity, so that many small batches of the same stage share clients and engines.

    Holds at most `limit` workers; the least recently used one is closed.
    """

    def __init__(self, *, limit: int = 4) -> None:
        self._limit = limit
        self._workers: dict[str, StageWorker] = {}

    async def worker(self, key: str, load: Callable[[], Stage], policy: FanoutPolicy) -> StageWorker:
        """The opened stage of `key`; `load` gives the stage when it isn't open yet. Raises what `open_stage` raises."""
        worker = self._workers.pop(key, None)
        if worker is None:
            worker = await open_stage(load(), policy)
        self._workers[key] = worker
        while len(self._workers) > self._limit:
            await _close_quietly(self._workers.pop(next(iter(self._workers))))
        return worker

    async def aclose(self) -> None:
        """Close all."""
        workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            await _close_quietly(worker)


async def _close_quietly(worker: StageWorker) -> None:
    try:
        with boundary(InfraError, "a stage worker did not close"):
            await worker.aclose()
    except CoevoError as error:
        log.warning("%s", error)


class LoopThread:
    """An event loop in a daemon thread: synchronous callers keep clients and opened stages alive between calls."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self, *, grace_s: float = 2.0) -> None:
        """Cancel what runs, wait at most `grace_s` for it, stop the loop."""
        if not self._thread.is_alive():
            return
        try:
            self.submit(_cancel_others(grace_s)).result(timeout=2 * grace_s)
        except TimeoutError:
            log.warning("an event loop is blocked; its daemon thread is left to the end of the process")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=grace_s)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_others(grace_s: float) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=grace_s)


class LocalExecutor:
    """`coevo.ports.Executor` in this process: for unit tests, small machines and stages that need no cluster.

    Stages that pickle stay open between maps (`StageCache`). `map` may be called from a thread that runs an event loop: the stage runs
    in a loop of its own. Calls from several threads take turns.
    """

    def __init__(self, policy: FanoutPolicy | None = None) -> None:
        self._policy = policy or FanoutPolicy()
        self._loop: LoopThread | None = None
        self._cache = StageCache()
        self._turn = threading.Lock()

    def map(self, stage: Stage, items: Sequence[str], *, on_progress: Callable[[Progress], None] | None = None) -> MapReport:
        """See `coevo.ports.Executor`. `on_progress` is called in the caller's thread.

        Raises:
            ConfigError: An id occurs twice, or the stage can't be opened as configured.
            PrerequisiteError, StoreError: From opening the stage.
        """
        listed = check_items(items)
        started = time.monotonic()
        tally = ProgressTally(stage.name, len(listed), on_progress)
        ended: queue.SimpleQueue[ItemOutcome | None] = queue.SimpleQueue()
        with self._turn:
            self._loop = self._loop or LoopThread("coevo-fanout")
            future = self._loop.submit(self._run(stage, listed, ended.put))
            future.add_done_callback(lambda _: ended.put(None))
            try:
                for outcome in iter(ended.get, None):
                    tally.add((outcome,))
                return MapReport(tuple(future.result()), time.monotonic() - started)
            finally:
                future.cancel()

    async def _run(self, stage: Stage, items: Sequence[str], on_outcome: OutcomeCallback) -> list[ItemOutcome]:
        key = _stage_key(stage)
        try:
            worker = await (self._cache.worker(key, lambda: stage, self._policy) if key else open_stage(stage, self._policy))
        except InfraError as error:
            outcomes = [ItemOutcome(item, ItemState.OWED, attempts=0, error=str(error)) for item in items]
            for outcome in outcomes:
                on_outcome(outcome)
            return outcomes
        try:
            return await run_items(worker, items, self._policy, on_outcome)
        finally:
            if not key:
                await _close_quietly(worker)

    def close(self) -> None:
        """Close the opened stages and stop the loop; the executor can be used again."""
        if self._loop is None:
            return
        try:
            self._loop.submit(self._cache.aclose()).result(timeout=30.0)
        except TimeoutError:
            log.warning("a stage worker did not close within 30 s")
        self._loop.stop()
        self._loop = None


def _stage_key(stage: Stage) -> str:
    """Identity of a picklable stage; empty for one that only this process can hold."""
    try:
        return hashlib.sha256(pickle.dumps(stage)).hexdigest()
    except (pickle.PicklingError, TypeError, AttributeError):
        return ""
