"""What a finished job shows in the code: structural requirements on syntax trees and on the words of documents.

A mark looks at one file and says what is wrong, without the answer, or None. Layout, comments, annotations and docstrings are free unless a
mark is about them, so that any way of writing the same change passes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from coevo.tasks.refactor.linker import LinkError, parse

__all__ = [
    "Constant",
    "Defined",
    "Entry",
    "Files",
    "KeywordFlag",
    "Mark",
    "Names",
    "NoFile",
    "NoImport",
    "NoKeyword",
    "NoSign",
    "Quoted",
    "Section",
    "Shim",
    "Style",
    "Undefined",
    "Uses",
    "Words",
    "functions",
    "parameters",
    "problem_of",
]

Files = Mapping[str, str]


class Mark(Protocol):
    """One requirement on the file `path`."""

    @property
    def path(self) -> str: ...

    def problem(self, files: Files) -> str | None: ...

    def __hash__(self) -> int: ...


def problem_of(mark: Mark, files: Files) -> str | None:
    """A mark's problem; a file that is missing or can't be parsed is one."""
    if isinstance(mark, NoFile):
        return mark.problem(files)
    return _problem_on(mark, files[mark.path]) if mark.path in files else "the file is missing"


@lru_cache(maxsize=16_384)
def _problem_on(mark: Mark, text: str) -> str | None:
    """A mark looks at its own file only, so that unchanged files need no second look."""
    try:
        return mark.problem({mark.path: text})
    except LinkError:
        return "the file is not Python any more"


def functions(path: str, files: Files) -> dict[str, ast.FunctionDef]:
    """Top-level functions of a file. Raises `LinkError`."""
    return {node.name: node for node in parse(path, files[path]).body if isinstance(node, ast.FunctionDef)}


@lru_cache(maxsize=4096)
def parameters(text: str) -> tuple[str, ...]:
    """Parameters of `name(...)` as they are compared: names with their kind and default."""
    node = ast.parse(f"def {text}: pass").body[0]
    assert isinstance(node, ast.FunctionDef)
    return _parameters(node.args)


def _parameters(args: ast.arguments) -> tuple[str, ...]:
    given = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(given) - len(args.defaults)) + list(args.defaults)
    found = [_shown(arg, default, "") for arg, default in zip(given, defaults, strict=True)]
    found += [f"*{args.vararg.arg}"] if args.vararg else []
    found += [_shown(arg, default, "only ") for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return (*found, *([f"**{args.kwarg.arg}"] if args.kwarg else []))


def _shown(arg: ast.arg, default: ast.expr | None, kind: str) -> str:
    return f"{kind}{arg.arg}" + ("" if default is None else f"={ast.unparse(default)}")


def _identifiers(tree: ast.AST, *, spare: frozenset[str]) -> Iterator[str]:
    """Every identifier of code; the functions named in `spare` are passed over."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name in spare:
            continue
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.alias(name=name, asname=other):
                yield name.rpartition(".")[2]
                if other:
                    yield other
            case ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str(text)) if text.isidentifier():
                yield text
        yield from _identifiers(node, spare=spare)


@dataclass(frozen=True, slots=True)
class Names:
    """Code that has `present` and no `absent` name; words in strings (like those of `__all__`) count, functions in `spare` do not."""

    path: str
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    spare: frozenset[str] = frozenset()

    def problem(self, files: Files) -> str | None:
        found = set(_identifiers(parse(self.path, files[self.path]), spare=self.spare))
        if found.intersection(self.absent):
            return "still has a name that should be gone"
        return None if found.issuperset(self.present) else "lacks a name that it should use"


@dataclass(frozen=True, slots=True)
class Words:
    """A document that has `present` and no `absent` word."""

    path: str
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    def problem(self, files: Files) -> str | None:
        words = set(re.findall(r"\w+", files[self.path]))
        if words.intersection(self.absent):
            return "still mentions what should be gone"
        return None if words.issuperset(self.present) else "does not say how it is now"


