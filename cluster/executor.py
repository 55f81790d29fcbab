"""The Executor port on Ray: long-lived worker processes for the many small batches of a search, Ray Data for bulk.

Both keep the contract of `coevo.fanout.LocalExecutor` (`tests/contract/test_executors.py`); what they add is that a process may die,
stop answering, or never start, and that costs no item more than an attempt.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from cluster.bulk import BulkOptions, BulkPipeline
from cluster.dispatch import ActorOptions, Dispatch, WorkerSlot, travelling
from cluster.placement import beside_driver
from cluster.watchdog import LedgerNews, MapLedger, Watchdog, owed
from coevo.errors import ConfigError, PrerequisiteError, StoreError
from coevo.fanout import FanoutPolicy, ProgressTally, Tries, check_items
from coevo.limits import Closing
from coevo.ports import ItemOutcome, MapReport, Progress, Stage

__all__ = ["ActorExecutor", "ActorOptions", "BulkOptions", "RayDataExecutor"]

log = logging.getLogger(__name__)

LEDGER_ANSWER_S = 60.0  # it only counts: no answer means that its process or node is gone
CLEAN_END_S = 5.0  # a pipeline whose items all ended gets so long to come down by itself

ProgressCallback = Callable[[Progress], None]


def require_ray() -> None:
    """Raises: PrerequisiteError: This process has not joined a Ray cluster."""
    if not ray.is_initialized():
        raise PrerequisiteError("no Ray session in this process", fix="start or join one before the stage (cluster.session)")


class ActorExecutor:
    """`coevo.ports.Executor` on long-lived worker processes (`cluster.dispatch`).

    The processes start with the first map, as many as it can use, and live until `close`; a stage stays open in them between maps.
    `FanoutPolicy.concurrency` holds per process. Calls from several threads take turns.
    """

    def __init__(self, policy: FanoutPolicy | None = None, options: ActorOptions | None = None) -> None:
        self._policy = policy or FanoutPolicy()
        self._options = options or ActorOptions()
        self._slots: list[WorkerSlot] = []
        self._turn = threading.Lock()

    def with_policy(self, policy: FanoutPolicy) -> ActorExecutor:
        """An executor of another policy on the same processes; `close` of either ends them."""
        other = ActorExecutor(policy, self._options)
        other._slots, other._turn = self._slots, self._turn
        return other

    @property
    def nodes(self) -> tuple[str, ...]:
        """Ids of the nodes of the workers that have answered."""
        return tuple(slot.node for slot in self._slots if slot.node)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that have answered, on their hosts."""
        return tuple(slot.pid for slot in self._slots if slot.pid)

    def map(self, stage: Stage, items: Sequence[str], *, on_progress: ProgressCallback | None = None) -> MapReport:
        """See `coevo.ports.Executor`.

        Raises:
            ConfigError: An id occurs twice, or the stage does not pickle or can't be opened as configured.
            PrerequisiteError: No Ray session; or from opening the stage, as StoreError.
        """
        listed = check_items(items)
        started = time.monotonic()
        if not listed:
            return MapReport(())
        require_ray()
        with self._turn:
            closing = Closing(self._policy, len(listed))
            tally = ProgressTally(stage.name, len(listed), on_progress)
            ended = Dispatch(self._staff(len(listed)), stage, listed, policy=self._policy, closing=closing, tally=tally).run()
        return MapReport(tuple(ended[item] for item in listed), time.monotonic() - started)

    def _staff(self, items: int) -> list[WorkerSlot]:
        while len(self._slots) < min(self._options.actors, items):
            self._slots.append(WorkerSlot(self._options))
        return self._slots[:items]

    def close(self) -> None:
        """Close the stages and end the processes; the executor can be used again."""
        with self._turn:
            slots = list(self._slots)
            self._slots.clear()
        if not ray.is_initialized():
            return
        closing = [slot.actor.aclose.remote() for slot in slots if slot.actor is not None]
        try:
            ray.get(closing, timeout=10.0)
        except (RayError, GetTimeoutError) as error:
            log.warning("a worker process did not close its stages: %s", str(error)[:300])
        for slot in slots:
            slot.kill()


