"""What a proposer is: from a parent harness and what its search-stream episodes show, to edits, each one mechanism.

A proposer gets `Evidence` and nothing else: no selection or test episode can be put into it (I8), and no grader, store or model.
Contract (`tests/contract/test_proposers.py`): every edit's bundle differs from the parent and from the other edits, names the parent as
`parent`, passes `coevo.harness.lint`, and cites turns that exist; equal inputs and an equally seeded `rng` give equal edits.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol

from coevo.chat import ToolSpec
from coevo.errors import ConfigError
from coevo.harness.bundle import HarnessBundle
from coevo.records import Episode
from coevo.tasks.family import Stream, TaskInstance

__all__ = ["Edit", "Evidence", "Proposer"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a proposer may read.

    Attributes:
        episodes: Search-stream episodes, of the parent and possibly of others.
        family_tools: The family's tools for this size.

    Raises:
        ConfigError: An episode of another stream.
    """

    episodes: tuple[Episode, ...]
    family_tools: tuple[ToolSpec, ...]

    def __post_init__(self) -> None:
        for episode in self.episodes:
            if TaskInstance.parse(episode.spec.task_key).stream is not Stream.SEARCH:
                fix = "give a proposer search-stream episodes only"
                raise ConfigError("a proposer may not see this episode", seen=episode.spec.task_key, fix=fix)


@dataclass(frozen=True, slots=True)
class Edit:
    """One proposed change.

    Attributes:
        component: What is changed: `hook:NAME`, `tool:NAME`, `prompt`, `context` or `tools`.
        mechanism: The operator or idea, in one word or two.
        hypothesis: Why it should help, one sentence.
        evidence: (episode id, turn) of the failed episodes that show the need.
        predicted_fixes: Ids of the failed episodes that it should turn.
        predicted_risks: What it might break, a sentence each.
        bundle: The child.
    """

    component: str
    mechanism: str
    hypothesis: str
    evidence: tuple[tuple[str, int], ...]
    predicted_fixes: tuple[str, ...]
    predicted_risks: tuple[str, ...]
    bundle: HarnessBundle

    @property
    def summary(self) -> str:
        """One line for archives and reports."""
        return f"{self.component}: {self.mechanism}: {self.hypothesis}"


class Proposer(Protocol):
    """A source of edits; `name` goes into records."""

    name: str

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]: ...
