"""A search over a real store, killed where it hurts.

1. Killed at ten random episodes and run again, it decides what an undisturbed search decides, to the byte.
2. No committed episode is played twice: one attempt each; the ledger holds each batch once.
3. Its own budget ends a search between two batches: what was paid stays, what was accepted stays, the last measurement is still made.
4. A budget that can't pay for one candidate of every restart is refused before anything is spent; the least that is taken suffices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from coevo.chat import Sampling
from coevo.config import EvolveConfig, SearchBudgetConfig
from coevo.errors import BudgetExceeded, ConfigError
from coevo.evolve.budget import MeteredEvaluator, check_search_budget
from coevo.evolve.evaluator import Play
from coevo.evolve.plan import closing_episodes, plan_search
from coevo.evolve.rounds import SearchRecord
from coevo.evolve.search import SearchTask, search
from coevo.evolve.simulated import FutileProposer, SimulatedEvaluator
from coevo.harness.bundle import HarnessBundle
from coevo.records import Attempt, Episode, EpisodeSpec, Grade, Status, UsageRecord
from coevo.store.episodes import EpisodeStore
from coevo.store.ledger import Budget, Ledger, Spend
from coevo.store.local import LocalStore
from coevo.tasks import load_family
from coevo.tasks.family import Size

FAMILY = load_family("payroll")
BASE = HarnessBundle.load(FAMILY.base_harness(Size.MINI))
CONFIG = EvolveConfig(
    generations=2,
    proposals=2,
    search_instances=6,
    gate_instances=16,
    confirm_instances=8,
    restarts=2,
    parents="pareto",
    futility_share=0.5,
    crossovers=1,
    max_lost_share=1.0,
)
TASK = SearchTask(FAMILY, Size.MINI, 1, CONFIG, 2)
EACH = Spend(tokens=100, episodes=1)


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Committed:
    """Coins that are committed one by one, with an attempt each; dies when `left` episodes more were played."""

    coins: SimulatedEvaluator
    store: EpisodeStore
    left: int = 10**9
    played: int = 0
    read: int = 0
    ids: set[str] = field(default_factory=set)

    def play(self, plays: Sequence[Play]) -> list[Mapping[str, Episode]]:
        return [{item: self._episode(play, item) for item in play.items} for play in plays]

    def _episode(self, play: Play, item: str) -> Episode:
        key, _, repeat = item.rpartition("#")
        spec = EpisodeSpec(
            task_key=key,
            world_version="1",
            harness_hash=play.bundle.hash,
            model_id="null" if play.null else "coins",
            sampling=Sampling(0.7, 1.0, 96),
            repeat=int(repeat),
        )
        self.ids.add(spec.id)
        if self.store.has(spec.id):
            self.read += 1
            return self.store.get(spec.id)
        if self.left == 0:
            raise Killed
        self.left -= 1
        self.played += 1
        success = not play.null and self.coins.outcomes(play.bundle.hash, [item])[0]
        grade = Grade(success=success, score=float(success))
        usage = UsageRecord(prompt_tokens=90, completion_tokens=10)
        episode = Episode(id=spec.id, spec=spec, status=Status.COMPLETED, grade=grade, messages=(), turns=(), usage=usage)
        self.store.commit(episode)
        self.store.record_attempt(Attempt(id=spec.id, number=0, outcome=str(Status.COMPLETED)))
        return episode


@dataclass
class Bench:
    """One folder, opened anew by every process."""

    folder: Path
    budget: Budget = field(default_factory=Budget)

    def run(self, *, kill_after: int = 10**9) -> tuple[SearchRecord, Committed, Ledger]:
        store, planted = LocalStore(self.folder), dict[str, float]()
        coins = Committed(SimulatedEvaluator(7, effects=planted), EpisodeStore(store, "run"), left=kill_after)
        ledger = Ledger(store, budget=self.budget, prefix="run/search")
        paying = MeteredEvaluator(coins, ledger, EACH, closing_episodes(CONFIG))
        paying.hold()
        record = search(BASE, TASK, evaluator=paying, proposer=FutileProposer(planted, effect=0.5))
        paying.release()
        return record, coins, ledger


def bounded(episodes: int) -> EvolveConfig:
    return CONFIG.model_copy(update={"budget": SearchBudgetConfig(episodes=episodes)})


def spent(ledger: Ledger) -> tuple[int, int]:
    return ledger.spent.episodes, ledger.spent.tokens


def test_killed_at_ten_points_it_decides_the_same_and_pays_nothing_twice(tmp_path: Path) -> None:
    """Promises 1 and 2 (I4, I10, H2)."""
    whole, undisturbed, bill = Bench(tmp_path / "whole").run()
    assert whole.accepted > 0, "the comparison needs a search that decides something"
    cuts = sorted(Random(5).sample(range(1, undisturbed.played), 10))
    bench, played = Bench(tmp_path / "cut"), 0
    for cut in cuts:
        with pytest.raises(Killed):
            bench.run(kill_after=cut - played)
        played = cut
    record, last, again = bench.run()
    assert record.to_bytes() == whole.to_bytes()
    assert last.ids == undisturbed.ids
    assert played + last.played == undisturbed.played == len(undisturbed.ids)
    counts = last.store.attempt_counts()
    print(f"killed after {cuts} of {undisturbed.played} episodes; most attempts at one episode: {max(counts.values())}")
    assert set(counts.values()) == {1}
    assert set(counts) == undisturbed.ids
    assert spent(again) == spent(bill)
    assert again.held == Spend()


def test_its_own_budget_ends_the_search_between_two_batches(tmp_path: Path) -> None:
    """Promise 3: enough for the first gates and the end, not for all generations."""
    free, whole, _ = Bench(tmp_path / "free").run()
    bounds = Budget(episodes=plan_search(CONFIG).least)
    record, coins, ledger = Bench(tmp_path / "bound", bounds).run()
    assert "the search's budget is used" in record.stopped
    assert coins.played < whole.played
    assert ledger.spent.episodes <= (bounds.episodes or 0)
    assert record.accepted > 0
    assert record.confirmation is not None, "what the end needs was held back"
    assert record.rounds[0] == free.rounds[0]
    more, after, _ = Bench(tmp_path / "bound").run()
    assert more.to_bytes() == free.to_bytes(), "with a larger budget the same folder goes on to the same end"
    assert coins.played + after.played == len(coins.ids | after.ids), "and pays for nothing again"
    assert whole.ids <= coins.ids | after.ids


def test_too_small_a_budget_is_refused_at_once(tmp_path: Path) -> None:
    """Promise 4 (H4)."""
    with pytest.raises(BudgetExceeded):
        Bench(tmp_path, Budget(episodes=3)).run()
    assert list(tmp_path.glob("**/episodes/*")) == []
    least = plan_search(CONFIG).least
    one = plan_search(CONFIG.model_copy(update={"restarts": 1})).first_candidate
    assert least == 2 * one + sum(closing_episodes(CONFIG).values())
    for episodes in (40, one + sum(closing_episodes(CONFIG).values()), least - 1):
        with pytest.raises(ConfigError, match="one candidate of every restart") as caught:
            check_search_budget(bounded(episodes), each=EACH)
        assert f"{least} of {episodes}" in str(caught.value.seen)
    assert check_search_budget(bounded(least), each=EACH) == Budget(episodes=least)
