"""Every harness that a run played, by hash: what an episode's `harness_hash` stands for, readable without the search that made it."""

from __future__ import annotations

from collections.abc import Iterator

from coevo.harness.bundle import HarnessBundle
from coevo.ports import BlobStore
from coevo.records import Record

__all__ = ["HarnessRecord", "HarnessStore"]


class HarnessRecord(Record):
    """A harness as stored: its canonical files by relative path."""

    files: dict[str, str]


class HarnessStore:
    """Harnesses below `<run>/harnesses/`. The first writer of a hash names its parent; equal behaviour is one harness.

    Args:
        store: Where they lie.
        run: Run name.
    """

    def __init__(self, store: BlobStore, run: str) -> None:
        self._store, self._prefix = store, f"{run}/harnesses"
        self._known: set[str] = set()

    def put(self, bundle: HarnessBundle) -> None:
        """Keep a harness; nothing happens when it is there."""
        if bundle.hash not in self._known:
            self._store.put_if_absent(f"{self._prefix}/{bundle.hash}.json", HarnessRecord(files=bundle.files()).to_bytes())
            self._known.add(bundle.hash)

    def __iter__(self) -> Iterator[HarnessBundle]:
        """All harnesses, by hash."""
        for info in self._store.list(f"{self._prefix}/"):
            yield HarnessBundle.from_files(HarnessRecord.from_bytes(self._store.get(info.key)).files)
