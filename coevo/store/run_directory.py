"""A run name and the configuration it belongs to.

The first use of a name writes the resolved configuration; every later use must bring the same one, because artifacts of two
configurations under one name could not be told apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from coevo.errors import ConfigError
from coevo.identity import canonical_json, content_hash
from coevo.ports import BlobStore, PutResult
from coevo.store.keys import check_key, join

__all__ = ["Difference", "RunDirectory", "config_differences"]

_SHOWN = 12
_ABSENT = "(absent)"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs: dotted name, JSON of the stored and of the given value (`(absent)` where it is missing)."""

    name: str
    stored: str
    given: str


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """An opened run: everything of it lies under `<name>/` in `store`.

    Attributes:
        store: The object store.
        name: Run name, also the key prefix.
        config: The stored configuration, as it was on first use.
        config_hash: Identity of `config`.
        fresh: True when this opening wrote the configuration.
    """

    store: BlobStore
    name: str
    config: Mapping[str, Any]
    config_hash: str
    fresh: bool

    @classmethod
    def open(
        cls,
        store: BlobStore,
        *,
        name: str,
        config: Mapping[str, Any],
        ignore: Collection[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> RunDirectory:
        """Open a run name, writing `<name>/config.json` on first use.

        Args:
            store: The object store.
            name: Run name, one key part or several.
            config: The resolved configuration, JSON-able. It must hold no secrets (I11).
            ignore: Fields that may differ (`config_differences`).
            defaults: What a field stood for that the stored configuration does not know (`config_differences`).

        Raises:
            ConfigError: The name was used with another configuration; nothing is written then.
        """
        given: dict[str, Any] = orjson.loads(canonical_json(dict(config)))
        key = check_key(join(name, "config.json"))
        result = store.put_if_absent(key, orjson.dumps(given, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2))
        stored = given if result is not PutResult.CONFLICT else orjson.loads(store.get(key))
        differences = config_differences(stored, given, ignore=ignore, defaults=defaults)
        if differences:
            raise _used(name, differences)
        return cls(store, name, stored, content_hash(stored), result is PutResult.WRITTEN)

    def key(self, *parts: str) -> str:
        """A key below the run."""
        return check_key(join(self.name, *parts))


def config_differences(
    stored: Mapping[str, Any], given: Mapping[str, Any], *, ignore: Collection[str] = (), defaults: Mapping[str, Any] | None = None
) -> list[Difference]:
    """Fields that differ, by dotted name, sorted; lists are compared whole.

    Args:
        stored: As it was kept.
        given: As it is now.
        ignore: Dotted fields (with all below them) that may differ, such as pool sizes.
        defaults: A configuration of defaults: a field that `stored` does not know and that `given` leaves at its default came with a later
            version, and is no difference.
    """
    left, right, usual = dict(_flat(stored)), dict(_flat(given)), dict(_flat(defaults or {}))

    def same(name: str) -> bool:
        held, now = left.get(name, _ABSENT), right.get(name, _ABSENT)
        return held == now or (held == _ABSENT and now == usual.get(name)) or _covered(name, ignore)

    names = sorted(name for name in left.keys() | right.keys() if not same(name))
    return [Difference(name, left.get(name, _ABSENT), right.get(name, _ABSENT)) for name in names]


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for name, item in value.items():
        path = f"{prefix}{name}"
        if isinstance(item, Mapping) and item:
            out.extend(_flat(item, f"{path}."))
        else:
            out.append((path, canonical_json(item).decode()))
    return out


def _covered(name: str, ignore: Collection[str]) -> bool:
    return any(name == field or name.startswith(f"{field}.") for field in ignore)


def _used(name: str, differences: list[Difference]) -> ConfigError:
    lines = [f"{d.name}: {d.stored} -> {d.given}" for d in differences[:_SHOWN]]
    if len(differences) > _SHOWN:
        lines.append(f"and {len(differences) - _SHOWN} more")
    back = " ".join(f"--set {d.name}={d.stored}" for d in differences[:3] if d.stored != _ABSENT)
    ways = ["take another run name: --set name=OTHER"]
    if back:
        ways.append(f"go back with {back}{' ...' if len(differences) > 3 else ''}")
    ways.append(f"or remove the old run: coevo gc CONFIG --run {name}")
    what = f"the run name {name!r} was used with another configuration"
    return ConfigError(what, seen="stored -> given: " + "; ".join(lines), fix=", ".join(ways))
