"""Every expert keeps one contract: the reference policy, an LLM behind a real HTTP endpoint, a recorded LLM.

Promises:
 1. Offers hold up to N different candidates that fit their tool's schema and read back in the weak model's format.
 2. The same question gives the same offer; concurrent questions do not mix.
 3. A source survives pickling and holds no key.
 4. Wire faults: 429 with Retry-After and 5xx are retried; a lasting one, a slow or a speechless endpoint is infrastructure (I3).
 5. Unusable answers (no JSON, a schema violation, a filtered one) are asked once more, then recorded with their reason and their tokens.
 6. An endpoint without JSON schemas is asked by tool call, then in plain words, and the offer says which.
 7. An expert plays whole episodes under the weak model's harness; what it can't say is a parse failure of the episode, not an error.
 8. A rewrite stage records candidates, rejected answers and dollars, and nothing that the endpoint echoes of the key is stored (I11).
 9. An answer that was paid for is not paid again: another try is answered from the run's recording.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from coevo.chat import Sampling, Usage
from coevo.errors import InfraError, root_traceback
from coevo.fanout import FanoutPolicy, LocalExecutor
from coevo.formats.mini import MiniFormat
from coevo.harness.sandbox import shared_pool
from coevo.harness.tools import resolve_tools
from coevo.localize.evidence import suspects
from coevo.mini.demonstrator import Demonstrator, Habits
from coevo.mini.harnesses import DemoHarness, base_demo, hand_made
from coevo.mini.tokenizer import save_tokenizer
from coevo.models.openai_api import OpenAISource
from coevo.models.recorded import RecordedSource, RecordingSource
from coevo.ports import ItemState
from coevo.prices import load_prices
from coevo.records import Episode, Localization, LocalizationCandidate, Status
from coevo.rewrite.expert import ExpertSource, Offer, ReferenceExpert, ReferenceExpertSource
from coevo.rewrite.llm import ExpertPlayerSource, LLMExpertSource, LLMRecipe
from coevo.rewrite.spend import noted_spend
from coevo.rewrite.stage import RewriteStage, read_correction
from coevo.rollout import AgentSource, RolloutStage, draw_items
from coevo.store import LocalSource
from coevo.store.episodes import EpisodeStore
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream
from tests.readable import readable_files

FAMILY, FORMAT = load_family("payroll"), MiniFormat()
LOCAL = FanoutPolicy(concurrency=8, base_s=0.0, tries=2)
KEY = "sk-contract-very-secret"
PRICE = next(iter(load_prices().tokens.values()))


class ScoredClerk(Demonstrator):
    """The demonstrator with a made-up likelihood: the shorter turn is the likelier."""

    async def logprobs(self, prompt: Sequence[int], completion: Sequence[int], *, model_id: str = "") -> tuple[float, ...]:
        return tuple(-0.1 * len(completion) for _ in completion)


@dataclass(frozen=True)
class ClerkSource:
    """The weak model."""

    harness: DemoHarness
    model_id: str = "demonstrator:7"

    def open(self) -> ScoredClerk:
        return ScoredClerk(self.harness, FAMILY, habits=Habits(), seed=7)


@dataclass(frozen=True)
class Bench:
    """Failed episodes of the clerk and, per episode, a turn to rewrite."""

    store: LocalSource
    agent: AgentSource
    cases: tuple[tuple[Episode, int], ...]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp("bench")
    save_tokenizer(root / "tokenizer")
    store = LocalSource(str(root / "store"))
    agent = AgentSource(
        "payroll", ClerkSource(hand_made(FAMILY)), hand_made(FAMILY).bundle, "mini", str(root / "tokenizer"), 4096, Sampling(0.7, 1.0, 96)
    )
    items = draw_items(FAMILY, Stream.SEARCH, Size.MINI, range(16), diversity=3)
    assert not LocalExecutor(LOCAL).map(RolloutStage(agent, store, "run"), items).owed
    played = [EpisodeStore(store.open(), "run").get(agent.spec(item).id) for item in items]
    expert = ReferenceExpert(FAMILY, agent.bundle, FORMAT, shared_pool())
    cases = []
    for episode in (one for one in played if not one.success):
        turns = [one.turn for one in suspects(episode, limit=3) if asyncio.run(expert.rewrite(episode, one.turn, n=1)).rewrites]
        cases += [(episode, turns[0])] if turns else []
    assert len(cases) >= 3
    return Bench(store, agent, tuple(cases))


@dataclass
class Endpoint:
    """A chat endpoint that answers like the reference policy; `script` may answer first (None leaves it to the policy)."""

    script: Callable[[dict[str, Any], int], Response | None] = lambda body, number: None
    turn: dict[str, Any] = field(default_factory=lambda: {"strategy": "Look first.", "call": {"name": "finish", "arguments": {}}})
    bodies: list[dict[str, Any]] = field(default_factory=list)
    auth: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Request) -> Response:
        body = json.loads(request.data)
        with self.lock:
            self.bodies.append(body)
            self.auth.add(request.headers.get("Authorization", ""))
            number = len(self.bodies)
        return self.script(body, number) or reply(body, json.dumps(self.turn))


def reply(body: dict[str, Any], text: str | None, *, finish: str = "stop") -> Response:
    """A completion; as a tool call where one was demanded."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if body.get("tool_choice"):
        call = {"id": "c", "type": "function", "function": {"name": body["tool_choice"]["function"]["name"], "arguments": text}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, "prompt_tokens_details": {"cached_tokens": 40}}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    answer = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice], "usage": usage}
    return Response(json.dumps(answer), content_type="application/json")


