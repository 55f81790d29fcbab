"""Published quickstart grids rest on these decisions: what the search decides with one and the same settings does not drift.

1. With the settings of the first grid (one restart, no halving; shorter ones ship since) every race, gate, alpha, verdict and stop is what
   it was when that grid was published: `tests/data/evolve/quickstart_decisions.json` was written by the search of then (commit b258671).
2. The instances of races and gates are those of that time, so stored episodes stay valid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from coevo.config import load_config
from coevo.evolve.evaluator import Play
from coevo.evolve.propose import Edit, Evidence
from coevo.evolve.rounds import Round
from coevo.evolve.search import SearchTask, search
from coevo.evolve.simulated import BetaNoise, SimulatedEvaluator
from coevo.harness.bundle import HarnessBundle
from coevo.identity import content_hash
from coevo.records import Episode
from coevo.tasks import load_family
from coevo.tasks.family import Size

ROOT = Path(__file__).parents[2]
LOCKED = json.loads((ROOT / "tests/data/evolve/quickstart_decisions.json").read_text(encoding="utf-8"))
SETTINGS = ("evolve.generations=6", "evolve.patience=3", "evolve.gate_instances=240")
NOISE = BetaNoise.of(mean=0.40, flip_rate=0.23)  # what was assumed of the embedded model then
DECIDING = ("search", "race", "gate")
EFFECTS = {"strong": 0.25, "fair": 0.12, "faint": 0.05, "null-a": 0.0, "null-b": 0.0, "harmful": -0.2}


def effect_of(name: str) -> float:
    """Effects of all edits that made a bundle, each counted once, within bounds."""
    return max(-0.35, min(0.5, sum(EFFECTS[word] for word in set(name.split("+")[1:]))))


@dataclass
class Named:
    """Proposes every edit once more, in an order drawn anew; bundles are told apart by name, so hashes may change and decisions may not."""

    effects: dict[str, float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    name: str = "named"

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]:
        words = [word for word in rng.sample(sorted(EFFECTS), len(EFFECTS)) if word not in parent.name.split("+")]
        edits = []
        for word in words:
            prompt = f"{parent.system_prompt.rstrip()} {word}\n"
            child = parent.replace(name=f"{parent.name}+{word}", system_prompt=prompt)
            self.effects[child.name] = effect_of(child.name)
            self.names[child.hash] = child.name
            edits.append(Edit("prompt", word, f"{word} may help", (), (), (), child))
        return edits


@dataclass
class Watched(SimulatedEvaluator):
    """Remembers what was played."""

    drawn: list[str] = field(default_factory=list)

    def play(self, plays: Sequence[Play]) -> list[Mapping[str, Episode]]:
        self.drawn += [item for play in plays if play.purpose in DECIDING and not play.null for item in play.items]
        return SimulatedEvaluator.play(self, plays)


def decided(one: Round, names: Mapping[str, str]) -> dict[str, Any]:
    gate = one.decision
    return {
        "generation": one.generation,
        "incumbent": names[one.incumbent],
        "incumbent_rate": one.incumbent_rate,
        "races": [[names[race.harness_hash], race.delta, race.instances] for race in one.races],
        "gate": None
        if gate is None
        else [gate.gate_id, names[gate.candidate], gate.gains, gate.losses, gate.p_value, gate.alpha, gate.accepted, str(gate.verdict)],
        "outcome": one.outcome,
    }


def decisions(seed: int) -> dict[str, Any]:
    """What the search decides with the first grid's settings and this seed."""
    config = load_config(ROOT / "jobs/configs/quickstart.yaml", SETTINGS)
    family = load_family(config.family)
    task = SearchTask(family, Size(config.size), config.diversity, config.evolve, seed)
    base = HarnessBundle.load(family.base_harness(Size(config.size))).replace(name="demo", parent=None)
    proposer = Named(names={base.hash: base.name})
    evaluator = Watched(seed, NOISE, effects=proposer.effects, identity=lambda bundle: bundle.name)
    record = search(base, task, evaluator=evaluator, proposer=proposer)
    return {
        "rounds": [decided(one, proposer.names) for one in record.rounds],
        "best": proposer.names[record.best_hash],
        "stopped": record.stopped,
        "instances": content_hash(sorted(set(evaluator.drawn))),
    }


@pytest.mark.parametrize("seed", range(6))
def test_quickstart_decisions_are_those_of_the_published_grid(seed: int) -> None:
    """Promises 1 and 2."""
    assert decisions(seed) == LOCKED[str(seed)]
