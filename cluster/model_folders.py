"""Model folders that every node reaches: a path of a shared file system, or a prefix in the store that each node downloads once.

A place is written `STORE-URI#KEY`. What lies under it is immutable, so a downloaded copy is good for ever; it lives in a folder of the user
on that node (`COEVO_MODEL_CACHE`, else in the system's temporary folder) and appears whole or not at all.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from cluster.adapters import fetch_folder
from cluster.stores import open_source
from coevo.identity import content_hash
from coevo.ports import StoreSource

__all__ = ["in_store", "local_model"]


def in_store(store: StoreSource, key: str) -> str:
    """The place of a folder in the store."""
    return f"{store.uri}#{key}"


def local_model(place: str) -> str:
    """A folder on this node for a place; a path is its own folder.

    Raises:
        StoreError: Nothing lies there.
    """
    uri, hash_mark, key = place.partition("#")
    if not hash_mark or "://" not in uri:
        return place
    folder = cache_root() / content_hash(place.encode())[:32]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fetch_folder(open_source(uri).open(), key, folder)
    return str(folder)


def cache_root() -> Path:
    """Where this user's downloads lie on this node."""
    named = os.environ.get("COEVO_MODEL_CACHE")
    return Path(named) if named else Path(tempfile.gettempdir()) / f"coevo-models-{os.getuid()}"
