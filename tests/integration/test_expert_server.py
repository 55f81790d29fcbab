"""An LLM expert on a real OpenAI-compatible server: vLLM's own, with a random tiny model, started and ended here.

1. The probe takes the right key and model, and refuses a wrong key and an unknown model.
2. Rewrites come back through schema-constrained decoding, and through a forced tool call where schemas were conceded.
3. The expert plays an episode to its end through the same server.
4. Every call's tokens are counted by the server and billed.

The model is random bytes: what it writes inside the schema means nothing, and only the wire is proven.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from coevo.chat import AnswerForm, Message, ModelRequest, Role, Sampling, ToolCall
from coevo.episode import Agent, play
from coevo.errors import PrerequisiteError
from coevo.formats import chat_format
from coevo.harness.sandbox import shared_pool
from coevo.mini.harnesses import base_demo
from coevo.models.openai_api import OpenAISource
from coevo.models.scripted import ScriptedModel
from coevo.models.structured import ask
from coevo.models.tokenizer import FolderTokenizer
from coevo.records import Episode, Status
from coevo.rewrite.llm import ExpertPlayer, LLMExpert, LLMRecipe
from coevo.rewrite.turn import read_turn, turn_schema
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream
from tests.integration.llm_server import Server, serve

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FAMILY = load_family("payroll")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("server"), context=12_288) as started:
        yield started


def failed_episode(server: Server) -> tuple[Episode, Agent]:
    """A weak agent that finishes at once and fails."""
    syntax = chat_format("hermes")
    text = syntax.render_turn("Done.", ToolCall("finish", {}), ())
    tokenizer, harness = FolderTokenizer(server.folder), base_demo(FAMILY).bundle
    agent = Agent(ScriptedModel([text] * 30), harness, syntax, tokenizer, 100_000, Sampling(0.0, 1.0, 200))
    instance = FAMILY.instance(Stream.SEARCH, 5, Size.MINI, diversity=1)
    return asyncio.run(play(instance, family=FAMILY, agent=agent, sandboxes=shared_pool())), agent


def test_the_probe_tells_what_is_wrong(server: Server) -> None:
    """Promise 1."""

    async def probe(source: OpenAISource) -> int:
        model = source.open()
        try:
            return (await model.probe()).prompt_tokens
        finally:
            await model.aclose()

    assert asyncio.run(probe(server.source())) > 0
    with pytest.raises(PrerequisiteError, match="401"):
        asyncio.run(probe(server.source(api_key_env="COEVO_WRONG_KEY")))
    with pytest.raises(PrerequisiteError, match="it serves big"):
        asyncio.run(probe(server.source(model="bigger")))


def test_rewrites_come_through_constrained_decoding(server: Server) -> None:
    """Promises 2 and 4."""
    episode, agent = failed_episode(server)
    assert episode.status is Status.COMPLETED
    assert not episode.success

    async def ask_expert() -> None:
        expert = LLMExpert(LLMRecipe(server.source(), temperature=1.0, max_tokens=900), agent, FAMILY)
        offer = await expert.rewrite(episode, 0, n=4)
        await expert.aclose()
        print("rewrites", len(offer.rewrites), "rejected", [one.reason[:160] for one in offer.rejected], "use", offer.use)
        assert offer.use.form == AnswerForm.SCHEMA
        assert 4 <= offer.use.calls <= 8
        assert offer.use.usage.prompt_tokens > 4 * 500
        assert offer.use.usage.completion_tokens > 0
        assert offer.use.usd is None
        assert offer.rewrites, "constrained decoding gave no usable turn in 8 answers"
        for rewrite in offer.rewrites:
            assert agent.chat_format.parse(rewrite.text, FAMILY.tools(Size.MINI)).call == rewrite.call

    asyncio.run(ask_expert())


def test_a_forced_tool_call_carries_the_answer(server: Server) -> None:
    """Promise 2: the second form, held to the schema by the server."""
    tools = FAMILY.tools(Size.MINI)
    syntax = chat_format("hermes")

    async def through_a_tool() -> None:
        model = server.source().open()
        assert model._dialect.concede("response_format is not supported", {}, form=AnswerForm.SCHEMA)
        request = ModelRequest(
            (Message(Role.USER, "Take a turn."),), (), Sampling(1.0, 1.0, 700), "s", 11, answer_schema=turn_schema(tools)
        )
        answer = await ask(model, request, lambda value: read_turn(value, tools, syntax), tries=6)
        await model.aclose()
        print("tool form:", answer.faults, answer.value)
        assert answer.form is AnswerForm.TOOL
        assert answer.value is not None

    asyncio.run(through_a_tool())


def test_the_expert_plays_an_episode(server: Server) -> None:
    """Promise 3: whatever a random model does, the episode ends graded."""
    episode, agent = failed_episode(server)
    player = ExpertPlayer(LLMRecipe(server.source(), temperature=1.0, max_tokens=500), agent.chat_format)
    instance = FAMILY.instance(Stream.SEARCH, 6, Size.MINI, diversity=1)

    async def run() -> Episode:
        try:
            return await play(instance, family=FAMILY, agent=replace(agent, model=player), sandboxes=shared_pool())
        finally:
            await player.aclose()

    played = asyncio.run(run())
    print("played:", played.status, len(played.turns), "turns,", played.usage)
    assert played.status is not Status.INFRA_ERROR, played.error
    assert played.grade is not None
    assert played.usage.prompt_tokens > 0
    assert played.id != episode.id
