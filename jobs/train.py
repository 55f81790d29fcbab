"""`coevo train`: fine-tuning of every arm and seed, by LoRA or of all weights."""

from __future__ import annotations

from coevo.records import Adapter
from jobs.billing import training_held
from jobs.context import RunContext, StageResult
from jobs.dataset import require_arms
from jobs.training import train_adapter
from jobs.tune import chosen_rates

__all__ = ["adapters", "main"]

STAGE = "train"


def adapters(context: RunContext) -> list[Adapter]:
    """One adapter per arm and seed; those whose manifest is stored are not trained again. Closes the stage with its bill."""
    rates, seeds = chosen_rates(context), context.config.train.seeds
    wanted = [(arm, rate, seed) for arm, rate in rates.items() for seed in seeds]
    trained: list[tuple[Adapter, float]] = []
    for arm, rate, seed in wanted:
        trained.append(train_adapter(context, arm, seed=seed, learning_rate=rate))
        context.progress(len(trained), len(wanted))
        if context.engaged:
            context.serving.metrics.training(len(trained), len(wanted))
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


def main(context: RunContext) -> StageResult:
    """Train and tell the losses."""
    require_arms(context.config)
    lines = (
        f"{one.model_id} ({one.arm}, seed {one.seed}): {one.rows} rows, {one.trained_tokens} trained tokens, {one.steps} steps, "
        f"loss {one.metrics.get('loss_first', float('nan')):.3f} -> {one.metrics.get('loss_last', float('nan')):.3f}"
        for one in adapters(context)
    )
    return StageResult(STAGE, tuple(lines))
