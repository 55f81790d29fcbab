"""How often a whole search accepts what it should not, and misses what it should find: thousands of searches on a simulated agent.

    nice -n 19 python tests/bench/bench_null.py [--runs 2000] [--cases null hurt power ...] [--log null.jsonl]

The search, the race, the gate and the proposer's bundles are the real ones; only episodes are coins (`coevo.evolve.simulated`), with the
noise of the embedded model (`MINI_NOISE`). Tokens are not simulated: the gate's bound on tokens could only refuse more. Every run is one
line of the log, so an interrupted bench goes on where it was. Cases:

- null: four edits a generation that do nothing (comment, whitespace, renamed variable, inert hook), the quickstart's settings.
- null-managed: the same with three restarts, halving, parents from the archive and the futility stop.
- hurt: every edit costs 5 points. hurt-managed: likewise.
- power: one edit a generation that gains 10 points, gate and generations as theory asks. power-among: three that do nothing beside it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import special, stats

from coevo.config import EvolveConfig, load_config
from coevo.evaluate.stats import clopper_pearson, paired_power, pairs_needed
from coevo.evolve.plan import NULL_EPISODES
from coevo.evolve.rounds import SearchRecord
from coevo.evolve.search import SearchTask, search
from coevo.evolve.simulated import MINI_NOISE, BetaNoise, FutileProposer, SimulatedEvaluator
from coevo.harness.bundle import HarnessBundle
from coevo.tasks import load_family
from coevo.tasks.family import Size

FAMILY = load_family("payroll")
BASE = HarnessBundle.load(FAMILY.base_harness(Size.MINI))
GAIN, HARM = 0.10, -0.05
POWER_GATE, POWER_RUN = 0.90, 0.80
QUICKSTART = Path(__file__).resolve().parents[2] / "jobs" / "configs" / "quickstart.yaml"
MANAGED = {"restarts": 3, "halving": 2, "parents": "pareto", "futility_share": 0.35}


@dataclass(frozen=True, slots=True)
class Theory:
    """What an edit that gains `GAIN` needs, from exact binomials.

    Attributes:
        discordant: Share of pairs that differ.
        pairs: Instances of a gate that has `POWER_GATE`.
        race: Chance that the edit, alone, gains on the search instances.
        gate: Power of such a gate.
        generations: Fewest generations that find the edit with `POWER_RUN`.
        episodes: Of so many generations.
    """

    discordant: float
    pairs: int
    race: float
    gate: float
    generations: int
    episodes: int

    @property
    def run(self) -> float:
        """Chance that a run of so many generations accepts the edit."""
        return 1 - (1 - self.race * self.gate) ** self.generations


def theory(search_instances: int, *, alpha: float, noise: BetaNoise = MINI_NOISE) -> Theory:
    """Fewest generations first: alpha per gate, and so the size of a gate, depends on how many there may be."""
    discordant = _discordant(noise)
    race = _race_chance(search_instances, discordant)
    for generations in range(1, 20):
        share = alpha / generations
        pairs = pairs_needed(GAIN, discordant_share=discordant, alpha=share, power=POWER_GATE)
        gate = paired_power(pairs, delta=GAIN, discordant_share=discordant, alpha=share)
        if 1 - (1 - race * gate) ** generations >= POWER_RUN:
            episodes = generations * (2 * search_instances + 2 * pairs + NULL_EPISODES)
            return Theory(discordant, pairs, race, gate, generations, episodes)
    raise SystemExit("no number of generations is enough: raise search_instances")


def _discordant(noise: BetaNoise) -> float:
    """E[p (1 - q) + q (1 - p)] with q = p + GAIN (1 - p) / (1 - mean), p Beta(a, b)."""
    total, mean = noise.a + noise.b, noise.mean
    square = noise.a * (noise.a + 1) / (total * (total + 1))
    share = GAIN / (1 - mean)
    q, pq = mean + share * (1 - mean), square + share * (mean - square)
    return mean + q - 2 * pq


def _race_chance(instances: int, discordant: float) -> float:
    """P(gains > losses) on so many instances."""
    up = (discordant + GAIN) / (2 * discordant)
    chance = 0.0
    for differing in range(1, instances + 1):
        wins = special.bdtrc(differing // 2, differing, up)
        chance += float(stats.binom.pmf(differing, instances, discordant)) * float(wins)
    return chance


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of run."""

    config: EvolveConfig
    effect: float
    first_only: bool = False
    alone: bool = False


