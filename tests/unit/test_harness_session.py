"""Promises of the session:

1. the model sees the bundle's tools in its order and names; hidden tools can't be reached by call or rewrite;
2. hooks act only through the closed list of effects, each a firing and counted; anything else disables that hook only;
3. nothing but trouble of the world raises out of a session (I9), and nothing evolved can finish an episode by itself;
4. the same calls give the same outcome (I4), also from a restored snapshot; without hooks and composites the sandbox is never touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from coevo.chat import Message, Role, ToolCall, ToolSpec
from coevo.errors import ConfigError, InfraError, ToolError
from coevo.harness.bundle import HarnessBundle, Skill
from coevo.harness.context import ContextPolicy
from coevo.harness.sandbox import SandboxLimits, SandboxPool
from coevo.harness.session import Executed, HarnessSession
from coevo.harness.tools import ToolEntry


def spec(name: str, **properties: str) -> ToolSpec:
    schema = {key: {"type": kind} for key, kind in properties.items()}
    return ToolSpec(name, name, {"type": "object", "properties": schema, "required": list(properties)})


FAMILY = (spec("list"), spec("read", item="string"), spec("pay", item="string", amount="integer"), spec("finish"))
ENTRIES = tuple(ToolEntry(tool.name) for tool in FAMILY)
BASE = HarnessBundle(name="t", system_prompt="work", tools=ENTRIES)
BOTH = "def both(item: str):\n    record = read(item=item)\n    return {**record, **pay(item=item, amount=record['hours'])}\n"


class Ledger:
    """A tiny world: items E1 and E2, hours 7, an item is paid once."""

    def __init__(self) -> None:
        self.log: list[ToolCall] = []
        self.paid: dict[str, int] = {}
        self.finished = False

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        self.log.append(ToolCall(name, dict(arguments)))
        match name:
            case "list":
                return {"items": ["E1", "E2"]}
            case "read":
                return {"item": self._known(arguments), "hours": 7}
            case "pay":
                self.paid[self._known(arguments)] = arguments["amount"]
                return {"ok": True}
            case "finish":
                self.finished = True
                return {"ok": True}
        raise ToolError("unknown tool")

    def _known(self, arguments: Mapping[str, Any]) -> str:
        item = arguments.get("item")
        if item == "down":
            raise InfraError("backend down")
        if item not in {"E1", "E2"}:
            raise ToolError("unknown item", seen=item, fix="list first")
        return str(item)


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    pool = SandboxPool(SandboxLimits(call_s=0.3, host_calls=8), max_workers=2)
    yield pool
    pool.close()


@pytest.fixture
def world() -> Ledger:
    return Ledger()


def hooked(**hooks: str) -> HarnessBundle:
    return BASE.replace(hooks=hooks)


def open_session(bundle: HarnessBundle, world: Ledger, pool: SandboxPool) -> HarnessSession:
    return HarnessSession(bundle, FAMILY, world.call, sandboxes=pool, family="ledger")


def run(bundle: HarnessBundle, world: Ledger, pool: SandboxPool, *calls: ToolCall) -> tuple[HarnessSession, list[Executed]]:
    session = open_session(bundle, world, pool)
    return session, [session.execute(call, turn) for turn, call in enumerate(calls)]


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


def test_names_and_order(world: Ledger, pool: SandboxPool) -> None:
    tools = (ToolEntry("finish"), ToolEntry("read", shown="look", description="see"), ToolEntry("both", composite=True))
    session = open_session(BASE.replace(tools=tools, composites={"both": BOTH}, system_prompt="on {family}"), world, pool)
    assert [tool.name for tool in session.tools] == ["finish", "look", "both"]
    assert session.tools[1].description == "see"
    assert session.tools[1].argument_names == ("item",)
    assert session.system_prompt == "on ledger"
    assert session.execute(call("look", item="E1"), 0).value == {"item": "E1", "hours": 7}
    for hidden in ("read", "list", "pay"):
        assert session.execute(call(hidden, item="E1"), 1).error == f"unknown tool {hidden}"
    assert [applied.name for applied in world.log] == ["read"]


def test_a_bundle_for_another_family(world: Ledger, pool: SandboxPool) -> None:
    with pytest.raises(ConfigError, match="unknown family tool"):
        open_session(BASE.replace(tools=(ToolEntry("launch"),)), world, pool)


def test_refusals_are_what_the_model_reads(world: Ledger, pool: SandboxPool) -> None:
    _, (outcome,) = run(BASE, world, pool, call("read", item="E9"))
    assert (outcome.value, outcome.error) == (None, "unknown item")
    assert outcome.calls == (call("read", item="E9"),)


def test_without_components_no_worker_starts(world: Ledger) -> None:
    """A bare bundle costs no sandbox."""
    pool = SandboxPool(max_workers=0)
    session, outcomes = run(BASE, world, pool, call("list"), call("read", item="E1"), call("finish"))
    assert session.start("go") == session.before_model(0, []) == session.after_model(0, "", None) == []
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert session.component_use == {}
    assert session.take_firings() == ()


def test_composite_runs_on_hidden_tools(world: Ledger, pool: SandboxPool) -> None:
    bundle = BASE.replace(tools=(ToolEntry("both", composite=True), ToolEntry("finish")), composites={"both": BOTH})
    session, (done, refused, missing, wrong) = run(
        bundle, world, pool, call("both", item="E1"), call("both", item="E9"), call("both"), call("both", item=3)
    )
    assert done.value == {"item": "E1", "hours": 7, "ok": True}
    assert done.calls == (call("read", item="E1"), call("pay", item="E1", amount=7))
    assert (refused.error, refused.calls) == ("unknown item", (call("read", item="E9"),))
    assert (missing.error, wrong.error) == ("missing argument item", "argument item must be string")
    assert session.component_use == {"tool:both": 2}
    assert world.paid == {"E1": 7}


def test_a_composite_can_not_finish(world: Ledger, pool: SandboxPool) -> None:
    source = "def both(item: str):\n    try:\n        finish()\n    except BaseException:\n        pass\n    return read(item=item)\n"
    bundle = BASE.replace(tools=(*ENTRIES, ToolEntry("both", composite=True)), composites={"both": source})
    _, (outcome,) = run(bundle, world, pool, call("both", item="E1"))
    assert not world.finished
    assert outcome.calls == (call("read", item="E1"),)


def test_a_failing_composite_refuses_and_a_hostile_one_is_switched_off(world: Ledger, pool: SandboxPool) -> None:
    entry = ToolEntry("both", composite=True)
    bug = BASE.replace(tools=(*ENTRIES, entry), composites={"both": "def both(item: str):\n    return read(item=item)['rate']\n"})
    session, (first, second) = run(bug, world, pool, call("both", item="E1"), call("both", item="E1"))
    assert first.error == second.error == "both failed: KeyError: 'rate'"
    assert session.component_use == {"tool:both": 2, "error:tool:both": 2}
    loop = BASE.replace(tools=(*ENTRIES, entry), composites={"both": "def both(item: str):\n    while True:\n        pass\n"})
    session, (first, second) = run(loop, world, pool, call("both", item="E1"), call("both", item="E1"))
    assert (first.error, second.error) == ("both failed", "this tool does not work")
    assert [firing.effect for firing in session.take_firings()] == ["disabled"]


def test_trouble_of_the_world_passes(world: Ledger, pool: SandboxPool) -> None:
    """I3."""
    with pytest.raises(InfraError):
        run(BASE, world, pool, call("read", item="down"))
    with pytest.raises(InfraError):
        run(BASE.replace(tools=(ToolEntry("both", composite=True),), composites={"both": BOTH}), world, pool, call("both", item="down"))


REMINDER = """
def after_tool(event, state):
    if event["call"]["name"] == "list":
        state["open"] = event["result"]["items"]
    if event["call"]["name"] == "pay" and not event["error"]:
        state["open"] = [item for item in state["open"] if item != event["call"]["arguments"]["item"]]
    return {"state": state, "note": "todo " + " ".join(state.get("open", []))}

