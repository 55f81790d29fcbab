"""`coevo transfer`: weak model and expert under both harnesses on fresh selection instances: how far the evolved harness carries each."""

from __future__ import annotations

from coevo.evaluate.grid import compare_cells
from coevo.identity import content_hash
from coevo.records import Measurement
from jobs.context import RunContext, StageResult
from jobs.evolve import evolved_harness
from jobs.measuring import base_cells, grid_table, measure_cells, read_measurements, write_measurements
from jobs.streams import transfer_items

__all__ = ["main", "transfer"]

STAGE = "transfer"


def transfer(context: RunContext) -> list[Measurement]:
    """Measurements of base and expert under h0 and h*."""
    best = evolved_harness(context)
    items = transfer_items(context)
    inputs = {"h0": context.base_harness.hash, "h*": best.hash, "base": context.weak_model_id, "items": content_hash(list(items))}
    settings = {"sampling": context.sampling, "expert": context.expert_identity}
    manifest = context.finished(STAGE, inputs, settings)
    if manifest is None:
        writer = context.writer(STAGE, inputs, settings, expected=0)
        manifest = write_measurements(writer, measure_cells(context, base_cells(context), items, STAGE))
    return read_measurements(context, manifest)


def main(context: RunContext) -> StageResult:
    """Measure and compare."""
    measured = transfer(context)
    context.display.table("success on fresh selection instances", *grid_table(measured, context.config.evaluate.level))
    pairs = compare_cells({one.name: [one] for one in measured}, level=context.config.evaluate.level, seed=context.config.seed)
    return StageResult(
        STAGE, tuple(f"{one.b} - {one.a}: {one.delta:+.3f} [{one.low:+.3f}, {one.high:+.3f}]: {one.verdict}" for one in pairs)
    )
