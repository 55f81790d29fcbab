"""A drill for localizers: failed episodes whose one wrong turn is known, and a weak agent that keeps making that mistake.

The weak agent is scripted and has stated habits. It works as the family's reference policy in reactive style does, with three flaws. Where
the fault's intended call is due, it makes the wrong one with probability `strength`. It then goes on *believing* that it did right: what it
does next follows from the world as it would be, so the mistake is neither seen nor mended, and later turns are those of an agent at ease.
And at every turn it gives up, finishing early, with probability `slip`. Nothing is special about the faulty turn in the record.

A case counts when the episode with the fault fails and the same episode with that one turn restored succeeds, both continued without slips.
So the label is exact for this agent. Limits: one mistake per episode; the agent is as good as the reference elsewhere; harnesses that hide
old turns or add tools of their own are refused, because belief is laid over the visible messages one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from coevo.chat import Completion, Message, ModelRequest, Role, Sampling, ToolCall, Usage
from coevo.episode import Agent, ForcedTurn, forced_prefix, play
from coevo.errors import ConfigError, ModelError, ToolError
from coevo.formats import chat_format
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import shared_pool
from coevo.identity import content_hash, derive_seed
from coevo.localize.faults import Fault, FaultKind, Script, delayed_faults, faults
from coevo.models.reference import ReferenceModel, ReferenceSource
from coevo.records import Episode
from coevo.rollout import AgentSource
from coevo.tasks import load_family
from coevo.tasks.family import Style, TaskFamily, TaskInstance
from coevo.tasks.world import TERMINAL_TOOL, replay

__all__ = ["DRILL_FORMAT", "Believer", "BelieverSource", "Case", "cases", "right_episode"]

DRILL_FORMAT = "hermes"
"""Chat format of drilled episodes: it can say every call of every family."""

_TRIED = 16
"""Faults of one kind played per instance, at most; those whose wrong call writes come first, because others are often mended."""

_CONTEXT_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """One failed episode and the turn that is to blame."""

    fault: Fault
    episode: Episode
    agent: AgentSource

    @property
    def delay(self) -> int:
        """Turns from the fault to the first write that it made wrong; 0 when the turn does the harm itself."""
        effect, turns = self.fault.effect, self.episode.turns
        if effect is None:
            return 0
        made = [ToolCall(turn.executed[0].name, turn.executed[0].arguments) if turn.executed else None for turn in turns]
        return next((turn - self.fault.turn for turn in range(self.fault.turn, len(made)) if made[turn] == effect.wrong), 0)


class Believer:
    """`ChatModel`: see the module docstring. It plays only inside episodes."""

    def __init__(self, source: BelieverSource) -> None:
        self._source = source
        self._family = load_family(source.family)
        self._format = chat_format(DRILL_FORMAT)
        self._inner: ReferenceModel = ReferenceSource(source.family, Style.REACTIVE, source.bundle, DRILL_FORMAT).open()
        self._results: dict[tuple[str, int], str] = {}

    @property
    def model_id(self) -> str:
        """As the source's."""
        return self._source.model_id

    async def aclose(self) -> None:
        """Forget all sessions."""
        await self._inner.aclose()

    async def complete(self, request: ModelRequest) -> Completion:
        """The next turn, mistakes included.

        Raises:
            ModelError: Asked outside an episode, or under a harness that hides turns.
        """
        if request.view is None:
            raise ModelError("a drilled agent plays only inside episodes", fix="call it through coevo.episode.play")
        draw, fault = Random(request.seed), self._source.fault
        if draw.random() < self._source.slip:
            return self._say(ToolCall(TERMINAL_TOOL, {}), request)
        made = request.view.world_calls
        belief = self._believed(made)
        recalled = self._recalled(request, made, belief, request.view.task_key)
        imagined = replace(request, messages=recalled, view=replace(request.view, world_calls=belief), model_id="")
        completion = await self._inner.complete(imagined)
        call = self._format.parse(completion.text, request.tools).call
        if fault is None or call is None:
            return self._billed(completion)
        if call == fault.intended and belief.count(call) == self._source.occurrence and draw.random() < self._source.strength:
            return self._say(fault.made, request)
        effect = fault.effect
        if effect is not None and call == effect.right and made.count(fault.intended) <= self._source.occurrence:
            return self._say(effect.wrong, request)
        return self._billed(completion)

    def _believed(self, made: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """The log as the agent remembers it: its mistake as what it meant to do."""
        fault = self._source.fault
        if fault is None:
            return made
        believed: list[ToolCall] = []
        seen = 0
        for call in made:
            missing = believed.count(fault.intended) == self._source.occurrence
            if call == fault.made and seen == self._source.made_before and missing:
                believed.append(fault.believed)
            elif fault.effect is not None and call == fault.effect.wrong:
                believed.append(fault.effect.right)
            else:
                believed.append(call)
            seen += call == fault.made
        return tuple(believed)

    def _recalled(
        self, request: ModelRequest, made: tuple[ToolCall, ...], belief: tuple[ToolCall, ...], task_key: str
    ) -> tuple[Message, ...]:
        """The visible messages with the misremembered turns as the agent has them in mind."""
        changed = [index for index, (one, other) in enumerate(zip(made, belief, strict=True)) if one != other]
        if not changed:
            return request.messages
        messages, places = list(request.messages), [n for n, message in enumerate(request.messages) if message.calls]
        if len(places) != len(made):
            raise ModelError("a drilled agent must see every turn", seen=f"{len(places)} of {len(made)}", fix="use the base harness")
        for index in changed:
            place = places[index]
            text = self._format.render_turn("", belief[index], request.tools)
            messages[place] = Message(Role.ASSISTANT, text, (belief[index],))
            messages[place + 1] = Message(Role.TOOL, self._imagined(request.session, task_key, belief[: index + 1]))
        return tuple(messages)

    def _imagined(self, session: str, task_key: str, belief: tuple[ToolCall, ...]) -> str:
        """What the last believed call would have been answered."""
        key = (session, len(belief))
        if key not in self._results:
            world = replay(self._family, TaskInstance.parse(task_key), belief[:-1])
            try:
                value = world.call(belief[-1].name, belief[-1].arguments)
            except ToolError as error:
                value = {"error": error.what}
            self._results[key] = self._format.render_observation(value)
        return self._results[key]

    def _say(self, call: ToolCall, request: ModelRequest) -> Completion:
        return self._billed(Completion(self._format.render_turn("", call, request.tools)))

    def _billed(self, completion: Completion) -> Completion:
        """One token per four characters, so that budgets and records have something to count."""
        return replace(completion, usage=Usage(0, 0, max(1, len(completion.text) // 4)))


@dataclass(frozen=True, slots=True)
class BelieverSource:
    """Recipe of a `Believer`; picklable.

    Attributes:
        family: Family name.
        bundle: The harness, one that shows every turn and every family tool by its own name.
        fault: The habit; None for an agent without one.
        occurrence: How many equal calls stand before the intended one in the right episode.
        made_before: How many calls equal to the wrong one stand before it.
        strength: Probability of the mistake where it is due.
        slip: Probability of giving up, per turn.
    """

    family: str
    bundle: HarnessBundle
    fault: Fault | None = None
    occurrence: int = 0
    made_before: int = 0
    strength: float = 1.0
    slip: float = 0.0

    @property
    def model_id(self) -> str:
        """`believer:<16 hex digits>`: the habits decide it."""
        fault = self.fault
        habit = None if fault is None else [fault.kind, fault.turn, _plain(fault.intended), _plain(fault.made), self.occurrence]
        return f"believer:{content_hash([self.family, habit, self.strength, self.slip])[:16]}"

    def open(self) -> Believer:
        """A fresh agent."""
        return Believer(self)


def _plain(call: ToolCall) -> list[object]:
    return [call.name, dict(call.arguments)]


def _agent(source: BelieverSource) -> AgentSource:
    return AgentSource(source.family, source, source.bundle, DRILL_FORMAT, None, _CONTEXT_TOKENS, Sampling(0.7, 1.0, 1024))


async def right_episode(instance: TaskInstance) -> Episode:
    """The reference's episode in reactive style under the family's base harness.

    Raises:
        ConfigError: It did not succeed, or its harness hides turns: there is nothing to put wrong.
    """
    family = load_family(instance.family)
    bundle = HarnessBundle.load(family.base_harness(instance.size))
    episode = await _play(instance, family, _agent(BelieverSource(instance.family, bundle)).open(), "")
    whole = all(len(turn.executed) == 1 for turn in episode.turns)
    if not episode.success or not whole or bundle.context.keep_last_turns is not None:
        raise ConfigError(
            "the reference's episode can't be drilled", seen=instance.key, fix="use a family and size with a plain base harness"
        )
    return episode


async def cases(
    instance: TaskInstance, kind: FaultKind, *, strength: float, slip: float, limit: int = 1, delayed: bool = False
) -> tuple[Case, ...]:
    """Up to `limit` cases of a kind on an instance, at random places among those that hold: `fails as injected, succeeds when restored`.

    Args:
        instance: The task.
        kind: The kind of fault.
        strength: Probability of the mistake where it is due, in the agent that localizers will meet.
        slip: Its probability of giving up, per turn.
        limit: At most so many, at different turns.
        delayed: Faults that do no harm before a later write (`coevo.localize.faults.DELAYED`).
    """
    family, right = load_family(instance.family), await right_episode(instance)
    bundle = HarnessBundle.load(family.base_harness(instance.size))
    random = Random(derive_seed("drill", instance.key, kind, *(["delayed"] if delayed else [])))
    offer = delayed_faults if delayed else faults
    offered = list(offer(Script(right, family), kind, random))
    random.shuffle(offered)
    writes = family.conduct(instance.size).writes
    offered.sort(key=lambda fault: fault.made.name not in writes)
    found: list[Case] = []
    for fault in offered[:_TRIED]:
        if len(found) == limit:
            break
        if any(one.fault.turn == fault.turn for one in found):
            continue
        episode = await _holds(instance, family, bundle, right, fault)
        if episode is not None:
            source = replace(_source(instance.family, bundle, right, fault), strength=strength, slip=slip)
            found.append(Case(fault, episode, _agent(source)))
    return tuple(found)


async def _holds(instance: TaskInstance, family: TaskFamily, bundle: HarnessBundle, right: Episode, fault: Fault) -> Episode | None:
    """The faulty episode, when it fails and its turn, restored, saves it."""
    agent = _agent(_source(instance.family, bundle, right, fault)).open()
    tools = family.tools(instance.size)
    wrong = ForcedTurn(agent.chat_format.render_turn("", fault.made, tools))
    before = forced_prefix(right, fault.turn)
    failed = await _play(instance, family, agent, "injected", (*before, wrong))
    if failed.success or failed.grade is None or failed.turns[fault.turn].parse_failure is not None:
        return None
    restored = await _play(instance, family, agent, "restored", (*before, *forced_prefix(right, fault.turn + 1)[-1:]))
    return failed if restored.success else None


def _source(family: str, bundle: HarnessBundle, right: Episode, fault: Fault) -> BelieverSource:
    before = [ToolCall(turn.executed[0].name, turn.executed[0].arguments) for turn in right.turns[: fault.turn]]
    return BelieverSource(family, bundle, fault, before.count(fault.intended), before.count(fault.made))


async def _play(instance: TaskInstance, family: TaskFamily, agent: Agent, branch: str, prefix: tuple[ForcedTurn, ...] = ()) -> Episode:
    return await play(instance, family=family, agent=agent, sandboxes=shared_pool(), prefix=prefix, branch=branch)
