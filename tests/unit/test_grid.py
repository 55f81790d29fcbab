"""The grid: cells measured from committed episodes, compared in pairs.

1. A measurement is read from what is committed, and from nothing else (I12).
2. An owed item is listed and not scored (I3).
3. A pair is compared on what all its measurements have.
4. Cells with several training seeds resample them; only pairs that were measured are stated.
5. Of the learning rates tried the most successful wins, of equals the smallest.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from coevo.chat import Sampling
from coevo.evaluate.grid import COMPARISONS, Cell, best_rate, compare_cells, measure, stated_pairs
from coevo.fanout import FanoutPolicy, LocalExecutor
from coevo.mini.demonstrator import Demonstrator, Habits
from coevo.mini.harnesses import DemoHarness, base_demo, hand_made
from coevo.mini.tokenizer import save_tokenizer
from coevo.records import Measurement, Verdict
from coevo.rollout import AgentSource, RolloutStage, draw_items, parse_item
from coevo.store import LocalSource
from coevo.store.episodes import EpisodeStore
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream

FAMILY = load_family("payroll")
LOCAL = FanoutPolicy(concurrency=8, base_s=0.0)
ITEMS = draw_items(FAMILY, Stream.TEST, Size.MINI, range(8), diversity=3, repeats=2)
OWED = 3


@dataclass(frozen=True)
class ClerkSource:
    """The demonstrator as a picklable weak model."""

    harness: DemoHarness
    habits: Habits = field(default_factory=Habits)
    model_id: str = "demonstrator:7"

    def open(self) -> Demonstrator:
        return Demonstrator(self.harness, FAMILY, habits=self.habits, seed=7)


@dataclass(frozen=True)
class Bench:
    """Two cells whose episodes are committed; the last items of the second are owed."""

    episodes: EpisodeStore
    base: Cell
    evolved: Cell


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root: Path = tmp_path_factory.mktemp("grid")
    save_tokenizer(root / "tokenizer")
    store = LocalSource(str(root / "store"))

    def cell(name: str, harness: DemoHarness, items: tuple[str, ...]) -> Cell:
        source = AgentSource("payroll", ClerkSource(harness), harness.bundle, "mini", str(root / "tokenizer"), 4096, Sampling(0.7, 1.0, 96))
        report = LocalExecutor(LOCAL).map(RolloutStage(source, store, "run"), items)
        assert not report.owed
        return Cell(name, source, "base")

    base = cell("base/h0", base_demo(FAMILY), ITEMS)
    return Bench(EpisodeStore(store.open(), "run"), base, cell("base/h*", hand_made(FAMILY), ITEMS[:-OWED]))


def seeded(one: Measurement, name: str, seed: int, success: dict[str, tuple[int, ...]]) -> Measurement:
    return one.model_copy(update={"name": name, "training_seed": seed, "success": success, "owed": ()})


def test_a_measurement_is_what_is_committed(bench: Bench) -> None:
    """Promise 1: every number again from the episodes."""
    measured = measure(bench.base, ITEMS, bench.episodes)
    episodes = [bench.episodes.get(bench.base.agent.spec(item).id) for item in ITEMS]
    assert measured.owed == ()
    assert list(measured.success) == [parse_item(item)[0].key for item in ITEMS[::2]]
    assert [value for values in measured.success.values() for value in values] == [int(episode.success) for episode in episodes]
    assert sum(measured.status_counts.values()) == len(ITEMS)
    assert measured.mean_turns == sum(len(episode.turns) for episode in episodes) / len(ITEMS)
    assert measured.usage.prompt_tokens == sum(episode.usage.prompt_tokens for episode in episodes) > 0
    assert measured.usage.completion_tokens == sum(episode.usage.completion_tokens for episode in episodes) > 0
    agent = bench.base.agent
    assert (measured.model_id, measured.harness_hash, measured.family) == (agent.model.model_id, agent.bundle.hash, "payroll")
    assert (measured.stream, measured.size, measured.serving_form, measured.training_seed) == ("test", "mini", "base", None)
    assert measured.component_use == {}
    assert measure(bench.base, ITEMS, bench.episodes).to_bytes() == measured.to_bytes()


def test_owed_items_are_listed_and_not_scored(bench: Bench) -> None:
    """Promise 2: three of sixteen were never played; no zero appears for them."""
    measured = measure(bench.evolved, ITEMS, bench.episodes)
    assert measured.owed == ITEMS[-OWED:]
    assert sum(len(values) for values in measured.success.values()) == len(ITEMS) - OWED
    assert sum(measured.status_counts.values()) == len(ITEMS) - OWED
    assert parse_item(ITEMS[-1])[0].key not in measured.success
    assert len(measured.success[parse_item(ITEMS[-OWED])[0].key]) == 1
    assert measured.component_use["tool:compute_pay"] > 0


def test_a_cell_nobody_played_is_owed_as_a_whole(bench: Bench) -> None:
    """Promise 2."""
    unplayed = replace(bench.base, name="other", agent=replace(bench.base.agent, sampling=Sampling(0.1, 1.0, 96)), training_seed=4)
    measured = measure(unplayed, ITEMS, bench.episodes)
    assert (measured.owed, measured.success, measured.status_counts) == (ITEMS, {}, {})
    assert measured.training_seed == 4


def test_a_pair_is_compared_on_what_both_have(bench: Bench) -> None:
    """Promise 3: instances with an owed repeat on either side drop out of both."""
    cells = {cell.name: [measure(cell, ITEMS, bench.episodes)] for cell in (bench.base, bench.evolved)}
    (comparison,) = compare_cells(cells, level=0.95, seed=0)
    assert (comparison.a, comparison.b) == ("base/h0", "base/h*")
    shared = [parse_item(item)[0].key for item in ITEMS[:12:2]]
    assert comparison.pairs == 2 * len(shared)
    a, b = (cells[name][0].success for name in ("base/h0", "base/h*"))
    assert comparison.delta == pytest.approx(sum(sum(b[key]) - sum(a[key]) for key in shared) / (2 * len(shared)))
    assert comparison.low <= comparison.delta <= comparison.high
    assert compare_cells(cells, level=0.95, seed=0) == [comparison]


def test_several_training_seeds_are_resampled_together(bench: Bench) -> None:
    """Promise 4: two adapters of an arm against one base; the pairs of both count."""
    base = measure(bench.base, ITEMS, bench.episodes)
    keys = sorted(base.success)
    none, every = dict.fromkeys(keys, (0, 0)), dict.fromkeys(keys, (1, 1))
    lost = seeded(base, "base/h*", 0, none)
    cells = {
        "base/h*": [lost.model_copy(update={"training_seed": None})],
        "correction/h*": [seeded(base, "correction/h*", seed, every) for seed in (0, 1)],
        "imitation/h*": [seeded(base, "imitation/h*", 0, every), seeded(base, "imitation/h*", 1, none)],
    }
    split, sure, _ = compare_cells(cells, level=0.95, seed=0)  # in the order of COMPARISONS
    assert sure.pairs == split.pairs == 2 * 2 * len(keys)
    assert (sure.delta, sure.verdict) == (1.0, Verdict.SUPPORTED)
    assert (split.delta, split.verdict) == (0.5, Verdict.INCONCLUSIVE)
    assert split.high - split.low > sure.high - sure.low


def test_a_comparison_carries_the_names_of_its_cells(bench: Bench) -> None:
    """Promise 4: however many training seeds a cell has, the report finds its pair by these names (I12)."""
    base = measure(bench.base, ITEMS, bench.episodes)
    cells = {name: [seeded(base, name, seed, dict(base.success)) for seed in (0, 1)] for name in ("correction/h*", "imitation/h*")}
    cells["base/h*"] = [base.model_copy(update={"name": "base/h*"})]
    found = [(one.a, one.b) for one in compare_cells(cells, level=0.95, seed=0)]
    assert found == [pair for pair in COMPARISONS if pair[0] in cells and pair[1] in cells]


def test_pairs_without_both_cells_are_not_stated(bench: Bench) -> None:
    """Promise 4."""
    base = measure(bench.base, ITEMS, bench.episodes)
    assert compare_cells({"base/h0": [base], "expert/h*": [base]}, level=0.95, seed=0) == []
    assert compare_cells({}, level=0.95, seed=0) == []


def test_every_control_arm_stands_against_base_imitation_and_correction() -> None:
    """Promise 4: under h*, where the arms are compared; known cells add nothing."""
    assert stated_pairs(["base/h0", "base/h*", "expert/h*", "correction/h*", "imitation/h*"]) == COMPARISONS
    more = stated_pairs(["base/h*", "last_turn/h0", "last_turn/h*"])[len(COMPARISONS) :]
    assert more == (("base/h*", "last_turn/h*"), ("imitation/h*", "last_turn/h*"), ("last_turn/h*", "correction/h*"))


def test_the_best_rate_wins_and_of_equals_the_smallest(bench: Bench) -> None:
    """Promise 5."""
    base = measure(bench.base, ITEMS, bench.episodes)

    def winning(*outcomes: int) -> Measurement:
        return base.model_copy(update={"success": {str(number): (outcome,) for number, outcome in enumerate(outcomes)}})

    assert best_rate({3e-3: winning(1, 1, 0), 1e-3: winning(1, 0, 0), 1e-4: winning(0, 0, 1)}) == 3e-3
    assert best_rate({3e-3: winning(1, 0, 0), 1e-3: winning(0, 1, 0), 1e-4: winning(0, 0, 0)}) == 1e-3
