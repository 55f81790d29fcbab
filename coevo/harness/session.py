"""One harness in one episode: what the model is shown, what its calls become, and what the hooks add.

Synchronous and cheap. A bundle without hooks and composites never touches the sandbox. No component can raise out of a session; only
trouble of the world itself (`InfraError` and the like) passes through. What is switched off stays off for the episode: a hook at its first
failure; a composite when it passes a limit, or at its third exception of its own (one can be a rare case of the data, so it only refuses
that call); either when it has taken too long altogether. Every failure is a firing and a count, which the search holds against the harness.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from coevo.chat import Message, Role, ToolCall, ToolSpec
from coevo.errors import SandboxError, ToolError
from coevo.harness.bundle import HarnessBundle
from coevo.harness.context import ContextView, apply_policy
from coevo.harness.hooks import HookReturn, HookRunner
from coevo.harness.sandbox import HostFunction, SandboxFault, SandboxPool
from coevo.harness.tools import FINISH, ToolTable, ToolTarget, refuse_arguments, resolve_tools
from coevo.records import Firing

__all__ = ["Executed", "HarnessSession", "call_text"]

_DETAIL_CHARS = 200
_MAX_CRASHES = 3


@dataclass(frozen=True, slots=True)
class Executed:
    """What one call of the model came to.

    Attributes:
        value: JSON value of the observation; None when refused.
        error: When refused, what the model reads instead.
        notes: Text that the harness appends to the observation, in order.
        shown: The call after `rewrite_call`, in shown names; the given one otherwise.
        rewritten: Whether a hook rewrote the call.
        calls: The family calls that reached the world, refused ones included, in order.
    """

    value: Any
    error: str | None
    notes: tuple[str, ...]
    shown: ToolCall
    rewritten: bool
    calls: tuple[ToolCall, ...]


@dataclass(slots=True)
class _Step:
    """The growing outcome of one execute."""

    turn: int
    call: ToolCall
    notes: list[str]
    calls: list[ToolCall]
    value: Any = None
    error: str | None = None
    blocked: bool = False
    rewritten: bool = False


def call_text(call: ToolCall) -> str:
    """A call for people and notes: `name(argument=value, ...)`; strings bare, other values as JSON."""
    values = (value if isinstance(value, str) else orjson.dumps(value).decode() for value in call.arguments.values())
    return f"{call.name}({', '.join(f'{name}={value}' for name, value in zip(call.arguments, values, strict=True))})"


class HarnessSession:
    """A bundle bound to one world.

    Args:
        bundle: The harness.
        family_tools: The family's tools for this size.
        world_call: `World.call` of the episode's world.
        sandboxes: Where hooks and composites run.
        family: Name that fills the prompt's `{family}` slot.

    Raises:
        ConfigError: The bundle does not fit the family's tools.

    Attributes:
        tools: What the model is shown, in the order of `tools.yaml`.
        limits: The bundle's limits.
        system_prompt: The prompt with its slot filled.
        component_use: Effects by component: `hook:NAME`, `tool:NAME`, `skill:NAME`, `context`; failures under `error:` + that.
    """

    def __init__(
        self,
        bundle: HarnessBundle,
        family_tools: Sequence[ToolSpec],
        world_call: Callable[[str, Mapping[str, Any]], Any],
        *,
        sandboxes: SandboxPool,
        family: str = "",
    ) -> None:
        self._bundle = bundle
        self._table: ToolTable = resolve_tools(bundle.tools, bundle.composites, family_tools)
        self._world_call = world_call
        self._sandboxes = sandboxes
        self._program = bundle.program
        self._hooks = HookRunner(bundle.hook_components, call=self._run_hook, on_disable=self._hook_failed)
        self._dead_tools: set[str] = set()
        self._crashes: Counter[str] = Counter()
        self._spent_s: defaultdict[str, float] = defaultdict(float)
        self._skills_shown: set[str] = set()
        self._touched: set[int] = set()
        self._firings: list[Firing] = []
        self._use: Counter[str] = Counter()
        self.tools = self._table.specs
        self.limits = bundle.limits
        self.system_prompt = bundle.system_prompt.rstrip("\n").replace("{family}", family)

    @property
    def component_use(self) -> dict[str, int]:
        """Counts so far."""
        return dict(self._use)

    def start(self, instruction: str) -> list[Message]:
        """Messages to put behind the instruction: `on_start` injections, then skills that the instruction triggers."""
        payload = {"instruction": instruction, "tools": list(self._table.names)}
        return [*self._injections("on_start", payload), *self._skill_messages(instruction)]

    def before_model(self, turn: int, messages: Sequence[Message]) -> list[Message]:
        """User messages to append before the model is asked: skills triggered by the last observation, then injections."""
        observation = next((message.content for message in reversed(messages) if message.role is Role.TOOL), "")
        skills = self._skill_messages(observation)
        return [*skills, *self._injections("before_model", {"turn": turn, "last_observation": observation})]

    def after_model(self, turn: int, say: str, call: ToolCall | None) -> list[str]:
        """Notes for this turn's observation, from what the model wrote; `call` None for an unparseable turn."""
        notes: list[str] = []
        for name in self._hooks.listening("after_model"):
            payload = {"turn": turn, "say": say, "call": _call_json(self._inner(call)) if call is not None else None}
            self._note(name, "after_model", self._hooks.fire(name, "after_model", payload), notes)
        return notes

    def execute(self, call: ToolCall, turn: int) -> Executed:
        """Carry out one shown call: hooks may block or rewrite it, the tool runs, hooks see the result.

        `after_tool` hooks see every observation, refused and blocked ones included.
        """
        step = _Step(turn, self._inner(call), [], [])
        target = self._table.targets.get(call.name)
        if target is None:
            step.error = f"unknown tool {call.name}"
        else:
            self._before(step)
            if not step.blocked:
                self._run(step, self._table.targets[self._shown_name(step.call)])
        self._after(step)
        shown = ToolCall(self._shown_name(step.call), step.call.arguments) if step.rewritten else call
        return Executed(step.value, step.error, tuple(step.notes), shown, step.rewritten, tuple(step.calls))

    def view(self, messages: Sequence[Message]) -> ContextView:
        """What the model sees of the conversation; newly hidden or changed messages count as one `context` firing each."""
        view = apply_policy(self._bundle.context, messages)
        for position in view.touched:
            if position not in self._touched:
                self._touched.add(position)
                self._fired("context", "view", "elide", f"message {position}")
        return view

    def take_firings(self) -> tuple[Firing, ...]:
        """Firings since the last take."""
        firings, self._firings = tuple(self._firings), []
        return firings

    def snapshot(self) -> dict[str, Any]:
        """The harness's own state as JSON: with the messages and the world's log it is everything a replay branch needs."""
        return {
            "states": dict(self._hooks.states),
            "disabled": sorted(self._hooks.disabled),
            "dead_tools": sorted(self._dead_tools),
            "crashes": dict(self._crashes),
            "skills": sorted(self._skills_shown),
            "touched": sorted(self._touched),
            "use": dict(self._use),
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Return to a `snapshot` of the same bundle."""
        copied = orjson.loads(orjson.dumps(dict(snapshot)))
        self._hooks.states = copied["states"]
        self._hooks.disabled = set(copied["disabled"])
        self._dead_tools = set(copied["dead_tools"])
        self._crashes = Counter(copied["crashes"])
        self._skills_shown = set(copied["skills"])
        self._touched = set(copied["touched"])
        self._use = Counter(copied["use"])
        self._firings = []

    def close(self) -> None:
        """End the session. Sandboxes belong to the pool, so nothing is held."""
        self._firings = []

    def _inner(self, call: ToolCall) -> ToolCall:
        """The call in the names that hooks see."""
        target = self._table.targets.get(call.name)
        return call if target is None or target.name == call.name else ToolCall(target.name, call.arguments)

    def _shown_name(self, call: ToolCall) -> str:
        return self._table.shown(call.name) or call.name

    def _before(self, step: _Step) -> None:
        event = "before_finish" if step.call.name == FINISH else "before_tool"
        for name in self._hooks.listening(event):
            effects = self._hooks.fire(name, event, {"turn": step.turn, "call": _call_json(step.call)})
            if effects.rewrite_call is not None and effects.rewrite_call != step.call:
                self._rewrite(step, name, effects.rewrite_call)
            self._note(name, event, effects, step.notes)
            if effects.block_call is not None:
                self._fired(f"hook:{name}", event, "block_call", effects.block_call)
                step.error, step.blocked = effects.block_call, True
                return

    def _rewrite(self, step: _Step, name: str, call: ToolCall) -> None:
        shown = self._table.shown(call.name)
        if shown is None or call.name == FINISH:
            reason = "rewrite_call may not finish" if call.name == FINISH else f"rewrite_call to a tool that is not shown: {call.name}"
            self._hooks.disable(name, "before_tool", reason)
            return
        step.call, step.rewritten = call, True
        text = call_text(ToolCall(shown, call.arguments))
        step.notes.append(f"rewritten {text}")
        self._fired(f"hook:{name}", "before_tool", "rewrite_call", text)

    def _run(self, step: _Step, target: ToolTarget) -> None:
        if target.entry:
            self._run_composite(step, target)
            return
        try:
            step.value = self._call_world(step, target.name, step.call.arguments)
        except ToolError as error:
            step.error = error.what

    def _call_world(self, step: _Step, name: str, arguments: Mapping[str, Any]) -> Any:
        step.calls.append(ToolCall(name, dict(arguments)))
        return self._world_call(name, arguments)

    def _run_composite(self, step: _Step, target: ToolTarget) -> None:
        name = target.name
        step.error = "this tool does not work" if name in self._dead_tools else refuse_arguments(target.spec, step.call.arguments)
        if step.error is not None:
            return
        host = {family: self._host_function(step, family) for family in self._table.host_names}
        try:
            step.value = self._in_sandbox(f"tool:{name}", target.entry, keywords=step.call.arguments, host=host)
        except SandboxFault as error:
            step.error = error.tool_error or f"{name} failed: {error.seen}"
            if error.tool_error is None:
                self._crashed(name, str(error.seen))
        except SandboxError as error:
            step.error = f"{name} failed"
            self._kill_tool(name, f"{error.what}: {error.seen}")
            return
        self._fired(f"tool:{name}", "execute", "run", call_text(step.call))

    def _crashed(self, name: str, reason: str) -> None:
        self._fired(f"tool:{name}", "execute", "error", reason)
        self._crashes[name] += 1
        if self._crashes[name] >= _MAX_CRASHES:
            self._kill_tool(name, f"raised {_MAX_CRASHES} times, the last time {reason}")

    def _kill_tool(self, name: str, reason: str) -> None:
        self._dead_tools.add(name)
        self._fired(f"tool:{name}", "execute", "disabled", reason)

    def _host_function(self, step: _Step, name: str) -> Callable[..., Any]:
        return lambda **arguments: self._call_world(step, name, arguments)

    def _after(self, step: _Step) -> None:
        for name in self._hooks.listening("after_tool"):
            result = step.error if step.error is not None else step.value
            payload = {"turn": step.turn, "call": _call_json(step.call), "result": result, "error": step.error is not None}
            effects = self._hooks.fire(name, "after_tool", {**payload, "blocked": step.blocked})
            if effects.replaces:
                self._replace(step, name, effects.replace_result)
            self._note(name, "after_tool", effects, step.notes)

    def _replace(self, step: _Step, name: str, value: Any) -> None:
        """A refusal stays a refusal: a hook may only word it differently."""
        if step.error is None:
            step.value = value
        elif isinstance(value, str):
            step.error = value
        else:
            self._hooks.disable(name, "after_tool", "replace_result of a refused call must be text")
            return
        self._fired(f"hook:{name}", "after_tool", "replace_result", orjson.dumps(value).decode())

    def _note(self, name: str, event: str, effects: HookReturn, notes: list[str]) -> None:
        if effects.note is not None:
            notes.append(effects.note)
            self._fired(f"hook:{name}", event, "note", effects.note)

    def _injections(self, event: str, payload: dict[str, Any]) -> list[Message]:
        messages: list[Message] = []
        for name in self._hooks.listening(event):
            text = self._hooks.fire(name, event, payload).inject_message
            if text is not None:
                messages.append(Message(Role.USER, text))
                self._fired(f"hook:{name}", event, "inject_message", text)
        return messages

    def _skill_messages(self, text: str) -> list[Message]:
        messages: list[Message] = []
        for name, skill in self._bundle.skills.items():
            if name not in self._skills_shown and skill.trigger in text:
                self._skills_shown.add(name)
                messages.append(Message(Role.USER, skill.text))
                self._fired(f"skill:{name}", "observation", "inject_message", skill.trigger)
        return messages

    def _run_hook(self, name: str, entry: str, arguments: tuple[Any, ...]) -> Any:
        return self._in_sandbox(f"hook:{name}", entry, arguments)

    def _in_sandbox(
        self,
        component: str,
        entry: str,
        arguments: tuple[Any, ...] = (),
        keywords: Mapping[str, Any] | None = None,
        host: Mapping[str, HostFunction] | None = None,
    ) -> Any:
        """Call a component, within what its episode still allows it. Raises `SandboxError` like `Sandbox.call`."""
        spent_s, limit_s = self._spent_s[component], self._sandboxes.limits.component_s
        if spent_s > limit_s:
            seen = f"{spent_s:.1f} s in this episode"
            raise SandboxError("a component is too slow", seen=seen, fix=f"stay below {limit_s:g} s an episode")
        with self._sandboxes.checkout(self._program) as sandbox:
            try:
                return sandbox.call(entry, arguments, keywords, host=host)
            finally:
                self._spent_s[component] += sandbox.spent_s

    def _hook_failed(self, name: str, event: str, reason: str) -> None:
        self._fired(f"hook:{name}", event, "disabled", reason)

    def _fired(self, component: str, event: str, effect: str, detail: str) -> None:
        failed = effect in {"error", "disabled"}
        self._use[f"error:{component}" if failed else component] += 1
        self._firings.append(Firing(component=component, event=event, effect=effect, detail=detail[:_DETAIL_CHARS]))


def _call_json(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": dict(call.arguments)}
