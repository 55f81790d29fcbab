"""The policy at the wheel of a pool, and what the pool's processes come to on the bill.

1. Between phases of the plan a pool goes to zero, comes back for the next phase, and early when the end of the phase is foreseen.
2. Whoever needs the pool now gets it, whatever the plan says.
3. Losses of serving replicas change what the next ones ask for, failed starts do not.
4. Held seconds are sampled: reserved share times price, over the life of each process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.cost import HeldMeter, process_rate
from cluster.pool_driver import DrivenPool, PoolDriver, living
from cluster.pool_policy import PhasedPolicy, PolicySettings
from coevo.config import PlacementConfig, parse_config
from coevo.errors import BudgetExceeded, ConfigError
from coevo.prices import Market, load_prices
from coevo.store import LocalStore
from coevo.store.artifacts import Held
from coevo.store.ledger import Budget, Ledger, Spend
from jobs.billing import Billing, estimated_usd, require_prices, training_held
from jobs.phases import RUN_PHASES, phase_policy, phases_of
from jobs.run import PHASES

SHEET = load_prices()


@dataclass
class Pool:
    """A pool whose replicas are up at once."""

    replicas: int = 2
    scaled: list[int] = field(default_factory=list)
    placed: list[dict[str, float]] = field(default_factory=list)
    waits: int = 0
    failures: list[Any] = field(default_factory=list)

    def scale(self, replicas: int) -> None:
        self.replicas = replicas
        self.scaled.append(replicas)

    def place_next(self, resources: Mapping[str, float]) -> None:
        self.placed.append(dict(resources))

    def wait_ready(self, *, timeout_s: float | None = None) -> None:
        self.waits += 1

    def stats(self) -> Any:
        up = [SimpleNamespace(state="ready", pid=1, started_at=0.0) for _ in range(self.replicas)]
        gone = [SimpleNamespace(state="retired", pid=1, started_at=0.0)]
        return SimpleNamespace(replicas=(*up, *gone), ready=len(up), failures=tuple(self.failures))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def number(name: str) -> int:
    return [phase.name for phase in phases_of(parse_config({"name": "x"}))].index(name)


def driven(market: str = "on_demand", **settings: Any) -> tuple[PoolDriver, Pool, Clock]:
    config = parse_config({"name": "x", "cluster": {"pools": {"weak": {"startup_s": 100, "market": market}}}})
    policy = phase_policy(config)
    policy = PhasedPolicy(policy.phases, policy.shapes, PolicySettings(use_spot=market == "spot", **settings))
    clock, pool = Clock(), Pool()
    driver = PoolDriver(policy, period_s=3600.0, clock=clock)
    known = {Market.SPOT: {"spot": 1.0}, Market.ON_DEMAND: {"on-demand": 1.0}}
    driver.add("weak", DrivenPool(pool, 2, Market(market), known))
    return driver, pool, clock


def test_phases_are_those_of_the_run() -> None:
    assert [phase.name for phase in RUN_PHASES] == [main.__module__.rpartition(".")[2] for _, main in PHASES]


def test_learning_rates_are_a_phase_only_with_a_grid() -> None:
    """Else the engines would be kept between rows and training, for nothing."""
    tuned = parse_config({"name": "x", "train": {"learning_rates": [1e-4, 1e-3]}})
    assert phases_of(tuned) == RUN_PHASES
    assert [one.name for one in RUN_PHASES if one not in phases_of(parse_config({"name": "x"}))] == ["tune"]


def test_zero_between_phases_and_back() -> None:
    driver, pool, _ = driven()
    for name in ("rewrite", "dataset", "train", "publish", "evaluate", "report"):
        driver.enter(number(name))
    driver.close()
    assert pool.scaled == [0, 2, 0], "zero for rows and training, back to measure, zero at the end"
    assert pool.placed == [], "the market never changed"


def test_a_foreseen_end_starts_the_pool_early() -> None:
    """Two of four trainings took 200 s each: 400 s are left, and 120 s before the end the pool is asked for."""
    driver, pool, clock = driven()
    driver.enter(number("train"))
    clock.now = 400.0
    driver.progress(2, 4)
    driver.look()
    assert pool.scaled == [0]
    clock.now = 679.0
    driver.look()
    assert pool.scaled == [0]
    clock.now = 681.0
    driver.look()
    assert pool.scaled == [0, 2]
    driver.close()


def test_who_needs_the_pool_gets_it_until_the_next_phase() -> None:
    driver, pool, _ = driven()
    driver.enter(number("train"))
    driver.require("weak")
    driver.look()
    assert (pool.scaled, pool.waits) == ([0, 2], 1)
    driver.enter(number("train"))
    assert pool.scaled == [0, 2, 0]
    driver.close()


def test_without_a_plan_the_pool_stays() -> None:
    driver, pool, _ = driven()
    driver.look()
    driver.enter(None)
    driver.require("weak")
    driver.close()
    assert pool.scaled == []


def test_losses_change_the_market_of_the_next_replicas() -> None:
    driver, pool, clock = driven("spot", loss_limit=2, on_demand_hold_s=50.0)
    driver.enter(number("rollout"))
    pool.failures += [SimpleNamespace(reason="start failed: no memory", at=float(n)) for n in (1, 2, 3)]
    driver.look()
    assert pool.placed == []
    pool.failures += [SimpleNamespace(reason="process died: the node is gone", at=float(n)) for n in (4, 5)]
    pool.replicas = 0
    driver.look()
    assert pool.placed == [{"on-demand": 1.0}]
    clock.now = 60.0
    driver.look()
    assert pool.placed == [{"on-demand": 1.0}, {"spot": 1.0}], "after the hold spot is tried again"
    driver.close()


def test_held_seconds_and_dollars() -> None:
    placement = PlacementConfig(num_gpus=2, num_cpus=8, instance_type="p5.48xlarge", market="spot")
    rate = process_rate(placement, SHEET, num_cpus=1.0, where="cluster.pools.weak")
    clock, pool = Clock(), Pool(replicas=0)
    meter = HeldMeter(rate, lambda: living(pool.stats()), clock=clock)
    pool.replicas = 2
    meter.sample()
    clock.now = 1800.0
    assert meter.read() == Held(2 * 2 * 1800.0, 2 * 8 * 1800.0, pytest.approx(2 * 0.25 * 25 * 0.5))
    pool.replicas = 0
    meter.sample()
    clock.now = 9999.0
    assert meter.read().gpu_s == 7200.0, "nothing is held after the end"


def test_a_bill_is_split_among_stages_and_the_ledger() -> None:
    placement = {"num_gpus": 1, "instance_type": "g6.xlarge", "tokens_per_s": 1000.0}
    billing = Billing(parse_config({"name": "x", "cluster": {"pools": {"weak": placement}}}))
    assert billing.held() == Held(0.0, 0.0, 0.0, None)
    billing.bought([Spend(), Spend(usd=0.5, tokens=10), Spend(usd=None, tokens=10)])
    assert billing.close_stage().expert_usd == 0.5
    billing.bought([Spend(usd=0.25, tokens=10)])
    assert billing.close_stage().expert_usd == 0.25
    assert billing.due_usd() == 0.0
    assert billing.estimate_usd(3_600_000) == pytest.approx(SHEET.instance("g6.xlarge").on_demand)
    unpriced = Billing(parse_config({"name": "x"}))
    assert (unpriced.due_usd(), unpriced.estimate_usd(5), unpriced.held().usd) == (None, None, None)


def test_training_is_paid_by_worker() -> None:
    pools = {"train": {"num_gpus": 4, "instance_type": "p5.48xlarge"}}
    config = parse_config({"name": "x", "train": {"workers": 2}, "cluster": {"pools": pools}})
    held = training_held(config, SHEET, seconds=3600.0)
    assert (held.gpu_s, held.usd) == (8 * 3600.0, pytest.approx(55.0))


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({}, r"cluster\.pools\.weak has no instance_type and no tokens_per_s"),
        ({"weak": {"instance_type": "g6.xlarg"}}, r"did you mean 'g6\.xlarge'"),
        ({"weak": {"instance_type": "g6.xlarge"}}, r"no share.*0 GPUs"),
        ({"weak": {"instance_type": "g6.xlarge", "num_gpus": 2}}, r"more than all"),
        ({"weak": {"instance_type": "owned"}}, r"cluster\.pools\.train has no"),
    ],
)
def test_a_dollar_budget_without_prices_is_refused(cluster: dict[str, Any], message: str) -> None:
    config = parse_config({"name": "x", "budget": {"usd": 5}, "cluster": {"pools": cluster}})
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        require_prices(config)


def test_hardware_of_ones_own_counts_at_no_price() -> None:
    pools = {"weak": {"instance_type": "owned"}, "train": {"instance_type": "owned"}}
    config = parse_config({"name": "x", "budget": {"usd": 5}, "cluster": {"pools": pools}})
    require_prices(config)
    rate = process_rate(config.cluster.pools.weak, SHEET, num_cpus=1.0, where="weak")
    assert estimated_usd(rate, config.cluster.pools.weak, 1e9) == 0.0


def test_a_dollar_budget_stops_the_run(tmp_path: Path) -> None:
    """I10: what is held is estimated from tokens, what is paid is measured; the next reservation that does not fit is refused."""
    placement = {"num_gpus": 1, "instance_type": "g6.xlarge", "tokens_per_s": 1000.0}
    billing = Billing(parse_config({"name": "x", "cluster": {"pools": {"weak": placement}}}))
    ledger = Ledger(LocalStore(tmp_path), budget=Budget(usd=1.0), prefix="x")
    clock, hour = Clock(), 3_600_000
    billing.watch(lambda: 1, clock=clock).sample()
    with ledger.reservation("rollout/a", estimate=Spend(usd=billing.estimate_usd(hour))) as paid:
        clock.now = 1800.0
        paid.add(Spend(usd=billing.due_usd()))
    assert ledger.spent.usd == pytest.approx(0.4)
    with pytest.raises(BudgetExceeded):
        ledger.reserve("rollout/b", estimate=Spend(usd=billing.estimate_usd(hour)))
    assert ledger.affords(Spend(usd=billing.estimate_usd(hour // 2)))
