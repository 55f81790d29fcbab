"""Cells played and measured: what the stages `transfer`, `tune` and `evaluate` have in common."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from coevo.evaluate.grid import Cell, measure
from coevo.evaluate.stats import wilson
from coevo.records import Measurement
from coevo.rollout import RolloutStage
from coevo.store.artifacts import StageManifest, StageWriter
from jobs.context import RunContext
from jobs.evolve import evolved_harness
from jobs.fanout import check_owed, fan_out

__all__ = ["base_cells", "grid_table", "measure_cells", "read_measurements", "write_measurements"]


def base_cells(context: RunContext) -> list[Cell]:
    """The weak model and the expert under both harnesses."""
    h0, best = context.base_harness, evolved_harness(context)
    form = "reference" if context.recipe is None else "remote"
    cells = []
    for name, bundle in (("h0", h0), ("h*", best)):
        cells.append(Cell(f"base/{name}", context.agent(context.weak_source, bundle), "base"))
        cells.append(Cell(f"expert/{name}", context.agent(context.expert_source(bundle), bundle), form))
    return cells


def measure_cells(context: RunContext, cells: Sequence[Cell], items: Sequence[str], label: str) -> list[Measurement]:
    """Play every cell on the same items and measure from what was committed."""
    measured = []
    for cell in cells:
        stage = RolloutStage(cell.agent, context.store_source, context.run, f"{label} {cell.name}")
        report = fan_out(context, stage, items, bulk=True)
        check_owed(context, f"{label} {cell.name}", report)
        measured.append(measure(cell, items, context.episodes))
    return measured


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


def read_measurements(context: RunContext, manifest: StageManifest) -> list[Measurement]:
    """What `write_measurements` wrote."""
    return [Measurement.model_validate(one) for one in orjson.loads(context.store.get(manifest.output("grid").key))]


def grid_table(measured: Sequence[Measurement], level: float) -> tuple[list[str], list[list[str]]]:
    """Header and rows: cell, success with its interval, episodes, owed, turns."""
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
