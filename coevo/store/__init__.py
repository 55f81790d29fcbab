"""Everything durable goes through here: blobs, artifacts with manifests, episodes, the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coevo.errors import ConfigError, nearest
from coevo.ports import StoreSource
from coevo.store.local import LocalSource, LocalStore

__all__ = ["LOCAL_OPENERS", "LocalSource", "LocalStore", "Opener", "open_store"]

Opener = Callable[[str], StoreSource]
"""From a URI to the picklable source of its store."""

LOCAL_OPENERS: Mapping[str, Opener] = {"file": LocalSource.parse}
"""The schemes that need nothing but this package. `cluster` passes a larger table with `s3`."""


def open_store(uri: str, *, openers: Mapping[str, Opener] = LOCAL_OPENERS) -> StoreSource:
    """The source of the store that `uri` names; `.open()` gives the store. A plain path means `file`.

    Args:
        uri: `file:///folder`, a plain path, or a URI of another scheme in `openers`.
        openers: Scheme -> opener.

    Raises:
        ConfigError: Empty or of an unknown scheme.
    """
    if not uri:
        raise ConfigError("no store is named", seen=repr(uri), fix="name a folder, or a URI such as file:///folder")
    scheme = uri.partition("://")[0] if "://" in uri else "file"
    if scheme not in openers:
        raise ConfigError("no store is known for this scheme", seen=uri, fix=nearest(scheme, openers))
    return openers[scheme](uri)
