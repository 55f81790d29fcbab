"""From facts to the numbers of a report, section by section: plain JSON, each section with the artifacts it was computed from (I12).

The page shows these numbers and the JSON twin holds them; there is no third place where a number is made. `None` = not measured.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, quantiles
from typing import Any

from coevo.evaluate.stats import paired_bootstrap, wilson
from coevo.localize.waves import MiningRecord
from coevo.records import Adapter, Comparison, Correction, Localization, Measurement, Verdict
from coevo.report.evolution import ablation_numbers, baseline_numbers, search_numbers
from coevo.report.facts import ReportFacts, sources
from coevo.report.fit import fit
from coevo.report.yields import yields

__all__ = ["SECTIONS", "numbers", "words"]

Numbers = dict[str, Any]

_MODEL_ORDER = ("base", "imitation", "correction")
_STAGES = ("evolve", "transfer", "rollout", "localize", "rewrite", "mining", "dataset", "tune", "train", "publish", "evaluate")
_WORDS = {
    Verdict.SUPPORTED: "better: the interval excludes 0",
    Verdict.REFUTED: "worse: the interval excludes 0",
    Verdict.INCONCLUSIVE: "inconclusive: the interval contains 0",
}


def words(comparison: Comparison) -> str:
    """The verdict on b against a in words; inconclusive is a result."""
    return _WORDS[comparison.verdict]


def numbers(facts: ReportFacts) -> Numbers:
    """The JSON twin: run, sections that the run has reached, and the names of those it has not.

    Raises:
        StoreError: A section has numbers but no artifact.
    """
    run = {
        "name": facts.run,
        "family": facts.family,
        "size": facts.size,
        "seed": facts.config.get("seed"),
        "code_version": facts.code_version,
        "level": facts.level,
    }
    sections = {name: made for name, make in SECTIONS.items() if (made := make(facts)) is not None}
    return {
        "schema_version": 1,
        "run": run,
        "sections": sections,
        "not_reached": [name for name in SECTIONS if name not in sections],
        "config": facts.config,
    }


def _cell(one: Measurement, level: float) -> Numbers:
    rows = [row for row in one.success.values() if row]
    outcomes = [value for row in rows for value in row]
    model, _, harness = one.name.rpartition("/")
    repeated = any(len(row) > 1 for row in rows)
    low, high, kind = None, None, "not measured"
    if rows and repeated:
        low, high = paired_bootstrap([[fmean(row) for row in rows]], level=level)
        kind = "bootstrap over instances"
    elif rows:
        low, high = wilson(sum(outcomes), len(outcomes), level=level)
        kind = "Wilson"
    tokens = one.usage.prompt_tokens + one.usage.completion_tokens
    return {
        "cell": one.name,
        "model": model,
        "harness": harness,
        "training_seed": one.training_seed,
        "model_id": one.model_id,
        "harness_hash": one.harness_hash,
        "serving_form": one.serving_form,
        "stream": one.stream,
        "instances": len(rows),
        "episodes": len(outcomes),
        "successes": sum(outcomes),
        "rate": fmean(fmean(row) for row in rows) if rows else None,
        "low": low,
        "high": high,
        "interval": kind,
        "owed": len(one.owed),
        "mean_turns": one.mean_turns,
        "tokens_per_episode": tokens / len(outcomes) if outcomes else None,
        "status_counts": one.status_counts,
    }


def _comparison(one: Comparison) -> Numbers:
    return {
        "a": one.a,
        "b": one.b,
        "delta": one.delta,
        "low": one.low,
        "high": one.high,
        "level": one.level,
        "pairs": one.pairs,
        "discordant": one.discordant,
        "p_value": one.p_value,
        "verdict": str(one.verdict),
        "words": words(one),
    }


def _measured(facts: ReportFacts, stage: str, cells: Sequence[Measurement], pairs: Sequence[Comparison]) -> Numbers | None:
    if not cells:
        return None
    made = [_cell(one, facts.level) for one in cells]
    models = sorted({cell["model"] for cell in made}, key=_model_rank)
    return {
        "sources": sources(facts, [stage]),
        "models": models,
        "harnesses": [name for name in ("h0", "h*") if any(cell["harness"] == name for cell in made)],
        "cells": made,
        "comparisons": [_comparison(one) for one in pairs],
    }


def _model_rank(model: str) -> tuple[int, str]:
    if model == "expert":
        return (len(_MODEL_ORDER) + 1, model)
    return (_MODEL_ORDER.index(model) if model in _MODEL_ORDER else len(_MODEL_ORDER), model)


def _grid(facts: ReportFacts) -> Numbers | None:
    """The cells, and how often the test stream was opened to measure them."""
    made = _measured(facts, "evaluate", facts.grid, facts.comparisons)
    if made is None:
        return None
    shown = [{**one.model_dump(mode="json"), "words": one.words} for one in facts.openings]
    return {**made, "openings": shown}


def _transfer(facts: ReportFacts) -> Numbers | None:
    return _measured(facts, "transfer", facts.transfer, facts.transfer_comparisons)


def _components(facts: ReportFacts) -> Numbers | None:
    """Mean firings per episode of every component, by cell."""
    cells, stage = (facts.grid, "evaluate") if facts.grid else (facts.transfer, "transfer")
    names = sorted({name for one in cells for name in one.component_use})
    if not names:
        return None
    table = {name: {_label(one): one.component_use.get(name, 0.0) for one in cells} for name in names}
    return {"sources": sources(facts, [stage]), "cells": [_label(one) for one in cells], "firings_per_episode": table}


def _label(one: Measurement) -> str:
    return one.name if one.training_seed in {None, 0} else f"{one.name} (seed {one.training_seed})"


def _search(facts: ReportFacts) -> Numbers | None:
    if facts.search is None:
        return None
    rest = {"ablation": ablation_numbers(facts.ablation), "baselines": baseline_numbers(facts.baselines)}
    return {"sources": sources(facts, ["evolve"]), **search_numbers(facts.search), **rest}


def _harness(facts: ReportFacts) -> Numbers | None:
    """h0 against h*, file by file."""
    if facts.search is None or not facts.base_files:
        return None
    old, new = facts.base_files, facts.search.best if facts.ablation is None else facts.ablation.best
    files = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, "").splitlines(), new.get(name, "").splitlines()
        lines = list(difflib.unified_diff(before, after, f"h0/{name}", f"h*/{name}", lineterm="", n=2))
        if lines:
            added = sum(line.startswith("+") for line in lines[2:])
            files.append({"file": name, "added": added, "removed": sum(line.startswith("-") for line in lines[2:]), "diff": lines})
    return {"sources": sources(facts, ["evolve"]), "h0": facts.search.base_hash, "h*": facts.search.best_hash, "files": files}


def _repair(facts: ReportFacts) -> Numbers | None:
    """The way from failed episodes to verified rewrites, and what it cost."""
    if not facts.localizations:
        return None
    found = [one for one in facts.localizations if one.turn is not None]
    rewrites = [candidate for one in facts.corrections for candidate in one.candidates]
    verified = [one for one in facts.corrections if one.verified]
    replayed = sum(one.continuations for one in facts.localizations)
    checked = sum(candidate.continued for candidate in rewrites)
    return {
        "sources": sources(facts, ["localize", "rewrite", "mining"]),
        "funnel": [
            {"step": "failed episodes examined", "count": len(facts.localizations)},
            {"step": "with a suspect turn", "count": sum(bool(one.candidates) for one in facts.localizations)},
            {"step": "localized by replay", "count": len(found)},
            {"step": "rewritten and executed", "count": sum(any(c.executed for c in one.candidates) for one in facts.corrections)},
            {"step": "verified", "count": len(verified)},
        ],
        "suspects_tried": sum(len(one.candidates) for one in facts.localizations),
        "continuations": {"localize": replayed, "rewrite": checked},
        "expert_rewrites": len(rewrites),
        "verified_per_100_rewrites": 100 * len(verified) / len(rewrites) if rewrites else None,
        "continuations_per_verified": (replayed + checked) / len(verified) if verified else None,
        "gain": _spread(_gains(verified, found)),
        "gain_lower": _spread(one.gain_lower for one in verified),
        "gains": sorted(_gains(verified, found)),
        "student_nll": {
            "strategy, chosen": _spread(_chosen(one).student_nll_strategy for one in verified),
            "call, chosen": _spread(_chosen(one).student_nll_call for one in verified),
            "strategy, all rewrites": _spread(candidate.student_nll_strategy for candidate in rewrites),
            "call, all rewrites": _spread(candidate.student_nll_call for candidate in rewrites),
        },
        **({"waves": _waves(facts.mining)} if facts.mining is not None else {}),
    }


def _waves(mining: MiningRecord) -> Numbers:
    """Wave by wave, and whether the rows that were wanted are there."""
    waves = [one.model_dump() for one in mining.waves]
    return {
        "wanted": mining.wanted,
        "ceiling": mining.ceiling,
        "met": mining.met,
        "words": mining.words,
        "waves": waves,
        "total": mining.total.model_dump(),
    }


def _chosen(correction: Correction) -> Any:
    return correction.candidates[correction.chosen]


def _gains(verified: Sequence[Correction], found: Sequence[Localization]) -> list[float]:
    """Per verified rewrite: its success rate minus that of the larger baseline (turn kept, turn resampled)."""
    places = {one.episode_id: next((c for c in one.candidates if c.turn == one.turn), None) for one in found}
    gains = []
    for one in verified:
        place, chosen = places.get(one.episode_id), _chosen(one)
        if place is not None and chosen.continued:
            gains.append(chosen.successes / chosen.continued - max(place.p_kept or 0.0, place.p_resampled or 0.0))
    return gains


def _spread(values: Iterable[float | None]) -> Numbers | None:
    """Count, median and quartiles of what was measured."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    low, middle, high = quantiles(known, n=4, method="inclusive") if len(known) > 1 else (known[0],) * 3
    return {"n": len(known), "lower_quartile": low, "median": middle, "upper_quartile": high}