def cases() -> dict[str, Case]:
    """All cases by name."""
    quick = load_config(QUICKSTART).evolve.model_copy(update={"confirm_instances": 0})
    managed = quick.model_copy(update=MANAGED)
    needs = theory(quick.search_instances, alpha=quick.alpha)
    sized = {"gate_instances": needs.pairs, "generations": needs.generations, "patience": needs.generations}
    powered = quick.model_copy(update=sized)
    return {
        "null": Case(quick, 0.0),
        "hurt": Case(quick, HARM),
        "power": Case(powered, GAIN, first_only=True, alone=True),
        "power-among": Case(powered, GAIN, first_only=True),
        "null-managed": Case(managed, 0.0),
        "hurt-managed": Case(managed, HARM),
    }


def run(case: Case, seed: int) -> dict[str, Any]:
    """One search; what it accepted and what that took."""
    planted: dict[str, float] = {}
    proposer = FutileProposer(planted, effect=case.effect, first_only=case.first_only, alone=case.alone)
    evaluator = SimulatedEvaluator(seed, effects=planted)
    task = SearchTask(FAMILY, Size.MINI, 1, case.config, seed)
    record = search(BASE, task, evaluator=evaluator, proposer=proposer)
    first = next((at for at, one in enumerate(record.rounds) if one.accepted), None)
    return {
        "seed": seed,
        "accepted": record.accepted,
        "gates": sum(one.decision is not None for one in record.rounds),
        "effect": planted.get(record.best_hash, 0.0),
        "episodes": evaluator.played,
        "to_first": None if first is None else _spent(record, first),
    }


def _spent(record: SearchRecord, last: int) -> int:
    """Episodes up to the end of a round, the null model's included."""
    rounds = record.rounds[: last + 1]
    return sum(one.episodes + NULL_EPISODES * (one.decision is not None) for one in rounds)


def summary(name: str, case: Case, rows: Sequence[dict[str, Any]]) -> str:
    """One line: the share that accepted anything (under "power": that found the edit in time) with its 95 % interval, gates, episodes."""
    needs = theory(case.config.search_instances, alpha=case.config.alpha)
    if case.alone:
        hits = sum(row["to_first"] is not None and row["to_first"] <= needs.episodes for row in rows)
    elif case.first_only:
        hits = sum(row["effect"] > 0 for row in rows)
    else:
        hits = sum(row["accepted"] > 0 for row in rows)
    low, high = clopper_pearson(hits, len(rows))
    gates, episodes = (sum(row[key] for row in rows) / len(rows) for key in ("gates", "episodes"))
    share = f"{hits} of {len(rows)} = {hits / len(rows):.4f} [{low:.4f}, {high:.4f}]"
    tail = f"; theory: {needs.run:.3f} within {needs.episodes} episodes" if case.alone else ""
    return f"{name}: {share}; {gates:.2f} gates, {episodes:.0f} episodes{tail}"


def _done(log: Path) -> Iterator[dict[str, Any]]:
    if log.exists():
        yield from (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("}"))


def main() -> None:
    """Run what is missing, then print a line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = cases()
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--cases", nargs="+", choices=list(known), default=list(known))
    parser.add_argument("--log", type=Path, default=Path("null.jsonl"))
    options = parser.parse_args()
    needs = theory(known["power"].config.search_instances, alpha=known["power"].config.alpha)
    noise = f"Beta({MINI_NOISE.a:.3f}, {MINI_NOISE.b:.3f}): mean {MINI_NOISE.mean:.2f}, flip rate {MINI_NOISE.flip_rate:.2f}"
    print(f"noise {noise}")
    print(
        f"theory: +{100 * GAIN:.0f} points, {needs.discordant:.3f} of pairs differ; race passed {needs.race:.3f}, gate of {needs.pairs} "
        f"pairs passed {needs.gate:.3f}; {needs.generations} generations, {needs.episodes} episodes: found {needs.run:.3f}"
    )
    for name in options.cases:
        rows = {row["seed"]: row for row in _done(options.log) if row["case"] == name}
        started_s = time.process_time()
        missing = [seed for seed in range(options.runs) if seed not in rows]
        with options.log.open("a", encoding="utf-8") as log:
            for seed in missing:
                rows[seed] = run(known[name], seed)
                log.write(json.dumps({"case": name, **rows[seed]}) + "\n")
        spent_ms = 1000 * (time.process_time() - started_s) / max(1, len(missing))
        print(summary(name, known[name], list(rows.values())), f"({spent_ms:.0f} ms CPU a run)" if missing else "", flush=True)


if __name__ == "__main__":
    main()
