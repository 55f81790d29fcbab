"""The real backends behave as the fast ones: the shop over HTTP as the shop in process, Chromium as the fast browser.

1. Reference solutions of both styles: same observations call by call, same end state, success on both.
2. Strays, odd texts and odd addresses: same refusals in the same words.
3. A fork of a real backend stands where the original stands and is independent.
4. Over HTTP directly, whoever calls gets a typed refusal and no session but their own.

A sample; `tests/bench/bench_backends.py` plays all instances.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from coevo.chat import ToolCall
from coevo.errors import InfraError, PrerequisiteError
from coevo.tasks.browser import chromium_family
from coevo.tasks.browser import family as browser
from coevo.tasks.browser.chromium import why_no_chromium
from coevo.tasks.family import Size, Stream, Style, TaskInstance
from coevo.tasks.loopback import loopback
from coevo.tasks.website import family as website
from coevo.tasks.website import http_family
from coevo.tasks.website.shop import draw_shop
from coevo.tasks.website.site import ShopSite
from coevo.tasks.world import replay
from tests.contract.backends import answer, compare_calls, compare_reference, stray_calls
from tests.contract.hygiene import sample

MISSING = why_no_chromium()
needs_chromium = pytest.mark.skipif(MISSING is not None, reason=f"Chromium backend: {MISSING}")
ODD = (
    "",
    " ",
    "Ä ß 漢字 🙂",
    "a&b=c+d%20e#f?g/h",
    "<b>x</b> \"y\" 'z'",
    "..",
    "../..",
    "R1/..",
    "\ud800",
    "a\nb",
    "x" * 500,
    "\u202eabc",
    "0",
)


def case(family: Any, size: Size, seed: int) -> TaskInstance:
    found: TaskInstance = family.instance(Stream.SEARCH, seed, size, diversity=20)
    return found


@pytest.mark.parametrize("style", list(Style))
def test_reference_over_http(style: Style) -> None:
    instances = [*sample(website, Size.STANDARD, 4), *sample(website, Size.LONG, 1)]
    assert sum(compare_reference(website, http_family, one, style) for one in instances) > 80


def test_strays_over_http() -> None:
    for one in sample(website, Size.STANDARD, 3):
        assert compare_calls(website, http_family, one, stray_calls(website, one, steps=40)) > 20


def test_odd_arguments_over_http() -> None:
    """R14: every text argument of every tool; the refusal has the same words on both."""
    calls = []
    for spec in website.tools(Size.STANDARD):
        properties = spec.parameters["properties"]
        for name, schema in properties.items():
            if schema["type"] == "string" and "enum" not in schema:
                calls += [ToolCall(spec.name, {**_filled(properties), name: text}) for text in (*ODD, "y" * 3000)]
    assert compare_calls(website, http_family, case(website, Size.STANDARD, 0), calls) > 300


def _filled(properties: dict[str, Any]) -> dict[str, Any]:
    kinds = {"string": "X10", "integer": 1, "number": 1.5, "array": ["1+1"]}
    return {name: schema["enum"][0] if "enum" in schema else kinds[schema["type"]] for name, schema in properties.items()}


def test_forks_over_http() -> None:
    instance = case(website, Size.STANDARD, 1)
    world, log = http_family.open(instance), stray_calls(website, instance, steps=25)
    for call in log:
        answer(world, call)
    fork = world.fork()
    assert fork.snapshot() == world.snapshot() == replay(website, instance, log).snapshot()
    price = next(one for one in fork.truth().work if one.call is not None and not fork.changes().get(one.case.id))
    fork.call(price.call.name, price.call.arguments)
    assert price.case.id in fork.changes()
    assert price.case.id not in world.changes()


def test_the_application_refuses_whoever_calls_it_wrongly() -> None:
    """Statuses and bodies of the API; another session's name opens nothing."""
    _, data = draw_shop(case(website, Size.STANDARD, 0))
    server, site = loopback(), ShopSite(data, {})
    session = server.open(site)
    base = f"http://127.0.0.1:{server.port}/{session}/api"
    assert fetch(f"{base}/records/products?page=1")[0] == 200
    assert fetch(f"{base}/records/products?page=x")[0] == 400
    assert fetch(f"{base}/records/products?page=99")[0] == 422
    assert fetch(f"{base}/records/products/S0")[0] == 404
    assert fetch(f"{base}/nothing")[0] == 404
    assert fetch(f"{base}/calculations")[0] == 405
    assert fetch(f"{base}/calculations", b"[1]")[0] == 400
    assert fetch(f"{base}/calculations", b"{")[0] == 400
    assert fetch(f"{base}/calculations", b'{"expressions": ["1+1"], "nonsense": 1}')[0] == 422
    assert fetch(f"{base}/calculations", b'{"expressions": ["1+1"]}') == (200, {"values": [2]})
    assert fetch(f"http://127.0.0.1:{server.port}/{'0' * 32}/api/records/products")[0] == 404
    assert site.changes == {}
    server.close(session)
    assert fetch(f"{base}/records/products?page=1")[0] == 404


