"""An LLM expert on a real OpenAI-compatible server: vLLM's own, with a random tiny model, started and ended here.

1. The probe takes the right key and model, and refuses a wrong key and an unknown model.
2. Rewrites come back through schema-constrained decoding, and through a forced tool call where schemas were conceded.
3. The expert plays an episode to its end through the same server.
4. Every call's tokens are counted by the server and billed.

The model is random bytes: what it writes inside the schema means nothing, and only the wire is proven.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cluster.tiny import make_tiny_model
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

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEY = "sk-server-very-secret"
CONTEXT = 12_288
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
FAMILY = load_family("payroll")


@dataclass(frozen=True)
class Server:
    """A running server and the folder of its model."""

    url: str
    folder: str

    def source(self, **changes: object) -> OpenAISource:
        source = OpenAISource(f"{self.url}/v1", "big", api_key_env="COEVO_SERVER_KEY", format_name="hermes", timeout_s=240.0, max_retries=1)
        return replace(source, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root: Path = tmp_path_factory.mktemp("server")
    folder = make_tiny_model(root / "model", seed=3, max_len=CONTEXT)
    (root / "template.jinja").write_text(TEMPLATE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", "big"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--api-key", KEY, "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", "4", "--kv-cache-memory-bytes", "64M", "--block-size", "32"]
    # vLLM 0.32 on CPU dies on a request with a seed whose prompt is cut over two steps, so a step takes all prompts at once.
    command += ["--chat-template", str(root / "template.jinja"), "--max-num-batched-tokens", str(4 * CONTEXT)]
    with (root / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **ENVIRONMENT, "HOME": str(root)}, start_new_session=True
        )
        try:
            wait(process, f"http://127.0.0.1:{port}/health", root / "log.txt")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("COEVO_SERVER_KEY", KEY)
                patch.setenv("COEVO_WRONG_KEY", "sk-wrong")
                yield Server(f"http://127.0.0.1:{port}", folder)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


def wait(process: subprocess.Popen[bytes], url: str, log: Path, *, timeout_s: float = 400.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"the server did not start in {timeout_s:.0f} s: {log.read_text(errors='replace')[-3000:]}")


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
    """Promise 2: the second form, on a server without a tool parser."""
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
