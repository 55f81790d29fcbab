"""What a user sees while a job runs: the plan, progress with rate and time left, notes, and tables of results.

Three displays with one protocol. Results (tables and the closing lines) go to standard output, everything else to standard error, so
`coevo run CONFIG > grid.txt` keeps what counts. Rates come from the last minute, so a resumed stage whose first thousand ids were in the
store already does not promise that speed for the rest.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

import orjson

from coevo.ports import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = [
    "Display",
    "DisplayKind",
    "JsonDisplay",
    "Pace",
    "PlainDisplay",
    "Reading",
    "RichDisplay",
    "duration",
    "open_display",
    "quantity",
]

Clock = Callable[[], float]

_WINDOW_S = 60.0  # a rate looks back this far
_SAMPLE_S = 0.5  # least time between two samples of a rate
_PLAIN_EVERY_S = 5.0
_JSON_EVERY_S = 1.0


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


class Reading(NamedTuple):
    """What a pace says: items and tokens per second over the last minute, seconds left; None = not known yet."""

    rate: float | None
    tokens_per_s: float | None
    eta_s: float | None


@dataclass(slots=True)
class Pace:
    """Rate of one stage from its snapshots."""

    clock: Clock = time.monotonic
    _samples: deque[tuple[float, int, int]] = field(default_factory=deque)

    def reset(self) -> None:
        """Start a new stage now, at nothing done."""
        self._samples.clear()
        self._samples.append((self.clock(), 0, 0))

    def read(self, progress: Progress) -> Reading:
        """Take a snapshot in and say the pace."""
        now = self.clock()
        self._forget(now)
        first = self._samples[0] if self._samples else (now, progress.done, progress.tokens)
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append((now, progress.done, progress.tokens))
        elapsed, done = now - first[0], progress.done - first[1]
        if elapsed <= 0 or done <= 0:
            return Reading(None, None, 0.0 if progress.done >= progress.total else None)
        rate = done / elapsed
        return Reading(rate, (progress.tokens - first[2]) / elapsed, max(0, progress.total - progress.done) / rate)

    def _forget(self, now: float) -> None:
        while len(self._samples) > 1 and now - self._samples[1][0] >= _WINDOW_S:
            self._samples.popleft()


def duration(seconds: float) -> str:
    """`42s`, `3m07s`, `2h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def quantity(value: float) -> str:
    """Three digits with a unit: `812`, `8.1k`, `1.2M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            scaled = value / limit
            return f"{scaled:.0f}{unit}" if scaled >= 100 else f"{scaled:.1f}{unit}"
    return f"{value:.0f}"


def progress_facts(progress: Progress, reading: Reading) -> tuple[str, ...]:
    """The parts of a progress line after done/total."""
    parts = []
    if reading.rate is not None:
        parts.append(f"{reading.rate:.1f}/s" if reading.rate >= 0.1 else f"{reading.rate * 60:.1f}/min")
    if reading.eta_s is not None and progress.done < progress.total:
        parts.append(f"ETA {duration(reading.eta_s)}")
    share = 100 * progress.owed / progress.done if progress.done else 0.0
    parts.append(f"owed {progress.owed} ({share:.1f} %)")
    if progress.tokens:
        speed = f" ({quantity(reading.tokens_per_s)}/s)" if reading.tokens_per_s else ""
        parts.append(f"tokens {quantity(progress.tokens)}{speed}")
    return tuple(parts)


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
        if self._clock() - self._shown_at < _PLAIN_EVERY_S and progress.done < progress.total:
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
        if self._clock() - self._shown_at < _JSON_EVERY_S and progress.done < progress.total:
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


def open_display(kind: DisplayKind | None = None) -> Display:
    """The display asked for; without a wish, rich on a terminal and plain elsewhere."""
    if kind is None:
        kind = DisplayKind.RICH if sys.stderr.isatty() else DisplayKind.PLAIN
    match kind:
        case DisplayKind.RICH:
            return RichDisplay()
        case DisplayKind.PLAIN:
            return PlainDisplay()
        case DisplayKind.JSON:
            return JsonDisplay()
