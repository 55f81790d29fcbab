"""Promises of typed edits:

1. every component kind can be added, changed and removed by itself, and the rest stays as it was;
2. apply(a, diff(a, b)) is b and the inverse leads back, for any two harnesses; no difference, no changes;
3. a change whose component is not as it was is refused and overwrites nothing; so is a result that is no harness.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from coevo.errors import ConfigError
from coevo.harness.bundle import HarnessBundle, Limits, Skill
from coevo.harness.context import ContextPolicy
from coevo.harness.edits import Action, Change, ComponentRole, apply_changes, changes_between, component_texts, invert
from coevo.harness.tools import ToolEntry

HOOK = "def after_tool(event, state):\n    return {'note': 'seen'}\n"
TOOL = "def both(item: str):\n    return read(item=item)\n"
BASE = HarnessBundle(
    name="b",
    system_prompt="work",
    tools=(ToolEntry("read"), ToolEntry("both", composite=True), ToolEntry("write"), ToolEntry("finish")),
    composites={"both": TOOL},
    hooks={"h": HOOK},
    skills={"s": Skill("E1", "E1 is special.\n\nVery.")},
)

ENTRIES = [ToolEntry("read"), ToolEntry("read", shown="look"), ToolEntry("write", description="puts"), ToolEntry("finish")]
SKILLS = st.builds(Skill, st.sampled_from(["E1", "a: b"]), st.sampled_from(["x", "x\n\ny\n", "- z"]))
BUNDLES = st.builds(
    HarnessBundle,
    name=st.just("x"),
    system_prompt=st.sampled_from(["work", "work hard\n\nalways", "ünï — {family}"]),
    tools=st.lists(st.sampled_from(ENTRIES), min_size=1, max_size=5).map(tuple),
    hooks=st.dictionaries(st.sampled_from("abc"), st.sampled_from([HOOK, HOOK.replace("seen", "done")])),
    skills=st.dictionaries(st.sampled_from("st"), SKILLS),
    context=st.builds(ContextPolicy, keep_last_turns=st.none() | st.integers(1, 3), pins=st.sampled_from([(), ("a", "ü")])),
    limits=st.builds(Limits, max_turns=st.integers(1, 3)),
)


@given(BUNDLES, BUNDLES)
@settings(max_examples=60, deadline=None)
def test_diff_applies_and_inverts(first: HarnessBundle, second: HarnessBundle) -> None:
    """Promise 2."""
    changes = changes_between(first, second)
    assert bool(changes) == (first.hash != second.hash)
    reached = apply_changes(first, changes)
    assert reached.hash == second.hash
    assert reached.parent == first.hash
    assert apply_changes(reached, invert(changes)).hash == first.hash
    assert changes_between(HarnessBundle.from_files(first.files()), first) == ()


def changed(component: str, old: str | None, new: str | None, *, before: str = "") -> HarnessBundle:
    return apply_changes(BASE, [Change(component=component, old=old, new=new, before=before)])


SINGLE = {
    "prompt": ("prompt", "work\n", "rest\n"),
    "hook added": ("hook:i", None, HOOK),
    "hook changed": ("hook:h", HOOK, HOOK.replace("seen", "done")),
    "hook removed": ("hook:h", HOOK, None),
    "skill added": ("skill:t", None, "trigger: E2\nE2 too.\n"),
    "skill changed": ("skill:s", "trigger: E1\nE1 is special.\n\nVery.\n", "trigger: E1\nplain.\n"),
    "skill removed": ("skill:s", "trigger: E1\nE1 is special.\n\nVery.\n", None),
    "source changed": ("tool:both", TOOL, TOOL.replace("item=item", "item=item + ''")),
    "entry renamed": ("entry:read", '{"tool": "read"}', '{"tool": "read", "as": "look"}'),
    "entry hidden": ("entry:write", '{"tool": "write"}', None),
    "entry shown": ("entry:list", None, '{"tool": "list"}'),
    "context": ("context:keep_last_turns", "null", "3"),
    "pins": ("context:pins", "[]", '["E1"]'),
    "limit": ("limits:max_turns", "24", "9"),
}


@pytest.mark.parametrize("case", SINGLE.values(), ids=SINGLE.keys())
def test_one_component_at_a_time(case: tuple[str, str | None, str | None]) -> None:
    """Promise 1."""
    component, old, new = case
    child = changed(component, old, new)
    texts, were = component_texts(child), component_texts(BASE)
    assert texts.get(component) == new
    touched = {name for name in {*texts, *were} if texts.get(name) != were.get(name)}
    assert touched - {"tools"} == {component}
    (change,) = changes_between(BASE, child)
    assert change.action is (Action.ADD if old is None else Action.REMOVE if new is None else Action.CHANGE)
    assert (change.component, change.old, change.new) == case
    assert f"{change.role}{':' if change.name else ''}{change.name}" == component


def test_a_composite_comes_with_its_line() -> None:
    source = "def one(item: str):\n    return read(item=item)\n"
    add = [Change(component="tool:one", new=source), Change(component="entry:one", new='{"composite": "one"}', before="write")]
    child = apply_changes(BASE, add)
    assert [entry.name for entry in child.tools] == ["read", "both", "one", "write", "finish"]
    assert apply_changes(child, invert(add)).hash == BASE.hash
    with pytest.raises(ConfigError, match="is not listed"):
        apply_changes(BASE, add[:1])


def test_a_new_order_is_one_change() -> None:
    child = BASE.replace(tools=tuple(reversed(BASE.tools)))
    (change,) = changes_between(BASE, child)
    assert (change.component, change.action) == ("tools", Action.CHANGE)
    assert [entry.get("tool", entry.get("composite")) for entry in json.loads(change.new or "")] == ["finish", "write", "both", "read"]


def test_an_unknown_place_is_the_end() -> None:
    child = changed("entry:list", None, '{"tool": "list"}', before="nowhere")
    assert child.tools[-1].name == "list"


REFUSED = {
    "stale": (("hook:h", "other", HOOK.replace("seen", "x")), "does not fit"),
    "not there": (("hook:z", HOOK, None), "does not fit"),
    "there already": (("hook:h", None, HOOK.replace("seen", "x")), "does not fit"),
    "no role": (("hooks:h", None, HOOK), "names no component"),
    "no name": (("hook", None, HOOK), "names no component"),
    "prompt with a name": (("prompt:x", None, "x"), "names no component"),
    "prompt removed": (("prompt", "work\n", None), "only be changed"),
    "unknown field": (("context:keep_last", None, "3"), "only be changed"),
    "not JSON": (("context:keep_last_turns", "null", "three"), "not JSON"),
    "wrong type": (("context:keep_last_turns", "null", '"3"'), "keep_last_turns"),
    "broken source": (("hook:h", HOOK, "def after_tool("), "broken Python"),
    "broken skill": (("skill:s", "trigger: E1\nE1 is special.\n\nVery.\n", "hello"), "no trigger"),
    "unknown key": (("entry:read", '{"tool": "read"}', '{"tool": "read", "to": "x"}'), "unknown key"),
    "path": (("skill:../../x", None, "trigger: a\nb\n"), "not a component name|no part of a harness"),
}


@pytest.mark.parametrize(("case", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused(case: tuple[str, str | None, str | None], message: str) -> None:
    """Promise 3."""
    with pytest.raises(ConfigError, match=message) as caught:
        changed(*case)
    assert caught.value.fix


def test_a_change_must_change() -> None:
    with pytest.raises(ValidationError, match="different texts"):
        Change(component="prompt", old="a", new="a")


def test_every_role_has_an_address() -> None:
    assert {address.partition(":")[0] for address in component_texts(BASE)} == {role.value for role in ComponentRole}
