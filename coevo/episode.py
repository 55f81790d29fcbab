"""`play()`: one episode of model x harness x task.

The loop knows neither servers nor clusters: a `ChatModel` answers, a `HarnessSession` stands between model and world, and the world alone
decides when it is over and what it is worth. Success depends on turns and tokens, never on wall clock. Whatever goes wrong ends in a typed
status; only backend trouble (`Status.INFRA_ERROR`) leaves the episode ungraded. The record holds no clock: times belong to the attempt
(`coevo.records.Attempt`), so that equal inputs give equal bytes.

A *branch* is the same loop with a prefix of forced turns: their texts go through the same harness and world without asking the model, so
the harness's state, the messages and the world stand exactly where they stood (`coevo.localize.replay`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coevo.chat import Completion, FinishReason, Message, ModelRequest, Role, Sampling, TaskView, ToolCall, Usage
from coevo.errors import GraderError, InfraError, boundary, root_traceback
from coevo.formats.family import ChatFormat, ParsedTurn
from coevo.formats.render import PromptRenderer, shared_prefix
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import SandboxPool
from coevo.harness.session import HarnessSession
from coevo.identity import derive_seed
from coevo.ports import ChatModel, Tokenizer
from coevo.records import CallRecord, Episode, EpisodeSpec, Grade, MessageRecord, Status, Turn, UsageRecord
from coevo.tasks.family import TaskFamily, TaskInstance, World

__all__ = ["Agent", "ForcedTurn", "forced_prefix", "play"]


@dataclass(frozen=True, slots=True)
class Agent:
    """Model x harness, with what is needed to run the pair.

    Attributes:
        model: Takes the turns.
        bundle: The harness.
        chat_format: Syntax of the model's turns.
        tokenizer: Of the model; None when the endpoint renders by itself (remote models): then no token ids are kept.
        max_model_len: Context of the model in tokens.
        sampling: Decoding settings.
    """

    model: ChatModel
    bundle: HarnessBundle
    chat_format: ChatFormat
    tokenizer: Tokenizer | None
    max_model_len: int
    sampling: Sampling = field(default_factory=Sampling)

    def spec(self, instance: TaskInstance, family: TaskFamily, *, repeat: int = 0, branch: str = "") -> EpisodeSpec:
        """The identity of this agent's episode on `instance`."""
        return EpisodeSpec(
            task_key=instance.key,
            world_version=family.world_version,
            harness_hash=self.bundle.hash,
            model_id=self.model.model_id,
            sampling=self.sampling,
            repeat=repeat,
            branch=branch,
        )


@dataclass(frozen=True, slots=True)
class ForcedTurn:
    """A turn that is given, not sampled. Without `token_ids` the text is encoded."""

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


def forced_prefix(episode: Episode, turns: int) -> tuple[ForcedTurn, ...]:
    """The first `turns` turns of a stored episode as a prefix."""
    return tuple(ForcedTurn(turn.completion_text, turn.completion_token_ids, turn.completion_logprobs) for turn in episode.turns[:turns])


async def play(
    instance: TaskInstance,
    *,
    family: TaskFamily,
    agent: Agent,
    sandboxes: SandboxPool,
    repeat: int = 0,
    prefix: Sequence[ForcedTurn] = (),
    branch: str = "",
) -> Episode:
    """Play one episode to its end.

    Args:
        instance: The task.
        family: Its family.
        agent: Model x harness.
        sandboxes: Where evolved code runs.
        repeat: Which repeat of the same cell; enters id and seeds.
        prefix: Forced first turns.
        branch: Names the branch; required with `prefix`, so that a branch never shares an id with a free episode.

    Returns:
        The episode; never raises for what happens inside it (I1). `status` INFRA_ERROR means: try again, do not grade.
    """
    spec = agent.spec(instance, family, repeat=repeat, branch=branch)
    try:
        with boundary(InfraError, "the episode could not be opened"):
            loop = _Loop(spec, family.open(instance), family, agent, sandboxes, tuple(prefix))
    except InfraError as error:
        return _unopened(spec, error)
    try:
        status, error_text = await loop.run(), ""
    except Exception as error:  # noqa: BLE001 - whatever breaks in an episode is data, and one bad episode never stops the others (I1)
        status, error_text = Status.INFRA_ERROR, root_traceback(error)
    finally:
        loop.session.close()
    return loop.episode(status, error_text)


