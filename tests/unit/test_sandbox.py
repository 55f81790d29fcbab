"""Promises of the sandbox (I9):

1. a component is a pure function: module state, escapes and foreign imports are refused before anything runs;
2. whatever passes a limit ends as `SandboxError`, in bounded time, and the next call works;
3. values cross as plain JSON within limits, in both directions;
4. host functions are counted and have a deadline; a tool's refusal is catchable inside, trouble of the world is not.
"""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo.errors import ConfigError, InfraError, SandboxError, ToolError
from coevo.harness.sandbox import Sandbox, SandboxFault, SandboxLimits, SandboxPool, plain_json
from coevo.harness.source import ComponentKind, compile_component, entry_name, link

LIMITS = SandboxLimits(call_s=0.3, memory_bytes=24 * 2**20, host_calls=8, host_s=5.0, output_chars=2000, output_nodes=200)


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    pool = SandboxPool(LIMITS, max_workers=2)
    yield pool
    pool.close()


def tool(body: str, arguments: str = "") -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return link((compile_component(f"def go({arguments}):\n{lines}\n", ComponentKind.TOOL, "go"),))


ENTRY = entry_name(ComponentKind.TOOL, "go", "go")

FORBIDDEN = {
    "module list": "SEEN = []\ndef go():\n    return 1\n",
    "module dict": "SEEN = {}\ndef go():\n    return 1\n",
    "module call": "X = len('a')\ndef go():\n    return 1\n",
    "module loop": "while True:\n    pass\ndef go():\n    return 1\n",
    "global": "X = 1\ndef go():\n    global X\n    X = 2\n    return X\n",
    "nonlocal": "X = 1\ndef go():\n    nonlocal X\n    X = 2\n    return X\n",
    "mutable default": "def go(seen=[]):\n    return seen\n",
    "mutable keyword default": "def go(*, seen={}):\n    return seen\n",
    "class": "class A:\n    pass\ndef go():\n    return 1\n",
    "inner class": "def go():\n    class A:\n        x = []\n    return 1\n",
    "decorator": "def go():\n    @len\n    def f(): pass\n    return 1\n",
    "async": "async def go():\n    return 1\n",
    "generator": "def go():\n    yield 1\n",
    "import os": "import os\ndef go():\n    return 1\n",
    "inner import": "def go():\n    import socket\n    return 1\n",
    "from import": "from os.path import join\ndef go():\n    return 1\n",
    "relative import": "from . import x\ndef go():\n    return 1\n",
    "star import": "from json import *\ndef go():\n    return 1\n",
    "dunder attribute": "def go():\n    return (1).__class__\n",
    "dunder name": "def go():\n    return __k\n",
    "import function": "def go():\n    return __import__('os')\n",
    "eval": "def go():\n    return eval('1')\n",
    "eval renamed": "def go():\n    f = eval\n    return f('1')\n",
    "exec": "def go():\n    exec('x = 1')\n",
    "open": "def go():\n    return open('/etc/passwd').read()\n",
    "setattr": "import json\ndef go():\n    setattr(json, 'x', 1)\n",
    "getattr": "import json\ndef go():\n    return getattr(json, 'x')\n",
    "attribute store": "import json\ndef go():\n    json.dumps = None\n",
    "attribute loop target": "import json\ndef go():\n    for json.x in [1]:\n        pass\n",
    "function attribute": "def go():\n    go.seen = 1\n",
    "loader reached": "def go():\n    return __load_tool_go()\n",
    "rebinding a dunder by except": "def go():\n    try:\n        pass\n    except ValueError as __k:\n        pass\n",
    "rebinding a dunder by match": "def go():\n    match 1:\n        case __k:\n            pass\n",
    "two functions": "def go():\n    return 1\ndef other():\n    return 2\n",
    "other name": "def gone():\n    return 1\n",
    "no function": "X = 1\n",
    "syntax": "def go(:\n    return 1\n",
    "null byte": "def go():\n    return '\x00'\n",
    "too long": "def go():\n    return 1\n" + "# x\n" * 10_000,
}


