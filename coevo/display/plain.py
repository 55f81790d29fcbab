"""Lines of text, for logs and terminals without bars."""

from __future__ import annotations

from collections.abc import Sequence

from coevo.display.lines import LineDisplay
from coevo.display.pace import progress_facts
from coevo.ports import Progress

__all__ = ["PlainDisplay"]


class PlainDisplay(LineDisplay):
    """Lines of text; a progress line every few seconds at most, and always the last one of a stage."""

    every_s = 5.0

    def start(self, lines: Sequence[str]) -> None:
        """The plan."""
        for line in lines:
            self._say(line)

    def stage(self, name: str, total: int) -> None:
        """Open a stage."""
        super().stage(name, total)
        self._shown_at = self._clock()
        self._say(f"== {name}: {total} items" if total else f"== {name}")

    def progress(self, progress: Progress) -> None:
        """Take a snapshot; print it when it is time."""
        reading = self._due(progress)
        if reading is None:
            return
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

    def _say(self, text: str) -> None:
        print(text, file=self._err, flush=True)


def _pad(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)
