"""A store that waits out an outage: for the driver and for workers whose result cost hours.

Inside a fan-out nobody waits here: there an outage is an infrastructure error of the item, with its own retries and circuit breaker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

import tenacity

from coevo.errors import StoreOutage
from coevo.ports import BlobInfo, BlobStore, PutResult

__all__ = ["PATIENCE_S", "PatientStore"]

log = logging.getLogger(__name__)

PATIENCE_S = 600.0
"""Seconds of outage that are waited out unless told otherwise: the longest that object stores were reported to fail without notice is
shorter than a lost stage is dear."""

T = TypeVar("T")


class PatientStore:
    """`coevo.ports.BlobStore` over another one: repeats a call that met a `StoreOutage`, with jittered backoff.

    Args:
        inner: The store.
        patience_s: Seconds after which the outage is raised.
        pause_s: Longest pause between two tries.
    """

    def __init__(self, inner: BlobStore, *, patience_s: float = PATIENCE_S, pause_s: float = 15.0) -> None:
        self._inner = inner
        self._patience_s = patience_s
        self._pause_s = pause_s

    @property
    def uri(self) -> str:
        """The inner store's."""
        return self._inner.uri

    def get(self, key: str) -> bytes:
        """See `BlobStore`."""
        return self._patiently(lambda: self._inner.get(key))

    def head(self, key: str) -> BlobInfo | None:
        """See `BlobStore`."""
        return self._patiently(lambda: self._inner.head(key))

    def put_if_absent(self, key: str, data: bytes) -> PutResult:
        """See `BlobStore`; SAME when a try whose answer was lost had written it."""
        return self._patiently(lambda: self._inner.put_if_absent(key, data))

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> str | None:
        """See `BlobStore`; a refusal after an outage counts as success where our own bytes are there."""
        tries = 0

        def put() -> str | None:
            nonlocal tries
            tries += 1
            moved = self._inner.put_if_match(key, data, etag=etag)
            if moved is not None or tries == 1:
                return moved
            info = self._inner.head(key)
            return info.etag if info is not None and self._inner.get(key) == data else None

        return self._patiently(put)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """See `BlobStore`; the listing is taken whole."""
        return iter(self._patiently(lambda: tuple(self._inner.list(prefix))))

    def delete(self, key: str) -> None:
        """See `BlobStore`."""
        self._patiently(lambda: self._inner.delete(key))

    def _patiently(self, call: Callable[[], T]) -> T:
        if self._patience_s <= 0:
            return call()
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(StoreOutage),
            stop=tenacity.stop_before_delay(self._patience_s),
            wait=tenacity.wait_random_exponential(0.5, max=self._pause_s),
            before_sleep=_tell,
            reraise=True,
        )
        return again(call)


def _tell(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    log.warning("the store is out, waiting (try %d): %s", state.attempt_number, str(error)[:300])
