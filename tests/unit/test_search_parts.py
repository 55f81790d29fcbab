"""The parts of a managed search, each alone.

1. Halving gives every rung its share and every restart in it a generation; together never more than was planned.
2. Parts that run side by side are answered in one batch, whatever their lengths; their results keep their order.
3. A futile edit stops after the first part of its race; others play on.
4. Crossover joins two candidates that solve different instances, and refuses changes that meet.
5. The tiers give what they may: a search tier leads to no selection instance (`test_sealed` has the test tier).
6. A search of several restarts reports each, chooses among their winners on fresh instances, and measures the winner again on others.
7. An evolved component that earns nothing is found dispensable and pruned; one that earns stays.
8. Baselines choose without a grade and are measured on the same instances.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo.chat import Sampling
from coevo.config import EvolveConfig
from coevo.evolve.ablate import ablate, units
from coevo.evolve.archive import Archive, Candidate
from coevo.evolve.baselines import chosen_try, measure_baselines, refine_note, self_refine
from coevo.evolve.crossover import complements, crossovers
from coevo.evolve.evaluator import Answer, Play, Steps, Wish, alone, side_by_side
from coevo.evolve.gate import GateConfig
from coevo.evolve.halving import schedule
from coevo.evolve.plan import plan_search
from coevo.evolve.propose import Edit, Evidence
from coevo.evolve.race import Entrant, race
from coevo.evolve.search import SearchTask, search
from coevo.evolve.simulated import FutileProposer, SimulatedEvaluator
from coevo.evolve.tiers import SearchTier, SelectionTier, task_key
from coevo.harness.bundle import HarnessBundle
from coevo.records import CallRecord, Episode, EpisodeSpec, Grade, Status, Turn
from coevo.report.evolution import ablation_numbers, baseline_numbers, evolution_lines, search_numbers
from coevo.store.local import LocalStore
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream, TaskInstance

FAMILY = load_family("payroll")
BASE = HarnessBundle.load(FAMILY.base_harness(Size.MINI))
IDLE = "def on_start(event, state):\n    return None\n"


def hooked(parent: HarnessBundle, *names: str) -> HarnessBundle:
    return parent.replace(hooks={**parent.hooks, **dict.fromkeys(names, IDLE)})


def worded(parent: HarnessBundle, word: str) -> HarnessBundle:
    return parent.replace(system_prompt=f"{parent.system_prompt.rstrip()} {word}\n")


def task(seed: int = 0, **changes: object) -> SearchTask:
    small = {"generations": 2, "proposals": 2, "search_instances": 8, "gate_instances": 24, "confirm_instances": 30, "max_lost_share": 1.0}
    return SearchTask(FAMILY, Size.MINI, 1, EvolveConfig.model_validate({**small, **changes}), seed)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 4))
def test_halving_shares_the_budget(restarts: int, generations: int, factor: int) -> None:
    """Promise 1."""
    rungs = schedule(restarts=restarts, generations=generations, factor=factor)
    assert sum(rung.generations for rung in rungs) == restarts * generations
    assert [rung.restarts for rung in rungs] == sorted((rung.restarts for rung in rungs), reverse=True)
    assert rungs[0].restarts == restarts
    assert all(rung.each >= 1 for rung in rungs)
    if factor == 1 or restarts == 1:
        assert len(rungs) == 1


@dataclass
class Echo:
    """Remembers batches; every play gives no episode."""

    batches: list[tuple[str, ...]] = field(default_factory=list)

    def play(self, plays: Sequence[Play]) -> list[Mapping[str, Episode]]:
        self.batches.append(tuple(play.purpose for play in plays))
        return [{} for _ in plays]


def part(name: str, steps: int) -> Steps[str]:
    for _ in range(steps):
        answer: Answer = yield Wish(plays=(Play(BASE, (), name),))
        assert len(answer.episodes) == 1
    return name


def test_parts_are_answered_together() -> None:
    """Promise 2."""
    echo = Echo()
    results = side_by_side([part("a", 2), part("b", 0), part("c", 3)], evaluator=echo, proposer=FutileProposer())
    assert results == ["a", "b", "c"]
    assert echo.batches == [("a", "c"), ("a", "c"), ("c",)]


def test_a_futile_edit_stops_early() -> None:
    """Promise 3."""
    harmful, fair = worded(BASE, "harmful"), worded(BASE, "fair")
    evaluator = SimulatedEvaluator(1, effects={harmful.hash: -0.31, fair.hash: 0.3})
    items = SearchTier.of(FAMILY, Size.MINI, 1, seed=1).draw(first=0, count=40)
    incumbent = evaluator.play([Play(BASE, items, "search")])[0]
    entrants = [Entrant(Edit("prompt", "word", "it may", (), (), (), bundle), BASE.hash, incumbent) for bundle in (harmful, fair)]
    made = alone(race(entrants, items, incumbent, futility_share=0.5), evaluator=evaluator, proposer=FutileProposer())
    records = [one.record(incumbent) for one in made]
    assert [(one.futile, one.instances) for one in records] == [(True, 20), (False, 40)]
    assert records[0].delta == (records[0].gains - records[0].losses) / 20 < 0


def key(number: int) -> str:
    return TaskInstance("payroll", "audit", Stream.SEARCH, number, Size.MINI).key


def won(*outcomes: int) -> dict[str, tuple[int, ...]]:
    return {key(number): (value,) for number, value in enumerate(outcomes)}


def test_crossover_joins_what_complements_and_refuses_what_meets() -> None:
    """Promise 4."""
    left, right, clash, weak = hooked(BASE, "one"), worded(BASE, "two"), worded(BASE, "three"), hooked(BASE, "four")
    archive = Archive([Candidate(harness_hash=BASE.hash, outcomes=won(0, 0, 0, 0))])
    played = {left: won(1, 1, 0, 0), right: won(0, 0, 1, 0), clash: won(0, 0, 1, 1), weak: won(1, 0, 0, 0)}
    for bundle, outcomes in played.items():
        archive.add(Candidate(harness_hash=bundle.hash, parent=BASE.hash, outcomes=outcomes))
    bundles = {bundle.hash: bundle for bundle in (BASE, *played)}
    pairs = [(pair.first.harness_hash, pair.second.harness_hash, pair.gain) for pair in complements(archive)]
    assert pairs[0] == (left.hash, clash.hash, 2)
    assert (right.hash, clash.hash) not in [pair[:2] for pair in pairs], "both solve the third"
    made = list(crossovers(archive, bundles, count=2))
    assert [parent.hash for parent, _ in made] == [left.hash, left.hash]
    assert made[0][1].bundle.hash == worded(left, "three").hash
    assert list(crossovers(archive, bundles, count=1, barred={left.hash, weak.hash})) == []
    both = Archive([Candidate(harness_hash=BASE.hash)])
    for bundle, outcomes in ((right, won(1, 0)), (clash, won(0, 1))):
        both.add(Candidate(harness_hash=bundle.hash, parent=BASE.hash, outcomes=outcomes))
    assert list(crossovers(both, bundles, count=2)) == [], "both change the prompt, differently"


def test_tiers_give_what_they_may() -> None:
    """Promise 5 (I8)."""
    seed = 1234567
    tier = SearchTier.of(FAMILY, Size.MINI, 1, seed=seed)
    assert str(seed).encode() not in pickle.dumps((tier.size, tier.diversity, tier.root))
    assert tier.root != seed
    selection = SelectionTier.of(FAMILY, Size.MINI, 1, seed=seed, config=GateConfig())
    drawn = [set(tier.draw(first=0, count=50, restart=restart)) for restart in range(3)]
    drawn += [set(tier.draw_shared("rung-0", count=50)), set(selection.draw("final", count=50)), set(selection.draw("confirm", count=50))]
    assert len(set().union(*drawn)) == 300
    assert {TaskInstance.parse(task_key(item)).stream for item in drawn[4] | drawn[5]} == {Stream.SELECTION}


@pytest.fixture(scope="module")
def managed() -> tuple[SearchTask, dict[str, float], FutileProposer]:
    planted: dict[str, float] = {}
    return task(3, restarts=3, generations=2, crossovers=1), planted, FutileProposer(planted, effect=0.35)


def test_a_managed_search_reports_restarts_finalists_and_confirmation(
    managed: tuple[SearchTask, dict[str, float], FutileProposer],
) -> None:
    """Promise 6."""
    what, planted, proposer = managed
    evaluator = SimulatedEvaluator(3, effects=planted)
    record = search(BASE, what, evaluator=evaluator, proposer=proposer)
    assert [one.restart for one in record.restarts] == [0, 1, 2]
    assert sum(one.generations for one in record.restarts) == len(record.rounds) <= 6
    assert any("halved away" in one.stopped for one in record.restarts)
    assert sum(one.decision.alpha for one in record.rounds if one.decision is not None) <= what.config.alpha + 1e-12
    assert record.accepted > 0
    assert record.confirmation is not None
    assert record.confirmation.comparison.pairs == 30
    assert "confirm" in record.draws
    assert len(set(record.draws)) == len(record.draws)
    if len({one.best_hash for one in record.restarts} - {BASE.hash}) > 1:
        best = max(record.finalists, key=lambda one: one.successes)
        assert record.best_hash == best.harness_hash
    assert evaluator.played <= plan_search(what.config).episodes
    shown = search_numbers(record)
    assert {node["restart"] for node in shown["tree"]} == {0, 1, 2}
    assert next(node for node in shown["tree"] if node["depth"] == 0)["parent"] is None
    assert shown["score"][-1]["episodes"] > 0
    assert any("measured again on 30 fresh instances" in line for line in evolution_lines(record, None, None))


def test_what_earns_nothing_is_pruned() -> None:
    """Promise 7."""
    best = worded(hooked(BASE, "useless"), "useful")
    names = [unit.name for unit in units(BASE, best)]
    assert sorted(names) == ["hook:useless", "prompt"]
    bare = hooked(BASE, "useless")
    evaluator = SimulatedEvaluator(2, effects={best.hash: 0.35, worded(BASE, "useful").hash: 0.35, bare.hash: 0.0})
    what = task(2, ablate_instances=200, prune_margin=0.15)
    record = ablate(BASE, best, what, evaluator=evaluator)
    rows = {one.component: one for one in record.components}
    assert rows["hook:useless"].firings == 0
    assert (rows["hook:useless"].dispensable, rows["prompt"].dispensable) == (True, False)
    assert record.pruned
    assert HarnessBundle.from_files(record.best).hash == worded(BASE, "useful").hash
    strict = ablate(BASE, best, task(2, ablate_instances=10, prune_margin=0.01), evaluator=evaluator)
    assert HarnessBundle.from_files(strict.best).hash == best.hash, "ten instances don't show that little is lost"
    numbers = ablation_numbers(record)
    assert numbers is not None
    assert numbers["components"][0]["component"] in rows
    none = ablate(BASE, BASE, what, evaluator=evaluator)
    assert (none.components, none.episodes, none.pruned) == ((), 0, False)


def tried(*calls: tuple[str, object], status: Status = Status.COMPLETED, success: bool = False) -> Episode:
    spec = EpisodeSpec(task_key=key(0), world_version="1", harness_hash="h", model_id="m", sampling=Sampling(0.7, 1.0, 8))
    log = tuple(CallRecord(name=name, arguments={"value": value}) for name, value in calls)
    turns = tuple(
        Turn(message_index=(), prompt_shared=0, prompt_suffix=(), completion_text="", call=call, result="unknown {x}", result_error=True)
        for call in log[:1]
    )
    return Episode(id=spec.id, spec=spec, status=status, grade=Grade(success=success, score=0.0), messages=(), turns=turns, world_log=log)


def test_a_try_is_chosen_by_agreement_and_no_grade() -> None:
    """Promise 8."""
    writes = frozenset({"submit"})
    first, second = tried(("read", 1), ("submit", 5)), tried(("submit", 5), ("read", 2))
    odd, cut = tried(("submit", 7), success=True), tried(("submit", 7), status=Status.MAX_TURNS)
    assert chosen_try([odd, first, second, cut], writes) == first
    assert chosen_try([cut, odd], writes) == odd, "completed tries come first"
    assert "{" not in refine_note(first)
    assert "read: unknown" in refine_note(first)
    assert "success" not in refine_note(odd)


class Scripted:
    """An evaluator whose tries of any instance are a list, in turn."""

    def __init__(self, *tries: Episode) -> None:
        self.tries, self.shown = list(tries), list[str]()

    def play(self, plays: Sequence[Play]) -> list[dict[str, Episode]]:
        self.shown += [one.bundle.system_prompt for one in plays]
        return [{item: self.tries.pop(0) for item in one.items} for one in plays]


@pytest.mark.parametrize(
    ("more", "counts", "episodes"),
    [
        ([tried(("submit", 5))], 5, 2),
        ([tried(("submit", 7)), tried(("submit", 7)), tried(("submit", 9))], 7, 3),
        ([tried(("submit", 7)), tried(("submit", 8)), tried(("submit", 9))], 9, 4),
    ],
    ids=["agrees at once", "changes its mind once", "never settles"],
)
def test_self_refinement_goes_on_until_the_answer_stands(more: list[Episode], counts: int, episodes: int) -> None:
    """Promise 8: a try counts once the one before did the same without trouble, or when the tries are used."""
    smooth = [one.model_copy(update={"turns": ()}) for one in more]
    item, evaluator = f"{key(0)}#0", Scripted(*smooth)
    first = {item: tried(("submit", 5)).model_copy(update={"turns": ()})}
    done = self_refine(BASE, [item], first, 4, evaluator=evaluator, writes=frozenset({"submit"}))
    assert done.counted[item].world_log[0].arguments == {"value": counts}
    assert done.played == episodes
    assert all("last try ended" in prompt for prompt in evaluator.shown)


def test_baselines_share_instances_and_budget(tmp_path: Path) -> None:
    """Promise 8: equal episodes, the same instances, and prompt-only edits that change the prompt alone."""
    planted: dict[str, float] = {}
    what = task(4, generations=1, baselines=("best_of_n", "self_refine", "prompt_only"), baseline_instances=12)
    proposer, evaluator = FutileProposer(planted, effect=0.5), SimulatedEvaluator(4, effects=planted)
    record = search(BASE, what, evaluator=evaluator, proposer=proposer)
    best = HarnessBundle.from_files(record.best)
    made = measure_baselines(BASE, best, record, what, evaluator=evaluator, proposer=proposer, store=LocalStore(tmp_path), prefix="run/b")
    rows = {row.name: row for row in made.rows}
    assert list(rows) == ["h0", "h*", "best_of_n", "self_refine", "prompt_only"]
    assert len({tuple(row.measurement.success) for row in made.rows}) == 1
    assert rows["best_of_n"].tries == 1 + record.episodes // 12
    assert rows["best_of_n"].episodes <= record.episodes + 12
    assert (rows["best_of_n"].any_try or 0) >= sum(sum(row) for row in rows["h0"].measurement.success.values()) / 12
    assert rows["self_refine"].episodes == 24, "no simulated try is refused anything or changes the world: the second agrees with the first"
    assert rows["prompt_only"].episodes <= record.episodes + 12
    assert rows["h*"].against_best is None
    assert rows["h0"].against_best is not None
    shown = baseline_numbers(made)
    assert shown is not None
    assert [row["name"] for row in shown["rows"]] == list(rows)
    assert any("best_of_n" in line for line in evolution_lines(record, None, made))


def test_a_proposer_is_shown_what_became_of_earlier_edits() -> None:
    """Promise 6: the search stream's figures, and of a gate its outcome alone."""
    seen: list[Evidence] = []

    class Watching(FutileProposer):
        def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]:
            seen.append(evidence)
            return FutileProposer.propose(self, parent, evidence, rng)

    search(BASE, task(1, patience=2, confirm_instances=0), evaluator=SimulatedEvaluator(1), proposer=Watching())
    assert [len(evidence.past) for evidence in seen] == [0, 2]
    assert all(one.instances == 8 and one.delta is not None and one.outcome for one in seen[1].past)
