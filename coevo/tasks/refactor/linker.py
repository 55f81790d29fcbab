"""Turns a package of several files into one program for the sandbox, which has no imports of its own beyond a few standard modules.

Each module becomes a function whose body is the module's code and whose result is an object with the module's names; imports between the
modules become calls of a loader that runs each of those functions once. Code is parsed and rewritten on the host, and runs in the sandbox
only. Limits: no `global`, no star imports, names bound inside a conditional count as names of the module only if they are always bound.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

__all__ = ["LinkError", "link", "module_name", "parse"]

_MAX_CHARS = 60_000
_MAX_DEPTH = 80
"""Levels of a syntax tree; below what the recursive parts of `ast` can take."""

_ONLY_TYPES = frozenset({"collections.abc"})
"""Modules that the sandbox lacks and that code needs in annotations only, which the sandbox does not look at."""

_LOADER = "_load"

_RUNTIME = """
class _Module:
    pass

def _from(load, origin, name):
    if origin + "." + name in _BODIES:
        return load(origin + "." + name)
    module = load(origin)
    if not hasattr(module, name):
        raise ImportError("cannot import name " + repr(name) + " from " + repr(origin))
    return getattr(module, name)

def _loader():
    ready = {}
    started = []
    def load(name):
        parent = name.rpartition(".")[0]
        if parent in _BODIES and parent not in started:
            load(parent)
        if name in ready:
            return ready[name]
        if name not in _BODIES:
            raise ModuleNotFoundError("No module named " + repr(name))
        if name in started:
            raise ImportError("circular import of " + repr(name))
        started.append(name)
        module = _Module()
        for key, value in _BODIES[name](load).items():
            setattr(module, key, value)
        ready[name] = module
        for other, child in ready.items():
            if other.rpartition(".")[0] == name:
                setattr(module, other.rpartition(".")[2], child)
        if parent in ready:
            setattr(ready[parent], name.rpartition(".")[2], module)
        return module
    return load

def _plain(value, depth=0):
    if depth > 12:
        return "..."
    if isinstance(value, (list, tuple)):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, dict):
        return [[_plain(key, depth + 1), _plain(one, depth + 1)] for key, one in value.items()]
    if isinstance(value, set):
        return sorted([repr(one) for one in value])
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return type(value).__name__

def _attempt(action):
    try:
        return ["value", _plain(action())]
    except Exception as error:
        return ["error", type(error).__name__ + ": " + str(error)[:160]]
"""


class LinkError(Exception):
    """A file that can't become part of a program; the message is what a developer reads."""


def module_name(path: str) -> str:
    """`shop/pricing.py` -> `shop.pricing`, `shop/__init__.py` -> `shop`."""
    name = path.removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


@lru_cache(maxsize=4096)
def parse(path: str, text: str) -> ast.Module:
    """The tree of a file. Raises `LinkError` for code that is too long, too deep or not Python."""
    if len(text) > _MAX_CHARS:
        raise LinkError(f"{path}: longer than {_MAX_CHARS} characters")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise LinkError(f"{path}: SyntaxError: {error.msg} (line {error.lineno})") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise LinkError(f"{path}: {type(error).__name__}") from None
    _check_depth(path, tree)
    return tree


def _check_depth(path: str, tree: ast.Module) -> None:
    """Level by level, so that the check itself can't run out of stack."""
    level: list[ast.AST] = [tree]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise LinkError(f"{path}: nested more than {_MAX_DEPTH} levels deep")


def link(files: Mapping[str, str], roots: Iterable[str]) -> str:
    """One program with the modules `roots` (dotted names) and all that they import, and the functions `_loader`, `_attempt`.

    A root or import that no file provides is not an error here: the loader raises ModuleNotFoundError when it is asked for.

    Raises:
        LinkError: A needed file is not Python, or uses what the module docstring excludes.
    """
    modules = {module_name(path): path for path in files if path.endswith(".py")}
    bodies: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in bodies or name not in modules:
            continue
        path = modules[name]
        bodies[name], imports = _module(path, files[path], frozenset(one.partition(".")[0] for one in modules))
        waiting += [one for one in imports if one in modules]
        waiting += [parent for parent in _parents(name) if parent in modules]
    table = ", ".join(f"{name!r}: {_function(name)}" for name in bodies)
    return "\n".join([*bodies.values(), _RUNTIME, f"_BODIES = {{{table}}}", ""])


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _function(name: str) -> str:
    return "_m_" + re.sub(r"\W", "__", name)


