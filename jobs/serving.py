"""What a run needs of the cluster: the Ray session, the pool, two executors, the trainer.

The pool starts when first used and serves one model at a time. Where engines and trainers do not fit side by side
(`cluster.release_engines`), the engines stop before training starts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.bulk import BulkOptions
from cluster.dispatch import ActorOptions
from cluster.engines.family import EngineConfig, EngineKind
from cluster.executor import ActorExecutor, RayDataExecutor
from cluster.metrics import RunMetrics
from cluster.notices import WatchPlan, notice_source
from cluster.placement import worker_bundle
from cluster.pool_driver import DrivenPool, PoolDriver, living
from cluster.pool_model import PoolSource
from cluster.publish import PoolPublisher
from cluster.servers import ModelPool, PoolConfig, PoolStats
from cluster.session import SessionConfig, open_session
from cluster.spot import SpotWatch
from cluster.stores import open_source
from cluster.training import RayLoraTrainer, scratch_of
from coevo.config import ExpertPoolConfig, PlacementConfig, WeakConfig
from coevo.fanout import FanoutPolicy
from coevo.models.recorded import RecordedPublisher, RecordedSource, RecordingPublisher, RecordingSource
from coevo.ports import Executor, ModelSource, Publisher, StoreSource
from coevo.prices import Market
from jobs.billing import expert_rate
from jobs.expert_pool import expert_pool_config
from jobs.phases import phase_policy

if TYPE_CHECKING:
    from jobs.context import RunContext

__all__ = ["Serving", "engine_config", "engine_kind", "process_needs", "scratch_folder", "trainer"]

INSTALL_RECORD = "coevo-install.json"
WEAK_POOL = "weak"


def engine_kind(choice: str) -> tuple[EngineKind, str]:
    """The engine and why: the configured one, or what the installation found to work on this machine."""
    if choice != "auto":
        return EngineKind(choice), "configured"
    record = Path(sys.prefix) / INSTALL_RECORD
    if not record.is_file():
        return EngineKind.VLLM, "no installation record"
    facts = json.loads(record.read_text(encoding="utf-8"))
    return EngineKind(facts["engine"]), str(facts.get("reason", "installation record"))


def engine_config(served: WeakConfig | ExpertPoolConfig, *, path: str, model_id: str, seed: int) -> EngineConfig:
    """The engine of one model in a run, as its section says."""
    return EngineConfig(
        model_path=path,
        model_id=model_id,
        kind=engine_kind(served.engine)[0],
        dtype=served.dtype,
        max_model_len=served.max_model_len,
        max_num_seqs=served.max_num_seqs,
        kv_cache_bytes=served.kv_cache_mib << 20,
        seed=seed,
    )


def process_needs(placement: PlacementConfig, num_cpus: float) -> dict[str, Any]:
    """What a pool or executor passes on to Ray for each of its processes."""
    return {
        "num_cpus": num_cpus if placement.num_cpus is None else placement.num_cpus,
        "num_gpus": placement.num_gpus,
        "memory_bytes": int(placement.memory_gib * (1 << 30)),
        "resources": dict(placement.resources),
        "spread": placement.spread is not False,
    }


def _tell_scale(context: RunContext, pool: str, replicas: int) -> None:
    context.display.note(f"pool {pool}: {replicas} replicas")


def scratch_folder(context: RunContext) -> Path:
    """Where framework checkpoints and merged folders live while a run needs them: beside a local store, else in the working folder."""
    root = context.store_source.uri.removeprefix("file://") if context.store_source.uri.startswith("file://") else "."
    return Path(root) / context.run / "scratch"


def trainer(context: RunContext) -> RayLoraTrainer:
    """The trainer; it needs an open session only for jobs whose adapter is not stored."""
    cluster = context.config.cluster
    scratch, filesystem = scratch_of(context.store_source, f"{context.run}/scratch/train")
    return RayLoraTrainer(
        store=context.store_source,
        scratch=scratch,
        filesystem=filesystem,
        use_gpu=cluster.pools.train.num_gpus > 0,
        resources_per_worker=worker_bundle(cluster.pools.train),
        spread=cluster.pools.train.spread is True,
        min_workers=cluster.min_train_workers,
    )


class Serving:
    """See the module docstring. Use `Serving.open`."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._pool: ModelPool | None = None
        self._told: set[str] = set()
        self._expert: ModelPool | None = None

    @classmethod
    @contextmanager
    def open(cls, context: RunContext) -> Iterator[Serving]:
        """Start or join Ray for the duration of the block."""
        cluster = context.config.cluster
        source = notice_source(cluster.spot)
        plan = WatchPlan(source, cluster.spot.period_s, cluster.spot.on_rebalance) if source is not None else None
        with open_session(SessionConfig(address=cluster.address or "", num_cpus=cluster.cpus)), SpotWatch(plan):
            serving = cls(context)
            try:
                yield serving
            finally:
                serving.rest()

    @property
    def weak(self) -> ModelSource:
        """The weak model: its pool, recorded on the way where a recording is configured, or the recording itself."""
        context = self._context
        folder = self._recording
        if folder is not None and context.config.weak.engine == "recorded":
            return RecordedSource(folder, context.weak_model_id)
        pool = self.model(context.weak_path, context.weak_model_id)
        return pool if folder is None else RecordingSource(pool, folder)

    @property
    def _recording(self) -> StoreSource | None:
        """The folder to record to, or to answer from."""
        recording = self._context.config.weak.recording
        return None if recording is None else open_source(recording)

    def model(self, path: str, model_id: str) -> PoolSource:
        """The pool, serving exactly this model."""
        return self.pool(path, model_id).source()

    def pool(self, path: str, model_id: str) -> ModelPool:
        """As `model`, the pool itself: started when there is none, else its weights are swapped in place on every replica."""
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

    def stop_pool(self) -> None:
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

    @property
    def publisher(self) -> Publisher:
        """Publishes adapters merged into the base, each in a pool of its own; recorded or from the recording, as the weak model is."""
        context, folder = self._context, self._recording
        if folder is not None and context.config.weak.engine == "recorded":
            return RecordedPublisher(folder)
        scratch = scratch_folder(context) / "publish"
        needs = dict(context.config.cluster.pools.train.resources)
        pools = PoolPublisher(store=context.store_source, base_path=context.weak_path, scratch=str(scratch), serve=self.pool, needs=needs)
        return pools if folder is None else RecordingPublisher(pools, folder)

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

    @cached_property
    def small(self) -> Executor:
        """Long-lived workers for the many small batches of a search."""
        config = self._context.config
        options = ActorOptions(actors=config.rollout.workers, **process_needs(config.cluster.pools.rollout, 0.5))
        return ActorExecutor(self._policy(), options)

    @cached_property
    def bulk(self) -> Executor:
        """Executor of the bulk stages."""
        rollout = self._context.config.rollout
        if self._context.config.cluster.bulk == "actors":
            return self.small
        asks = process_needs(self._context.config.cluster.pools.rollout, 0.5)
        return RayDataExecutor(self._policy(), BulkOptions(actors=rollout.workers, block_rows=8, **asks))

    def rest(self) -> None:
        """Close pool and executors."""
        for name in ("small", "bulk"):
            executor = self.__dict__.pop(name, None)
            if executor is not None:
                executor.close()
        self.stop_pool()
        driver = self.__dict__.pop("driver", None)
        if driver is not None:
            driver.close()

    def _policy(self) -> FanoutPolicy:
        rollout = self._context.config.rollout
        return FanoutPolicy(
            concurrency=rollout.concurrency,
            tries=rollout.tries,
            item_deadline_s=rollout.episode_deadline_s,
            stage_deadline_s=rollout.stage_deadline_s,
            breaker_patience_s=rollout.outage_patience_s,
        )
