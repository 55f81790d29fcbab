"""Outside suites behind the family protocol, each where its package is installed (skipped with the reason elsewhere).

1. The suite's own solution succeeds, on a sample here and on everything in `tests/bench/bench_suites.py` (T2).
2. Doing nothing and finishing at once score 0 (T1).
3. Forks are independent and equal to replays; the search, selection and test streams share no entry.
4. Without the package the error names it and the command that installs it; a server that breaks off is infrastructure (R3).
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coevo.errors import ConfigError, InfraError, PrerequisiteError, ToolError
from coevo.tasks.adapters import bfcl, tau2
from coevo.tasks.adapters.mcp import MAX_OPEN, McpEnvironment, McpFamily
from coevo.tasks.adapters.optional import missing, need
from coevo.tasks.family import Move, Size, Stream, Style, TaskFamily, TaskInstance, Unrecoverable, World
from coevo.tasks.world import TERMINAL_TOOL, replay

SERVER = Path(__file__).parents[1] / "data" / "desk_server.py"
SUITES = {"bfcl": (bfcl.family, "bfcl_eval"), "tau2": (tau2.family, "tau2.domains.telecom.environment")}
SAMPLE = 12


@pytest.fixture(params=sorted(SUITES))
def suite(request: pytest.FixtureRequest) -> TaskFamily:
    family, module = SUITES[request.param]
    reason = missing(module)
    if reason is not None:
        pytest.skip(f"{request.param} is not installed: {reason}")
    return family


def solve(family: TaskFamily, world: World, *, stop: int | None = None) -> None:
    policy = family.policy(Style.REACTIVE)
    for _ in range(200 if stop is None else stop):
        if world.finished:
            return
        move = policy.move(world, ())
        assert isinstance(move, Move), (world.instance, move)
        world.call(move.call.name, move.call.arguments)


def sampled(family: TaskFamily) -> Iterator[TaskInstance]:
    names = family.templates(Size.STANDARD)
    for place in range(SAMPLE):
        yield TaskInstance(family.name, names[place % len(names)], Stream.TEST, 7 * place, Size.STANDARD)


def test_the_suites_solution_succeeds(suite: TaskFamily) -> None:
    """T2."""
    for instance in sampled(suite):
        world = suite.open(instance)
        solve(suite, world)
        assert world.grade().success, (instance, world.grade())
        assert world.grade().score == 1.0


def test_idle_agents_score_zero(suite: TaskFamily) -> None:
    """T1."""
    for instance in sampled(suite):
        world = suite.open(instance)
        assert (world.grade().success, world.grade().score) == (False, 0.0)
        world.call(TERMINAL_TOOL, {})
        assert (world.grade().success, world.grade().score) == (False, 0.0)
        assert isinstance(suite.policy(Style.PLAN_FIRST).move(world, ()), Unrecoverable)


def test_forks_are_replays(suite: TaskFamily) -> None:
    for instance in list(sampled(suite))[:4]:
        world = suite.open(instance)
        solve(suite, world, stop=1)
        fork, again = world.fork(), replay(suite, instance, world.log)
        assert fork.snapshot() == world.snapshot() == again.snapshot()
        solve(suite, fork)
        assert fork.grade().success
        assert not world.grade().success
        solve(suite, again)
        assert again.grade().success


def test_streams_share_no_entry(suite: TaskFamily) -> None:
    """I8."""
    name = suite.templates(Size.STANDARD)[0]
    seen: dict[Stream, set[str]] = {}
    for stream in (Stream.SEARCH, Stream.SELECTION, Stream.TEST):
        worlds = (suite.open(TaskInstance(suite.name, name, stream, seed, Size.STANDARD)) for seed in range(10))
        seen[stream] = {json.dumps(json.loads(world.snapshot())["data"]) for world in worlds}
    assert all(len(entries) > 3 for entries in seen.values())
    assert len(set[str]().union(*seen.values())) == sum(map(len, seen.values()))
    with pytest.raises(ConfigError, match="no instances"):
        suite.open(TaskInstance(suite.name, name, Stream.PRETRAIN, 0, Size.STANDARD))


def test_unknown_and_unavailable_tools_are_refused(suite: TaskFamily) -> None:
    """T4: a refused call is logged and grades nothing."""
    world = suite.open(next(sampled(suite)))
    before = world.grade()
    for name, arguments in (("no_such_tool", {}), (suite.tools(Size.STANDARD)[0].name, {"nonsense": 1})):
        with pytest.raises(ToolError):
            world.call(name, arguments)
    assert world.grade() == before
    assert len(world.log) == 2


def test_a_missing_package_is_named() -> None:
    with pytest.raises(PrerequisiteError, match="pip install it") as caught:
        need("no_such_module_here", package="the-suite", install="pip install it")
    assert "the-suite" in str(caught.value)
    assert missing("no_such_module_here") is not None
    assert missing("json") is None


# MCP ------------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The desk over HTTP on a free port."""
    reason = missing("mcp")
    if reason is not None:
        pytest.skip(f"mcp is not installed: {reason}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SERVER), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()


def desk(**where: Any) -> McpFamily:
    return McpFamily(McpEnvironment("desk", templates=("morning", "evening"), harness=Path("harness"), **where))


def stamp_all(world: World) -> None:
    for letter in world.call("list_letters", {})["letters"]:
        world.call("stamp", {"letter": letter})


def test_an_environment_over_http(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    """The agent sees neither the convention's tools nor the handle; worlds are apart; forks are replays."""
    family = desk(url=served[0], writes=frozenset({"stamp"}))
    assert [spec.name for spec in family.tools(Size.STANDARD)] == ["list_letters", "stamp", TERMINAL_TOOL]
    assert family.tools(Size.STANDARD)[1].argument_names == ("letter",)
    assert family.conduct(Size.STANDARD).writes == {"stamp", TERMINAL_TOOL}
    instance = family.instance(Stream.TEST, 3, Size.STANDARD, diversity=2)
    world, other = family.open(instance), family.open(instance)
    assert instance.template in world.instruction
    assert world.snapshot() == other.snapshot()
    assert world.grade().score == 0.0
    with pytest.raises(ToolError, match="there is no letter L1"):
        world.call("stamp", {"letter": "L1"})
    with pytest.raises(ToolError, match="unknown argument"):
        world.call("stamp", {"letter": "L1", "task_id": "T0"})
    letters = world.call("list_letters", {})["letters"]
    world.call("stamp", {"letter": letters[0]})
    fork, again = world.fork(), replay(family, instance, world.log)
    assert fork.snapshot() == world.snapshot() == again.snapshot()
    for letter in letters[1:]:
        fork.call("stamp", {"letter": letter})
    fork.call(TERMINAL_TOOL, {})
    assert fork.grade().success
    assert not world.grade().success
    assert not other.grade().success
    fork_again = world.fork()
    fork_again.call("stamp", {"letter": letters[0]})
    assert {check.name for check in fork_again.grade().checkpoints if not check.passed} >= {"once"}
    assert isinstance(family.policy(Style.REACTIVE).move(world, ()), Unrecoverable)


def test_connections_are_a_cache(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    """More worlds than connections: each goes on where it was."""
    family = desk(url=served[0])
    worlds = [family.open(family.instance(Stream.SEARCH, seed, Size.STANDARD)) for seed in range(MAX_OPEN + 3)]
    for world in worlds:
        stamp_all(world)
    for world in worlds:
        world.call(TERMINAL_TOOL, {})
        assert world.grade().success


def test_an_environment_on_stdio() -> None:
    if (reason := missing("mcp")) is not None:
        pytest.skip(f"mcp is not installed: {reason}")
    family = desk(command=(sys.executable, str(SERVER)))
    world = family.open(family.instance(Stream.TEST, 1, Size.STANDARD))
    stamp_all(world)
    world.call(TERMINAL_TOOL, {})
    assert world.grade().success


def test_a_broken_server_is_infrastructure(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    """R3: not a failed task. Last, because it kills the server."""
    url, process = served
    family = desk(url=url, call_s=15.0)
    world = family.open(family.instance(Stream.TEST, 1, Size.STANDARD))
    process.kill()
    process.wait()
    with pytest.raises(InfraError, match="MCP server"):
        world.call("list_letters", {})
    with pytest.raises(InfraError, match="MCP server"):
        desk(url=url, call_s=15.0).open(world.instance)
    with pytest.raises(ConfigError, match="a command or a URL"):
        desk()
