"""What a proposer is: from a parent harness and what its search-stream episodes show, to edits, each one mechanism.

A proposer gets a parent, `Evidence` and a random generator, and nothing else: no selection or test episode can be put into the evidence
(I8), and no grader or store. It runs in the process of the search, but nothing that it is given leads to a tier, a family, the run's seed
or an instance of another stream (`tests/unit/test_proposer_reach.py` walks every reference). An LLM reaches less: the tools of its
workshop. Limit: a proposer class of a user's own is trusted code, and may import what it was not given.
Contract (`tests/contract/test_proposers.py`): every edit's bundle differs from the parent and from the other edits, names the parent as
`parent`, passes `coevo.harness.lint`, and cites turns that exist; equal inputs and an equally seeded `rng` give equal edits, as far as the
model behind an LLM allows. `propose` may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol, runtime_checkable

from coevo.chat import ToolSpec
from coevo.errors import ConfigError
from coevo.harness.bundle import HarnessBundle
from coevo.harness.edits import Change, changes_between
from coevo.records import Episode
from coevo.tasks.family import Stream, TaskInstance

__all__ = ["Edit", "Evidence", "PastEdit", "PredictionScore", "Proposed", "Proposer", "TracedProposer", "score_predictions"]


@dataclass(frozen=True, slots=True)
class PastEdit:
    """An edit of this search that was tried, and what came of it on the search stream.

    Attributes:
        component, mechanism, hypothesis: As proposed.
        outcome: What became of it, in a few words.
        delta: Success rate minus the parent's on the same instances; None when it was not played.
        instances: Instances of that comparison.
        score: Its predictions against what happened; None when it was not played.
    """

    component: str
    mechanism: str
    hypothesis: str
    outcome: str
    delta: float | None = None
    instances: int = 0
    score: PredictionScore | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a proposer may read.

    Attributes:
        episodes: Search-stream episodes, of the parent and possibly of others.
        family_tools: The family's tools for this size.
        past: Edits tried before, oldest first.

    Raises:
        ConfigError: An episode of another stream.
    """

    episodes: tuple[Episode, ...]
    family_tools: tuple[ToolSpec, ...]
    past: tuple[PastEdit, ...] = ()

    def __post_init__(self) -> None:
        for episode in self.episodes:
            if TaskInstance.parse(episode.spec.task_key).stream is not Stream.SEARCH:
                fix = "give a proposer search-stream episodes only"
                raise ConfigError("a proposer may not see this episode", seen=episode.spec.task_key, fix=fix)


@dataclass(frozen=True, slots=True)
class Edit:
    """One proposed change.

    Attributes:
        component: What is changed, mainly: an address of `coevo.harness.edits`, `context` or `tools`.
        mechanism: The operator or idea, in one word or two.
        hypothesis: Why it should help, one sentence.
        evidence: (episode id, turn) of the failed episodes that show the need.
        predicted_fixes: Ids of the failed episodes that it should turn.
        predicted_risks: What it might break, a sentence each.
        bundle: The child.
        predicted_regressions: Ids of the successful episodes that it might lose.
    """

    component: str
    mechanism: str
    hypothesis: str
    evidence: tuple[tuple[str, int], ...]
    predicted_fixes: tuple[str, ...]
    predicted_risks: tuple[str, ...]
    bundle: HarnessBundle
    predicted_regressions: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One line for archives and reports."""
        return f"{self.component}: {self.mechanism}: {self.hypothesis}"

    def changes(self, parent: HarnessBundle) -> tuple[Change, ...]:
        """The edit as typed changes of `parent`."""
        return changes_between(parent, self.bundle)


class Proposer(Protocol):
    """A source of edits; `name` goes into records."""

    name: str

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]: ...


@dataclass(frozen=True, slots=True)
class Proposed:
    """What a proposer that plays episodes of its own came to: its edits, and the episodes in which it wrote them."""

    edits: tuple[Edit, ...]
    episodes: tuple[Episode, ...] = ()


@runtime_checkable
class TracedProposer(Protocol):
    """A proposer whose own work can be kept: `propose` gives the edits of `propose_traced`."""

    name: str

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]: ...

    def propose_traced(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> Proposed: ...


class PredictionScore(NamedTuple):
    """Predictions of an edit against what happened on the instances that parent and child both played.

    Attributes:
        predicted_fixes: Predicted fixes among these instances.
        right_fixes: Of those, how many turned to success.
        fixes: All failures that turned.
        predicted_regressions: Predicted regressions among these instances.
        right_regressions: Of those, how many turned to failure.
        regressions: All successes that turned.
    """

    predicted_fixes: int
    right_fixes: int
    fixes: int
    predicted_regressions: int
    right_regressions: int
    regressions: int


def score_predictions(edit: Edit, parent: Sequence[Episode], child: Sequence[Episode]) -> PredictionScore:
    """Compare what an edit promised with the episodes of the edited harness.

    Args:
        edit: Its predictions name episodes of the parent.
        parent: The parent's episodes.
        child: The edited harness's; pairs are those of the same task and repeat.
    """
    after = {(episode.spec.task_key, episode.spec.repeat): episode.success for episode in child}
    pairs = [(one.id, one.success, after[key]) for one in parent if (key := (one.spec.task_key, one.spec.repeat)) in after]
    fixed = {name for name, before, now in pairs if now and not before}
    lost = {name for name, before, now in pairs if before and not now}
    played = {name for name, _, _ in pairs}
    hopes, fears = set(edit.predicted_fixes) & played, set(edit.predicted_regressions) & played
    return PredictionScore(len(hopes), len(hopes & fixed), len(fixed), len(fears), len(fears & lost), len(lost))
