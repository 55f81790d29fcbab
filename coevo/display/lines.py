"""What displays that print lines have in common: their streams, the stage that is open, and when the next progress line is due."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from coevo.display.pace import Clock, Pace, Reading
from coevo.ports import Progress

__all__ = ["LineDisplay"]


class LineDisplay:
    """Base of the displays without a live view.

    Args:
        out: Results; standard output by default.
        err: Everything else; standard error by default.
        clock: Seconds.
    """

    every_s = 1.0
    """Least seconds between two progress lines."""

    def __init__(self, *, out: TextIO | None = None, err: TextIO | None = None, clock: Clock = time.monotonic) -> None:
        self._out, self._err, self._clock = out or sys.stdout, err or sys.stderr, clock
        self._pace = Pace(clock)
        self._stage = ""
        self._shown_at = float("-inf")

    def stage(self, name: str, total: int) -> None:
        """Open a stage; how it is said is the display's own."""
        del total
        self._stage = name
        self._pace.reset()

    def close(self) -> None:
        """Nothing is live."""

    def _due(self, progress: Progress) -> Reading | None:
        """The pace when a line is due: after `every_s`, and always the last of a stage. A snapshot of another stage opens it."""
        if progress.stage != self._stage:
            self.stage(progress.stage, progress.total)
        reading = self._pace.read(progress)
        if self._clock() - self._shown_at < self.every_s and progress.done < progress.total:
            return None
        self._shown_at = self._clock()
        return reading
