"""Store calls beside an event loop, and many at once.

A call to a remote store takes milliseconds, in an outage seconds: made in the loop of a worker it would hold every episode of the process
and its heartbeat. A local folder answers in microseconds and is called in place: a thread would cost more than the call.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from coevo.ports import BlobStore

__all__ = ["beside", "fetch_all", "is_remote"]

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 64
"""Calls under way at once in one process; as many as an S3 source has connections."""


def is_remote(store: BlobStore) -> bool:
    """False for a folder of this machine."""
    return not store.uri.startswith("file:")


@functools.lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="coevo-store")


async def beside(store: BlobStore, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """`call(...)`, which talks to `store`: in a thread when the store is remote, else in place. Raises what it raises.

    A cancelled caller does not stop a call that has begun: it must be harmless when it ends later, as a conditional put is.
    """
    if not is_remote(store):
        return call(*arguments, **named)
    bound: Any = functools.partial(call, *arguments, **named)
    result: T = await asyncio.get_running_loop().run_in_executor(_threads(), bound)
    return result


def fetch_all(store: BlobStore, keys: Sequence[str]) -> list[bytes]:
    """The objects' bytes in the order of the keys; of a remote store many at once. Raises `StoreError` for the first that fails."""
    if not is_remote(store) or len(keys) < 2:
        return [store.get(key) for key in keys]
    return list(_threads().map(store.get, keys))
