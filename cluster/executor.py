"""The Executor port on Ray: long-lived worker processes for the many small batches of a search."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import ray
from ray.exceptions import GetTimeoutError, RayError

from cluster.dispatch import ActorOptions, Dispatch, WorkerSlot
from coevo.errors import PrerequisiteError
from coevo.fanout import FanoutPolicy, ProgressTally, check_items
from coevo.limits import Closing
from coevo.ports import MapReport, Progress, Stage

__all__ = ["ActorExecutor", "ActorOptions"]

log = logging.getLogger(__name__)

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

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers, on their hosts."""
        return tuple(slot.pid for slot in self._slots if slot.actor is not None)

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
            slots = self.staff(len(listed))
            closing = Closing(self._policy, len(listed))
            tally = ProgressTally(stage.name, len(listed), on_progress)
            ended = Dispatch(slots, stage, listed, policy=self._policy, closing=closing, tally=tally).run()
        return MapReport(tuple(ended[item] for item in listed), time.monotonic() - started)

    def staff(self, items: int) -> list[WorkerSlot]:
        """The slots for a map of so many items."""
        while len(self._slots) < min(self._options.actors, items):
            self._slots.append(WorkerSlot(self._options))
        return self._slots[:items]

    def close(self) -> None:
        """Close the stages and end the processes; the executor can be used again."""
        slots, self._slots = self._slots, []
        if not ray.is_initialized():
            return
        closing = [slot.actor.aclose.remote() for slot in slots if slot.actor is not None]
        try:
            ray.get(closing, timeout=10.0)
        except (RayError, GetTimeoutError) as error:
            log.warning("a worker process did not close its stages: %s", str(error)[:300])
        for slot in slots:
            slot.kill()
