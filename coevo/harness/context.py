"""What the model sees of a conversation: which messages are kept, cut or elided. Pure functions of the messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coevo.chat import Message, Role
from coevo.errors import ConfigError

__all__ = ["ContextPolicy", "ContextView", "apply_policy", "cut_text"]

REPEAT_MARK = "(same as above)"
CUT_MARK = " (cut)"


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """The file `context.yaml`.

    A turn is an assistant message with everything up to the next one. The head is the first `keep_first` messages and whatever else
    stands before the first turn.

    Attributes:
        keep_first: Leading messages that are always kept.
        keep_last_turns: Turns kept after the head; None keeps all.
        max_observation_chars: Longest text of one tool message in view, its mark included; None keeps all.
        elide_repeats: Replace a tool message equal to an earlier one in view by a short mark.
        pins: Literals: a turn with one of them in any message stays, however old.
    """

    keep_first: int = 2
    keep_last_turns: int | None = None
    max_observation_chars: int | None = None
    elide_repeats: bool = False
    pins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.keep_first < 2:
            raise ConfigError("keep_first drops the system prompt or the instruction", seen=self.keep_first, fix="use 2 or more")
        if self.keep_last_turns is not None and self.keep_last_turns < 1:
            raise ConfigError("keep_last_turns hides every turn", seen=self.keep_last_turns, fix="use 1 or more, or null for all")
        if self.max_observation_chars is not None and self.max_observation_chars < 20:
            raise ConfigError("max_observation_chars is too small to read", seen=self.max_observation_chars, fix="use 20 or more, or null")
        if "" in self.pins:
            raise ConfigError("an empty pin matches everything", seen=self.pins, fix="remove it")

    @property
    def edits(self) -> bool:
        """Whether this policy can ever change what is sent."""
        return self.keep_last_turns is not None or self.max_observation_chars is not None or self.elide_repeats


@dataclass(frozen=True, slots=True)
class ContextView:
    """What is sent.

    Attributes:
        messages: As sent.
        index: For each, its index in the full conversation.
        edited: True when any message was dropped or changed: sampled ids can't simply be extended.
        touched: Indices in the full conversation of messages that were dropped, cut or elided.
    """

    messages: tuple[Message, ...]
    index: tuple[int, ...]
    edited: bool
    touched: tuple[int, ...] = ()


def cut_text(text: str, limit: int | None) -> str:
    """`text`, or its start with a visible mark, at most `limit` characters together."""
    if limit is None or len(text) <= limit:
        return text
    return text[: max(0, limit - len(CUT_MARK))] + CUT_MARK


def apply_policy(policy: ContextPolicy, messages: Sequence[Message]) -> ContextView:
    """The view of a conversation under a policy; the same messages always give the same view."""
    if not policy.edits:
        return ContextView(tuple(messages), tuple(range(len(messages))), edited=False)
    index = _kept(policy, messages)
    kept = set(index)
    touched = [position for position in range(len(messages)) if position not in kept]
    sent: list[Message] = []
    seen: set[str] = set()
    for position in index:
        message = messages[position]
        shown = _shown(policy, message, seen)
        if message.role is Role.TOOL:
            seen.add(message.content)
        if shown is not message:
            touched.append(position)
        sent.append(shown)
    return ContextView(tuple(sent), index, edited=bool(touched), touched=tuple(sorted(touched)))


def _kept(policy: ContextPolicy, messages: Sequence[Message]) -> tuple[int, ...]:
    starts = [position for position, message in enumerate(messages) if message.role is Role.ASSISTANT]
    if policy.keep_last_turns is None or len(starts) <= policy.keep_last_turns:
        return tuple(range(len(messages)))
    head = max(policy.keep_first, starts[0])
    tail = starts[-policy.keep_last_turns]
    pinned: set[int] = set()
    for number, start in enumerate(starts):
        stop = starts[number + 1] if number + 1 < len(starts) else len(messages)
        if any(pin in messages[position].content for pin in policy.pins for position in range(start, stop)):
            pinned.update(range(start, stop))
    return tuple(position for position in range(len(messages)) if position < head or position >= tail or position in pinned)


def _shown(policy: ContextPolicy, message: Message, seen: set[str]) -> Message:
    if message.role is not Role.TOOL:
        return message
    if policy.elide_repeats and message.content in seen and len(message.content) > len(REPEAT_MARK):
        return replace(message, content=REPEAT_MARK)
    text = cut_text(message.content, policy.max_observation_chars)
    return message if text is message.content else replace(message, content=text)
