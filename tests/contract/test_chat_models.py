"""Every ChatModel keeps one contract: scripted, recording, recorded, remote endpoint, and a pool of engines.

Promises:
 1. `complete` is safe to call concurrently, and each caller gets its own answer.
 2. The same request gives the same completion.
 3. Nothing but `ModelError` (unusable) and `InfraError` (no answer) is raised.
 4. `model_id` is stable; a request that names another model is refused by name (R7).
 5. Token ids and log-probabilities match in length where there are any, and never pass `max_tokens`.
 6. A source survives pickling, and its `open` gives the same model id.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from coevo.chat import Completion, FinishReason, Message, ModelRequest, Role, Sampling, ToolCall, ToolSpec
from coevo.errors import InfraError, ModelError, PrerequisiteError
from coevo.formats import chat_format
from coevo.models.openai_api import OpenAISource
from coevo.models.recorded import RecordedSource, RecordingSource, request_key
from coevo.models.scripted import ScriptedModel, ScriptedSource, faulty, turn_number
from coevo.ports import ChatModel, ModelSource
from coevo.store.local import LocalSource

pytestmark = pytest.mark.timeout(900)  # a start imports an inference library: seconds on a quiet machine, minutes on a busy one

TOOLS = (ToolSpec("lookup", "Look a record up.", {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}),)
KEY = "sk-very-secret-value"


def ask(number: int, *, tokens: int = 24, **changes: object) -> ModelRequest:
    """A request that differs from others in text, prompt ids, session and seed."""
    messages = (Message(Role.SYSTEM, "You look things up."), Message(Role.USER, f"Find record {number}."))
    prompt = tuple(5 + (number * 31 + column) % 250 for column in range(20))
    wanted = ModelRequest(messages, TOOLS, Sampling(0.8, 1.0, tokens), f"episode-{number}", number, prompt_token_ids=prompt)
    return replace(wanted, **changes)  # type: ignore[arg-type]


def echo(request: ModelRequest) -> str:
    """Says which request it saw."""
    return f"{request.messages[-1].content} Turn {turn_number(request)}, seed {request.seed}."


def endpoint(request: Request) -> Response:
    """A chat endpoint: echoes the last user message; some messages make it misbehave."""
    body = json.loads(request.data)
    last = body["messages"][-1]["content"]
    sent = request.headers.get("Authorization", "")
    if sent != f"Bearer {KEY}":
        return Response(json.dumps({"error": {"message": f"bad header {sent}"}}), status=401)
    if "too long" in last:
        return Response(json.dumps({"error": {"message": "context length exceeded"}}), status=400)
    if "outage" in last:
        return Response("upstream is down", status=503)
    if "garbage" in last:
        return Response("not json at all", content_type="application/json")
    message: dict[str, object] = {"role": "assistant", "content": f"{last} seed {body['seed']}"}
    if "silence" in last:
        message["content"] = ""
    if "call" in last:
        calls = [
            {"id": f"c{n}", "type": "function", "function": {"name": "lookup", "arguments": '{"key": "K-1"}'}}
            for n in range(last.count("call"))
        ]
        message |= {"content": "I look.", "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18, "prompt_tokens_details": {"cached_tokens": 5}}
    answer = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice], "usage": usage}
    return Response(json.dumps(answer), content_type="application/json")


@pytest.fixture(scope="module")
def server() -> Iterator[HTTPServer]:
    """A loopback endpoint."""
    with HTTPServer(host="127.0.0.1", threaded=True) as opened:
        opened.expect_request("/v1/chat/completions", method="POST").respond_with_handler(endpoint)
        opened.expect_request("/v1/models").respond_with_json(
            {"object": "list", "data": [{"id": "big", "object": "model", "created": 0, "owned_by": "x"}]}
        )
        yield opened


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    """Closes what the module opened."""
    with ExitStack() as opened:
        yield opened


def remote_source(server: HTTPServer, **changes: object) -> OpenAISource:
    """The endpoint with quick failures."""
    source = OpenAISource(server.url_for("/v1"), "big", api_key_env="COEVO_TEST_KEY", max_retries=0, timeout_s=20.0)
    return replace(source, **changes)  # type: ignore[arg-type]


def pool_source(stack: ExitStack, folder: Path) -> ModelSource:
    """A pool of one small engine in a private session."""
    if not (find_spec("torch") and find_spec("transformers")):
        pytest.skip("needs torch and transformers")
    from cluster.engines.family import EngineConfig, EngineKind
    from cluster.servers import ModelPool, PoolConfig
    from cluster.session import SessionConfig, open_session
    from cluster.tiny import make_tiny_model

    stack.enter_context(open_session(SessionConfig()))
    engine = EngineConfig(make_tiny_model(folder), "tiny@x", kind=EngineKind.TRANSFORMERS, dtype="float32", max_model_len=256)
    return stack.enter_context(ModelPool(PoolConfig(engine=engine, replicas=1))).source()


@pytest.fixture(scope="module", params=["scripted", "recording", "recorded", "openai", "pool"])
def source(
    request: pytest.FixtureRequest, server: HTTPServer, stack: ExitStack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModelSource]:
    """One source of each kind."""
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COEVO_TEST_KEY", KEY)
        if request.param == "scripted":
            yield ScriptedSource(echo)
        elif request.param == "recording":
            yield RecordingSource(ScriptedSource(echo), LocalSource(str(folder)))
        elif request.param == "recorded":
            recording = RecordingSource(ScriptedSource(echo), LocalSource(str(folder))).open()
            asyncio.run(complete_all(recording, [ask(number) for number in range(40)]))
            yield RecordedSource(LocalSource(str(folder)), "scripted")
        elif request.param == "openai":
            yield remote_source(server)
        else:
            yield pool_source(stack, folder)


async def complete_all(model: ChatModel, requests: list[ModelRequest]) -> list[Completion]:
    """All at once."""
    return list(await asyncio.gather(*(model.complete(one) for one in requests)))


async def test_concurrent_and_repeatable(source: ModelSource) -> None:
    """Promises 1, 2 and 5."""
    model = source.open()
    assert isinstance(model, ChatModel)
    first = await complete_all(model, [ask(number) for number in range(40)])
    again = [await model.complete(ask(number)) for number in range(0, 40, 7)]
    assert [one.text for one in again] == [first[number].text for number in range(0, 40, 7)]
    assert len({one.text for one in first}) == 40
    for one in first:
        assert isinstance(one.finish_reason, FinishReason)
        assert len(one.logprobs) in (0, len(one.token_ids))
        assert len(one.token_ids) <= 24
        assert all(value <= 0.0 for value in one.logprobs)
    await model.aclose()


async def test_the_session_does_not_decide_the_answer(source: ModelSource) -> None:
    """Promise 2: a retry in another session asks the same question."""
    model = source.open()
    assert await model.complete(ask(3)) == replace(
        await model.complete(ask(3, session="another")), usage=(await model.complete(ask(3))).usage
    )
    await model.aclose()


async def test_other_models_are_refused(source: ModelSource) -> None:
    """R7, promises 3 and 4: never silently the wrong weights."""
    model = source.open()
    assert model.model_id == source.model_id
    kind: type[Exception] | tuple[type[Exception], ...] = InfraError if isinstance(source, RecordedSource) else ModelError
    with pytest.raises(kind):
        await model.complete(ask(1, model_id="somebody@else"))
    assert (await model.complete(ask(1, model_id=model.model_id))).text == (await model.complete(ask(1))).text
    await model.aclose()


def test_sources_travel(source: ModelSource) -> None:
    """Promise 6."""
    copy = pickle.loads(pickle.dumps(source))
    assert copy == source
    assert KEY.encode() not in pickle.dumps(source)

    async def play() -> None:
        model = copy.open()
        assert model.model_id == source.model_id
        assert (await model.complete(ask(5))).text
        await model.aclose()

    asyncio.run(play())


async def test_scripts_count_turns_and_raise_faults() -> None:
    """Promise 3: a list plays by turn and ends with an error; a fault comes out as asked, a bug as `ModelError`."""
    model = ScriptedModel(["one", "two"])
    second = ask(1, messages=(Message(Role.USER, "u"), Message(Role.ASSISTANT, "one"), Message(Role.TOOL, "r")))
    assert (await model.complete(ask(1))).text == "one"
    assert (await model.complete(second)).text == "two"
    third = replace(second, messages=(*second.messages, Message(Role.ASSISTANT, "two")))
    with pytest.raises(ModelError, match="no more turns"):
        await model.complete(third)
    drill = ScriptedModel(faulty(echo, fails=lambda request: request.seed == 7))
    with pytest.raises(InfraError, match="drill"):
        await drill.complete(ask(7))
    assert (await drill.complete(ask(8))).text
    with pytest.raises(ModelError, match="KeyError"):
        await ScriptedModel(lambda request: {"a": "b"}[request.session]).complete(ask(1))


@dataclass(frozen=True, slots=True)
class Letters:
    """A tokenizer for scripts: one id per character."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int] | tuple[int, ...]) -> str:
        return "".join(chr(one) for one in ids)


