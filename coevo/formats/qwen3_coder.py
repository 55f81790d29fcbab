"""ChatML with tool calls as tagged parameters, as Qwen3-Coder models write them: values are raw text, so code needs no JSON escapes.

    <tool_call>
    <function=submit_pay>
    <parameter=employee>
    E204
    </parameter>
    </function>
    </tool_call>

Whether a value is text or JSON is said by the tool's schema and not by the value, so a string `217` stays a string. The head lists tools in
the same tagged style; results come back between `<tool_response>` tags in a user message, as in the models' own template.
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

__all__ = ["QWEN3_CODER_TOKENS", "Qwen3CoderFormat"]

QWEN3_CODER_TOKENS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""The syntax's own tokens that have one id each in the models' tokenizer."""

_SYNTAX = (*QWEN3_CODER_TOKENS, "<function=", "</function>", "<parameter=", "</parameter>")
_CALL = re.compile(r"<function=([^>\n]*)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]*)>\n?(.*?)\n?</parameter>", re.DOTALL)
_HOW = (
    "\n\nCall one tool per turn. Write the call with one tag per parameter, each value on lines of its own:\n"
    "<tool_call>\n<function=TOOL>\n<parameter=ARGUMENT>\nVALUE\n</parameter>\n</function>\n</tool_call>"
)


@dataclass(frozen=True, slots=True)
class Qwen3CoderFormat:
    """See the module docstring. Stateless; safe to share."""

    name: str = "qwen3_coder"
    end_of_turn: str = "<|im_end|>"
    open_turn: str = "<|im_start|>assistant\n"
    after_turn: str = "\n"

    def render_head(self, system: str, tools: Sequence[ToolSpec]) -> str:
        """System prompt, tools and how to call them."""
        listed = "\n".join(_declaration(tool) for tool in tools)
        return f"<|im_start|>system\n{_text(system.strip())}\n\n# Tools\n<tools>\n{listed}\n</tools>{_HOW}<|im_end|>\n"

    def render_message(self, message: Message) -> str:
        """One message; an assistant message's content is its turn text as sampled, without what follows the end of the turn."""
        if message.role is Role.ASSISTANT:
            return f"{self.open_turn}{message.content}{self.end_of_turn}"
        if message.role is Role.TOOL:
            return f"<|im_start|>user\n<tool_response>\n{_text(message.content)}\n</tool_response>\n<|im_end|>\n"
        return f"<|im_start|>{message.role}\n{_text(message.content)}<|im_end|>\n"

    def render_turn(self, say: str, call: ToolCall, tools: Sequence[ToolSpec]) -> str:
        """The text of an assistant turn: what is said, then the tagged call."""
        schema = _schema(call.name, tools)
        said = f"{_text(say.strip())}\n" if say.strip() else ""
        written = "".join(
            f"<parameter={name}>\n{_write(value, schema.get(name, {}))}\n</parameter>\n" for name, value in call.arguments.items()
        )
        return f"{said}<tool_call>\n<function={call.name}>\n{written}</function>\n</tool_call>"

    def render_observation(self, value: Any) -> str:
        """JSON; plain strings as they are."""
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> ParsedTurn:
        """Read a turn: exactly one call. A lost `<tool_call>` tag is tolerated (the models drop it), and so is a lost closing tag."""
        say = unescaped(re.split(r"<tool_call>|<function=", text, maxsplit=1)[0].strip())
        calls = _CALL.findall(text)
        if not calls:
            return ParsedTurn(say, failure="no tool call found: write <function=TOOL> between <tool_call> and </tool_call>")
        if len(calls) > 1 or text.count("<tool_call>") > 1:
            return ParsedTurn(say, failure="more than one tool call in one turn: make one call per turn")
        name, body = calls[0]
        names = [tool.name for tool in tools]
        if name not in names:
            return ParsedTurn(say, failure=f"unknown tool {name}; the tools are {', '.join(names)}")
        left = _PARAMETER.sub("", body).strip()
        if left:
            return ParsedTurn(say, failure=f"text outside <parameter=...> and </parameter>: {left[:40]}")
        schema, arguments = _schema(name, tools), {}
        for key, value in _PARAMETER.findall(body):
            if key in arguments:
                return ParsedTurn(say, failure=f"parameter {key} is given twice")
            try:
                arguments[key] = _read(value, schema.get(key, {}))
            except ValueError:
                return ParsedTurn(say, failure=f"bad value of {key}: its type is {schema[key].get('type')}")
        return ParsedTurn(say, call=ToolCall(name, arguments))


def _declaration(tool: ToolSpec) -> str:
    required = tool.parameters.get("required", [])
    lines = [f"<function>\n<name>{tool.name}</name>\n<description>{_text(tool.description)}</description>\n<parameters>"]
    for name, schema in tool.parameters.get("properties", {}).items():
        described = f"<description>{_text(schema['description'])}</description>\n" if "description" in schema else ""
        rest = {key: value for key, value in schema.items() if key not in ("type", "description")}
        more = f"<schema>{_text(json.dumps(rest, ensure_ascii=False))}</schema>\n" if rest else ""
        kind = schema.get("type", "any")
        kind = kind if isinstance(kind, str) else json.dumps(kind)
        lines.append(f"<parameter>\n<name>{name}</name>\n<type>{kind}</type>\n{described}{more}</parameter>")
    lines.append(f"<required>{json.dumps(required)}</required>\n</parameters>\n</function>")
    return "\n".join(lines)


def _schema(name: str, tools: Sequence[ToolSpec]) -> Mapping[str, Any]:
    spec = next((tool for tool in tools if tool.name == name), None)
    properties: Mapping[str, Any] = spec.parameters.get("properties", {}) if spec is not None else {}
    return properties


def _is_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("string", ["string"])


def _write(value: Any, schema: Mapping[str, Any]) -> str:
    if isinstance(value, str) and _is_text(schema):
        return escaped(value, _SYNTAX)
    return _json_text(value)


def _json_text(value: Any) -> str:
    """JSON whose strings hold no token of the syntax: inside JSON the escape reads back by itself."""
    text = json.dumps(value, ensure_ascii=False)
    for token in _SYNTAX:
        text = text.replace(token, f"\\u003c{token[1:]}")
    return text


def _read(value: str, schema: Mapping[str, Any]) -> Any:
    if _is_text(schema):
        return unescaped(value)
    try:
        return json.loads(value)
    except ValueError:
        if "type" in schema and "string" not in schema["type"]:
            raise
        return unescaped(value)


def _text(text: str) -> str:
    """Content without tokens of the syntax."""
    return escaped(text, _SYNTAX)
