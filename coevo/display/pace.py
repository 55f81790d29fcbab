"""How fast a stage goes, and how that is said.

Rates come from the last minute, so a resumed stage whose first thousand ids were in the store already does not promise that speed for the
rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from coevo.ports import Progress

__all__ = ["Clock", "Pace", "Reading", "duration", "progress_facts", "quantity"]

Clock = Callable[[], float]
"""Seconds that only grow."""

_WINDOW_S = 60.0  # a rate looks back this far
_SAMPLE_S = 0.5  # least time between two samples of a rate


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
