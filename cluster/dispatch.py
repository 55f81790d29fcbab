"""Long-lived worker processes for a stage, and the driver's loop that feeds them.

Protocol: each worker has one call in flight, `exchange(new items) -> events`, which returns as soon as something happened or after
`beat_s`. The return is the heartbeat: a dead process shows as a Ray error at once, a stopped or blocked one by its silence. The
driver feeds a worker no more than its free lanes, so every item that a lost worker held had begun an attempt, and its attempt number
goes on elsewhere. An item that was present at two losses is run alone from then on: one that kills its process costs its neighbours
nothing more.

A worker on a node that is being drained gets no new item and begins no new attempt: what runs there finishes, what fails there comes back
to the driver and is tried elsewhere, and the process moves when it is empty.

Only item ids, tries and small outcomes travel; results commit themselves to the store.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import math
import os
import pickle
import socket
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError, RayError

from cluster.drain import DrainWatch
from cluster.placement import actor_placement
from cluster.watchdog import LEAVING, SUSPECT_LOSSES, WorkerEvent, owed
from coevo.errors import CoevoError, ConfigError, InfraError, PrerequisiteError, StoreError, boundary
from coevo.fanout import FanoutPolicy, ItemRunner, ProgressTally, StageCache, Tries
from coevo.limits import Closing
from coevo.ports import ItemOutcome, ItemState, Stage, StageWorker

__all__ = ["ActorOptions", "Dispatch", "Hello", "StageActor", "WorkerSlot", "travelling"]

log = logging.getLogger(__name__)

_EPOCHS = itertools.count(1)  # numbers the maps of this driver; an actor has one driver


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorOptions:
    """Size and patience of a pool of worker processes. Frozen and picklable.

    Attributes:
        actors: Worker processes.
        num_cpus: Logical CPUs of each.
        num_gpus: GPUs of each.
        resources: Further Ray resources of each, for placement by node label.
        memory_bytes: Memory that Ray reserves for each.
        spread: One per node as far as there are nodes; else Ray packs them.
        beat_s: A busy worker answers at least this often, in seconds.
        silence_s: Seconds without an answer after which a worker is killed and replaced (R8). Above the longest time that a stage
            may block its event loop.
        start_timeout_s: Seconds for a process to start and open its stage.
        linger_s: Seconds a worker waits after an event for more of them, to answer once.
    """

    actors: int = 2
    num_cpus: float = 0.5
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    spread: bool = True
    beat_s: float = 1.0
    silence_s: float = 120.0
    start_timeout_s: float = 300.0
    linger_s: float = 0.005

    def __post_init__(self) -> None:
        if self.actors < 1:
            raise ConfigError("a pool needs a worker process", seen=self.actors, fix="set actors to 1 or more")
        if self.silence_s <= self.beat_s:
            raise ConfigError(
                "silence_s must be longer than beat_s", seen=(self.silence_s, self.beat_s), fix="set silence_s to 10 beats or more"
            )


class Hello(NamedTuple):
    """A worker's answer to `begin`.

    Attributes:
        pid: Process id on `host`.
        error: Why the stage did not open there.
        worn: Attempts of an earlier map that ignored their cancellation still run in it.
        node: Id of its node.
    """

    pid: int
    host: str
    error: CoevoError | None = None
    worn: bool = False
    node: str = ""


def _hello(error: CoevoError | None = None, *, worn: bool = False) -> Hello:
    context: Any = ray.get_runtime_context()
    return Hello(os.getpid(), socket.gethostname(), error, worn, context.get_node_id())


class _Session:
    """One stage of one map inside a worker."""

    def __init__(self, epoch: int, worker: StageWorker, policy: FanoutPolicy) -> None:
        self.epoch = epoch
        self._runner = ItemRunner(worker, policy, on_retry=lambda item, tries, error: self._add(WorkerEvent(item, tries, error)))
        self._events: list[WorkerEvent] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._leaving = False

    def _add(self, event: WorkerEvent) -> None:
        self._events.append(event)
        self._wake.set()

    def start(self, item: str, tries: Tries) -> None:
        task = asyncio.create_task(self._bring(item, tries))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bring(self, item: str, tries: Tries) -> None:
        outcome = await self._runner.run(item, tries)
        left = self._leaving and outcome.state is ItemState.OWED and outcome.error.endswith(LEAVING)
        self._add(WorkerEvent(item, tries._replace(made=outcome.attempts), outcome.error, outcome, left))

    def leave(self) -> None:
        """Begin no attempt any more: those in flight go on, and what fails is handed back instead of tried again."""
        if not self._leaving:
            self._leaving = True
            self._runner.close(LEAVING)

    async def take(self, beat_s: float, linger_s: float) -> list[WorkerEvent]:
        try:
            async with asyncio.timeout(beat_s):
                await self._wake.wait()
        except TimeoutError:
            return []
        if self._tasks:
            await asyncio.sleep(linger_s)
        return self.drain()

    def drain(self) -> list[WorkerEvent]:
        events, self._events = self._events, []
        self._wake.clear()
        return events

    async def close(self, reason: str, limit_s: float) -> bool:
        """Cancel what runs; False when some attempt of this session ignored it."""
        self._runner.close(reason)
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=limit_s)
        return not self._runner.abandoned and all(task.done() for task in tasks)


class StageActor:
    """A worker process: opens each stage once and keeps the last few open. `WorkerSlot` wraps it by `ray.remote`.

    Ray may run the calls of an async actor in another order than they were made, so each carries the epoch of its map.
    """

    def __init__(self) -> None:
        self._cache = StageCache()
        self._session: _Session | None = None
        self._epoch = 0

    async def begin(self, epoch: int, key: str, stage: Stage, policy: FanoutPolicy) -> Hello:
        """Open the stage, unless it is open, and start a map on it. An epoch older than the newest seen changes nothing."""
        if epoch < self._epoch:
            return _hello()
        self._epoch = epoch
        if self._session is not None and not await self._session.close("the next map began", policy.abandon_s):
            return _hello(worn=True)
        try:
            with boundary(InfraError, "the stage did not open in the worker"):
                worker = await self._cache.worker(key, lambda: stage, policy)
        except CoevoError as error:
            return _hello(error)
        if epoch == self._epoch:
            self._session = _Session(epoch, worker, policy)
        return _hello()

    async def exchange(
        self, epoch: int, feed: Sequence[tuple[str, Tries]], beat_s: float, linger_s: float, leaving: bool = False
    ) -> list[WorkerEvent]:
        """Start the fed items; return what happened since the last call, at the latest after `beat_s`. `leaving`: the node is drained."""
        if self._session is None or self._session.epoch != epoch:
            raise InfraError("this map is not open in the worker", seen=epoch)
        if leaving:
            self._session.leave()
        for item, tries in feed:
            self._session.start(item, tries)
        return await self._session.take(beat_s, linger_s)

    async def end(self, reason: str, limit_s: float) -> tuple[list[WorkerEvent], bool]:
        """Close the map: the last events, and whether every attempt has stopped."""
        if self._session is None:
            return [], True
        clean = await self._session.close(reason, limit_s)
        return self._session.drain(), clean

    async def aclose(self) -> None:
        """Close the opened stages."""
        await self._cache.aclose()


class WorkerSlot:
    """A place for one worker process, as the driver sees it; the process in it is replaced when it is lost.

    Attributes:
        call: The call in flight.
        ready: Its stage is open.
        held: Items fed and not ended, with what was spent on each before the attempt that runs.
        alone: It holds a suspect and gets nothing else.
        failures: Processes lost in a row without one outcome.
        node: Id of the process's node.
        leaving: That node is being drained.
        retired: Not used any more in this map.
    """

    def __init__(self, options: ActorOptions) -> None:
        self._options = options
        self.actor: Any = None
        self.call: Any = None
        self.held: dict[str, Tries] = {}
        self.pid = 0
        self.node = ""
        self.leaving = False
        self._epoch = 0
        self.reset()

    def reset(self) -> None:
        """Forget the previous map; the process stays."""
        self.call, self.ready, self.alone, self.failures, self.retired = None, False, False, 0, False
        self.held.clear()
        self.heard_at = time.monotonic()

    def begin(self, epoch: int, key: str, stage: Any, policy: FanoutPolicy) -> None:
        """Start a process if there is none, and open the stage in it."""
        if self.actor is None:
            options = self._options
            remote: Any = ray.remote(StageActor)
            placed = actor_placement(options.num_cpus, options.num_gpus, options.resources, options.memory_bytes, spread=options.spread)
            self.actor = remote.options(**placed, max_restarts=0, max_task_retries=0).remote()
        self.ready, self._epoch = False, epoch
        self.call = self.actor.begin.remote(epoch, key, stage, policy)
        self.heard_at = time.monotonic()

    def exchange(self, feed: Sequence[tuple[str, Tries]]) -> None:
        """Feed and wait for news."""
        self.held.update(feed)
        self.call = self.actor.exchange.remote(self._epoch, feed, self._options.beat_s, self._options.linger_s, self.leaving)
        self.heard_at = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds that the call in flight has overstayed its limit; not above 0 while all is well."""
        if self.call is None:
            return 0.0
        return time.monotonic() - self.heard_at - (self._options.silence_s if self.ready else self._options.start_timeout_s)

    def complaint(self) -> str:
        """What its silence means."""
        waited_s = time.monotonic() - self.heard_at
        if self.ready:
            return f"no answer from the worker process for {waited_s:.0f} s"
        need = f"{self._options.num_cpus} CPUs, {self._options.num_gpus} GPUs, {dict(self._options.resources)}"
        return f"a worker process did not start and open its stage in {waited_s:.0f} s (it needs {need}; `ray status` shows what is free)"

    def kill(self) -> None:
        """End the process."""
        if self.actor is not None:
            ray.kill(self.actor, no_restart=True)
        self.actor, self.call, self.ready, self.alone, self.pid = None, None, False, False, 0
        self.node, self.leaving = "", False
        self.held.clear()


