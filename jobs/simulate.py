"""`python -m jobs.simulate STUDY`: what a study would cost under each pool policy, before a node is rented.

Prints dollars per accepted training turn and hours for every policy over many seeds, compares with the study's targets, and on request
draws how both depend on spot losses and on the start-up time. Starts no cluster and asks no cloud.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import orjson
import typer

from cluster.study import POLICIES, Study, StudyResult, load_study, play
from coevo.prices import Market, PriceSheet
from jobs.exits import guarded
from jobs.simulate_plot import Curve, Panel, draw

__all__ = ["PolicyFigures", "Range", "figures", "main", "sensitivity"]

BASELINE = "static on-demand"
OURS = "ours"
PLOTTED = ("static on-demand", "static spot", "ours")


class Range(NamedTuple):
    """Mean over the seeds, and the middle 95 % of them."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Range:
        """Of these values."""
        array = np.asarray(list(values))
        low, high = np.quantile(array, (0.025, 0.975))
        return cls(float(array.mean()), float(low), float(high))

    def text(self, digits: int) -> str:
        """`mean [low, high]`."""
        return f"{self.mean:,.{digits}f} [{self.low:,.{digits}f}, {self.high:,.{digits}f}]"


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """A policy over all seeds; the shares are paired by seed with static on-demand."""

    policy: str
    usd_per_turn: Range
    hours: Range
    usd: Range
    cost_share: Range
    hours_factor: Range
    interruptions: float
    lost_node_hours: float
    on_demand_share: float


def figures(study: Study, sheet: PriceSheet, *, seeds: int) -> list[PolicyFigures]:
    """All policies under the same seeds."""
    runs = {name: [play(study, name, sheet=sheet, seed=seed) for seed in range(seeds)] for name in POLICIES}
    return [_figures(name, results, runs[BASELINE]) for name, results in runs.items()]


def _figures(policy: str, runs: Sequence[StudyResult], base: Sequence[StudyResult]) -> PolicyFigures:
    pairs = list(zip(runs, base, strict=True))
    hours = [(sum(run.outcome.node_hours.values()), run.outcome.node_hours) for run in runs]
    bought = [sum(paid for (_, market), paid in held.items() if market is Market.ON_DEMAND) / total for total, held in hours]
    return PolicyFigures(
        policy=policy,
        usd_per_turn=Range.of(run.usd_per_turn for run in runs),
        hours=Range.of(run.outcome.hours for run in runs),
        usd=Range.of(run.usd for run in runs),
        cost_share=Range.of(run.usd_per_turn / other.usd_per_turn for run, other in pairs),
        hours_factor=Range.of(run.outcome.hours / other.outcome.hours for run, other in pairs),
        interruptions=float(np.mean([run.outcome.interruptions for run in runs])),
        lost_node_hours=float(np.mean([run.outcome.lost_s for run in runs])) / 3600,
        on_demand_share=float(np.mean(bought)),
    )


def lines(study: Study, sheet: PriceSheet, found: Sequence[PolicyFigures], *, seeds: int) -> list[str]:
    """The table, and whether the targets are met."""
    head = ("policy", "$ per accepted turn", "hours", "$ / static", "hours / static", "losses", "on demand")
    rows = [_row(one) for one in found]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    out = [
        f"{study.name}: {study.repeat} x {len(study.phases)} phases, {seeds} seeds; mean [middle 95 % of seeds]",
        f"prices of {sheet.as_of}; ${study.expert_usd(sheet):,.0f} of every policy are the expert's tokens",
        *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)),
    ]
    ours, targets = next(one for one in found if one.policy == OURS), study.targets
    met = ours.cost_share.mean <= targets.cost_share and ours.hours_factor.mean <= targets.hours_factor
    goal = f"at most {targets.cost_share:.0%} of the dollars at most {targets.hours_factor:g} times the hours of {BASELINE}"
    seen = f"{ours.cost_share.mean:.1%} and {ours.hours_factor.mean:.3f}"
    return [*out, f"target ({goal}): {'met' if met else 'MISSED'}, {seen}"]


def _row(one: PolicyFigures) -> tuple[str, ...]:
    ranges = (one.usd_per_turn.text(2), one.hours.text(1), one.cost_share.text(3), one.hours_factor.text(3))
    return (one.policy, *ranges, f"{one.interruptions:.1f}", f"{one.on_demand_share:.1%}")


def sensitivity(study: Study, sheet: PriceSheet) -> list[Panel]:
    """Dollars per turn and hours against spot losses and against start-up time; everything else as in the study."""
    dials = study.sensitivity
    default_loss = next(iter(study.pools.values())).losses_per_hour
    default_start = next(iter(study.pools.values())).startup_s / 60
    sweeps: tuple[tuple[str, tuple[float, ...], float, Callable[[float], dict[str, float]]], ...] = (
        ("spot losses per node and hour", dials.losses_per_hour, default_loss, lambda value: {"losses_per_hour": value}),
        ("start-up of a node, minutes", dials.startup_minutes, default_start, lambda value: {"startup_s": 60 * value}),
    )
    measures: tuple[tuple[str, Callable[[StudyResult], float]], ...] = (
        ("dollars per accepted turn", lambda run: run.usd_per_turn),
        ("hours", lambda run: run.outcome.hours),
    )
    panels = []
    for label, values, default, changes in sweeps:
        runs = {
            name: [[play(study, name, sheet=sheet, seed=seed, **changes(value)) for seed in range(dials.seeds)] for value in values]
            for name in PLOTTED
        }
        for measure, read in measures:
            curves = [Curve(name, values, [Range.of(map(read, cell)) for cell in cells]) for name, cells in runs.items()]
            panels.append(Panel(label, measure, default, curves))
    return panels


def _json(study: Study, found: Sequence[PolicyFigures], panels: Sequence[Panel]) -> bytes:
    twin: dict[str, Any] = {"study": study.model_dump(mode="json", by_alias=True), "policies": found, "sensitivity": panels}
    return orjson.dumps(twin, option=orjson.OPT_INDENT_2, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    raise TypeError(f"not JSON: {type(value).__name__}")


def _run(study_path: Path, seeds: int | None, plot: Path | None, json: Path | None) -> int:
    study = load_study(study_path)
    sheet = study.sheet()
    count = seeds or study.seeds
    found = figures(study, sheet, seeds=count)
    print("\n".join(lines(study, sheet, found, seeds=count)))
    panels = sensitivity(study, sheet) if plot is not None else []
    if plot is not None:
        plot.write_text(draw(panels), encoding="utf-8")
        print(f"plot: {plot}")
    if json is not None:
        json.write_bytes(_json(study, found, panels))
        print(f"numbers: {json}")
    return 0


def command(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="YAML of the study.", show_default=False)],
    seeds: Annotated[int | None, typer.Option(help="Simulated runs per policy; the study's own number if left out.", min=2)] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the sensitivity to losses and start-up into this SVG file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write all numbers into this file.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Simulate a study under every pool policy."""
    raise typer.Exit(guarded(partial(_run, study, seeds, plot, json), debug=debug))


def main() -> None:
    """Entry of `python -m jobs.simulate`."""
    typer.run(command)


if __name__ == "__main__":
    main()
