"""URIs of stores: `s3://bucket/prefix?endpoint=...&region=...`, and where an object of a store lies, for people.

A URI ends up in configs, logs and stored records, so it must hold no keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from coevo.errors import ConfigError, StoreError, nearest
from coevo.store.keys import check_key, join

__all__ = ["BucketUri", "object_uri"]

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")  # Amazon's naming rules of general-purpose buckets
_FORM = "write s3://BUCKET/PREFIX?endpoint=http://HOST:PORT&region=REGION"


@dataclass(frozen=True, slots=True)
class BucketUri:
    """A parsed bucket URI: bucket, prefix without outer slashes, typed settings."""

    bucket: str
    prefix: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, uri: str, *, settings: Mapping[str, type]) -> Self:
        """Read a URI; `settings` maps the legal query names to their types (str, int, float).

        Raises:
            ConfigError: Keys in the URI (they are not shown), an illegal bucket or prefix, an unknown, repeated or unreadable setting.
        """
        parts = urlsplit(uri)
        if "@" in parts.netloc:
            raise ConfigError("a store's URI must hold no keys", seen=f"{parts.scheme}://...@...", fix="put them into the environment")
        if not _BUCKET.fullmatch(parts.netloc):
            raise ConfigError("not a legal bucket name", seen=parts.netloc or uri, fix=_FORM)
        prefix = unquote(parts.path).strip("/")
        try:
            check_key(prefix or "x")
        except StoreError as error:
            raise ConfigError("not a legal prefix", seen=prefix, fix=error.fix) from error
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        if len(dict(pairs)) < len(pairs):
            raise ConfigError("a setting occurs twice in the store's URI", seen=parts.query, fix=_FORM)
        given = {name: _typed(name, value, settings) for name, value in pairs}
        return cls(parts.netloc, prefix, given)

    def __str__(self) -> str:
        path = f"/{quote(self.prefix)}" if self.prefix else ""
        query = urlencode(sorted(self.settings.items()), safe=":/")
        return f"s3://{self.bucket}{path}" + (f"?{query}" if query else "")


def _typed(name: str, value: str, settings: Mapping[str, type]) -> Any:
    if name not in settings:
        raise ConfigError("unknown setting in the store's URI", seen=name, fix=nearest(name, settings))
    try:
        typed = settings[name](value)
    except ValueError as error:
        raise ConfigError("unreadable setting in the store's URI", seen=f"{name}={value}", fix="give a number") from error
    if name == "endpoint":
        _check_endpoint(value)
    elif typed == "" or (not isinstance(typed, str) and typed <= 0):
        raise ConfigError(
            "a setting of the store's URI is out of range", seen=f"{name}={value}", fix="give a value above 0, or leave it out"
        )
    return typed


def _check_endpoint(value: str) -> None:
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc or parts.path not in {"", "/"}:
        raise ConfigError(
            "not a legal endpoint", seen=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", fix="write http://HOST:PORT or https://HOST"
        )


def object_uri(store_uri: str, key: str = "") -> str:
    """Where an object lies: a path for a local store, else its URI without settings."""
    if store_uri.startswith("file://"):
        return str(Path(unquote(urlsplit(store_uri).path)) / key)
    return f"{store_uri.partition('?')[0]}/{join(key)}".rstrip("/")
