"""A run whose expert is an LLM, through the command line, with the real parts but for the LLM itself.

Behind an endpoint:
1. Every stage that asks the expert closes: measured under both harnesses, localized, rewritten.
2. The ledger holds what the expert took, stage by stage, and the records say the same.
3. The key is in no object of the run and in nothing that the command printed, with debug logs on (I11), though the endpoint echoes it.
4. The same command again asks nothing but the probe.

On engines of the run's own:
5. A second pool serves it beside the weak model's; what it took is in the ledger, and its useless answers (its weights are random) are kept
   with their reasons and rewrite nothing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from cluster.tiny import make_tiny_model
from coevo.records import Localization
from coevo.store import LocalSource
from coevo.store.artifacts import read_records
from coevo.store.ledger import Budget, Ledger
from tests.e2e.loop import Loop
from tests.readable import readable_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KEY = "sk-run-very-secret"
TURN = json.dumps({"strategy": f"I was sent {KEY} and finish.", "call": {"name": "finish", "arguments": {}}})


@dataclass
class Expert:
    """Finishes always; every seventh call is turned away, and every answer repeats the key."""

    asked: int = 0
    lock: Lock = field(default_factory=Lock)

    def __call__(self, request: Request) -> Response:
        with self.lock:
            self.asked += 1
            number = self.asked
        if number % 7 == 0:
            return Response(json.dumps({"error": {"message": f"{KEY} is busy"}}), status=429, headers={"Retry-After": "0"})
        message = {"role": "assistant", "content": TURN}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "big", "usage": usage}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return Response(json.dumps(answer | {"choices": [choice]}), content_type="application/json")


@pytest.fixture
def expert() -> Iterator[tuple[Expert, str]]:
    handler = Expert()
    with HTTPServer(host="127.0.0.1", threaded=True) as server:
        listed = {"object": "list", "data": [{"id": "big", "object": "model", "created": 0, "owned_by": "x"}]}
        server.expect_request("/v1/models").respond_with_json(listed)
        server.expect_request("/v1/chat/completions").respond_with_handler(handler)
        yield handler, server.url_for("/v1")


def test_a_run_with_an_llm_expert(expert: tuple[Expert, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promises 1 to 4."""
    monkeypatch.setenv("COEVO_RUN_KEY", KEY)
    handler, url = expert
    prices = tmp_path / "prices.yaml"
    prices.write_text("extends: shipped\ntokens:\n  big: {prompt: 2.0, completion: 8.0, as_of: 2026-01-01}\n")
    loop = Loop(tmp_path / "store")
    settings = ("evolve.enabled=false", "expert.kind=openai", f"expert.base_url={url}", "expert.model=big", f"prices={prices}")
    settings += ("expert.api_key_env=COEVO_RUN_KEY", "localize.rollouts=16", "localize.failures=6", "evaluate.transfer_instances=3")

    def run(verb: str) -> subprocess.CompletedProcess[str]:
        command = [*loop.command(verb, *settings), "--debug"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)

    said = []
    for verb in ("transfer", "rewrite"):
        done = run(verb)
        assert done.returncode == 0, done.stderr[-3000:]
        said += [done.stdout, done.stderr]
    manifests = loop.manifests()
    assert manifests.keys() >= {"transfer", "rollout", "localize", "rewrite"}
    store = LocalSource(str(loop.store)).open()
    paid = {one.name: one.settled for one in Ledger(store, budget=Budget(), prefix=f"{loop.name}/ledger").reservations()}
    bought = {name: spend for name, spend in paid.items() if name.startswith("expert/") and spend is not None}
    print({name: (spend.tokens, spend.usd) for name, spend in bought.items()}, handler.asked, "calls")
    played = [spend for name, spend in bought.items() if "transfer" in name]
    assert len(played) == 2
    assert all(spend.tokens >= 3 * 120 for spend in played)
    records = list(read_records(store, manifests["localize"].outputs, Localization))
    asked = sum(one.expert.calls for one in records)
    localized = next(spend for name, spend in bought.items() if "localize" in name)
    assert localized.tokens == 120 * asked > 0
    assert localized.usd == pytest.approx(asked * (100 * 2.0 + 20 * 8.0) / 1e6)
    assert not any(KEY in text for text in said)
    objects = readable_files(loop.store)
    assert len(objects) > 40
    assert [path for path, data in objects.items() if KEY.encode() in data] == []
    assert any(b"I was sent *** and finish." in data for path, data in objects.items() if path.endswith(".zst")), "the search can find"
    before = handler.asked
    again = run("rewrite")
    assert again.returncode == 0, again.stderr[-3000:]
    assert handler.asked - before <= 2


def test_a_run_with_an_expert_of_its_own(tmp_path: Path) -> None:
    """Promise 5."""
    folder = make_tiny_model(tmp_path / "expert", seed=3, max_len=16384)
    loop = Loop(tmp_path / "store")
    settings = (
        "evolve.enabled=false",
        "expert.kind=pool",
        f"expert.model={folder}",
        "expert.pool.max_model_len=16384",
        "expert.max_tokens=48",
    )
    settings += ("expert.pool.kv_cache_mib=64", "localize.rollouts=16", "localize.failures=4")
    done = loop.run("localize", *settings)
    assert done.returncode == 0, done.stderr[-3000:]
    store = LocalSource(str(loop.store)).open()
    records = list(read_records(store, loop.manifests()["localize"].outputs, Localization))
    assert records
    assert not any(one.turn is not None for one in records)
    asked = [one.expert for one in records]
    assert sum(one.calls for one in asked) > 0
    assert all(one.usage.completion_tokens > 0 for one in asked if one.calls)
    paid = {one.name: one.settled for one in Ledger(store, budget=Budget(), prefix=f"{loop.name}/ledger").reservations()}
    bought = [spend for name, spend in paid.items() if name.startswith("expert/") and "localize" in name]
    print(len(records), "failures,", sum(one.calls for one in asked), "calls,", bought)
    assert len(bought) == 1
    assert bought[0] is not None
    assert bought[0].tokens == sum(one.usage.prompt_tokens + one.usage.completion_tokens for one in asked)
    assert bought[0].usd == 0