@lru_cache(maxsize=4096)
def _module(path: str, text: str, tops: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """(the module as a function, dotted names that it may import)."""
    tree = parse(path, text)
    name = module_name(path)
    rewriter = _Imports(path, name if path.endswith("__init__.py") else name.rpartition(".")[0], tops)
    body = [rewriter.visit(node) for node in ast.parse(text).body]  # a tree of its own, because the rewriter changes it
    flat = [one for node in body for one in (node if isinstance(node, list) else [node]) if one is not None]
    names = ", ".join(f"{bound!r}: {bound}" for bound in _bound(tree))
    wrapper = ast.parse(f"def {_function(name)}({_LOADER}):\n    return {{{names}}}").body[0]
    assert isinstance(wrapper, ast.FunctionDef)
    wrapper.body = [*flat, *wrapper.body]
    return ast.unparse(ast.fix_missing_locations(wrapper)), tuple(rewriter.found)


def _bound(tree: ast.Module) -> list[str]:
    """Names that the top level always binds, in order."""
    found: dict[str, None] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = None
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                found |= dict.fromkeys((alias.asname or alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.With)):
            stores = (one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
            if not (isinstance(node, ast.AnnAssign) and node.value is None):
                found |= dict.fromkeys(one.id for one in stores)
    return list(found)


_RESERVED = re.compile(r"_(module|from|loader|plain|attempt|load|trial|found|message|m|BODIES|m_.*)|_Module")


class _Imports(ast.NodeTransformer):
    """Imports of the package's own modules become assignments from the loader; other imports stay."""

    def __init__(self, path: str, package: str, tops: frozenset[str]) -> None:
        self.path, self.package, self.tops = path, package, tops
        self.found: dict[str, None] = {}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if _RESERVED.fullmatch(node.id):
            raise LinkError(f"{self.path}: the name {node.id} belongs to the test runner (line {node.lineno})")
        return node

    def visit_Global(self, node: ast.Global) -> None:
        raise LinkError(f"{self.path}: the test runner does not support 'global' (line {node.lineno})")

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for alias in node.names:
            top = alias.name.partition(".")[0]
            if top not in self.tops:
                out.append(ast.Import([alias]))
                continue
            self.found[alias.name] = None
            if alias.asname:
                out += ast.parse(f"{alias.asname} = {_LOADER}({alias.name!r})").body
            else:
                out += ast.parse(f"{_LOADER}({alias.name!r})\n{top} = {_LOADER}({top!r})").body
        return out

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt] | ast.stmt | None:
        if node.module == "__future__":
            return None
        if node.module in _ONLY_TYPES:
            return [one for alias in node.names for one in ast.parse(f"{alias.asname or alias.name} = None").body]
        origin = self._origin(node)
        if origin.partition(".")[0] not in self.tops:
            return node
        out: list[ast.stmt] = []
        for alias in node.names:
            if alias.name == "*":
                raise LinkError(f"{self.path}: the test runner does not support star imports (line {node.lineno})")
            self.found[origin] = None
            self.found[f"{origin}.{alias.name}"] = None
            source = f"_from({_LOADER}, {origin!r}, {alias.name!r})"
            out += ast.parse(f"{alias.asname or alias.name} = {source}").body
        return out

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".") if self.package else []
        if node.level - 1 >= len(parts) + (not parts):
            raise LinkError(f"{self.path}: relative import beyond the top level (line {node.lineno})")
        base = parts[: len(parts) - (node.level - 1)]
        return ".".join([*base, *([node.module] if node.module else [])])