class _Loop:
    """State of one running episode."""

    def __init__(
        self, spec: EpisodeSpec, world: World, family: TaskFamily, agent: Agent, sandboxes: SandboxPool, prefix: tuple[ForcedTurn, ...]
    ) -> None:
        self.spec, self.world, self.agent, self.prefix = spec, world, agent, prefix
        self.session = HarnessSession(agent.bundle, family.tools(world.instance.size), world.call, sandboxes=sandboxes)
        self.renderer = None if agent.tokenizer is None else PromptRenderer(agent.chat_format, agent.tokenizer, self.session.tools)
        self.messages = [Message(Role.SYSTEM, self.session.system_prompt), Message(Role.USER, world.instruction)]
        self.messages += self.session.start(world.instruction)
        self.sampled: dict[int, tuple[int, ...]] = {}
        self.turns: list[Turn] = []
        self.previous: tuple[int, ...] = ()
        self.usage = Usage()
        self.unparsed = 0

    async def run(self) -> Status:
        limits = self.session.limits
        while True:
            if self.world.finished:
                return Status.COMPLETED
            if len(self.turns) >= limits.max_turns:
                return Status.MAX_TURNS
            if self.usage.completion_tokens >= limits.max_completion_tokens:
                return Status.MAX_TOKENS
            if self.unparsed >= limits.max_parse_failures:
                return Status.PARSE_FAILURES
            if not await self.turn():
                return Status.CONTEXT_OVERFLOW

    async def turn(self) -> bool:
        """Play one turn; False when its prompt does not fit the context."""
        number = len(self.turns)
        self.messages += self.session.before_model(number, self.messages)
        view = self.session.view(self.messages)
        prompt = () if self.renderer is None else self.renderer.prompt(view.messages, view.index, self.sampled)
        forced = self.prefix[number] if number < len(self.prefix) else None
        if forced is None and len(prompt) + self.agent.sampling.max_tokens > self.agent.max_model_len:
            return False
        before = len(self.world.log)
        completion = self._given(forced) if forced is not None else await self._sample(view.messages, prompt, number)
        self.usage += completion.usage
        parsed = self.agent.chat_format.parse(completion.text, self.session.tools)
        turn = Turn(
            message_index=view.index,
            prompt_shared=(shared := shared_prefix(self.previous, prompt)),
            prompt_suffix=prompt[shared:],
            context_edited=view.edited,
            completion_text=completion.text,
            completion_token_ids=completion.token_ids,
            completion_logprobs=completion.logprobs,
            say=parsed.say,
            world_calls_before=before,
            usage=_usage_record(completion.usage),
        )
        self.turns.append(self._observe(turn, parsed, completion, number))
        self.previous = prompt + completion.token_ids
        return True

    async def _sample(self, messages: tuple[Message, ...], prompt: tuple[int, ...], number: int) -> Completion:
        view = TaskView(self.spec.task_key, tuple(self.world.log), self.agent.bundle.context.keep_last_turns is not None)
        request = ModelRequest(
            messages=messages,
            tools=self.session.tools,
            sampling=self.agent.sampling,
            session=self.spec.id,
            seed=derive_seed(self.spec.id, number),
            prompt_token_ids=prompt if self.renderer is not None else None,
            model_id=self.spec.model_id,
            view=view,
        )
        completion = await self.agent.model.complete(request)
        if not completion.token_ids and self.renderer is not None:
            ids = self.renderer.turn_ids(completion.text)
            usage = completion.usage if completion.usage.completion_tokens else Usage(len(prompt), 0, len(ids))
            completion = replace(completion, token_ids=ids, usage=usage)
        return completion

    def _given(self, forced: ForcedTurn) -> Completion:
        ids = forced.token_ids or (self.renderer.turn_ids(forced.text) if self.renderer is not None else ())
        return Completion(forced.text, FinishReason.STOP, ids, forced.logprobs, Usage())

    def _observe(self, turn: Turn, parsed: ParsedTurn, completion: Completion, number: int) -> Turn:
        """Run the turn's call (or report why there is none) and append both messages."""
        calls = (parsed.call,) if parsed.call is not None else ()
        if completion.token_ids:
            self.sampled[len(self.messages)] = completion.token_ids
        self.messages.append(Message(Role.ASSISTANT, completion.text, calls))
        notes = self.session.after_model(number, parsed.say, parsed.call)
        error, value = parsed.failure, None
        executed: tuple[ToolCall, ...] = ()
        if parsed.call is not None:
            outcome = self.session.execute(parsed.call, number)
            error, executed, value = outcome.error, outcome.calls, outcome.value
            notes = [*notes, *outcome.notes]
        self.unparsed = 0 if parsed.call is not None else self.unparsed + 1
        content = self._content({"error": error} if error is not None else value, notes)
        self.messages.append(Message(Role.TOOL, content))
        return turn.model_copy(
            update={
                "call": _call_record(parsed.call) if parsed.call is not None else None,
                "parse_failure": parsed.failure,
                "executed": tuple(_call_record(call) for call in executed),
                "result": content,
                "result_error": error is not None,
                "firings": self.session.take_firings(),
            }
        )

    def _content(self, value: Any, notes: Sequence[str]) -> str:
        text = self.agent.chat_format.render_observation(value)
        limit = self.session.limits.max_observation_chars
        if len(text) > limit:
            text = f"{text[:limit]} [cut: {len(text) - limit} more characters]"
        return " ".join([text, *notes])

    def episode(self, status: Status, error: str) -> Episode:
        grade: Grade | None = None
        if status is not Status.INFRA_ERROR:
            try:
                with boundary(GraderError, "the grader failed"):
                    grade = self.world.grade()
            except GraderError as failure:
                status, error = Status.INFRA_ERROR, root_traceback(failure)
        return Episode(
            id=self.spec.id,
            spec=self.spec,
            status=status,
            grade=grade,
            messages=tuple(_message_record(message) for message in self.messages),
            turns=tuple(self.turns),
            world_log=tuple(_call_record(call) for call in self.world.log),
            log_hash=self.world.log_hash,
            component_use=dict(self.session.component_use),
            usage=_usage_record(self.usage),
            error=error,
        )


def _unopened(spec: EpisodeSpec, error: InfraError) -> Episode:
    return Episode(id=spec.id, spec=spec, status=Status.INFRA_ERROR, grade=None, messages=(), turns=(), error=root_traceback(error))


def _call_record(call: ToolCall) -> CallRecord:
    return CallRecord(name=call.name, arguments=dict(call.arguments))


def _message_record(message: Message) -> MessageRecord:
    return MessageRecord(role=message.role, content=message.content, calls=tuple(_call_record(call) for call in message.calls))


def _usage_record(usage: Usage) -> UsageRecord:
    return UsageRecord(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens, completion_tokens=usage.completion_tokens)
