"""Experts that rewrite one turn: one strategy sentence and one tool call, in the weak model's own chat format.

Contract (`tests/contract/test_experts.py`): `rewrite` sees the recorded episode up to the turn, the failed turn and the failed checkpoints
(never the grader's expected result) and offers up to N candidates, most likely first, without duplicates; none says that the state can't
be saved from there, or that no answer could be used. Whatever the expert wrote that could not be used is in the offer with its reason, and
so is what the answers took. Backend trouble is `InfraError`, and nothing else is raised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from coevo.chat import Message, Role, ToolCall
from coevo.episode import Agent
from coevo.formats.family import ChatFormat
from coevo.harness.bundle import HarnessBundle
from coevo.harness.context import apply_policy
from coevo.harness.sandbox import SandboxPool, shared_pool
from coevo.harness.tools import resolve_tools
from coevo.models.reference import shown_call
from coevo.records import CallRecord, Episode, ExpertUse, RejectedRewrite
from coevo.rewrite.turn import Rewrite
from coevo.tasks.family import Style, TaskFamily, TaskInstance, Unrecoverable, World
from coevo.tasks.world import replay

__all__ = ["Expert", "ExpertSource", "Offer", "ReferenceExpert", "ReferenceExpertSource", "Rewrite", "visible_at", "world_at"]


@dataclass(frozen=True, slots=True)
class Offer:
    """What an expert came to at one turn.

    Attributes:
        rewrites: Usable candidates, most likely first.
        rejected: Unusable answers and why.
        use: Calls, tokens and dollars of all of them.
    """

    rewrites: tuple[Rewrite, ...]
    rejected: tuple[RejectedRewrite, ...] = ()
    use: ExpertUse = field(default_factory=ExpertUse)


class Expert(Protocol):
    """See the module docstring."""

    @property
    def model_id(self) -> str: ...

    async def rewrite(self, episode: Episode, turn: int, *, n: int) -> Offer: ...

    async def aclose(self) -> None: ...


class ExpertSource(Protocol):
    """Picklable recipe of an expert for one agent; `open` is called in the worker that uses it."""

    def open(self, agent: Agent, family: TaskFamily) -> Expert: ...


def visible_at(bundle: HarnessBundle, episode: Episode, turn: int) -> tuple[Message, ...]:
    """What the weak model saw at `turn`, its harness's context policy applied."""
    seen = episode.turns[turn].message_index
    return apply_policy(bundle.context, [_message(episode, index) for index in range(max(seen) + 1)]).messages


def world_at(family: TaskFamily, episode: Episode, turn: int) -> World:
    """The world as it stood before `turn`: reopened, with the logged calls applied again."""
    calls = (_call(call) for call in episode.world_log[: episode.turns[turn].world_calls_before])
    return replay(family, TaskInstance.parse(episode.spec.task_key), calls)


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

    async def rewrite(self, episode: Episode, turn: int, *, n: int) -> Offer:
        """Up to `n` different moves from the state before `turn`."""
        world = world_at(self.family, episode, turn)
        tools = resolve_tools(self.bundle.tools, self.bundle.composites, self.family.tools(world.instance.size)).specs
        visible = [_message(episode, index) for index in episode.turns[turn].message_index]
        limited = self.bundle.context.keep_last_turns is not None
        found: dict[str, Rewrite] = {}
        for style in (Style.REACTIVE, Style.PLAN_FIRST):
            move = self.family.policy(style).move(world, visible, limited=limited)
            if isinstance(move, Unrecoverable):
                return Offer(())
            call = shown_call(move, world, bundle=self.bundle, family=self.family, tools=tools, sandboxes=self.sandboxes)
            text = self.chat_format.render_turn(move.strategy, call, tools)
            found.setdefault(text, Rewrite(move.strategy, call, text))
        return Offer(tuple(found.values())[:n])

    async def aclose(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True, slots=True)
class ReferenceExpertSource:
    """Recipe of a `ReferenceExpert`."""

    def open(self, agent: Agent, family: TaskFamily) -> ReferenceExpert:
        """Build it for the agent's harness and format."""
        return ReferenceExpert(family, agent.bundle, agent.chat_format, shared_pool())


def _message(episode: Episode, index: int) -> Message:
    stored = episode.messages[index]
    return Message(Role(stored.role), stored.content, tuple(_call(call) for call in stored.calls))


def _call(call: CallRecord) -> ToolCall:
    return ToolCall(call.name, call.arguments)