def before_finish(event, state):
    if state.get("open"):
        return {"block_call": "open items"}
"""


def test_notes_states_and_blocked_finish(world: Ledger, pool: SandboxPool) -> None:
    renamed = (ToolEntry("list"), ToolEntry("pay", shown="send"), ToolEntry("finish"))
    calls = [call("list"), call("send", item="E1", amount=1), call("finish"), call("send", item="E2", amount=1), call("finish")]
    session, outcomes = run(hooked(todo=REMINDER).replace(tools=renamed), world, pool, *calls)
    assert [outcome.notes for outcome in outcomes] == [("todo E1 E2",), ("todo E2",), ("todo E2",), ("todo ",), ("todo ",)]
    assert [outcome.error for outcome in outcomes] == [None, None, "open items", None, None]
    assert outcomes[2].calls == ()
    assert world.finished
    assert session.component_use == {"hook:todo": 6}
    firings = session.take_firings()
    assert [firing.effect for firing in firings].count("block_call") == 1
    assert session.take_firings() == ()


def test_rewrite_is_visible_and_runs_the_rewritten_call(world: Ledger, pool: SandboxPool) -> None:
    source = """
def before_tool(event, state):
    if event["call"]["name"] == "pay":
        return {"rewrite_call": {"name": "pay", "arguments": {**event["call"]["arguments"], "amount": 7}}}
