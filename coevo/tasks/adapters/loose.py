"""Toolboxes of outside suites: argument names are checked here, values by the suite, whose answers may depend on how they are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coevo.chat import ToolSpec
from coevo.errors import ConfigError
from coevo.tasks.world import TERMINAL_TOOL, Signature, Toolbox

__all__ = ["LooseToolbox", "plain_value"]


class LooseToolbox(Toolbox):
    """Like `Toolbox`, for schemas beyond the subset that `coevo.tasks.world` compiles. Values pass as plain JSON, unchanged."""

    __slots__ = ()

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        self.specs = tuple(specs)
        self.signatures = {spec.name: _signature(spec) for spec in self.specs}
        if TERMINAL_TOOL not in self.signatures:
            raise ConfigError("a suite has no terminal tool", seen=sorted(self.signatures)[:10], fix=f"add a tool named {TERMINAL_TOOL!r}")


def _signature(spec: ToolSpec) -> Signature:
    usage = f"{spec.name}({', '.join(spec.argument_names)})"
    return Signature(usage, dict.fromkeys(spec.argument_names, plain_value), frozenset(spec.parameters.get("required", ())), False)


def plain_value(value: Any) -> Any:
    """The value itself when it is plain JSON. Raises `ValueError` otherwise."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, float)) and value == value:
        if abs(value) > 2**63:
            raise ValueError("is too large")
        return value
    if isinstance(value, (list, tuple)):
        return [plain_value(one) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain_value(one) for key, one in value.items()}
    raise ValueError("must be plain JSON")
