"""Experts that rewrite one turn: one strategy sentence and one tool call, in the weak model's own chat format.

Contract: `rewrite` sees the recorded episode up to the turn, the failed turn and the failed checkpoints (never the grader's expected
result) and returns up to N candidates, most likely first, without duplicates; an empty tuple says that the state can't be saved from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coevo.chat import Message, Role, ToolCall
from coevo.errors import ToolError
from coevo.formats.family import ChatFormat
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import SandboxPool
from coevo.harness.tools import resolve_tools
from coevo.models.reference import shown_call
from coevo.records import CallRecord, Episode
from coevo.tasks.family import Style, TaskFamily, TaskInstance, Unrecoverable, World

__all__ = ["Expert", "ReferenceExpert", "Rewrite", "world_at"]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One candidate turn. `text` is strategy and call as the weak model would have written them."""

    strategy: str
    call: ToolCall
    text: str


class Expert(Protocol):
    """See the module docstring."""

    @property
    def model_id(self) -> str: ...

    async def rewrite(self, episode: Episode, turn: int, *, n: int) -> tuple[Rewrite, ...]: ...


def world_at(family: TaskFamily, episode: Episode, turn: int) -> World:
    """The world as it stood before `turn`: reopened, with the logged calls applied again."""
    world = family.open(TaskInstance.parse(episode.spec.task_key))
    for call in episode.world_log[: episode.turns[turn].world_calls_before]:
        try:
            world.call(call.name, call.arguments)
        except ToolError:
            continue
    return world


@dataclass(frozen=True, slots=True)
class ReferenceExpert:
    """The family's reference policy as the rewriting expert.

    It offers its reactive move first (one turn of its own style), then its plan-first move; both act only on what the weak model could see.
    """

    family: TaskFamily
    bundle: HarnessBundle
    chat_format: ChatFormat
    sandboxes: SandboxPool

    @property
    def model_id(self) -> str:
        """`reference:<family>/<world version>`."""
        return f"reference:{self.family.name}/{self.family.world_version}"

    async def rewrite(self, episode: Episode, turn: int, *, n: int) -> tuple[Rewrite, ...]:
        """Up to `n` different moves from the state before `turn`."""
        world = world_at(self.family, episode, turn)
        tools = resolve_tools(self.bundle.tools, self.bundle.composites, self.family.tools(world.instance.size)).specs
        visible = [_message(episode, index) for index in episode.turns[turn].message_index]
        limited = self.bundle.context.keep_last_turns is not None
        found: dict[str, Rewrite] = {}
        for style in (Style.REACTIVE, Style.PLAN_FIRST):
            move = self.family.policy(style).move(world, visible, limited=limited)
            if isinstance(move, Unrecoverable):
                return ()
            call = shown_call(move, world, bundle=self.bundle, family=self.family, tools=tools, sandboxes=self.sandboxes)
            text = self.chat_format.render_turn(move.strategy, call, tools)
            found.setdefault(text, Rewrite(move.strategy, call, text))
        return tuple(found.values())[:n]


def _message(episode: Episode, index: int) -> Message:
    stored = episode.messages[index]
    return Message(Role(stored.role), stored.content, tuple(_call(call) for call in stored.calls))


def _call(call: CallRecord) -> ToolCall:
    return ToolCall(call.name, call.arguments)
