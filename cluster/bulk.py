"""Bulk fan-out through Ray Data: ids in blocks -> pool of worker processes -> small index rows.

Ray Data schedules, applies backpressure and scales the pool; it decides nothing about results. Each item commits itself to the store and
is reported to a `MapLedger`, errors are rows and not exceptions, and the pipeline runs in a process of its own that the driver can
kill. So block size is a throughput knob only: a block costs 60-70 ms of CPU (`tests/bench/bench_executor.py`, two busy cores).

A process holds more blocks than its lanes (`FanoutPolicy.concurrency`) need: the rest of a block whose one item hangs costs nothing, and
no block waits behind it.

A process on a node that is being drained claims nothing more, and ends itself when its items in flight have ended: Ray Data starts it again
on another node and hands it the blocks that it held; what ended is not run twice, because the ledger knows it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError

from cluster.drain import DrainWatch
from cluster.placement import actor_placement
from cluster.watchdog import LEAVING, WorkerEvent
from coevo.errors import CoevoError, ConfigError
from coevo.fanout import FanoutPolicy, ItemRunner, LoopThread, Tries, open_stage
from coevo.ports import ItemOutcome, ItemState, Stage

__all__ = ["BulkOptions", "BulkPipeline", "BulkWorker"]

log = logging.getLogger(__name__)

LEFT_NODE = 77  # exit code of a process that leaves a draining node
GATHER_S = 0.05  # news of items are reported together at most this long after they came


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """Size and patience of a bulk map. Frozen and picklable.

    Attributes:
        actors: Worker processes at the start and at least.
        max_actors: Worker processes at most (Ray Data scales the pool by its queue); None for a fixed pool.
        num_cpus: Logical CPUs of each.
        num_gpus: GPUs of each.
        resources: Further Ray resources of each, for placement by node label.
        memory_bytes: Memory that Ray reserves for each.
        spread: One per node as far as there are nodes; else Ray packs them.
        block_rows: Ids per block.
        beat_s: Seconds between the heartbeats of a worker.
        stall_s: Seconds without a heartbeat or an outcome after which the pipeline is killed (R8). Above the longest time that a stage
            blocks its event loop, and the time of a replacement process to start.
        start_timeout_s: Seconds until the first heartbeat: the pool starts and opens the stage.
        finish: Bring what a failed or stalled pipeline leaves to its end through long-lived workers; otherwise it is owed.
    """

    actors: int = 2
    max_actors: int | None = None
    num_cpus: float = 0.5
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    spread: bool = True
    block_rows: int = 8
    beat_s: float = 1.0
    stall_s: float = 180.0
    start_timeout_s: float = 300.0
    finish: bool = True

    def __post_init__(self) -> None:
        if self.actors < 1 or self.block_rows < 1:
            raise ConfigError(
                "bulk map: actors and block_rows start at 1", seen=(self.actors, self.block_rows), fix="raise the one that is 0"
            )
        if self.max_actors is not None and self.max_actors < self.actors:
            raise ConfigError("bulk map: max_actors is below actors", seen=(self.max_actors, self.actors), fix="raise max_actors")


class Claims:
    """Asks the ledger for items, many in one call: what comes while a call is under way goes with the next."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self._waiting: list[tuple[str, asyncio.Future[Tries | None]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def claim(self, item: str) -> Tries | None:
        """See `MapLedger.claim`."""
        answer: asyncio.Future[Tries | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        return await answer

    async def _send(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, []
            try:
                answers = await self._ledger.claim.remote([item for item, _ in asked])
            except RayError as error:
                for _, answer in asked:
                    answer.set_exception(error)
                continue
            for (_, answer), tries in zip(asked, answers, strict=True):
                answer.set_result(tries)


class BulkWorker:
    """One process of Ray Data's actor pool. Blocks come in on threads; all items run in one event loop and share its breaker.

    The opened stage is not closed: its process ends with the pool.
    """

    def __init__(self, stage: Stage, policy: FanoutPolicy, ledger: Any, beat_s: float) -> None:
        self._ledger = ledger
        self._beat_s = beat_s
        self._events: list[WorkerEvent] = []
        self._in_flight = 0
        context: Any = ray.get_runtime_context()
        self._node = str(context.get_node_id())
        self._drains = DrainWatch()
        self._leaving: asyncio.Task[None] | None = None
        self._loop = LoopThread("coevo-bulk")
        self._runner: ItemRunner | None = self._loop.submit(self._open(stage, policy)).result()

    async def _open(self, stage: Stage, policy: FanoutPolicy) -> ItemRunner | None:
        try:
            worker = await open_stage(stage, policy)
        except CoevoError as error:
            await self._ledger.refuse.remote(error)
            return None
        self._lanes = asyncio.Semaphore(policy.concurrency)
        self._claims = Claims(self._ledger)
        self._idle = asyncio.Event()
        self._idle.set()
        self._news = asyncio.Event()
        self._heart = asyncio.create_task(self._beat())
        return ItemRunner(worker, policy, on_retry=lambda item, tries, error: self._add(WorkerEvent(item, tries, error)))

    def __call__(self, block: pa.Table) -> pa.Table:
        """Ids in, index rows out."""
        items = block.column("item").to_pylist()
        return index_rows(self._loop.submit(self._block(self._runner, items)).result() if self._runner is not None else [])

    async def _block(self, runner: ItemRunner, items: Sequence[str]) -> list[ItemOutcome]:
        outcomes = await asyncio.gather(*(self._bring(runner, item) for item in items))
        await self._flush()
        return [outcome for outcome in outcomes if outcome is not None]

    async def _bring(self, runner: ItemRunner, item: str) -> ItemOutcome | None:
        """An item's outcome; None when the ledger says that it is not to be run here."""
        async with self._lanes:
            if self._leaving is not None:
                await asyncio.Event().wait()  # for the end of this process, which hands the block to another
            self._in_flight += 1
            self._idle.clear()
            try:
                tries = await self._claims.claim(item)
                if tries is None:
                    return None
                outcome = await runner.run(item, tries)
                left = outcome.state is ItemState.OWED and outcome.error.endswith(LEAVING)
                self._add(WorkerEvent(item, tries._replace(made=outcome.attempts), outcome.error, outcome, left))
            finally:
                self._in_flight -= 1
                if not self._in_flight:
                    self._idle.set()
        return None if left else outcome

    async def _look_for_drain(self) -> None:
        if self._leaving is None and self._node in await asyncio.to_thread(self._drains.nodes):
            self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        """End the process once nothing runs in it; with an error code, so that Ray Data starts it again elsewhere."""
        log.warning("a bulk worker leaves the node %s, which is being drained", self._node[:8])
        if self._runner is not None:
            self._runner.close(LEAVING)
        await self._idle.wait()
        await self._flush()
        os._exit(LEFT_NODE)

    def _add(self, event: WorkerEvent) -> None:
        self._events.append(event)
        self._news.set()

    async def _flush(self) -> None:
        events, self._events = self._events, []
        self._news.clear()
        await self._ledger.report.remote(self._in_flight, events)

    async def _beat(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._beat_s):
                    await self._news.wait()
                await asyncio.sleep(GATHER_S)
            except TimeoutError:
                log.debug("no news in %s s: heartbeat only", self._beat_s)
            await self._look_for_drain()
            if self._events or self._in_flight:
                await self._flush()


def index_rows(outcomes: Sequence[ItemOutcome]) -> pa.Table:
    """One small row per ended item: item, state, attempts."""
    rows = [{"item": outcome.item, "state": outcome.state.value, "attempts": outcome.attempts} for outcome in outcomes]
    return pa.Table.from_pylist(rows, schema=pa.schema([("item", pa.string()), ("state", pa.string()), ("attempts", pa.int32())]))


class BulkPipeline:
    """The Ray Data driver of bulk maps, as an actor: killing it ends the pool, whatever state Ray Data is in."""

    def run(self, stage: Stage, items: Sequence[str], policy: FanoutPolicy, options: BulkOptions, ledger: Any) -> int:
        """Run to the end; returns the number of index rows."""
        import ray.data

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        calls = 2 * math.ceil(policy.concurrency / options.block_rows) + 2
        size = {"size": options.actors} if options.max_actors is None else {"min_size": options.actors, "max_size": options.max_actors}
        pool = ray.data.ActorPoolStrategy(
            **size, max_concurrent_calls_per_actor=calls, max_tasks_in_flight_per_actor=calls, enable_true_multi_threading=True
        )
        dataset = ray.data.from_arrow(list(blocks(items, options.block_rows))).map_batches(
            BulkWorker,
            fn_constructor_args=(stage, policy, ledger, options.beat_s),
            batch_size=None,
            batch_format="pyarrow",
            compute=pool,
            **_placement(options),
        )
        return sum(len(batch) for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"))


def _placement(options: BulkOptions) -> dict[str, Any]:
    """As `actor_placement`; Ray Data spreads by itself, and a strategy that says so draws its warning."""
    placed = actor_placement(options.num_cpus, options.num_gpus, options.resources, options.memory_bytes, spread=options.spread)
    if options.spread:
        del placed["scheduling_strategy"]
    return placed


def blocks(items: Sequence[str], rows: int) -> Iterator[pa.Table]:
    """The ids as tables of `rows` rows: one table is one block, with no read tasks and no repartition before the pool."""
    for start in range(0, len(items), rows):
        yield pa.table({"item": list(items[start : start + rows])})
