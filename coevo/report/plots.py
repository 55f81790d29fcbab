"""The plots of a report as SVG text for the page: its colours are the page's CSS variables, its letters the page's font.

Equal numbers give equal bytes: no clock, no random ids, no global state of matplotlib. Every function takes a section of
`coevo.report.numbers` and gives an empty string when there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["budget_plot", "cost_plot", "curves_plot", "forest_plot", "funnel_plot", "gains_plot", "grid_plot", "search_plot"]

Section = dict[str, Any]

_INK, _SOFT, _RULE, _PAPER, _GOOD, _BAD, _ACCENT = (f"#0{digit}0{digit}0{digit}" for digit in range(1, 8))
_SERIES = {"base": "#110101", "imitation": "#120101", "correction": "#130101", "expert": "#140101"}
_VARIABLES = {
    _INK: "ink",
    _SOFT: "soft",
    _RULE: "rule",
    _PAPER: "paper",
    _GOOD: "good",
    _BAD: "bad",
    _ACCENT: "accent",
    **{colour: name for name, colour in _SERIES.items()},
}
"""Stand-in colour -> CSS variable of the page: matplotlib wants numbers, the page wants a light and a dark theme."""

_WIDTH_IN = 7.2
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.color": _INK,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _SOFT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.formatter.useoffset": False,
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "path.simplify": False,
}


def _colour(model: str) -> str:
    return _SERIES.get(model, _ACCENT)


def _draw(name: str, height_in: float, paint: Callable[[Axes], None]) -> str:
    """One figure with one axis, as SVG without prologue."""
    with rc_context({**_RC, "svg.hashsalt": f"coevo {name}"}):
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        figure.patch.set_alpha(0.0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0.0)
        paint(axes)
        out = StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return text.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1).strip()


def grid_plot(section: Section) -> str:
    """Success of every cell with its interval: h0 hollow, h* filled."""
    cells = [cell for cell in section["cells"] if cell["rate"] is not None]
    if not cells:
        return ""
    rows = [(model, harness) for model in section["models"] for harness in section["harnesses"]]
    rows = [row for row in rows if any((cell["model"], cell["harness"]) == row for cell in cells)]

    def paint(axes: Axes) -> None:
        for place, row in enumerate(rows):
            mine = [cell for cell in cells if (cell["model"], cell["harness"]) == row]
            for index, cell in enumerate(mine):
                y = place + 0.22 * (index - (len(mine) - 1) / 2)
                colour, filled = _colour(cell["model"]), cell["harness"] != "h0"
                low, high, rate = 100 * cell["low"], 100 * cell["high"], 100 * cell["rate"]
                axes.plot((low, high), (y, y), color=colour, linewidth=2.2, solid_capstyle="round", alpha=0.55)
                axes.plot(rate, y, "o", markersize=7, color=colour, markerfacecolor=colour if filled else _PAPER, markeredgewidth=1.6)
                axes.annotate(f"{rate:.0f}", (high, y), xytext=(5, 0), textcoords="offset points", va="center", color=_SOFT, fontsize=8)
        _rows(axes, [f"{model} / {harness}" for model, harness in rows])
        axes.set_xlim(0, 104)
        axes.set_xlabel("success, %")

    return _draw("success by cell", 0.5 + 0.3 * len(rows), paint)


def forest_plot(section: Section) -> str:
    """Paired differences with their intervals; grey where the interval contains 0."""
    pairs = section["comparisons"]
    if not pairs:
        return ""

    def paint(axes: Axes) -> None:
        axes.axvline(0, color=_SOFT, linewidth=1.0)
        for place, pair in enumerate(pairs):
            colour = {"supported": _GOOD, "refuted": _BAD}.get(pair["verdict"], _SOFT)
            low, high, delta = 100 * pair["low"], 100 * pair["high"], 100 * pair["delta"]
            axes.plot((low, high), (place, place), color=colour, linewidth=2.2, solid_capstyle="round", alpha=0.6)
            axes.plot(delta, place, "o", markersize=6.5, color=colour)
            text = f"{delta:+.1f}".replace("-", "−")
            axes.annotate(text, (high, place), xytext=(6, 0), textcoords="offset points", va="center", color=_SOFT, fontsize=8)
        _rows(axes, [f"{pair['b']} − {pair['a']}" for pair in pairs])
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, -5), high + 0.06 * (high - low))
        axes.set_xlabel("difference in success, points")

    return _draw("paired differences", 0.5 + 0.3 * len(pairs), paint)


def search_plot(section: Section) -> str:
    """The incumbent over generations on its search instances, and the gates on selection instances."""
    rounds = section["rounds"]
    if len(rounds) < 2 and all(one["gate"] is None for one in rounds):
        return ""

    def paint(axes: Axes) -> None:
        for restart in sorted({one["restart"] for one in rounds}):
            mine = [one for one in rounds if one["restart"] == restart]
            axes.plot(
                [one["generation"] for one in mine],
                [100 * one["incumbent_rate"] for one in mine],
                color=_SERIES["base"],
                linewidth=1.6,
                marker="o",
                markersize=4.5,
                label="incumbent, search instances" if restart == rounds[0]["restart"] else None,
            )
        for one in rounds:
            gate = one["gate"]
            if gate is not None:
                _gate(axes, one["generation"] + 0.22, gate)
        axes.plot([], [], "o", color=_GOOD, markersize=6, label="gate: accepted")
        axes.plot([], [], "o", color=_SOFT, markerfacecolor=_PAPER, markersize=6, label="gate: refused")
        last = max(one["generation"] for one in rounds)
        axes.set_xticks(range(last + 1))
        axes.set_xlim(-0.4, last + 0.7)
        axes.set_ylim(0, 100)
        axes.set_xlabel("generation")
        axes.set_ylabel("success, %")
        axes.grid(visible=False, axis="x")
        axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.02), ncols=3, labelcolor=_SOFT, borderaxespad=0)

    return _draw("search", 2.6, paint)


def budget_plot(section: Section) -> str:
    """The incumbent's success with its interval against episodes spent, one line per restart."""
    points = section["score"]
    if not points:
        return ""

    def paint(axes: Axes) -> None:
        for restart in sorted({one["restart"] for one in points}):
            mine = [one for one in points if one["restart"] == restart]
            spent = [one["episodes"] for one in mine]
            axes.plot(spent, [100 * one["rate"] for one in mine], color=_SERIES["base"], linewidth=1.4, marker="o", markersize=4.5)
            for x, one in zip(spent, mine, strict=True):
                axes.plot((x, x), (100 * one["low"], 100 * one["high"]), color=_SERIES["base"], linewidth=1.6, alpha=0.4)
        axes.set_ylim(0, 100)
        axes.set_xlim(left=0)
        axes.set_xlabel("episodes spent by the restart")
        axes.set_ylabel("success, %")

    return _draw("success against budget", 2.4, paint)


