"""One question whose answer is JSON of a given shape: asked, read, checked, and asked once more with the error.

Works with any ChatModel: an endpoint that constrains decoding seldom needs the second try, one that does not is told what was wrong. What
an answer must be beyond its schema is the caller's `read`, which says in words what the model should mend.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from coevo.chat import AnswerForm, FinishReason, Message, ModelRequest, Role, Usage
from coevo.errors import ConfigError, ModelError
from coevo.ports import ChatModel

__all__ = ["Answer", "ask", "find_json", "fits_schema"]

T = TypeVar("T")

_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What became of a question.

    Attributes:
        value: What `read` made of the answer; None when neither try could be used.
        text: The model's last words, for the record.
        faults: What was wrong with each unusable try, in order.
        usage: Tokens of all tries.
        calls: Tries that were answered.
        form: How the last one was asked for; None where the model does not tell.
    """

    value: T | None
    text: str
    faults: tuple[str, ...]
    usage: Usage
    calls: int
    form: AnswerForm | None


async def ask(model: ChatModel, request: ModelRequest, read: Callable[[Any], T], *, tries: int = 2) -> Answer[T]:
    """Ask until `read` takes the answer, at most `tries` times.

    Args:
        model: Who answers.
        request: With `answer_schema`.
        read: From any JSON value to what is wanted; it checks (`fits_schema` helps) and raises `ModelError` whose `what` tells the
            model what to mend.
        tries: At least 1.

    Raises:
        ConfigError: The request has no schema.
        InfraError: The endpoint failed.
    """
    if request.answer_schema is None:
        raise ConfigError("a structured question needs a schema", seen=request.session, fix="set answer_schema")
    faults: list[str] = []
    text, usage, calls, form = "", Usage(), 0, None
    for number in range(tries):
        asked = replace(request, messages=_again(request, text, faults), seed=request.seed + number)
        try:
            completion = await model.complete(asked)
        except ModelError as error:
            faults.append(str(error)[:_SHOWN_CHARS])
            text = ""
            continue
        text, form, calls, usage = completion.text, completion.form, calls + 1, usage + completion.usage
        try:
            if completion.finish_reason is FinishReason.FILTERED:
                raise ModelError("the endpoint's content filter withheld the answer")
            return Answer(read(find_json(text)), text, tuple(faults), usage, calls, form)
        except ModelError as error:
            cut = ", cut at max_tokens" if completion.finish_reason is FinishReason.LENGTH else ""
            faults.append(f"{error.what}{cut}"[:_SHOWN_CHARS])
    return Answer(None, text, tuple(faults), usage, calls, form)


def find_json(text: str) -> Any:
    """The first JSON object behind a model's visible thinking, fences and words around it left out.

    Raises:
        ModelError: There is none that reads.
    """
    text = text.rpartition("</think>")[2]
    start, fault = text.find("{"), "no JSON object found"
    decoder = json.JSONDecoder()
    while start >= 0:
        try:
            return decoder.raw_decode(text, start)[0]
        except json.JSONDecodeError as error:
            fault = f"the JSON does not read: {error.msg} at character {error.pos}"
        except RecursionError:
            fault = "the JSON is nested too deep"
        start = text.find("{", start + 1)
    raise ModelError(fault)


def fits_schema(value: Any, schema: Any, *, within: str = "") -> None:
    """Raise `ModelError` naming the place (below `within`) and the fault when `value` does not satisfy the schema."""
    error = best_match(Draft202012Validator(schema).iter_errors(value))
    if error is not None:
        place = ".".join(str(part) for part in (*((within,) if within else ()), *error.absolute_path))
        raise ModelError(f"{place or 'the answer'}: {error.message[:_SHOWN_CHARS]}")


def _again(request: ModelRequest, text: str, faults: list[str]) -> tuple[Message, ...]:
    """The messages, with the unusable answer and what was wrong with it behind them."""
    if not faults:
        return request.messages
    if not text.strip():
        return request.messages
    fault = f"That answer can't be used: {faults[-1]}. Answer again, with JSON that satisfies the schema and nothing else."
    return (*request.messages, Message(Role.ASSISTANT, text), Message(Role.USER, fault))