class _BulkProcesses:
    """The processes beside the pool: the pipeline and the ledger. They serve the next map too, if this one ended by itself.

    Attributes:
        turn: Held during a map.
    """

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.pipeline: Any = None
        self.ledger: Any = None

    def start(self) -> None:
        """Start what does not run."""
        remote: Any = ray.remote
        self.pipeline = self.pipeline or remote(BulkPipeline).options(**beside_driver()).remote()
        self.ledger = self.ledger or remote(MapLedger).options(**beside_driver()).remote()

    def stop(self) -> None:
        """End both, and the pool with them."""
        actors = (self.pipeline, self.ledger)
        self.pipeline, self.ledger = None, None
        for actor in actors:
            if actor is not None and ray.is_initialized():
                ray.kill(actor, no_restart=True)


class _BulkMap:
    """The driver's side of one bulk map: follows the ledger, kills the pipeline when it is over or nothing moves.

    Attributes:
        outcomes: Ended items.
        why: Why the map ended.
        clean: The pipeline ended by itself.
    """

    def __init__(
        self,
        processes: _BulkProcesses,
        items: Sequence[str],
        *,
        policy: FanoutPolicy,
        options: BulkOptions,
        closing: Closing,
        tally: ProgressTally,
    ) -> None:
        self._pipeline = processes.pipeline
        self._ledger = processes.ledger
        self._items = items
        self._policy = policy
        self._options = options
        self._closing = closing
        self._tally = tally
        self.outcomes: dict[str, ItemOutcome] = {}
        self.why = ""
        self.clean = False

    def follow(self, stage: Stage) -> None:
        """Run the pipeline to its end, or until it is to be ended.

        Raises:
            ConfigError, PrerequisiteError, StoreError: From opening the stage.
        """
        self._ledger.begin.remote(self._policy)
        running = self._pipeline.run.remote(stage, self._items, self._policy, self._options, self._ledger)
        watchdog = Watchdog(self._options.stall_s, start_s=self._options.start_timeout_s)
        ready: list[Any] = []
        try:
            while not self.why:
                ready = ray.wait([running], timeout=self._pause_s())[0]
                self.why = self._look(watchdog) or (_end_of(running) if ready else "")
        except (RayError, GetTimeoutError) as error:
            self.why = f"the ledger of the map was lost: {str(error)[-500:]}"
        if len(self.outcomes) == len(self._items):
            ready = ready or ray.wait([running], timeout=CLEAN_END_S)[0]
            self.clean = bool(ready)
        if not self.clean:
            ray.kill(self._pipeline, no_restart=True)

    def _pause_s(self) -> float:
        left_s = self._closing.left_s()
        return min(0.1, self._options.beat_s) if left_s is None else min(0.1, self._options.beat_s, left_s)

    def _look(self, watchdog: Watchdog) -> str | None:
        """Take the news; a reason to stop, if there is one."""
        news: LedgerNews = ray.get(self._ledger.drain.remote(), timeout=LEDGER_ANSWER_S)
        self._take(news)
        if news.alive:
            watchdog.sign()
        if len(self.outcomes) == len(self._items):
            return "all items ended"
        if self._closing.left_s() == 0.0:
            return self._closing.reason
        if news.error is not None:
            return str(news.error)
        return f"nothing moved in the pipeline for {self._options.stall_s} s" if watchdog.stalled else None

    def _take(self, news: LedgerNews) -> None:
        if isinstance(news.error, ConfigError | PrerequisiteError | StoreError):
            raise news.error
        for outcome in news.outcomes:
            self.outcomes[outcome.item] = outcome
            self._closing.ended()
        self._tally.add(news.outcomes)

    def unfinished(self) -> tuple[dict[str, Tries], frozenset[str]]:
        """What the pipeline left: tries spent per item, and which of them are to be run alone."""
        if self.clean:
            return {}, frozenset()
        spent: dict[str, Tries] = {}
        suspects: frozenset[str] = frozenset()
        try:
            self._take(ray.get(self._ledger.drain.remote(), timeout=LEDGER_ANSWER_S))
            spent, suspects = ray.get(self._ledger.unfinished.remote(), timeout=LEDGER_ANSWER_S)
        except (RayError, GetTimeoutError) as error:
            log.warning("the ledger of the map was lost with the attempt counts: %s", str(error)[-300:])
        return {item: spent.get(item, Tries()) for item in self._items if item not in self.outcomes}, suspects