"""
    bundle = hooked(fix=source).replace(tools=(ToolEntry("pay", shown="send"), ToolEntry("finish")))
    session, (changed, same) = run(bundle, world, pool, call("send", item="E1", amount=5), call("send", item="E2", amount=7))
    assert changed.notes == ("rewritten send(item=E1, amount=7)",)
    assert changed.shown == call("send", item="E1", amount=7)
    assert changed.rewritten
    assert (same.notes, same.rewritten) == ((), False)
    assert world.paid == {"E1": 7, "E2": 7}
    assert session.component_use == {"hook:fix": 1}


@pytest.mark.parametrize("target", ["finish", "read", "nowhere"])
def test_rewrites_reach_no_hidden_tool_and_never_finish(world: Ledger, pool: SandboxPool, target: str) -> None:
    """I9: a hook that rewrites every call stays inside the tools that are shown."""
    source = f"def before_tool(event, state):\n    return {{'rewrite_call': {{'name': {target!r}, 'arguments': {{'item': 'E2'}}}}}}\n"
    bundle = hooked(evil=source).replace(tools=(ToolEntry("list"), ToolEntry("finish")))
    session, (first, second) = run(bundle, world, pool, call("list"), call("list"))
    assert [applied.name for applied in world.log] == ["list", "list"]
    assert not first.rewritten
    assert not second.rewritten
    assert [firing.effect for firing in session.take_firings()] == ["disabled"]


def test_replaced_results(world: Ledger, pool: SandboxPool) -> None:
    source = """
def after_tool(event, state):
    if event["error"]:
        return {"replace_result": "not there: " + event["result"]}
    if event["call"]["name"] == "list":
        return {"replace_result": None}
    return {"replace_result": {"short": event["result"]["hours"]}}
"""
    _, (listed, read, refused) = run(hooked(short=source), world, pool, call("list"), call("read", item="E1"), call("read", item="E9"))
    assert (listed.value, read.value) == (None, {"short": 7})
    assert refused.error == "not there: unknown item"
    lie = "def after_tool(event, state):\n    return {'replace_result': {'ok': True}}\n"
    session, (refused,) = run(hooked(lie=lie), world, pool, call("read", item="E9"))
    assert refused.error == "unknown item", "a refusal can't be turned into a success"
    assert session.take_firings()[-1].effect == "disabled"


def test_hooks_fire_in_order_and_see_each_other(world: Ledger, pool: SandboxPool) -> None:
    first = "def before_tool(event, state):\n    return {'rewrite_call': {'name': 'read', 'arguments': {'item': 'E2'}}}\n"
    second = "def before_tool(event, state):\n    return {'block_call': event['call']['arguments']['item']}\n"
    _, (outcome,) = run(hooked(b=second, a=first), world, pool, call("read", item="E1"))
    assert outcome.error == "E2"
    assert world.log == []


def test_messages_of_hooks_and_skills(world: Ledger, pool: SandboxPool) -> None:
    source = """
def on_start(event, state):
    return {"inject_message": event["instruction"] + " " + " ".join(event["tools"]), "state": {"turns": 0}}

def before_model(event, state):
    if event["turn"] == 1:
        return {"inject_message": "last " + event["last_observation"]}

def after_model(event, state):
    state["turns"] += 1
    name = event["call"]["name"] if event["call"] else "nothing"
    return {"note": name + " " + str(state["turns"]), "state": state}
