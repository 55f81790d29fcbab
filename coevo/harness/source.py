"""Evolved Python as data: what a component file may contain, and how many files become one sandbox program.

Evolved code is parsed on the host, never run there. The rules make every component a pure function of its arguments: no module-level
state, no `global`/`nonlocal`, no classes, no attribute assignment, imports from a short allow-list. So a loaded program can be
reused between calls and episodes, and a hook's only memory is the state that the host keeps for it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from coevo.errors import ConfigError, nearest

__all__ = ["ALLOWED_IMPORTS", "EVENTS", "Component", "ComponentKind", "check_name", "compile_component", "entry_name", "link"]

EVENTS = ("on_start", "before_model", "after_model", "before_tool", "after_tool", "before_finish")
ALLOWED_IMPORTS = frozenset({"json", "math", "re"})
MAX_SOURCE_CHARS = 20_000

_BANNED_NAMES = frozenset(
    {"breakpoint", "compile", "delattr", "dir", "eval", "exec", "getattr", "globals", "input", "locals", "open", "setattr", "vars"}
)
_BANNED_NODES: dict[type[ast.AST], str] = {
    ast.AsyncFor: "async code",
    ast.AsyncFunctionDef: "async code",
    ast.AsyncWith: "async code",
    ast.Await: "async code",
    ast.ClassDef: "a class",
    ast.Global: "a global statement",
    ast.Nonlocal: "a nonlocal statement",
    ast.Yield: "a generator",
    ast.YieldFrom: "a generator",
}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class ComponentKind(StrEnum):
    """Which folder of the bundle a source file lives in."""

    HOOK = "hook"
    """`hooks/NAME.py`: functions named after events."""
    TOOL = "tool"
    """`tools/NAME.py`: one composite tool."""


@dataclass(frozen=True, slots=True)
class Component:
    """A checked source file. `loader` defines its functions inside one function, so files can't see each other's names."""

    kind: ComponentKind
    name: str
    functions: tuple[str, ...]
    loader: str


def check_name(name: str, file: str) -> None:
    """Raise `ConfigError` unless `name` is a lower-case identifier of at most 40 characters."""
    if not _NAME.fullmatch(name) or "__" in name:
        raise ConfigError(f"{file}: not a component name", seen=name, fix="use lower-case letters, digits and single underscores")


def entry_name(kind: ComponentKind, name: str, function: str) -> str:
    """The global name under which a linked program holds a component's function."""
    return f"__{kind}_{name}__{function}"


@lru_cache(maxsize=1024)
def compile_component(source: str, kind: ComponentKind, name: str) -> Component:
    """Check one source file and wrap it for linking.

    Raises:
        ConfigError: Naming file and line: broken syntax, a forbidden construct, no or wrong functions.
    """
    file = f"{kind}s/{name}.py"
    check_name(name, file)
    if len(source) > MAX_SOURCE_CHARS:
        raise ConfigError(f"{file}: source too long", seen=f"{len(source)} characters", fix=f"at most {MAX_SOURCE_CHARS}")
    try:
        return _compile(source, kind, name, file)
    except ConfigError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        fix = "correct the syntax on that line; nest less, write shorter literals"
        raise ConfigError(f"{file}:{line}: broken Python", seen=str(error)[:200], fix=fix) from error


def _compile(source: str, kind: ComponentKind, name: str, file: str) -> Component:
    module = ast.parse(source)
    body = [node for node in module.body if not _is_docstring(node)]
    for statement in body:
        _check_statement(statement, file)
    for node in ast.walk(module):
        _check_node(node, file)
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    exported = _hook_functions(functions, file) if kind is ComponentKind.HOOK else _tool_function(functions, name, file)
    return Component(kind, name, exported, _loader(body, kind, name, exported))


def link(components: tuple[Component, ...]) -> str:
    """One program text that defines every function of every component under its `entry_name`."""
    return "\n".join(component.loader for component in components)