def fetch(url: str, body: bytes | None = None) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=30) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_dead_application_is_infrastructure() -> None:
    """R3: not the agent's failure."""
    world = http_family.open(case(website, Size.STANDARD, 2))
    world._client._connection.port = 9  # the discard port: nobody listens
    world._client.close()
    with pytest.raises(InfraError, match="did not answer"):
        world.call("list_records", {"kind": "orders"})
    assert not world.finished


@needs_chromium
def test_reference_in_chromium() -> None:
    assert (
        compare_reference(browser, chromium_family, TaskInstance("browser", "tickets", Stream.SEARCH, 0, Size.STANDARD), Style.REACTIVE)
        > 20
    )


@needs_chromium
def test_strays_and_odd_texts_in_chromium() -> None:
    """Dialogs that block, boxes, lists, validation errors, long parts, texts with markup: the same page in the same words."""
    instance = case(browser, Size.LONG, 2)
    field = ToolCall("click", {"element": "handbook"})
    odd = [ToolCall("type", {"field": "Words", "text": text}) for text in ODD]
    looked = [ToolCall("click", {"element": "Search"}), ToolCall("back", {}), ToolCall("read", {})]
    addresses = [
        "/claims?status=all&page=2",
        "/handbook?words=a%26b+%3Cb%3E",
        "/claims/../people",
        "//people",
        "http://x/",
        "/claims?page=x",
    ]
    opened = [ToolCall("open", {"address": one}) for one in addresses]
    calls = [field, *(one for text in odd for one in (text, *looked[:1])), *looked[1:], *opened, *stray_calls(browser, instance, steps=6)]
    assert compare_calls(browser, chromium_family, instance, calls) == len(calls)


@needs_chromium
def test_forms_in_chromium() -> None:
    """A form step by step: errors, hidden fields, the dialog that makes the rest unreachable, cancel and confirm."""
    instance = TaskInstance("browser", "claims", Stream.SEARCH, 3, Size.STANDARD)
    claim = browser.open(instance).truth().work[0].case.id
    click, enter = (lambda one: ToolCall("click", {"element": one})), (lambda field, text: ToolCall("type", {"field": field, "text": text}))
    calls = [
        ToolCall("open", {"address": f"/claims/{claim}"}),
        click("approve"),
        click("Continue"),
        enter("Amount", "twelve"),
        click("Continue"),
        enter("Amount", "12.50"),
        enter("Cost centre", 'CC <1> & "2"'),
        click("Continue"),
        enter("Code", "wrong"),
        click("Submit"),
        ToolCall("open", {"address": f"/claims/{claim}/return"}),
        enter("Code", "K11"),
        click("Submit"),
        click("claims"),
        enter("Code", "K12"),
        click("Cancel"),
        click("Submit"),
        click("Yes, submit"),
        ToolCall("open", {"address": f"/claims/{claim}/approve"}),
        ToolCall("open", {"address": "/claims"}),
        ToolCall("select", {"list": "Status", "option": "all"}),
        ToolCall("select", {"list": "Status", "option": "nothing"}),
        click("Show"),
        click("Next"),
        ToolCall("back", {}),
    ]
    assert compare_calls(browser, chromium_family, instance, calls) == len(calls)


@needs_chromium
def test_forks_in_chromium() -> None:
    instance = TaskInstance("browser", "twins", Stream.SEARCH, 3, Size.STANDARD)
    ticket = next(one for one in browser.open(instance).truth().work if one.call is not None and one.call.name == "close_ticket").case.id
    world, real = browser.open(instance), chromium_family.open(instance)
    for call in (
        ToolCall("open", {"address": f"/tickets/{ticket}/close"}),
        ToolCall("type", {"field": "Code", "text": "K11"}),
        ToolCall("click", {"element": "Submit"}),
    ):
        assert answer(world, call) == answer(real, call)
    fork = real.fork()
    assert fork.snapshot() == real.snapshot()
    answer(fork, ToolCall("click", {"element": "Yes, submit"}))
    assert ticket in fork.changes()
    assert real.changes() == world.changes() == {}
    assert fork.log_hash != real.log_hash == world.log_hash


def test_without_chromium_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COEVO_CHROMIUM", "/nonexistent/chromium")
    missing = why_no_chromium()
    assert missing is not None
    assert "install" in missing
    error = PrerequisiteError("the Chromium backend can't start", seen=missing, fix="install it")
    assert error.exit_code == 2
