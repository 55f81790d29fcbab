"""The stage under a search's batches: several agents in one fan-out, so that no edit waits for another's last episode.

An item is `<mark>|<task key>#<repeat>`; the mark names the agent. Everything else is the rollout stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from coevo.identity import content_hash
from coevo.ports import StageWorker, StoreSource
from coevo.rollout import AgentSource, RolloutStage

__all__ = ["BatchStage", "BatchWorker", "distinct", "marked"]

_SEPARATOR = "|"
_MARK_CHARS = 16


def _mark(agent: AgentSource) -> str:
    return content_hash([agent.model.model_id, agent.bundle.hash])[:_MARK_CHARS]


def marked(agent: AgentSource, items: Sequence[str]) -> tuple[str, ...]:
    """Items of a rollout as items of a batch."""
    mark = _mark(agent)
    return tuple(f"{mark}{_SEPARATOR}{item}" for item in items)


def distinct(agents: Iterable[AgentSource]) -> tuple[AgentSource, ...]:
    """Each agent once, in order."""
    return tuple({_mark(agent): agent for agent in agents}.values())


@dataclass(frozen=True, slots=True)
class BatchStage:
    """Plays marked items, each with its agent, and commits the episodes below `prefix`. Picklable.

    Attributes:
        agents: Recipes of all agents of the batch.
        store: The object store.
        prefix: Where episodes lie.
        label: For displays.
    """

    agents: tuple[AgentSource, ...]
    store: StoreSource
    prefix: str
    label: str

    @property
    def name(self) -> str:
        """For displays."""
        return self.label

    def open(self) -> BatchWorker:
        """Connect nothing yet: an agent is opened with its first item."""
        return BatchWorker(self)


class BatchWorker:
    """See `BatchStage`."""

    def __init__(self, stage: BatchStage) -> None:
        self._stage = stage
        self._agents = {_mark(agent): agent for agent in stage.agents}
        self._workers: dict[str, StageWorker] = {}

    async def run(self, item: str, attempt: int) -> Any:
        """Play one item with its agent; the rollout's note."""
        mark, _, plain = item.partition(_SEPARATOR)
        if mark not in self._workers:
            stage = self._stage
            self._workers[mark] = RolloutStage(self._agents[mark], stage.store, stage.prefix, stage.label).open()
        return await self._workers[mark].run(plain, attempt)

    async def aclose(self) -> None:
        """Close the agents that were opened."""
        for worker in self._workers.values():
            await worker.aclose()
