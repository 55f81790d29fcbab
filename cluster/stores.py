"""Every store that a config can name, by the scheme of its URI."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cluster.s3 import S3Source
from coevo.ports import StoreSource
from coevo.store import LOCAL_OPENERS, Opener, open_store

__all__ = ["OPENERS", "open_source"]

OPENERS: Mapping[str, Opener] = {**LOCAL_OPENERS, "s3": S3Source.parse}
"""Scheme -> from URI to source."""


def open_source(uri: str) -> StoreSource:
    """The source of a store; a plain path is taken from the current folder. Raises `ConfigError` for an unknown scheme or a bad URI."""
    return open_store(uri if "://" in uri or not uri else str(Path(uri).resolve()), openers=OPENERS)
