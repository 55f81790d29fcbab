"""The harness as an artifact: a folder of text files, a typed value, and a content hash over what it does.

Equal behaviour gives an equal hash: the hash covers the canonical files without `name` and `parent`, so two searches that arrive at the
same harness agree on its identity. Loading checks everything that can be checked without a task family; `coevo.harness.lint`
checks the rest.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from coevo.errors import ConfigError, nearest
from coevo.harness.context import ContextPolicy
from coevo.harness.source import Component, ComponentKind, check_name, compile_component, link
from coevo.harness.text import check_text
from coevo.harness.tools import FINISH, ToolEntry, composite_spec
from coevo.harness.yamlfile import YamlFile
from coevo.identity import content_hash

__all__ = ["HarnessBundle", "Limits", "Skill"]

SCHEMA = 1
_SLOT = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SLOTS = ("family",)
_MAX_PROMPT_CHARS = 60_000
_MAX_SKILL_CHARS = 8000
_MAX_TRIGGER_CHARS = 200
_MAX_DESCRIPTION_CHARS = 2000
_MAX_COMPONENTS = 64
_SHOWN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_CEILINGS = {"max_turns": 1000, "max_completion_tokens": 1_000_000, "max_parse_failures": 100, "max_observation_chars": 1_000_000}
_FIXED_FILES = ("harness.yaml", "prompt/system.md", "tools.yaml", "context.yaml")
_FOLDERS = {"tools": ".py", "hooks": ".py", "skills": ".md"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends an episode, in turns and tokens, never in wall time.

    Attributes:
        max_turns: Model turns.
        max_completion_tokens: Completion tokens summed over the episode.
        max_parse_failures: Consecutive turns without a parseable call.
        max_observation_chars: Longest observation text, cut with a mark when it is made; `ContextPolicy` may cut shorter for the view.

    Each has a ceiling, far above any shipped harness: a limit that an edit can raise without end is no limit.
    """

    max_turns: int = 24
    max_completion_tokens: int = 8192
    max_parse_failures: int = 3
    max_observation_chars: int = 8000

    def __post_init__(self) -> None:
        for name, most in _CEILINGS.items():
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is below 1", seen=getattr(self, name), fix="use a positive number")
            if getattr(self, name) > most:
                raise ConfigError(f"{name} is above {most}", seen=getattr(self, name), fix=f"use 1 to {most}")


@dataclass(frozen=True, slots=True)
class Skill:
    """Text shown once, as a user message, when `trigger` first stands in the instruction or an observation."""

    trigger: str
    text: str


