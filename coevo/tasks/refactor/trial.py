"""Trials: a package's own tests, and probes (expressions over hidden inputs), run in the sandbox; the host only compares results.

What runs is data to the host: values come back as plain JSON. Results are cached by the text of the program, so that grading an unchanged
state costs nothing. A program that never ends is cut off by the sandbox's limits and counts as broken.
"""

from __future__ import annotations

import ast
import atexit
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from coevo.errors import SandboxError
from coevo.harness.sandbox import SandboxLimits, SandboxPool
from coevo.tasks.refactor.linker import LinkError, link, module_name, parse

__all__ = ["TestRun", "run_probes", "run_tests", "same", "test_functions"]

_LIMITS = SandboxLimits(output_chars=262_144, output_nodes=65_536)
_pool: list[SandboxPool] = []


@dataclass(frozen=True, slots=True)
class TestRun:
    """What the tests said: how many passed, and (test, message) of those that did not, in file order."""

    passed: int
    failed: tuple[tuple[str, str], ...]


def test_functions(path: str, text: str) -> dict[str, ast.FunctionDef]:
    """Top-level `test_*` functions of a test file. Raises `LinkError` when it can't be parsed."""
    return {node.name: node for node in parse(path, text).body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")}


def run_tests(files: Mapping[str, str], *, only: str = "") -> TestRun:
    """Run all `test_*` functions of `tests/test_*.py`, or those of one file, each file with freshly loaded modules."""
    paths = sorted(path for path in files if path.startswith("tests/test") and path.endswith(".py") and only in ("", path))
    failed: list[tuple[str, str]] = []
    table: list[str] = []
    names: list[str] = []
    for path in paths:
        try:
            found = test_functions(path, files[path])
        except LinkError as error:
            failed.append((path, str(error)))
            continue
        names += [f"{path}::{name}" for name in found]
        table.append(f"[{module_name(path)!r}, {list(found)!r}]")
    try:
        program = link(files, [module_name(path) for path in paths if not any(path == bad for bad, _ in failed)])
    except LinkError as error:
        return TestRun(0, (*failed, ("all tests", str(error))))
    results = _run(program + _TEST_RUNNER.format(table=", ".join(table)))
    if isinstance(results, str):
        return TestRun(0, (*failed, ("all tests", results)))
    failed += [(name, message) for name, message in zip(names, results, strict=True) if message]
    return TestRun(sum(not message for message in results), tuple(failed))


def run_probes(files: Mapping[str, str], modules: Sequence[str], probes: Sequence[str]) -> list[Any] | str:
    """Values of expressions; `_m('shop.pricing').name` reaches a module's names. One text instead when the package does not run.

    Each probe gives `["value", value]` or `["error", "Type: message"]`.
    """
    try:
        program = link(files, modules)
    except LinkError as error:
        return str(error)
    lines = "".join(f"    _found.append(_attempt(lambda: {probe}))\n" for probe in probes)
    return _run(program + f"\ndef _trial():\n    _found = []\n    _m = _loader()\n{lines}    return _found\n")


def same(expected: Any, found: Any) -> bool:
    """Equal by value: 1 equals 1.0, sums may differ in the last digits; true is not 1."""
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        return math.isclose(expected, found, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(same(one, other) for one, other in zip(expected, found, strict=True))
    return type(expected) is type(found) and bool(expected == found)


_TEST_RUNNER = """
def _message(action):
    try:
        action()
    except AssertionError as error:
        return ("AssertionError: " + str(error))[:200]
    except Exception as error:
        return (type(error).__name__ + ": " + str(error))[:200]
    return ""

def _trial():
    found = []
    for name, tests in [{table}]:
        load = _loader()
        broken = _message(lambda: load(name))
        for test in tests:
            found.append(broken or _message(lambda: getattr(load(name), test)()))
    return found
"""


@lru_cache(maxsize=512)
def _run(program: str) -> list[Any] | str:
    if not _pool:
        _pool.append(SandboxPool(_LIMITS, max_workers=2))
        atexit.register(_pool[0].close)
    try:
        with _pool[0].checkout(program) as sandbox:
            try:
                value = sandbox.call("_trial")
            finally:
                sandbox.broken = True  # a program of its own each time: an idle copy would only hold memory
    except SandboxError as error:
        return f"the package does not run: {error.seen or error.what}"[:300]
    return value if isinstance(value, list) else "the package does not run"
