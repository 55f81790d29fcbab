"""A discrete-event simulator of phases, pools, spot losses and start-up times, driven by the policies of `cluster.pool_policy`.

Work is measured in node-seconds of the phase's pool. Between events it shrinks at one node-second per second and serving node. A spot node
is taken back at an exponential time; what it had in flight, a uniform part of the pool's commit interval, is done again. Capacity on the
spot market comes and goes (exponential spells); during a drought no request is met and losses are more frequent. A node is paid from the
moment it is granted, start-up included, until it is given back or taken.

Limits: on-demand capacity is always there; a phase uses one pool; the two-minute notice saves nothing (pessimistic); prices do not move;
queueing inside a node is part of its throughput, the tail of the longest episodes is the phase's `tail_s`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from cluster.pool_policy import Phase, PoolPolicy, PoolShape, PoolState, Situation, Target
from coevo.errors import ConfigError
from coevo.prices import Market

__all__ = ["Outcome", "SimulatedPhase", "SimulatedPool", "Simulation", "plan_of", "shapes_of", "simulate"]

_HOUR_S = 3600.0
_ZERO = 1e-6
_MIN_REVIEW_S = 1.0
_MAX_EVENTS = 200_000


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """A pool of equal nodes.

    Attributes:
        nodes: Nodes at full size.
        usd_per_hour: Dollars per hour of one node, by market.
        startup_s: From grant to serving.
        commit_s: Work in flight on a node is at most this old when it is lost: an episode's length, or the checkpoint interval.
        losses_per_hour: Interruptions per spot node and hour.
        drought_every_h: Mean hours of capacity between droughts; infinite for none.
        drought_h: Mean hours of a drought.
        drought_factor: Interruptions are this many times more frequent during a drought.
        gang: The work needs all nodes at once, and the loss of one throws all of them back.
    """

    nodes: int
    usd_per_hour: Mapping[Market, float]
    startup_s: float
    commit_s: float
    losses_per_hour: float = 0.0
    drought_every_h: float = math.inf
    drought_h: float = 0.0
    drought_factor: float = 1.0
    gang: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedPhase:
    """Work for one pool, or seconds without any.

    Attributes:
        name: For messages.
        pool: Pool that does it; empty for none.
        node_s: Work in node-seconds.
        tail_s: Seconds at the end in which the last items finish and no node is filled; without a pool, the whole length.
    """

    name: str
    pool: str = ""
    node_s: float = 0.0
    tail_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated run.

    Attributes:
        hours: Wall-clock length.
        usd: Dollars per pool.
        node_hours: Paid node-hours per (pool, market).
        asked_s, done_s, lost_s: Node-seconds asked for, done in all, done and lost again: asked = done - lost.
        interruptions: Spot nodes taken back.
        waited_s: Seconds in which a phase had work and no node served it.
    """

    hours: float
    usd: Mapping[str, float]
    node_hours: Mapping[tuple[str, Market], float]
    asked_s: float
    done_s: float
    lost_s: float
    interruptions: int
    waited_s: float

    @property
    def total_usd(self) -> float:
        """Dollars of all pools."""
        return sum(self.usd.values())


def shapes_of(pools: Mapping[str, SimulatedPool]) -> dict[str, PoolShape]:
    """What a policy may know of these pools."""
    return {name: PoolShape(replicas=pool.nodes, startup_s=pool.startup_s) for name, pool in pools.items()}


def plan_of(phases: Sequence[SimulatedPhase], pools: Mapping[str, SimulatedPool]) -> tuple[Phase, ...]:
    """What a policy may know of these phases: their length at full size, without losses."""
    return tuple(
        Phase(one.name, (one.pool,) if one.pool else (), one.tail_s + (one.node_s / pools[one.pool].nodes if one.pool else 0.0))
        for one in phases
    )