def _datasets(facts: ReportFacts) -> Numbers | None:
    if not facts.datasets:
        return None
    arms = {
        arm: {**one.model_dump(mode="json"), "trained_tokens_per_row": one.trained_tokens / one.rows if one.rows else None}
        for arm, one in sorted(facts.datasets.items(), key=lambda item: _model_rank(item[0]))
    }
    return {"sources": sources(facts, ["dataset"]), "arms": arms}


def _tuning(facts: ReportFacts) -> Numbers | None:
    if not facts.tuning:
        return None
    made = [
        {"arm": one.arm, "learning_rate": one.learning_rate, "chosen": one.chosen, **_cell(one.measurement, facts.level)}
        for one in facts.tuning
    ]
    return {"sources": sources(facts, ["tune"]), "rates": made}


def _training(facts: ReportFacts) -> Numbers | None:
    if not facts.adapters:
        return None
    own = {one.key: one.weights_hash for one in facts.adapters}
    return {
        "sources": sources(facts, ["train"], own=own),
        "adapters": [_adapter(one) for one in facts.adapters],
        "curves": {_adapter_label(one): list(facts.curves[one.model_id]) for one in facts.adapters if one.model_id in facts.curves},
    }


def _adapter(one: Adapter) -> Numbers:
    return {
        "adapter": _adapter_label(one),
        "model_id": one.model_id,
        "rows": one.rows,
        "trained_tokens": one.trained_tokens,
        "steps": one.steps,
        "metrics": one.metrics,
        "checks": one.checks,
        "checks_passed": all(one.checks.values()),
    }


