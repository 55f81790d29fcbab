"""The embedded model's chat format: few tokens per turn, positional calls.

    <|system|> you audit payroll . tools get_record( employee) finish()<|end|>
    <|user|> audit payroll of department D17 .<|end|>
    <|assistant|> note staff uses code REG .<|call|> submit_pay( E204,217, REG)<|end|>
    <|tool|> ok<|end|>

Arguments stand in the order of the tool's schema; strings that are plain words are bare and preceded by a space (so that every word has one
token, see `coevo.mini.tokenizer`), numbers are bare digits, everything else is JSON. A skipped optional argument makes the later ones
`name=value`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from coevo.chat import Message, Role, ToolCall, ToolSpec
from coevo.formats.family import ParsedTurn

__all__ = ["CALL", "END", "SPECIAL_TOKENS", "MiniFormat"]

PAD, SYSTEM, USER, ASSISTANT, TOOL, CALL, END = SPECIAL_TOKENS = (
    "<|pad|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|call|>",
    "<|end|>",
)
_OPENERS = {Role.SYSTEM: SYSTEM, Role.USER: USER, Role.ASSISTANT: ASSISTANT, Role.TOOL: TOOL}
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*\Z")
_CALL = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*\((.*)\)\s*\Z", re.DOTALL)
_NAMED = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=(?!=)")
_RESERVED = {"true", "false", "null"}


@dataclass(frozen=True, slots=True)
class MiniFormat:
    """See the module docstring. Stateless; safe to share."""

    name: str = "mini"
    end_of_turn: str = END
    open_turn: str = ASSISTANT
    after_turn: str = ""

    def render_head(self, system: str, tools: Sequence[ToolSpec]) -> str:
        """System prompt (white space folded) and tool signatures as one message."""
        signatures = " ".join(f"{tool.name}({','.join(f' {name}' for name in tool.argument_names)})" for tool in tools)
        return f"{SYSTEM} {_neutral(' '.join(system.split()))} tools {signatures}{END}"

    def render_message(self, message: Message) -> str:
        """One message; an assistant message's content is its turn text as sampled."""
        if message.role is Role.ASSISTANT:
            return f"{ASSISTANT}{message.content}{END}"
        return f"{_OPENERS[message.role]} {_neutral(message.content.strip())}{END}"

    def render_turn(self, say: str, call: ToolCall, tools: Sequence[ToolSpec]) -> str:
        """The text of an assistant turn: what is said, then the call."""
        spec = next((tool for tool in tools if tool.name == call.name), None)
        names = spec.argument_names if spec is not None else tuple(call.arguments)
        said = f" {_neutral(say.strip())}" if say.strip() else ""
        return f"{said}{CALL} {call.name}({','.join(_render_arguments(names, call))})"

    def render_observation(self, value: Any) -> str:
        """`key= word` and `key=31` pairs, lists space-separated, True as the bare key."""
        if isinstance(value, dict):
            return " ".join(_pair(key, item) for key, item in value.items())
        return _plain(value)

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> ParsedTurn:
        """Read a turn; anything unreadable is a failure the agent can act on, never an exception."""
        say, mark, rest = text.partition(CALL)
        say = say.strip()
        if not mark:
            return ParsedTurn(say, failure="no call")
        if CALL in rest:
            return ParsedTurn(say, failure="more than one call")
        match = _CALL.match(rest)
        if match is None:
            return ParsedTurn(say, failure="bad call")
        spec = next((tool for tool in tools if tool.name == match[1]), None)
        if spec is None:
            return ParsedTurn(say, failure=f"unknown tool {match[1]}")
        try:
            arguments = _parse_arguments(match[2], spec)
        except ValueError:
            return ParsedTurn(say, failure="bad arguments")
        return ParsedTurn(say, call=ToolCall(spec.name, arguments))


def _neutral(text: str) -> str:
    """Special tokens inside content lose their meaning."""
    return text.replace("<|", "< |")


def _pair(key: str, value: Any) -> str:
    if value is True:
        return key
    plain = _plain(value)
    return f"{key}={plain}" if isinstance(value, (int, float)) else f"{key}= {plain}"


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in value):
        return " ".join(str(item) for item in value) if value else "none"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _render_arguments(names: Sequence[str], call: ToolCall) -> Iterator[str]:
    skipped = False
    for name in names:
        if name not in call.arguments:
            skipped = True
            continue
        rendered = _render_value(call.arguments[name])
        yield f" {name}={rendered.strip()}" if skipped else rendered
    for name in call.arguments:
        if name not in names:
            yield f" {name}={_render_value(call.arguments[name]).strip()}"


def _render_value(value: Any) -> str:
    if isinstance(value, str) and _BARE.match(value) and value not in _RESERVED:
        return f" {value}"
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<|", "\\u003c|")


def _parse_arguments(text: str, spec: ToolSpec) -> dict[str, Any]:
    properties = spec.parameters.get("properties", {})
    arguments: dict[str, Any] = {}
    for position, (name, token) in enumerate(_arguments(text)):
        key = name if name is not None else (spec.argument_names[position] if position < len(spec.argument_names) else None)
        if key is None or key in arguments:
            raise ValueError("too many arguments")
        arguments[key] = _value(token, properties.get(key, {}))
    return arguments


def _arguments(text: str) -> Iterator[tuple[str | None, str]]:
    """Split at top-level commas; JSON strings, arrays and objects stay whole."""
    position, decoder = 0, json.JSONDecoder()
    while position < len(text) and text[position:].strip():
        named = _NAMED.match(text, position)
        name = named[1] if named else None
        start = named.end() if named else position
        while start < len(text) and text[start].isspace():
            start += 1
        if start < len(text) and text[start] in '"[{':
            stop = decoder.raw_decode(text, start)[1]
            end = text.find(",", stop)
            if text[stop : end if end >= 0 else len(text)].strip():
                raise ValueError("text behind a value")
        else:
            end = text.find(",", start)
            stop = end if end >= 0 else len(text)
        yield name, text[start:stop].strip()
        position = end + 1 if end >= 0 else len(text)


def _value(token: str, schema: dict[str, Any]) -> Any:
    if token[:1] in '"[{' and token:
        return json.loads(token)
    kind = schema.get("type")
    if kind == "string":
        if not token:
            raise ValueError("empty argument")
        return token
    if kind == "integer":
        return int(token)
    try:
        return json.loads(token)
    except json.JSONDecodeError:
        if _BARE.match(token):
            return token
        raise
