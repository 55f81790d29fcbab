"""Task families and their look-up: an explicit table, entry points of the group `coevo.tasks`, dotted paths `module:attr`."""

from __future__ import annotations

from types import MappingProxyType
from typing import cast

from coevo.errors import ConfigError, boundary
from coevo.plugins import import_path, plugin_path
from coevo.tasks.family import TaskFamily

__all__ = ["ENTRY_POINT_GROUP", "FAMILIES", "SUITES", "load_family"]

ENTRY_POINT_GROUP = "coevo.tasks"
"""Entry-point group in which users' packages name their families."""

FAMILIES = MappingProxyType(
    {
        "payroll": "coevo.tasks.payroll:family",
        "budget": "coevo.tasks.budget:family",
        "stock": "coevo.tasks.stock:family",
        "anomaly": "coevo.tasks.anomaly:family",
        "refactor": "coevo.tasks.refactor:family",
        "browser": "coevo.tasks.browser:family",
        "website": "coevo.tasks.website:family",
    }
)
"""Families of this package: name -> dotted path."""

SUITES = MappingProxyType({"bfcl": "coevo.tasks.adapters.bfcl:family", "tau2": "coevo.tasks.adapters.tau2:family"})
"""Outside suites: families that need a package of their own, so that the suites of `FAMILIES` do not run on them."""

_MEMBERS = ("name", "world_version", "templates", "tools", "conduct", "instance", "open", "policy", "base_harness")


def load_family(name: str) -> TaskFamily:
    """The family of a name or dotted path `module:attr` (an instance, or a class without arguments).

    Raises:
        ConfigError: Unknown name (with the nearest known one), a path that can't be imported, an object that is no family.
    """
    path = plugin_path(name, {**FAMILIES, **SUITES}, group=ENTRY_POINT_GROUP, kind="task family")
    with boundary(ConfigError, f"the task family {name!r} could not be imported", fix="use a known name or an importable module:attr"):
        found = import_path(path)
        found = found() if isinstance(found, type) else found
    missing = [member for member in _MEMBERS if not hasattr(found, member)]
    if missing:
        raise ConfigError(
            f"{path} is not a task family", seen=f"missing {', '.join(missing)}", fix="implement coevo.tasks.family.TaskFamily"
        )
    return cast(TaskFamily, found)
