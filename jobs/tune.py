"""`coevo tune`: the learning rate of every arm, chosen from one grid by the success of its adapters under the evolved harness.

A rate that suits one arm can ruin another, so a comparison of arms at one rate compares rates too. Every arm is trained at every rate of
`train.learning_rates` with the run's first training seed and measured on the same fresh instances of the selection stream, which no other
stage takes. Without a grid every arm gets `train.learning_rate`, and nothing is played.
"""

from __future__ import annotations

from collections.abc import Mapping

from coevo.config import Arm
from coevo.evaluate.grid import Cell, best_rate
from coevo.identity import content_hash
from coevo.records import Measurement
from coevo.report.facts import TunedRate
from coevo.store.artifacts import StageManifest
from jobs.billing import training_held
from jobs.canary import published
from jobs.context import RunContext, StageResult
from jobs.dataset import data_hash, dataset_manifest
from jobs.evolve import evolved_harness
from jobs.measuring import grid_table, measure_cells, read_measurements, write_measurements
from jobs.streams import tuning_items
from jobs.training import train_adapter

__all__ = ["chosen_rates", "main", "tuning"]

STAGE = "tune"


def chosen_rates(context: RunContext) -> dict[Arm, float]:
    """Arm -> learning rate; trained and measured when the stage is not closed."""
    chosen = {Arm(one.arm): one.learning_rate for one in tuning(context) if one.chosen}
    return chosen or dict.fromkeys(context.config.dataset.arms, context.config.train.learning_rate)


def tuning(context: RunContext) -> list[TunedRate]:
    """Every arm at every rate; nothing without a grid or without arms."""
    if not context.config.train.learning_rates or not context.config.dataset.arms:
        return []
    measured = {one.name: one for one in read_measurements(context, _manifest(context))}
    chosen = _choice(context, measured)
    return [
        TunedRate(arm=arm, learning_rate=rate, chosen=rate == best, measurement=measured[_cell_name(arm, rate)])
        for arm, best in chosen.items()
        for rate in context.config.train.learning_rates
    ]


def _choice(context: RunContext, measured: Mapping[str, Measurement]) -> dict[Arm, float]:
    rates = context.config.train.learning_rates
    return {arm: best_rate({rate: measured[_cell_name(arm, rate)] for rate in rates}) for arm in context.config.dataset.arms}


def _cell_name(arm: Arm, rate: float) -> str:
    return f"{arm}/h* at {rate}"


def _manifest(context: RunContext) -> StageManifest:
    config, items, best, rows = context.config, tuning_items(context), evolved_harness(context), dataset_manifest(context)
    arms, rates, seed = config.dataset.arms, config.train.learning_rates, config.train.seeds[0]
    inputs = {
        "h*": best.hash,
        "base": context.weak_model_id,
        "items": content_hash(list(items)),
        "rows": content_hash([data_hash(rows, arm) for arm in arms]),
    }
    settings = {"sampling": context.sampling, "train": config.train.model_dump(exclude={"seeds", "learning_rate"}), "seed": seed}
    done = context.finished(STAGE, inputs, settings)
    if done is not None:
        return done
    writer = context.writer(STAGE, inputs, settings, expected=0)
    trained = {(arm, rate): train_adapter(context, arm, seed=seed, learning_rate=rate) for arm in arms for rate in rates}
    measured = {}
    for (arm, rate), (adapter, _) in trained.items():
        cell = Cell(_cell_name(arm, rate), context.agent(published(context, adapter), best), "merged", seed)
        measured[cell.name] = measure_cells(context, [cell], items, STAGE)[0]
    chosen = _choice(context, measured)
    for (arm, rate), (_, seconds) in trained.items():
        if rate != chosen[arm]:  # the chosen one is on the bill of `train`
            writer.spend(held=training_held(config, context.billing.sheet, seconds=seconds))
    return write_measurements(writer, list(measured.values()))


def main(context: RunContext) -> StageResult:
    """Choose, and tell what was measured."""
    rates, measured = chosen_rates(context), tuning(context)
    if measured:
        cells = [one.measurement for one in measured]
        context.display.table("success on fresh selection instances", *grid_table(cells, context.config.evaluate.level))
    why = "best on the selection stream" if measured else "train.learning_rate; no grid in train.learning_rates"
    return StageResult(STAGE, tuple(f"{arm}: learning rate {rate:g} ({why})" for arm, rate in rates.items()))
