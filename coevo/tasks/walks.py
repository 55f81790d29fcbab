"""Walks through a world without a model: a policy in a window of turns, a random caller, a random but plausible prefix."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

from coevo.chat import Message, Role, ToolCall, ToolSpec
from coevo.errors import ToolError
from coevo.tasks.family import Move, Policy, Unrecoverable, World

__all__ = ["MAX_MOVES", "Walk", "literals", "random_call", "seen"]

Render = Callable[[Any], str]
MAX_MOVES = 120
"""A policy that has not ended a world after these is said to loop."""

_TOKEN = re.compile(r"\d+(?:\.\d+)?|[A-Za-z_]+\d*")


@dataclass
class Walk:
    """A world and the conversation so far; `window` turns of it are in view, or all."""

    world: World
    window: int | None = None
    render: Render = json.dumps
    turns: list[tuple[Message, Message]] = field(default_factory=list)
    moves: list[tuple[Move, Sequence[Message]]] = field(default_factory=list)

    def visible(self) -> list[Message]:
        """What an agent would see now."""
        shown = self.turns if self.window is None else self.turns[-self.window :]
        head = [Message(Role.SYSTEM, "you work with tools ."), Message(Role.USER, self.world.instruction)]
        return head + [message for turn in shown for message in turn]

    def call(self, call: ToolCall, say: str = "") -> str:
        """Make a call and say something before it; the observation, or `error` and the reason."""
        try:
            observation = self.render(self.world.call(call.name, call.arguments))
        except ToolError as error:
            observation = f"error {error}"
        text = f"{say}<call>{call.name} {json.dumps(dict(call.arguments), default=str)}"
        self.turns.append((Message(Role.ASSISTANT, text, (call,)), Message(Role.TOOL, observation)))
        return observation

    def follow(self, policy: Policy) -> Unrecoverable | None:
        """Play the policy to the end of the world; None when it got there."""
        for _ in range(MAX_MOVES):
            if self.world.finished:
                return None
            visible = self.visible()
            move = policy.move(self.world, visible, limited=self.window is not None)
            if isinstance(move, Unrecoverable):
                return move
            self.moves.append((move, visible))
            self.call(move.call, move.strategy)
        raise AssertionError(f"no end after {MAX_MOVES} moves: {self.world.instance.key}, {[call.name for call in self.world.log][-8:]}")

    @property
    def observations(self) -> list[str]:
        """What the tools answered, in order."""
        return [result.content for _, result in self.turns]


def literals(value: Any) -> Iterator[str]:
    """The tokens of everything in a call's arguments."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from literals(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from literals(one)
    elif not isinstance(value, bool):
        yield from _TOKEN.findall(str(value))


def seen(messages: Sequence[Message]) -> set[str]:
    """Tokens in view; of assistant messages only what stands before the call."""
    texts = (message.content.partition("<")[0] if message.role is Role.ASSISTANT else message.content for message in messages)
    return set().union(*(_tokens(text) for text in texts))


@lru_cache(maxsize=4096)
def _tokens(text: str) -> frozenset[str]:
    return frozenset(_TOKEN.findall(text))


def random_call(random: Random, tools: Sequence[ToolSpec], known: Sequence[str], *, without: frozenset[str] = frozenset()) -> ToolCall:
    """A call that fits the schema, its values taken from what was observed."""
    spec = random.choice([tool for tool in tools if tool.name not in without])
    arguments = {name: _random_value(random, schema, known) for name, schema in spec.parameters["properties"].items()}
    return ToolCall(spec.name, arguments)


def _random_value(random: Random, schema: Mapping[str, Any], known: Sequence[str]) -> Any:
    if "enum" in schema:
        return random.choice(schema["enum"])
    if schema["type"] == "boolean":
        return random.random() < 0.5
    if schema["type"] == "array":
        return [_random_value(random, schema["items"], known) for _ in range(random.randint(1, 3))]
    numbers = [token for token in known if token.replace(".", "", 1).isdigit()]
    if schema["type"] in ("integer", "number"):
        number = float(random.choice(numbers)) if numbers and random.random() < 0.8 else random.randint(0, 600)
        return int(number) if schema["type"] == "integer" else number
    ids = [token for token in known if token[0].isalpha() and token[-1].isdigit()]
    return random.choice(ids if ids and random.random() < 0.8 else (list(known) or ["x"]))