def _loader(body: list[ast.stmt], kind: ComponentKind, name: str, exported: tuple[str, ...]) -> str:
    names = [ast.Name(id=function, ctx=ast.Load()) for function in exported]
    loader = ast.FunctionDef(
        name=f"__load_{kind}_{name}",
        args=ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]),
        body=[*body, ast.Return(value=ast.Tuple(elts=list(names), ctx=ast.Load()))],
        decorator_list=[],
    )
    targets = "".join(f"{entry_name(kind, name, function)}, " for function in exported)
    text = ast.unparse(ast.fix_missing_locations(ast.Module(body=[loader], type_ignores=[])))
    return f"{text}\n({targets}) = {loader.name}()\n"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_constant(node: ast.expr | None) -> bool:
    if node is None or isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.UnaryOp):
        return _is_constant(node.operand)
    return isinstance(node, ast.Tuple) and all(_is_constant(item) for item in node.elts)


def _refuse(node: ast.AST, file: str, what: str, fix: str, seen: str | None = None) -> ConfigError:
    return ConfigError(f"{file}:{getattr(node, 'lineno', 1)}: {what}", seen=seen, fix=fix)


def _check_statement(node: ast.stmt, file: str) -> None:
    if isinstance(node, ast.FunctionDef):
        if not all(_is_constant(default) for default in [*node.args.defaults, *node.args.kw_defaults]):
            raise _refuse(node, file, "a default value that is not a constant", "use None and set it in the body", node.name)
        return
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    if isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets) and _is_constant(node.value):
        return
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_constant(node.value):
        return
    fix = "at module level write only imports, functions, and constants (numbers, strings, tuples of them); keep memory in the hook's state"
    raise _refuse(node, file, "module-level state or code", fix, ast.unparse(node)[:80])


def _check_node(node: ast.AST, file: str) -> None:
    if (kind := _BANNED_NODES.get(type(node))) is not None:
        raise _refuse(node, file, f"{kind} is not allowed", "write plain functions")
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        raise _refuse(node, file, "a decorator is not allowed", "write plain functions", node.name)
    if isinstance(node, ast.Import):
        _check_imports(node, [alias.name for alias in node.names], file)
    elif isinstance(node, ast.ImportFrom):
        _check_imports(node, [node.module or "." * node.level], file)
    elif isinstance(node, ast.Attribute) and (node.attr.startswith("__") or not isinstance(node.ctx, ast.Load)):
        raise _refuse(node, file, "attributes can only be read, dunder ones not at all", "use plain values", ast.unparse(node)[:80])
    for name in _names(node):
        if name in _BANNED_NAMES or name.startswith("__"):
            raise _refuse(node, file, "a name that is not allowed", "use arguments, local names and the tools", name)


def _check_imports(node: ast.AST, names: list[str], file: str) -> None:
    for name in names:
        if name not in ALLOWED_IMPORTS:
            raise _refuse(node, file, "an import that is not allowed", f"allowed: {', '.join(sorted(ALLOWED_IMPORTS))}", name)


def _names(node: ast.AST) -> list[str]:
    """Every identifier that `node` itself binds or reads, other than attributes."""
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
            return [name]
        case ast.alias(name=name, asname=asname):
            return ["__star__" if name == "*" else asname or name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case ast.MatchMapping(rest=str(name)):
            return [name]
        case _:
            return []


def _hook_functions(functions: dict[str, ast.FunctionDef], file: str) -> tuple[str, ...]:
    exported = tuple(event for event in EVENTS if event in functions)
    if not exported:
        seen = ", ".join(functions) or "no function"
        raise ConfigError(f"{file}: no event function", seen=seen, fix=nearest(next(iter(functions), ""), EVENTS))
    for event in exported:
        arguments = functions[event].args
        plain = not (arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg or arguments.defaults)
        if not plain or len(arguments.args) != 2:
            raise _refuse(functions[event], file, "wrong signature", f"write `def {event}(event, state):`", event)
    return exported


def _tool_function(functions: dict[str, ast.FunctionDef], name: str, file: str) -> tuple[str, ...]:
    if list(functions) != [name]:
        seen = ", ".join(functions) or "no function"
        raise ConfigError(f"{file}: a composite tool is one function named like its file", seen=seen, fix=f"define only `{name}`")
    return (name,)
