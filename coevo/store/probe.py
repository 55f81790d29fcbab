"""Whether a store keeps the promises that commits rest on, tried out with throwaway keys.

Some S3 servers accept `If-None-Match` and `If-Match` and ignore them: two drivers then overwrite one another's results without a word. So
the probe looks at what is stored afterwards, also after a race.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from coevo.errors import StoreError
from coevo.ports import BlobStore, PutResult

__all__ = ["PROBE_PREFIX", "probe_store"]

PROBE_PREFIX = "doctor"
"""First part of the throwaway keys; `coevo gc` removes what a killed probe leaves."""

T = TypeVar("T")


def probe_store(store: BlobStore, *, racers: int = 8, pad_bytes: int = 0) -> tuple[str, ...]:
    """Try create, repeat, refusal, race, pointer, listing and deletion.

    Args:
        store: The store.
        racers: Concurrent writers in each race.
        pad_bytes: Added to each value: above an S3 source's `multipart_bytes` the probe goes through conditional multipart uploads.

    Returns:
        What the store did wrong, one line each; empty when all is well.

    Raises:
        StoreError: It can't be used at all.
    """
    prefix = f"{PROBE_PREFIX}/{uuid.uuid4().hex}"
    keys = [f"{prefix}/{name}" for name in ("once", "race", "pointer")]
    pad = b"\0" * pad_bytes
    try:
        faults = [*_once(store, keys[0], pad), *_race(store, keys[1], pad, racers), *_pointer(store, keys[2], pad, racers)]
        listed = [info.key for info in store.list(f"{prefix}/")]
        if listed != sorted(keys):
            faults.append(f"of {len(keys)} objects just written the listing shows {len(listed)}")
    finally:
        for key in keys:
            with suppress(StoreError):
                store.delete(key)
    left = [key for key in keys if store.head(key) is not None]
    return (*faults, *(f"{key} is still there after its deletion" for key in left))


def _once(store: BlobStore, key: str, pad: bytes) -> Iterator[str]:
    results = tuple(store.put_if_absent(key, data + pad) for data in (b"a", b"a", b"b"))
    if results != (PutResult.WRITTEN, PutResult.SAME, PutResult.CONFLICT):
        yield f"If-None-Match is not honoured: puts of a, a, b to one key gave {', '.join(results)}"
    if store.get(key) != b"a" + pad:
        yield "the second writer's bytes replaced the first's"


def _race(store: BlobStore, key: str, pad: bytes, racers: int) -> Iterator[str]:
    results = _together(racers, lambda number: store.put_if_absent(key, b"%d" % number + pad))
    winners = [number for number, result in enumerate(results) if result is PutResult.WRITTEN]
    if len(winners) != 1:
        yield f"{len(winners)} of {racers} racing writers were told that they created the object"
    elif store.get(key) != b"%d" % winners[0] + pad:
        yield "the object holds other bytes than its creator's"


def _pointer(store: BlobStore, key: str, pad: bytes, racers: int) -> Iterator[str]:
    first = store.put_if_match(key, b"first" + pad, etag=None)
    if first is None:
        yield "a pointer could not be created"
        return
    if store.put_if_match(key, b"again" + pad, etag=None) is not None:
        yield "If-None-Match is not honoured: a pointer was created twice"
        return
    moved = _together(racers, lambda number: store.put_if_match(key, b"%d" % number + pad, etag=first))
    winners = [number for number, result in enumerate(moved) if result is not None]
    if len(winners) != 1:
        yield f"If-Match is not honoured: {len(winners)} of {racers} writers moved one version of a pointer"
    elif store.get(key) != b"%d" % winners[0] + pad:
        yield "the pointer holds other bytes than those of the writer that moved it"


def _together(count: int, call: Callable[[int], T]) -> list[T]:
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(call, range(count)))
