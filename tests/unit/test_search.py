"""The harness search, on a simulated agent: success is a seeded coin whose bias belongs to the harness.

1. A search of edits that do nothing accepts anything with at most the stated alpha (H3, H5, H7).
2. A strong edit is accepted, becomes the incumbent and the parent of what comes next.
3. An edit that hurts is never accepted; once refuted it is not raced again.
4. The search stops when patience is lost, when nothing is left to propose, or when its generations are used.
5. The same seed gives the same bytes.
6. The proposer sees search episodes of the incumbent alone (I8); gates draw instances that nothing else ever plays.
7. A harness that solves the task without a model is refused, however much it gains.
8. Owed episodes are left out of both sides, never scored (I3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from scipy.stats import binom

from coevo.chat import Sampling
from coevo.config import EvolveConfig
from coevo.evolve.evaluator import Play
from coevo.evolve.plan import NULL_EPISODES
from coevo.evolve.propose import Edit, Evidence
from coevo.evolve.rounds import SearchRecord
from coevo.evolve.search import SearchTask, search
from coevo.harness.bundle import HarnessBundle
from coevo.identity import derive_seed
from coevo.mini.harnesses import base_demo
from coevo.records import Episode, EpisodeSpec, Grade, Status, UsageRecord, Verdict
from coevo.rollout import parse_item
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream, TaskInstance

FAMILY = load_family("payroll")
BASE = base_demo(FAMILY).bundle
SAMPLING = Sampling(0.7, 1.0, 96)
USAGE = UsageRecord(prompt_tokens=400, completion_tokens=60)


def variant(word: str) -> HarnessBundle:
    """The base with one more word in its prompt."""
    files = BASE.files()
    return HarnessBundle.from_files(files | {"prompt/system.md": files["prompt/system.md"].rstrip() + f" {word}\n"})


STRONG, HARMFUL, OVERFIT = variant("strong"), variant("harmful"), variant("overfit")
NULLS = tuple(variant(f"null {number}") for number in range(12))


@dataclass
class Simulated:
    """Plays nothing: success is a coin drawn from (seed, harness, item). `bias` is per harness hash and stream, else `base`."""

    seed: int = 0
    base: float = 0.4
    bias: Mapping[tuple[str, Stream], float] = field(default_factory=dict)
    null: frozenset[str] = frozenset()
    owed: int = 0
    played: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    batches: list[tuple[str, ...]] = field(default_factory=list)

    def play(self, plays: Sequence[Play]) -> list[Mapping[str, Episode]]:
        self.batches.append(tuple(play.purpose for play in plays))
        return [self._play(play) for play in plays]

    def _play(self, play: Play) -> Mapping[str, Episode]:
        self.played.append((play.purpose, play.bundle.hash, play.items))
        name = play.bundle.hash
        if play.null:
            return {item: graded(name, item, "null", name in self.null) for item in play.items}
        skipped = set(play.items[: self.owed]) if play.purpose == "gate" and name != BASE.hash else set()
        return {item: self.episode(name, item, "sim") for item in play.items if item not in skipped}

    def episode(self, harness: str, item: str, model: str) -> Episode:
        rate = self.bias.get((harness, parse_item(item)[0].stream), self.base)
        return graded(harness, item, model, Random(derive_seed("coin", self.seed, harness, item)).random() < rate)

    def tasks(self, purpose: str) -> list[set[str]]:
        return [{parse_item(item)[0].key for item in items} for kind, _, items in self.played if kind == purpose]


def graded(harness: str, item: str, model: str, success: bool) -> Episode:
    instance, repeat = parse_item(item)
    spec = EpisodeSpec(task_key=instance.key, world_version="1", harness_hash=harness, model_id=model, sampling=SAMPLING, repeat=repeat)
    grade = Grade(success=success, score=float(success))
    return Episode(id=f"{harness}/{item}", spec=spec, status=Status.COMPLETED, grade=grade, messages=(), turns=(), usage=USAGE)


@dataclass
class Scripted:
    """Proposes what its script holds for the call, the last entry for ever; remembers what it was shown."""

    script: Sequence[Sequence[HarnessBundle]]
    name: str = "scripted"
    parents: list[str] = field(default_factory=list)
    shown: list[tuple[Episode, ...]] = field(default_factory=list)

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]:
        bundles = self.script[min(len(self.parents), len(self.script) - 1)]
        self.parents.append(parent.hash)
        self.shown.append(evidence.episodes)
        return [Edit("prompt", "word", "it may help", (), (), (), bundle) for bundle in bundles if bundle.hash != parent.hash]


def task(seed: int = 0, **changes: object) -> SearchTask:
    settings = {
        "generations": 4,
        "proposals": 3,
        "search_instances": 12,
        "gate_instances": 40,
        "patience": 4,
        "confirm_instances": 0,
        **changes,
    }
    return SearchTask(FAMILY, Size.MINI, 3, EvolveConfig.model_validate(settings), seed)


def everywhere(bundle: HarnessBundle, rate: float) -> dict[tuple[str, Stream], float]:
    return {(bundle.hash, stream): rate for stream in Stream}


def outcomes(record: SearchRecord) -> list[str]:
    return [one.outcome for one in record.rounds]


def test_null_edits_are_accepted_with_at_most_alpha() -> None:
    """Promise 1: 60 bounded searches of edits that change nothing; the test alone decides, the other guards are off."""
    runs, alpha = 60, 0.10
    accepted = gates = 0
    for seed in range(runs):
        chosen = task(seed, generations=3, proposals=2, search_instances=8, gate_instances=24, alpha=alpha, max_lost_share=1.0)
        script = [NULLS[2 * number : 2 * number + 2] for number in range(3)]
        record = search(BASE, chosen, evaluator=Simulated(seed), proposer=Scripted(script))
        accepted += record.accepted > 0
        gates += sum(one.decision is not None for one in record.rounds)
        assert sum(one.decision.alpha for one in record.rounds if one.decision is not None) <= alpha + 1e-12
    assert gates >= runs, "too few gates opened for the test to mean anything"
    assert accepted <= binom.ppf(0.99, runs, alpha), f"{accepted} of {runs} searches accepted an edit that does nothing"


def test_a_strong_edit_becomes_the_incumbent() -> None:
    """Promise 2."""
    proposer = Scripted([[NULLS[0], STRONG, NULLS[1]], NULLS[2:4]])
    record = search(BASE, task(), evaluator=Simulated(bias=everywhere(STRONG, 0.95)), proposer=proposer)
    first = record.rounds[0]
    assert first.outcome == "accepted"
    assert first.decision is not None
    assert (first.decision.incumbent, first.decision.candidate) == (BASE.hash, STRONG.hash)
    assert first.decision.verdict is Verdict.SUPPORTED
    assert [race.harness_hash for race in first.races] == [NULLS[0].hash, STRONG.hash, NULLS[1].hash]
    assert {one.incumbent for one in record.rounds[1:]} == {STRONG.hash}
    assert proposer.parents == [BASE.hash] + [STRONG.hash] * 3
    assert (record.base_hash, record.best_hash, record.accepted) == (BASE.hash, STRONG.hash, 1)
    assert HarnessBundle.from_files(record.best) == STRONG
    assert {one.harness_hash for one in record.archive if one.accepted} == {BASE.hash, STRONG.hash}
    assert record.rounds[1].incumbent_rate > record.rounds[0].incumbent_rate


@pytest.mark.parametrize("seed", range(6))
def test_an_edit_that_hurts_is_never_accepted(seed: int) -> None:
    """Promise 3."""
    record = search(BASE, task(seed), evaluator=Simulated(seed, bias=everywhere(HARMFUL, 0.1)), proposer=Scripted([[HARMFUL]]))
    assert record.accepted == 0
    assert record.best_hash == BASE.hash
    assert HarnessBundle.from_files(record.best) == BASE


def test_a_refuted_edit_is_not_raced_again() -> None:
    """Promises 3 and 4: it shines on the search stream, fails on fresh instances, and is out."""
    bias = {(OVERFIT.hash, Stream.SEARCH): 1.0, (OVERFIT.hash, Stream.SELECTION): 0.0}
    evaluator = Simulated(base=0.6, bias=bias)
    record = search(BASE, task(), evaluator=evaluator, proposer=Scripted([[OVERFIT]]))
    assert record.rounds[0].decision is not None
    assert record.rounds[0].decision.verdict is Verdict.REFUTED
    assert outcomes(record) == ["refused by the gate", "no new edits"]
    assert record.stopped == "nothing left to propose"
    assert [hash for purpose, hash, _ in evaluator.played if purpose == "race"] == [OVERFIT.hash]
    assert record.best_hash == BASE.hash


def test_an_edit_that_was_not_refuted_may_try_again() -> None:
    """Promise 3: an undecided gate closes no door; every try has a gate of its own."""
    bias = {(STRONG.hash, Stream.SEARCH): 1.0}
    record = search(BASE, task(), evaluator=Simulated(bias=bias), proposer=Scripted([[STRONG]]))
    decisions = [one.decision for one in record.rounds if one.decision is not None]
    assert [one.verdict for one in decisions] == [Verdict.INCONCLUSIVE] * 4
    assert len({one.gate_id for one in decisions}) == 4


@pytest.mark.parametrize("patience", [1, 3])
def test_patience_ends_the_search(patience: int) -> None:
    """Promise 4."""
    record = search(BASE, task(patience=patience), evaluator=Simulated(bias=everywhere(HARMFUL, 0.0)), proposer=Scripted([[HARMFUL]]))
    assert outcomes(record) == ["no edit gained on the search stream"] * patience
    assert record.stopped == f"no accepted edit in {patience} generations"


def test_an_accepted_edit_restores_patience() -> None:
    """Promise 4."""
    bias = everywhere(STRONG, 0.95) | everywhere(HARMFUL, 0.0)
    proposer = Scripted([[HARMFUL], [STRONG], [HARMFUL]])
    record = search(BASE, task(generations=5, patience=2), evaluator=Simulated(bias=bias), proposer=proposer)
    assert [outcome == "accepted" for outcome in outcomes(record)] == [False, True, False, False]
    assert record.stopped == "no accepted edit in 2 generations"


def test_nothing_proposed_ends_the_search_with_its_reason() -> None:
    """Promise 4: a search that finds nothing ends well and says so (H3, H5)."""
    evaluator = Simulated()
    record = search(BASE, task(), evaluator=evaluator, proposer=Scripted([[]]))
    assert record.stopped == "nothing left to propose"
    assert outcomes(record) == ["no new edits"]
    assert record.episodes == 12
    assert [purpose for purpose, _, _ in evaluator.played] == ["search"]


def test_all_generations_used() -> None:
    """Promise 4, and at most `proposals` edits are raced."""
    record = search(BASE, task(proposals=2, patience=5), evaluator=Simulated(), proposer=Scripted([NULLS[:5]]))
    assert record.stopped == "all generations used"
    assert len(record.rounds) == 4
    assert all(len(one.races) <= 2 for one in record.rounds)


def test_the_same_seed_gives_the_same_bytes() -> None:
    """Promise 5 (I4)."""

    def bytes_of(seed: int) -> bytes:
        evaluator = Simulated(3, bias=everywhere(STRONG, 0.8))
        return search(BASE, task(seed), evaluator=evaluator, proposer=Scripted([[NULLS[0], STRONG], NULLS[1:4]])).to_bytes()

    assert bytes_of(0) == bytes_of(0)
    assert bytes_of(0) != bytes_of(1)
    record = SearchRecord.from_bytes(bytes_of(0))
    assert record.to_bytes() == bytes_of(0)


def test_streams_are_kept_apart() -> None:
    """Promise 6 (I8): what proposers see, what races use and what gates use; nothing of the test stream anywhere."""
    bias = {(edit.hash, Stream.SEARCH): 1.0 for edit in NULLS}
    evaluator, proposer = Simulated(bias=bias), Scripted([NULLS[:2], NULLS[2:4], NULLS[4:6], NULLS[6:8]])
    record = search(BASE, task(), evaluator=evaluator, proposer=proposer)
    assert sum(one.decision is not None for one in record.rounds) == 4
    for shown in proposer.shown:
        assert len(shown) == 12
        assert {TaskInstance.parse(episode.spec.task_key).stream for episode in shown} == {Stream.SEARCH}
    for shown, one in zip(proposer.shown, record.rounds, strict=True):
        assert {episode.spec.harness_hash for episode in shown} == {one.incumbent}
    traces, races, gates, nulls = (evaluator.tasks(purpose) for purpose in ("search", "race", "gate", "null"))
    assert races == [traces[number // 2] for number in range(8)]
    assert gates[0::2] == gates[1::2]
    assert all(null <= gate for null, gate in zip(nulls, gates[0::2], strict=True))
    assert {len(null) for null in nulls} == {NULL_EPISODES}
    fresh = [*traces, *gates[0::2]]
    assert sum(len(keys) for keys in fresh) == len(set().union(*fresh)) == 4 * (12 + 40)
    assert {TaskInstance.parse(key).stream for keys in gates for key in keys} == {Stream.SELECTION}


def test_a_harness_that_solves_the_task_by_itself_is_refused() -> None:
    """Promise 7."""
    evaluator = Simulated(bias=everywhere(STRONG, 1.0), null=frozenset({STRONG.hash}))
    record = search(BASE, task(generations=1), evaluator=evaluator, proposer=Scripted([[STRONG]]))
    decision = record.rounds[0].decision
    assert decision is not None
    assert decision.verdict is Verdict.SUPPORTED
    assert not decision.accepted
    assert any("solves the task by itself" in refusal for refusal in decision.refusals)
    assert (decision.null_successes, decision.null_episodes) == (NULL_EPISODES, NULL_EPISODES)
    assert record.best_hash == BASE.hash


def test_owed_episodes_are_left_out_of_both_sides() -> None:
    """Promise 8."""
    evaluator = Simulated(bias=everywhere(STRONG, 0.95), owed=2)
    record = search(BASE, task(generations=1), evaluator=evaluator, proposer=Scripted([[STRONG]]))
    decision = record.rounds[0].decision
    assert decision is not None
    assert decision.instances == 38
    assert decision.accepted
    assert record.episodes == 12 + 12 + 40 + 38
