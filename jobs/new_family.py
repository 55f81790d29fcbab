"""`coevo new-family NAME`: write a skeleton of a task family that works and passes its own hygiene suite."""

from __future__ import annotations

from pathlib import Path

from coevo.display import Display
from coevo.tasks.scaffold import write_skeleton

__all__ = ["create"]


def create(name: str, into: Path, display: Display) -> int:
    """Write the skeleton, then say what to do with it; 0."""
    folder = write_skeleton(name, into=into)
    lines = (
        f"written: {folder}",
        f"test it: cd {folder} && python -m pytest",
        f"change:  {name}/world.py first, then {name}/reference.py and the base harness; README.md says what is where",
        f"use it:  pip install -e {folder} on every machine that plays episodes, and `family: {name}:family` in a run's configuration",
    )
    display.result("new-family", lines)
    return 0
