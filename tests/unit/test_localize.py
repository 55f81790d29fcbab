"""Localization and dataset promises, on the demonstrator clerk as the weak model (no engine needed).

1. Evidence names the turn that settled wrongly, and the finishing turn when work was left undone.
2. Replay accepts a turn only when the rewrite's gain over both baselines has a lower bound above 0; the earliest such turn.
3. A state that can't be saved from a turn is not blamed on it; an episode may be unlocalizable.
4. A rewrite speaks the weak model's format and uses only tools that its harness shows.
5. Rows: loss on exactly the rewritten turn, at exactly the prompt that was seen; successes only from successful episodes (I2, I7).
6. The default configuration names the same suspects, has the same stage identity and takes the same decisions in every version.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from coevo.chat import Sampling
from coevo.config import Arm, DatasetConfig, RunConfig
from coevo.dataset.arms import Material, arm_rows
from coevo.dataset.balance import equalize
from coevo.dataset.guard import check_rows
from coevo.errors import ConfigError, StoreError
from coevo.fanout import FanoutPolicy, LocalExecutor
from coevo.formats.mini import MiniFormat
from coevo.harness.sandbox import shared_pool
from coevo.identity import content_hash
from coevo.localize.evidence import suspects
from coevo.localize.stage import LocalizeStage, read_localization
from coevo.mini.demonstrator import Demonstrator, Habits
from coevo.mini.harnesses import DemoHarness, hand_made
from coevo.mini.tokenizer import save_tokenizer
from coevo.models.reference import ReferenceSource
from coevo.models.tokenizer import FolderTokenizer
from coevo.ports import ItemState
from coevo.records import Correction, CorrectionCandidate, Episode, Localization, Status
from coevo.rewrite.expert import ReferenceExpert
from coevo.rollout import AgentSource, RolloutStage, draw_items
from coevo.store import LocalSource
from coevo.store.episodes import EpisodeStore
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream, Style

FAMILY = load_family("payroll")
FORMAT = MiniFormat()
LOCAL = FanoutPolicy(concurrency=8, base_s=0.0)


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
    """A store with played episodes of the clerk under the hand-made harness."""

    store: LocalSource
    agent: AgentSource
    tokenizer: FolderTokenizer
    episodes: tuple[Episode, ...]

    @property
    def failed(self) -> list[Episode]:
        return [episode for episode in self.episodes if not episode.success]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root: Path = tmp_path_factory.mktemp("bench")
    save_tokenizer(root / "tokenizer")
    store = LocalSource(str(root / "store"))
    bundle = hand_made(FAMILY).bundle
    agent = AgentSource("payroll", ClerkSource(hand_made(FAMILY)), bundle, "mini", str(root / "tokenizer"), 4096, Sampling(0.7, 1.0, 96))
    items = draw_items(FAMILY, Stream.SEARCH, Size.MINI, range(24), diversity=3)
    report = LocalExecutor(LOCAL).map(RolloutStage(agent, store, "run"), items)
    assert not report.owed
    episodes = tuple(EpisodeStore(store.open(), "run").get(agent.spec(item).id) for item in items)
    return Bench(store, agent, FolderTokenizer(root / "tokenizer"), episodes)


def localized(bench: Bench, ids: list[str], prefix: str) -> list[Localization]:
    stage = LocalizeStage(bench.agent, bench.store, prefix, "run", candidates=2, continuations=6, alpha=0.1)
    report = LocalExecutor(LOCAL).map(stage, ids)
    assert all(outcome.state is ItemState.COMMITTED for outcome in report.outcomes), report.owed[:1]
    again = LocalExecutor(LOCAL).map(stage, ids)
    assert all(outcome.state is ItemState.SKIPPED for outcome in again.outcomes)
    return [read_localization(bench.store.open(), prefix, id) for id in ids]


def wrong_turn(episode: Episode) -> int | None:
    """The first turn that settled an employee wrongly, from the failed checkpoints."""
    assert episode.grade is not None
    wrong = {check.name.partition(":")[2] for check in episode.grade.checkpoints if not check.passed}
    for index, turn in enumerate(episode.turns):
        for call in turn.executed:
            if call.name in ("submit_pay", "escalate") and call.arguments.get("employee") in wrong and not turn.result_error:
                return index
    return None


def test_evidence_names_the_settling_turn(bench: Bench) -> None:
    """Promise 1."""
    cases = [(episode, wrong_turn(episode)) for episode in bench.failed if episode.status is Status.COMPLETED]
    named = [(turn, {suspect.turn for suspect in suspects(episode, limit=3)}) for episode, turn in cases if turn is not None]
    assert len(named) >= 5
    assert all(turn in turns for turn, turns in named)
    for episode in bench.failed:
        assert all(suspect.reason and 0 <= suspect.turn < len(episode.turns) for suspect in suspects(episode, limit=9))


def test_replay_finds_the_turn_that_went_wrong(bench: Bench) -> None:
    """Promises 2 and 3: where a turn is found it is a settling turn that was wrong, and its gain beats both baselines."""
    single = [
        episode for episode in bench.failed if sum(not check.passed for check in (episode.grade.checkpoints if episode.grade else ())) == 1
    ]
    records = localized(bench, [episode.id for episode in single], "first")
    found = [(record, episode) for record, episode in zip(records, single, strict=True) if record.turn is not None]
    assert found, "no episode with one mistake was localized"
    for record, episode in found:
        place = next(candidate for candidate in record.candidates if candidate.turn == record.turn)
        assert place.gain_lower is not None
        assert place.gain_lower > 0
        assert place.p_rewritten is not None
        assert place.p_kept is not None
        assert place.p_resampled is not None
        assert place.p_rewritten > max(place.p_kept, place.p_resampled)
        assert record.turn == wrong_turn(episode)
    for record in records:
        assert [candidate.turn for candidate in record.candidates] == sorted(candidate.turn for candidate in record.candidates)


def test_a_lost_episode_is_unlocalizable(bench: Bench) -> None:
    """Promise 3: after a wrong settlement no later turn can be blamed: the expert has nothing to offer there."""
    episode = next(episode for episode in bench.failed if wrong_turn(episode) not in (None, len(episode.turns) - 1))
    expert = ReferenceExpert(FAMILY, hand_made(FAMILY).bundle, FORMAT, shared_pool())
    assert asyncio.run(expert.rewrite(episode, len(episode.turns) - 1, n=2)).rewrites == ()


def test_rewrites_speak_the_weak_models_format(bench: Bench) -> None:
    """Promise 4."""
    expert = ReferenceExpert(FAMILY, hand_made(FAMILY).bundle, FORMAT, shared_pool())
    agent = bench.agent.open()
    for episode in bench.failed[:6]:
        for suspect in suspects(episode, limit=2):
            for rewrite in asyncio.run(expert.rewrite(episode, suspect.turn, n=2)).rewrites:
                parsed = FORMAT.parse(rewrite.text, _tools(agent.bundle))
                assert parsed.call == rewrite.call
                assert parsed.say == rewrite.strategy


def _tools(bundle: object) -> tuple[object, ...]:
    from coevo.harness.tools import resolve_tools

    return resolve_tools(bundle.tools, bundle.composites, FAMILY.tools(Size.MINI)).specs  # type: ignore[attr-defined,return-value]


def _correction(episode: Episode, turn: int, text: str) -> Correction:
    call = episode.turns[turn].call
    assert call is not None
    candidate = CorrectionCandidate(strategy="", call=call, text=text, schema_valid=True, executed=True, gain_lower=0.2)
    return Correction(
        episode_id=episode.id,
        turn=turn,
        original=episode.turns[turn].completion_text,
        rewritten=text,
        candidates=(candidate,),
        chosen=0,
        chosen_by="test",
        verified=True,
    )


def test_rows_train_exactly_the_rewritten_turn(bench: Bench) -> None:
    """Promise 5: decode prompt and trained tokens and compare with what was seen and written."""
    failed = [episode for episode in bench.failed if wrong_turn(episode) is not None][:8]
    text = " note contractor must be escalated .<|call|> escalate( E100)"
    corrections = [_correction(episode, wrong_turn(episode) or 0, text) for episode in failed]
    material = Material(
        corrections=corrections,
        failed={episode.id: episode for episode in failed},
        successes=[episode for episode in bench.episodes if episode.success],
    )
    rows = arm_rows(
        Arm.CORRECTION,
        material,
        tokenizer=bench.tokenizer,
        chat_format=FORMAT,
        config=DatasetConfig(rows=16, self_success_share=0.25, self_success="contrast"),
        seed=0,
    )
    facts = check_rows(rows, tokenizer=bench.tokenizer, chat_format=FORMAT, max_length=1024)
    assert facts.sources["rewritten_turn"] == len(failed)
    by_id = {episode.id: episode for episode in bench.episodes}
    for row in rows:
        ids = (*row.prompt_token_ids, *row.completion_token_ids)
        trained = bench.tokenizer.decode(ids[row.loss_span.start : row.loss_span.stop])
        episode = by_id[row.episode_id]
        assert row.prompt_token_ids == episode.prompt_token_ids(row.turn)
        if row.source == "rewritten_turn":
            assert trained == text + "<|end|>"
        else:
            assert episode.success
            assert trained == episode.turns[row.turn].completion_text + "<|end|>"


def test_imitation_rows_are_the_experts_turns(bench: Bench) -> None:
    """Promise 5 for the imitation arm, and arms are cut to equal rows."""
    bundle = hand_made(FAMILY).bundle
    source = ReferenceSource("payroll", Style.PLAN_FIRST, bundle, "mini")
    agent = AgentSource("payroll", source, bundle, "mini", bench.agent.tokenizer_path, 4096, Sampling(0.7, 1.0, 96))
    items = draw_items(FAMILY, Stream.SEARCH, Size.MINI, range(6), diversity=3)
    LocalExecutor(LOCAL).map(RolloutStage(agent, bench.store, "run"), items)
    episodes = [EpisodeStore(bench.store.open(), "run").get(agent.spec(item).id) for item in items]
    wanted = DatasetConfig(rows=20)
    rows = arm_rows(Arm.IMITATION, Material(experts=episodes), tokenizer=bench.tokenizer, chat_format=FORMAT, config=wanted, seed=0)
    assert len(rows) == 20
    check_rows(rows, tokenizer=bench.tokenizer, chat_format=FORMAT, max_length=1024)
    assert all(bench.tokenizer.decode(row.completion_token_ids).endswith("<|end|>") for row in rows)
    assert {name: len(cut) for name, cut in equalize({"a": rows, "b": rows[:7]}).items()} == {"a": 7, "b": 7}
    with pytest.raises(ConfigError, match="no rows"):
        equalize({"a": rows, "b": []})


def test_the_guard_refuses_what_would_be_cut_or_doubled(bench: Bench) -> None:
    """I7: nothing is dropped in silence."""
    episode = bench.failed[0]
    call = episode.turns[0].completion_text
    rows = arm_rows(
        Arm.CORRECTION,
        Material(corrections=[_correction(episode, 0, call)], failed={episode.id: episode}),
        tokenizer=bench.tokenizer,
        chat_format=FORMAT,
        config=DatasetConfig(rows=8, self_success_share=0.0),
        seed=0,
    )
    with pytest.raises(ConfigError, match="would be cut"):
        check_rows(rows, tokenizer=bench.tokenizer, chat_format=FORMAT, max_length=20)
    with pytest.raises(StoreError, match="stands twice"):
        check_rows([*rows, *rows], tokenizer=bench.tokenizer, chat_format=FORMAT, max_length=1024)
    with pytest.raises(StoreError, match="evaluation instance"):
        check_rows(rows, tokenizer=bench.tokenizer, chat_format=FORMAT, max_length=1024, forbidden_tasks={episode.spec.task_key})


def test_the_default_configuration_decides_as_it_always_did(bench: Bench) -> None:
    """Promise 6: suspects, stage identity and decisions of the default configuration are frozen; what is new is switched on."""
    named = {episode.id: [asdict(one) for one in suspects(episode, limit=2)] for episode in bench.failed}
    records = localized(bench, [episode.id for episode in bench.failed[:6]], "frozen")
    decided = [
        (one.episode_id, one.turn, one.continuations, [place.model_dump(mode="json", exclude_defaults=True) for place in one.candidates])
        for one in records
    ]
    config = RunConfig(name="frozen")
    settings = {"rewrite": config.rewrite.settings(), "localize": config.localize.settings()}
    assert content_hash(named)[:16] == "7707ef267d643724"
    assert content_hash(decided)[:16] == "3daace4681376115"
    assert content_hash(settings)[:16] == "21221b7f5ca8bfb2"