@dataclass(frozen=True, slots=True)
class HarnessBundle:
    """One harness. Build it with `load`, `from_files` or `replace`; construction checks it.

    Attributes:
        name: For people; not part of the identity.
        parent: Hash of the bundle this one was edited from, or None; not part of the identity.
        limits: See `Limits`.
        system_prompt: Template; the only slot is `{family}`.
        tools: What the model is shown, in order. A family tool that is not listed is hidden.
        composites: Name -> source of each listed composite tool.
        hooks: Name -> source.
        context: See `ContextPolicy`.
        skills: Name -> `Skill`.
        hash: 64 hex digits, computed.
    """

    name: str
    system_prompt: str
    tools: tuple[ToolEntry, ...]
    parent: str | None = None
    limits: Limits = field(default_factory=Limits)
    composites: Mapping[str, str] = field(default_factory=dict)
    hooks: Mapping[str, str] = field(default_factory=dict)
    context: ContextPolicy = field(default_factory=ContextPolicy)
    skills: Mapping[str, Skill] = field(default_factory=dict)
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        _set(self, "system_prompt", _text(self.system_prompt))
        for name in ("composites", "hooks"):
            _set(self, name, {key: _text(getattr(self, name)[key]) for key in sorted(getattr(self, name))})
        _set(self, "skills", {key: _canonical_skill(self.skills[key]) for key in sorted(self.skills)})
        self._check()
        files = self.files()
        files["harness.yaml"] = _dump({"schema": SCHEMA, "limits": dataclasses.asdict(self.limits)})
        _set(self, "hash", content_hash(files))

    def __hash__(self) -> int:
        return int(self.hash[:15], 16)

    def __reduce__(self) -> tuple[object, ...]:
        return (HarnessBundle.from_files, (self.files(),))

    def _check(self) -> None:
        for slot in _SLOT.findall(self.system_prompt):
            if slot not in _SLOTS:
                raise ConfigError("prompt/system.md: unknown slot", seen=f"{{{slot}}}", fix=f"{nearest(slot, _SLOTS)}; write text in words")
        if len(self.system_prompt) > _MAX_PROMPT_CHARS:
            raise ConfigError("prompt/system.md: too long", seen=len(self.system_prompt), fix=f"at most {_MAX_PROMPT_CHARS} characters")
        listed = {entry.name for entry in self.tools if entry.composite}
        for name in sorted(listed - set(self.composites)):
            raise ConfigError(f"tools.yaml: no file tools/{name}.py", seen=name, fix=nearest(name, self.composites))
        for name in sorted(set(self.composites) - listed):
            raise ConfigError(f"tools/{name}.py is not listed in tools.yaml", seen=name, fix=f"add `- composite: {name}` or delete it")
        for name, source in self.composites.items():
            if name == FINISH:
                raise ConfigError(f"tools/{name}.py: a composite shadows a family tool", seen=name, fix="rename the file and function")
            composite_spec(name, source)
        for name, source in self.hooks.items():
            compile_component(source, ComponentKind.HOOK, name)
        for name, skill in self.skills.items():
            _check_skill(name, skill)
        self._check_texts()

    def _check_texts(self) -> None:
        """No file, name or literal hides or disguises anything, and there are not too many."""
        for name, count in (("composites", len(self.composites)), ("hooks", len(self.hooks)), ("skills", len(self.skills))):
            if count > _MAX_COMPONENTS:
                raise ConfigError(f"too many {name}", seen=count, fix=f"at most {_MAX_COMPONENTS}")
        for entry in self.tools:
            _check_entry(entry)
        check_text("harness.yaml", f"{self.name}{self.parent or ''}")
        check_text("context.yaml", "".join(self.context.pins))
        check_text("prompt/system.md", self.system_prompt)
        for folder, sources in (("tools", self.composites), ("hooks", self.hooks)):
            for name, source in sources.items():
                check_text(f"{folder}/{name}.py", source)

    @property
    def hook_components(self) -> tuple[Component, ...]:
        """Compiled hooks in firing order."""
        return tuple(compile_component(source, ComponentKind.HOOK, name) for name, source in self.hooks.items())

    @property
    def program(self) -> str:
        """The sandbox program: all hooks and composites; empty when there are none."""
        tools = tuple(compile_component(source, ComponentKind.TOOL, name) for name, source in self.composites.items())
        return link((*self.hook_components, *tools))

    def files(self) -> dict[str, str]:
        """Canonical text by relative path, sorted."""
        head = {"schema": SCHEMA, "name": self.name, "parent": self.parent, "limits": dataclasses.asdict(self.limits)}
        files = {
            "harness.yaml": _dump(head),
            "prompt/system.md": self.system_prompt,
            "tools.yaml": _dump([_entry_yaml(entry) for entry in self.tools]),
            "context.yaml": _dump({**dataclasses.asdict(self.context), "pins": list(self.context.pins)}),
        }
        files |= {f"tools/{name}.py": source for name, source in self.composites.items()}
        files |= {f"hooks/{name}.py": source for name, source in self.hooks.items()}
        files |= {f"skills/{name}.md": f"trigger: {skill.trigger}\n{skill.text}\n" for name, skill in self.skills.items()}
        return dict(sorted(files.items()))

    def save(self, folder: Path) -> None:
        """Write the canonical files under `folder`, which must not hold anything yet. Raises `ConfigError` otherwise."""
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError("the folder is not empty", seen=str(folder), fix="name a new folder")
        for name, text in self.files().items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")

    def diff(self, other: HarnessBundle) -> str:
        """Unified diff from this bundle's files to the other's."""
        mine, theirs = self.files(), other.files()
        parts: list[str] = []
        for name in sorted(set(mine) | set(theirs)):
            old, new = mine.get(name, "").splitlines(keepends=True), theirs.get(name, "").splitlines(keepends=True)
            parts.extend(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))
        return "".join(parts)

    def replace(self, **changes: Any) -> HarnessBundle:
        """A child with some attributes changed; its `parent` is this bundle's hash unless given."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.init}
        return HarnessBundle(**{**values, "parent": self.hash, **changes})

    @classmethod
    def load(cls, folder: Path) -> HarnessBundle:
        """Read a bundle folder.

        Raises:
            ConfigError: No such folder, a missing or unknown file, or any broken content, with file name, line and fix.
        """
        if not folder.is_dir():
            raise ConfigError("no harness folder", seen=str(folder), fix="name a folder with a harness.yaml")
        files: dict[str, str] = {}
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_dir() or "__pycache__" in name or path.name.startswith("."):
                continue
            try:
                files[name] = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{name}: not readable as UTF-8 text", seen=str(error), fix="remove or re-encode the file") from error
        return cls.from_files(files)

    @classmethod
    def from_files(cls, files: Mapping[str, str]) -> HarnessBundle:
        """Parse texts by relative path; the inverse of `files`. Raises `ConfigError` like `load`."""
        for name in ("harness.yaml", "prompt/system.md", "tools.yaml"):
            if name not in files:
                raise ConfigError(f"the harness has no {name}", seen=", ".join(sorted(files)) or "no file", fix=f"add {name}")
        parts = _by_folder(files)
        head = YamlFile("harness.yaml", files["harness.yaml"])
        head.check_mapping({"schema", "name", "parent", "limits"})
        if head.data.get("schema") != SCHEMA:
            raise ConfigError(f"{head.at('schema')}: unknown schema", seen=head.data.get("schema"), fix=f"schema: {SCHEMA}")
        return cls(
            name=head.text("name"),
            parent=head.optional_text("parent"),
            limits=head.dataclass(Limits, "limits"),
            system_prompt=files["prompt/system.md"],
            tools=_read_tools(YamlFile("tools.yaml", files["tools.yaml"])),
            composites=parts["tools"],
            hooks=parts["hooks"],
            context=YamlFile("context.yaml", files.get("context.yaml", "{}")).dataclass(ContextPolicy),
            skills={name: _read_skill(name, text) for name, text in parts["skills"].items()},
        )


def _set(bundle: HarnessBundle, name: str, value: Any) -> None:
    object.__setattr__(bundle, name, MappingProxyType(value) if isinstance(value, dict) else value)


def _text(text: str) -> str:
    """Canonical text: LF line ends, no trailing blanks, exactly one newline at the end."""
    return "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").split("\n")).strip("\n") + "\n"


def _canonical_skill(skill: Skill) -> Skill:
    return Skill(skill.trigger.strip(), _text(skill.text).strip("\n"))


def _check_skill(name: str, skill: Skill) -> None:
    file = f"skills/{name}.md"
    check_name(name, file)
    if not skill.trigger or "\n" in skill.trigger or len(skill.trigger) > _MAX_TRIGGER_CHARS:
        fix = f"first line: trigger: some literal text, at most {_MAX_TRIGGER_CHARS} characters"
        raise ConfigError(f"{file}: no trigger" if not skill.trigger else f"{file}: not a trigger", seen=skill.trigger[:80], fix=fix)
    if not skill.text or len(skill.text) > _MAX_SKILL_CHARS:
        raise ConfigError(f"{file}: no text, or too much", seen=f"{len(skill.text)} characters", fix=f"1 to {_MAX_SKILL_CHARS} characters")
    check_text(file, f"{skill.trigger}\n{skill.text}")


def _check_entry(entry: ToolEntry) -> None:
    """A shown name is plain ASCII and no disguise of the tool that ends an episode."""
    if entry.shown and not _SHOWN_NAME.fullmatch(entry.shown):
        fix = "use ASCII letters, digits, dots, dashes and underscores"
        raise ConfigError("tools.yaml: not a tool name", seen=ascii(entry.shown), fix=fix)
    if entry.name != FINISH and entry.shown_name.casefold() == FINISH:
        raise ConfigError("tools.yaml: a tool passes for finish", seen=f"{entry.name} as {entry.shown_name}", fix="use another name")
    if len(entry.description) > _MAX_DESCRIPTION_CHARS:
        seen = f"{entry.name}: {len(entry.description)} characters"
        raise ConfigError("tools.yaml: description too long", seen=seen, fix=f"at most {_MAX_DESCRIPTION_CHARS} characters")
    check_text("tools.yaml", f"{entry.name}{entry.description}")


def _dump(value: Any) -> str:
    return _yaml_of(json.dumps(value))


@lru_cache(maxsize=1024)
def _yaml_of(text: str) -> str:
    """JSON as canonical YAML. Bundles of a search share most files, and emitting costs more than all else that makes a bundle.

    By PyYAML's own emitter, whatever is installed: libyaml escapes other characters, and these bytes are under the hash.
    """
    return str(yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True, width=140))


def _entry_yaml(entry: ToolEntry) -> dict[str, str]:
    if entry.composite:
        return {"composite": entry.name}
    values = {"tool": entry.name, "as": entry.shown, "description": entry.description}
    return {key: value for key, value in values.items() if value}


def _by_folder(files: Mapping[str, str]) -> dict[str, dict[str, str]]:
    parts: dict[str, dict[str, str]] = {folder: {} for folder in _FOLDERS}
    for name, text in files.items():
        if name in _FIXED_FILES:
            continue
        folder, _, base = name.partition("/")
        suffix = _FOLDERS.get(folder)
        if suffix is None or not base.endswith(suffix) or "/" in base:
            known = [*_FIXED_FILES, *(f"{key}/NAME{value}" for key, value in _FOLDERS.items())]
            raise ConfigError("a file that is no part of a harness", seen=name, fix=nearest(name, known))
        parts[folder][base.removesuffix(suffix)] = text
    return parts


def _read_tools(file: YamlFile) -> tuple[ToolEntry, ...]:
    if not isinstance(file.data, list):
        raise ConfigError(f"{file.name}:1: not a list", seen=type(file.data).__name__, fix="write `- tool: NAME` lines")
    return tuple(_read_entry(file, index, item) for index, item in enumerate(file.data))


def _read_entry(file: YamlFile, index: int, item: Any) -> ToolEntry:
    where = file.at_item(index)
    if not isinstance(item, dict) or ("tool" in item) == ("composite" in item):
        raise ConfigError(f"{where}: not a tool entry", seen=item, fix="write `- tool: NAME` or `- composite: NAME`")
    allowed = {"composite"} if "composite" in item else {"tool", "as", "description"}
    for key, value in item.items():
        if key not in allowed:
            raise ConfigError(f"{where}: unknown key", seen=key, fix=nearest(str(key), allowed))
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{where}: {key} is not text", seen=value, fix="write a word or a quoted string")
    if "composite" in item:
        return ToolEntry(item["composite"], composite=True)
    return ToolEntry(item["tool"], shown=item.get("as", ""), description=item.get("description", ""))


def _read_skill(name: str, text: str) -> Skill:
    first, _, rest = text.partition("\n")
    if not first.startswith("trigger:"):
        raise ConfigError(f"skills/{name}.md:1: no trigger", seen=first, fix="first line: trigger: some literal text")
    return Skill(first.removeprefix("trigger:").strip(), rest.strip("\n"))
