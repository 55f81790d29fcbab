"""The stock of code that packages are built from, read once from the folder `blueprints`.

A *piece* is one function (or constant) with its docs line, tests and probes, written with slots: `$name` stands for whatever another piece
is called in an instance, so that renaming, moving and re-signing need no text editing: a package before and after a job is the same set
of pieces, rendered twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coevo.yamltext import read_yaml

__all__ = ["Blueprint", "Copies", "Numbers", "Piece", "Planted", "Role", "Sin", "library", "planted", "slots"]

_FOLDER = Path(__file__).with_name("blueprints")
_SLOT = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_LAYERS = ("base", "goods", "top")


class Role:
    """What a function does, in the words of the naming guide: key -> sentence."""

    ALL: Mapping[str, str] = MappingProxyType(
        {
            "calc": "works out a number",
            "check": "answers yes or no",
            "read": "turns text into values",
            "show": "turns values into text for people",
            "find": "looks something up in what it is given",
            "build": "puts together a new collection or text for machines",
        }
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """One definition.

    Attributes:
        slot: Its name in templates, unique over the whole stock.
        code: Source with slots.
        role: Key of `Role.ALL`; empty for constants and modules' own matters.
        text: One sentence for the docs.
        tests: Expressions that hold, each one assert.
        probes: Expressions with `<...>` where hidden inputs go.
        param: Kind of its main parameter when that has a word of the house (`quantity`, `text`, `amount`), else empty.
        flag: Name of its boolean option, else empty.
    """

    slot: str
    code: str
    role: str = ""
    text: str = ""
    tests: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()
    param: str = ""
    flag: str = ""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """One module: possible names, what it is about, its pieces in order."""

    key: str
    names: tuple[str, ...]
    title: str
    pieces: tuple[Piece, ...]
    layer: int


@dataclass(frozen=True, slots=True)
class Copies:
    """Copied steps: three hosts that carry them, the helper that replaces them, and a look-alike that must stay.

    Attributes:
        sign: Method whose call shows that a host still has its own copy.
    """

    what: str
    sign: str
    helper: Piece
    hosts: tuple[tuple[Piece, Piece], ...]
    decoy: Piece


@dataclass(frozen=True, slots=True)
class Numbers:
    """A bare number in three hosts, the constant that replaces it, and the same number with another meaning."""

    what: str
    constant: str
    value: int
    hosts: tuple[tuple[Piece, Piece], ...]
    decoy: Piece


@dataclass(frozen=True, slots=True)
class Sin:
    """A function against the style rule `rule`, and the same function as it should be."""

    rule: str
    before: Piece
    after: Piece


@dataclass(frozen=True, slots=True)
class Planted:
    """What jobs add to a package."""

    copies: tuple[Copies, ...]
    leftovers: tuple[Piece, ...]
    numbers: tuple[Numbers, ...]
    sins: tuple[Sin, ...]


@lru_cache(maxsize=8192)
def slots(template: str) -> tuple[str, ...]:
    """Slots of a template in order of first use."""
    return tuple(dict.fromkeys(_SLOT.findall(template)))


@lru_cache(maxsize=1)
def library() -> tuple[Blueprint, ...]:
    """All modules of the stock, those that use no others first."""
    found = []
    for layer, name in enumerate(_LAYERS):
        for entry in _load(name):
            pieces = tuple(_piece(one) for one in entry["pieces"])
            found.append(Blueprint(entry["module"], tuple(entry["names"]), entry["title"], pieces, layer))
    return tuple(found)


@lru_cache(maxsize=1)
def planted() -> Planted:
    """See `Planted`."""
    entry = _load("planted")
    copies = (
        Copies(one["what"], one["sign"], _piece(one["helper"]), _hosts(one["hosts"]), _piece(one["decoy"])) for one in entry["copies"]
    )
    numbers = (Numbers(one["what"], one["constant"], one["value"], _hosts(one["hosts"]), _piece(one["decoy"])) for one in entry["numbers"])
    sins = (Sin(one["rule"], *_pair(one)) for one in entry["sins"])
    return Planted(tuple(copies), tuple(_piece(one) for one in entry["leftovers"]), tuple(numbers), tuple(sins))


def _load(name: str) -> Any:
    return read_yaml((_FOLDER / f"{name}.yaml").read_text())


def _piece(entry: Mapping[str, Any], *, code: str = "code") -> Piece:
    return Piece(
        slot=entry["slot"],
        code=entry[code],
        role=entry.get("role", ""),
        text=entry.get("text", ""),
        tests=tuple(entry.get("tests", ())),
        probes=tuple(entry.get("probes", ())),
        param=entry.get("param", ""),
        flag=entry.get("flag", ""),
    )


def _pair(entry: Mapping[str, Any]) -> tuple[Piece, Piece]:
    return _piece(entry, code="before"), _piece(entry, code="after")


def _hosts(entries: Iterable[Mapping[str, Any]]) -> tuple[tuple[Piece, Piece], ...]:
    return tuple(_pair(entry) for entry in entries)
