"""What the control arms ask of the expert, on the demonstrator clerk and the reference policy. Promises:

1. Items name the episodes they were drawn from and turns of theirs; equal seeds give equal items.
2. An answer is stored once, as an unverified correction of the first turn at which the expert had one; asked again it is found.
3. A takeover keeps the weak model's turns to the token and ends as the expert plays; it is an episode like any other.
4. Rows of these arms pass the guard.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest

from coevo.chat import Sampling
from coevo.config import Arm, DatasetConfig
from coevo.dataset.arms import Material, Takeover, arm_rows
from coevo.dataset.controls import AskStage, TakeoverStage, at_last, at_random, at_suspect, read_asked, takeover_spec
from coevo.dataset.guard import check_rows
from coevo.errors import ConfigError
from coevo.fanout import FanoutPolicy, LocalExecutor
from coevo.formats.mini import MiniFormat
from coevo.mini.harnesses import hand_made
from coevo.mini.tokenizer import save_tokenizer
from coevo.models.reference import ReferenceSource
from coevo.models.tokenizer import FolderTokenizer
from coevo.ports import ItemState
from coevo.records import Episode
from coevo.rollout import AgentSource, RolloutStage, draw_items
from coevo.store import LocalSource
from coevo.store.episodes import EpisodeStore
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream, Style
from tests.unit.test_localize import ClerkSource

FAMILY = load_family("payroll")
LOCAL = FanoutPolicy(concurrency=4, base_s=0.0)


class Bench(NamedTuple):
    """Failed episodes of the clerk in a store, the clerk, and the expert under the same harness."""

    store: LocalSource
    weak: AgentSource
    expert: AgentSource
    tokenizer: FolderTokenizer
    failed: list[Episode]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root: Path = tmp_path_factory.mktemp("controls")
    save_tokenizer(root / "tokenizer")
    store, bundle = LocalSource(str(root / "store")), hand_made(FAMILY).bundle

    def agent(model: ClerkSource | ReferenceSource) -> AgentSource:
        return AgentSource("payroll", model, bundle, "mini", str(root / "tokenizer"), 4096, Sampling(0.7, 1.0, 96))

    weak = agent(ClerkSource(hand_made(FAMILY)))
    items = draw_items(FAMILY, Stream.SEARCH, Size.MINI, range(14), diversity=3)
    assert not LocalExecutor(LOCAL).map(RolloutStage(weak, store, "run"), items).owed
    episodes = [EpisodeStore(store.open(), "run").get(weak.spec(item).id) for item in items]
    failed = [episode for episode in episodes if not episode.success]
    assert len(failed) >= 4
    return Bench(
        store, weak, agent(ReferenceSource("payroll", Style.REACTIVE, bundle, "mini")), FolderTokenizer(root / "tokenizer"), failed
    )


def test_items_name_turns_of_their_episodes(bench: Bench) -> None:
    """Promise 1."""
    for items in (at_random(bench.failed, seed=0), at_last(bench.failed), at_suspect(bench.failed)):
        for item, episode in zip(items, bench.failed, strict=True):
            id, _, turns = item.partition("@")
            numbers = [int(turn) for turn in turns.split(".")]
            assert id == episode.id
            assert len(set(numbers)) == len(numbers)
            assert all(0 <= number < len(episode.turns) for number in numbers)
    assert at_random(bench.failed, seed=0) == at_random(bench.failed, seed=0)
    assert at_random(bench.failed, seed=0) != at_random(bench.failed, seed=1)
    assert all(
        item.split("@")[1].startswith(f"{len(one.turns) - 1}.") for item, one in zip(at_last(bench.failed), bench.failed, strict=True)
    )


def test_the_expert_is_asked_once_and_answers_unverified(bench: Bench) -> None:
    """Promises 2 and 4."""
    asked = {}
    for arm, items in ((Arm.RANDOM_TURN, at_random(bench.failed, seed=0)), (Arm.LAST_TURN, at_last(bench.failed))):
        stage = AskStage(bench.weak, bench.store, "asked", "run", arm.value)
        first = LocalExecutor(LOCAL).map(stage, items)
        assert [outcome.state for outcome in first.outcomes] == [ItemState.COMMITTED] * len(items), first.owed[:1]
        again = LocalExecutor(LOCAL).map(stage, items)
        assert [outcome.state for outcome in again.outcomes] == [ItemState.SKIPPED] * len(items)
        asked[arm] = [read_asked(bench.store.open(), "asked", item) for item in items]
        for correction, item, episode in zip(asked[arm], items, bench.failed, strict=True):
            assert not correction.verified
            assert correction.episode_id == episode.id
            assert str(correction.turn) in item.split("@")[1].split(".")
            assert correction.original == episode.turns[correction.turn].completion_text
    assert any(one.candidates for one in asked[Arm.RANDOM_TURN])
    material = Material(
        failed={episode.id: episode for episode in bench.failed}, at_random=asked[Arm.RANDOM_TURN], at_last=asked[Arm.LAST_TURN]
    )
    config = DatasetConfig(self_success="none")
    rows = arm_rows(Arm.RANDOM_TURN, material, tokenizer=bench.tokenizer, chat_format=MiniFormat(), config=config, seed=0)
    assert len(rows) == sum(bool(one.candidates) for one in asked[Arm.RANDOM_TURN])
    check_rows(rows, tokenizer=bench.tokenizer, chat_format=MiniFormat(), max_length=1024)


def test_the_expert_takes_over_where_it_is_told(bench: Bench) -> None:
    """Promises 3 and 4: taken over before anything was settled the reference policy succeeds, and the weak turns stay."""
    items = [f"{episode.id}@1" for episode in bench.failed]
    stage = TakeoverStage(bench.expert, bench.store, "run")
    report = LocalExecutor(LOCAL).map(stage, items)
    assert not report.owed
    assert {one.state for one in LocalExecutor(LOCAL).map(stage, items).outcomes} == {ItemState.SKIPPED}
    taken = []
    for episode in bench.failed:
        spec = takeover_spec(bench.expert, episode, 1)
        played = EpisodeStore(bench.store.open(), "run").get(spec.id)
        assert played.turns[0].completion_token_ids == episode.turns[0].completion_token_ids
        assert played.prompt_token_ids(1) == episode.prompt_token_ids(1)
        assert played.spec.model_id.startswith("reference:")
        taken.append(Takeover(played, 1))
    assert any(one.episode.success for one in taken)
    config = DatasetConfig(self_success="none")
    rows = arm_rows(
        Arm.EXPERT_FINISH, Material(takeovers=taken), tokenizer=bench.tokenizer, chat_format=MiniFormat(), config=config, seed=0
    )
    assert len(rows) == sum(len(one.episode.turns) - 1 for one in taken if one.episode.success)
    check_rows(rows, tokenizer=bench.tokenizer, chat_format=MiniFormat(), max_length=1024)


def test_an_unreadable_item_is_refused(bench: Bench) -> None:
    """Bad input names the value and the fix; the item is owed, the others are not."""
    stage = AskStage(bench.weak, bench.store, "asked", "run", "random_turn")
    with pytest.raises(ConfigError, match=r"give <episode id>@<turn>"):
        asyncio.run(stage.open().run("abc@x", 1))
