"""How YAML is read: its safe subset, through libyaml where PyYAML was built with it."""

from __future__ import annotations

from typing import Any

import yaml

__all__ = ["LOADER", "read_yaml"]

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Loader class. libyaml's takes a tenth of the time, and refuses nesting that the one in Python runs into its recursion limit with."""


def read_yaml(text: str) -> Any:
    """The one document in `text`, None when it is empty. Raises `yaml.YAMLError`; the caller knows which file to name."""
    return yaml.load(text, Loader=LOADER)
