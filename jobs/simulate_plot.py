"""The sensitivity of a study as one SVG: curves of policies with the middle 95 % of seeds as bands.

Equal numbers give equal bytes. The background is part of the picture, so it reads on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["Curve", "Panel", "draw"]

_COLOURS = {"static on-demand": "#6b7280", "static spot": "#b45309", "ours": "#1d4ed8"}
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "coevo",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.spines.top": False,
}
_SIZE_IN = (9.0, 6.0)


@dataclass(frozen=True, slots=True)
class Curve:
    """A policy: (mean, low, high) at every value of the dial."""

    policy: str
    values: Sequence[float]
    ranges: Sequence[tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One measure against one dial. `default` is the study's own value of the dial."""

    dial: str
    measure: str
    default: float
    curves: Sequence[Curve]


def draw(panels: Sequence[Panel]) -> str:
    """Two columns of panels, in order."""
    rows = (len(panels) + 1) // 2
    with rc_context(_RC):
        figure = Figure(figsize=_SIZE_IN, layout="constrained", facecolor="white")
        grid = figure.subplots(rows, 2, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            _paint(axes, panel)
        grid.flat[0].legend(frameon=False, fontsize=8)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def _paint(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        means, lows, highs = (list(column) for column in zip(*curve.ranges, strict=True))
        colour = _COLOURS.get(curve.policy, "black")
        axes.fill_between(curve.values, lows, highs, color=colour, alpha=0.15, linewidth=0)
        axes.plot(curve.values, means, color=colour, marker="o", markersize=3, linewidth=1.5, label=curve.policy)
    axes.axvline(panel.default, color="black", linewidth=0.6, linestyle=(0, (2, 3)))
    axes.set_ylim(bottom=0)
    axes.set_xlabel(panel.dial)
    axes.set_ylabel(panel.measure)
    axes.spines["right"].set_visible(False)
