"""Hooks: small functions on the events of an episode, with a state of their own and effects from a closed list.

`HookRunner.fire` calls one hook and reads its return. Whatever is not an allowed effect of that event disables the hook for the rest of
the episode; it never raises. In events and rewrites, family tools go by their family names and composites by their own, so that
renaming a tool for the model does not break a hook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coevo.chat import ToolCall
from coevo.errors import SandboxError
from coevo.harness.sandbox import plain_json
from coevo.harness.source import Component, ComponentKind, entry_name

__all__ = ["ALLOWED_EFFECTS", "HookReturn", "HookRunner", "read_return"]

ALLOWED_EFFECTS: Mapping[str, frozenset[str]] = {
    "on_start": frozenset({"state", "inject_message"}),
    "before_model": frozenset({"state", "inject_message"}),
    "after_model": frozenset({"state", "note"}),
    "before_tool": frozenset({"state", "note", "rewrite_call", "block_call"}),
    "after_tool": frozenset({"state", "note", "replace_result"}),
    "before_finish": frozenset({"state", "note", "block_call"}),
}
"""Event -> keys that a hook may return for it."""

MAX_NOTE_CHARS = 600
MAX_MESSAGE_CHARS = 2000
MAX_STATE_CHARS = 8192
MAX_STATE_NODES = 2048


@dataclass(frozen=True, slots=True)
class HookReturn:
    """A hook's effects, checked. `replaces` tells a replaced result of None from no replacement."""

    note: str | None = None
    rewrite_call: ToolCall | None = None
    block_call: str | None = None
    replace_result: Any = None
    replaces: bool = False
    inject_message: str | None = None
    state: dict[str, Any] | None = None


def read_return(event: str, value: Any) -> HookReturn:
    """Check what a hook returned. Raises `SandboxError` with the reason when it is not allowed."""
    if value is None:
        return HookReturn()
    if not isinstance(value, dict):
        raise SandboxError("a hook returns a dict or None", seen=type(value).__name__, fix="return {'note': ...} or nothing")
    allowed = ALLOWED_EFFECTS[event]
    for key in value:
        if key not in allowed:
            raise SandboxError(f"{event} can't return this key", seen=key, fix=f"allowed: {', '.join(sorted(allowed))}")
    state = value.get("state")
    if state is not None:
        if not isinstance(state, dict):
            raise SandboxError("a hook's state is a dict", seen=type(state).__name__, fix="return {'state': {...}}")
        plain_json(state, max_chars=MAX_STATE_CHARS, max_nodes=MAX_STATE_NODES)
    return HookReturn(
        note=_text(value, "note", MAX_NOTE_CHARS),
        rewrite_call=_call(value.get("rewrite_call")),
        block_call=_text(value, "block_call", MAX_MESSAGE_CHARS),
        replace_result=value.get("replace_result"),
        replaces="replace_result" in value,
        inject_message=_text(value, "inject_message", MAX_MESSAGE_CHARS),
        state=state,
    )


def _text(value: Mapping[str, Any], key: str, limit: int) -> str | None:
    text = value.get(key)
    if text is None or text == "":
        return None
    if not isinstance(text, str):
        raise SandboxError(f"{key} is text", seen=type(text).__name__, fix="return a string")
    if len(text) > limit:
        raise SandboxError(f"{key} is too long", seen=f"{len(text)} characters", fix=f"at most {limit}")
    return text


def _call(value: Any) -> ToolCall | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != {"name", "arguments"} or not isinstance(value["arguments"], dict):
        raise SandboxError("rewrite_call is {name, arguments}", seen=str(value)[:100], fix="return both keys, arguments as a dict")
    if not isinstance(value["name"], str):
        raise SandboxError("rewrite_call's name is text", seen=type(value["name"]).__name__, fix="name a shown tool")
    return ToolCall(value["name"], value["arguments"])


class HookRunner:
    """The hooks of one bundle in one episode: their states and which of them are disabled.

    Args:
        components: Compiled hooks, in the order in which they fire (by name).
        call: Calls a hook (by name) at an entry of the linked program in a sandbox with positional arguments; raises only
            `SandboxError`.
        on_disable: Called with hook name, event and reason when a hook is switched off.
    """

    def __init__(
        self,
        components: tuple[Component, ...],
        *,
        call: Callable[[str, str, tuple[Any, ...]], Any],
        on_disable: Callable[[str, str, str], None],
    ) -> None:
        self._by_event: dict[str, list[str]] = {}
        for component in components:
            for event in component.functions:
                self._by_event.setdefault(event, []).append(component.name)
        self._call = call
        self._on_disable = on_disable
        self.states: dict[str, dict[str, Any]] = {}
        self.disabled: set[str] = set()

    def listening(self, event: str) -> tuple[str, ...]:
        """Hooks that still listen to `event`, in firing order."""
        return tuple(name for name in self._by_event.get(event, ()) if name not in self.disabled)

    def fire(self, name: str, event: str, payload: dict[str, Any]) -> HookReturn:
        """Call one hook; on any failure disable it and return no effect."""
        try:
            value = self._call(name, entry_name(ComponentKind.HOOK, name, event), (payload, self.states.get(name, {})))
            effects = read_return(event, value)
        except SandboxError as error:
            self.disable(name, event, f"{error.what}: {error.seen}" if error.seen is not None else error.what)
            return HookReturn()
        if effects.state is not None:
            self.states[name] = effects.state
        return effects

    def disable(self, name: str, event: str, reason: str) -> None:
        """Switch a hook off for the rest of the episode."""
        self.disabled.add(name)
        self._on_disable(name, event, reason)