@dataclass(frozen=True, slots=True)
class Quoted:
    """A document that has this text in backticks."""

    path: str
    text: str

    def problem(self, files: Files) -> str | None:
        return None if f"`{self.text}`" in files[self.path] else "does not show the function as it is now"


@dataclass(frozen=True, slots=True)
class Section:
    """A document whose section `heading` mentions `name`, and no other section does."""

    path: str
    heading: str
    name: str

    def problem(self, files: Files) -> str | None:
        sections = re.split(r"^## ", files[self.path], flags=re.MULTILINE)
        found = {text.partition("\n")[0].strip() for text in sections if re.search(rf"\b{self.name}\b", text)}
        return None if found == {self.heading} else "lists a function in a wrong place"


@dataclass(frozen=True, slots=True)
class Defined:
    """A function of this name at the top level of the file, with the parameters of `signature`."""

    path: str
    signature: str

    def problem(self, files: Files) -> str | None:
        node = functions(self.path, files).get(self.signature.partition("(")[0])
        if node is None:
            return "lacks a function that should be here"
        return None if _parameters(node.args) == parameters(self.signature) else "a function has other parameters than it should"


@dataclass(frozen=True, slots=True)
class Shim:
    """A deprecated function `old` that notes its use with these literals and hands over to `new`."""

    path: str
    old: str
    new: str
    release: str

    def problem(self, files: Files) -> str | None:
        node = functions(self.path, files).get(self.old)
        if node is None:
            return "lacks the deprecated name"
        calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
        notes = [[ast.literal_eval(arg) for arg in one.args if isinstance(arg, ast.Constant)] for one in calls if _called(one) == "note"]
        if [self.old, self.new, self.release] not in notes:
            return "the deprecated name does not note its use as the rules want it"
        return None if any(_called(one) == self.new for one in calls) else "the deprecated name does its own work"


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


@dataclass(frozen=True, slots=True)
class Undefined:
    """The file does not define this function any more; it may import it."""

    path: str
    name: str

    def problem(self, files: Files) -> str | None:
        return "still defines what should be elsewhere" if self.name in functions(self.path, files) else None


@dataclass(frozen=True, slots=True)
class Uses:
    """A function of the file whose body uses the name `used`."""

    path: str
    function: str
    used: str

    def problem(self, files: Files) -> str | None:
        node = functions(self.path, files).get(self.function)
        if node is None:
            return "lacks a function that should be here"
        return None if self.used in set(_identifiers(node, spare=frozenset())) else "a function does not use the shared definition"


@dataclass(frozen=True, slots=True)
class NoSign:
    """A function of the file without a call of the method `method` (its own copy), or without the number `number`."""

    path: str
    function: str
    method: str = ""
    number: int | None = None

    def problem(self, files: Files) -> str | None:
        node = functions(self.path, files).get(self.function)
        if node is None:
            return "lacks a function that should be here"
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute) and one.attr == self.method:
                return "a function still has its own copy"
            if isinstance(one, ast.Constant) and type(one.value) in (int, float) and one.value == self.number:
                return "a function still has the bare number"
        return None


@dataclass(frozen=True, slots=True)
class Constant:
    """A top-level constant with this value."""

    path: str
    name: str
    value: int

    def problem(self, files: Files) -> str | None:
        for node in parse(self.path, files[self.path]).body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            if any(isinstance(one, ast.Name) and one.id == self.name for one in targets):
                value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
                return None if isinstance(value, ast.Constant) and value.value == self.value else "a constant has a wrong value"
        return "lacks a constant that should be here"


@dataclass(frozen=True, slots=True)
class KeywordFlag:
    """No call of `function` gives more than `positions` arguments by position."""

    path: str
    function: str
    positions: int

    def problem(self, files: Files) -> str | None:
        calls = [one for one in ast.walk(parse(self.path, files[self.path])) if isinstance(one, ast.Call) and _called(one) == self.function]
        return "a call gives the option by position" if any(len(one.args) > self.positions for one in calls) else None


