"""What a run needs of the cluster: the Ray session, the pools, two executors, the publisher.

Where engines and trainers do not fit side by side (`cluster.release_engines`), the engines stop before training starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from cluster.bulk import BulkOptions
from cluster.dispatch import ActorOptions
from cluster.executor import ActorExecutor, RayDataExecutor
from cluster.notices import WatchPlan, notice_source
from cluster.placement import process_needs
from cluster.pool_model import PoolSource
from cluster.publish import PoolPublisher
from cluster.session import SessionConfig, open_session
from cluster.spot import SpotWatch
from cluster.stores import open_source
from coevo.fanout import FanoutPolicy
from coevo.models.recorded import RecordedPublisher, RecordedSource, RecordingPublisher, RecordingSource
from coevo.ports import Executor, ModelSource, Publisher, StoreSource
from jobs.pools import Pools
from jobs.trainer import scratch_folder

if TYPE_CHECKING:
    from jobs.context import RunContext

__all__ = ["Serving"]


class Serving(Pools):
    """See the module docstring. Use `Serving.open`."""

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
        """The weak model's pool, serving exactly this model."""
        return self.pool(path, model_id).source()

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
        self.close()

    def _policy(self) -> FanoutPolicy:
        rollout = self._context.config.rollout
        return FanoutPolicy(
            concurrency=rollout.concurrency,
            tries=rollout.tries,
            item_deadline_s=rollout.episode_deadline_s,
            stage_deadline_s=rollout.stage_deadline_s,
            breaker_patience_s=rollout.outage_patience_s,
        )
