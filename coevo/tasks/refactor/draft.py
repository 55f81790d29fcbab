"""A package as pieces in places, and its files: modules with the imports they need, tests, README and the list of the API."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from string import Template
from typing import NamedTuple

from coevo.tasks.refactor.blueprint import Piece, slots

__all__ = ["CHANGELOG", "Draft", "Home", "acyclic", "files_of", "fill", "signature"]

CHANGELOG = "CHANGELOG.md"
_DEF = re.compile(r"def \$\{?\w+\}?\((.*)\):")
_WIDTH = 100
"""Longest import line that stays on one line, in characters."""

_STANDARD = ("math", "re")


class Home(NamedTuple):
    """Where a piece is defined, and in which test file its test stands (module keys)."""

    module: str
    tests: str


@dataclass
class Draft:
    """A package before its files are written. `copy` gives an independent one, so that a job can change the state before or after it.

    Attributes:
        package: Import name.
        version: `major.minor.patch`.
        nouns: Slots of nouns.
        modules: Module key -> (name, title), in layout order.
        pieces: Slot -> piece, in order of definition.
        homes: Slot -> place.
        names: Slot -> identifier.
        params: Slot -> word of its main parameter.
        positional: Slots whose flag may be given by position.
        public: Slots that the package exports.
        listed: Module keys that carry a sorted `__all__`.
        internal: Module keys that the list of the API leaves out.
        test_names: Module key -> name of its test file, where that is not the module's name.
    """

    package: str
    version: str
    nouns: dict[str, str]
    modules: dict[str, tuple[str, str]] = field(default_factory=dict)
    pieces: dict[str, Piece] = field(default_factory=dict)
    homes: dict[str, Home] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    positional: set[str] = field(default_factory=set)
    public: list[str] = field(default_factory=list)
    listed: set[str] = field(default_factory=set)
    internal: set[str] = field(default_factory=set)
    test_names: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Draft:
        """An independent draft of the same pieces."""
        return Draft(
            self.package,
            self.version,
            dict(self.nouns),
            dict(self.modules),
            dict(self.pieces),
            dict(self.homes),
            dict(self.names),
            dict(self.params),
            set(self.positional),
            list(self.public),
            set(self.listed),
            set(self.internal),
            dict(self.test_names),
        )

    def add(self, piece: Piece, module: str, *, name: str, after: str = "") -> None:
        """Put a piece at the end of a module, or right behind the piece `after`."""
        self.names[piece.slot] = name
        self.homes[piece.slot] = Home(module, module)
        if not after:
            self.pieces[piece.slot] = piece
            return
        order: dict[str, Piece] = {}
        for slot, one in self.pieces.items():
            order[slot] = one
            if slot == after:
                order[piece.slot] = piece
        self.pieces = order

    def drop(self, slot: str) -> None:
        """Take a piece out."""
        for table in (self.pieces, self.homes, self.names):
            table.pop(slot)
        self.public = [one for one in self.public if one != slot]

    def path(self, module: str) -> str:
        """`shop/pricing.py` of a module key."""
        return f"{self.package}/{self.modules[module][0]}.py"

    def dotted(self, module: str) -> str:
        """`shop.pricing` of a module key."""
        return f"{self.package}.{self.modules[module][0]}"

    def where(self, slot: str) -> str:
        """Path of the file that defines a piece."""
        return self.path(self.homes[slot].module)

    def users(self, slot: str) -> list[str]:
        """Slots whose code uses this one."""
        return [one.slot for one in self.pieces.values() if one.slot != slot and slot in slots(one.code)]


def fill(template: str, draft: Draft) -> str:
    """A template with all its slots filled."""
    values: dict[str, str] = {}
    for slot in slots(template):
        head, _, rest = slot.partition("_")
        if slot in draft.names:
            values[slot] = draft.names[slot]
        elif head == "p" and rest in draft.params:
            values[slot] = draft.params[rest]
        elif head == "star" and rest in draft.pieces:
            values[slot] = "" if rest in draft.positional else "*, "
        elif head == "kw" and rest in draft.pieces:
            values[slot] = "" if rest in draft.positional else f"{draft.pieces[rest].flag}="
        else:
            values[slot] = draft.nouns[slot]
    return Template(template).substitute(values)


def signature(slot: str, draft: Draft) -> str:
    """`name(first, second=2)`."""
    found = _DEF.search(draft.pieces[slot].code)
    return f"{draft.names[slot]}({fill(found.group(1), draft) if found else ''})"


def files_of(draft: Draft) -> dict[str, str]:
    """Code, tests, README and docs/api.md; path -> text."""
    files = {f"{draft.package}/__init__.py": _top(draft)}
    for module in draft.modules:
        files[draft.path(module)] = _module(module, draft)
    for module in draft.modules:
        tests = _tests(module, draft)
        if tests:
            files[f"tests/test_{draft.test_names.get(module, draft.modules[module][0])}.py"] = tests
    files["README.md"] = _readme(draft)
    files["docs/api.md"] = _api(draft)
    return files


def acyclic(draft: Draft) -> bool:
    """Whether the modules import one another without a circle."""
    edges: dict[str, set[str]] = {module: set() for module in draft.modules}
    for slot, piece in draft.pieces.items():
        edges[draft.homes[slot].module] |= {draft.homes[one].module for one in slots(piece.code) if one in draft.homes}
    done: set[str] = set()
    waiting = {module: uses - {module} for module, uses in edges.items()}
    while ready := [module for module, uses in waiting.items() if uses <= done]:
        done.update(ready)
        waiting = {module: uses for module, uses in waiting.items() if module not in done}
    return not waiting


def _imports(templates: Iterable[str], draft: Draft, *, inside: str = "") -> list[str]:
    """Import lines for what the templates use, standard modules first; nothing from the module key `inside`."""
    templates = list(templates)
    standard = [f"import {name}" for name in _STANDARD if any(re.search(rf"\b{name}\.", one) for one in templates)]
    wanted: dict[str, set[str]] = {}
    for template in templates:
        for slot in slots(template):
            if slot in draft.homes and draft.homes[slot].module != inside:
                wanted.setdefault(draft.dotted(draft.homes[slot].module), set()).add(draft.names[slot])
    own = [_import(module, names) for module, names in sorted(wanted.items())]
    return [*standard, *([""] if standard and own else []), *own]


def _import(module: str, names: Iterable[str]) -> str:
    line = f"from {module} import {', '.join(sorted(names))}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in sorted(names)), ")"])


def _module(module: str, draft: Draft) -> str:
    pieces = [piece for slot, piece in draft.pieces.items() if draft.homes[slot].module == module]
    head = [f'"""{draft.modules[module][1]}."""']
    imports = _imports((piece.code for piece in pieces), draft, inside=module)
    head += ["", *imports] if imports else []
    if module in draft.listed:
        names = ", ".join(f'"{draft.names[piece.slot]}"' for piece in sorted(pieces, key=lambda one: draft.names[one.slot]))
        head += ["", f"__all__ = [{names}]"]
    constants = [fill(piece.code, draft).rstrip() for piece in pieces if not piece.code.startswith("def ")]
    head += ["", *constants] if constants else []
    blocks = ["\n".join(head), *(fill(piece.code, draft).rstrip() for piece in pieces if piece.code.startswith("def "))]
    return "\n\n\n".join(blocks) + "\n"


def _tests(module: str, draft: Draft) -> str:
    pieces = [piece for slot, piece in draft.pieces.items() if draft.homes[slot].tests == module and piece.tests]
    if not pieces:
        return ""
    imports = _imports((test for piece in pieces for test in piece.tests), draft)
    blocks = ["\n".join(imports)]
    for piece in pieces:
        lines = "\n".join(f"    assert {fill(test, draft)}" for test in piece.tests)
        blocks.append(f"def test_{piece.slot}():\n{lines}")
    return "\n\n\n".join(blocks) + "\n"


def _top(draft: Draft) -> str:
    by_module: dict[str, list[str]] = {}
    for slot in draft.public:
        by_module.setdefault(draft.dotted(draft.homes[slot].module), []).append(draft.names[slot])
    lines = [_import(module, names) for module, names in sorted(by_module.items())]
    names = "\n".join(f'    "{name}",' for name in sorted(draft.names[slot] for slot in draft.public))
    title = f'"""{draft.nouns["about"]}."""'
    return "\n".join([title, "", *lines, "", f'__version__ = "{draft.version}"', "", "__all__ = [", names, "]", ""])


def _readme(draft: Draft) -> str:
    shown = [slot for slot in draft.public if draft.pieces[slot].tests][:2]
    usage = [f"from {draft.dotted(draft.homes[slot].module)} import {draft.names[slot]}" for slot in shown]
    usage += [f"assert {fill(draft.pieces[slot].tests[0], draft)}" for slot in shown]
    block = "\n".join(f"    {line}" for line in usage)
    return (
        f"# {draft.package}\n\n{draft.nouns['about']}. Version {draft.version}.\n\n## Use\n\n{block}\n\n"
        "## Work on it\n\nRead CONTRIBUTING.md first. The list of functions is docs/api.md.\n"
    )


def _api(draft: Draft) -> str:
    parts = ["# Functions by module\n"]
    for module, (name, title) in draft.modules.items():
        pieces = [piece for slot, piece in draft.pieces.items() if draft.homes[slot].module == module and piece.text]
        if pieces and module not in draft.internal:
            lines = [f"- `{signature(piece.slot, draft)}`: {piece.text}" for piece in pieces]
            parts.append("\n".join([f"## {name}", "", f"{title}.", "", *lines, ""]))
    return "\n".join(parts)
