"""One record, one conditional put per item: how stages commit what they make of an item.

An item whose record is there is not made again. Where two workers make the same item, the first put stands and both go on with it. A record
that the store could not take is kept in memory for the item's next try: an outage of the store is not paid for in tokens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

from coevo.errors import StoreOutage
from coevo.ports import BlobStore, PutResult, Skipped
from coevo.records import Record
from coevo.store.threads import beside

__all__ = ["Settled", "Singles"]

R = TypeVar("R", bound=Record)


class Settled(NamedTuple, Generic[R]):
    """The record that stands, and the tokens that it took just now; None when it was there before."""

    record: R
    tokens: int | None

    def note(self, note: dict[str, Any], *, counted: bool = True) -> Any:
        """What a worker returns: `note` with the tokens where they are `counted`, or `Skipped`."""
        if self.tokens is None:
            return Skipped(note)
        return note | {"tokens": self.tokens} if counted else note


class Singles(Generic[R]):
    """The records of one kind of one stage. See the module docstring."""

    def __init__(self, store: BlobStore, *, kind: type[R], key: Callable[[str], str]) -> None:
        """Args: the store, what is stored, and an item's key."""
        self._store, self._kind, self._key = store, kind, key
        self._unstored: dict[str, tuple[R, int]] = {}

    def read(self, item: str) -> R:
        """A committed record. Raises `StoreError` when there is none."""
        return self._kind.from_bytes(self._store.get(self._key(item)))

    async def settle(self, item: str, make: Callable[[], Awaitable[tuple[R, int]]]) -> Settled[R]:
        """The record of an item, made and committed when it isn't there; `make` gives it and the tokens that it took.

        Raises:
            StoreOutage: The store could not take it; it is kept for the next try.
        """
        store, key = self._store, self._key(item)
        if await beside(store, store.head, key) is not None:
            self._unstored.pop(item, None)
            return Settled(await beside(store, self.read, item), None)
        kept = self._unstored.pop(item, None)
        record, tokens = kept or await make()
        try:
            put = await beside(store, store.put_if_absent, key, record.to_bytes())
        except StoreOutage:
            self._unstored[item] = record, tokens
            raise
        if put is PutResult.CONFLICT:
            record = await beside(store, self.read, item)
        return Settled(record, tokens)
