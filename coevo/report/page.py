"""The report: one HTML file that needs nothing else, and its JSON twin with every number and the artifacts behind it.

Everything from outside (harness text, model output, names) is escaped; equal facts give equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from coevo.identity import short
from coevo.report import plots
from coevo.report.facts import ReportFacts
from coevo.report.numbers import numbers

__all__ = ["TITLES", "Report", "render"]

TITLES = {
    "grid": "The grid",
    "transfer": "Transfer",
    "search": "Harness search",
    "harness": "What changed in the harness",
    "components": "Component use",
    "fit": "How each model plays",
    "repair": "Localization and repair",
    "yield": "Yield of the expert",
    "datasets": "Training rows",
    "tuning": "Learning rates",
    "training": "Training",
    "publish": "Canary",
    "cost": "Cost",
}
"""Section -> heading."""

_TEMPLATE = Path(__file__).with_name("page.html.j2")
_NOTHING = "–"
_DIGEST = re.compile("[0-9a-f]{64}")
_HEADLINES = (
    ("base/h0", "base/h*", "Evolved harness, weak model"),
    ("base/h*", "correction/h*", "Correction, under the evolved harness"),
    ("base/h*", "imitation/h*", "Imitation, under the evolved harness"),
    ("imitation/h*", "correction/h*", "Correction against imitation, under the evolved harness"),
    ("base/h*", "correction_call_only/h*", "Correction without its sentence, under the evolved harness"),
    ("imitation/h*", "correction_call_only/h*", "Correction without its sentence, against imitation"),
)


class Report(NamedTuple):
    """The page and its twin: JSON-able, with every number of the page and the artifacts it was computed from."""

    html: str
    twin: dict[str, Any]


def render(facts: ReportFacts) -> Report:
    """Render the report of what is stored.

    Raises:
        StoreError: A section has numbers but no artifact (I12).
    """
    twin = numbers(facts)
    sections = twin["sections"]
    environment = ImmutableSandboxedEnvironment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(percent=_percent, points=_points, p=_p, decimal=_decimal, whole=_whole, plain=_plain)
    canaries = sections.get("publish", {}).get("canaries", [])
    html = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        twin=twin,
        titles=TITLES,
        tiles=_tiles(sections),
        loop_steps=_loop(sections),
        plots=_plots(sections),
        seeds=len({cell["training_seed"] for cell in sections.get("grid", {}).get("cells", [])} - {None}),
        spreads=_spreads(sections),
        metric_names=_union([one["metrics"] for one in sections.get("training", {}).get("adapters", [])]),
        canary_names=[name for name in _union(canaries) if name not in {"adapter", "model_id", "weights_hash"}],
        miniature=facts.config.get("weak", {}).get("model") == "mini",
        not_reached=", ".join(TITLES[name].lower() for name in twin["not_reached"]),
    )
    return Report(html, twin)


def _plots(sections: dict[str, Any]) -> dict[str, Markup]:
    """SVG by place in the page; our own plots of our own numbers, so they are not escaped."""
    makers = {
        "grid": ("grid", plots.grid_plot),
        "comparisons": ("grid", plots.forest_plot),
        "search": ("search", plots.search_plot),
        "budget": ("search", plots.budget_plot),
        "funnel": ("repair", plots.funnel_plot),
        "gains": ("repair", plots.gains_plot),
        "curves": ("training", plots.curves_plot),
        "cost": ("cost", plots.cost_plot),
    }
    return {place: Markup(make(sections[name]) if name in sections else "") for place, (name, make) in makers.items()}


def _tiles(sections: dict[str, Any]) -> list[dict[str, Any]]:
    """The comparisons that the run was made for."""
    name = "grid" if "grid" in sections else "transfer"
    note = "" if name == "grid" else " (selection instances)"
    pairs = {(one["a"], one["b"]): one for one in sections.get(name, {}).get("comparisons", [])}
    shown = [(what + note, pairs[a, b]) for a, b, what in _HEADLINES if (a, b) in pairs]
    return [{"what": what, "short": one["words"].partition(":")[0], **one} for what, one in shown]


def _loop(sections: dict[str, Any]) -> list[dict[str, str]]:
    """The loop in one line, with what each step came to."""
    search, repair = sections.get("search"), sections.get("repair")
    funnel = {step["step"]: step["count"] for step in repair["funnel"]} if repair else {}
    rows = [one["rows"] for one in sections.get("datasets", {}).get("arms", {}).values()]
    adapters = sections.get("training", {}).get("adapters", [])
    episodes = sum(cell["episodes"] for cell in sections.get("grid", {}).get("cells", []))
    figures = {
        "evolve": f"{search['accepted']} of {search['edits_raced']} edits" if search else "",
        "localize": f"{funnel['localized by replay']} of {funnel['failed episodes examined']} failures" if repair else "",
        "rewrite": f"{funnel['verified']} verified" if repair else "",
        "train": f"{max(rows)} rows per arm" if rows else "",
        "publish": f"{len(adapters)} adapters" if adapters else "",
        "measure again": f"{episodes:,} episodes" if episodes else "",
    }
    return [{"what": what, "figure": figure} for what, figure in figures.items()]


def _spreads(sections: dict[str, Any]) -> list[tuple[str, Any]]:
    repair = sections.get("repair")
    if repair is None:
        return []
    nll = [(f"student NLL per token: {name}", spread) for name, spread in repair["student_nll"].items()]
    return [("gain of verified rewrites", repair["gain"]), ("lower bound of that gain", repair["gain_lower"]), *nll]


def _union(mappings: Sequence[dict[str, Any]]) -> list[str]:
    """Keys of all mappings, in the order of first sight."""
    return list(dict.fromkeys(name for one in mappings for name in one))


def _percent(value: float | None) -> str:
    return _NOTHING if value is None else f"{100 * value:.1f} %"


def _points(value: float | None) -> str:
    return _NOTHING if value is None else f"{100 * value:+.1f}".replace("-", "−")


def _p(value: float | None) -> str:
    """A probability: three decimals, or a power of ten below 0.001."""
    if value is None:
        return _NOTHING
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}".replace("e-0", "e-").replace("-", "−")


def _decimal(value: float | None, digits: int = 2) -> str:
    return _NOTHING if value is None else f"{value:,.{digits}f}"


def _whole(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:,.0f}"


def _plain(value: object) -> str:
    """A figure of unknown kind."""
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        return short(value) if _DIGEST.fullmatch(value) else value
    return f"{value:,}" if isinstance(value, int) else str(value)
