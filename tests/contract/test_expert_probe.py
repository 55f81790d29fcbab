"""An expert that can't be asked is refused through the command line before a run starts: three parts, exit code 2, nothing written.

The runner opens the real run (`RunContext.open`) and goes no further.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from pytest_httpserver import HTTPServer
from typer.testing import CliRunner
from typer.testing import Result as Outcome
from werkzeug import Request, Response

from coevo.config import RunConfig
from coevo.display import Display
from coevo.store import LocalSource
from coevo.store.ledger import Budget, Ledger
from jobs.cli import build_app
from jobs.context import RunContext, StageResult

KEY = "sk-probe-very-secret"


@dataclass(frozen=True)
class Place:
    """A config file and the store it names."""

    config: Path
    store: Path

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.store)): path.read_bytes() for path in sorted(self.store.rglob("*")) if path.is_file()}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("COEVO_PROBE_KEY", KEY)
    monkeypatch.delenv("COEVO_NO_SUCH_KEY", raising=False)
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({"name": "trial", "store": str(tmp_path / "store")}))
    return Place(config, tmp_path / "store")


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """Takes KEY, serves the model `big`."""

    def allowed(request: Request) -> Response | None:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            sent = request.headers.get("Authorization", "")
            return Response(json.dumps({"error": {"message": f"no such key: {sent}"}}), status=401, content_type="application/json")
        return None

    def chat(request: Request) -> Response:
        usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "big", "choices": [choice], "usage": usage}
        return allowed(request) or Response(json.dumps(answer), content_type="application/json")

    def models(request: Request) -> Response:
        listed = {"object": "list", "data": [{"id": "big", "object": "model", "created": 0, "owned_by": "x"}]}
        return Response(json.dumps(listed), content_type="application/json")  # open to anybody, as some endpoints' lists are

    with HTTPServer(host="127.0.0.1") as opened:
        opened.expect_request("/v1/models").respond_with_handler(models)
        opened.expect_request("/v1/chat/completions").respond_with_handler(chat)
        yield opened


def only_open(verb: str, config: RunConfig, display: Display) -> StageResult:
    with RunContext.open(config, display=display) as context:
        return StageResult(verb, (f"opened {context.run}",))


def call(place: Place, url: str, *settings: str, model: str = "big") -> Outcome:
    expert = ("expert.kind=openai", f"expert.base_url={url}", f"expert.model={model}", "expert.api_key_env=COEVO_PROBE_KEY")
    options = [part for setting in (*expert, *settings) for part in ("--set", setting)]
    return CliRunner().invoke(build_app(only_open), ["evolve", str(place.config), "--display", "plain", *options])


def error_of(place: Place, outcome: Outcome) -> str:
    """The three parts, after everything that holds of any refusal has been checked."""
    assert outcome.exit_code == 2, outcome.stderr
    lines = outcome.stderr[outcome.stderr.index("error: ") :].splitlines()
    assert any(line.startswith("  seen: ") for line in lines), lines
    assert any(line.startswith("  fix: ") for line in lines), lines
    assert "Traceback" not in outcome.stderr
    assert "bug in coevo" not in outcome.stderr
    assert place.files() == {}
    assert KEY not in outcome.output
    return "\n".join(lines)


def test_a_usable_endpoint_opens_the_run_and_the_question_is_paid(place: Place, server: HTTPServer) -> None:
    """The control; the probe's tokens are in the ledger (I10), the key is in no object (I11)."""
    outcome = call(place, server.url_for("/v1"))
    assert outcome.exit_code == 0, outcome.stderr
    paid = Ledger(LocalSource(str(place.store)).open(), budget=Budget(), prefix="trial/ledger").reservations()
    assert [(one.name, one.settled.tokens if one.settled else None) for one in paid] == [("expert/probe/0", 11)]
    assert not any(KEY.encode() in data for data in place.files().values())


def test_a_run_that_is_resumed_asks_only_when_it_has_work(place: Place, server: HTTPServer) -> None:
    """A finished run can be read while its expert is away."""
    assert call(place, server.url_for("/v1")).exit_code == 0
    before = place.files()
    assert call(place, "http://127.0.0.1:9/v1").exit_code == 0
    assert place.files() == before


def test_an_unreachable_endpoint_is_refused(place: Place) -> None:
    said = error_of(place, call(place, "http://127.0.0.1:9/v1"))
    assert all(part in said for part in ("the model endpoint can't be used", "http://127.0.0.1:9/v1", "base_url"))


def test_a_wrong_key_is_refused_without_showing_it(place: Place, server: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """I11: also when the endpoint echoes it."""
    monkeypatch.setenv("COEVO_PROBE_KEY", "sk-wrong-but-secret")
    outcome = call(place, server.url_for("/v1"))
    said = error_of(place, outcome)
    assert "401" in said
    assert "COEVO_PROBE_KEY" in said
    assert "sk-wrong-but-secret" not in outcome.output


def test_an_unknown_model_is_refused_with_the_known_ones(place: Place, server: HTTPServer) -> None:
    said = error_of(place, call(place, server.url_for("/v1"), model="bigg"))
    assert "bigg at" in said
    assert "it serves big" in said


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("expert.api_key_env=COEVO_NO_SUCH_KEY", ("COEVO_NO_SUCH_KEY", "export")),
        ("expert.api_key_file=/no/such/secret", ("/no/such/secret", "mount")),
        ("expert.base_url=null", ("kind=openai needs base_url",)),
        ("expert.model=null", ("kind=openai needs model",)),
        ("expert.kind=recorded", ("kind=recorded needs recording",)),
        ("expert.kind=opanai", ("expert.kind",)),
        ("expert.base_url=localhost:1", ("http://",)),
        ("budget.usd=5", ("a budget in dollars needs the expert's price", "expert.price")),
        ("expert.price=no-such-model", ("no-such-model",)),
    ],
)
def test_an_expert_that_can_t_be_asked_is_refused(place: Place, server: HTTPServer, setting: str, said: tuple[str, ...]) -> None:
    text = error_of(place, call(place, server.url_for("/v1"), setting))
    assert [part for part in said if part not in text] == []


@pytest.mark.parametrize("setting", [f"expert.api_key_env={KEY}", f"expert.base_url=http://user:{KEY}@127.0.0.1:9/v1"])
def test_a_key_in_the_config_is_refused_and_not_repeated(place: Place, setting: str) -> None:
    """I11: pasted where its variable's name belongs, or into the URL."""
    said = error_of(place, call(place, "http://127.0.0.1:9/v1", setting))
    assert setting.partition("=")[0].partition(".")[2] in said


def test_a_key_file_serves_as_well(place: Place, server: HTTPServer, tmp_path: Path) -> None:
    """A secret mount: the path is in the stored config, the key is not."""
    secret = tmp_path / "secret"
    secret.write_text(f"{KEY}\n")
    outcome = call(place, server.url_for("/v1"), f"expert.api_key_file={secret}", "expert.api_key_env=null")
    assert outcome.exit_code == 0, outcome.stderr
    assert not any(KEY.encode() in data for data in place.files().values())
