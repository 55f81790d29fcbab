"""Gemma 4's turns and tool calls (https://ai.google.dev/gemma/docs/core/prompt-formatting-gemma4): no JSON, strings between `<|"|>` tokens.

    <|turn>model
    <|tool_call>call:submit_pay{amount:217,employee:<|"|>E204<|"|>}<tool_call|><turn|>

Keys are sorted, as the model's own template sorts them; tool declarations are written in the same syntax. Limit: that template keeps a
call, its result and the next call inside one model turn. Here every turn is a message of its own, closed by `<turn|>`, and a result comes
in a user turn: what is trained is then one turn and never a tool's output, and a context policy can drop either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coevo.chat import Message, Role, ToolCall, ToolSpec
from coevo.formats.escape import escaped, unescaped
from coevo.formats.family import ParsedTurn

__all__ = ["GEMMA_TOKENS", "GemmaFormat"]

QUOTE = '<|"|>'
OPEN, CLOSE = "<|tool_call>", "<tool_call|>"

GEMMA_TOKENS = (
    "<bos>",
    "<|turn>",
    "<turn|>",
    "<|tool>",
    "<tool|>",
    OPEN,
    CLOSE,
    "<|tool_response>",
    "<tool_response|>",
    QUOTE,
    "<|channel>",
    "<channel|>",
)
"""The syntax's tokens; each has one id in the models' tokenizer."""

_ROLES = {Role.SYSTEM: "system", Role.USER: "user", Role.TOOL: "user", Role.ASSISTANT: "model"}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_\-.]*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_THOUGHT = re.compile(r"<\|channel>.*?(?:<channel\|>|\Z)", re.DOTALL)
_CALL = re.compile(r"\s*call:([A-Za-z_][A-Za-z0-9_\-.]*)\s*")
_CONSTANTS = {"true": True, "false": False, "null": None, "None": None, "True": True, "False": False}
_HOW = "\n\nCall one tool per turn."
_DEPTH = 32


@dataclass(frozen=True, slots=True)
class GemmaFormat:
    """See the module docstring. Stateless; safe to share."""

    name: str = "gemma"
    end_of_turn: str = "<turn|>"
    open_turn: str = "<|turn>model\n"
    after_turn: str = "\n"

    def render_head(self, system: str, tools: Sequence[ToolSpec]) -> str:
        """Beginning of text, system prompt and tool declarations."""
        return f"<bos><|turn>system\n{_text(system.strip())}{_HOW}{''.join(map(_declaration, tools))}<turn|>\n"

    def render_message(self, message: Message) -> str:
        """One message; an assistant message's content is its turn text as sampled, without what follows the end of the turn."""
        if message.role is Role.ASSISTANT:
            return f"{self.open_turn}{message.content}{self.end_of_turn}"
        content = _text(message.content)
        if message.role is Role.TOOL:
            content = f"<|tool_response>response:tool{{value:{QUOTE}{content}{QUOTE}}}<tool_response|>"
        return f"<|turn>{_ROLES[message.role]}\n{content}<turn|>\n"

    def render_turn(self, say: str, call: ToolCall, tools: Sequence[ToolSpec]) -> str:
        """The text of an assistant turn: what is said, then the call."""
        said = f"{_text(say.strip())}\n" if say.strip() else ""
        return f"{said}{OPEN}call:{call.name}{_value(dict(call.arguments))}{CLOSE}"

    def render_observation(self, value: Any) -> str:
        """JSON; plain strings as they are."""
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> ParsedTurn:
        """Read a turn: exactly one call; thoughts before it are passed over, and a lost closing token is tolerated."""
        text = _THOUGHT.sub("", text)
        say, mark, rest = text.partition(OPEN)
        say = unescaped(say.strip())
        if not mark:
            return ParsedTurn(say, failure=f"no tool call found: write one between {OPEN} and {CLOSE}")
        if OPEN in rest:
            return ParsedTurn(say, failure="more than one tool call in one turn: make one call per turn")
        found = _CALL.match(rest)
        if found is None:
            return ParsedTurn(say, failure="a tool call is call:NAME{argument:value}")
        names = [tool.name for tool in tools]
        if found[1] not in names:
            return ParsedTurn(say, failure=f"unknown tool {found[1]}; the tools are {', '.join(names)}")
        try:
            arguments = _Reader(rest, found.end()).whole(CLOSE)
        except ValueError as error:
            return ParsedTurn(say, failure=f"the call's arguments can't be read: {error}")
        return ParsedTurn(say, call=ToolCall(found[1], arguments))