def error(status: int, message: str, **headers: str) -> Response:
    return Response(json.dumps({"error": {"message": message}}), status=status, content_type="application/json", headers=headers)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    monkeypatch.setenv("COEVO_TEST_KEY", KEY)
    with HTTPServer(host="127.0.0.1", threaded=True) as opened:
        yield opened


def serve(server: HTTPServer, endpoint: Endpoint, **changes: Any) -> OpenAISource:
    server.expect_request("/v1/chat/completions", method="POST").respond_with_handler(endpoint)
    source = OpenAISource(server.url_for("/v1"), "big", api_key_env="COEVO_TEST_KEY", format_name="mini", max_retries=2, timeout_s=20.0)
    return replace(source, **changes)


def offer_of(source: ExpertSource, bench: Bench, case: int = 0, *, n: int = 2) -> Offer:
    async def ask() -> Offer:
        expert = source.open(bench.agent.open(), FAMILY)
        episode, turn = bench.cases[case]
        try:
            return await expert.rewrite(episode, turn, n=n)
        finally:
            await expert.aclose()

    return asyncio.run(ask())


def llm(source: Any, **changes: Any) -> LLMExpertSource:
    return LLMExpertSource(LLMRecipe(source, price=PRICE, **changes))


def tools_of(bench: Bench) -> Any:
    return resolve_tools(bench.agent.bundle.tools, bench.agent.bundle.composites, FAMILY.tools(Size.MINI)).specs


@pytest.mark.parametrize("kind", ["reference", "llm", "recorded"])
def test_offers_keep_the_contract(kind: str, bench: Bench, server: HTTPServer, tmp_path: Path) -> None:
    """Promises 1, 2 and 3."""
    source: ExpertSource = ReferenceExpertSource()
    endpoint = Endpoint()
    if kind != "reference":
        remote = serve(server, endpoint)
        source = llm(remote)
    if kind == "recorded":
        folder = LocalSource(str(tmp_path / "recording"))
        for case in range(3):
            offer_of(llm(RecordingSource(remote, folder)), bench, case)
        server.clear()
        source = llm(RecordedSource(folder, remote.model_id))
    assert KEY.encode() not in pickle.dumps(source)
    source = pickle.loads(pickle.dumps(source))
    first = [offer_of(source, bench, case) for case in range(3)]
    assert first == [offer_of(source, bench, case) for case in range(3)]
    for offer in first:
        assert 1 <= len(offer.rewrites) <= 2
        assert len({one.text for one in offer.rewrites}) == len(offer.rewrites)
        for rewrite in offer.rewrites:
            assert FORMAT.parse(rewrite.text, tools_of(bench)).call == rewrite.call
    if kind != "reference":
        assert all((one.use.calls, one.use.form) == (2, "json_schema") for one in first)
        assert endpoint.auth == {f"Bearer {KEY}"}
        asked = endpoint.bodies[0]
        assert asked["messages"][0]["role"] == "system"
        assert "failed the task" in asked["messages"][-1]["content"]
        assert len({body["seed"] for body in endpoint.bodies[:2]}) == 2


def test_a_recording_that_lacks_the_question_says_so(bench: Bench, tmp_path: Path) -> None:
    """Promise 2: nothing is made up."""
    with pytest.raises(InfraError, match="no answer"):
        offer_of(llm(RecordedSource(LocalSource(str(tmp_path)), "remote:big")), bench)


