"""`coevo evaluate`: the grid on the test stream, opened once, after the last decision."""

from __future__ import annotations

from coevo.evaluate.grid import Cell, compare_cells
from coevo.evolve.tiers import read_openings
from coevo.identity import content_hash
from coevo.records import Comparison, Measurement
from coevo.store.artifacts import StageManifest
from jobs.canary import published
from jobs.context import RunContext, StageResult
from jobs.evolve import evolved_harness
from jobs.measuring import base_cells, grid_table, measure_cells, read_measurements, write_measurements
from jobs.streams import open_test, sealed_digest
from jobs.train import adapters

__all__ = ["comparisons", "grid", "main"]

STAGE = "evaluate"


def grid(context: RunContext) -> list[Measurement]:
    """Measurements of all cells; played when the stage is not closed."""
    return read_measurements(context, _manifest(context))


def comparisons(context: RunContext) -> list[Comparison]:
    """The stated pairs of cells."""
    by_name: dict[str, list[Measurement]] = {}
    for one in grid(context):
        by_name.setdefault(one.name, []).append(one)
    return compare_cells(by_name, level=context.config.evaluate.level, seed=context.config.seed)


def _manifest(context: RunContext) -> StageManifest:
    trained = adapters(context)
    best = evolved_harness(context)
    models = [one.model_id for one in trained]
    inputs = {
        "h0": context.base_harness.hash,
        "h*": best.hash,
        "base": context.weak_model_id,
        "items": sealed_digest(context),
        "models": content_hash(models),
    }
    under_h0 = context.config.evaluate.under_h0
    settings: dict[str, object] = {"sampling": context.sampling, "expert": context.expert_identity}
    if under_h0 is not None:
        settings["under_h0"] = under_h0
    done = context.finished(STAGE, inputs, settings)
    if done is not None:
        return done
    writer = context.writer(STAGE, inputs, settings, expected=0)
    cells = base_cells(context)
    known = {cell.agent.model.model_id for cell in cells}
    items = open_test(context, stage=STAGE, harnesses=(context.base_harness.hash, best.hash), models=(*known, *models))
    measured = measure_cells(context, cells, items, STAGE)
    for adapter in trained:
        source = published(context, adapter)
        harnesses = {"h0": context.base_harness, "h*": best}
        if under_h0 is not None and adapter.arm not in under_h0:
            del harnesses["h0"]
        cells = [Cell(f"{adapter.arm}/{name}", context.agent(source, one), "merged", adapter.seed) for name, one in harnesses.items()]
        measured += measure_cells(context, cells, items, STAGE)
    return write_measurements(writer, measured)


def main(context: RunContext) -> StageResult:
    """Measure, compare, and print the grid."""
    measured = grid(context)
    context.display.table("success on the test stream", *grid_table(measured, context.config.evaluate.level))
    lines = [
        f"{one.b} - {one.a}: {one.delta:+.3f} [{one.low:+.3f}, {one.high:+.3f}], {one.discordant} of {one.pairs} pairs differ, "
        f"p {one.p_value:.2g}: {one.verdict}"
        for one in comparisons(context)
    ]
    opened = [f"the test stream was opened by {one.words}" for one in read_openings(context.store, context.run)]
    return StageResult(STAGE, (*lines, *opened))
