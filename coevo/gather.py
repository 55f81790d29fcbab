"""Work that belongs together, to the end of all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["gather_all"]

T = TypeVar("T")


async def gather_all(*work: Coroutine[Any, Any, T]) -> list[T]:
    """The results in order, once every coroutine has ended; then the first failure in their order, if any.

    `asyncio.gather` raises at the first failure and leaves the others running behind the caller's back: where the caller tries again, a
    request in flight is asked, and paid, twice, and where its loop ends, a paid answer is lost before it is recorded. Cancelling this
    cancels all of them.
    """
    ended = await asyncio.gather(*work, return_exceptions=True)
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    return [one for one in ended if not isinstance(one, BaseException)]