def test_greedy_decoding_asks_once(bench: Bench, server: HTTPServer) -> None:
    """Promise 1: N equal answers are not bought."""
    endpoint = Endpoint()
    offer = offer_of(llm(serve(server, endpoint), temperature=0.0), bench, n=4)
    assert (len(offer.rewrites), len(endpoint.bodies)) == (1, 1)


def test_the_most_frequent_answer_comes_first(bench: Bench, server: HTTPServer) -> None:
    """Promise 1: most likely first."""
    finish, other = turn_of("finish"), json.dumps({"strategy": "Rare.", "call": {"name": "escalate", "arguments": {"employee": "E204"}}})
    endpoint = Endpoint(lambda body, number: reply(body, other if number == 1 else finish))
    offer = offer_of(llm(serve(server, endpoint)), bench, n=4)
    assert [one.call.name for one in offer.rewrites] == ["finish", "escalate"]


def turn_of(name: str, **arguments: Any) -> str:
    return json.dumps({"strategy": "Go on.", "call": {"name": name, "arguments": arguments}})


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_faults_are_retried(status: int, bench: Bench, server: HTTPServer) -> None:
    """Promise 4: one retry of the SDK; `Retry-After` is waited for, and the answer is billed once."""
    started = time.monotonic()
    endpoint = Endpoint(lambda body, number: error(status, "busy", **{"Retry-After": "1"}) if number == 1 else None)
    offer = offer_of(llm(serve(server, endpoint)), bench, n=1)
    assert (len(offer.rewrites), offer.use.calls, len(endpoint.bodies)) == (1, 1, 2)
    assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize("kind", ["429", "500", "slow", "garbage", "html", "nobody"])
def test_lasting_faults_are_infrastructure(kind: str, bench: Bench, server: HTTPServer) -> None:
    """Promise 4, I3, I11: whatever the endpoint echoes, the key is in no message and no traceback."""
    done = threading.Event()

    def script(body: dict[str, Any], number: int) -> Response:
        match kind:
            case "slow":
                done.wait(20)
                return error(500, "late")
            case "garbage":
                return Response(f"{KEY} not json", content_type="application/json")
            case "html":
                return Response(f"<html>{KEY}</html>", content_type="text/html")
            case _:
                return error(int(kind), f"key {KEY} has no quota", **{"Retry-After": "0"})

    changes: dict[str, Any] = {"max_retries": 1, "timeout_s": 0.5 if kind == "slow" else 20.0}
    if kind == "nobody":
        changes["base_url"] = "http://127.0.0.1:9/v1"
    source = llm(serve(server, Endpoint(script), **changes))
    with pytest.raises(InfraError) as caught:
        offer_of(source, bench, n=1)
    done.set()
    assert KEY not in root_traceback(caught.value, limit_chars=100_000)


@pytest.mark.parametrize(
    ("answer", "finish", "reason"),
    [
        ("I think one should finish.", "stop", "no JSON"),
        (turn_of("get_recrd"), "stop", "unknown tool get_recrd"),
        (turn_of("escalate"), "stop", "required property"),
        (turn_of("finish")[:30], "length", "cut at max_tokens"),
        ("", "content_filter", "content filter"),
        ("", "stop", "no JSON"),
    ],
    ids=["prose", "tool", "arguments", "cut", "filtered", "empty"],
)
def test_unusable_answers_are_recorded_with_their_reason(answer: str, finish: str, reason: str, bench: Bench, server: HTTPServer) -> None:
    """Promise 5: mended by the second try, or rejected; both tries are billed either way."""
    always = Endpoint(lambda body, number: reply(body, answer, finish=finish))
    offer = offer_of(llm(serve(server, always)), bench, n=1)
    assert offer.rewrites == ()
    (rejected,) = offer.rejected
    assert rejected.text == answer
    assert rejected.reason.count(reason) == 2
    assert (offer.use.calls, offer.use.usage.prompt_tokens, offer.use.usage.cached_tokens) == (2, 200, 80)
    assert offer.use.usd == pytest.approx(PRICE.cost_usd(usage(offer)))
    server.clear()
    once = Endpoint(lambda body, number: reply(body, answer, finish=finish) if number == 1 else None)
    mended = offer_of(llm(serve(server, once)), bench, n=1)
    assert (len(mended.rewrites), mended.rejected, mended.use.calls) == (1, (), 2)
    if answer:
        assert reason.split(",", maxsplit=1)[0] in once.bodies[1]["messages"][-1]["content"] or finish == "content_filter"