@dataclass(frozen=True, slots=True)
class NoKeyword:
    """No call of `function` uses the keyword `keyword`."""

    path: str
    function: str
    keyword: str

    def problem(self, files: Files) -> str | None:
        calls = [one for one in ast.walk(parse(self.path, files[self.path])) if isinstance(one, ast.Call) and _called(one) == self.function]
        return "a call uses the old parameter" if any(one.arg == self.keyword for call in calls for one in call.keywords) else None


@dataclass(frozen=True, slots=True)
class NoImport:
    """No import of the module `module`, or none of `name` from it where a name is given."""

    path: str
    module: str
    name: str = ""

    def problem(self, files: Files) -> str | None:
        package, _, last = self.module.rpartition(".")
        for node in ast.walk(parse(self.path, files[self.path])):
            from_it = isinstance(node, ast.ImportFrom) and node.module in (self.module, last if node.level else self.module)
            if from_it and (not self.name or any(alias.name == self.name for alias in getattr(node, "names", ()))):
                return "still imports from the old place"
            if not self.name and _imports_module(node, package, last):
                return "still imports the old module"
        return None


def _imports_module(node: ast.AST, package: str, last: str) -> bool:
    if isinstance(node, ast.ImportFrom) and node.module in (package, None):
        return any(alias.name == last for alias in node.names)
    return isinstance(node, ast.Import) and any(alias.name == f"{package}.{last}" for alias in node.names)


@dataclass(frozen=True, slots=True)
class NoFile:
    """The file is gone."""

    path: str

    def problem(self, files: Files) -> str | None:
        return "the file is still there" if self.path in files else None


@dataclass(frozen=True, slots=True)
class Entry:
    """The unreleased part of the changelog has lines `- WORD: ...` that name all of `names`."""

    path: str
    word: str
    names: tuple[str, ...]

    def problem(self, files: Files) -> str | None:
        _, found, rest = files[self.path].partition("## Unreleased")
        if not found:
            return "has no unreleased part"
        lines = [line for line in rest.partition("\n## ")[0].splitlines() if re.match(rf"[-*] \**{self.word}\**:", line)]
        if len(set(lines)) < len(lines):
            return "lists a change twice"
        words = {word for line in lines for word in re.findall(r"\w+", line)}
        return None if words.issuperset(self.names) else "lacks a line, or it is not in the form that the rules want"


@dataclass(frozen=True, slots=True)
class Style:
    """The file keeps the rule `rule`: docstrings, listing, defaults, none, percent."""

    path: str
    rule: str

    def problem(self, files: Files) -> str | None:
        return _RULES[self.rule](parse(self.path, files[self.path]))


def _docstrings(tree: ast.Module) -> str | None:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not (ast.get_docstring(node) or "").rstrip().endswith("."):
            return "a docstring is missing or has no full stop"
    return None


def _listing(tree: ast.Module) -> str | None:
    defined = sorted(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and any(isinstance(one, ast.Name) and one.id == "__all__" for one in targets):
            if not isinstance(node.value, (ast.List, ast.Tuple)):
                return "__all__ is no plain list"
            listed = [one.value for one in node.value.elts if isinstance(one, ast.Constant)]
            return None if listed == defined else "__all__ is not what the rules want"
    return "__all__ is missing"


def _defaults(tree: ast.Module) -> str | None:
    nodes = (node.args for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda)))
    changing = (ast.List, ast.Dict, ast.Set, ast.Call, ast.ListComp, ast.DictComp, ast.SetComp)
    bad = any(isinstance(one, changing) for args in nodes for one in [*args.defaults, *args.kw_defaults])
    return "a default value can change" if bad else None


def _none(tree: ast.Module) -> str | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(one, (ast.Eq, ast.NotEq)) for one in node.ops):
            sides = [node.left, *node.comparators]
            if any(isinstance(one, ast.Constant) and one.value is None for one in sides):
                return "None is compared by value"
    return None


def _percent(tree: ast.Module) -> str | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _is_text(node.left):
            return "text is formatted in an old way"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format" and _is_text(node.func.value):
            return "text is formatted in an old way"
    return None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


_RULES = {"docstrings": _docstrings, "listing": _listing, "defaults": _defaults, "none": _none, "percent": _percent}
