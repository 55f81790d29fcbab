"""`coevo.models.opening`.

Promises:
 1. The inner model continues prompt and opening; the turn is the opening and what it said, as text and as ids.
 2. A whole episode plays so: the prompt of each turn holds the turns before it with the ids they had, opening included.
 3. Another opening is another model; a request for another model, or without prompt ids, is refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from coevo.chat import Completion, ModelRequest, Sampling
from coevo.episode import Agent, play
from coevo.errors import ModelError
from coevo.formats.mini import CALL, MiniFormat
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import shared_pool
from coevo.mini.tokenizer import save_tokenizer
from coevo.models.opening import OpeningModel, OpeningSource
from coevo.models.scripted import ScriptedModel, ScriptedSource
from coevo.models.tokenizer import FolderTokenizer
from coevo.records import Status
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream


class Heard:
    """A scripted model that keeps what it was asked."""

    model_id = "scripted"

    def __init__(self, tokenizer: FolderTokenizer) -> None:
        self.inner = ScriptedModel([" finish()"] * 9, tokenizer=tokenizer, end_of_turn=MiniFormat().end_of_turn)
        self.asked: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> Completion:
        self.asked.append(request)
        return await self.inner.complete(request)

    async def aclose(self) -> None:
        self.asked.clear()


@pytest.fixture
def tokenizer(tmp_path: Path) -> FolderTokenizer:
    save_tokenizer(tmp_path)
    return FolderTokenizer(tmp_path)


def opening(tokenizer: FolderTokenizer, text: str = CALL) -> OpeningSource:
    return OpeningSource(ScriptedSource([" finish()"]), text, tuple(tokenizer.encode(text)))


def test_a_turn_is_the_opening_and_its_continuation(tokenizer: FolderTokenizer) -> None:
    """Promise 1."""
    source, heard = opening(tokenizer), Heard(tokenizer)
    model = OpeningModel(heard, source)
    prompt = tuple(tokenizer.encode("<|user|> audit<|end|><|assistant|>"))
    request = ModelRequest((), (), Sampling(0.7, 1.0, 32), "episode", 3, prompt, model.model_id)
    said = asyncio.run(model.complete(request))
    assert heard.asked == [replace(request, prompt_token_ids=(*prompt, *source.token_ids), model_id="scripted")]
    assert said.text == "<|call|> finish()"
    assert tokenizer.decode(said.token_ids) == "<|call|> finish()<|end|>"


def test_an_episode_is_played_so(tokenizer: FolderTokenizer) -> None:
    """Promise 2."""
    family, heard = load_family("payroll"), Heard(tokenizer)
    heard.inner = ScriptedModel([" nothing()", " finish()"], tokenizer=tokenizer, end_of_turn=MiniFormat().end_of_turn)
    bundle = HarnessBundle.load(family.base_harness(Size.MINI))
    agent = Agent(OpeningModel(heard, opening(tokenizer)), bundle, MiniFormat(), tokenizer, 1024, Sampling(0.7, 1.0, 32))
    episode = asyncio.run(play(family.instance(Stream.SEARCH, 3, Size.MINI), family=family, agent=agent, sandboxes=shared_pool()))
    assert episode.status is Status.COMPLETED
    assert [turn.completion_text for turn in episode.turns] == ["<|call|> nothing()", "<|call|> finish()"]
    first, second = (one.prompt_token_ids or () for one in heard.asked)
    turn = episode.turns[0].completion_token_ids
    assert tokenizer.decode(turn).startswith(CALL)
    assert second[: len(first) - 1 + len(turn)] == first[:-1] + turn
    assert second[-1:] == tuple(tokenizer.encode(CALL))


def test_what_is_refused(tokenizer: FolderTokenizer) -> None:
    """Promise 3."""
    source = opening(tokenizer)
    assert source.model_id != opening(tokenizer, "<|call|> finish").model_id
    model = source.open()
    assert model.model_id == source.model_id
    request = ModelRequest((), (), Sampling(0.7, 1.0, 32), "episode", 3)
    with pytest.raises(ModelError, match="token ids"):
        asyncio.run(model.complete(request))
    with pytest.raises(ModelError, match="another model"):
        asyncio.run(model.complete(replace(request, prompt_token_ids=(1,), model_id="scripted")))
    asyncio.run(model.aclose())
