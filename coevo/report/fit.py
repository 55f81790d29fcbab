"""How each model plays under each harness, and how far its use of tools lies from that of base and expert under the same harness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from coevo.evaluate.fit import LOOP_CALLS, tool_divergence
from coevo.records import Conduct
from coevo.report.facts import ReportFacts, sources

__all__ = ["fit"]


def fit(facts: ReportFacts) -> dict[str, Any] | None:
    """The section, training seeds of a cell together; None where no conduct was counted."""
    cells, stage = (facts.grid, "evaluate") if facts.grid else (facts.transfer, "transfer")
    played: dict[str, list[Conduct]] = {}
    for one in cells:
        if one.conduct is not None:
            played.setdefault(one.name, []).append(one.conduct)
    if not played:
        return None
    mixes = {name: _mean_shares([one.tools for one in several]) for name, several in played.items()}
    rows = []
    for name, several in played.items():
        harness = name.rpartition("/")[2]
        shares = {part: fmean(getattr(one, part) for one in several) for part in ("spoken", "refused", "looping", "unfinished")}
        turns = fmean(one.mean_turns for one in cells if one.name == name)
        apart = {f"from_{model}": _apart(mixes, name, f"{model}/{harness}") for model in ("base", "expert")}
        rows.append({"cell": name, "seeds": len(several), "mean_turns": turns, **shares, **apart, "tools": mixes[name]})
    return {"sources": sources(facts, [stage]), "loop_calls": LOOP_CALLS, "cells": rows}


def _mean_shares(tools: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for one in tools for name in one})
    return {name: fmean(one.get(name, 0.0) for one in tools) for name in names}


def _apart(mixes: Mapping[str, Mapping[str, float]], name: str, other: str) -> float | None:
    return tool_divergence(mixes[name], mixes[other]) if other in mixes else None
