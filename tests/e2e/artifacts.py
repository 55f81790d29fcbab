"""The stored objects of a run as comparisons need them: without clocks, and without the place of the store.

Attempts hold nothing but times and are left out; manifests hold the seconds of their stage, and the report repeats its configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from coevo.ports import BlobStore

__all__ = ["artifacts", "differing", "made_without_engines"]

CLOCKS = {"wall_s", "gpu_s", "cpu_s", "training_s", "seconds", "cost_usd", "compute_usd", "usd", "attempts", "resumed_at_step"}
"""Fields that hold times, what follows from them, or at which step a training that lost a worker went on."""

ENGINES_ONLY = ("/publish.json", "/references-", "/report.json")
"""What publishing leaves when something is really served, and the report that tells of it."""

PLACE = "store"
"""Where a run lies; the report repeats its configuration."""


def artifacts(store: BlobStore, run: str) -> dict[str, Any]:
    """The objects of a run to compare, by key."""
    named = (_artifact(info.key, lambda key=info.key: store.get(key)) for info in store.list(f"{run}/"))  # type: ignore[misc]
    return dict(one for one in named if one is not None)


def made_without_engines(found: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a replay leaves too, and leaves the same."""
    return {key: data for key, data in found.items() if not any(mark in key for mark in ENGINES_ONLY)}


def differing(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """Keys that are on one side only, or not equal."""
    return sorted(key for key in left.keys() | right.keys() if key not in left or key not in right or left[key] != right[key])


def _artifact(key: str, read: Callable[[], bytes]) -> tuple[str, Any] | None:
    """Name and content of an object: bytes, or JSON without its clock; None for what holds times or scratch.

    The page is its JSON twin drawn, under the hash of both.
    """
    if "/attempts/" in key or "/scratch/" in key or key.endswith(("config.json", "report.html")):
        return None
    named = f"{key.partition('/')[0]}/report.json" if key.endswith("/report.json") else key
    return named, _timeless(orjson.loads(read())) if named.endswith(("manifest.json", "report.json")) else read()


def _timeless(value: Any) -> Any:
    """JSON without clocks and place, and without the hashes of objects that hold clocks."""
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if key not in {*CLOCKS, PLACE} and not key.endswith("manifest.json")}
        return {key: _timeless(one) for key, one in kept.items()}
    return [_timeless(one) for one in value] if isinstance(value, list) else value