async def test_scripted_tokens_respect_the_limit() -> None:
    """Promise 5: with a tokenizer a script's turn has ids, ended by the end-of-turn token or cut at the limit."""
    model = ScriptedModel(["abcdef"], tokenizer=Letters(), end_of_turn="$")
    whole = await model.complete(ask(1))
    assert whole.token_ids == tuple(map(ord, "abcdef$"))
    assert (whole.text, whole.finish_reason) == ("abcdef", FinishReason.STOP)
    cut = await model.complete(ask(1, tokens=4))
    assert (cut.text, cut.finish_reason, len(cut.token_ids)) == ("abcd", FinishReason.LENGTH, 4)


async def test_recordings_answer_only_what_was_asked(tmp_path: Path) -> None:
    """A recording is complete and exact: every field comes back, a miss says so, and the model is asked once per question."""
    asked: list[int] = []

    def script(request: ModelRequest) -> str:
        asked.append(request.seed)
        return echo(request)

    store = LocalSource(str(tmp_path))
    recording = RecordingSource(ScriptedSource(script, "m@1"), store).open()
    first = await complete_all(recording, [ask(number) for number in range(5)])
    assert await complete_all(recording, [ask(number) for number in range(5)]) == first
    assert sorted(asked) == list(range(5))
    replayed = RecordedSource(store, "m@1").open()
    assert await complete_all(replayed, [ask(number, session="other") for number in range(5)]) == first
    for changed in (ask(9), ask(1, seed=2), ask(1, sampling=Sampling(0.1)), ask(1, tools=())):
        with pytest.raises(InfraError, match="no answer"):
            await replayed.complete(changed)
    with pytest.raises(InfraError, match="no answer"):
        await RecordedSource(store, "m@2").open().complete(ask(1))
    assert request_key(ask(1), model_id="a") != request_key(ask(1), model_id="b")


