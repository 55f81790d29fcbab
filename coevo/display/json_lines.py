"""One JSON object per line, for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import orjson

from coevo.display.pace import Clock, Pace
from coevo.ports import Progress

__all__ = ["JsonDisplay"]

_EVERY_S = 1.0


class JsonDisplay:
    """One JSON object per line: events on standard error (progress at most once a second, and the last one), results on standard output."""

    def __init__(self, *, out: TextIO | None = None, err: TextIO | None = None, clock: Clock = time.monotonic) -> None:
        self._out, self._err, self._clock = out or sys.stdout, err or sys.stderr, clock
        self._pace = Pace(clock)
        self._stage = ""
        self._shown_at = float("-inf")

    def start(self, lines: Sequence[str]) -> None:
        """The plan."""
        self._emit(self._err, "plan", {"lines": list(lines)})

    def stage(self, name: str, total: int) -> None:
        """Open a stage."""
        self._stage, self._shown_at = name, float("-inf")
        self._pace.reset()
        self._emit(self._err, "stage", {"stage": name, "total": total})

    def progress(self, progress: Progress) -> None:
        """Take a snapshot; print it when it is time."""
        if progress.stage != self._stage:
            self.stage(progress.stage, progress.total)
        reading = self._pace.read(progress)
        if self._clock() - self._shown_at < _EVERY_S and progress.done < progress.total:
            return
        self._shown_at = self._clock()
        counts = {"stage": progress.stage, "done": progress.done, "total": progress.total, "owed": progress.owed, "tokens": progress.tokens}
        self._emit(self._err, "progress", {**counts, **reading._asdict()})

    def note(self, text: str) -> None:
        """One line."""
        self._emit(self._err, "note", {"text": text})

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table of results."""
        self._emit(self._out, "table", {"title": title, "header": list(header), "rows": [list(row) for row in rows]})

    def result(self, stage: str, lines: Sequence[str]) -> None:
        """The closing lines of a stage."""
        self._emit(self._out, "result", {"stage": stage, "lines": list(lines)})

    def close(self) -> None:
        """Nothing is live."""

    def _emit(self, stream: TextIO, event: str, facts: Mapping[str, Any]) -> None:
        print(orjson.dumps({"event": event, **facts}).decode(), file=stream, flush=True)