def _adapter_label(one: Adapter) -> str:
    return f"{one.arm}, seed {one.seed}"


def _publish(facts: ReportFacts) -> Numbers | None:
    """One row per adapter and replica."""
    if not facts.publishes:
        return None
    known = {one.model_id: one for one in facts.adapters}
    named = [known[name] for one in facts.publishes if (name := str(one.get("model_id", ""))) in known]
    own = {f"{one.key}/publish.json": one.weights_hash for one in named}
    canaries = [row for one in facts.publishes for row in _canary_rows(one, known)]
    return {"sources": sources(facts, ["publish"], own=own), "canaries": canaries}


def _canary_rows(fact: Mapping[str, Any], known: Mapping[str, Adapter]) -> Iterator[Numbers]:
    model_id = str(fact.get("model_id", ""))
    label = _adapter_label(known[model_id]) if model_id in known else model_id
    shared = _flat({name: item for name, item in fact.items() if name not in {"model_id", "replicas", "schema_version"}})
    for replica, reading in dict(fact.get("replicas") or {"": {}}).items():
        yield {"adapter": label, "model_id": model_id, **({"replica": replica} if replica else {}), **_flat(reading), **shared}


def _flat(value: Mapping[str, Any], prefix: str = "") -> Numbers:
    """Nested figures under dotted names; lists are shown by their length, their values stay in the artifact."""
    flat: Numbers = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            flat |= _flat(item, f"{prefix}{name}.")
        elif isinstance(item, list | tuple):
            flat[f"{prefix}{name} (count)"] = len(item)
        else:
            flat[f"{prefix}{name}"] = item
    return flat


