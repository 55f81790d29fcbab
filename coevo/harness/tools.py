"""The tools a harness shows: family tools renamed or hidden, and composite tools whose schema comes from their signature."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from coevo.chat import ToolSpec
from coevo.errors import ConfigError, nearest
from coevo.harness.source import ComponentKind, compile_component, entry_name

__all__ = ["FINISH", "ToolEntry", "ToolTable", "ToolTarget", "composite_spec", "refuse_arguments", "resolve_tools"]

FINISH = "finish"
"""The family tool that ends an episode: composites can't call it, rewrites can't reach it, nothing may take its name."""

_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """One line of `tools.yaml`.

    Attributes:
        name: Family tool, or composite tool when `composite`.
        composite: Whether `tools/NAME.py` defines it.
        shown: The name the model sees; empty for `name`.
        description: Replaces the family's description; empty for the original.
    """

    name: str
    composite: bool = False
    shown: str = ""
    description: str = ""

    @property
    def shown_name(self) -> str:
        """What the model calls it."""
        return self.shown or self.name


@dataclass(frozen=True, slots=True)
class ToolTarget:
    """What a shown name stands for: a family tool, or the sandbox function `entry` of a composite."""

    name: str
    spec: ToolSpec
    entry: str = ""


class ToolTable:
    """Shown name -> target for one harness and family; `specs` in the order of `tools.yaml`."""

    def __init__(self, targets: Mapping[str, ToolTarget], family_names: Sequence[str]) -> None:
        self.targets = dict(targets)
        self.specs = tuple(target.spec for target in self.targets.values())
        self.host_names = tuple(name for name in family_names if name != FINISH)
        self._shown = {target.name: shown for shown, target in self.targets.items()}

    def shown(self, name: str) -> str | None:
        """The shown name of a family tool or composite; None when it is hidden."""
        return self._shown.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names as hooks see them: family names, and composites by their own."""
        return tuple(target.name for target in self.targets.values())


@lru_cache(maxsize=1024)
def composite_spec(name: str, source: str) -> ToolSpec:
    """Schema of a composite tool: annotations give the types, defaults make an argument optional, the docstring describes.

    Raises:
        ConfigError: An argument without one of the annotations str, int, float, bool, or `*args`.
    """
    compile_component(source, ComponentKind.TOOL, name)
    file = f"tools/{name}.py"
    function = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    arguments = function.args
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise ConfigError(f"{file}:{function.lineno}: *args can't be described", seen=name, fix="name every argument")
    properties: dict[str, Any] = {}
    for argument in [*arguments.args, *arguments.kwonlyargs]:
        annotation = ast.unparse(argument.annotation) if argument.annotation is not None else "nothing"
        if annotation not in _TYPES:
            fix = f"annotate it with one of {', '.join(_TYPES)}"
            raise ConfigError(f"{file}:{argument.lineno}: argument {argument.arg!r} has no JSON type", seen=annotation, fix=fix)
        properties[argument.arg] = {"type": _TYPES[annotation]}
    plain = [argument.arg for argument in arguments.args]
    optional = set(plain[len(plain) - len(arguments.defaults) :]) if arguments.defaults else set()
    optional |= {argument.arg for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is not None}
    required = [argument for argument in properties if argument not in optional]
    description = ast.get_docstring(function) or name.replace("_", " ")
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": required})


def resolve_tools(entries: Sequence[ToolEntry], composites: Mapping[str, str], family_tools: Sequence[ToolSpec]) -> ToolTable:
    """Match `tools.yaml` with a family.

    Raises:
        ConfigError: An unknown family tool, two tools shown under one name, or a composite or new name that shadows a family tool.
    """
    family = {spec.name: spec for spec in family_tools}
    targets: dict[str, ToolTarget] = {}
    for entry in entries:
        target = _composite(entry, composites, family) if entry.composite else _family(entry, family)
        if entry.shown_name in targets:
            raise ConfigError("tools.yaml: two tools under one name", seen=entry.shown_name, fix="rename or remove one")
        targets[entry.shown_name] = target
    if not targets:
        raise ConfigError("tools.yaml: no tool is shown", seen="[]", fix=f"list some of: {', '.join(family)}")
    return ToolTable(targets, tuple(family))


def _family(entry: ToolEntry, family: Mapping[str, ToolSpec]) -> ToolTarget:
    if entry.name not in family:
        raise ConfigError("tools.yaml: unknown family tool", seen=entry.name, fix=nearest(entry.name, family))
    if entry.shown and entry.shown != entry.name and (entry.shown in family or entry.shown == FINISH):
        raise ConfigError("tools.yaml: a renamed tool shadows a family tool", seen=f"{entry.name} as {entry.shown}", fix="use a new name")
    spec = family[entry.name]
    return ToolTarget(entry.name, replace(spec, name=entry.shown_name, description=entry.description or spec.description))


def _composite(entry: ToolEntry, composites: Mapping[str, str], family: Mapping[str, ToolSpec]) -> ToolTarget:
    if entry.name in family or entry.name == FINISH:
        raise ConfigError(f"tools/{entry.name}.py: a composite shadows a family tool", seen=entry.name, fix="rename the file and function")
    spec = composite_spec(entry.name, composites[entry.name])
    return ToolTarget(entry.name, spec, entry_name(ComponentKind.TOOL, entry.name, entry.name))


def refuse_arguments(spec: ToolSpec, arguments: Mapping[str, Any]) -> str | None:
    """Why a composite's arguments don't fit its schema, in the words that the model reads; None when they fit."""
    properties = spec.parameters["properties"]
    for name, value in arguments.items():
        if name not in properties:
            return f"unknown argument {name}"
        if not _fits(properties[name]["type"], value):
            return f"argument {name} must be {properties[name]['type']}"
    missing = [name for name in spec.parameters["required"] if name not in arguments]
    return f"missing argument {missing[0]}" if missing else None


def _fits(kind: str, value: Any) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case _:
            return isinstance(value, (int, float)) and not isinstance(value, bool)
