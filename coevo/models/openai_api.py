"""Any endpoint that speaks the OpenAI chat protocol: the way to remote experts. Our own pools are reached without it.

The endpoint renders prompts itself, so completions carry no token ids. Tool calls come back structured; they are written as text in the
chat format of the harness, several in one turn one after the other, so that one parser judges every model alike (R14). Keys come from the
environment only and never appear in a message, a record or this object's fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coevo.chat import Completion, FinishReason, Message, ModelRequest, Role, ToolCall, ToolSpec, Usage
from coevo.errors import InfraError, ModelError, PrerequisiteError, boundary
from coevo.formats import chat_format

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

__all__ = ["OpenAIModel", "OpenAISource"]


@dataclass(frozen=True, slots=True)
class OpenAISource:
    """Recipe of an `OpenAIModel`; crosses Ray. Holds the *name* of the key's variable, never the key.

    Attributes:
        base_url: Endpoint, up to and including `/v1`.
        model: Name of the model at the endpoint.
        api_key_env: Environment variable with the key.
        key_required: False for local endpoints without keys.
        format_name: Chat format that tool calls are written in.
        timeout_s: Deadline of one HTTP call.
        max_retries: Retries of the SDK on connection errors, 408, 409, 429 and 5xx: the only layer that retries single calls.
        extra_body: Further fields of the request body.
    """

    base_url: str
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    key_required: bool = True
    format_name: str = "hermes"
    timeout_s: float = 120.0
    max_retries: int = 2
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model_id(self) -> str:
        """The endpoint's name of the model, marked as remote: its weights may change behind the name."""
        return f"remote:{self.model}"

    def open(self) -> OpenAIModel:
        """A client. Raises `PrerequisiteError` when the key or the SDK is missing."""
        return OpenAIModel(self)


