"""Requests and tokens per minute, kept by waiting: one pace per client of a rate-limited endpoint.

Each limit is a bucket that fills steadily and holds a few seconds' worth, so that a start is not a burst that the endpoint answers with
429. Tokens are charged by estimate before a call and corrected after it. Limits: a pace knows its own process only; where several workers
call one endpoint, each gets its share of the limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

__all__ = ["Pace"]

_BURST_S = 5.0
"""Seconds' worth that a bucket holds."""


class _Bucket:
    def __init__(self, per_minute: float, *, least: float, now: float) -> None:
        self._rate = per_minute / 60.0
        self._room = max(least, self._rate * _BURST_S)
        self._level = self._room
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take `amount`, into debt where need be; seconds until it was really there."""
        self._level = min(self._room, self._level + (now - self._at) * self._rate) - amount
        self._at = now
        return max(0.0, -self._level / self._rate)


class Pace:
    """See the module docstring.

    Args:
        requests_per_minute: None = no limit.
        tokens_per_minute: Prompt and completion tokens together; None = no limit.
        clock: Monotonic seconds.
        sleep: Waits so many seconds.
    """

    def __init__(
        self,
        requests_per_minute: float | None,
        tokens_per_minute: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._requests = _Bucket(requests_per_minute, least=1.0, now=clock()) if requests_per_minute is not None else None
        self._tokens = _Bucket(tokens_per_minute, least=0.0, now=clock()) if tokens_per_minute is not None else None

    async def enter(self, tokens: int) -> None:
        """Wait until a call of about `tokens` tokens may start. Callers are served in the order they came."""
        now = self._clock()
        waits = [self._requests.take(1.0, now) if self._requests else 0.0, self._tokens.take(tokens, now) if self._tokens else 0.0]
        if max(waits) > 0.0:
            await self._sleep(max(waits))

    def correct(self, *, estimated: int, used: int) -> None:
        """Charge the difference between what a call took and its estimate; a call that took less gives the rest back."""
        if self._tokens is not None:
            self._tokens.take(used - estimated, self._clock())
