"""Content identity: canonical JSON and SHA-256, so that equal inputs get equal ids on every machine."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

__all__ = ["canonical_json", "content_hash", "derive_seed", "short"]


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces; dataclasses and pydantic dumps allowed."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def content_hash(value: Any) -> str:
    """64 hex digits of SHA-256 over bytes as they are, or over the canonical JSON of anything else."""
    data = value if isinstance(value, bytes) else canonical_json(value)
    return hashlib.sha256(data).hexdigest()


def derive_seed(*parts: Any) -> int:
    """A 63-bit seed from named parts: streams with different names never share one, whatever their numbers."""
    return int(content_hash(list(parts))[:16], 16) >> 1


def short(digest: str) -> str:
    """The first 12 hex digits: for display only, never as a key."""
    return digest[:12]
