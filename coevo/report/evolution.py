"""The numbers of a harness search: lineage tree, every edit with its evidence and effect, score against budget, restarts, confirmation.

Rates of a round are measured on instances that its races used too; the figure to report is the confirmation's, on instances of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from coevo.evaluate.stats import wilson
from coevo.evolve.ablate import AblationRecord
from coevo.evolve.archive import Archive
from coevo.evolve.baselines import BaselineRecord
from coevo.evolve.propose import PredictionScore
from coevo.evolve.rounds import Race, Round, SearchRecord
from coevo.identity import short
from coevo.records import Measurement

__all__ = ["ablation_numbers", "baseline_numbers", "evolution_lines", "search_numbers"]

Numbers = dict[str, Any]


def search_numbers(record: SearchRecord) -> Numbers:
    """The section's numbers, without its sources."""
    gates = [one.decision for one in record.rounds if one.decision is not None]
    return {
        "h0": record.base_hash,
        "h*": record.best_hash,
        "accepted": record.accepted,
        "gates": len(gates),
        "edits_raced": sum(len(one.races) for one in record.rounds),
        "episodes": record.episodes,
        "stopped": record.stopped,
        "alpha_spent": sum(gate.alpha for gate in gates),
        "rounds": [_round(one) for one in record.rounds],
        "lineage": _lineage(record),
        "tree": list(_tree(record)),
        "edits": _edits(record),
        "score": list(_score(record)),
        "restarts": [one.model_dump(mode="json") for one in record.restarts],
        "finalists": [_finalist(one.harness_hash, one.successes, one.instances) for one in record.finalists],
        "confirmation": _confirmation(record),
    }


def ablation_numbers(record: AblationRecord | None) -> Numbers | None:
    """Component by component: firings, what it earns, whether it stays; None when nothing was ablated."""
    if record is None:
        return None
    rows = [one.model_dump(mode="json") for one in record.components]
    check = record.check.comparison if record.check is not None else None
    made = {"instances": record.instances, "components": rows, "pruned": record.pruned, "episodes": record.episodes}
    return {**made, "check": check.model_dump(mode="json") if check is not None else None}


def baseline_numbers(record: BaselineRecord | None) -> Numbers | None:
    """One row per way to spend the episodes; None when none was asked for."""
    if record is None:
        return None
    rows = []
    for one in record.rows:
        against = one.against_best.model_dump(mode="json") if one.against_best is not None else None
        shown = _finalist(one.measurement.harness_hash, _wins(one.measurement), len(one.measurement.success))
        rows.append({"name": one.name, **shown, "h* - this": against, "episodes": one.episodes, "tries": one.tries, "any_try": one.any_try})
        rows[-1]["note"] = one.note
    return {"budget": record.budget, "instances": record.instances, "rows": rows}


def evolution_lines(record: SearchRecord, ablation: AblationRecord | None, baselines: BaselineRecord | None) -> tuple[str, ...]:
    """The evolution for a terminal."""
    lines = list(_search_lines(record))
    for part in ablation.components if ablation is not None else ():
        earned = "others build on it" if part.comparison is None else f"earns {part.comparison.delta:+.3f}, {part.comparison.verdict}"
        fired = "" if part.firings is None else f", {part.firings:.2f} firings an episode"
        off = f", switched off in {part.off} of {ablation.instances} episodes" if ablation is not None and part.off else ""
        lines.append(f"  {part.component}: {earned}{fired}{off}{'; earns nothing' if part.dispensable else ''}")
    if ablation is not None and ablation.check is not None:
        lines.append(f"without what earns nothing: {'kept so' if ablation.pruned else 'not shown to lose little, all of them stay'}")
    for row in baselines.rows if baselines is not None else ():
        wins, shown = _wins(row.measurement), len(row.measurement.success)
        lines.append(f"  {row.name}: {wins} of {shown} fresh instances, {row.episodes} episodes")
    return tuple(lines)


def _search_lines(record: SearchRecord) -> tuple[str, ...]:
    lines = [f"h0 {short(record.base_hash)} -> h* {short(record.best_hash)}: {record.accepted} edits accepted; {record.stopped}"]
    many = len(record.restarts) > 1
    for one in record.rounds:
        where = f"restart {one.restart}, generation {one.generation}" if many else f"generation {one.generation}"
        gate = one.decision
        mechanism = next((race.mechanism for race in one.races if gate is not None and race.harness_hash == gate.candidate), "")
        shown = f" ({mechanism}: {gate.delta:+.3f}, p {gate.p_value:.2g})" if gate is not None else ""
        lines.append(f"  {where}: incumbent {one.incumbent_rate:.2f} on its search instances; {one.outcome}{shown}")
    if record.confirmation is not None:
        made = record.confirmation.comparison
        lines.append(
            f"measured again on {made.pairs} fresh instances: {made.delta:+.3f} [{made.low:+.3f}, {made.high:+.3f}]: {made.verdict}"
        )
    return tuple(lines)


def _round(one: Round) -> Numbers:
    races = sorted(one.races, key=lambda race: -race.delta)
    return {
        "generation": one.generation,
        "restart": one.restart,
        "incumbent": one.incumbent,
        "incumbent_rate": one.incumbent_rate,
        "outcome": one.outcome,
        "races": [race.model_dump(mode="json") for race in races],
        "gate": one.decision.model_dump(mode="json") if one.decision is not None else None,
    }


