"""A harness edit as data: typed changes of single components that apply, invert and diff.

A component has an address: `prompt`, `hook:NAME`, `tool:NAME` (the source of a composite tool), `skill:NAME`, `entry:NAME` (one line of
`tools.yaml`), `tools` (all its lines: a new order), `context:FIELD` and `limits:FIELD`. A change names the address and its text before and
after; text absent before is an addition, absent after a removal. `apply_changes` refuses a change whose `old` is not what stands there, so
changes made for one harness can be tried on another and never overwrite what they did not see. For every two harnesses
`apply_changes(a, changes_between(a, b))` equals `b`, and `invert` leads back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from coevo.errors import ConfigError, nearest
from coevo.harness.bundle import HarnessBundle
from coevo.yamltext import read_yaml

__all__ = ["Action", "Change", "ComponentRole", "apply_changes", "changes_between", "component_texts", "invert"]


class ComponentRole(StrEnum):
    """What part of a harness an address names: the word before its colon."""

    PROMPT = "prompt"
    """The system prompt. It can be changed only."""
    TOOLS = "tools"
    """All lines of `tools.yaml` as a JSON list: for a new order. It can be changed only."""
    ENTRY = "entry"
    """One line of `tools.yaml` as a JSON object: a family tool shown, renamed or described, or a composite listed."""
    TOOL = "tool"
    """Source of a composite tool. It needs an `entry` of its name."""
    HOOK = "hook"
    """Source of a hook."""
    SKILL = "skill"
    """A skill's file: `trigger: LITERAL`, then the text."""
    CONTEXT = "context"
    """One field of `context.yaml` as JSON. It can be changed only."""
    LIMITS = "limits"
    """One limit of `harness.yaml` as JSON. It can be changed only."""


class Action(StrEnum):
    """What a change does to its component."""

    ADD = "add"
    """It was not there."""
    CHANGE = "change"
    """It was there and stays."""
    REMOVE = "remove"
    """It is gone."""


_SINGLE = (ComponentRole.PROMPT, ComponentRole.TOOLS)
_FIXED = (*_SINGLE, ComponentRole.CONTEXT, ComponentRole.LIMITS)
_FOLDERS = {
    ComponentRole.TOOL: ("tools/", ".py"),
    ComponentRole.HOOK: ("hooks/", ".py"),
    ComponentRole.SKILL: ("skills/", ".md"),
}
_SHOWN_CHARS = 120


class Change(BaseModel):
    """One component before and after. Stored inside records.

    Attributes:
        component: Address.
        old: Its text before; None when it was not there.
        new: Its text after; None when it is gone.
        before: For `entry:NAME`: the entry that stands behind it, empty for none; elsewhere empty.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    component: str
    old: str | None = None
    new: str | None = None
    before: str = ""

    @model_validator(mode="after")
    def _does_something(self) -> Change:
        if self.old == self.new:
            raise ValueError(f"{self.component}: a change needs different texts before and after")
        return self

    @property
    def role(self) -> ComponentRole:
        """What the address names. Raises `ConfigError` for an address that names nothing."""
        return _parse(self.component)[0]

    @property
    def name(self) -> str:
        """The part of the address behind the colon; empty for `prompt` and `tools`."""
        return _parse(self.component)[1]

    @property
    def action(self) -> Action:
        """See `Action`."""
        if self.old is None:
            return Action.ADD
        return Action.REMOVE if self.new is None else Action.CHANGE


def apply_changes(bundle: HarnessBundle, changes: Sequence[Change]) -> HarnessBundle:
    """The harness with all changes made, in order; a child of `bundle`. Only the result must be whole, not what lies between.

    Raises:
        ConfigError: A component is not as a change saw it, an address names nothing, or the result is no valid harness.
    """
    parts = _Parts(bundle)
    for change in changes:
        parts.apply(change)
    return HarnessBundle.from_files(parts.files()).replace(parent=bundle.hash)


def invert(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Changes that lead back from where `changes` lead to."""
    return tuple(change.model_copy(update={"old": change.new, "new": change.old}) for change in reversed(changes))


def changes_between(first: HarnessBundle, second: HarnessBundle) -> tuple[Change, ...]:
    """Changes that lead from `first` to `second`: empty exactly when they behave alike."""
    old, new = component_texts(first), component_texts(second)
    listed = f"{ComponentRole.ENTRY}:"
    plain = [name for name in dict.fromkeys([*old, *new]) if name != ComponentRole.TOOLS and not name.startswith(listed)]
    changes = [Change(component=name, old=old.get(name), new=new.get(name)) for name in plain if old.get(name) != new.get(name)]
    return (*changes, *_entry_changes(_Parts(first).entries, _Parts(second).entries))


def component_texts(bundle: HarnessBundle) -> dict[str, str]:
    """Every component's text by address, `tools` and the single entries both."""
    return _Parts(bundle).texts()


