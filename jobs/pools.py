"""The engines of a run: the weak model's pool, the expert's where it has one, and the driver that sizes and watches the first.

A pool starts when first used and serves one model at a time.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from cluster.engines.configured import engine_config, engine_kind
from cluster.metrics import RunMetrics
from cluster.placement import process_needs
from cluster.pool_driver import DrivenPool, PoolDriver, living
from cluster.servers import ModelPool, PoolConfig, PoolStats
from coevo.prices import Market
from jobs.billing import expert_rate
from jobs.expert_pool import expert_pool_config
from jobs.phases import phase_policy

if TYPE_CHECKING:
    from jobs.context import RunContext

__all__ = ["Pools"]

WEAK_POOL = "weak"


def _tell_scale(context: RunContext, pool: str, replicas: int) -> None:
    context.display.note(f"pool {pool}: {replicas} replicas")


class Pools:
    """See the module docstring."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._pool: ModelPool | None = None
        self._told: set[str] = set()
        self._expert: ModelPool | None = None

    def pool(self, path: str, model_id: str) -> ModelPool:
        """The pool, serving exactly this model: started when there is none, else its weights are swapped in place on every replica."""
        config = self._context.config
        if self._pool is None:
            kind, reason = engine_kind(config.weak.engine)
            self._context.display.note(f"starting {config.weak.replicas} {kind} engines for {model_id} ({reason})")
            engine = engine_config(config.weak, path=path, model_id=model_id, seed=config.seed)
            self._pool = ModelPool(
                PoolConfig(engine=engine, replicas=config.weak.replicas, **process_needs(config.cluster.pools.weak, 1.0))
            )
            self._take(self._pool)
            self._pool.start()
        self.driver.require(WEAK_POOL)
        if self._pool.model_id != model_id:
            self._context.display.note(f"swapping the engines' weights to {model_id}")
            self._pool.load_weights(path, model_id=model_id)
        return self._pool

    def start_expert(self) -> None:
        """Serve the expert, where it is a pool of the run's own; from then on its source finds it."""
        context = self._context
        if self._expert is not None or context.config.expert.kind != "pool":
            return
        settings = expert_pool_config(context.config)
        context.display.note(f"starting {settings.replicas} {settings.engine.kind} engines for the expert {settings.engine.model_id}")
        pool = ModelPool(settings)
        pool.start()
        self._expert = pool
        context.billing.watch(lambda: living(pool.stats()), rate=expert_rate(context.config, context.billing.sheet))

    def stop(self) -> None:
        """Give the engines' memory and cores back, the expert's too."""
        if self._expert is not None:
            self._expert.close()
            self._expert = None
        if self._pool is not None:
            self.driver.remove(WEAK_POOL)
            self._pool.close()
            self._pool = None

    def _take(self, pool: ModelPool) -> None:
        """Put the pool under the driver, and its held seconds on the run's bill."""
        context = self._context
        placement, market = context.config.cluster.pools.weak, Market(context.config.cluster.pools.weak.market)
        resources = {Market.SPOT: placement.resources, Market.ON_DEMAND: placement.on_demand_resources}
        known = {one: asked for one, asked in resources.items() if asked is not None} if placement.on_demand_resources else {}
        meter = context.billing.watch(lambda: living(pool.stats()))
        self.driver.add(WEAK_POOL, DrivenPool(pool, context.config.weak.replicas, market, known, meter))

    @cached_property
    def metrics(self) -> RunMetrics:
        """What Prometheus sees of the run."""
        return RunMetrics(self._context.run)

    def _show(self, pool: str, stats: PoolStats) -> None:
        context = self._context
        used = {one.health.stats.dtype for one in stats.replicas if one.health is not None and one.health.ready}
        for dtype in sorted(used - self._told):
            context.display.note(f"pool {pool} computes in {dtype}")
        self._told |= used
        self.metrics.pool(pool, stats)
        self.metrics.bill(context.billing.held(), phase=context.phase, budget_usd=context.config.budget.usd)

    @cached_property
    def driver(self) -> PoolDriver:
        """Sizes the pool by phase where `cluster.pool_policy` says so, and samples what it holds."""
        context, config = self._context, self._context.config
        policy = phase_policy(config) if config.cluster.pool_policy == "phased" else None
        told = partial(_tell_scale, context)
        driver = PoolDriver(policy, on_scale=told, on_look=self._show)
        driver.enter(context.phase)
        return driver

    def close(self) -> None:
        """Stop the engines, then their driver."""
        self.stop()
        driver = self.__dict__.pop("driver", None)
        if driver is not None:
            driver.close()
