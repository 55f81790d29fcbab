"""A small YAML file read with line numbers, so that an error can say where it is."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from coevo.errors import ConfigError, nearest
from coevo.yamltext import LOADER

__all__ = ["YamlFile"]

T = TypeVar("T")

_MAX_CHARS = 100_000


class YamlFile:
    """Parsed text: `data`, and where its top-level keys or items stand.

    Aliases are refused: a few lines of them describe more data than fits any memory.

    Raises:
        ConfigError: Broken YAML, with file name and line; an alias; too long.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        if len(text) > _MAX_CHARS:
            raise ConfigError(f"{name}: too long", seen=f"{len(text)} characters", fix=f"at most {_MAX_CHARS}")
        try:
            for event in yaml.parse(text, Loader=LOADER) if "*" in text else ():
                if isinstance(event, yaml.AliasEvent):
                    line = event.start_mark.line + 1 if event.start_mark is not None else 1
                    raise ConfigError(f"{name}:{line}: a YAML alias", seen=event.anchor, fix="write the value out")
            loader = LOADER(text)
            self._node = loader.get_single_node()
            self.data: Any = None if self._node is None else loader.construct_document(self._node)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = mark.line + 1 if mark is not None else 1
            seen = str(getattr(error, "problem", None) or error)
            raise ConfigError(f"{name}:{line}: broken YAML", seen=seen, fix="correct the syntax on that line") from error
        except (RecursionError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{name}: broken YAML", seen=str(error)[:200], fix="nest less and write plain values") from error

    def at(self, *path: str) -> str:
        """`file:line` of a key, as deep as the path can be followed."""
        node, line = self._node, 1
        for key in path:
            if not isinstance(node, yaml.MappingNode):
                break
            for key_node, value_node in node.value:
                if key_node.value == key:
                    node, line = value_node, key_node.start_mark.line + 1
                    break
            else:
                break
        return f"{self.name}:{line}"

    def at_item(self, index: int) -> str:
        """`file:line` of a list item."""
        if isinstance(self._node, yaml.SequenceNode) and index < len(self._node.value):
            return f"{self.name}:{self._node.value[index].start_mark.line + 1}"
        return f"{self.name}:1"

    def check_mapping(self, allowed: set[str]) -> None:
        """Raise `ConfigError` unless the file is a mapping with keys out of `allowed`."""
        self._check_keys(self.data, allowed, ())

    def text(self, key: str) -> str:
        """A required string."""
        value = self.data.get(key)
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{self.at(key)}: {key} is not text", seen=value, fix=f"{key}: some-name")
        return value

    def optional_text(self, key: str) -> str | None:
        """A string or null."""
        return None if self.data.get(key) is None else self.text(key)

    def dataclass(self, kind: type[T], key: str = "") -> T:
        """Validate the mapping at `key` (or the whole file) as a dataclass, strictly; absent or null gives the defaults."""
        data = self.data.get(key) if key else self.data
        data = {} if data is None else data
        path = (key,) if key else ()
        names = {item.name for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
        self._check_keys(data, names, path)
        hints = get_type_hints(kind)
        values = {name: self._typed(hints[name], value, (*path, name)) for name, value in data.items()}
        try:
            return kind(**values)
        except ConfigError as error:
            name = next((name for name in sorted(names) if name in error.what), "")
            raise ConfigError(f"{self.at(*path, name)}: {error.what}", seen=error.seen, fix=error.fix) from error

    def _typed(self, hint: Any, value: Any, path: tuple[str, ...]) -> Any:
        try:
            return _adapter(hint).validate_python(tuple(value) if isinstance(value, list) else value, strict=True)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(f"{self.at(*path)}: {'.'.join(path)}: {reason}", seen=value, fix="correct the value") from error

    def _check_keys(self, data: Any, allowed: set[str], path: tuple[str, ...]) -> None:
        if not isinstance(data, dict):
            raise ConfigError(f"{self.at(*path)}: not a mapping", seen=type(data).__name__, fix=f"write keys: {', '.join(sorted(allowed))}")
        for name in data:
            if name not in allowed:
                raise ConfigError(f"{self.at(*path, str(name))}: unknown key", seen=name, fix=nearest(str(name), allowed))


@lru_cache(maxsize=64)
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)
