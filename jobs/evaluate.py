"""`coevo evaluate`: the grid on the test stream, opened once, after the last decision."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from coevo.evaluate.grid import Cell, compare_cells, measure
from coevo.identity import content_hash
from coevo.records import Comparison, Measurement
from coevo.rollout import RolloutStage
from coevo.store.artifacts import StageManifest, StageWriter
from jobs.context import RunContext, StageResult
from jobs.evolve import evolved_harness
from jobs.publish import published
from jobs.streams import final_items
from jobs.train import adapters

__all__ = ["base_cells", "comparisons", "grid", "main", "measure_cells"]

STAGE = "evaluate"


def base_cells(context: RunContext) -> list[Cell]:
    """The weak model and the expert under both harnesses."""
    h0, best = context.base_harness, evolved_harness(context)
    form = "reference" if context.recipe is None else "remote"
    cells = []
    for name, bundle in (("h0", h0), ("h*", best)):
        cells.append(Cell(f"base/{name}", context.agent(context.weak_source, bundle), "base"))
        cells.append(Cell(f"expert/{name}", context.agent(context.expert_source(bundle), bundle), form))
    return cells


def grid(context: RunContext) -> list[Measurement]:
    """Measurements of all cells; played when the stage is not closed."""
    manifest = _manifest(context)
    return [Measurement.model_validate(one) for one in orjson.loads(context.store.get(manifest.output("grid").key))]


def comparisons(context: RunContext) -> list[Comparison]:
    """The stated pairs of cells."""
    by_name: dict[str, list[Measurement]] = {}
    for one in grid(context):
        by_name.setdefault(one.name, []).append(one)
    return compare_cells(by_name, level=context.config.evaluate.level, seed=context.config.seed)


def measure_cells(context: RunContext, cells: Sequence[Cell], items: Sequence[str], label: str) -> list[Measurement]:
    """Play every cell on the same items and measure from what was committed."""
    measured = []
    for cell in cells:
        stage = RolloutStage(cell.agent, context.store_source, context.run, f"{label} {cell.name}")
        report = context.fan_out(stage, items, bulk=True)
        context.check_owed(f"{label} {cell.name}", report)
        measured.append(measure(cell, items, context.episodes))
    return measured


def _manifest(context: RunContext) -> StageManifest:
    items = final_items(context)
    trained = adapters(context)
    best = evolved_harness(context)
    inputs = {
        "h0": context.base_harness.hash,
        "h*": best.hash,
        "base": context.weak_model_id,
        "items": content_hash(list(items)),
        "models": content_hash([one.model_id for one in trained]),
    }
    settings = {"sampling": context.sampling, "expert": context.expert_identity}
    done = context.finished(STAGE, inputs, settings)
    if done is not None:
        return done
    writer = context.writer(STAGE, inputs, settings, expected=0)
    measured = measure_cells(context, base_cells(context), items, STAGE)
    for adapter in trained:
        source = published(context, adapter)
        cells = [
            Cell(f"{adapter.arm}/{name}", context.agent(source, bundle), "merged", adapter.seed)
            for name, bundle in (("h0", context.base_harness), ("h*", best))
        ]
        measured += measure_cells(context, cells, items, STAGE)
    return write_measurements(writer, measured)


def write_measurements(writer: StageWriter, measured: Sequence[Measurement]) -> StageManifest:
    """Close a measuring stage: every (cell, item) is written or owed."""
    played = sum(len(row) for one in measured for row in one.success.values())
    owed = [(f"{one.name} {item}", 0) for one in measured for item in one.owed]
    writer.expected = played + len(owed)
    writer.wrote(played)
    for name, attempts in owed:
        writer.owe(name, attempts=attempts)
    writer.write_bytes("grid.json", orjson.dumps([one.model_dump(mode="json") for one in measured], option=orjson.OPT_SORT_KEYS))
    writer.spend(usage=(one.usage for one in measured))
    return writer.commit()


def main(context: RunContext) -> StageResult:
    """Measure, compare, and print the grid."""
    measured = grid(context)
    context.display.table("success on the test stream", *grid_table(measured, context.config.evaluate.level))
    lines = [
        f"{one.b} - {one.a}: {one.delta:+.3f} [{one.low:+.3f}, {one.high:+.3f}], {one.discordant} of {one.pairs} pairs differ, "
        f"p {one.p_value:.2g}: {one.verdict}"
        for one in comparisons(context)
    ]
    return StageResult(STAGE, tuple(lines))


def grid_table(measured: Sequence[Measurement], level: float) -> tuple[list[str], list[list[str]]]:
    """Header and rows: cell, success with its interval, episodes, owed, turns."""
    from coevo.evaluate.stats import wilson

    rows = []
    for one in measured:
        outcomes = [value for row in one.success.values() for value in row]
        interval = wilson(sum(outcomes), len(outcomes), level=level)
        seed = "" if one.training_seed is None else f" (seed {one.training_seed})"
        rate = sum(outcomes) / max(1, len(outcomes))
        rows.append(
            [
                one.name + seed,
                f"{100 * rate:.1f} %",
                f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]",
                str(len(outcomes)),
                str(len(one.owed)),
                f"{one.mean_turns:.1f}",
            ]
        )
    return ["cell", "success", f"{level:.0%} interval", "episodes", "owed", "turns"], rows
