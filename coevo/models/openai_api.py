"""Any endpoint that speaks the OpenAI chat protocol: the way to remote experts. Our own pools are reached without it.

The endpoint renders prompts itself, so completions carry no token ids. Tool calls come back structured; they are written as text in the
chat format of the harness, several in one turn one after the other, so that one parser judges every model alike (R14). A request with an
`answer_schema` is put as a schema, as a tool call or in plain words, whichever the endpoint takes (`coevo.models.dialect`). Keys come from
the environment or a mounted file only and never appear in a message, a record, a traceback or this object's fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevo.chat import AnswerForm, Completion, FinishReason, Message, ModelRequest, Role, ToolCall, ToolSpec, Usage
from coevo.errors import InfraError, ModelError, PrerequisiteError
from coevo.formats import chat_format
from coevo.models.dialect import ANSWER_TOOL, Dialect
from coevo.models.pace import Pace

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

__all__ = ["OpenAIModel", "OpenAISource"]

_CHARS_PER_TOKEN = 4
"""For the estimate that a call is charged with before the endpoint has counted."""
_CONCESSIONS = 5
"""More than a dialect has to give."""
_PING_TOKENS = 16
_PROBE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class OpenAISource:
    """Recipe of an `OpenAIModel`; crosses Ray. Holds the *name* of the key's variable or file, never the key.

    Attributes:
        base_url: Endpoint, up to and including `/v1`.
        model: Name of the model at the endpoint.
        api_key_env: Environment variable with the key.
        api_key_file: File with the key (a secret mount), read where the source is opened; goes before `api_key_env`.
        key_required: False for local endpoints without keys.
        format_name: Chat format that tool calls are written in.
        timeout_s: Deadline of one HTTP call.
        max_retries: Retries of the SDK on connection errors, 408, 409, 429 and 5xx, `Retry-After` honoured: the only layer that retries
            single calls.
        requests_per_minute: Of this client; None = no limit.
        tokens_per_minute: Of this client; None = no limit.
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
    api_key_file: str = ""
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None

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
        PrerequisiteError: The SDK is not installed, or the key is not there.
    """

    def __init__(self, source: OpenAISource) -> None:
        self._source = source
        self._format = chat_format(source.format_name)
        self._client = _client(source)
        self._dialect = Dialect()
        self._pace = Pace(source.requests_per_minute, source.tokens_per_minute)

    @property
    def model_id(self) -> str:
        """See `OpenAISource.model_id`."""
        return self._source.model_id

    async def probe(self) -> Usage:
        """Check before a run that the endpoint answers, takes the key and knows the model; what the question cost.

        The model list alone proves little (some endpoints show it to anybody), so one short question is asked too.

        Raises:
            PrerequisiteError: It does not.
        """
        import openai

        client = self._client.with_options(timeout=min(self._source.timeout_s, _PROBE_TIMEOUT_S), max_retries=1)
        try:
            names = [item.id async for item in await client.models.list()]
        except openai.NotFoundError:
            names = [self._source.model]  # an endpoint without a model list can still serve
        except (openai.OpenAIError, AttributeError, TypeError, ValueError) as error:
            raise self._unusable(error) from None
        if self._source.model not in names:
            seen = f"{self._source.model} at {self._source.base_url}"
            raise PrerequisiteError("the endpoint does not serve this model", seen=seen, fix=f"it serves {', '.join(names[:20]) or 'none'}")
        messages = [{"role": "user", "content": "Say ok."}]
        body = {"model": self._source.model, "messages": messages, "max_tokens": _PING_TOKENS, "seed": 0}
        try:
            answer, _ = await self._send(body, None, client=client)
            return _usage(answer)
        except (openai.OpenAIError, AttributeError, TypeError, ValueError) as error:
            raise self._unusable(error) from None

    async def complete(self, request: ModelRequest) -> Completion:
        """One turn.

        Raises:
            ModelError: The endpoint refuses the request, or answers a free turn with nothing.
            InfraError: It can't be reached, limits the rate, refuses the key, or fails.
        """
        import openai

        if request.model_id not in ("", self.model_id):
            raise ModelError("the request names another model", seen=request.model_id, fix=f"this one is {self.model_id}")
        body = self._body(request)
        estimate = len(json.dumps(body["messages"])) // _CHARS_PER_TOKEN + request.sampling.max_tokens
        await self._pace.enter(estimate)
        # `from None` everywhere: the endpoint may echo the key it was sent, and tracebacks of causes are stored (I11).
        try:
            answer, form = await self._send(body, request.answer_schema)
            completion = self._read(answer, request, form)
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            fix = "shorten the context or change the sampling"
            raise ModelError("the endpoint refused the request", seen=self._reason(error), fix=fix) from None
        except openai.OpenAIError as error:
            seen = f"{self._source.base_url}: {self._reason(error)}"
            raise InfraError("the model endpoint failed", seen=seen, fix="retry; check the endpoint") from None
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            fix = "retry; check that it speaks the chat protocol"
            raise InfraError("the model endpoint gave no usable answer", seen=self._reason(error), fix=fix) from None
        self._pace.correct(estimated=estimate, used=completion.usage.prompt_tokens + completion.usage.completion_tokens)
        return completion

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _send(
        self, plain: Mapping[str, Any], schema: Mapping[str, Any] | None, *, client: AsyncOpenAI | None = None
    ) -> tuple[ChatCompletion, AnswerForm | None]:
        """Ask, conceding what the endpoint refuses to understand; the answer and how it was asked for."""
        import openai

        client = client or self._client
        for _ in range(_CONCESSIONS):
            body, form = self._dialect.worded(plain, schema), self._dialect.form if schema is not None else None
            try:
                return await client.chat.completions.create(**body), form
            except (openai.BadRequestError, openai.UnprocessableEntityError, openai.NotFoundError) as error:
                if not self._dialect.concede(str(error), body, form=form):
                    raise
        return await client.chat.completions.create(
            **self._dialect.worded(plain, schema)
        ), self._dialect.form if schema is not None else None

    def _unusable(self, error: Exception) -> PrerequisiteError:
        seen = f"{self._source.base_url}: {self._reason(error)}"
        key = self._source.api_key_file or self._source.api_key_env or "(none)"
        return PrerequisiteError("the model endpoint can't be used", seen=seen, fix=f"check base_url, model and the key in {key}")

    def _reason(self, error: Exception) -> str:
        """Class, status and message, without the key."""
        status = getattr(error, "status_code", None)
        return self._without_key(f"{type(error).__name__}{f' {status}' if status else ''}: {error}")[:300]

    def _without_key(self, text: str) -> str:
        return text.replace(self._client.api_key, "***") if self._client.api_key != _NO_KEY else text

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
        if request.tools and request.answer_schema is None:
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

    def _read(self, answer: ChatCompletion, request: ModelRequest, form: AnswerForm | None) -> Completion:
        if not answer.choices:
            raise ModelError("the endpoint gave no choice", seen=self.model_id, fix="retry or change the model")
        choice = answer.choices[0]
        calls = [call.function for call in choice.message.tool_calls or () if call.type == "function"]
        text = choice.message.content or ""
        if form is not None:
            text = next((call.arguments for call in calls if call.name == ANSWER_TOOL), text)
        else:
            for number, call in enumerate(calls):
                written = self._write(text if number == 0 else "", call.name, call.arguments, request.tools)
                text = written if number == 0 else f"{text}\n{written}"
        reason = FinishReason.LENGTH if choice.finish_reason == "length" else FinishReason.STOP
        if choice.finish_reason == "content_filter" or choice.message.refusal:
            reason, text = FinishReason.FILTERED, text or choice.message.refusal or ""
        elif not text.strip() and form is None:
            raise ModelError("the model answered with nothing", seen=f"finish_reason {choice.finish_reason}", fix="raise max_tokens")
        return Completion(self._without_key(text), reason, usage=_usage(answer), form=form)

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


_NO_KEY = "none"
"""What is sent where no key is needed."""


def _key(source: OpenAISource) -> str:
    """The key, from the file or the environment. Raises `PrerequisiteError` when it is needed and not there."""
    if source.api_key_file:
        try:
            key = Path(source.api_key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            fix = "mount the secret, or name the right file in api_key_file"
            raise PrerequisiteError("the endpoint's key file can't be read", seen=source.api_key_file, fix=fix) from error
        where, fix = source.api_key_file, "write the key into it"
    else:
        key = os.environ.get(source.api_key_env, "").strip() if source.api_key_env else ""
        where, fix = source.api_key_env, f"export {source.api_key_env}=..."
    if not key and source.key_required:
        raise PrerequisiteError("the endpoint's key is not set", seen=where, fix=fix)
    return key


def _client(source: OpenAISource) -> AsyncOpenAI:
    key = _key(source)
    try:
        from openai import AsyncOpenAI
    except ImportError as error:
        raise PrerequisiteError("the openai package can't be imported", seen=str(error), fix="pip install openai") from error
    return AsyncOpenAI(base_url=source.base_url, api_key=key or _NO_KEY, timeout=source.timeout_s, max_retries=source.max_retries)


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def _usage(answer: ChatCompletion) -> Usage:
    if answer.usage is None:
        return Usage()
    details = answer.usage.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details is not None else 0
    return Usage(answer.usage.prompt_tokens or 0, cached, answer.usage.completion_tokens or 0)
