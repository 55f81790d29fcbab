"""Lines of text, for logs and terminals without bars."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from coevo.display.pace import Clock, Pace, progress_facts
from coevo.ports import Progress

__all__ = ["PlainDisplay"]

_EVERY_S = 5.0


class PlainDisplay:
    """Lines of text; a progress line every few seconds at most, and always the last one of a stage."""

    def __init__(self, *, out: TextIO | None = None, err: TextIO | None = None, clock: Clock = time.monotonic) -> None:
        self._out, self._err, self._clock = out or sys.stdout, err or sys.stderr, clock
        self._pace = Pace(clock)
        self._stage = ""
        self._shown_at = float("-inf")

    def start(self, lines: Sequence[str]) -> None:
        """The plan."""
        for line in lines:
            self._say(line)

    def stage(self, name: str, total: int) -> None:
        """Open a stage."""
        self._stage, self._shown_at = name, self._clock()
        self._pace.reset()
        self._say(f"== {name}: {total} items" if total else f"== {name}")

    def progress(self, progress: Progress) -> None:
        """Take a snapshot; print it when it is time."""
        if progress.stage != self._stage:
            self.stage(progress.stage, progress.total)
        reading = self._pace.read(progress)
        if self._clock() - self._shown_at < _EVERY_S and progress.done < progress.total:
            return
        self._shown_at = self._clock()
        share = f"{100 * progress.done / progress.total:.0f} %" if progress.total else ""
        self._say("  ".join((f"{progress.stage}  {progress.done}/{progress.total}", share, *progress_facts(progress, reading))))

    def note(self, text: str) -> None:
        """One line."""
        self._say(text)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns padded to their widest cell; the first to the left, the others to the right."""
        cells = [[str(cell) for cell in row] for row in (header, *rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
        lines = [
            "  ".join(_pad(cell, width, column) for column, (cell, width) in enumerate(zip(row, widths, strict=True))) for row in cells
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        print("\n".join(["", title, *(line.rstrip() for line in lines)]), file=self._out, flush=True)

    def result(self, stage: str, lines: Sequence[str]) -> None:
        """The closing lines of a stage."""
        print("\n".join(lines), file=self._out, flush=True)

    def close(self) -> None:
        """Nothing is live."""

    def _say(self, text: str) -> None:
        print(text, file=self._err, flush=True)


def _pad(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)
