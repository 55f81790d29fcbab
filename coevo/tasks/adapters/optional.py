"""Packages that only an adapter needs: imported when a world is opened, and missed with a message that says how to get them."""

from __future__ import annotations

import importlib
from typing import Any

from coevo.errors import PrerequisiteError

__all__ = ["missing", "need"]


def need(module: str, *, package: str, install: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: Dotted name.
        package: What provides it.
        install: Command that installs it.

    Raises:
        PrerequisiteError: It can't be imported; the message says which import failed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PrerequisiteError(f"the suite needs the package {package}", seen=str(error), fix=install) from error


def missing(module: str) -> str | None:
    """Why a module can't be imported; None when it can."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    return None
