"""What passes between an agent and a model: messages, tool schemas, requests, completions.

Plain frozen data: it crosses Ray, is stored in episodes and is rendered by `coevo.formats`. Nothing here knows a model server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = [
    "AnswerForm",
    "Completion",
    "FinishReason",
    "Message",
    "ModelRequest",
    "Role",
    "Sampling",
    "TaskView",
    "ToolCall",
    "ToolSpec",
    "Usage",
]


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    """The harness's prompt."""
    USER = "user"
    """The task's instruction, or a message that a hook injected."""
    ASSISTANT = "assistant"
    """A model turn."""
    TOOL = "tool"
    """The result of one tool call."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. `parameters` is a JSON Schema object; its `properties` are in call order."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Parameter names in declaration order."""
        return tuple(self.parameters.get("properties", {}))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One parsed call: tool name and arguments by name."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `calls` only on assistant messages; `content` of a tool message is the rendered observation."""

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampling:
    """Decoding settings of one model call; part of the episode id.

    Attributes:
        temperature: 0.0 is greedy.
        top_p: Nucleus mass in (0, 1].
        max_tokens: Completion tokens per turn.
    """

    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int = 256


@dataclass(frozen=True, slots=True)
class TaskView:
    """The replayable position of an episode: enough to reopen its world at this point (`replay(instance, log)`).

    Only state-conditional oracles read it (`coevo.models.reference`); served models ignore it.

    Attributes:
        task_key: `TaskInstance.key`.
        world_calls: The family calls applied so far, in order.
        limited: True when the harness's context policy drops old turns, so that what matters must be carried in notes.
    """

    task_key: str
    world_calls: tuple[ToolCall, ...]
    limited: bool = False


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call.

    Attributes:
        messages: The context the model sees, after the harness's context policy.
        tools: The tools shown.
        sampling: Decoding settings.
        session: Sticky-routing key: the episode id.
        seed: Seed of this call; same request and seed, same completion, as far as the engine allows.
        prompt_token_ids: The rendered prompt for token-in engines; None when the endpoint renders by itself.
        model_id: `<base>` or `<base>@<adapter hash>`; empty for models that serve one thing.
        view: See `TaskView`; None outside episodes.
        answer_schema: JSON Schema of the answer; None for a free turn. An endpoint that can constrain its decoding does, others write
            what they like: whoever asks checks the answer either way (`coevo.models.structured`).
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    sampling: Sampling
    session: str
    seed: int
    prompt_token_ids: tuple[int, ...] | None = None
    model_id: str = ""
    view: TaskView | None = None
    answer_schema: Mapping[str, Any] | None = None


class AnswerForm(StrEnum):
    """How an answer in JSON was asked for."""

    SCHEMA = "json_schema"
    """Decoding constrained by the schema (`response_format`)."""
    TOOL = "tool_call"
    """As the arguments of a call that the model had to make."""
    PLAIN = "plain"
    """In words only; the answer is free text with JSON in it."""


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """The model closed its turn."""
    LENGTH = "length"
    """`max_tokens` reached."""
    FILTERED = "filtered"
    """Withheld or refused by the endpoint's content filter; the text may be cut or empty."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call, or summed. `cached_tokens` is the part of `prompt_tokens` served from a prefix cache."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model returned.

    Attributes:
        text: Raw text, special tokens of the format's call syntax included, the end-of-turn token excluded.
        token_ids: Sampled ids, end-of-turn included when sampled; empty when the endpoint gives none.
        logprobs: One per token id, natural log; empty when the endpoint gives none.
        finish_reason: Why it ended.
        usage: Tokens of this call.
        form: How a request with an `answer_schema` was put to the endpoint; None for free turns.
    """

    text: str
    finish_reason: FinishReason = FinishReason.STOP
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    usage: Usage = field(default_factory=Usage)
    form: AnswerForm | None = None