def _end_of(running: Any) -> str:
    try:
        rows = ray.get(running)
    except RayError as error:
        return f"the pipeline failed: {str(error)[-1500:]}"
    return f"the pipeline ended after {rows} rows"


class RayDataExecutor:
    """`coevo.ports.Executor` for bulk on Ray Data (`cluster.bulk`), with a watchdog outside of it.

    A pipeline that fails, stalls or can't hold a worker is killed; what it left is finished by long-lived workers
    (`BulkOptions.finish`) with the tries already spent, or owed.
    """

    def __init__(self, policy: FanoutPolicy | None = None, options: BulkOptions | None = None) -> None:
        self._policy = policy or FanoutPolicy()
        self._options = options or BulkOptions()
        self._processes = _BulkProcesses()

    def with_policy(self, policy: FanoutPolicy) -> RayDataExecutor:
        """An executor of another policy on the same processes; `close` of either ends them."""
        other = RayDataExecutor(policy, self._options)
        other._processes = self._processes
        return other

    def map(self, stage: Stage, items: Sequence[str], *, on_progress: ProgressCallback | None = None) -> MapReport:
        """See `coevo.ports.Executor`; raises what `ActorExecutor.map` raises."""
        listed = check_items(items)
        started = time.monotonic()
        if not listed:
            return MapReport(())
        require_ray()
        travelling(stage)
        with self._processes.turn:
            closing = Closing(self._policy, len(listed))
            tally = ProgressTally(stage.name, len(listed), on_progress)
            self._processes.start()
            bulk = _BulkMap(self._processes, listed, policy=self._policy, options=self._options, closing=closing, tally=tally)
            try:
                bulk.follow(stage)
                tries, suspects = bulk.unfinished()
            finally:
                if not bulk.clean:
                    self._processes.stop()
            ended = bulk.outcomes | self._rest(stage, tries, suspects, bulk.why, closing, tally)
        return MapReport(tuple(ended[item] for item in listed), time.monotonic() - started)

    def _rest(
        self, stage: Stage, tries: dict[str, Tries], suspects: frozenset[str], why: str, closing: Closing, tally: ProgressTally
    ) -> dict[str, ItemOutcome]:
        """Outcomes of what the pipeline left."""
        if not tries:
            return {}
        log.warning("%s; %d items are left", why, len(tries))
        if closing.left_s() == 0.0 or not self._options.finish:
            left = [owed(item, spent, why) for item, spent in tries.items()]
            tally.add(left)
            return {outcome.item: outcome for outcome in left}
        options = ActorOptions(
            actors=self._options.actors,
            num_cpus=self._options.num_cpus,
            num_gpus=self._options.num_gpus,
            resources=self._options.resources,
            memory_bytes=self._options.memory_bytes,
            spread=self._options.spread,
            beat_s=self._options.beat_s,
            silence_s=max(self._options.stall_s, 2 * self._options.beat_s),
        )
        slots = [WorkerSlot(options) for _ in range(min(options.actors, len(tries)))]
        try:
            return Dispatch(
                slots, stage, list(tries), policy=self._policy, closing=closing, tally=tally, tries=tries, suspects=suspects
            ).run()
        finally:
            for slot in slots:
                slot.kill()

    def close(self) -> None:
        """End the processes; the executor can be used again."""
        with self._processes.turn:
            self._processes.stop()
