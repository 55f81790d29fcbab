"""Where a plug-in of a name lies: in a table of ours, behind an entry point of an installed package, or at a dotted path.

Nothing is imported to answer, and nothing registers itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from coevo.errors import ConfigError, nearest

__all__ = ["import_path", "plugin_path"]


def plugin_path(name: str, known: Mapping[str, str], *, group: str, kind: str) -> str:
    """The path `module:attr` of a name; a path is its own.

    Args:
        name: As configured.
        known: Our own names and their paths; they win over entry points.
        group: Entry point group of users' packages.
        kind: What is looked for, for the error.

    Raises:
        ConfigError: Unknown name, with the nearest known one.
    """
    if ":" in name:
        return name
    if name in known:
        return known[name]
    plugged = {point.name: point.value for point in entry_points(group=group)}
    if name not in plugged:
        raise ConfigError(f"unknown {kind}", seen=name, fix=f"{nearest(name, [*known, *plugged])}, or give module:attr")
    return plugged[name]


def import_path(path: str) -> Any:
    """The attribute at `module:attr`; whatever importing raises passes through."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
