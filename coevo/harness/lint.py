"""Everything that can be known about a bundle before it plays: does it fit the family, and does each component survive a dry run?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coevo.chat import ToolSpec
from coevo.errors import ConfigError, SandboxError
from coevo.harness.bundle import HarnessBundle
from coevo.harness.hooks import read_return
from coevo.harness.sandbox import HostFunction, SandboxFault, SandboxPool, shared_pool
from coevo.harness.source import ComponentKind, compile_component, entry_name, link
from coevo.harness.tools import FINISH, composite_spec, resolve_tools

__all__ = ["Problem", "lint", "require_clean"]

_SAMPLES: dict[str, Any] = {"string": "A1", "integer": 1, "number": 1.0, "boolean": True}
_DATA_FAULTS = ("AttributeError", "IndexError", "KeyError", "TypeError", "ValueError", "ZeroDivisionError")


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding: which component, what is wrong, what to do."""

    component: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.component}: {self.what} ({self.fix})"


def lint(bundle: HarnessBundle, family_tools: Sequence[ToolSpec], *, sandboxes: SandboxPool | None = None) -> list[Problem]:
    """Check a bundle against a family and dry-run every hook and composite in the sandbox.

    A composite's dry run meets tools that return an empty object, so exceptions that come from missing data are no problem there.

    Returns:
        Problems, empty when the bundle can play.
    """
    pool = sandboxes or shared_pool()
    try:
        table = resolve_tools(bundle.tools, bundle.composites, family_tools)
    except ConfigError as error:
        return [Problem("tools", f"{error.what}: {error.seen}", error.fix)]
    problems = []
    if table.shown(FINISH) is None and any(spec.name == FINISH for spec in family_tools):
        problems.append(Problem("tools", "finish is hidden: no episode can be completed", "list `- tool: finish`"))
    for name, source in bundle.hooks.items():
        problems += _dry_run_hook(name, source, list(table.names), pool)
    for name, source in bundle.composites.items():
        problems += _dry_run_composite(name, source, table.host_names, pool)
    return problems


def require_clean(bundle: HarnessBundle, family_tools: Sequence[ToolSpec]) -> None:
    """Raise `ConfigError` naming every problem that `lint` finds."""
    problems = lint(bundle, family_tools)
    if problems:
        found = "; ".join(str(problem) for problem in problems)
        raise ConfigError("the harness can't be used", seen=found, fix="mend the files named above")


def _events(tools: list[str]) -> dict[str, dict[str, Any]]:
    call = {"name": tools[0], "arguments": {}}
    return {
        "on_start": {"instruction": "do the task", "tools": tools},
        "before_model": {"turn": 0, "last_observation": ""},
        "after_model": {"turn": 0, "say": "", "call": None},
        "before_tool": {"turn": 0, "call": call},
        "after_tool": {"turn": 0, "call": call, "result": "refused", "error": True, "blocked": False},
        "before_finish": {"turn": 0, "call": {"name": FINISH, "arguments": {}}},
    }


def _empty_result(**_: Any) -> dict[str, Any]:
    return {}


def _dry_run_hook(name: str, source: str, tools: list[str], pool: SandboxPool) -> list[Problem]:
    component = compile_component(source, ComponentKind.HOOK, name)
    events = _events(tools)
    for event in component.functions:
        try:
            with pool.checkout(link((component,))) as sandbox:
                read_return(event, sandbox.call(entry_name(ComponentKind.HOOK, name, event), (events[event], {})))
        except SandboxError as error:
            return [Problem(f"hooks/{name}.py", f"{event}: {error.what}: {error.seen}", error.fix)]
    return []


def _dry_run_composite(name: str, source: str, host_names: Sequence[str], pool: SandboxPool) -> list[Problem]:
    component = compile_component(source, ComponentKind.TOOL, name)
    properties = composite_spec(name, source).parameters["properties"]
    arguments = {argument: _SAMPLES[schema["type"]] for argument, schema in properties.items()}
    host: dict[str, HostFunction] = dict.fromkeys(host_names, _empty_result)
    try:
        with pool.checkout(link((component,))) as sandbox:
            sandbox.call(entry_name(ComponentKind.TOOL, name, name), keywords=arguments, host=host)
    except SandboxFault as error:
        if str(error.seen).startswith(_DATA_FAULTS):
            return []
        return [Problem(f"tools/{name}.py", f"{error.what}: {error.seen}", error.fix)]
    except SandboxError as error:
        return [Problem(f"tools/{name}.py", f"{error.what}: {error.seen}", error.fix)]
    return []
