"""`coevo train`: LoRA fine-tuning of every arm and seed."""

from __future__ import annotations

from coevo.ports import TrainingJob
from coevo.records import Adapter
from jobs.context import RunContext, StageResult
from jobs.dataset import data_hash, dataset_manifest

__all__ = ["adapters", "main"]

STAGE = "train"


def adapters(context: RunContext) -> list[Adapter]:
    """One adapter per arm and seed; those whose manifest is stored are not trained again."""
    manifest, config = dataset_manifest(context), context.config
    settings = config.train.model_dump(exclude={"seeds"})
    trained = []
    for arm in config.dataset.arms:
        for seed in config.train.seeds:
            key = context.key(STAGE, {"rows": data_hash(manifest, arm), "base": context.weak_model_id}, {**settings, "seed": seed})
            job = TrainingJob(
                base_model_id=context.weak_model_id,
                base_path=context.weak_path,
                arm=arm,
                rows_key=manifest.output(arm).key,
                data_hash=data_hash(manifest, arm),
                seed=seed,
                output_prefix=key.prefix,
                settings=settings,
            )
            trained.append(_train(context, job))
    return trained


def _train(context: RunContext, job: TrainingJob) -> Adapter:
    """Train one job. A stored adapter needs neither Ray nor torch."""
    manifest = f"{job.output_prefix}/manifest.json"
    if context.store.head(manifest) is not None:
        return Adapter.from_bytes(context.store.get(manifest))
    from jobs.serving import trainer

    if context.config.cluster.release_engines:
        context.serving.rest()
    else:
        context.serving  # noqa: B018 - training needs the session
    context.display.note(f"training {job.arm}, seed {job.seed}")
    return trainer(context).train(job)


def main(context: RunContext) -> StageResult:
    """Train and tell the losses."""
    lines = (
        f"{one.model_id} ({one.arm}, seed {one.seed}): {one.rows} rows, {one.trained_tokens} trained tokens, {one.steps} steps, "
        f"loss {one.metrics.get('loss_first', float('nan')):.3f} -> {one.metrics.get('loss_last', float('nan')):.3f}"
        for one in adapters(context)
    )
    return StageResult(STAGE, tuple(lines))
