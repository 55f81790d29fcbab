"""What an OpenAI-compatible endpoint turned out to understand, learned from its refusals.

"Compatible" endpoints differ: some know `response_format`, some only tool calls, some neither; some want `max_completion_tokens`, some
refuse `seed` or `temperature`, or a schema marked `strict`. A dialect starts from the richest request and concedes one thing per refusal
that names it, for good. A refusal that names none of these is about the request itself and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coevo.chat import AnswerForm

__all__ = ["ANSWER_TOOL", "Dialect", "closed_everywhere"]

ANSWER_TOOL = "answer"
"""Name of the one tool that carries an answer in `AnswerForm.TOOL`."""

_NEXT = {AnswerForm.SCHEMA: AnswerForm.TOOL, AnswerForm.TOOL: AnswerForm.PLAIN}
_ABOUT_FORM = {
    AnswerForm.SCHEMA: ("response_format", "json_schema", "json schema", "structured", "guided", "grammar"),
    AnswerForm.TOOL: ("tool", "function", "json schema", "structured", "guided", "grammar"),
}
_OPTIONAL = ("seed", "temperature", "top_p")


class Dialect:
    """See the module docstring. One per client; safe among the tasks of one event loop."""

    def __init__(self) -> None:
        self._form = AnswerForm.SCHEMA
        self._new_limit = False
        self._strict = True
        self._dropped: set[str] = set()

    @property
    def form(self) -> AnswerForm:
        """How the next answer in JSON is asked for."""
        return self._form

    def concede(self, reason: str, body: Mapping[str, Any], *, form: AnswerForm | None) -> bool:
        """Learn from a refusal of `body`; True when the request is worth sending again, in the new words.

        Args:
            reason: The endpoint's words.
            body: What it refused.
            form: How `body` asked for its answer; None for a free turn.
        """
        said = reason.lower()
        if "context length" in said or "context window" in said:
            return False  # such messages count tokens "in the functions" too
        if "max_completion_tokens" in said and "max_tokens" in body:
            self._new_limit = True
            return True
        if form in _NEXT and "strict" in said and _marked_strict(body):
            self._strict = False
            return True
        if form in _NEXT and any(word in said for word in _ABOUT_FORM[form]):
            if self._form is form:  # another task may have conceded already
                self._form = _NEXT[form]
            return True
        for name in _OPTIONAL:
            if name in said and name in body:
                self._dropped.add(name)
                return True
        return False

    def worded(self, plain: Mapping[str, Any], schema: Mapping[str, Any] | None) -> dict[str, Any]:
        """The request body as this endpoint takes it; `plain` uses the oldest names."""
        body = {name: value for name, value in plain.items() if name not in self._dropped}
        if self._new_limit:
            body["max_completion_tokens"] = body.pop("max_tokens")
        if schema is None or self._form is AnswerForm.PLAIN:
            return body
        strict = {"strict": True} if self._strict and closed_everywhere(schema) else {}
        if self._form is AnswerForm.SCHEMA:
            described = {"name": ANSWER_TOOL, "schema": dict(schema), **strict}
            return body | {"response_format": {"type": "json_schema", "json_schema": described}}
        # vLLM 0.32 holds a forced call to its schema only where it is marked strict, and takes none without `--tool-call-parser`.
        tool = {"name": ANSWER_TOOL, "description": "Give the answer.", "parameters": dict(schema), **strict}
        chosen = {"type": "function", "function": {"name": ANSWER_TOOL}}
        return body | {"tools": [{"type": "function", "function": tool}], "tool_choice": chosen}


def _marked_strict(body: Mapping[str, Any]) -> bool:
    tools = [tool["function"] for tool in body.get("tools", ())]
    return any(one.get("strict", False) for one in (body.get("response_format", {}).get("json_schema", {}), *tools))


def closed_everywhere(schema: Any) -> bool:
    """True when every object of a JSON Schema requires all its properties and takes no others: what `strict` decoding asks for."""
    if isinstance(schema, list):
        return all(closed_everywhere(one) for one in schema)
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object":
        named = set(schema.get("properties", {}))
        if schema.get("additionalProperties") is not False or named != set(schema.get("required", [])):
            return False
    return all(closed_everywhere(value) for value in schema.values())
