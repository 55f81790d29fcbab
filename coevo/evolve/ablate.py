"""Ablation: what each evolved component earns, by leaving it out; and a harness without those that earn nothing.

The components are the typed changes between h0 and h*; a composite tool and its line in `tools.yaml` are one. Harness and all variants play
the same fresh selection instances. A component is dispensable when it never fired, or when leaving it out lost nothing and no test says
that it helps. All dispensable ones are removed together, and the result replaces h* only if it is shown, on instances of its own, to lose
less than the margin. Limits: components that earn only together look dispensable apart, which is why the whole is tested again; a component
of the base harness is not ablated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from coevo.errors import ConfigError
from coevo.evolve.evaluator import Evaluator, Play
from coevo.evolve.faults import faults_by_component
from coevo.evolve.rounds import Confirmation
from coevo.evolve.search import SearchTask
from coevo.evolve.tiers import SelectionTier
from coevo.harness.bundle import HarnessBundle
from coevo.harness.edits import Change, apply_changes, changes_between, invert
from coevo.records import Comparison, Episode, Record, Verdict

__all__ = ["Ablation", "AblationRecord", "Unit", "ablate", "units"]

_FIRING_ROLES = ("hook", "tool", "skill")


class Ablation(BaseModel):
    """One component left out.

    Attributes:
        component: Its address.
        comparison: With - without, so that a gain is what it earns; None when the harness can't be without it alone, or all was owed.
        firings: Mean firings per episode of the whole harness; None for what has no moment of its own (prompt, tools shown, limits).
        tokens: Mean tokens per episode that it costs (with - without).
        dispensable: See the module docstring.
        off: Episodes of the whole harness in which it was switched off (it crashed, or was too slow or too large); None for what can't be,
            and in older records.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    component: str
    comparison: Comparison | None = None
    firings: float | None = None
    tokens: float | None = None
    dispensable: bool = False
    off: int | None = None


class AblationRecord(Record):
    """An ablation and what followed from it.

    Attributes:
        base_hash, full_hash: h0 and the harness ablated.
        instances: Of the first measurement.
        components: One per evolved component.
        check: The harness without the dispensable ones against the whole, on other instances; None when there are none.
        pruned: Whether it replaces the whole.
        best: Files of the harness that stands.
        episodes: Played.
    """

    base_hash: str
    full_hash: str
    instances: int
    components: tuple[Ablation, ...]
    check: Confirmation | None = None
    pruned: bool = False
    best: dict[str, str]
    episodes: int


@dataclass(frozen=True, slots=True)
class Unit:
    """Changes that can only be left out together; `name` is the address of the first."""

    name: str
    changes: tuple[Change, ...]

    def without(self, harness: HarnessBundle) -> HarnessBundle | None:
        """The harness without this unit; None when others build on it."""
        try:
            return apply_changes(harness, invert(self.changes))
        except ConfigError:
            return None


def units(base: HarnessBundle, best: HarnessBundle) -> tuple[Unit, ...]:
    """The evolved components: a composite tool goes with its entry."""
    groups: dict[str, list[Change]] = {}
    changes = changes_between(base, best)
    sources = {f"entry:{change.name}": change.component for change in changes if change.component.startswith("tool:")}
    for change in changes:
        groups.setdefault(sources.get(change.component, change.component), []).append(change)
    return tuple(Unit(name, tuple(parts)) for name, parts in groups.items())


def ablate(base: HarnessBundle, best: HarnessBundle, task: SearchTask, *, evaluator: Evaluator) -> AblationRecord:
    """Measure h* without each evolved component, and prune what earns nothing."""
    tier = SelectionTier.of(task.family, task.size, task.diversity, seed=task.seed, config=task.gate_config)
    parts = units(base, best)
    variants = {unit.name: bundle for unit in parts if (bundle := unit.without(best)) is not None}
    items = tier.draw("ablate", count=task.config.ablate_instances)
    plays = [Play(bundle, items, "ablate") for bundle in (best, *variants.values())] if parts else []
    played = list(evaluator.play(plays)) if plays else []
    rows = tuple(_row(unit, best, variants, played, task.seed) for unit in parts)
    spare = [unit for unit, row in zip(parts, rows, strict=True) if row.dispensable]
    pruned = _without(best, spare)
    check = None
    if pruned is not None:
        fresh = tier.draw("prune", count=task.config.ablate_instances)
        again = evaluator.play([Play(best, fresh, "prune"), Play(pruned, fresh, "prune")])
        played += again
        check = Confirmation.of(("h*", "pruned"), (best, pruned), again, seed=task.seed, level=0.90)
    stands = pruned is not None and check is not None and _loses_little(check.comparison, task.config.prune_margin)
    return AblationRecord(
        base_hash=base.hash,
        full_hash=best.hash,
        instances=len(items),
        components=rows,
        check=check,
        pruned=stands,
        best=(pruned if pruned is not None and stands else best).files(),
        episodes=sum(len(one) for one in played),
    )


def _row(
    unit: Unit, best: HarnessBundle, variants: Mapping[str, HarnessBundle], played: Sequence[Mapping[str, Episode]], seed: int
) -> Ablation:
    acts = unit.name.startswith(_FIRING_ROLES)
    firings = _firings(unit, played[0]) if acts else None
    off = faults_by_component(played[0].values()).get(unit.name, 0) if acts else None
    if unit.name not in variants:
        return Ablation(component=unit.name, firings=firings, off=off)
    without = played[1 + list(variants).index(unit.name)]
    made = Confirmation.of(("without", "with"), (variants[unit.name], best), (without, played[0]), seed=seed)
    if made is None:
        return Ablation(component=unit.name, firings=firings, off=off)
    tokens, spare = _tokens(played[0]) - _tokens(without), _dispensable(made.comparison, firings)
    return Ablation(component=unit.name, comparison=made.comparison, firings=firings, tokens=tokens, dispensable=spare, off=off)


def _dispensable(earned: Comparison, firings: float | None) -> bool:
    return earned.verdict is not Verdict.SUPPORTED and (firings == 0 or earned.delta <= 0)


def _loses_little(comparison: Comparison, margin: float) -> bool:
    """The lower end of a two-sided 90 % interval is a one-sided 95 % bound."""
    return comparison.low > -margin


def _without(best: HarnessBundle, spare: Sequence[Unit]) -> HarnessBundle | None:
    """The harness without these units, as far as they can be removed one after the other; None when nothing is."""
    pruned = best
    for unit in spare:
        pruned = unit.without(pruned) or pruned
    return pruned if pruned.hash != best.hash else None


def _firings(unit: Unit, played: Mapping[str, Episode]) -> float:
    return sum(episode.component_use.get(unit.name, 0) for episode in played.values()) / max(1, len(played))


def _tokens(played: Mapping[str, Episode]) -> float:
    return sum(one.usage.prompt_tokens + one.usage.completion_tokens for one in played.values()) / max(1, len(played))