async def test_an_endpoints_faults_are_attributed(server: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3, promise 3: refusals and empty answers are the model's, the rest is infrastructure; the key never shows (I11)."""
    monkeypatch.setenv("COEVO_TEST_KEY", KEY)
    model = remote_source(server).open()
    for text, kind in (("too long", ModelError), ("silence", ModelError), ("outage", InfraError), ("garbage", InfraError)):
        with pytest.raises(kind) as caught:
            await model.complete(ask(1, messages=(Message(Role.USER, text),)))
        assert KEY not in str(caught.value)
    monkeypatch.setenv("COEVO_TEST_KEY", "sk-wrong")
    with pytest.raises(InfraError, match="401") as refused:
        await remote_source(server).open().complete(ask(1))
    assert "sk-wrong" not in str(refused.value)
    await model.aclose()


async def test_an_endpoints_tool_calls_become_text(server: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """R14: a structured call reads back with the format's parser; two calls in one turn are kept and reported as such."""
    monkeypatch.setenv("COEVO_TEST_KEY", KEY)
    model = remote_source(server).open()
    one = await model.complete(ask(1, messages=(Message(Role.USER, "call"),)))
    turn = chat_format("hermes").parse(one.text, TOOLS)
    assert (turn.say, turn.call) == ("I look.", ToolCall("lookup", {"key": "K-1"}))
    assert (one.usage.prompt_tokens, one.usage.cached_tokens, one.usage.completion_tokens) == (11, 5, 7)
    two = await model.complete(ask(1, messages=(Message(Role.USER, "call call"),)))
    assert "more than one" in (chat_format("hermes").parse(two.text, TOOLS).failure or "")
    await model.aclose()


async def test_histories_reach_an_endpoint_in_its_own_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls and their results are paired by id; a result without a call (after a parse failure) is a user message."""
    monkeypatch.setenv("COEVO_TEST_KEY", KEY)
    seen: list[dict[str, object]] = []
    with HTTPServer(host="127.0.0.1") as server:

        def keep(request: Request) -> Response:
            seen.append(json.loads(request.data))
            return endpoint(request)

        server.expect_request("/v1/chat/completions").respond_with_handler(keep)
        call = ToolCall("lookup", {"key": "A"})
        raw = chat_format("hermes").render_turn("First.", call, TOOLS)
        history = (
            Message(Role.USER, "go"),
            Message(Role.ASSISTANT, raw, (call,)),
            Message(Role.TOOL, "found A"),
            Message(Role.ASSISTANT, "no tags here"),
            Message(Role.TOOL, "no tool call found"),
        )
        model = remote_source(server).open()
        await model.complete(ask(1, messages=history))
        await model.aclose()
    wire = seen[0]["messages"]
    assert isinstance(wire, list)
    assert [one["role"] for one in wire] == ["user", "assistant", "tool", "assistant", "user"]
    assert wire[1]["content"] == "First."
    assert wire[1]["tool_calls"][0]["id"] == wire[2]["tool_call_id"]
    assert json.loads(wire[1]["tool_calls"][0]["function"]["arguments"]) == {"key": "A"}


async def test_probe_tells_before_a_run(server: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input: no key, nobody listening, unknown model: a three-part `PrerequisiteError` before anything starts."""
    monkeypatch.delenv("COEVO_TEST_KEY", raising=False)
    with pytest.raises(PrerequisiteError, match="COEVO_TEST_KEY"):
        remote_source(server).open()
    monkeypatch.setenv("COEVO_TEST_KEY", KEY)
    await remote_source(server).open().probe()
    with pytest.raises(PrerequisiteError, match="serves big"):
        await remote_source(server, model="other").open().probe()
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{reserved.getsockname()[1]}/v1"
        model = remote_source(server, base_url=nobody).open()
        with pytest.raises(PrerequisiteError, match="can't be used"):
            await model.probe()
        with pytest.raises(InfraError, match="endpoint failed"):
            await model.complete(ask(1))


def test_a_model_outlives_its_event_loop(source: ModelSource) -> None:
    """Several `asyncio.run` in turn, and one in another thread, each with a model opened there."""
    texts: list[str] = []

    def play() -> None:
        async def once() -> None:
            model = source.open()
            texts.append((await model.complete(ask(2))).text)
            await model.aclose()

        asyncio.run(once())

    play()
    play()
    thread = threading.Thread(target=play)
    thread.start()
    thread.join(120)
    assert len(texts) == 3
    assert len(set(texts)) == 1