def _stage_rank(stage: str) -> tuple[int, str]:
    return (_STAGES.index(stage) if stage in _STAGES else len(_STAGES), stage)


def _cost(facts: ReportFacts) -> Numbers | None:
    if not facts.manifests:
        return None
    stages = [
        {
            "stage": one.stage,
            "input_hash": one.input_hash,
            "expected": one.expected,
            "written": one.rows.written,
            "dropped": one.rows.dropped,
            "failed": one.rows.failed,
            "owed": len(one.owed),
            "tokens": one.tokens,
            "prompt_tokens": one.prompt_tokens,
            "cached_tokens": one.cached_tokens,
            "completion_tokens": one.completion_tokens,
            "wall_s": one.wall_s,
            "gpu_s": one.gpu_s,
            "cpu_s": one.cpu_s,
            "compute_usd": one.compute_usd,
            "expert_usd": one.expert_usd,
            "usd": one.cost_usd,
        }
        for one in sorted(facts.manifests, key=lambda one: _stage_rank(one.stage))
    ]
    billed = {name: _known(getattr(one, name) for one in facts.manifests) for name in ("gpu_s", "cpu_s", "compute_usd", "expert_usd")}
    trained_s = sum(one.metrics.get("seconds", 0.0) for one in facts.adapters)
    return {
        "sources": sources(facts, [one.stage for one in facts.manifests]),
        "stages": stages,
        "tokens": sum(one.tokens for one in facts.manifests),
        "wall_s": sum(one.wall_s for one in facts.manifests),
        "training_s": trained_s if facts.adapters else None,
        "owed": sum(len(one.owed) for one in facts.manifests),
        **billed,
        "usd": _known(one.cost_usd for one in facts.manifests),
        "attempts": facts.attempts.model_dump(mode="json") if facts.attempts is not None else None,
    }


def _known(amounts: Iterable[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


SECTIONS = {
    "grid": _grid,
    "transfer": _transfer,
    "search": _search,
    "harness": _harness,
    "components": _components,
    "fit": fit,
    "repair": _repair,
    "yield": yields,
    "datasets": _datasets,
    "tuning": _tuning,
    "training": _training,
    "publish": _publish,
    "cost": _cost,
}
"""Sections of a report, in order; each gives None for what the run has not reached."""