"""
    bundle = hooked(talk=source).replace(skills={"a": Skill("go", "skill a"), "b": Skill("E2", "skill b")})
    session = open_session(bundle, world, pool)
    assert [message.content for message in session.start("go on")] == ["go on list read pay finish", "skill a"]
    messages = [Message(Role.SYSTEM, "s"), Message(Role.USER, "go on"), Message(Role.ASSISTANT, ""), Message(Role.TOOL, "E1 E2")]
    assert session.before_model(0, messages[:2]) == []
    assert session.after_model(0, "hm", call("list")) == ["list 1"]
    assert session.after_model(1, "", None) == ["nothing 2"]
    assert [message.content for message in session.before_model(1, messages)] == ["skill b", "last E1 E2"]
    assert session.before_model(2, messages) == []
    assert session.component_use == {"hook:talk": 4, "skill:a": 1, "skill:b": 1}


BAD_RETURNS = {
    "text": "'note'",
    "list": "[1]",
    "number": "3",
    "unknown key": "{'note': 'x', 'run': 'ls'}",
    "wrong event": "{'inject_message': 'x'}",
    "note type": "{'note': 3}",
    "giant note": "{'note': 'x' * 1000}",
    "giant state": "{'state': {'x': 'x' * 9000}}",
    "state type": "{'state': [1]}",
    "not json": "{'note': {1}}",
    "rewrite after": "{'rewrite_call': {'name': 'read', 'arguments': {}}}",
    "loop": "loop()",
    "raise": "event['nothing']",
    "tool": "read(item='E1')",
    "recursion": "deep(0)",
    "memory": "'x' * 10**10",
    "exit": "leave()",
}
HELPERS = """
def loop():
    while True:
        pass
def deep(n):
    return deep(n + 1)
def leave():
    raise SystemExit(0)
"""


@pytest.mark.parametrize("value", BAD_RETURNS.values(), ids=BAD_RETURNS.keys())
def test_a_bad_hook_is_switched_off_and_changes_nothing(world: Ledger, pool: SandboxPool, value: str) -> None:
    """I9: no exception, one firing, the episode goes on, other hooks still work."""
    bad = f"def after_tool(event, state):\n    return {value}\n{HELPERS}"
    session, outcomes = run(hooked(bad=bad, good=REMINDER), world, pool, call("list"), call("list"))
    assert [outcome.value for outcome in outcomes] == [{"items": ["E1", "E2"]}] * 2
    assert [outcome.notes for outcome in outcomes] == [("todo E1 E2",)] * 2
    assert [(firing.component, firing.effect) for firing in session.take_firings()] == [
        ("hook:bad", "disabled"),
        ("hook:good", "note"),
        ("hook:good", "note"),
    ]
    assert session.component_use == {"error:hook:bad": 1, "hook:good": 2}
    assert [applied.name for applied in world.log] == ["list", "list"]


def test_hooks_can_not_touch_the_event_of_the_host(world: Ledger, pool: SandboxPool) -> None:
    source = "def after_tool(event, state):\n    event['result']['items'].append('E3')\n    event['call']['name'] = 'finish'\n"
    _, (outcome,) = run(hooked(evil=source), world, pool, call("list"))
    assert outcome.value == {"items": ["E1", "E2"]}


def test_episodes_do_not_see_each_other(world: Ledger, pool: SandboxPool) -> None:
    """I4: the sandbox is reused, the state is not."""
    run(hooked(todo=REMINDER), world, pool, call("list"))
    _, (outcome,) = run(hooked(todo=REMINDER), world, pool, call("read", item="E1"))
    assert outcome.notes == ("todo ",)


def test_snapshot_and_restore(world: Ledger, pool: SandboxPool) -> None:
    """I4: a restored session continues like the one it was taken from."""
    calls = [call("list"), call("pay", item="E1", amount=1), call("finish"), call("pay", item="E2", amount=1), call("finish")]
    session = open_session(hooked(todo=REMINDER), world, pool)
    for turn, one in enumerate(calls[:2]):
        session.execute(one, turn)
    taken = session.snapshot()
    rest = [session.execute(one, 2 + turn) for turn, one in enumerate(calls[2:])]
    other = open_session(hooked(todo=REMINDER), Ledger(), pool)
    other.restore(taken)
    assert [other.execute(one, 2 + turn) for turn, one in enumerate(calls[2:])] == rest
    assert other.component_use == session.component_use


def test_view_counts_each_hidden_message_once(world: Ledger, pool: SandboxPool) -> None:
    session = open_session(BASE.replace(context=ContextPolicy(keep_last_turns=1)), world, pool)
    messages = [Message(Role.SYSTEM, "s"), Message(Role.USER, "u")]
    for turn in range(3):
        messages += [Message(Role.ASSISTANT, f"a{turn}"), Message(Role.TOOL, f"t{turn}")]
        session.view(messages)
    assert session.component_use == {"context": 4}
    assert len(session.take_firings()) == 4
