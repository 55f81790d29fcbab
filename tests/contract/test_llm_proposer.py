"""The LLM proposer over the real wire: an OpenAI-compatible endpoint on loopback, and the log that is kept of it.

Promises:
 1. The agent reads failures, turns, harness and past edits through tools, is told what is wrong with a draft; its edits come back typed.
 2. The kept log is byte for byte `tests/data/proposals/shelf.jsonl`, and the recorded proposer gives the same edits without an endpoint.
 3. Nothing that the agent reads names a task key or seed; nothing that is stored holds the key of the endpoint (I11).
 4. What copies from an episode is refused with the reason, in the episode, where the agent can mend it.
 5. A busy endpoint is asked again; one that fails raises when no edit was submitted (I3), and loses none that was.
 6. A model that can't use the tools gives no edits and no error.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from coevo.chat import ToolCall
from coevo.errors import InfraError
from coevo.evolve.llm import LLMProposer, ProposerModel
from coevo.evolve.proposals import ProposalLog, ProposalRecord
from coevo.evolve.propose import Edit, Evidence, PastEdit, PredictionScore
from coevo.evolve.recorded import KeptProposer, RecordedProposer
from coevo.harness.sandbox import SandboxLimits, SandboxPool
from coevo.models.openai_api import OpenAISource
from coevo.records import Status
from coevo.rewrite.llm import ExpertPlayerSource, LLMRecipe
from coevo.rewrite.turn import turn_json
from coevo.store import LocalSource
from tests.unit.shelf import FAMILY, base, mixed_episodes
from tests.unit.workbench import GUARD, TURNS

LOG = Path(__file__).parents[1] / "data" / "proposals" / "shelf.jsonl"
KEY = "sk-proposer-very-secret"
Turns = tuple[tuple[str, ToolCall], ...]


def message(said: str, call: ToolCall | None) -> dict[str, Any]:
    answer: dict[str, Any] = {"role": "assistant", "content": said or None}
    if call is not None:
        function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
        answer["tool_calls"] = [{"id": "c", "type": "function", "function": function}]
    return answer


def reply(answer: dict[str, Any]) -> Response:
    usage = {"prompt_tokens": 900, "completion_tokens": 60, "total_tokens": 960, "prompt_tokens_details": {"cached_tokens": 300}}
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "writer", "usage": usage}
    choice = {"index": 0, "message": answer, "finish_reason": "tool_calls" if answer.get("tool_calls") else "stop"}
    return Response(json.dumps({**body, "choices": [choice]}), content_type="application/json")


@dataclass
class Endpoint:
    """Plays turns by the number of assistant messages, or `in_order` of requests (a long context is trimmed); `fault` may answer first."""

    turns: Turns = TURNS
    in_order: bool = False
    fault: Callable[[int], Response | None] = lambda number: None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Request) -> Response:
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        body = json.loads(request.data)
        with self.lock:
            self.bodies.append(body)
            number = len(self.bodies)
        turn = number - 1 if self.in_order else sum(one["role"] == "assistant" for one in body["messages"])
        return self.fault(number) or reply(message(*self.turns[min(turn, len(self.turns) - 1)]))


@pytest.fixture
def endpoint(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("COEVO_PROPOSER_KEY", KEY)
    served = Endpoint()
    httpserver.expect_request("/v1/chat/completions", method="POST").respond_with_handler(served)
    yield served
    httpserver.check_assertions()


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    pool = SandboxPool(SandboxLimits(call_s=1.0), max_workers=2)
    yield pool
    pool.close()


def proposer(httpserver: HTTPServer, *, agents: int = 1, retries: int = 2, sandboxes: SandboxPool | None = None) -> LLMProposer:
    source = OpenAISource(httpserver.url_for("/v1"), "writer", api_key_env="COEVO_PROPOSER_KEY", max_retries=retries)
    return LLMProposer(ProposerModel(source), agents=agents, sandboxes=sandboxes)


def evidence() -> Evidence:
    return Evidence(mixed_episodes(), FAMILY)


def test_the_log_of_the_wire_is_the_committed_one(httpserver: HTTPServer, endpoint: Endpoint, tmp_path: Path) -> None:
    """Promises 1 to 3."""
    store = ProposalLog(LocalSource(str(tmp_path)).open(), "run/proposals")
    kept = KeptProposer(proposer(httpserver), store)
    edits = kept.propose(base(), evidence(), Random(1))
    assert [(edit.component, edit.mechanism) for edit in edits] == [("hook:guard", "finish guard"), ("prompt", "playbook")]
    assert len(endpoint.bodies) == len(TURNS)
    lines = b"".join(record.to_bytes() + b"\n" for record in store)
    if not LOG.exists():
        LOG.parent.mkdir(parents=True, exist_ok=True)
        LOG.write_bytes(lines)
        pytest.fail("the log was written anew: read it and commit it")
    assert lines == LOG.read_bytes()
    again = RecordedProposer(ProposalLog.read_lines(LOG))
    assert again.propose(base(), evidence(), Random(1)) == edits
    said = json.dumps(endpoint.bodies)
    assert "search/2" not in said
    assert "shelf/mini" not in said
    assert KEY not in lines.decode()


def test_what_the_agent_reads(httpserver: HTTPServer, endpoint: Endpoint) -> None:
    """Promise 1: tools carry raw turns, harness texts, and past edits with their measured effect."""
    past = (
        PastEdit("hook:loop", "loop breaker", "it loops", "refused by the gate", -0.0312, 48, PredictionScore(5, 2, 4, 1, 0, 3)),
        PastEdit("prompt", "playbook", "order", "not played"),
    )
    proposed = proposer(httpserver).propose_traced(base(), Evidence(mixed_episodes(), FAMILY, past), Random(1))
    (episode,) = proposed.episodes
    results = {turn.call.name: turn.result for turn in episode.turns if turn.call is not None}
    assert episode.status is Status.COMPLETED
    assert episode.success
    assert '"ended": "completed"' in results["list_episodes"]
    assert "books= bk-" in results["read_turns"]
    assert "survey (shelf)" in results["read_harness"]
    assert '"gain": -0.031' in results["read_past_edits"]
    assert "2 of 5 predicted fixes came true; 3 successes were lost, 0 of them predicted" in results["read_past_edits"]
    assert "wrong signature" in next(turn.result for turn in episode.turns if turn.result_error)
    assert episode.usage.prompt_tokens == 900 * len(TURNS)
    names = [tool["function"]["name"] for tool in endpoint.bodies[0]["tools"]]
    assert names[0] == "list_episodes"
    assert names[-1] == "finish"


def submit(**changes: Any) -> ToolCall:
    arguments = {"mechanism": "m", "hypothesis": "h", "evidence": ["f1:0"], "predicted_fixes": ["f1"], "risk": "r"}
    return ToolCall("submit_edit", {**arguments, **changes})


def write(component: str, text: str) -> ToolCall:
    return ToolCall("write_component", {"component": component, "text": text})


def results(httpserver: HTTPServer, endpoint: Endpoint, pool: SandboxPool, *calls: ToolCall) -> tuple[list[Edit], list[str]]:
    """What the agent was told for each call."""
    endpoint.turns, endpoint.in_order = (*(("", call) for call in calls), ("", ToolCall("finish", {}))), True
    proposed = proposer(httpserver, sandboxes=pool).propose_traced(base(), evidence(), Random(1))
    (episode,) = proposed.episodes
    return list(proposed.edits), [turn.result for turn in episode.turns]


def test_refusals_say_what_to_mend(httpserver: HTTPServer, endpoint: Endpoint, pool: SandboxPool) -> None:
    """Promise 4, and every other reason to refuse a submission."""
    book = next(episode for episode in mixed_episodes() if not episode.success).turns[0].result.split()[1]
    good = write("prompt", "you keep books . slowly .")
    refused = {
        "changes nothing": submit(),
        "no turn of a failure": submit(evidence=["f1:99"]),
        "no turn of a failure ": submit(evidence=["s1:0"]),
        "there is no episode f999": submit(evidence=["f999:0"]),
        "no failure": submit(predicted_fixes=["s1"]),
        "no success": submit(predicted_regressions=["f1"]),
        "needs mechanism": submit(hypothesis=" "),
        "needs mechanism ": submit(evidence=[]),
        "bad arguments": submit(surprise=1),
    }
    calls = [submit(), good, *list(refused.values())[1:], submit(), write("prompt", f"you keep books . {book} first ."), submit()]
    calls += [ToolCall("drop_draft", {}), write("hook:evil", "def after_tool(event, state):\n    while True:\n        pass\n"), submit()]
    calls += [ToolCall("drop_draft", {}), ToolCall("remove_component", {"component": "entry:finish"}), submit()]
    edits, told = results(httpserver, endpoint, pool, *calls)
    assert len(edits) == 1
    expected = [*refused]
    assert expected[0] in told[0]
    for said, result in zip(expected[1:], told[2 : 2 + len(expected) - 1], strict=True):
        assert said.strip() in result
    rest = told[2 + len(expected) - 1 :]
    assert '"edits": 1' in rest[0]
    assert f"identifier '{book}'" in rest[2]
    assert "holds for any instance" in rest[2]
    assert "the draft does not work: hooks/evil.py" in rest[5]
    assert "finish is hidden" in rest[8]


def test_every_component_kind_can_be_written(httpserver: HTTPServer, endpoint: Endpoint, pool: SandboxPool) -> None:
    """Promise 1: a composite brings its line; all kinds end in one edit of typed changes."""
    source = "def weigh(book: str):\n    return open_book(book=book)\n"
    calls = [
        write("hook:guard", GUARD),
        write("tool:weigh", source),
        write("skill:odd", "trigger: pages\nodd pages are discarded .\n"),
        write("entry:sweep", '{"tool": "sweep", "as": "clean"}'),
        write("context:keep_last_turns", "6"),
        write("limits:max_turns", "30"),
        ToolCall("remove_component", {"component": "entry:discard"}),
        ToolCall("read_harness", {"component": "tool:weigh"}),
        submit(),
    ]
    (edit,), told = results(httpserver, endpoint, pool, *calls)
    changed = {(change.action.value, change.component) for change in edit.changes(base())}
    assert changed == {
        ("add", "hook:guard"),
        ("add", "tool:weigh"),
        ("add", "entry:weigh"),
        ("add", "skill:odd"),
        ("change", "entry:sweep"),
        ("change", "context:keep_last_turns"),
        ("change", "limits:max_turns"),
        ("remove", "entry:discard"),
    }
    assert edit.bundle.tools[0].name == "weigh"
    assert "open_book(book=book)" in told[7]


def test_turns_as_constrained_json(httpserver: HTTPServer, endpoint: Endpoint) -> None:
    """Promise 1 for endpoints whose servers parse no tool calls: the expert's way to play, which `coevo run` takes."""
    endpoint.fault = lambda number: reply({"role": "assistant", "content": json.dumps(turn_json("Go on.", TURNS[number - 1][1]))})
    source = OpenAISource(httpserver.url_for("/v1"), "writer", api_key_env="COEVO_PROPOSER_KEY")
    player = ExpertPlayerSource(LLMRecipe(source, 0.7, 4096), "hermes")
    proposed = LLMProposer(ProposerModel(player)).propose_traced(base(), evidence(), Random(1))
    assert [edit.mechanism for edit in proposed.edits] == ["finish guard", "playbook"]
    assert all("response_format" in body and "tools" not in body for body in endpoint.bodies)