@pytest.mark.parametrize("source", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_refused_before_it_runs(source: str) -> None:
    """I9."""
    with pytest.raises(ConfigError, match=r"tools/go\.py"):
        compile_component(source, ComponentKind.TOOL, "go")


def test_refusal_names_the_line() -> None:
    with pytest.raises(ConfigError, match=r"hooks/h\.py:4: ") as caught:
        compile_component("import json\n\ndef after_tool(event, state):\n    import os\n", ComponentKind.HOOK, "h")
    assert caught.value.fix
    assert caught.value.seen == "os"


@pytest.mark.parametrize("name", ["", "Go", "go-now", "../x", "a__b", "1a", "x" * 41])
def test_component_names(name: str) -> None:
    with pytest.raises(ConfigError):
        compile_component("def go():\n    return 1\n", ComponentKind.TOOL, name)


HOSTILE = {
    "endless loop": "while True:\n    pass",
    "endless loop that catches": "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
    "memory bomb": "x = [0] * 10**9\nreturn len(x)",
    "memory bomb that catches": "try:\n    x = 'a' * 10**9\nexcept BaseException:\n    pass\nreturn 1",
    "growing list": "x = []\nwhile True:\n    x.append('a' * 1000)",
    "recursion": "def f(n):\n    return f(n + 1)\nreturn f(0)",
    "big power": "return len(str(9 ** (9 ** 9)))",
    "giant text": "return 'a' * 3000",
    "giant list": "return [1] * 1000",
    "sharing bomb": "x = [1]\nfor _ in range(40):\n    x = [x, x]\nreturn x",
    "deep nesting": "x = []\nfor _ in range(10000):\n    x = [x]\nreturn x",
    "set": "return {1, 2}",
    "bytes": "return b'x'",
    "number keys": "return {1: 2}",
    "not a number": "return float('nan')",
    "infinite": "return float('inf')",
    "huge integer": "return 10 ** 50",
    "type": "return [int]",
    "system exit": "raise SystemExit",
    "undefined": "return nowhere",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_code_ends_as_sandbox_error(pool: SandboxPool, body: str) -> None:
    """I9: nothing escapes, and the pool serves the next call."""
    with pytest.raises(SandboxError), pool.checkout(tool(body)) as sandbox:
        sandbox.call(ENTRY)
    with pool.checkout(tool("return 7")) as sandbox:
        assert sandbox.call(ENTRY) == 7


def test_printing_goes_nowhere(pool: SandboxPool, capfd: pytest.CaptureFixture[str]) -> None:
    with pool.checkout(tool("for _ in range(1000):\n    print('loud')\nreturn 1")) as sandbox:
        assert sandbox.call(ENTRY) == 1
    assert "loud" not in "".join(capfd.readouterr())


def test_components_do_not_see_each_other(pool: SandboxPool) -> None:
    first = compile_component("SECRET = 5\ndef after_tool(event, state):\n    return {'note': str(SECRET)}\n", ComponentKind.HOOK, "a")
    second = compile_component("def after_tool(event, state):\n    return {'note': str(SECRET)}\n", ComponentKind.HOOK, "b")
    with pool.checkout(link((first, second))) as sandbox:
        assert sandbox.call(entry_name(ComponentKind.HOOK, "a", "after_tool"), ({}, {})) == {"note": "5"}
        with pytest.raises(SandboxFault, match="SECRET"):
            sandbox.call(entry_name(ComponentKind.HOOK, "b", "after_tool"), ({}, {}))


def test_nothing_survives_a_call(pool: SandboxPool) -> None:
    program = tool("x.append(1)\nreturn x", "x: str")
    for _ in range(3):
        with pool.checkout(program) as sandbox:
            assert sandbox.call(ENTRY, keywords={"x": []}) == [1]


def test_idle_sandboxes_are_reused(pool: SandboxPool) -> None:
    program = tool("return 'mine'")
    with pool.checkout(program) as first:
        first.call(ENTRY)
    with pool.checkout(program) as second:
        assert second is first
    with pytest.raises(SandboxError), pool.checkout(program) as third:
        third.call("nowhere")
    with pytest.raises(SandboxError), pool.checkout(tool("while True:\n    pass")) as fourth:
        fourth.call(ENTRY)
    assert fourth.broken


def test_a_full_pool_waits_and_evicts(pool: SandboxPool) -> None:
    """More threads and programs than workers: every call is served."""
    results: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            with pool.checkout(tool(f"return {number}")) as sandbox:
                results.append(sandbox.call(ENTRY))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(results) == sorted(list(range(6)) * 5)


def test_a_closed_pool_opens_again() -> None:
    pool = SandboxPool(LIMITS, max_workers=1)
    try:
        for _ in range(2):
            with pool.checkout(tool("return 1")) as sandbox:
                assert sandbox.call(ENTRY) == 1
            pool.close()
    finally:
        pool.close()


FORK = """
import os
from coevo.errors import PrerequisiteError
from coevo.harness.sandbox import shared_pool

def use():
    with shared_pool().checkout("def f():\\n    return 7\\n") as sandbox:
        return sandbox.call("f")

assert use() == 7
child = os.fork()
if child == 0:
    try:
        use()
    except PrerequisiteError:
        os._exit(5)
    os._exit(6)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
assert use() == 7
"""


def test_a_forked_child_is_refused_and_leaves_the_parent_alone() -> None:
    """The library's threads don't survive a fork: a clear error instead of a hang."""
    done = subprocess.run([sys.executable, "-c", FORK], timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run(sandbox: Sandbox, **host: object) -> object:
    return sandbox.call(ENTRY, keywords={}, host=host)  # type: ignore[arg-type]


def test_a_tool_refusal_is_an_exception_inside(pool: SandboxPool) -> None:
    def refuse(**_: object) -> object:
        raise ToolError("no such employee")

    with pool.checkout(tool("try:\n    read(a=1)\nexcept Exception as error:\n    return str(error)")) as sandbox:
        assert run(sandbox, read=refuse) == "no such employee"
    with pytest.raises(SandboxFault) as caught, pool.checkout(tool("return read(a=1)")) as sandbox:
        run(sandbox, read=refuse)
    assert caught.value.tool_error == "no such employee"


def test_trouble_of_the_world_can_not_be_swallowed(pool: SandboxPool) -> None:
    """I3: an infrastructure failure inside a composite leaves it unchanged."""

    def fail(**_: object) -> object:
        raise InfraError("backend down")

    body = "try:\n    read(a=1)\nexcept BaseException:\n    pass\nreturn 'fine'"
    with pytest.raises(InfraError, match="backend down"), pool.checkout(tool(body)) as sandbox:
        run(sandbox, read=fail)


def test_host_calls_are_counted(pool: SandboxPool) -> None:
    calls: list[int] = []
    body = "for i in range(10 ** 6):\n    try:\n        read(i=i)\n    except BaseException:\n        pass\nreturn 1"
    with pytest.raises(SandboxError, match="asks too much"), pool.checkout(tool(body)) as sandbox:
        run(sandbox, read=lambda **keywords: calls.append(keywords["i"]))
    assert len(calls) == LIMITS.host_calls


def test_host_arguments_are_plain_and_bounded(pool: SandboxPool) -> None:
    seen: list[object] = []
    for argument in ("{1, 2}", "'a' * 5000", "[1] * 500", "b'x'"):
        with pytest.raises(SandboxFault, match="TypeError"), pool.checkout(tool(f"return read(a={argument})")) as sandbox:
            run(sandbox, read=lambda **keywords: seen.append(keywords))
    assert seen == []


def test_positional_host_calls_are_refused(pool: SandboxPool) -> None:
    with pytest.raises(SandboxFault, match="keyword arguments only"), pool.checkout(tool("return read(1)")) as sandbox:
        run(sandbox, read=lambda **keywords: 1)


def test_clock_and_randomness_are_fixed(pool: SandboxPool) -> None:
    """I4: nothing in a sandbox depends on when it runs (both modules are refused statically; the policy backs that up)."""
    with pool.checkout("import random, time\ndef f():\n    return [random.random(), time.time()]\n") as sandbox:
        first = sandbox.call("f")
        sandbox.broken = True
    with pool.checkout("import random, time\ndef f():\n    return [random.random(), time.time()]\n") as sandbox:
        assert sandbox.call("f") == first


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_plain_json_keeps_json(value: object) -> None:
    assert plain_json(value, max_chars=10_000, max_nodes=1000) == value


@pytest.mark.parametrize("value", [object(), {1}, b"x", {1: 2}, math.nan, math.inf, 2**63, complex(1), {"a": (1, {2})}, range(3)])
def test_plain_json_refuses_the_rest(value: object) -> None:
    with pytest.raises(SandboxError):
        plain_json(value, max_chars=100, max_nodes=100)