def _gate(axes: Axes, x: float, gate: Section) -> None:
    """Incumbent to candidate at one gate."""
    colour = _GOOD if gate["accepted"] else _SOFT
    before, after = 100 * gate["incumbent_rate"], 100 * gate["candidate_rate"]
    axes.plot((x, x), (before, after), color=colour, linewidth=1.6, alpha=0.7)
    axes.plot(x, before, "_", color=colour, markersize=8)
    axes.plot(x, after, "o", color=colour, markerfacecolor=colour if gate["accepted"] else _PAPER, markersize=6)


def funnel_plot(section: Section) -> str:
    """From failed episodes to verified rewrites."""
    steps = section["funnel"]
    largest = max(step["count"] for step in steps)
    if not largest:
        return ""

    def paint(axes: Axes) -> None:
        for place, step in enumerate(steps):
            last = place == len(steps) - 1
            axes.barh(place, step["count"], height=0.62, color=_GOOD if last else _SERIES["base"], alpha=0.9 if last else 0.45)
            text = f"{step['count']}  ({100 * step['count'] / largest:.0f} %)"
            axes.annotate(text, (step["count"], place), xytext=(5, 0), textcoords="offset points", va="center", color=_SOFT, fontsize=8)
        _rows(axes, [step["step"] for step in steps])
        axes.set_xlim(0, 1.18 * largest)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)

    return _draw("from failure to verified rewrite", 0.35 + 0.3 * len(steps), paint)


def gains_plot(section: Section) -> str:
    """Distribution of the replayed gain of verified rewrites."""
    gains = section["gains"]
    if len(gains) < 2:
        return ""

    def paint(axes: Axes) -> None:
        axes.hist([100 * gain for gain in gains], bins=[10 * step for step in range(-2, 11)], color=_GOOD, alpha=0.55, rwidth=0.92)
        axes.axvline(100 * section["gain"]["median"], color=_INK, linewidth=1.0, linestyle=(0, (3, 2)))
        axes.set_xlabel("gain of a verified rewrite over the larger baseline, points (dashed: median)")
        axes.set_ylabel("rewrites")
        axes.grid(visible=False, axis="x")

    return _draw("gain of verified rewrites", 1.9, paint)


def curves_plot(section: Section) -> str:
    """Training loss per optimizer step."""
    curves = {name: losses for name, losses in section["curves"].items() if losses}
    if not curves:
        return ""

    def paint(axes: Axes) -> None:
        for name, losses in curves.items():
            colour = _colour(name.partition(",")[0])
            axes.plot(range(1, len(losses) + 1), losses, color=colour, linewidth=1.5, label=name)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("loss, nats per trained token")
        axes.grid(visible=False, axis="x")
        axes.legend(frameon=False, fontsize=8, labelcolor=_SOFT)

    return _draw("training loss", 2.3, paint)


def cost_plot(section: Section) -> str:
    """Wall time of each stage."""
    stages = [one for one in section["stages"] if one["wall_s"] > 0]
    if not stages:
        return ""

    def paint(axes: Axes) -> None:
        largest = max(one["wall_s"] for one in stages)
        for place, one in enumerate(stages):
            axes.barh(place, one["wall_s"], height=0.62, color=_ACCENT, alpha=0.5)
            text = f"{one['wall_s']:.0f} s"
            axes.annotate(text, (one["wall_s"], place), xytext=(5, 0), textcoords="offset points", va="center", color=_SOFT, fontsize=8)
        _rows(axes, [one["stage"] for one in stages])
        axes.set_xlim(0, 1.12 * largest)
        axes.set_xlabel("seconds of wall time")

    return _draw("wall time by stage", 0.5 + 0.26 * len(stages), paint)


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    """Named rows from the top down."""
    axes.set_yticks(range(len(labels)), labels, color=_INK)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