def test_several_agents_at_once_give_each_edit_once(httpserver: HTTPServer, endpoint: Endpoint) -> None:
    proposed = proposer(httpserver, agents=3).propose_traced(base(), evidence(), Random(1))
    assert [edit.mechanism for edit in proposed.edits] == ["finish guard", "playbook"]
    assert len({episode.id for episode in proposed.episodes}) == 3
    assert len({body["seed"] for body in endpoint.bodies}) == 3 * len(TURNS), "each agent samples with seeds of its own"


def test_inside_a_running_loop(httpserver: HTTPServer, endpoint: Endpoint) -> None:
    async def ask() -> list[Edit]:
        return proposer(httpserver).propose(base(), evidence(), Random(1))

    assert len(asyncio.run(ask())) == 2


def test_a_busy_endpoint_is_asked_again(httpserver: HTTPServer, endpoint: Endpoint) -> None:
    """Promise 5."""
    endpoint.fault = lambda number: Response("slow down", 429, {"Retry-After": "0"}) if number in (1, 4) else None
    assert len(proposer(httpserver).propose(base(), evidence(), Random(1))) == 2


def test_an_outage_is_not_a_lack_of_ideas(httpserver: HTTPServer, endpoint: Endpoint, tmp_path: Path) -> None:
    """Promise 5: nothing is kept of it, so the same command asks again."""
    endpoint.fault = lambda number: Response(f"down {KEY}", 500)
    log = ProposalLog(LocalSource(str(tmp_path)).open(), "run/proposals")
    with pytest.raises(InfraError, match="proposer's model failed") as caught:
        KeptProposer(proposer(httpserver, retries=0), log).propose(base(), evidence(), Random(1))
    assert KEY not in str(caught.value)
    assert caught.value.fix
    assert list(log) == []
    endpoint.fault = lambda number: None
    assert len(KeptProposer(proposer(httpserver), log).propose(base(), evidence(), Random(1))) == 2


def test_a_submitted_edit_outlives_the_endpoint(httpserver: HTTPServer, endpoint: Endpoint) -> None:
    """Promise 5."""
    endpoint.fault = lambda number: Response("down", 500) if number > 8 else None
    proposed = proposer(httpserver, retries=0).propose_traced(base(), evidence(), Random(1))
    assert [edit.mechanism for edit in proposed.edits] == ["finish guard"]
    assert proposed.episodes[0].status is Status.INFRA_ERROR


def test_a_model_without_tools_gives_nothing(httpserver: HTTPServer, endpoint: Endpoint) -> None:
    """Promise 6."""
    endpoint.fault = lambda number: reply({"role": "assistant", "content": "I would add a guard."})
    proposed = proposer(httpserver).propose_traced(base(), evidence(), Random(1))
    assert proposed.edits == ()
    assert proposed.episodes[0].status is Status.PARSE_FAILURES


def test_old_logs_load() -> None:
    for record in ProposalLog.read_lines(LOG):
        assert ProposalRecord.from_bytes(record.to_bytes()) == record
        assert record.usage.prompt_tokens == 900 * len(TURNS)
        assert record.proposer == "llm"
