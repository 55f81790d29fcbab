"""Prompts as token ids: messages are encoded one by one, and a sampled turn keeps the ids it was sampled with.

While a context only grows, each prompt is the previous prompt plus the sampled ids plus the new observation: nothing is ever re-encoded
(R13). A context edit drops whole messages; what stays keeps its ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coevo.chat import Message, Role, ToolSpec
from coevo.formats.family import ChatFormat
from coevo.ports import Tokenizer

__all__ = ["PromptRenderer", "shared_prefix"]


class PromptRenderer:
    """Renders one episode's prompts.

    Args:
        chat_format: The chat syntax.
        tokenizer: Of the model that will read the prompt.
        tools: Tools shown in the head; fixed for the episode.
    """

    def __init__(self, chat_format: ChatFormat, tokenizer: Tokenizer, tools: Sequence[ToolSpec]) -> None:
        self._format = chat_format
        self._tokenizer = tokenizer
        self._tools = tuple(tools)
        self._open = tokenizer.encode(chat_format.open_turn)
        self._end = tokenizer.encode(chat_format.end_of_turn)
        self._after = tokenizer.encode(chat_format.after_turn) if chat_format.after_turn else []

    def turn_ids(self, text: str) -> tuple[int, ...]:
        """Completion ids of a turn that was written, not sampled: its text and the end-of-turn token."""
        return tuple(self._tokenizer.encode(text)) + tuple(self._end)

    def prompt(self, messages: Sequence[Message], index: Sequence[int], sampled: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
        """Prompt ids for `messages`, ending with an opened assistant turn.

        Args:
            messages: What the model sees, in order.
            index: Position of each in the episode's message list.
            sampled: Completion ids of assistant messages by position.
        """
        ids: list[int] = []
        for message, position in zip(messages, index, strict=True):
            if message.role is Role.SYSTEM:
                ids += self._tokenizer.encode(self._format.render_head(message.content, self._tools))
            elif message.role is Role.ASSISTANT and position in sampled:
                ids += self._closed(sampled[position])
            else:
                ids += self._tokenizer.encode(self._format.render_message(message))
                if message.role is Role.ASSISTANT:
                    ids += self._after
        return tuple(ids + self._open)

    def _closed(self, completion: tuple[int, ...]) -> list[int]:
        closed = self._open + list(completion)
        if tuple(completion[-len(self._end) :]) != tuple(self._end):
            closed += self._end
        return closed + self._after


def shared_prefix(previous: Sequence[int], current: Sequence[int]) -> int:
    """Length of the common prefix of two id sequences."""
    limit = min(len(previous), len(current))
    if previous[:limit] == current[:limit]:
        return limit
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if previous[:middle] == current[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
