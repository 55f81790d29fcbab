"""The proposer of a run, from its configuration: who it is, that its calls are kept, and who pays.

1. `evolve.proposer` names the proposer; what does not fit is refused with the key that mends it, before anything is written.
2. The LLM proposer of `coevo run` asks the run's expert, under a reservation, and settles what the endpoint counted.
3. A resumed run asks nothing again and pays nothing again.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from coevo.config import RunConfig, parse_config
from coevo.display import DisplayKind, open_display
from coevo.errors import BudgetExceeded, ConfigError
from coevo.evolve.propose import Evidence
from coevo.rewrite.turn import turn_json
from jobs.context import RunContext
from jobs.proposer import open_proposer, proposal_log
from tests.contract.test_llm_proposer import reply
from tests.unit.shelf import FAMILY, base, mixed_episodes
from tests.unit.workbench import TURNS

LOG = Path(__file__).parents[1] / "data" / "proposals" / "shelf.jsonl"
EVIDENCE = Evidence(mixed_episodes(), FAMILY)


def configured(tmp_path: Path, expert: dict[str, Any] | None = None, budget: dict[str, Any] | None = None, **proposer: Any) -> RunConfig:
    data = {"name": "trial", "store": str(tmp_path / "store"), "evolve": {"proposer": proposer}}
    return parse_config({**data, "expert": expert or {}, "budget": budget or {}})


REFUSED = {
    "no log": ({"kind": "recorded"}, "kind=recorded needs log"),
    "no expert": ({"kind": "llm"}, "expert.kind=openai"),
    "the embedded model": ({"kind": "llm", "model": "weak"}, "writes no code"),
    "unknown key": ({"kinds": "llm"}, "did you mean 'kind'"),
    "too few turns": ({"max_turns": 1}, "greater than or equal to 4"),
}


@pytest.mark.parametrize(("settings", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_settings(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    """Promise 1."""
    with pytest.raises(ConfigError, match=said):
        configured(tmp_path, **settings)


def test_named_proposers(tmp_path: Path) -> None:
    """Promise 1: the default is the default catalogue, and its calls are kept."""
    with RunContext.open(configured(tmp_path), display=open_display(DisplayKind.PLAIN)) as context:
        kept = open_proposer(context)
        edits = kept.propose(base(), EVIDENCE, Random(1))
        assert (kept.name, len(edits)) == ("catalogue", 9)
        (record,) = proposal_log(context)
        assert [edit.harness_hash for edit in record.edits] == [edit.bundle.hash for edit in edits]
    recorded = configured(tmp_path / "other", kind="recorded", log=str(LOG))
    with RunContext.open(recorded, display=open_display(DisplayKind.PLAIN)) as context:
        edits = open_proposer(context).propose(base(), EVIDENCE, Random(1))
        assert [edit.mechanism for edit in edits] == ["finish guard", "playbook"]
    for settings in ({"kind": "catalog"}, {"operators": ["fewshot"]}, {"kind": "recorded", "log": str(tmp_path / "none")}):
        config = configured(tmp_path / str(len(settings)) / str(settings["kind" if "kind" in settings else "operators"]), **settings)
        with RunContext.open(config, display=open_display(DisplayKind.PLAIN)) as context, pytest.raises(ConfigError):
            open_proposer(context)


def endpoint(request: Request) -> Response:
    """The scripted proposer as constrained JSON; the probe gets its word."""
    messages = json.loads(request.data)["messages"]
    if messages[-1]["content"] == "Say ok.":
        return reply({"role": "assistant", "content": "ok"})
    turn = sum(message["role"] == "assistant" for message in messages)
    return reply({"role": "assistant", "content": json.dumps(turn_json("Go on.", TURNS[min(turn, len(TURNS) - 1)][1]))})


@pytest.fixture
def expert(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("COEVO_PROPOSER_KEY", "sk-jobs-very-secret")
    httpserver.expect_request("/v1/models").respond_with_json({"object": "list", "data": [{"id": "writer", "object": "model"}]})
    httpserver.expect_request("/v1/chat/completions", method="POST").respond_with_handler(endpoint)
    return {"kind": "openai", "base_url": httpserver.url_for("/v1"), "model": "writer", "api_key_env": "COEVO_PROPOSER_KEY"}


def test_the_expert_proposes_and_is_paid_once(tmp_path: Path, expert: dict[str, Any], httpserver: HTTPServer) -> None:
    """Promises 2 and 3."""
    config = configured(tmp_path, expert, kind="llm", agents=2, max_turns=12)
    with RunContext.open(config, display=open_display(DisplayKind.PLAIN)) as context:
        edits = open_proposer(context).propose(base(), EVIDENCE, Random(1))
        assert [edit.mechanism for edit in edits] == ["finish guard", "playbook"]
        settled = {one.name: one.settled for one in context.ledger.reservations() if one.name.startswith("expert/proposals/")}
        (spend,) = settled.values()
        assert spend is not None
        assert spend.tokens == 2 * len(TURNS) * 960
    asked = len(httpserver.log)
    with RunContext.open(config, display=open_display(DisplayKind.PLAIN)) as context:
        assert open_proposer(context).propose(base(), EVIDENCE, Random(1)) == edits
        assert len([one for one in context.ledger.reservations() if one.name.startswith("expert/proposals/")]) == 1
    assert len(httpserver.log) == asked
    stored = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert b"sk-jobs" not in stored


def test_no_call_beyond_the_budget(tmp_path: Path, expert: dict[str, Any], httpserver: HTTPServer) -> None:
    """I10: a call that could pass the budget is not made."""
    config = configured(tmp_path, expert, {"tokens": 20_000}, kind="llm")
    with RunContext.open(config, display=open_display(DisplayKind.PLAIN)) as context:
        asked = len(httpserver.log)
        with pytest.raises(BudgetExceeded):
            open_proposer(context).propose(base(), EVIDENCE, Random(1))
        assert len(httpserver.log) == asked
