"""Branching: put the world, the harness and the messages back to a turn, change that turn, let the weak model go on.

A branch is an episode whose first turns are forced, so nothing about it is special: harness state, context policy and prompts come out as
they were (a test holds the rebuilt prompts against the recorded ones). Branches are measurements, not data: they are summed, not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from coevo.chat import ToolSpec
from coevo.episode import Agent, ForcedTurn, forced_prefix, play
from coevo.errors import InfraError
from coevo.gather import gather_all
from coevo.harness.sandbox import SandboxPool
from coevo.harness.tools import resolve_tools
from coevo.identity import content_hash
from coevo.records import Episode, Status
from coevo.tasks.family import TaskFamily, TaskInstance

__all__ = ["Branch", "Continuations", "Replayer", "Variant"]


class Variant(StrEnum):
    """What stands at the branching turn."""

    KEPT = "kept"
    """The weak model's own turn, unchanged."""
    RESAMPLED = "resampled"
    """A fresh sample of the weak model."""
    REWRITTEN = "rewritten"
    """The expert's turn."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A turn and what is put there; `text` only for REWRITTEN."""

    turn: int
    variant: Variant
    text: str = ""


@dataclass(frozen=True, slots=True)
class Continuations:
    """Outcomes of m continuations.

    `tokens` are prompt and completion tokens sampled; `executed` is False when the branching turn's call was refused in any of them.
    """

    successes: int
    m: int
    executed: bool
    tokens: int

    def __add__(self, other: Continuations) -> Continuations:
        return Continuations(
            self.successes + other.successes,
            self.m + other.m,
            self.executed and other.executed,
            self.tokens + other.tokens,
        )


@dataclass(frozen=True, slots=True)
class Replayer:
    """Continues branches of one agent's episodes."""

    agent: Agent
    family: TaskFamily
    sandboxes: SandboxPool

    async def run(self, episode: Episode, branch: Branch, *, m: int, first: int = 0, purpose: str = "") -> Continuations:
        """Continue a branch `m` times.

        Args:
            episode: The recorded episode.
            branch: Where and what.
            m: Continuations.
            first: Index of the first; continuation i of a branch has the same seeds in every run.
            purpose: Enters the seeds, so that a later stage draws fresh continuations of the same branch.

        Raises:
            InfraError: A continuation met infrastructure trouble; the whole item is tried again.
        """
        prefix = self._prefix(episode, branch)
        name = content_hash([episode.id, branch.turn, branch.variant, branch.text, purpose])
        episodes = await gather_all(*(self._one(episode, prefix, name, first + index) for index in range(m)))
        return Continuations(
            successes=sum(one.success for one in episodes),
            m=m,
            executed=all(len(one.turns) > branch.turn and not one.turns[branch.turn].result_error for one in episodes),
            tokens=sum(one.usage.prompt_tokens + one.usage.completion_tokens for one in episodes),
        )

    def tools(self, episode: Episode) -> tuple[ToolSpec, ...]:
        """The tools that the agent's harness shows in this episode's world."""
        family_tools = self.family.tools(TaskInstance.parse(episode.spec.task_key).size)
        return resolve_tools(self.agent.bundle.tools, self.agent.bundle.composites, family_tools).specs

    def _prefix(self, episode: Episode, branch: Branch) -> Sequence[ForcedTurn]:
        match branch.variant:
            case Variant.KEPT:
                return forced_prefix(episode, branch.turn + 1)
            case Variant.RESAMPLED:
                return forced_prefix(episode, branch.turn)
            case Variant.REWRITTEN:
                return (*forced_prefix(episode, branch.turn), ForcedTurn(branch.text))

    async def _one(self, episode: Episode, prefix: Sequence[ForcedTurn], name: str, index: int) -> Episode:
        played = await play(
            TaskInstance.parse(episode.spec.task_key),
            family=self.family,
            agent=self.agent,
            sandboxes=self.sandboxes,
            repeat=index,
            prefix=prefix,
            branch=name,
        )
        if played.status is Status.INFRA_ERROR:
            raise InfraError("a continuation met infrastructure trouble", seen=played.error[-1000:], fix="the branch is played again")
        return played
