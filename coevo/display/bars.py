"""Live bars and framed tables, for terminals."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from coevo.display.pace import Clock, Pace, progress_facts
from coevo.ports import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = ["RichDisplay"]


class RichDisplay:
    """Live bars on standard error, tables on standard output. Nothing stays live while a result is printed."""

    def __init__(self, *, out: TextIO | None = None, err: TextIO | None = None, clock: Clock = time.monotonic) -> None:
        from rich.console import Console

        self._out = Console(file=out or sys.stdout, highlight=False)
        self._err = Console(file=err or sys.stderr, highlight=False)
        self._pace = Pace(clock)
        self._stage = ""
        self._bars: RichProgress | None = None
        self._task: TaskID | None = None

    def start(self, lines: Sequence[str]) -> None:
        """The plan, in a frame."""
        from rich.panel import Panel
        from rich.text import Text

        self._err.print(Panel(Text("\n".join(lines)), title="plan", title_align="left", border_style="dim", expand=False))

    def stage(self, name: str, total: int) -> None:
        """Open a stage: a bar, or a spinner when there is nothing to count."""
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self.close()
        self._stage = name
        self._pace.reset()
        counted = (BarColumn(bar_width=28), MofNCompleteColumn()) if total else ()
        columns = (SpinnerColumn(), TextColumn("[bold]{task.description}"), *counted, TextColumn("{task.fields[facts]}", style="dim"))
        self._bars = RichProgress(*columns, TimeElapsedColumn(), console=self._err, refresh_per_second=4)
        self._task = self._bars.add_task(name, total=total or None, facts="")
        self._bars.start()

    def progress(self, progress: Progress) -> None:
        """Take a snapshot; the live view draws it when it is time."""
        if progress.stage != self._stage or self._bars is None or self._task is None:
            self.stage(progress.stage, progress.total)
        if self._bars is not None and self._task is not None:
            facts = " · ".join(progress_facts(progress, self._pace.read(progress)))
            self._bars.update(self._task, completed=progress.done, total=progress.total or None, facts=facts)

    def note(self, text: str) -> None:
        """One line above the bar."""
        from rich.text import Text

        self._err.print(Text(text))

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table of results."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        self.close()
        table = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE_HEAD)
        for column, name in enumerate(header):
            table.add_column(Text(name), justify="right" if column else "left", no_wrap=column == 0)
        for row in rows:
            table.add_row(*(Text(str(cell)) for cell in row))
        self._out.print(table)

    def result(self, stage: str, lines: Sequence[str]) -> None:
        """The closing lines of a stage; never wrapped, so paths can be copied."""
        from rich.text import Text

        self.close()
        for line in lines:
            self._out.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        """End the live view."""
        if self._bars is not None:
            self._bars.stop()
        self._bars, self._task, self._stage = None, None, ""
