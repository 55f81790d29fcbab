"""What an agent can know from the messages it sees: values that stand as whole tokens beside the id of an item, document or person.

A token is a number, or letters and underscores with digits behind them: ids like `E204` or `PO77` are one, `E-204` is not. Reads rendered
text of any format. A message about one id counts as a whole; in a message about several (a list, notes) a value belongs to the id before
it; a tool result that names no id belongs to the id in the call that it answers. The text of an assistant message counts up to its first
`<`, where the call syntax of the formats starts: an agent's own notes are facts, its guesses inside calls are not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from coevo.chat import Message, Role, ToolCall
from coevo.errors import ConfigError

__all__ = ["Sight"]

_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?|[A-Za-z_]+[0-9]*")


@lru_cache(maxsize=4096)
def _split(text: str) -> tuple[str, ...]:
    """Cached, because every turn looks at the same messages again."""
    return tuple(_TOKEN.findall(text))


def _tokens(message: Message) -> tuple[str, ...]:
    return _split(message.content.partition("<")[0] if message.role is Role.ASSISTANT else message.content)


class Sight:
    """The facts in `visible` about the subjects `ids`. Raises `ConfigError` for an id that is not one token."""

    def __init__(self, visible: Sequence[Message], ids: Collection[str]) -> None:
        split = next((one for one in ids if _split(one) != (one,)), None)
        if split is not None:
            raise ConfigError("a subject's id is not one token", seen=split, fix="use letters with digits behind them")
        self._segments: dict[str, list[frozenset[str]]] = {one: [] for one in ids}
        self._answers: list[tuple[tuple[ToolCall, ...], frozenset[str]]] = []
        self._words: set[str] = set()
        calls: tuple[ToolCall, ...] = ()
        for message in visible:
            tokens = _tokens(message)
            self._words.update(tokens)
            if message.role is Role.ASSISTANT:
                calls = message.calls
                self._words.update(str(value) for call in calls for value in call.arguments.values())
            elif message.role is Role.TOOL:
                self._answers.append((calls, frozenset(tokens)))
            self._attribute(tokens, calls if message.role is Role.TOOL else ())

    def _attribute(self, tokens: tuple[str, ...], calls: tuple[ToolCall, ...]) -> None:
        named = [index for index, token in enumerate(tokens) if token in self._segments]
        distinct = {tokens[index] for index in named}
        if not named:
            asked = {str(value) for call in calls for value in call.arguments.values()} & self._segments.keys()
            distinct = asked if len(asked) == 1 else set()
        if len(distinct) == 1:
            self._segments[distinct.pop()].append(frozenset(tokens))
            return
        for index, stop in zip(named, [*named[1:], len(tokens)][: len(named)], strict=True):
            self._segments[tokens[index]].append(frozenset(tokens[index:stop]))

    def mentions(self, token: str) -> bool:
        """The token stands somewhere in view."""
        return token in self._words

    def says(self, *values: object) -> bool:
        """Every token of these values stands somewhere in view."""
        return all(self._words.issuperset(_split(str(value))) for value in values)

    def carries(self, subject: str, *values: object) -> bool:
        """One message carries every token of these values for this subject."""
        wanted = {token for value in values for token in _split(str(value))}
        return any(wanted <= segment for segment in self._segments[subject])

    def answered(self, arguments: Collection[object], value: object) -> bool:
        """A visible tool message carries `value` in answer to a visible call with these argument values."""
        wanted, answer = {str(one) for one in arguments}, str(value)
        return any(
            answer in tokens and any(wanted <= {str(one) for one in call.arguments.values()} for call in calls)
            for calls, tokens in self._answers
        )

    def calculated(self, expression: str, value: object) -> bool:
        """A visible tool message carries `value` in answer to a visible call that contains this expression."""
        return any(str(value) in tokens and any(_contains(call, expression) for call in calls) for calls, tokens in self._answers)


def _contains(call: ToolCall, expression: str) -> bool:
    values = call.arguments.values()
    return any(expression == value or (isinstance(value, (list, tuple)) and expression in value) for value in values)
