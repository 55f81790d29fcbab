"""An expert's turn as JSON: one strategy sentence and one tool call, its schema from the tools, read back into the weak model's format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coevo.chat import ToolCall, ToolSpec
from coevo.errors import ModelError
from coevo.formats.family import ChatFormat
from coevo.models.structured import fits_schema
from coevo.records import CallRecord, CorrectionCandidate

__all__ = ["MAX_STRATEGY_CHARS", "Rewrite", "candidate_of", "read_turn", "turn_json", "turn_schema"]

MAX_STRATEGY_CHARS = 300
"""A strategy is a sentence; what is longer is an essay that the weak model would have to imitate."""

_FURTHER = re.compile(r"(?<=.{20}[.!?])\s+[A-Z(].*", re.DOTALL)
"""What follows a first sentence of at least 20 characters; shorter ones are abbreviations more often than sentences."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One candidate turn. `text` is strategy and call as the weak model would have written them."""

    strategy: str
    call: ToolCall
    text: str


def candidate_of(rewrite: Rewrite, *, schema_valid: bool) -> CorrectionCandidate:
    """The rewrite as it is stored, nothing measured."""
    call = CallRecord(name=rewrite.call.name, arguments=dict(rewrite.call.arguments))
    return CorrectionCandidate(strategy=rewrite.strategy, call=call, text=rewrite.text, schema_valid=schema_valid)


def turn_schema(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """JSON Schema of a turn: each tool with its own arguments."""
    return {
        "type": "object",
        "properties": {
            "strategy": {"type": "string", "description": "one sentence: what to do now and why"},
            "call": {"anyOf": [_call_schema(tool) for tool in tools]},
        },
        "required": ["strategy", "call"],
        "additionalProperties": False,
    }


def _call_schema(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [tool.name]}, "arguments": dict(tool.parameters)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def turn_json(strategy: str, call: ToolCall) -> dict[str, Any]:
    """A turn as an expert writes it."""
    return {"strategy": strategy, "call": {"name": call.name, "arguments": dict(call.arguments)}}


_SHAPE = {
    "type": "object",
    "properties": {
        "strategy": {"type": "string"},
        "call": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
            "required": ["name", "arguments"],
        },
    },
    "required": ["strategy", "call"],
}
"""A turn before its tool is known: checked first, because "fits none of these eleven tools" helps nobody to mend an answer."""


def read_turn(value: Any, tools: Sequence[ToolSpec], chat_format: ChatFormat) -> Rewrite:
    """From the JSON to the turn in the weak model's format; sentences behind the first are left out.

    Raises:
        ModelError: An unknown tool, arguments that do not fit its schema, a strategy that is empty or no sentence, or a turn that the
            format can't say. `what` is written for the model.
    """
    fits_schema(value, _SHAPE)
    strategy = _FURTHER.sub("", " ".join(value["strategy"].split()))
    if not strategy or len(strategy) > MAX_STRATEGY_CHARS:
        raise ModelError(f"strategy: write one sentence of at most {MAX_STRATEGY_CHARS} characters")
    call = ToolCall(value["call"]["name"], dict(value["call"]["arguments"]))
    spec = next((tool for tool in tools if tool.name == call.name), None)
    if spec is None:
        raise ModelError(f"call.name: unknown tool {call.name}; the tools are {', '.join(tool.name for tool in tools)}")
    fits_schema(dict(call.arguments), dict(spec.parameters), within="call.arguments")
    text = chat_format.render_turn(strategy, call, tools)
    parsed = chat_format.parse(text, tools)
    if parsed.call != call:
        raise ModelError(f"the turn can't be written in the agent's syntax: {parsed.failure or 'it reads back as another call'}")
    return Rewrite(strategy, call, text)
