"""One adapter: trained from an arm's rows, paid from the budget, stored under the hash of what it is made from."""

from __future__ import annotations

import time

from coevo.config import Arm
from coevo.identity import content_hash
from coevo.ports import TrainingJob
from coevo.records import Adapter
from coevo.store.ledger import Spend
from jobs.billing import training_held, training_usd
from jobs.context import RunContext
from jobs.dataset import data_hash, dataset_manifest

__all__ = ["train_adapter"]

STAGE = "train"


def train_adapter(context: RunContext, arm: Arm, *, seed: int, learning_rate: float) -> tuple[Adapter, float]:
    """The adapter and the seconds that its workers took. A stored one is not trained again and needs neither Ray nor torch.

    Args:
        context: The run.
        arm: Whose rows.
        seed: Training seed.
        learning_rate: Peak rate.
    """
    manifest, config = dataset_manifest(context), context.config
    settings = {**config.train.model_dump(exclude={"seeds", "learning_rates"}), "learning_rate": learning_rate}
    rows = data_hash(manifest, arm)
    job = TrainingJob(
        base_model_id=context.weak_model_id,
        base_path=context.weak_path,
        arm=arm,
        rows_key=manifest.output(arm).key,
        data_hash=rows,
        seed=seed,
        output_prefix=context.key(STAGE, {"rows": rows, "base": context.weak_model_id}, {**settings, "seed": seed}).prefix,
        settings=settings,
    )
    stored = f"{job.output_prefix}/manifest.json"
    if context.store.head(stored) is not None:
        adapter = Adapter.from_bytes(context.store.get(stored))
        return adapter, adapter.metrics.get("seconds", 0.0)
    return _train(context, job)


def _train(context: RunContext, job: TrainingJob) -> tuple[Adapter, float]:
    from jobs.trainer import trainer

    if context.config.cluster.release_engines:
        context.serving.rest()
    else:
        context.serving  # noqa: B018 - training needs the session
    context.display.note(f"training {job.arm}, seed {job.seed}, learning rate {job.settings['learning_rate']:g}")
    config, sheet = context.config, context.billing.sheet
    estimate = Spend(usd=training_usd(config, sheet))
    with context.ledger.reservation(f"{STAGE}/{content_hash(job.output_prefix.encode())[:16]}", estimate=estimate) as paid:
        started = time.monotonic()
        adapter = trainer(context).train(job)
        seconds = max(time.monotonic() - started, adapter.metrics.get("seconds", 0.0))
        paid.add(Spend(usd=training_held(config, sheet, seconds=seconds).usd))
    return adapter, seconds
