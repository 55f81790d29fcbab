"""What a task family is: seeded instances, worlds that only tools can touch, a hidden grader, a state-conditional reference policy.

Contract (`tests/contract/test_families.py` runs it on every family): two opens of an instance are byte-identical
(`World.snapshot`), reads never change the grade, a do-nothing agent scores 0, the reference scores 1 in both styles, streams are disjoint
because the stream's name is part of the seed, and no observation carries the expected result, the grader's words or the instance's key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from coevo.chat import Message, ToolCall, ToolSpec
from coevo.errors import ConfigError
from coevo.records import Grade

__all__ = ["Conduct", "Move", "Policy", "Size", "Stream", "Style", "TaskFamily", "TaskInstance", "Unrecoverable", "World"]


class Size(StrEnum):
    """How much of the world an instance needs."""

    MINI = "mini"
    """Fits the embedded model's context of about 1,000 tokens."""
    STANDARD = "standard"
    """For a real LLM: 10 to 40 tool calls, policy in documents."""
    LONG = "long"
    """100,000 tokens and more of state behind tools: pages, cut texts, distractors. The rules of standard."""


class Stream(StrEnum):
    """Disjoint sources of instances; the name enters every seed."""

    PRETRAIN = "pretrain"
    """Pretraining of the embedded model and its gates; nothing else."""
    SEARCH = "search"
    """Full traces to proposers, corrections and training."""
    SELECTION = "selection"
    """One aggregate verdict per gate; in-loop measurements."""
    TEST = "test"
    """Sealed until the end; opened once."""


class Style(StrEnum):
    """How a reference policy orders its work."""

    REACTIVE = "reactive"
    """Depth first: read one thing, finish it, go to the next."""
    PLAN_FIRST = "plan_first"
    """Breadth first: announce a plan, read everything, then act."""


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """Everything about an instance is a function of these five."""

    family: str
    template: str
    stream: Stream
    seed: int
    size: Size

    @property
    def key(self) -> str:
        """`family/size/template/stream/seed`; never shown to an agent."""
        return f"{self.family}/{self.size}/{self.template}/{self.stream}/{self.seed}"

    @classmethod
    def parse(cls, key: str) -> TaskInstance:
        """Inverse of `key`. Raises `ConfigError` on anything else."""
        parts = key.split("/")
        try:
            family, size, template, stream, seed = parts
            return cls(family, template, Stream(stream), int(seed), Size(size))
        except ValueError as error:
            raise ConfigError("a task key could not be read", seen=key, fix="use family/size/template/stream/seed") from error


class World(Protocol):
    """One opened instance. State is reachable only through `call`; a ToolError's message is what the agent reads.

    `log` holds every call that was applied or refused, in order; `log_hash` chains them (SHA-256 over previous hash + call + result).
    `finished` becomes True only by the environment's own terminal tool. `fork()` equals replaying the log in a fresh world.
    """

    instance: TaskInstance

    @property
    def instruction(self) -> str: ...

    @property
    def finished(self) -> bool: ...

    @property
    def log(self) -> Sequence[ToolCall]: ...

    @property
    def log_hash(self) -> str: ...

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any: ...

    def grade(self) -> Grade: ...

    def fork(self) -> World: ...

    def snapshot(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Move:
    """What a reference policy would do now.

    Attributes:
        strategy: One short sentence in the words of the family's vocabulary, ending with a full stop.
        plan: The next family calls, first one first, as far as they follow from what is visible; at least one.
            A harness with a composite tool that performs a prefix of them lets one call stand for all of it.
    """

    strategy: str
    plan: tuple[ToolCall, ...]

    @property
    def call(self) -> ToolCall:
        """The next family call."""
        return self.plan[0]


@dataclass(frozen=True, slots=True)
class Unrecoverable:
    """The state can no longer reach success (for example a wrong payment is already submitted)."""

    reason: str


class Policy(Protocol):
    """A state-conditional oracle: acts from any recoverable state, whoever brought the world there.

    `visible` is what the agent can see now (after context trimming): the policy re-reads what has scrolled away, and never
    uses a value that no visible message carries (its own notes count as messages). `limited` says that old turns will scroll away, so a
    plan-first policy carries notes in its strategy text.
    """

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable: ...


@dataclass(frozen=True, slots=True)
class Conduct:
    """What walks and hygiene tests must know about a family's tools.

    Attributes:
        writes: Tools that change what is graded, the terminal tool included; all others are reads.
        free: Arguments whose value is the agent's own choice (a query, a message, a page) and need not have been read anywhere.
    """

    writes: frozenset[str]
    free: frozenset[str] = frozenset()


class TaskFamily(Protocol):
    """A plug-in: one folder under `coevo/tasks` or an entry point of the group `coevo.tasks`.

    `templates(size)` is empty for a size that the family does not have.
    """

    name: str
    world_version: str

    def templates(self, size: Size) -> tuple[str, ...]: ...

    def tools(self, size: Size) -> tuple[ToolSpec, ...]: ...

    def conduct(self, size: Size) -> Conduct: ...

    def instance(self, stream: Stream, seed: int, size: Size, *, diversity: int = 1) -> TaskInstance: ...

    def open(self, instance: TaskInstance) -> World: ...

    def policy(self, style: Style) -> Policy: ...

    def base_harness(self, size: Size) -> Path: ...
