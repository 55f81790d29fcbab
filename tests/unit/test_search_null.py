"""Whole searches on a simulated agent: what is accepted by chance, and what is found (`tests/bench/bench_null.py` at full size).

1. Searches of edits that do nothing accept anything with at most the stated alpha, managed or not.
2. Searches of edits that hurt accept nothing.
3. An edit that gains is accepted with the power of theory.
4. The simulation can fail: a gate without a test exceeds what is allowed.
5. The simulated agent is what it says: mean, flip rate and effects come out as stated.
"""

from __future__ import annotations

import pytest
from scipy.stats import binom

from coevo.config import EvolveConfig
from coevo.errors import ConfigError
from coevo.evaluate.stats import paired_power
from coevo.evolve.evaluator import Play
from coevo.evolve.rounds import SearchRecord
from coevo.evolve.search import SearchTask, search
from coevo.evolve.simulated import MINI_NOISE, BetaNoise, FutileProposer, SimulatedEvaluator, futile_edits
from coevo.harness.bundle import HarnessBundle
from coevo.harness.lint import lint
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream

FAMILY = load_family("payroll")
BASE = HarnessBundle.load(FAMILY.base_harness(Size.MINI))
SMALL = {"generations": 3, "proposals": 2, "search_instances": 10, "gate_instances": 30, "max_lost_share": 1.0, "confirm_instances": 0}
MANAGED = {"restarts": 2, "generations": 2, "parents": "pareto", "futility_share": 0.5, "crossovers": 1}


def searched(seed: int, *, effect: float = 0.0, alone: bool = False, **changes: object) -> SearchRecord:
    planted: dict[str, float] = {}
    task = SearchTask(FAMILY, Size.MINI, 1, EvolveConfig.model_validate({**SMALL, **changes}), seed)
    proposer = FutileProposer(planted, effect=effect, alone=alone)
    return search(BASE, task, evaluator=SimulatedEvaluator(seed, effects=planted), proposer=proposer)


def accepting(runs: int, **changes: object) -> int:
    return sum(searched(seed, **changes).accepted > 0 for seed in range(runs))  # type: ignore[arg-type]


@pytest.mark.parametrize(("runs", "settings"), [(60, {}), (20, MANAGED)])
def test_edits_that_do_nothing_pass_with_at_most_alpha(runs: int, settings: dict[str, object]) -> None:
    """Promise 1 (H3, H5, H7, H8, H9)."""
    accepted = accepting(runs, **settings)
    assert accepted <= binom.ppf(0.99, runs, 0.10), f"{accepted} of {runs} searches accepted an edit that does nothing"


def test_the_simulation_can_fail() -> None:
    """Promise 4: one gate that asks only for a gain of any size."""
    runs = 30
    assert accepting(runs, alpha=0.99, generations=1, proposals=4, search_instances=20) > binom.ppf(0.99, runs, 0.10)


def test_edits_that_hurt_never_pass() -> None:
    """Promise 2."""
    assert accepting(20, effect=-0.10) == 0


def test_an_edit_that_gains_is_found_with_the_power_of_theory() -> None:
    """Promise 3: +30 points, one generation, one edit: the race lets it through and the gate has its power."""
    runs, effect, gate = 40, 0.30, 30
    found = accepting(runs, effect=effect, alone=True, generations=1, search_instances=20)
    power = paired_power(gate, delta=effect, discordant_share=0.425, alpha=0.10)
    assert 0.85 < power < 0.99
    assert found >= binom.ppf(0.01, runs, 0.97 * power), f"{found} of {runs} at power {power:.2f}"


def test_the_simulated_agent_is_as_stated() -> None:
    """Promise 5."""
    items = tuple(f"payroll/mini/audit/{Stream.SEARCH}/{number}#{repeat}" for number in range(3000) for repeat in range(2))
    better = BASE.replace(name="better", system_prompt=f"{BASE.system_prompt.rstrip()} better\n")
    evaluator = SimulatedEvaluator(4, effects={better.hash: 0.2})
    plain, shifted = (evaluator.play([Play(bundle, items, "race")])[0] for bundle in (BASE, better))
    wins = [plain[item].success for item in items]
    assert sum(wins) / len(wins) == pytest.approx(MINI_NOISE.mean, abs=0.02)
    flips = sum(first != second for first, second in zip(wins[::2], wins[1::2], strict=True)) / 3000
    assert flips == pytest.approx(MINI_NOISE.flip_rate, abs=0.025)
    assert sum(shifted[item].success for item in items) / len(items) - sum(wins) / len(wins) == pytest.approx(0.2, abs=0.025)
    assert evaluator.play([Play(BASE, items, "gate")])[0] == plain, "an episode depends on seed, harness and item only"
    with pytest.raises(ConfigError, match="flips"):
        BetaNoise.of(mean=0.5, flip_rate=0.6)


def test_futile_edits_are_harnesses_of_their_own_that_lint_finds_clean() -> None:
    made = futile_edits(BASE, 3)
    assert len({bundle.hash for _, bundle in made} | {BASE.hash}) == 5
    assert all(lint(bundle, FAMILY.tools(Size.MINI)) == [] for _, bundle in made)
