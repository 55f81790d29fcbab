"""The arithmetic of a search before it starts: at most so many episodes, and how many the wanted power would need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coevo.config import EvolveConfig
from coevo.evolve.halving import schedule

__all__ = ["NULL_EPISODES", "SearchPlan", "closing_episodes", "plan_search"]

NULL_EPISODES = 20
"""Episodes of the model that knows nothing, per gate."""
_PARTS = 3  # a recipe tool is a tool, its entries and a playbook


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Upper bounds that follow from the settings.

    Attributes:
        generations: Of all restarts together.
        race_episodes: On the search stream, per generation.
        gate_episodes: Both sides and the null model, per generation.
        rung_episodes: For ranking restarts, in all.
        closing: What the end of the search plays, by purpose.
        restarts: Restarts that begin together: each plays a generation before halving drops one.
        ablation: Without each component of as many edits as could be accepted, `_PARTS` components each.
        baselines: The baselines of the settings, each with the episodes of the search.
    """

    generations: int
    race_episodes: int
    gate_episodes: int
    rung_episodes: int
    closing: Mapping[str, int]
    restarts: int = 1
    ablation: int = 0
    baselines: int = 0

    @property
    def episodes(self) -> int:
        """In all."""
        return self.search_episodes + self.ablation + self.baselines

    @property
    def search_episodes(self) -> int:
        """Of the search alone."""
        return self.generations * (self.race_episodes + self.gate_episodes) + self.rung_episodes + sum(self.closing.values())

    @property
    def first_candidate(self) -> int:
        """Of one restart, from nothing to the verdict on its first candidate."""
        return self.race_episodes + self.gate_episodes

    @property
    def first_candidates(self) -> int:
        """Of all restarts, for they go side by side."""
        return self.restarts * self.first_candidate

    @property
    def least(self) -> int:
        """What a search must be able to pay: the first candidate of every restart, and its end, which is held back from the start."""
        return self.first_candidates + sum(self.closing.values())

    def with_gates_of(self, pairs: int, *, gate_instances: int) -> SearchPlan:
        """The same search with gates of another size."""
        return replace(self, gate_episodes=self.gate_episodes + 2 * (pairs - gate_instances))

    @property
    def least_words(self) -> str:
        """The least and the most in words."""
        held = f" + {sum(self.closing.values()):,} held back for its end" if self.closing else ""
        first = f"{self.restarts} x {self.first_candidate:,} to the first verdict of each restart{held}"
        return f"search: at least {self.least:,} episodes ({first}), at most {self.search_episodes:,}"

    @property
    def words(self) -> str:
        """The sum in words."""
        parts = [f"{self.generations} generations x ({self.race_episodes} on the search stream + {self.gate_episodes} at the gate)"]
        parts += [f"{self.rung_episodes} to rank restarts"] if self.rung_episodes else []
        parts += [f"{count} {what}" for count, what in ((self.ablation, "to ablate"), (self.baselines, "for baselines")) if count]
        names = {"final": "to choose among restarts", "confirm": "to measure the winner again"}
        return " + ".join([*parts, *(f"{count} {names[purpose]}" for purpose, count in self.closing.items())])


def closing_episodes(config: EvolveConfig) -> dict[str, int]:
    """Episodes by purpose that are played after the last generation."""
    final = config.restarts * config.gate_instances if config.restarts > 1 else 0
    return {purpose: count for purpose, count in (("final", final), ("confirm", 2 * config.confirm_instances)) if count}


def plan_search(config: EvolveConfig) -> SearchPlan:
    """The plan of one `evolve` call."""
    rungs = schedule(restarts=config.restarts, generations=config.generations, factor=config.halving)
    players = 1 if config.parents == "incumbent" else 1 + config.proposer_calls
    plan = SearchPlan(
        generations=sum(rung.generations for rung in rungs),
        race_episodes=config.search_instances * (players + config.proposals + config.crossovers),
        gate_episodes=2 * config.gate_instances + NULL_EPISODES,
        rung_episodes=sum(rung.restarts for rung in rungs[:-1]) * config.search_instances,
        closing=closing_episodes(config),
        restarts=config.restarts,
        ablation=config.ablate_instances * (3 + _PARTS * config.generations),
    )
    shown = config.baseline_instances * (2 + len(config.baselines))
    return replace(plan, baselines=shown + len(config.baselines) * plan.search_episodes) if config.baselines else plan