def _lineage(record: SearchRecord) -> list[Numbers]:
    """The accepted edits in order: from h0 to h*."""
    races = {race.harness_hash: race for one in record.rounds for race in one.races}
    accepted = {gate.candidate: (one.generation, gate) for one in record.rounds if (gate := one.decision) is not None and gate.accepted}
    steps: list[Numbers] = []
    name = record.best_hash
    while name in accepted:
        (generation, gate), race = accepted.pop(name), races.get(name)
        steps.append(
            {
                "generation": generation,
                "harness_hash": name,
                "component": race.component if race else "",
                "mechanism": race.mechanism if race else "",
                "hypothesis": race.hypothesis if race else "",
                "gate_delta": gate.delta,
                "gate_p": gate.p_value,
            }
        )
        name = gate.incumbent
    return steps[::-1]


def _tree(record: SearchRecord) -> Iterator[Numbers]:
    """All candidates, children below their parents, restart by restart."""
    for restart in sorted({one.restart for one in record.archive}):
        archive = Archive([one for one in record.archive if one.restart == restart])
        weights = archive.weights()
        for one in _below(archive, None):
            mean = one.mean
            yield {
                "restart": restart,
                "depth": len(archive.lineage(one.harness_hash)) - 1,
                "harness_hash": one.harness_hash,
                "parent": one.parent,
                "summary": one.summary,
                "generation": one.generation,
                "accepted": one.accepted,
                "best": one.harness_hash == record.best_hash,
                "search_rate": mean,
                "search_instances": len(one.outcomes),
                "best_on": weights[one.harness_hash],
            }


def _below(archive: Archive, parent: str | None) -> Iterator[Any]:
    for one in archive.candidates:
        if one.parent == parent:
            yield one
            yield from _below(archive, one.harness_hash)


def _edits(record: SearchRecord) -> list[Numbers]:
    """Every edit over all its races and gates: evidence, effect, and how its predictions came out."""
    raced: dict[str, list[Race]] = {}
    for one in record.rounds:
        for race in one.races:
            raced.setdefault(race.harness_hash, []).append(race)
    gates: dict[str, list[Numbers]] = {}
    for one in record.rounds:
        if one.decision is not None:
            keys = ("gate_id", "delta", "p_value", "alpha", "accepted", "verdict", "refusals")
            gates.setdefault(one.decision.candidate, []).append({key: one.decision.model_dump(mode="json")[key] for key in keys})
    return [_edit(races, gates.get(name, [])) for name, races in raced.items()]


def _edit(races: Sequence[Race], gates: list[Numbers]) -> Numbers:
    first, instances = races[0], sum(race.instances for race in races)
    return {
        "harness_hash": first.harness_hash,
        "component": first.component,
        "mechanism": first.mechanism,
        "hypothesis": first.hypothesis,
        "evidence": [list(place) for place in first.evidence],
        "risks": list(first.risks),
        "races": len(races),
        "stopped_early": sum(race.futile for race in races),
        "race_delta": sum(race.delta * race.instances for race in races) / instances if instances else None,
        "race_instances": instances,
        "forecast": _scored([race.forecast for race in races if race.forecast is not None]),
        "gates": gates,
        "accepted": any(gate["accepted"] for gate in gates),
    }


def _scored(forecasts: Sequence[PredictionScore]) -> Numbers | None:
    """Predictions that came true, over all races; None where nothing was scored."""
    if not forecasts:
        return None
    total: Numbers = {name: sum(getattr(one, name) for one in forecasts) for name in PredictionScore._fields}
    shares = (("fixes", "right_fixes", "predicted_fixes"), ("regressions", "right_regressions", "predicted_regressions"))
    return total | {f"{name}_hit_share": total[right] / total[all_] if total[all_] else None for name, right, all_ in shares}


def _score(record: SearchRecord) -> Iterator[Numbers]:
    """The incumbent's success against episodes spent, per restart; nothing for records that did not count them."""
    spent: dict[int, int] = {}
    for one in record.rounds:
        if not one.incumbent_instances:
            continue
        spent[one.restart] = spent.get(one.restart, 0) + one.episodes
        wins = round(one.incumbent_rate * one.incumbent_instances)
        shown = _finalist(one.incumbent, wins, one.incumbent_instances)
        yield {"restart": one.restart, "generation": one.generation, "episodes": spent[one.restart], **shown}


def _finalist(harness_hash: str, successes: int, instances: int) -> Numbers:
    low, high = wilson(successes, instances) if instances else (None, None)
    rate = successes / instances if instances else None
    return {"harness_hash": harness_hash, "successes": successes, "instances": instances, "rate": rate, "low": low, "high": high}


def _confirmation(record: SearchRecord) -> Numbers | None:
    made = record.confirmation
    if made is None:
        return None
    sides = {name: _finalist(one.harness_hash, _wins(one), len(one.success)) for name, one in (("h0", made.base), ("h*", made.best))}
    return {**sides, "comparison": made.comparison.model_dump(mode="json")}


def _wins(one: Measurement) -> int:
    return sum(value for row in one.success.values() for value in row)