class _Parts:
    """A bundle taken apart: its files, with the YAML ones parsed."""

    def __init__(self, bundle: HarnessBundle) -> None:
        texts = bundle.files()
        self.head: dict[str, Any] = read_yaml(texts.pop("harness.yaml"))
        self.entries: list[dict[str, str]] = read_yaml(texts.pop("tools.yaml"))
        self.context: dict[str, Any] = read_yaml(texts.pop("context.yaml"))
        self.sources = texts

    def files(self) -> dict[str, str]:
        dumped = {"harness.yaml": self.head, "tools.yaml": self.entries, "context.yaml": self.context}
        return {**self.sources, **{name: yaml.safe_dump(value, sort_keys=False, allow_unicode=True) for name, value in dumped.items()}}

    def texts(self) -> dict[str, str]:
        found = {"prompt": self.sources["prompt/system.md"], "tools": _dump(self.entries)}
        found |= {f"entry:{_entry_name(entry)}": _dump(entry) for entry in self.entries}
        found |= {f"limits:{name}": _dump(value) for name, value in self.head["limits"].items()}
        found |= {f"context:{name}": _dump(value) for name, value in self.context.items()}
        for role, (folder, suffix) in _FOLDERS.items():
            names = [name for name in self.sources if name.startswith(folder)]
            found |= {f"{role}:{name.removeprefix(folder).removesuffix(suffix)}": self.sources[name] for name in names}
        return found

    def apply(self, change: Change) -> None:
        role, name = _parse(change.component)
        held = self.texts().get(change.component)
        if held != change.old:
            seen = f"{change.component}: {_short(held)}; the change expects {_short(change.old)}"
            raise ConfigError("an edit does not fit this harness", seen=seen, fix="make it from this harness, or apply what comes before")
        if role in _FIXED and change.action is not Action.CHANGE:
            known = [address for address in self.texts() if _parse(address)[0] in _FIXED]
            raise ConfigError("this component can only be changed", seen=change.component, fix=nearest(change.component, known))
        if role in _FOLDERS:
            folder, suffix = _FOLDERS[role]
            _put(self.sources, f"{folder}{name}{suffix}", change.new)
        elif role is ComponentRole.ENTRY:
            self._apply_entry(change)
        elif role is ComponentRole.PROMPT:
            self.sources["prompt/system.md"] = change.new or ""
        elif role is ComponentRole.TOOLS:
            self.entries = _load(change)
        else:
            (self.context if role is ComponentRole.CONTEXT else self.head["limits"])[name] = _load(change)

    def _apply_entry(self, change: Change) -> None:
        names = [_entry_name(entry) for entry in self.entries]
        if change.old is not None and change.new is not None:
            self.entries[names.index(change.name)] = _load(change)
        elif change.new is None:
            del self.entries[names.index(change.name)]
        else:
            self.entries.insert(names.index(change.before) if change.before in names else len(names), _load(change))


def _entry_changes(old: Sequence[dict[str, str]], new: Sequence[dict[str, str]]) -> list[Change]:
    """Line by line where lines keep their order, else the whole list."""
    before, after = {_entry_name(entry): entry for entry in old}, {_entry_name(entry): entry for entry in new}
    ordered = [name for name in before if name in after] == [name for name in after if name in before]
    if len(before) != len(old) or len(after) != len(new) or not ordered:
        return [Change(component=ComponentRole.TOOLS.value, old=_dump(list(old)), new=_dump(list(new)))] if list(old) != list(new) else []
    changes: list[Change] = []
    names = list(before)
    for name in [name for name in reversed(names) if name not in after]:
        index = names.index(name)
        names.remove(name)
        changes.append(Change(component=f"entry:{name}", old=_dump(before[name]), before=(*names, "")[index]))
    both = [name for name in before if name in after and before[name] != after[name]]
    changes += [Change(component=f"entry:{name}", old=_dump(before[name]), new=_dump(after[name])) for name in both]
    following = dict(zip(after, [*list(after)[1:], ""], strict=True))
    added = [name for name in reversed(list(after)) if name not in before]
    return changes + [Change(component=f"entry:{name}", new=_dump(after[name]), before=following[name]) for name in added]


def _parse(component: str) -> tuple[ComponentRole, str]:
    word, colon, name = component.partition(":")
    roles = [role.value for role in ComponentRole]
    if word not in roles or bool(colon) != (word not in _SINGLE) or (colon and not name):
        fix = f"{nearest(word, roles)}; all but {' and '.join(_SINGLE)} are followed by :NAME"
        raise ConfigError("this names no component of a harness", seen=component, fix=fix)
    return ComponentRole(word), name


def _entry_name(entry: Mapping[str, str]) -> str:
    return entry.get("composite") or entry["tool"]


def _put(texts: dict[str, str], name: str, text: str | None) -> None:
    if text is None:
        del texts[name]
    else:
        texts[name] = text


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _load(change: Change) -> Any:
    try:
        return json.loads(change.new or "")
    except json.JSONDecodeError as error:
        raise ConfigError(f"{change.component}: not JSON", seen=_short(change.new), fix=f"{error.msg}: write a JSON value") from error


def _short(text: str | None) -> str:
    if text is None:
        return "nothing there"
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")
