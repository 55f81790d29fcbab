"""The policies of `cluster.pool_policy` at the wheel of real pools: a thread looks at each pool, asks, and scales.

The policy's number of replicas becomes `ModelPool.scale`. Its market becomes what the *next* replicas ask of a node (`market_resources`);
where none are given, the node groups of the cluster decide, by their priority. A pool without a plan (a single stage of its own) stays at
full size. The thread also samples the pool's meter, so that held seconds are counted while the driver's process is busy elsewhere.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from cluster.cost import HeldMeter
from cluster.pool_policy import PoolPolicy, PoolState, Situation, Target
from coevo.errors import CoevoError
from coevo.prices import Market

if TYPE_CHECKING:
    from cluster.servers import PoolStats

__all__ = ["DrivenPool", "PoolDriver", "ScalablePool", "living"]

_DOWN, _STARTING, _READY = "down", "starting", "ready"
"""`cluster.servers.ReplicaState`, which can't be imported without Ray."""

_STARTING_FAILED = ("start failed", "start took", "restarted to")
"""Reasons of replacements that say nothing about the node."""

logger = logging.getLogger(__name__)


class ScalablePool(Protocol):
    """What the driver needs of a pool (`cluster.servers.ModelPool`)."""

    def scale(self, replicas: int) -> None: ...

    def place_next(self, resources: Mapping[str, float]) -> None: ...

    def stats(self) -> PoolStats: ...

    def wait_ready(self, *, timeout_s: float | None = None) -> None: ...


def living(stats: PoolStats) -> int:
    """Replicas whose process exists: what is paid for."""
    return sum(one.pid is not None and one.state in (_READY, _STARTING) for one in stats.replicas)


@dataclass(slots=True)
class DrivenPool:
    """A pool at the wheel.

    Attributes:
        pool: The pool.
        replicas: Its full size.
        market: Where its nodes are bought by default.
        market_resources: Market -> custom resources of replicas started from then on; empty leaves the pool's own.
        meter: Sampled at every look.
    """

    pool: ScalablePool
    replicas: int
    market: Market = Market.ON_DEMAND
    market_resources: Mapping[Market, Mapping[str, float]] = field(default_factory=dict)
    meter: HeldMeter | None = None
    _scaled: int | None = None
    _placed: Market | None = None
    _losses: float = 0.0

    def state(self) -> PoolState:
        """For the policy; all replicas count to the market that the pool buys in."""
        stats = self.pool.stats()
        starting = sum(one.state in (_STARTING, _DOWN) for one in stats.replicas)
        unplaced = [one.started_at for one in stats.replicas if one.state == _STARTING and one.pid is None and one.started_at]
        waiting = time.monotonic() - min(unplaced) if unplaced else 0.0
        if (self._placed or self.market) is Market.SPOT:
            return PoolState(spot=stats.ready, spot_starting=starting, spot_waiting_s=waiting)
        return PoolState(on_demand=stats.ready, on_demand_starting=starting)

    def losses(self) -> int:
        """Replicas that served and were lost since the last call."""
        new = [one for one in self.pool.stats().failures if one.at > self._losses and not one.reason.startswith(_STARTING_FAILED)]
        self._losses = max((one.at for one in new), default=self._losses)
        return len(new)

    def apply(self, target: Target) -> bool:
        """Scale and place; a call that changes nothing is not made. True when the size changed."""
        wanted = Market.ON_DEMAND if target.on_demand or not target.spot else Market.SPOT
        if target.replicas and wanted is not (self._placed or self.market) and wanted in self.market_resources:
            self.pool.place_next(self.market_resources[wanted])
            self._placed = wanted
        replicas = min(self.replicas, target.replicas)
        changed = replicas != (self.replicas if self._scaled is None else self._scaled)
        if changed:
            self.pool.scale(replicas)
        self._scaled = replicas
        return changed

    def restore(self) -> bool:
        """Back to full size."""
        return self.apply(Target(on_demand=self.replicas) if self.market is Market.ON_DEMAND else Target(spot=self.replicas))


class PoolDriver:
    """See the module. One per session; `close` ends its thread.

    Args:
        policy: Decides; None keeps every pool at full size.
        period_s: Between two looks.
        clock: Monotonic seconds.
        on_scale: Told `(pool, replicas)` when a size changes.
        on_look: Told `(pool, stats)` at every look, for metrics.
    """

    def __init__(
        self,
        policy: PoolPolicy | None,
        *,
        period_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        on_scale: Callable[[str, int], None] | None = None,
        on_look: Callable[[str, PoolStats], None] | None = None,
    ) -> None:
        self._policy = policy
        self._period_s = period_s
        self._clock = clock
        self._on_scale = on_scale
        self._on_look = on_look
        self._pools: dict[str, DrivenPool] = {}
        self._phase: int | None = None
        self._ends_at: float | None = None
        self._began = clock()
        self._pinned: set[str] = set()
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, name: str, pool: DrivenPool) -> None:
        """Take a pool, at full size now, and start looking."""
        with self._lock:
            self._pools[name] = pool
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="pool-driver", daemon=True)
            self._thread.start()

    def remove(self, name: str) -> None:
        """Let go of a pool that ends; its meter is read once more."""
        with self._lock:
            pool = self._pools.pop(name, None)
        if pool is not None and pool.meter is not None:
            pool.meter.sample()

    def enter(self, phase: int | None) -> None:
        """A phase of the plan begins; None: there is no plan."""
        with self._lock:
            self._phase, self._ends_at, self._began = phase, None, self._clock()
            self._pinned.clear()
            self.look()

    def progress(self, done: int, total: int) -> None:
        """Items of the phase that are done: at the speed so far the rest of it takes the estimate that pre-warming goes by."""
        with self._lock:
            now = self._clock()
            if done > 0:
                self._ends_at = now + (now - self._began) * (total - done) / done

    def require(self, name: str) -> None:
        """Have a pool at full size and serving until the next phase, whatever the plan says: somebody needs it now.

        Raises:
            CoevoError: It does not come up (`ModelPool.wait_ready`).
        """
        with self._lock:
            pool = self._pools[name]
            self._pinned.add(name)
            if pool.restore():
                self._tell(name, pool.replicas)
        pool.pool.wait_ready()

    def look(self) -> None:
        """One look: sample meters, count losses, decide, scale."""
        with self._lock:
            for name, pool in self._pools.items():
                if pool.meter is not None:
                    pool.meter.sample()
                if self._on_look is not None:
                    self._on_look(name, pool.pool.stats())
            if self._policy is None or self._phase is None:
                return
            now = self._clock()
            for name, pool in self._pools.items():
                for _ in range(pool.losses()):
                    self._policy.lost(name, at_s=now)
            remaining = None if self._ends_at is None else max(0.0, self._ends_at - now)
            states = {name: pool.state() for name, pool in self._pools.items()}
            targets = self._policy.decide(Situation(now, self._phase, states, remaining)).targets
            for name, pool in self._pools.items():
                if name in targets and name not in self._pinned and pool.apply(targets[name]):
                    self._tell(name, targets[name].replicas)

    def close(self) -> None:
        """End the thread. May be called twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30.0)

    def _tell(self, name: str, replicas: int) -> None:
        if self._on_scale is not None:
            self._on_scale(name, replicas)

    def _loop(self) -> None:
        while not self._stop.wait(self._period_s):
            try:
                self.look()
            except CoevoError as error:
                logger.warning("the pool driver met an error: %s", error)