class _State(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"


@dataclass(slots=True)
class _Node:
    market: Market
    asked_at: float
    state: _State = _State.WAITING
    granted_at: float = 0.0
    ready_at: float = math.inf
    taken_at: float = math.inf


@dataclass(slots=True)
class _Pool:
    shape: SimulatedPool
    nodes: list[_Node] = field(default_factory=list)
    drought: bool = False
    turns_at: float = math.inf
    paid_s: dict[Market, float] = field(default_factory=lambda: dict.fromkeys(Market, 0.0))

    def serving(self) -> int:
        """Nodes that work."""
        ready = sum(node.state is _State.READY for node in self.nodes)
        return ready if not self.shape.gang or ready >= self.shape.nodes else 0

    def of(self, market: Market) -> list[_Node]:
        """Nodes bought there, the ones that are worth least first."""
        rank = {_State.WAITING: 0, _State.STARTING: 1, _State.READY: 2}
        return sorted((node for node in self.nodes if node.market is market), key=lambda node: (rank[node.state], -node.asked_at))


def simulate(
    phases: Sequence[SimulatedPhase], pools: Mapping[str, SimulatedPool], policy: PoolPolicy, *, seed: int, limit_h: float = 24 * 365.0
) -> Outcome:
    """Run the phases once.

    Args:
        phases: In order; each begins when the one before has ended.
        pools: By name.
        policy: Sizes the pools. A fresh one per call: it remembers losses.
        seed: Of all draws: equal arguments give equal outcomes.
        limit_h: A run that is longer has a policy that does not finish.

    Raises:
        ConfigError: A phase without its pool, or the limit is passed.
    """
    return Simulation(phases, pools, policy, seed=seed, limit_h=limit_h).run()


class Simulation:
    """See `simulate`."""

    def __init__(
        self, phases: Sequence[SimulatedPhase], pools: Mapping[str, SimulatedPool], policy: PoolPolicy, *, seed: int, limit_h: float
    ) -> None:
        missing = {one.pool for one in phases if one.pool} - pools.keys()
        if missing:
            raise ConfigError("phases use pools that are not described", seen=", ".join(sorted(missing)), fix="describe them under pools")
        self._phases = tuple(phases)
        self._policy = policy
        self._limit_s = limit_h * _HOUR_S
        # One stream per pool and kind of event, so that two policies under one seed meet the same droughts.
        streams = iter(np.random.SeedSequence(seed).spawn(2 * len(pools)))
        self._pools = {name: _Pool(shape) for name, shape in sorted(pools.items())}
        self._spells = {name: np.random.default_rng(next(streams)) for name in self._pools}
        self._fates = {name: np.random.default_rng(next(streams)) for name in self._pools}
        self._now = self._waited = self._done = self._lost = 0.0
        self._interruptions = 0
        self._phase = 0
        self._work = self._tail = self._phase_done = 0.0
        self._review_at = math.inf

    def run(self) -> Outcome:
        """To the end of the last phase."""
        for name, pool in self._pools.items():
            if pool.shape.drought_h > 0 and math.isfinite(pool.shape.drought_every_h):
                pool.turns_at = self._spells[name].exponential(pool.shape.drought_every_h) * _HOUR_S
        self._begin_phase()
        for _ in range(_MAX_EVENTS):
            self._skip_finished()
            if self._phase >= len(self._phases):
                return self._close()
            self._decide()
            self._advance(self._next_event())
            self._settle_events()
            if self._now > self._limit_s:
                break
        raise ConfigError(
            "the simulated run does not end", seen=f"{self._now / _HOUR_S:.0f} hours", fix="lower losses_per_hour or raise limit_h"
        )

    def _begin_phase(self) -> None:
        if self._phase < len(self._phases):
            one = self._phases[self._phase]
            self._work, self._tail, self._phase_done = one.node_s if one.pool else 0.0, one.tail_s, 0.0

    def _skip_finished(self) -> None:
        while self._phase < len(self._phases) and self._work <= _ZERO and self._tail <= _ZERO:
            self._phase += 1
            self._begin_phase()

    def _rate(self) -> float:
        name = self._phases[self._phase].pool
        return float(self._pools[name].serving()) if name else 0.0

    def _remaining_s(self) -> float | None:
        if self._work <= _ZERO:
            return self._tail
        rate = self._rate()
        return self._work / rate + self._tail if rate else None

    def _decide(self) -> None:
        states = {name: self._state_of(pool) for name, pool in self._pools.items()}
        decision = self._policy.decide(Situation(self._now, self._phase, states, self._remaining_s()))
        review = decision.review_in_s
        self._review_at = math.inf if review is None else self._now + max(_MIN_REVIEW_S, review)
        for name, pool in self._pools.items():
            self._apply(name, pool, decision.targets.get(name, Target()))

    def _state_of(self, pool: _Pool) -> PoolState:
        counts = {market: dict.fromkeys(_State, 0) for market in Market}
        for node in pool.nodes:
            counts[node.market][node.state] += 1
        waiting = [self._now - node.asked_at for node in pool.nodes if node.state is _State.WAITING]
        spot, on_demand = counts[Market.SPOT], counts[Market.ON_DEMAND]
        return PoolState(
            spot=spot[_State.READY],
            spot_starting=spot[_State.STARTING] + spot[_State.WAITING],
            on_demand=on_demand[_State.READY],
            on_demand_starting=on_demand[_State.STARTING],
            spot_waiting_s=max(waiting, default=0.0),
        )

    def _apply(self, name: str, pool: _Pool, target: Target) -> None:
        for market, wanted in ((Market.SPOT, target.spot), (Market.ON_DEMAND, target.on_demand)):
            held = pool.of(market)
            for node in held[: max(0, len(held) - wanted)]:
                self._release(pool, node)
            for _ in range(wanted - len(held)):
                pool.nodes.append(_Node(market, self._now))
        for node in pool.nodes:
            if node.state is _State.WAITING and (node.market is Market.ON_DEMAND or not pool.drought):
                node.state, node.granted_at, node.ready_at = _State.STARTING, self._now, self._now + pool.shape.startup_s
                self._draw_loss(name, pool, node)

    def _draw_loss(self, name: str, pool: _Pool, node: _Node) -> None:
        """When the cloud will take the node; drawn again at every turn of the market, which an exponential time allows."""
        rate = pool.shape.losses_per_hour * (pool.shape.drought_factor if pool.drought else 1.0)
        if node.market is Market.SPOT and node.state is not _State.WAITING:
            node.taken_at = self._now + self._fates[name].exponential(_HOUR_S / rate) if rate > 0 else math.inf

    def _release(self, pool: _Pool, node: _Node) -> None:
        pool.nodes.remove(node)
        if node.state is not _State.WAITING:
            pool.paid_s[node.market] += self._now - node.granted_at

    def _next_event(self) -> float:
        times = [self._review_at]
        for pool in self._pools.values():
            times.append(pool.turns_at)
            for node in pool.nodes:
                times.append(node.taken_at)
                if node.state is _State.STARTING:
                    times.append(node.ready_at)
        if self._work > _ZERO:
            rate = self._rate()
            times.append(self._now + self._work / rate if rate else math.inf)
        else:
            times.append(self._now + self._tail)
        earliest = min(times)
        if math.isinf(earliest):
            seen = f"phase {self._phases[self._phase].name}: no node serves it and none will"
            raise ConfigError("the policy starves a phase", seen=seen, fix="its targets must cover the pools of the phase")
        return earliest

    def _advance(self, until: float) -> None:
        elapsed = until - self._now
        rate = self._rate()
        if self._work > _ZERO:
            done = min(self._work, rate * elapsed)
            self._work -= done
            self._done += done
            self._phase_done += done
            self._waited += elapsed if rate == 0 else 0.0
        else:
            self._tail = max(0.0, self._tail - elapsed)
        self._now = until

    def _settle_events(self) -> None:
        """Everything that is due now."""
        for name, pool in self._pools.items():
            for node in list(pool.nodes):
                if node.taken_at <= self._now + _ZERO:
                    self._take(name, pool, node)
                elif node.state is _State.STARTING and node.ready_at <= self._now + _ZERO:
                    node.state = _State.READY
            if pool.turns_at <= self._now + _ZERO:
                self._turn(name, pool)

    def _take(self, name: str, pool: _Pool, node: _Node) -> None:
        """The cloud takes a spot node back; what it had in flight is owed again."""
        works = self._phases[self._phase].pool == name and node.state is _State.READY
        if works and self._work > _ZERO:
            nodes = pool.serving() if pool.shape.gang else 1
            lost = min(self._fates[name].uniform(0.0, pool.shape.commit_s) * nodes, self._phase_done)
            self._work += lost
            self._phase_done -= lost
            self._lost += lost
        self._release(pool, node)
        self._interruptions += 1
        self._policy.lost(name, at_s=self._now)

    def _turn(self, name: str, pool: _Pool) -> None:
        pool.drought = not pool.drought
        mean_h = pool.shape.drought_h if pool.drought else pool.shape.drought_every_h
        pool.turns_at = self._now + self._spells[name].exponential(mean_h) * _HOUR_S
        for node in pool.nodes:
            self._draw_loss(name, pool, node)

    def _close(self) -> Outcome:
        for pool in self._pools.values():
            for node in list(pool.nodes):
                self._release(pool, node)
        hours = {(name, market): paid / _HOUR_S for name, pool in self._pools.items() for market, paid in pool.paid_s.items()}
        usd = {
            name: sum(hours[name, market] * pool.shape.usd_per_hour.get(market, 0.0) for market in Market)
            for name, pool in self._pools.items()
        }
        asked = sum(one.node_s for one in self._phases if one.pool)
        return Outcome(self._now / _HOUR_S, usd, hours, asked, self._done, self._lost, self._interruptions, self._waited)