def usage(offer: Offer) -> Usage:
    return Usage(offer.use.usage.prompt_tokens, offer.use.usage.cached_tokens, offer.use.usage.completion_tokens)


def test_the_endpoint_s_dialect_is_learned_and_told(bench: Bench, server: HTTPServer) -> None:
    """Promise 6."""

    def no_schema(body: dict[str, Any], number: int) -> Response | None:
        return error(400, "response_format json_schema is not supported") if "response_format" in body else None

    def neither(body: dict[str, Any], number: int) -> Response | None:
        return no_schema(body, number) or (error(400, "this model does not support tools") if "tools" in body else None)

    def strange(body: dict[str, Any], number: int) -> Response | None:
        if "max_tokens" in body:
            return error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return error(400, "'temperature' does not support 0.7") if "temperature" in body else None

    for script, form, calls in ((no_schema, "tool_call", 3), (neither, "plain", 4), (strange, "json_schema", 4)):
        endpoint = Endpoint(script)
        source = llm(serve(server, endpoint))

        async def both(source: LLMExpertSource = source) -> list[Offer]:
            expert = source.open(bench.agent.open(), FAMILY)
            offers = [await expert.rewrite(*bench.cases[case], n=1) for case in (0, 1)]
            await expert.aclose()
            return offers

        offers = asyncio.run(both())
        assert [(len(one.rewrites), one.use.form) for one in offers] == [(1, form)] * 2
        assert len(endpoint.bodies) == calls, "conceded once, not at every call"
        server.clear()


def test_too_long_a_context_is_a_rejected_answer(bench: Bench, server: HTTPServer) -> None:
    """Promise 5: the endpoint's refusal of the request itself is no reason to give the schema up, and no infrastructure."""
    endpoint = Endpoint(lambda body, number: error(400, "maximum context length is 8 tokens, 3 in the functions"))
    offer = offer_of(llm(serve(server, endpoint)), bench, n=1)
    assert offer.rewrites == ()
    assert "maximum context length" in offer.rejected[0].reason
    assert all("response_format" in body for body in endpoint.bodies)
    assert offer.use.usd == 0.0


def player(bench: Bench, source: OpenAISource) -> AgentSource:
    return replace(bench.agent, model=ExpertPlayerSource(LLMRecipe(source, price=PRICE), "mini"), bundle=base_demo(FAMILY).bundle)


def test_an_expert_plays_whole_episodes(bench: Bench, server: HTTPServer, tmp_path: Path) -> None:
    """Promise 7: strategy and call in the weak model's format, ids for training, dollars in the note."""
    store = LocalSource(str(tmp_path))
    agent = player(bench, serve(server, Endpoint()))
    items = draw_items(FAMILY, Stream.SEARCH, Size.MINI, range(3), diversity=3)
    report = LocalExecutor(LOCAL).map(RolloutStage(agent, store, "run"), items)
    assert not report.owed
    for item, outcome in zip(items, report.outcomes, strict=True):
        episode = EpisodeStore(store.open(), "run").get(agent.spec(item).id)
        assert episode.status is Status.COMPLETED
        assert episode.turns[0].say == "Look first."
        assert episode.turns[0].completion_token_ids
        bought = noted_spend(outcome.note)
        assert bought.tokens == 120 * len(episode.turns)
        assert bought.usd is not None
        assert bought.usd > 0
    assert agent.model.model_id.startswith("remote:big/")
    assert len({agent.spec(item).id for item in items} & {bench.agent.spec(item).id for item in items}) == 0


def test_what_an_expert_can_t_say_fails_its_episode(bench: Bench, server: HTTPServer, tmp_path: Path) -> None:
    """Promise 7: a failed episode is data."""
    agent = player(bench, serve(server, Endpoint(lambda body, number: reply(body, "I would rather talk."))))
    items = draw_items(FAMILY, Stream.SEARCH, Size.MINI, range(1), diversity=3)
    assert not LocalExecutor(LOCAL).map(RolloutStage(agent, LocalSource(str(tmp_path)), "run"), items).owed
    episode = EpisodeStore(LocalSource(str(tmp_path)).open(), "run").get(agent.spec(items[0]).id)
    assert (episode.status, episode.success) == (Status.PARSE_FAILURES, False)


