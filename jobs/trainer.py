"""The trainer of a run, and where its scratch lies."""

from __future__ import annotations

from pathlib import Path

from cluster.placement import worker_bundle
from cluster.training import RayLoraTrainer, scratch_of
from jobs.context import RunContext

__all__ = ["scratch_folder", "trainer"]


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
        in_process=cluster.train_in_driver,
    )
