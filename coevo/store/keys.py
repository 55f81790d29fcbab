"""Keys of stored objects: `/`-separated relative names that mean the same on a disk and in a bucket."""

from __future__ import annotations

from coevo.errors import StoreError

__all__ = ["INTERNAL_PART", "check_key", "check_prefix", "join"]

INTERNAL_PART = ".coevo-store"
"""First part that a local store keeps for its own temporary and lock files."""

_MAX_KEY_BYTES = 1024  # the limit of S3
_MAX_PART_BYTES = 255  # the limit of common file systems
_FIX = "use a relative name such as 'run/stage/part-0.parquet': parts divided by '/', none empty, '.' or '..', no backslash"


def check_key(key: str) -> str:
    """Return `key` if every store can hold it.

    Raises:
        StoreError: It is empty, absolute, climbs with `..`, has an empty part, control characters or too many bytes.
    """
    problem = _problem(key)
    if problem:
        raise StoreError(f"not a legal key: {problem}", seen=repr(key), fix=_FIX)
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it can start a legal key. It is a string prefix, as in S3: `a/b` also lists `a/bc`. Empty lists everything.

    Raises:
        StoreError: No legal key starts like this.
    """
    if prefix:
        check_key(prefix.removesuffix("/") if len(prefix) > 1 else prefix)
    return prefix


def join(*parts: str) -> str:
    """Parts joined by `/`, empty ones left out: `join("", "a", "b")` is `a/b`."""
    return "/".join(part.strip("/") for part in parts if part.strip("/"))


def _problem(key: str) -> str:
    if not key:
        return "it is empty"
    if key.startswith("/"):
        return "it is absolute"
    if "\\" in key or any(ord(character) < 32 or ord(character) == 127 for character in key):
        return "it holds a backslash or a control character"
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > _MAX_KEY_BYTES:
        return f"it is longer than {_MAX_KEY_BYTES} bytes"
    return _part_problem(key.split("/"))


def _part_problem(parts: list[str]) -> str:
    if parts[0] == INTERNAL_PART:
        return f"{INTERNAL_PART} belongs to the store itself"
    for part in parts:
        if not part:
            return "it has an empty part"
        if part in {".", ".."}:
            return f"it has the part {part!r}"
        if len(part.encode()) > _MAX_PART_BYTES:
            return f"a part is longer than {_MAX_PART_BYTES} bytes"
    return ""
