"""What jobs talk to while they run: the plan, progress, notes, and tables of results.

Results (tables and the closing lines) go to standard output, everything else to standard error, so `coevo run CONFIG > grid.txt` keeps
what counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from coevo.ports import Progress

__all__ = ["Display", "DisplayKind"]


class DisplayKind(StrEnum):
    """Values of `--display`."""

    RICH = "rich"
    """Live bars; the default on a terminal."""
    PLAIN = "plain"
    """A line every few seconds at most; the default elsewhere."""
    JSON = "json"
    """One JSON object per line."""


class Display(Protocol):
    """What jobs talk to. Calls come from one thread; `progress` may come thousands of times a second and must be cheap.

    `start` prints the plan, `stage` opens a stage, `progress` takes snapshots of it, `note` is one line of text, `table` and `result` are
    results, `close` ends whatever is live and may be called twice.
    """

    def start(self, lines: Sequence[str]) -> None: ...

    def stage(self, name: str, total: int) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def note(self, text: str) -> None: ...

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None: ...

    def result(self, stage: str, lines: Sequence[str]) -> None: ...

    def close(self) -> None: ...
