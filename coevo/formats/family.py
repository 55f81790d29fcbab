"""What a chat format is: how messages become text and how a model's turn is read back.

A format renders message by message, and the text of a conversation is the concatenation of its messages: so a sampled turn's token ids can
stand in for its rendered text (R13), and a prompt is extended, never re-encoded, while the context only grows. Contract
(`tests/contract/test_formats.py`): `parse(render_turn(say, call))` gives `say` and `call` back for every call that fits the tool's schema;
special tokens in message content are neutralised, so no observation can forge a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coevo.chat import Message, ToolCall, ToolSpec

__all__ = ["ChatFormat", "ParsedTurn"]


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A model turn, read. Exactly one of `call` and `failure` is set; `failure` is a short reason the agent can act on."""

    say: str
    call: ToolCall | None = None
    failure: str | None = None


class ChatFormat(Protocol):
    """One chat syntax. Stateless and picklable.

    `render_head` covers system prompt and tools; `open_turn` starts an assistant turn; `end_of_turn` is the one token text that closes it;
    `after_turn` is what the template puts behind a closed assistant turn before the next message.
    """

    @property
    def name(self) -> str: ...

    @property
    def end_of_turn(self) -> str: ...

    @property
    def open_turn(self) -> str: ...

    @property
    def after_turn(self) -> str: ...

    def render_head(self, system: str, tools: Sequence[ToolSpec]) -> str: ...

    def render_message(self, message: Message) -> str: ...

    def render_turn(self, say: str, call: ToolCall, tools: Sequence[ToolSpec]) -> str: ...

    def render_observation(self, value: Any) -> str: ...

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> ParsedTurn: ...
