"""ChatML with Hermes-style tool calls, as Qwen-family models write them: JSON between `<tool_call>` tags.

Tool results come back as user messages with `<tool_response>` tags, one message each, which is how those models' own templates render
them. The head lists tools as JSON, one per line, between `<tools>` tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coevo.chat import Message, Role, ToolCall, ToolSpec
from coevo.formats.escape import broken
from coevo.formats.family import ParsedTurn

__all__ = ["HermesFormat"]

_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_SPECIAL = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_HOW = (
    "\n\nCall one tool per turn. Write the call as JSON inside tags:\n"
    '<tool_call>\n{"name": "TOOL", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>'
)


@dataclass(frozen=True, slots=True)
class HermesFormat:
    """See the module docstring. Stateless; safe to share."""

    name: str = "hermes"
    end_of_turn: str = "<|im_end|>"
    open_turn: str = "<|im_start|>assistant\n"
    after_turn: str = "\n"

    def render_head(self, system: str, tools: Sequence[ToolSpec]) -> str:
        """System prompt, tool schemas and how to call them."""
        lines = "\n".join(_dump({"type": "function", "function": _function(tool)}) for tool in tools)
        return f"<|im_start|>system\n{_neutral(system.strip())}\n\n# Tools\n<tools>\n{_neutral(lines)}\n</tools>{_HOW}<|im_end|>\n"

    def render_message(self, message: Message) -> str:
        """One message; an assistant message's content is its turn text as sampled, without what follows the end of the turn."""
        if message.role is Role.ASSISTANT:
            return f"{self.open_turn}{message.content}{self.end_of_turn}"
        content = _neutral(message.content)
        if message.role is Role.TOOL:
            return f"<|im_start|>user\n<tool_response>\n{content}\n</tool_response><|im_end|>\n"
        return f"<|im_start|>{message.role}\n{content}<|im_end|>\n"

    def render_turn(self, say: str, call: ToolCall, tools: Sequence[ToolSpec]) -> str:
        """The text of an assistant turn: what is said, then the tagged call."""
        said = f"{_neutral(say.strip())}\n" if say.strip() else ""
        body = _neutral(_dump({"name": call.name, "arguments": dict(call.arguments)}))
        return f"{said}<tool_call>\n{body}\n</tool_call>"

    def render_observation(self, value: Any) -> str:
        """JSON; plain strings as they are."""
        return value if isinstance(value, str) else _dump(value)

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> ParsedTurn:
        """Read a turn: exactly one tagged call; a lost closing tag is tolerated when the JSON is whole."""
        say = text.split("<tool_call>", 1)[0].strip()
        blocks = _TAGGED.findall(text)
        if len(blocks) > 1:
            return ParsedTurn(say, failure="more than one tool call in one turn: make one call per turn")
        if not blocks and "<tool_call>" not in text:
            return ParsedTurn(say, failure="no tool call found: write one between <tool_call> and </tool_call>")
        body = blocks[0] if blocks else text.split("<tool_call>", 1)[1]
        try:
            call = json.loads(body)
        except json.JSONDecodeError as error:
            return ParsedTurn(say, failure=f"the tool call is not valid JSON: {error.msg} at character {error.pos}")
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not isinstance(call.get("arguments", {}), dict):
            return ParsedTurn(say, failure='a tool call is {"name": string, "arguments": object}')
        names = [tool.name for tool in tools]
        if call["name"] not in names:
            return ParsedTurn(say, failure=f"unknown tool {call['name']}; the tools are {', '.join(names)}")
        return ParsedTurn(say, call=ToolCall(call["name"], call.get("arguments", {})))


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _neutral(text: str) -> str:
    """Special tokens inside content lose their meaning; inside JSON strings the escape reads back as the same text."""
    return broken(text, _SPECIAL)
