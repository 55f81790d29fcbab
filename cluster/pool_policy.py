"""How many replicas each pool should have, and in which market: decided from the phase plan, pure Python, no clock of its own.

One policy object serves two masters: `cluster.pool_driver` (real pools) and `cluster.simulator` (a week of them in milliseconds). Both
ask `decide(situation)` at events of their own and apply the targets; both report spot losses with `lost`. A pool that the phase does not
use goes to zero, unless the phase that needs it next begins within its start-up time: then it is started (or kept), so that it serves when
that phase begins. Keeping is right within that time too: a restart pays the start-up again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coevo.errors import ConfigError, nearest
from coevo.prices import Market

__all__ = [
    "Decision",
    "Phase",
    "PhasedPolicy",
    "PolicySettings",
    "PoolPolicy",
    "PoolShape",
    "PoolState",
    "Situation",
    "StaticPolicy",
    "Target",
]


@dataclass(frozen=True, slots=True)
class Phase:
    """A step of the plan.

    Attributes:
        name: For messages.
        pools: Pools that it uses; none for a phase of the driver alone.
        expected_s: How long it should take; None where nobody knows, and then nothing is pre-warmed across it.
    """

    name: str
    pools: tuple[str, ...] = ()
    expected_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolShape:
    """What a policy knows of a pool.

    Attributes:
        replicas: Replicas at full size.
        startup_s: Seconds from asking for a replica until it serves: node, image, weights.
        items_per_replica: Items that one replica works on at once. A queue shorter than all places needs fewer replicas; 0 = never fewer.
    """

    replicas: int
    startup_s: float
    items_per_replica: int = 0


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool now. Counts are of replicas; `*_starting` were asked for and do not serve yet.

    Attributes:
        spot, spot_starting, on_demand, on_demand_starting: Replicas by market.
        spot_waiting_s: Age of the oldest spot request that no node was found for; 0 when there is none.
        queue: Items of the phase that are not done; None while more may come.
    """

    spot: int = 0
    spot_starting: int = 0
    on_demand: int = 0
    on_demand_starting: int = 0
    spot_waiting_s: float = 0.0
    queue: int | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """What a policy decides on.

    Attributes:
        now_s: Seconds on any clock that does not go back.
        phase: Index of the phase in the plan.
        remaining_s: Seconds until it ends, as far as known.
        pools: Pool -> state.
    """

    now_s: float
    phase: int
    pools: Mapping[str, PoolState]
    remaining_s: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Wanted replicas by market."""

    spot: int = 0
    on_demand: int = 0

    @property
    def replicas(self) -> int:
        """Of both markets."""
        return self.spot + self.on_demand


@dataclass(frozen=True, slots=True)
class Decision:
    """Targets of all pools. `review_in_s`: ask again then, even if nothing happens; None = only when something does."""

    targets: Mapping[str, Target]
    review_in_s: float | None = None


class PoolPolicy(Protocol):
    """Decides; keeps no clock and starts nothing."""

    def decide(self, situation: Situation) -> Decision: ...

    def lost(self, pool: str, *, at_s: float) -> None:
        """A spot replica was taken back."""
        ...


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """Every pool at full size in one market, for the whole run: what a cluster without a policy costs."""

    shapes: Mapping[str, PoolShape]
    market: Market = Market.ON_DEMAND

    def decide(self, situation: Situation) -> Decision:
        """The same answer always."""
        del situation
        spot = self.market is Market.SPOT
        targets = {name: Target(shape.replicas, 0) if spot else Target(0, shape.replicas) for name, shape in self.shapes.items()}
        return Decision(targets)

    def lost(self, pool: str, *, at_s: float) -> None:
        """Nothing changes."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Dials of `PhasedPolicy`.

    Attributes:
        use_spot: Buy on the spot market at all.
        prewarm_margin: A pool is asked for this many start-up times before its phase begins.
        loss_limit: This many spot losses of a pool within `loss_window_s` send its next replicas to on-demand.
        loss_window_s: See `loss_limit`.
        spot_patience_s: A spot request that waits longer is given to on-demand.
        on_demand_hold_s: How long before spot is tried again.
    """

    use_spot: bool = True
    prewarm_margin: float = 1.2
    loss_limit: int = 3
    loss_window_s: float = 3600.0
    spot_patience_s: float = 900.0
    on_demand_hold_s: float = 7200.0


@dataclass(slots=True)
class PhasedPolicy:
    """To zero between phases, pre-warmed for the next one, spot until it proves bad. See the module docstring.

    On-demand replicas that stand in for spot are given back one by one as spot replicas begin to serve.

    Raises:
        ConfigError: A phase names a pool that has no shape.
    """

    phases: Sequence[Phase]
    shapes: Mapping[str, PoolShape]
    settings: PolicySettings = PolicySettings()
    _losses: dict[str, deque[float]] = field(default_factory=dict)
    _on_demand_until: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for phase in self.phases:
            for pool in phase.pools:
                if pool not in self.shapes:
                    raise ConfigError(f"the phase {phase.name} uses an unknown pool", seen=pool, fix=nearest(pool, self.shapes))

    def decide(self, situation: Situation) -> Decision:
        """Size by phase, market by recent experience."""
        targets: dict[str, Target] = {}
        reviews: list[float] = []
        for pool, shape in self.shapes.items():
            state = situation.pools.get(pool, PoolState())
            starts_in = self._starts_in(pool, situation)
            lead = shape.startup_s * self.settings.prewarm_margin
            wanted = self._size(shape, state, starts_in, lead)
            if wanted == 0 and starts_in is not None:
                reviews.append(starts_in - lead)
            targets[pool] = self._split(pool, wanted, state, situation.now_s)
            reviews += self._market_reviews(pool, state, situation.now_s) if wanted else []
        return Decision(targets, min((max(0.0, one) for one in reviews), default=None))

    def lost(self, pool: str, *, at_s: float) -> None:
        """Count it; the limit within the window sends the pool to on-demand."""
        recent = self._losses.setdefault(pool, deque(maxlen=self.settings.loss_limit))
        recent.append(at_s)
        if len(recent) == self.settings.loss_limit and at_s - recent[0] <= self.settings.loss_window_s:
            self._on_demand_until[pool] = at_s + self.settings.on_demand_hold_s
            recent.clear()

    def _starts_in(self, pool: str, situation: Situation) -> float | None:
        """Seconds until a phase uses the pool: 0 when this one does, None when none will or nobody knows when."""
        if situation.phase >= len(self.phases):
            return None
        if pool in self.phases[situation.phase].pools:
            return 0.0
        ahead = situation.remaining_s
        for phase in self.phases[situation.phase + 1 :]:
            if ahead is None:
                return None
            if pool in phase.pools:
                return ahead
            ahead = ahead + phase.expected_s if phase.expected_s is not None else None
        return None

    @staticmethod
    def _size(shape: PoolShape, state: PoolState, starts_in: float | None, lead: float) -> int:
        if starts_in is None or starts_in > lead:
            return 0
        if starts_in > 0 or state.queue is None or shape.items_per_replica == 0:
            return shape.replicas
        return min(shape.replicas, math.ceil(state.queue / shape.items_per_replica))

    def _split(self, pool: str, wanted: int, state: PoolState, now_s: float) -> Target:
        if not self.settings.use_spot:
            return Target(0, wanted)
        if state.spot_waiting_s > self.settings.spot_patience_s:
            self._on_demand_until[pool] = now_s + self.settings.on_demand_hold_s
        serving = min(wanted, state.spot)
        if now_s < self._on_demand_until.get(pool, -math.inf):
            return Target(serving, wanted - serving)
        return Target(wanted, min(state.on_demand + state.on_demand_starting, wanted - serving))

    def _market_reviews(self, pool: str, state: PoolState, now_s: float) -> list[float]:
        """When the market should be looked at again: patience runs out, or the hold on on-demand ends."""
        until = self._on_demand_until.get(pool, -math.inf)
        if now_s < until:
            return [until - now_s]
        waits = state.spot_starting > 0 or state.spot_waiting_s > 0
        return [self.settings.spot_patience_s - state.spot_waiting_s + 1.0] if self.settings.use_spot and waits else []
