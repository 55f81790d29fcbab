"""Correction rows held against the world again, long after they were made: stored calls give the stored grades, and gains are still there.

`regraded` needs no model: an episode's logged calls, applied to a fresh world, must end in the stored grade. The stage needs the weak
model: it continues the rewritten turn and the turn that the weak model wrote itself, m times each, with seeds that neither localization
nor verification used. A rewrite that was kept because m continuations happened to go well shows here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from coevo.chat import ToolCall
from coevo.evaluate.stats import wilson
from coevo.harness.sandbox import shared_pool
from coevo.localize.replay import Branch, Replayer, Variant
from coevo.ports import StoreSource
from coevo.records import Episode, Record
from coevo.rollout import AgentSource
from coevo.store.episodes import EpisodeStore
from coevo.store.singles import Singles
from coevo.store.threads import beside
from coevo.tasks import load_family
from coevo.tasks.family import TaskFamily, TaskInstance
from coevo.tasks.world import replay

__all__ = ["Recheck", "RecheckStage", "RecheckSummary", "RecheckWorker", "read_recheck", "regraded", "summarize"]


def regraded(episode: Episode, family: TaskFamily) -> str:
    """What differs when the episode's logged calls are applied to a fresh world; empty when the stored grade comes out."""
    if episode.spec.world_version != family.world_version:
        return f"world version {episode.spec.world_version}, now {family.world_version}"
    calls = [ToolCall(call.name, call.arguments) for call in episode.world_log]
    world = replay(family, TaskInstance.parse(episode.spec.task_key), calls)
    grade = world.grade()
    if grade != episode.grade:
        stored = episode.grade
        told = "no grade" if stored is None else f"success {stored.success}, score {stored.score}"
        return f"stored {told}; replayed success {grade.success}, score {grade.score}"
    return (
        "" if world.log_hash == episode.log_hash else f"results of the calls differ: log {episode.log_hash[:16]}, now {world.log_hash[:16]}"
    )


class Recheck(Record):
    """Successes among `m` fresh continuations each, of the rewritten turn and of the turn kept."""

    episode_id: str
    turn: int
    m: int
    rewritten: int
    kept: int

    @property
    def gain(self) -> float:
        """Difference of the success rates."""
        return (self.rewritten - self.kept) / self.m


def _key(prefix: str, episode_id: str) -> str:
    return f"{prefix}/rechecks/{episode_id}.json"


def read_recheck(stage: RecheckStage, episode_id: str) -> Recheck:
    """A committed record of the stage. Raises `StoreError` when there is none."""
    return Singles(stage.store.open(), kind=Recheck, key=partial(_key, stage.prefix)).read(episode_id)


@dataclass(frozen=True, slots=True)
class RecheckStage:
    """Picklable description. Items are episode ids.

    Attributes:
        agent: The weak agent whose turns were rewritten.
        store: Holds the episodes, takes the records.
        prefix: Where the records go.
        episodes_prefix: Where the episodes lie.
        rewrites: Episode id -> the turn, and the text that is trained on there.
        repeats: Continuations of each of the two branches.
    """

    agent: AgentSource
    store: StoreSource
    prefix: str
    episodes_prefix: str
    rewrites: Mapping[str, tuple[int, str]]
    repeats: int

    @property
    def name(self) -> str:
        """For displays."""
        return "recheck"

    def open(self) -> RecheckWorker:
        """Connect model and store."""
        return RecheckWorker(self)


class RecheckWorker:
    """See the module docstring; one record, one PUT per episode."""

    def __init__(self, stage: RecheckStage) -> None:
        self._stage, self._agent = stage, stage.agent.open()
        store = stage.store.open()
        self._episodes = EpisodeStore(store, stage.episodes_prefix)
        self._replayer = Replayer(self._agent, load_family(stage.agent.family), shared_pool())
        self._singles = Singles(store, kind=Recheck, key=partial(_key, stage.prefix))

    async def run(self, item: str, attempt: int) -> Any:
        """Continue both branches of one episode's rewritten turn."""
        settled = await self._singles.settle(item, lambda: self._continued(item))
        return settled.note({"continuations": 2 * settled.record.m})

    async def _continued(self, item: str) -> tuple[Recheck, int]:
        turn, text = self._stage.rewrites[item]
        episode: Episode = await beside(self._episodes.store, self._episodes.get, item)
        m = self._stage.repeats
        new = await self._replayer.run(episode, Branch(turn, Variant.REWRITTEN, text), m=m, purpose="recheck")
        old = await self._replayer.run(episode, Branch(turn, Variant.KEPT), m=m, purpose="recheck")
        record = Recheck(episode_id=item, turn=turn, m=m, rewritten=new.successes, kept=old.successes)
        return record, new.tokens + old.tokens

    async def aclose(self) -> None:
        """Close the model client."""
        await self._agent.model.aclose()


class RecheckSummary(NamedTuple):
    """Rows rechecked; those with a gain above, at and below 0; share above 0 with its Wilson interval; mean success rates of both turns."""

    rows: int
    positive: int
    level: int
    negative: int
    share: float
    low: float
    high: float
    rewritten: float
    kept: float


def summarize(records: Sequence[Recheck]) -> RecheckSummary:
    """The share of rows whose gain is still positive. Raises `ValueError` without records."""
    if not records:
        raise ValueError("no row was rechecked")
    rows, positive, level = len(records), sum(one.gain > 0 for one in records), sum(one.gain == 0 for one in records)
    low, high = wilson(positive, rows)
    rates = (sum(one.rewritten / one.m for one in records) / rows, sum(one.kept / one.m for one in records) / rows)
    return RecheckSummary(rows, positive, level, rows - positive - level, positive / rows, low, high, *rates)