class OpenAIModel:
    """`ChatModel` over the OpenAI SDK.

    Raises:
        PrerequisiteError: The SDK is not installed, or the key's variable is not set.
    """

    def __init__(self, source: OpenAISource) -> None:
        self._source = source
        self._format = chat_format(source.format_name)
        self._client = _client(source)

    @property
    def model_id(self) -> str:
        """See `OpenAISource.model_id`."""
        return self._source.model_id

    async def probe(self) -> None:
        """Check before a run that the endpoint answers, takes the key and knows the model.

        Raises:
            PrerequisiteError: It does not.
        """
        import openai

        try:
            names = [item.id async for item in await self._client.models.list()]
        except openai.NotFoundError:
            return  # an endpoint without a model list can still serve
        except openai.OpenAIError as error:
            seen = f"{self._source.base_url}: {self._reason(error)}"
            raise PrerequisiteError(
                "the model endpoint can't be used", seen=seen, fix=f"check base_url and {self._source.api_key_env}"
            ) from error
        if self._source.model not in names:
            seen = f"{self._source.model} at {self._source.base_url}"
            raise PrerequisiteError("the endpoint does not serve this model", seen=seen, fix=f"it serves {', '.join(names[:20]) or 'none'}")

    async def complete(self, request: ModelRequest) -> Completion:
        """One turn.

        Raises:
            ModelError: The endpoint refuses the request, or answers with nothing.
            InfraError: It can't be reached, limits the rate, refuses the key, or fails.
        """
        import openai

        if request.model_id not in ("", self.model_id):
            raise ModelError("the request names another model", seen=request.model_id, fix=f"this one is {self.model_id}")
        with boundary(InfraError, "the model endpoint gave no usable answer", fix="retry; check that it speaks the chat protocol"):
            try:
                answer = await self._client.chat.completions.create(**self._body(request))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                fix = "shorten the context or change the sampling"
                raise ModelError("the endpoint refused the request", seen=self._reason(error), fix=fix) from error
            except openai.OpenAIError as error:
                seen = f"{self._source.base_url}: {self._reason(error)}"
                raise InfraError("the model endpoint failed", seen=seen, fix="retry; check the endpoint") from error
            return self._read(answer, request.tools)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _reason(self, error: Exception) -> str:
        """Class, status and message. An endpoint may echo the key it was sent: it must never reach a record (I11)."""
        status = getattr(error, "status_code", None)
        text = f"{type(error).__name__}{f' {status}' if status else ''}: {error}".replace(self._client.api_key, "***")
        return text[:300]

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._source.model,
            "messages": self._messages(request),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed % (1 << 31),
        }
        if request.tools:
            body["tools"] = [{"type": "function", "function": _function(tool)} for tool in request.tools]
        if self._source.extra_body:
            body["extra_body"] = dict(self._source.extra_body)
        return body

    def _messages(self, request: ModelRequest) -> list[dict[str, Any]]:
        """Our messages on the wire. A tool message answers the calls of the assistant message before it, in order."""
        wire: list[dict[str, Any]] = []
        open_calls: list[str] = []
        for index, message in enumerate(request.messages):
            if message.role is Role.ASSISTANT:
                open_calls = [f"call_{index}_{number}" for number in range(len(message.calls))]
                wire.append(self._assistant(message, open_calls, request.tools))
            elif message.role is Role.TOOL and open_calls:
                wire.append({"role": "tool", "tool_call_id": open_calls.pop(0), "content": message.content})
            elif message.role is Role.TOOL:
                wire.append({"role": "user", "content": message.content})
            else:
                wire.append({"role": message.role.value, "content": message.content})
        return wire

    def _assistant(self, message: Message, ids: Sequence[str], tools: Sequence[ToolSpec]) -> dict[str, Any]:
        """An assistant message's content is its raw text; with parsed calls only what was said beside them stays text."""
        if not message.calls:
            return {"role": "assistant", "content": message.content}
        calls = [
            {"id": name, "type": "function", "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))}}
            for name, call in zip(ids, message.calls, strict=True)
        ]
        return {"role": "assistant", "content": self._format.parse(message.content, tools).say or None, "tool_calls": calls}

    def _read(self, answer: ChatCompletion, tools: Sequence[ToolSpec]) -> Completion:
        if not answer.choices:
            raise ModelError("the endpoint gave no choice", seen=self.model_id, fix="retry or change the model")
        choice = answer.choices[0]
        text = choice.message.content or ""
        for number, call in enumerate(choice.message.tool_calls or ()):
            if call.type == "function":
                said = text if number == 0 else ""
                written = self._write(said, call.function.name, call.function.arguments, tools)
                text = written if number == 0 else f"{text}\n{written}"
        if not text.strip():
            raise ModelError("the model answered with nothing", seen=f"finish_reason {choice.finish_reason}", fix="raise max_tokens")
        reason = FinishReason.LENGTH if choice.finish_reason == "length" else FinishReason.STOP
        return Completion(text, reason, usage=_usage(answer))

    def _write(self, said: str, name: str, arguments: str, tools: Sequence[ToolSpec]) -> str:
        """A structured call as text; arguments that are no JSON object are kept raw, so that the parser names the fault."""
        try:
            values = json.loads(arguments or "{}")
        except json.JSONDecodeError:
            values = None
        if not isinstance(values, dict) or name not in [tool.name for tool in tools]:
            raw = f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'
            return f"{said}\n<tool_call>\n{raw}\n</tool_call>" if said else f"<tool_call>\n{raw}\n</tool_call>"
        return self._format.render_turn(said, ToolCall(name, values), tools)


def _client(source: OpenAISource) -> AsyncOpenAI:
    key = os.environ.get(source.api_key_env, "")
    if not key and source.key_required:
        raise PrerequisiteError("the endpoint's key is not set", seen=source.api_key_env, fix=f"export {source.api_key_env}=...")
    try:
        from openai import AsyncOpenAI
    except ImportError as error:
        raise PrerequisiteError("the openai package can't be imported", seen=str(error), fix="pip install openai") from error
    return AsyncOpenAI(base_url=source.base_url, api_key=key or "none", timeout=source.timeout_s, max_retries=source.max_retries)


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def _usage(answer: ChatCompletion) -> Usage:
    if answer.usage is None:
        return Usage()
    details = answer.usage.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details is not None else 0
    return Usage(answer.usage.prompt_tokens, cached, answer.usage.completion_tokens)
