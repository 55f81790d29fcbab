"""The policy that sizes pools, and the simulator that it drives.

Promises:
1. A pool is at zero where no phase needs it, serves when its phase begins, and is kept where a restart would cost as much.
2. Repeated losses, or a request that waits too long, send it to on-demand; after the hold spot is tried again, and on-demand stands in
   until spot serves.
3. Simulated work is conserved: asked = done - lost, whatever is lost.
4. Without losses the simulator equals the closed form, in hours and dollars.
5. Equal seeds give equal outcomes, and the policies are ordered as prices say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.pool_policy import (
    Decision,
    Phase,
    PhasedPolicy,
    PolicySettings,
    PoolPolicy,
    PoolShape,
    PoolState,
    Situation,
    StaticPolicy,
    Target,
)
from cluster.simulator import SimulatedPhase, SimulatedPool, plan_of, shapes_of, simulate
from coevo.errors import ConfigError
from coevo.prices import Market

SHAPES = {"weak": PoolShape(4, startup_s=600, items_per_replica=16), "train": PoolShape(2, startup_s=300)}
PHASES = (Phase("rollout", ("weak",)), Phase("rows", (), 100.0), Phase("train", ("train",)), Phase("measure", ("weak",)))


def policy(**changes: object) -> PhasedPolicy:
    return PhasedPolicy(PHASES, SHAPES, PolicySettings(prewarm_margin=1.0, **changes))  # type: ignore[arg-type]


def at(phase: int, *, remaining_s: float | None = None, now_s: float = 0.0, **pools: PoolState) -> Situation:
    return Situation(now_s, phase, pools, remaining_s)


def test_only_the_pool_of_the_phase_runs() -> None:
    targets = policy().decide(at(0)).targets
    assert targets == {"weak": Target(spot=4), "train": Target()}
    assert policy().decide(at(2)).targets == {"weak": Target(), "train": Target(spot=2)}
    assert policy().decide(at(4)).targets == {"weak": Target(), "train": Target()}


def test_the_next_pool_is_asked_for_one_start_up_before_its_phase() -> None:
    """Across a phase of known length; the decision says when to ask again."""
    early = policy().decide(at(0, remaining_s=250.0))
    assert early.targets["train"] == Target()
    assert early.review_in_s == pytest.approx(50.0)
    assert policy().decide(at(0, remaining_s=199.0)).targets["train"] == Target(spot=2)
    assert policy().decide(at(2, remaining_s=599.0)).targets["weak"] == Target(spot=4)
    assert policy().decide(at(2, remaining_s=None)).targets["weak"] == Target()


def test_a_pool_that_is_needed_again_soon_is_kept() -> None:
    """A restart would pay the start-up again."""
    assert policy().decide(at(1, remaining_s=100.0, train=PoolState(spot=2))).targets["train"] == Target(spot=2)


@pytest.mark.parametrize(("queue", "replicas"), [(None, 4), (100, 4), (33, 3), (16, 1), (1, 1), (0, 0)])
def test_a_draining_queue_gives_replicas_back(queue: int | None, replicas: int) -> None:
    state = PoolState(spot=4, queue=queue)
    assert policy().decide(at(0, weak=state)).targets["weak"].replicas == replicas


def test_repeated_losses_send_the_pool_to_on_demand_and_the_hold_ends() -> None:
    one = policy(loss_limit=3, loss_window_s=100.0, on_demand_hold_s=1000.0)
    for second in (0.0, 90.0, 180.0):
        one.lost("weak", at_s=second)
    assert one.decide(at(0, now_s=181.0)).targets["weak"] == Target(spot=4), "three losses, but not within the window"
    one.lost("weak", at_s=185.0)
    fallen = one.decide(at(0, now_s=186.0, weak=PoolState(spot=1)))
    assert fallen.targets["weak"] == Target(spot=1, on_demand=3), "what still serves is kept"
    assert fallen.review_in_s == pytest.approx(999.0)
    assert one.decide(at(0, now_s=186.0, train=PoolState())).targets["train"] == Target(), "other pools are not concerned"
    back = one.decide(at(0, now_s=1190.0, weak=PoolState(spot=1, on_demand=3)))
    assert back.targets["weak"] == Target(spot=4, on_demand=3), "on-demand stands in until spot serves"
    assert one.decide(at(0, now_s=1190.0, weak=PoolState(spot=3, on_demand=3))).targets["weak"] == Target(spot=4, on_demand=1)


def test_a_request_that_waits_too_long_goes_to_on_demand() -> None:
    one = policy(spot_patience_s=60.0)
    waiting = PoolState(spot_starting=4, spot_waiting_s=30.0)
    patient = one.decide(at(0, weak=waiting))
    assert patient.targets["weak"] == Target(spot=4)
    assert patient.review_in_s is not None
    assert 30.0 < patient.review_in_s <= 31.0
    assert one.decide(at(0, weak=replace(waiting, spot_waiting_s=61.0))).targets["weak"] == Target(on_demand=4)


def test_an_unknown_pool_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'weak'"):
        PhasedPolicy((Phase("x", ("weka",)),), SHAPES)


# The simulator.

SAFE = {
    "weak": SimulatedPool(4, {Market.ON_DEMAND: 10.0, Market.SPOT: 4.0}, startup_s=600, commit_s=120),
    "train": SimulatedPool(2, {Market.ON_DEMAND: 50.0, Market.SPOT: 20.0}, startup_s=900, commit_s=600),
}
WORK = (
    SimulatedPhase("rollout", "weak", node_s=40 * 3600.0, tail_s=60),
    SimulatedPhase("rows", tail_s=300),
    SimulatedPhase("train", "train", node_s=6 * 3600.0),
    SimulatedPhase("measure", "weak", node_s=8 * 3600.0, tail_s=60),
)
RISKY = {name: replace(pool, losses_per_hour=0.2, drought_every_h=20.0, drought_h=3.0, drought_factor=4.0) for name, pool in SAFE.items()}


def ours(pools: Mapping[str, SimulatedPool], **changes: object) -> PhasedPolicy:
    return PhasedPolicy(plan_of(WORK, pools), shapes_of(pools), PolicySettings(**changes))  # type: ignore[arg-type]


def test_without_losses_static_equals_the_closed_form() -> None:
    outcome = simulate(WORK, SAFE, StaticPolicy(shapes_of(SAFE)), seed=1)
    hours = (600 + 60 + 300 + 60) / 3600 + 40 / 4 + 6 / 2 + 8 / 4
    assert outcome.hours == pytest.approx(hours)
    assert outcome.usd == pytest.approx({"weak": 4 * 10 * hours, "train": 2 * 50 * hours})
    assert (outcome.lost_s, outcome.interruptions) == (0.0, 0)


def test_without_losses_phased_equals_the_closed_form() -> None:
    """Every pool is paid for its phases and its start-ups; pre-warming hides all start-ups but the first."""
    outcome = simulate(WORK, SAFE, ours(SAFE, use_spot=False, prewarm_margin=1.0), seed=1)
    hours = (600 + 60 + 300 + 60) / 3600 + 40 / 4 + 6 / 2 + 8 / 4
    assert outcome.hours == pytest.approx(hours, abs=3 / 3600)
    assert outcome.usd["train"] == pytest.approx(2 * 50 * (3 + 900 / 3600), rel=1e-3)
    assert outcome.usd["weak"] == pytest.approx(4 * 10 * (10 + 2 + (2 * 600 + 120) / 3600), rel=1e-3)
    assert outcome.waited_s == pytest.approx(600, abs=3)


def test_a_pool_asked_for_late_makes_its_phase_wait() -> None:
    """The check above can fail: with half the lead time the start-up shows."""
    late = simulate(WORK, SAFE, ours(SAFE, use_spot=False, prewarm_margin=0.5), seed=1)
    assert late.waited_s == pytest.approx(600 + 450 + 300, abs=3)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rate=st.floats(0.0, 2.0), gang=st.booleans())
def test_work_is_conserved(seed: int, rate: float, gang: bool) -> None:
    pools = {name: replace(pool, losses_per_hour=rate, gang=gang and name == "train") for name, pool in RISKY.items()}
    outcome = simulate(WORK, pools, ours(pools), seed=seed)
    assert outcome.asked_s == pytest.approx(sum(one.node_s for one in WORK))
    assert outcome.done_s - outcome.lost_s == pytest.approx(outcome.asked_s)
    assert outcome.hours * 3600 >= sum(one.tail_s for one in WORK) + 10 * 3600


def test_seeds_are_reproducible_and_differ() -> None:
    first, again, other = (simulate(WORK, RISKY, ours(RISKY), seed=seed) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_policies_are_ordered_as_prices_say() -> None:
    """Means of ten seeds: phased spot < static spot < static on-demand in dollars; static on-demand is the fastest."""

    def mean(make: Callable[[], PoolPolicy]) -> tuple[float, float]:
        runs = [simulate(WORK, RISKY, make(), seed=seed) for seed in range(10)]
        return sum(run.total_usd for run in runs) / 10, sum(run.hours for run in runs) / 10

    static, spot, phased = (
        mean(lambda: StaticPolicy(shapes_of(RISKY))),
        mean(lambda: StaticPolicy(shapes_of(RISKY), Market.SPOT)),
        mean(lambda: ours(RISKY)),
    )
    assert phased[0] < spot[0] < static[0]
    assert static[1] < min(spot[1], phased[1])
    assert phased[1] < spot[1], "falling back to on-demand beats waiting for spot"


def test_more_losses_cost_more_hours() -> None:
    def hours(rate: float) -> float:
        pools = {name: replace(pool, losses_per_hour=rate) for name, pool in SAFE.items()}
        return sum(simulate(WORK, pools, ours(pools), seed=seed).hours for seed in range(10))

    assert hours(0.0) < hours(0.3) < hours(2.0)


class Nothing:
    """A policy that wants no replica."""

    def decide(self, situation: Situation) -> Decision:
        return Decision({})

    def lost(self, pool: str, *, at_s: float) -> None: ...


def test_runs_that_can_not_end_are_refused() -> None:
    with pytest.raises(ConfigError, match="starves"):
        simulate(WORK, SAFE, Nothing(), seed=0)
    with pytest.raises(ConfigError, match="does not end"):
        simulate((SimulatedPhase("long", "weak", node_s=1e9),), SAFE, StaticPolicy(shapes_of(SAFE)), seed=0, limit_h=10)
    with pytest.raises(ConfigError, match="not described"):
        simulate((SimulatedPhase("x", "other", node_s=1.0),), SAFE, StaticPolicy(shapes_of(SAFE)), seed=0)
