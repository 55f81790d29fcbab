"""`coevo.gather`.

Promises:
 1. Results come in the order of the work, whatever ends first.
 2. A failure is raised only once everything has ended; of several failures, the first in order.
 3. Cancelling the caller cancels everything.
"""

from __future__ import annotations

import asyncio

import pytest

from coevo.errors import InfraError
from coevo.gather import gather_all


async def work(name: str, ended: list[str], *, steps: int, fails: bool = False) -> str:
    try:
        for _ in range(steps):
            await asyncio.sleep(0)
        if fails:
            raise InfraError(name, seen="no answer", fix="ask again")
    finally:
        ended.append(name)
    return name


def test_results_keep_their_order() -> None:
    """Promise 1."""
    ended: list[str] = []

    async def both() -> list[str]:
        return await gather_all(work("slow", ended, steps=9), work("fast", ended, steps=1))

    assert asyncio.run(both()) == ["slow", "fast"]
    assert ended == ["fast", "slow"]


def test_a_failure_waits_for_the_others() -> None:
    """Promise 2."""
    ended: list[str] = []

    async def four() -> list[str]:
        return await gather_all(
            work("late", ended, steps=9),
            work("second", ended, steps=5, fails=True),
            work("first", ended, steps=1, fails=True),
            work("last", ended, steps=20),
        )

    with pytest.raises(InfraError, match="second"):
        asyncio.run(four())
    assert ended == ["first", "second", "late", "last"]


def test_cancelling_cancels_all() -> None:
    """Promise 3."""
    ended: list[str] = []

    async def cancelled() -> None:
        task = asyncio.create_task(gather_all(*(work(name, ended, steps=10**9) for name in "ab")))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert sorted(ended) == ["a", "b"]
