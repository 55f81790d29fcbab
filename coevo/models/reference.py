"""The family's reference policy as a ChatModel: the expert of the embedded default.

It reopens the world from the request's replayable position, asks the policy for its next family calls and says them in the harness's own
terms: renamed tools by their shown name, and a composite tool where one call does what the policy is about to do. So the same policy plays
under the base and under an evolved harness, and writes rewrites in the weak model's own format.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coevo.chat import Completion, ModelRequest, ToolCall, ToolSpec
from coevo.errors import ModelError, ToolError
from coevo.formats import chat_format
from coevo.formats.family import ChatFormat
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import SandboxPool, shared_pool
from coevo.harness.session import HarnessSession
from coevo.tasks import load_family
from coevo.tasks.family import Move, Policy, Style, TaskFamily, TaskInstance, Unrecoverable, World

__all__ = ["ReferenceModel", "ReferenceSource", "shown_call"]

_SESSIONS_KEPT = 512


class ReferenceModel:
    """See the module docstring. `complete` needs `request.view` (it plays only inside episodes) and raises `ModelError` without it."""

    def __init__(self, family: TaskFamily, style: Style, bundle: HarnessBundle, chat_format: ChatFormat, sandboxes: SandboxPool) -> None:
        self._family, self._style, self._bundle, self._format, self._sandboxes = family, style, bundle, chat_format, sandboxes
        self._policy: Policy = family.policy(style)
        self._worlds: OrderedDict[str, _Replayed] = OrderedDict()

    @property
    def model_id(self) -> str:
        """`reference:<family>/<world version>/<style>`."""
        return f"reference:{self._family.name}/{self._family.world_version}/{self._style}"

    async def aclose(self) -> None:
        """Forget all sessions."""
        self._worlds.clear()

    async def complete(self, request: ModelRequest) -> Completion:
        """The policy's next move as a turn in the chat format; from an unrecoverable state it finishes."""
        world = self.world(request)
        move = self._policy.move(world, request.messages, limited=request.view is not None and request.view.limited)
        if isinstance(move, Unrecoverable):
            return Completion(self._format.render_turn("", ToolCall("finish", {}), request.tools))
        call = shown_call(move, world, bundle=self._bundle, family=self._family, tools=request.tools, sandboxes=self._sandboxes)
        return Completion(self._format.render_turn(move.strategy, call, request.tools))

    def world(self, request: ModelRequest) -> World:
        """The episode's world at the request's position, replayed incrementally per session."""
        if request.view is None:
            raise ModelError("a reference policy plays only inside episodes", fix="call it through coevo.episode.play")
        replayed = self._worlds.get(request.session)
        calls = request.view.world_calls
        if replayed is None or replayed.applied != calls[: len(replayed.applied)]:
            replayed = _Replayed(self._family.open(TaskInstance.parse(request.view.task_key)), ())
        for call in calls[len(replayed.applied) :]:
            _apply(replayed.world, call)
        self._worlds[request.session] = _Replayed(replayed.world, calls)
        self._worlds.move_to_end(request.session)
        while len(self._worlds) > _SESSIONS_KEPT:
            self._worlds.popitem(last=False)
        return replayed.world


@dataclass(frozen=True, slots=True)
class _Replayed:
    world: World
    applied: tuple[ToolCall, ...]


def shown_call(
    move: Move, world: World, *, bundle: HarnessBundle, family: TaskFamily, tools: Sequence[ToolSpec], sandboxes: SandboxPool
) -> ToolCall:
    """The call that performs the start of `move.plan` with the tools a harness shows.

    A composite tool stands for the plan's start when, tried on a fork, it runs at least the first planned calls, settles nothing (the
    fork's grade is unchanged) and either does two planned calls or more, or the plain tool is hidden, or the prompt names it.
    """
    names = {entry.name: entry.shown_name for entry in bundle.tools if not entry.composite}
    shown = {tool.name for tool in tools}
    plain = names.get(move.call.name)
    best, best_covered = None, 0
    for tool in tools:
        if tool.name not in bundle.composites:
            continue
        arguments = _bind(tool, move.plan)
        covered, extra = (
            (0, False) if arguments is None else _covered(ToolCall(tool.name, arguments), move, world, bundle, family, sandboxes)
        )
        usable = plain not in shown or (not extra and (covered >= 2 or (covered == 1 and tool.name in bundle.system_prompt)))
        if arguments is not None and covered > best_covered and usable:
            best, best_covered = ToolCall(tool.name, arguments), covered
    if best is not None:
        return best
    return ToolCall(plain if plain is not None else move.call.name, move.call.arguments)


def _bind(tool: ToolSpec, plan: Sequence[ToolCall]) -> dict[str, Any] | None:
    """Arguments of a composite by name from the planned calls, the first call first; None when one is missing."""
    bound: dict[str, Any] = {}
    for name in tool.argument_names:
        for call in plan:
            if name in call.arguments:
                bound[name] = call.arguments[name]
                break
        else:
            return None
    return bound


def _covered(
    call: ToolCall, move: Move, world: World, bundle: HarnessBundle, family: TaskFamily, sandboxes: SandboxPool
) -> tuple[int, bool]:
    """(planned calls that the composite performs from the plan's start, whether it runs calls neither planned nor made before)."""
    fork = world.fork()
    before = fork.grade()
    session = HarnessSession(bundle, family.tools(world.instance.size), fork.call, sandboxes=sandboxes)
    try:
        outcome = session.execute(call, 0)
    finally:
        session.close()
    if outcome.error is not None or fork.grade() != before:
        return 0, True
    ran = [_key(one) for one in outcome.calls]
    covered = 0
    for planned in move.plan:
        if _key(planned) not in ran:
            break
        covered += 1
    known = {_key(one) for one in (*move.plan, *world.log)}
    return covered, any(one not in known for one in ran)


def _key(call: ToolCall) -> tuple[str, tuple[tuple[str, str], ...]]:
    return call.name, tuple(sorted((name, repr(value)) for name, value in call.arguments.items()))


def _apply(world: World, call: ToolCall) -> None:
    arguments: Mapping[str, Any] = call.arguments
    try:
        world.call(call.name, arguments)
    except ToolError:
        return


@dataclass(frozen=True, slots=True)
class ReferenceSource:
    """Picklable recipe of a `ReferenceModel` for one harness."""

    family: str
    style: Style
    bundle: HarnessBundle
    chat_format: str

    @property
    def model_id(self) -> str:
        """As `ReferenceModel.model_id`."""
        family = load_family(self.family)
        return f"reference:{family.name}/{family.world_version}/{self.style}"

    def open(self) -> ReferenceModel:
        """Build it; it shares the process's sandboxes."""
        return ReferenceModel(load_family(self.family), self.style, self.bundle, chat_format(self.chat_format), shared_pool())