class Dispatch:
    """The driver's side of one map over a pool of slots.

    Args:
        slots: The pool; processes in it stay alive afterwards.
        stage: What to open.
        items: Distinct ids.
        policy: Limits.
        closing: When the stage stops waiting.
        tally: Progress.
        tries: What was spent on items before.
        suspects: Items to be run alone.
    """

    def __init__(
        self,
        slots: Sequence[WorkerSlot],
        stage: Stage,
        items: Sequence[str],
        *,
        policy: FanoutPolicy,
        closing: Closing,
        tally: ProgressTally,
        tries: Mapping[str, Tries] | None = None,
        suspects: frozenset[str] = frozenset(),
    ) -> None:
        self._slots = list(slots)
        self._epoch = next(_EPOCHS)
        self._key, self._stage = travelling(stage)
        self._policy = policy
        self._closing = closing
        self._tally = tally
        self._tries = {item: Tries() for item in items} | dict(tries or {})
        self._pending = deque(item for item in items if item not in suspects)
        self._suspects = deque(item for item in items if item in suspects)
        self._losses: Counter[str] = Counter()
        self._total = len(items)
        self._drains = DrainWatch()
        self._why = "no worker process could be used"
        self.outcomes: dict[str, ItemOutcome] = {}

    def run(self) -> dict[str, ItemOutcome]:
        """Bring every item to its outcome.

        Raises:
            ConfigError, PrerequisiteError, StoreError: From opening the stage.
        """
        try:
            for slot in self._slots:
                slot.reset()
                slot.begin(self._epoch, self._key, self._stage, self._policy)
            while self._goes_on():
                self._leave_drained()
                self._feed()
                self._collect()
            self._close()
        except BaseException:
            for slot in self._slots:
                slot.kill()
            raise
        return self.outcomes

    def _goes_on(self) -> bool:
        unfinished = len(self.outcomes) < self._total
        return unfinished and self._closing.left_s() != 0.0 and any(not slot.retired for slot in self._slots)

    def _leave_drained(self) -> None:
        """Mark workers on draining nodes; one that is empty starts again, and Ray places it elsewhere."""
        draining = self._drains.nodes()
        for slot in self._slots:
            slot.leaving = slot.leaving or (bool(slot.node) and slot.node in draining)
            wanted = self._pending or self._suspects
            if wanted and slot.leaving and not slot.held and slot.ready and slot.call is None:
                log.warning("a worker leaves the node %s, which is being drained", slot.node[:8])
                slot.kill()
                slot.begin(self._epoch, self._key, self._stage, self._policy)

    def _feed(self) -> None:
        for slot in self._slots:
            if slot.ready and slot.call is None:
                feed = [(item, self._tries[item]) for item in self._share(slot)]
                if feed or slot.held:
                    slot.exchange(feed)

    def _share(self, slot: WorkerSlot) -> list[str]:
        """The next items of a slot: its free lanes, but no more than its part of what waits, so that all end together."""
        if slot.alone or slot.leaving:
            return []
        if self._suspects and not slot.held:
            slot.alone = True
            return [self._suspects.popleft()]
        working = sum(not other.retired and not other.leaving for other in self._slots)
        count = min(self._policy.concurrency - len(slot.held), math.ceil(len(self._pending) / working))
        return [self._pending.popleft() for _ in range(count)]

    def _collect(self) -> None:
        calls = {slot.call: slot for slot in self._slots if slot.call is not None}
        left_s = self._closing.left_s()
        limit_s = 1.0 if left_s is None else min(1.0, left_s)
        arrived, waiting = ray.wait(list(calls), num_returns=1, timeout=limit_s)
        more = ray.wait(waiting, num_returns=len(waiting), timeout=0)[0] if arrived and waiting else []
        for call in (*arrived, *more):
            self._receive(calls[call])
        for slot in self._slots:
            if slot.silent_s > 0:
                self._lose(slot, slot.complaint())

    def _receive(self, slot: WorkerSlot) -> None:
        call, slot.call = slot.call, None
        try:
            answer = ray.get(call)
        except RayError as error:
            self._lose(slot, f"worker process lost: {str(error)[-1500:]}")
            return
        if isinstance(answer, Hello):
            self._greet(slot, answer)
        else:
            self._take(slot, answer)

    def _greet(self, slot: WorkerSlot, hello: Hello) -> None:
        if isinstance(hello.error, ConfigError | PrerequisiteError | StoreError):
            raise hello.error
        if hello.worn:
            slot.kill()
            slot.begin(self._epoch, self._key, self._stage, self._policy)
            return
        slot.pid, slot.node = hello.pid, hello.node
        slot.ready = hello.error is None
        if hello.error is not None:
            slot.retired = True
            self._why = str(hello.error)

    def _take(self, slot: WorkerSlot, events: Sequence[WorkerEvent]) -> None:
        ended = [event.outcome for event in events if event.outcome is not None and not event.left]
        for event in events:
            if event.left:
                self._tries[event.item] = slot.held.pop(event.item, event.tries)
                (self._suspects if slot.alone else self._pending).appendleft(event.item)
            elif event.outcome is None:
                slot.held[event.item] = event.tries
            else:
                slot.held.pop(event.item, None)
        slot.alone = slot.alone and bool(slot.held)
        slot.failures = 0 if ended else slot.failures
        self._end(ended)

    def _end(self, outcomes: Sequence[ItemOutcome]) -> None:
        fresh = [outcome for outcome in outcomes if outcome.item not in self.outcomes]
        for outcome in fresh:
            self.outcomes[outcome.item] = outcome
            self._closing.ended()
        self._tally.add(fresh)

    def _lose(self, slot: WorkerSlot, why: str) -> None:
        """Replace a process; what it held is tried again elsewhere, the lost attempt counted."""
        log.warning("%s (pid %d held %d items)", why, slot.pid, len(slot.held))
        held, alone = dict(slot.held), slot.alone
        slot.kill()
        for item, tries in held.items():
            self._move(item, tries._replace(made=tries.made + 1, charged=tries.charged + 1), why, alone=alone)
        slot.failures += 1
        if slot.failures >= self._policy.tries:
            slot.retired = True
            self._why = why
        else:
            slot.begin(self._epoch, self._key, self._stage, self._policy)

    def _move(self, item: str, tries: Tries, why: str, *, alone: bool) -> None:
        """Put an item of a lost process back. Only a loss that it suffered alone can use up its tries: in company it may be another's."""
        self._tries[item] = tries
        self._losses[item] += 1
        exhausted = tries.charged >= self._policy.tries
        if exhausted and alone:
            self._end([owed(item, tries, why)])
        elif exhausted or self._losses[item] >= SUSPECT_LOSSES:
            self._suspects.append(item)
        else:
            self._pending.appendleft(item)

    def _close(self) -> None:
        """Take what the workers still know; owe the rest."""
        reason = self._closing.reason if self._closing.left_s() == 0.0 else self._why
        busy = [slot for slot in self._slots if slot.held]
        limit_s = 2 * self._policy.abandon_s + 1.0
        ends = [slot.actor.end.remote(reason, limit_s) for slot in busy]
        for slot, end in zip(busy, ends, strict=True):
            try:
                self._take(slot, ray.get(slot.call, timeout=limit_s) if slot.call is not None else [])
                events, clean = ray.get(end, timeout=2 * limit_s)
                self._take(slot, events)
            except (RayError, GetTimeoutError):
                clean = False
            for item, tries in slot.held.items():
                self._tries[item] = tries._replace(made=tries.made + 1)
            if not clean:
                slot.kill()
        self._end([owed(item, tries, reason) for item, tries in self._tries.items() if item not in self.outcomes])


def travelling(stage: Stage) -> tuple[str, Any]:
    """Identity of a stage and a reference to it in the object store.

    Raises:
        ConfigError: The stage does not pickle.
    """
    dumps: Any = ray.cloudpickle.dumps
    try:
        pickled = dumps(stage)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        fix = "keep only configuration in the stage and build clients in its open()"
        raise ConfigError(f"stage {stage.name} can't travel to worker processes", seen=str(error), fix=fix) from error
    return hashlib.sha256(pickled).hexdigest(), ray.put(stage)