def _declaration(tool: ToolSpec) -> str:
    return f"<|tool>declaration:{tool.name}{_value({'description': tool.description, 'parameters': _typed(tool.parameters)})}<tool|>"


def _typed(schema: Any) -> Any:
    """Type names in capitals, as the declarations have them."""
    if isinstance(schema, Mapping):
        return {key: value.upper() if key == "type" and isinstance(value, str) else _typed(value) for key, value in schema.items()}
    return [_typed(item) for item in schema] if isinstance(schema, list | tuple) else schema


def _value(value: Any) -> str:
    if isinstance(value, str):
        return f"{QUOTE}{_text(value)}{QUOTE}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(str(key))}:{_value(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_value, value)) + "]"
    return json.dumps(value)


def _key(key: str) -> str:
    return key if _WORD.fullmatch(key) else f"{QUOTE}{_text(key)}{QUOTE}"


def _text(text: str) -> str:
    """Content without tokens of the syntax."""
    return escaped(text, GEMMA_TOKENS)


class _Reader:
    """Recursive descent over one call's arguments; raises `ValueError` in words for the model."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self._at = position

    def whole(self, end: str) -> dict[str, Any]:
        """The arguments, and nothing behind them but `end` and what follows it."""
        if not self._skips("{"):
            raise ValueError("they start with {")
        arguments = self._mapping(0)
        rest = self._text[self._at :].strip()
        if rest and not rest.startswith(end):
            raise ValueError(f"text behind them: {rest[:20]}")
        return arguments

    def _skips(self, mark: str) -> bool:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _mapping(self, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self._skips("}"):
            return out
        while True:
            key = self._string() if self._skips(QUOTE) else self._word()
            if not self._skips(":"):
                raise ValueError(f"no : behind {key}")
            if key in out:
                raise ValueError(f"{key} is given twice")
            out[key] = self._any(depth + 1)
            if self._skips("}"):
                return out
            if not self._skips(","):
                raise ValueError(f"no , or }} behind {key}")

    def _sequence(self, depth: int) -> list[Any]:
        out: list[Any] = []
        if self._skips("]"):
            return out
        while True:
            out.append(self._any(depth + 1))
            if self._skips("]"):
                return out
            if not self._skips(","):
                raise ValueError("a list without , or ]")

    def _any(self, depth: int) -> Any:
        if depth > _DEPTH:
            raise ValueError("nested too deep")
        for mark, read in (("{", self._mapping), ("[", self._sequence)):
            if self._skips(mark):
                return read(depth)
        if self._skips(QUOTE):
            return self._string()
        number = _NUMBER.match(self._text, self._at)
        if number is not None:
            self._at = number.end()
            return json.loads(number[0])
        word = self._word()
        if word not in _CONSTANTS:
            raise ValueError(f"text stands between {QUOTE} tokens: {word}")
        return _CONSTANTS[word]

    def _string(self) -> str:
        end = self._text.find(QUOTE, self._at)
        if end < 0:
            raise ValueError(f"a text that no {QUOTE} ends")
        found = self._text[self._at : end]
        self._at = end + len(QUOTE)
        return unescaped(found)

    def _word(self) -> str:
        self._skips("")
        found = _WORD.match(self._text, self._at)
        if found is None:
            raise ValueError(f"unreadable at {self._text[self._at : self._at + 20]!r}")
        self._at = found.end()
        return found[0]
