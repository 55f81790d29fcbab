"""`coevo train`: fine-tuning of every arm and seed, by LoRA or of all weights."""

from __future__ import annotations

import time

from coevo.identity import content_hash
from coevo.ports import TrainingJob
from coevo.records import Adapter
from coevo.store.ledger import Spend
from jobs.billing import training_held, training_usd
from jobs.context import RunContext, StageResult
from jobs.dataset import data_hash, dataset_manifest

__all__ = ["adapters", "main"]

STAGE = "train"


def adapters(context: RunContext) -> list[Adapter]:
    """One adapter per arm and seed; those whose manifest is stored are not trained again. Closes the stage with its bill."""
    manifest, config = dataset_manifest(context), context.config
    settings = config.train.model_dump(exclude={"seeds"})
    trained: list[tuple[Adapter, float]] = []
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
            wanted = len(config.dataset.arms) * len(config.train.seeds)
            context.progress(len(trained), wanted)
            if context.engaged:
                context.serving.metrics.training(len(trained), wanted)
    _close(context, trained)
    return [adapter for adapter, _ in trained]


def _close(context: RunContext, trained: list[tuple[Adapter, float]]) -> None:
    """The manifest of the stage: which adapters, and what their workers held."""
    inputs = {f"{one.arm}-{one.seed}": one.weights_hash for one, _ in trained}
    if context.finished(STAGE, inputs, None) is not None:
        return
    writer = context.writer(STAGE, inputs, None, expected=len(trained))
    writer.wrote(len(trained))
    for _, seconds in trained:
        writer.spend(held=training_held(context.config, context.billing.sheet, seconds=seconds))
    writer.commit()


def _train(context: RunContext, job: TrainingJob) -> tuple[Adapter, float]:
    """Train one job, paid from the budget; the adapter and the seconds that its workers took. A stored one needs neither Ray nor torch."""
    manifest = f"{job.output_prefix}/manifest.json"
    if context.store.head(manifest) is not None:
        adapter = Adapter.from_bytes(context.store.get(manifest))
        return adapter, adapter.metrics.get("seconds", 0.0)
    from jobs.serving import trainer

    if context.config.cluster.release_engines:
        context.serving.rest()
    else:
        context.serving  # noqa: B018 - training needs the session
    context.display.note(f"training {job.arm}, seed {job.seed}")
    config, sheet = context.config, context.billing.sheet
    estimate = Spend(usd=training_usd(config, sheet))
    with context.ledger.reservation(f"{STAGE}/{content_hash(job.output_prefix.encode())[:16]}", estimate=estimate) as paid:
        started = time.monotonic()
        adapter = trainer(context).train(job)
        seconds = max(time.monotonic() - started, adapter.metrics.get("seconds", 0.0))
        paid.add(Spend(usd=training_held(config, sheet, seconds=seconds).usd))
    return adapter, seconds


def main(context: RunContext) -> StageResult:
    """Train and tell the losses."""
    lines = (
        f"{one.model_id} ({one.arm}, seed {one.seed}): {one.rows} rows, {one.trained_tokens} trained tokens, {one.steps} steps, "
        f"loss {one.metrics.get('loss_first', float('nan')):.3f} -> {one.metrics.get('loss_last', float('nan')):.3f}"
        for one in adapters(context)
    )
    return StageResult(STAGE, tuple(lines))