def localized(bench: Bench, store: LocalSource) -> list[str]:
    """Localizations of the cases, as the localize stage would have left them."""
    ids = []
    for episode, turn in bench.cases[:2]:
        place = LocalizationCandidate(turn=turn, evidence="e", p_kept=0.0, p_resampled=0.0, p_rewritten=1.0, m=4, gain_lower=0.1)
        record = Localization(episode_id=episode.id, turn=turn, method="m", candidates=(place,))
        store.open().put_if_absent(f"loc/localizations/{episode.id}.json", record.to_bytes())
        store.open().put_if_absent(f"run/episodes/{episode.id}.json.zst", bench.store.open().get(f"run/episodes/{episode.id}.json.zst"))
        ids.append(episode.id)
    return ids


def test_a_rewrite_stage_pays_once_and_stores_no_key(bench: Bench, server: HTTPServer, tmp_path: Path) -> None:
    """Promises 8 and 9, I11: an endpoint that echoes its key in errors and answers, fails once, and is asked again.

    Its good answers come long after a failure beside them, so that a caller that went on at the failure would ask for them twice.
    """
    store = LocalSource(str(tmp_path / "store"))
    failing = threading.Event()
    failing.set()

    def echo(body: dict[str, Any], number: int) -> Response | None:
        if body["seed"] % 2 and failing.is_set():
            return error(401, f"Incorrect API key provided: {KEY}")
        if failing.is_set():
            time.sleep(0.3)
        return reply(body, f"the key {KEY}") if number % 3 == 0 else None

    endpoint = Endpoint(echo)
    recipe = LLMRecipe(RecordingSource(serve(server, endpoint, max_retries=0), store, "run/expert"), price=PRICE)
    stage = RewriteStage(bench.agent, store, "rw", "loc", "run", 4, 2, 0.1, LLMExpertSource(recipe))
    ids = localized(bench, store)
    first = LocalExecutor(LOCAL).map(stage, ids)
    assert first.owed
    assert all("401" in one.error for one in first.owed)
    assert KEY not in str(first.outcomes)
    failing.clear()
    again = LocalExecutor(LOCAL).map(stage, ids)
    assert not again.owed
    asked = Counter(seed_of(body) for body in endpoint.bodies)
    paid_for = {count for (seed, _), count in asked.items() if seed % 2 == 0}
    assert paid_for == {1}
    assert max(asked.values()) > 1, "what failed was asked again"
    corrections = [read_correction(store.open(), "rw", id) for id in ids]
    for correction, outcome in zip(corrections, again.outcomes, strict=True):
        assert correction.expert_model_id == recipe.model_id
        assert correction.expert.calls >= 4 - len(correction.rejected)
        assert correction.expert.usd is not None
        assert noted_spend(outcome.note).usd == pytest.approx(correction.expert.usd)
        assert all(one.reason for one in correction.rejected)
        assert correction.candidates or correction.chosen == -1
    assert LocalExecutor(LOCAL).map(stage, ids).outcomes[0].state is ItemState.SKIPPED
    stored = readable_files(tmp_path / "store")
    assert len(stored) > 6
    assert [path for path, data in stored.items() if KEY.encode() in data] == []
    assert any(b"the key ***" in data for data in stored.values()), "the search can find"
    before = len(endpoint.bodies)
    fresh = replace(stage, prefix="rw2")
    assert not LocalExecutor(LOCAL).map(fresh, ids).owed
    assert len(endpoint.bodies) == before, "the run's recording answers what was paid for"


def seed_of(body: dict[str, Any]) -> tuple[int, str]:
    return body["seed"], json.dumps(body["messages"][-1])


def test_a_turn_without_usable_answers_is_an_unverified_correction(bench: Bench, server: HTTPServer, tmp_path: Path) -> None:
    """Promise 8: one committed record per item, also when the expert said nothing usable (I1)."""
    store = LocalSource(str(tmp_path))
    source = llm(serve(server, Endpoint(lambda body, number: reply(body, "no"))))
    ids = localized(bench, store)
    stage = RewriteStage(bench.agent, store, "rw", "loc", "run", 2, 2, 0.1, source)
    assert not LocalExecutor(LOCAL).map(stage, ids).owed
    record = read_correction(store.open(), "rw", ids[0])
    assert (record.verified, record.candidates, record.rewritten, record.chosen) == (False, (), "", -1)
    assert len(record.rejected) == 2
