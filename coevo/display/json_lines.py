"""One JSON object per line, for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import orjson

from coevo.display.lines import LineDisplay
from coevo.ports import Progress

__all__ = ["JsonDisplay"]


class JsonDisplay(LineDisplay):
    """One JSON object per line: events on standard error (progress at most once a second, and the last one), results on standard output."""

    def start(self, lines: Sequence[str]) -> None:
        """The plan."""
        self._emit(self._err, "plan", {"lines": list(lines)})

    def stage(self, name: str, total: int) -> None:
        """Open a stage."""
        super().stage(name, total)
        self._shown_at = float("-inf")
        self._emit(self._err, "stage", {"stage": name, "total": total})

    def progress(self, progress: Progress) -> None:
        """Take a snapshot; print it when it is time."""
        reading = self._due(progress)
        if reading is None:
            return
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

    def _emit(self, stream: TextIO, event: str, facts: Mapping[str, Any]) -> None:
        print(orjson.dumps({"event": event, **facts}).decode(), file=stream, flush=True)
