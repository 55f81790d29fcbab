"""Limits of a fan-out: the policy, what an item has spent, the circuit breaker and the closing time of a stage.

The clocks are injectable; nothing here starts work by itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from coevo.errors import ConfigError, InfraError

__all__ = ["Breaker", "Closing", "FanoutPolicy", "Tries"]

log = logging.getLogger(__name__)

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutPolicy:
    """How hard a stage tries. Frozen and picklable: it crosses process borders.

    Attributes:
        concurrency: Items in flight per worker process.
        tries: Attempts charged to an item before it is owed. One more, alone in a process, when it lost the last of them with others.
        base_s: First backoff in seconds; doubles per charged attempt, jittered to 50-100 %.
        cap_s: Longest backoff in seconds.
        item_deadline_s: Total seconds of one item over all its attempts and backoffs (R5), not counting the time it waits for an open
            breaker; None for no limit.
        stage_deadline_s: Seconds after which the stage closes and what is left is owed; None for no limit.
        breaker_errors: Distinct items that must fail by infrastructure, with no success between, to open the breaker; 0 turns it off.
        breaker_pause_s: Seconds between probes while the breaker is open; nothing else is dispatched and no try is charged (R4).
        breaker_patience_s: Seconds of unbroken outage after which what waits is owed.
        quorum: Share of ended items from which the rest gets only `grace_s` more; 1.0 waits for all.
        grace_s: Seconds for the stragglers after the quorum.
        abandon_s: Seconds that a cancelled attempt gets to clean up before it is abandoned.
    """

    concurrency: int = 32
    tries: int = 5
    base_s: float = 0.5
    cap_s: float = 30.0
    item_deadline_s: float | None = 1800.0
    stage_deadline_s: float | None = None
    breaker_errors: int = 5
    breaker_pause_s: float = 5.0
    breaker_patience_s: float = 3600.0
    quorum: float = 1.0
    grace_s: float = 30.0
    abandon_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("concurrency", "tries"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "a whole number of at least 1")
        for name in ("base_s", "cap_s", "breaker_errors", "breaker_pause_s", "breaker_patience_s", "grace_s", "abandon_s"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "a number of at least 0")
        for name in ("item_deadline_s", "stage_deadline_s"):
            value = getattr(self, name)
            _require(value is None or value > 0, name, value, "a number above 0, or none for no limit")
        _require(0 < self.quorum <= 1, "quorum", self.quorum, "a share above 0 and at most 1")

    def backoff_s(self, charged: int, rng: random.Random) -> float:
        """Seconds to wait after the `charged`-th charged attempt (0 after an attempt that was not charged)."""
        if charged < 1:
            return 0.0
        return min(self.cap_s, self.base_s * 2.0 ** min(charged - 1, 30)) * rng.uniform(0.5, 1.0)


def _require(holds: bool, name: str, value: object, legal: str) -> None:
    if not holds:
        raise ConfigError(f"fan-out policy: {name} is out of range", seen=value, fix=f"{name} must be {legal}")


class Tries(NamedTuple):
    """What was spent on an item so far. It travels with an item that moves to another process.

    `made` counts attempts started (the number given to `StageWorker.run`), `charged` those that count against `FanoutPolicy.tries`,
    `spent_s` the seconds used of its deadline.
    """

    made: int = 0
    charged: int = 0
    spent_s: float = 0.0


class Breaker:
    """Circuit breaker of one worker process (R4).

    Closed: all pass. It opens after `breaker_errors` distinct items failed by infrastructure with no success between them. Open: one
    probe per `breaker_pause_s`, each with another waiting item; the first success closes it. Only the failures that opened it are
    charged to their items.
    """

    def __init__(self, policy: FanoutPolicy, *, clock: Clock = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._failing: set[str] = set()
        self._opened_at: float | None = None
        self._probe_at = 0.0
        self._probing = False
        self._turnstile = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """True while dispatch is paused."""
        return self._opened_at is not None

    async def admit(self) -> bool:
        """Wait for leave to start an attempt; True when that attempt is the probe.

        Raises:
            InfraError: The outage lasted longer than the policy's patience.
        """
        if not self.is_open:
            return False
        async with self._turnstile:
            while (opened_at := self._opened_at) is not None:
                now = self._clock()
                patience_end = opened_at + self._policy.breaker_patience_s
                if now >= patience_end:
                    raise InfraError("the backend is down", seen=f"{now - opened_at:.0f} s without one success", fix="run again")
                if not self._probing and now >= self._probe_at:
                    self._probing = True
                    return True
                await self._wait(patience_end - now if self._probing else min(patience_end, self._probe_at) - now)
        return False

    async def _wait(self, limit_s: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(limit_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def succeeded(self) -> None:
        """An attempt reached the backend: close."""
        if self._opened_at is not None:
            log.warning("breaker closed: the backend answers again")
        self._opened_at = None
        self._failing.clear()
        self._changed.set()

    def failed(self, item: str) -> bool:
        """An attempt at `item` failed by infrastructure; returns whether it is charged to the item."""
        if self._opened_at is not None:
            return False
        self._failing.add(item)
        if 0 < self._policy.breaker_errors <= len(self._failing):
            self._opened_at = self._clock()
            self._probe_at = self._opened_at + self._policy.breaker_pause_s
            log.warning("breaker open after %d infrastructure errors in a row", len(self._failing))
        return True

    def probe_ended(self, *, informative: bool) -> None:
        """The probe is over; after one that says nothing about the backend (`informative` False) the next may start at once."""
        self._probing = False
        self._probe_at = self._clock() + (self._policy.breaker_pause_s if informative else 0.0)
        self._changed.set()


class Closing:
    """When a stage stops waiting: its deadline, or `grace_s` after the quorum (R5)."""

    def __init__(self, policy: FanoutPolicy, total: int, *, clock: Clock = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._need = math.ceil(policy.quorum * total) if policy.quorum < 1 else total + 1
        self._ended = 0
        self._at = math.inf if policy.stage_deadline_s is None else clock() + policy.stage_deadline_s
        self.reason = f"stage deadline of {policy.stage_deadline_s} s"
        """Why the stage closes, for the error text of what is owed."""

    def ended(self) -> bool:
        """Count one ended item; True when this one moved the closing time (the quorum is full)."""
        self._ended += 1
        grace_ends = self._clock() + self._policy.grace_s
        if self._ended != self._need or grace_ends >= self._at:
            return False
        self._at = grace_ends
        self.reason = f"quorum of {self._policy.quorum:.0%} reached and {self._policy.grace_s} s of grace over"
        return True

    def left_s(self) -> float | None:
        """Seconds until the stage closes (not below 0); None for never."""
        return None if math.isinf(self._at) else max(0.0, self._at - self._clock())
