"""The base of plain worlds, and the look-up of families."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coevo.chat import ToolSpec
from coevo.errors import ConfigError, ToolError
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream, TaskInstance
from coevo.tasks.payroll import PayrollFamily
from coevo.tasks.world import MAX_INTEGER, Signature, Toolbox, replay

FAMILY = load_family("payroll")


def signature(schema: dict[str, Any], *, required: bool = True, terse: bool = False) -> Signature:
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"] if required else []}
    return Signature.of(ToolSpec("tool", "", parameters), terse=terse)


@pytest.mark.parametrize(
    ("schema", "value", "bound"),
    [
        ({"type": "integer"}, 1.0, 1),
        ({"type": "integer"}, -MAX_INTEGER, -MAX_INTEGER),
        ({"type": "number"}, 2.0, 2),
        ({"type": "number"}, 2.5, 2.5),
        ({"type": "string"}, "31", "31"),
        ({"type": "boolean"}, True, True),
        ({"type": "array", "items": {"type": "integer"}}, (1, 2.0), [1, 2]),
        ({"type": "string", "enum": ["a", "b"]}, "b", "b"),
        ({"type": "integer", "minimum": 1}, 1, 1),
    ],
)
def test_values_are_normalised(schema: dict[str, Any], value: Any, bound: Any) -> None:
    """T4: 1 and 1.0 are one number, and the bound value has the schema's type."""
    result = signature(schema).bind({"x": value})["x"]
    assert result == bound
    assert type(result) is type(bound)


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ({"type": "integer"}, "31", "must be an integer"),
        ({"type": "integer"}, 1.5, "must be an integer"),
        ({"type": "integer"}, True, "must be an integer"),
        ({"type": "integer"}, MAX_INTEGER + 1, "is too large"),
        ({"type": "integer"}, 10**4000, "is too large"),
        ({"type": "integer"}, float("inf"), "is too large"),
        ({"type": "integer"}, float("nan"), "must be a number"),
        ({"type": "number"}, 10**400, "is too large"),
        ({"type": "number"}, None, "must be a number"),
        ({"type": "string"}, 31, "must be a string"),
        ({"type": "boolean"}, 1, "must be true or false"),
        ({"type": "array"}, "ab", "must be an array"),
        ({"type": "array"}, ["a", 1], "must be a string"),
        ({"type": "string", "enum": ["a", "b"]}, "c", "must be one of a, b"),
        ({"type": "integer", "minimum": 1, "maximum": 3}, 4, "must lie between 1 and 3"),
    ],
)
def test_refusals_give_the_reason_and_the_usage(schema: dict[str, Any], value: Any, reason: str) -> None:
    with pytest.raises(ToolError) as caught:
        signature(schema).bind({"x": value})
    assert caught.value.what == f"bad arguments: x {reason}; use tool( x)"
    with pytest.raises(ToolError) as caught:
        signature(schema, terse=True).bind({"x": value})
    assert caught.value.what == "bad arguments use tool( x)"


def test_optional_arguments_may_be_absent() -> None:
    assert signature({"type": "integer"}, required=False).bind({}) == {}
    with pytest.raises(ToolError, match="x is missing"):
        signature({"type": "integer"}).bind({})


def test_schemas_outside_the_subset_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="object"):
        signature({"type": "object"})
    with pytest.raises(ConfigError, match="terminal"):
        Toolbox([ToolSpec("a", "", {"type": "object", "properties": {}})])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
TOOL_NAMES = [spec.name for size in Size if FAMILY.templates(size) for spec in FAMILY.tools(size)]
ARGUMENT_NAMES = sorted({name for size in Size if FAMILY.templates(size) for spec in FAMILY.tools(size) for name in spec.argument_names})
CALLS = st.tuples(
    st.sampled_from(TOOL_NAMES) | st.text(max_size=5),
    st.dictionaries(st.sampled_from(ARGUMENT_NAMES) | st.text(max_size=3), JSON, max_size=3),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(CALLS, max_size=8), st.sampled_from([size for size in Size if FAMILY.templates(size)]))
def test_whatever_is_called_the_world_stays_whole(calls: list[tuple[str, dict[str, Any]]], size: Size) -> None:
    """R14, T11: only ToolError comes out; every call is logged; fork, replay and world agree; nothing is settled by accident."""
    instance = FAMILY.instance(Stream.SEARCH, 0, size)
    world = FAMILY.open(instance)
    hashes, texts = {world.log_hash}, []
    for name, arguments in calls:
        try:
            world.call(name, arguments)
        except ToolError as error:
            texts.append(error.what)
        hashes.add(world.log_hash)
    assert all(0 < len(text) < 400 for text in texts)
    assert len(world.log) == len(calls)
    assert len(hashes) == len(calls) + 1
    assert world.fork().snapshot() == replay(FAMILY, instance, world.log).snapshot() == world.snapshot()
    assert world.grade().score == 0.0


@pytest.mark.parametrize("junk", [None, [1, 2], "text", 7])
def test_arguments_that_are_no_object_are_refused(junk: Any) -> None:
    world = FAMILY.open(FAMILY.instance(Stream.SEARCH, 0, Size.MINI))
    with pytest.raises(ToolError):
        world.call("finish", junk)
    assert not world.finished
    assert replay(FAMILY, world.instance, world.log).snapshot() == world.snapshot()


def test_the_log_keeps_what_was_called_then() -> None:
    """A caller that reuses its arguments can't rewrite history."""
    world = FAMILY.open(FAMILY.instance(Stream.SEARCH, 0, Size.STANDARD))
    arguments: dict[str, Any] = {"employees": ["E1"], "bad": [1]}
    with pytest.raises(ToolError):
        world.call("get_records", arguments)
    arguments["bad"].append(2)
    assert world.log[0].arguments == {"employees": ["E1"], "bad": [1]}


def test_families_are_found_by_name_and_by_path() -> None:
    assert load_family("payroll").name == "payroll"
    assert load_family("coevo.tasks.payroll:family").name == "payroll"
    assert isinstance(load_family("coevo.tasks.payroll:PayrollFamily"), PayrollFamily)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("payrol", "did you mean 'payroll'"),
        ("nothing", "known: .*payroll"),
        ("no.such.module:family", "No module named"),
        ("coevo.tasks.payroll:nothing", "has no attribute"),
        ("coevo.tasks.payroll:__all__", "missing name"),
    ],
)
def test_unknown_families_are_config_errors(name: str, text: str) -> None:
    """Issue 2, bad input: three parts, the nearest name."""
    with pytest.raises(ConfigError, match=text):
        load_family(name)


def test_task_keys_round_trip() -> None:
    instance = FAMILY.instance(Stream.SELECTION, 7, Size.MINI, diversity=8)
    assert TaskInstance.parse(instance.key) == instance
    with pytest.raises(ConfigError, match="task key"):
        TaskInstance.parse("payroll/mini/routine/nowhere/1")
