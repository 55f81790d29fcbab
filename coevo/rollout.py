"""The rollout stage: one agent on many (instance, repeat) items, each episode committed by itself.

An item is `<task key>#<repeat>`: short, self-describing, the same in every run. The worker that plays it opens its own model client and
store; nothing but the item and a small index row crosses the fan-out.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coevo.chat import Sampling, Usage
from coevo.episode import Agent, play
from coevo.errors import ConfigError, InfraError, StoreOutage
from coevo.formats import chat_format
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import shared_pool
from coevo.models.tokenizer import FolderTokenizer
from coevo.ports import ModelSource, Skipped, StoreSource
from coevo.records import Attempt, Episode, EpisodeSpec, Status
from coevo.rewrite.spend import PaidSource, expert_note
from coevo.store.episodes import EpisodeStore
from coevo.store.threads import beside
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream, TaskFamily, TaskInstance

__all__ = ["AgentSource", "RolloutStage", "draw_items", "item_of", "parse_item"]


def item_of(instance: TaskInstance, repeat: int) -> str:
    """`<task key>#<repeat>`."""
    return f"{instance.key}#{repeat}"


def parse_item(item: str) -> tuple[TaskInstance, int]:
    """Inverse of `item_of`."""
    key, _, repeat = item.rpartition("#")
    return TaskInstance.parse(key), int(repeat)


def draw_items(
    family: TaskFamily, stream: Stream, size: Size, seeds: Sequence[int], *, diversity: int, repeats: int = 1
) -> tuple[str, ...]:
    """Items of the instances with these seeds, all repeats of one instance together."""
    instances = [family.instance(stream, seed, size, diversity=diversity) for seed in seeds]
    return tuple(item_of(instance, repeat) for instance in instances for repeat in range(repeats))


@dataclass(frozen=True, slots=True)
class AgentSource:
    """Picklable recipe of an `Agent`: configuration, not connections.

    Attributes:
        family: Family name.
        model: Recipe of the model.
        bundle: The harness.
        chat_format: Name of the format.
        tokenizer_path: Folder with `tokenizer.json`; None for endpoints that render by themselves.
        max_model_len: Context in tokens.
        sampling: Decoding settings.
    """

    family: str
    model: ModelSource
    bundle: HarnessBundle
    chat_format: str
    tokenizer_path: str | None
    max_model_len: int
    sampling: Sampling

    def open(self) -> Agent:
        """Connect. Raises `ConfigError` when the source and the opened model disagree on what is served."""
        tokenizer = FolderTokenizer(self.tokenizer_path) if self.tokenizer_path is not None else None
        model = self.model.open()
        if model.model_id != self.model.model_id:
            seen = f"source {self.model.model_id}, model {model.model_id}"
            raise ConfigError("a model source names another model than it opens", seen=seen, fix="give both the same model_id")
        return Agent(model, self.bundle, chat_format(self.chat_format), tokenizer, self.max_model_len, self.sampling)

    def spec(self, item: str) -> EpisodeSpec:
        """Identity of the episode of an item, without opening anything."""
        instance, repeat = parse_item(item)
        return EpisodeSpec(
            task_key=instance.key,
            world_version=load_family(self.family).world_version,
            harness_hash=self.bundle.hash,
            model_id=self.model.model_id,
            sampling=self.sampling,
            repeat=repeat,
        )


@dataclass(frozen=True, slots=True)
class RolloutStage:
    """Plays items with one agent and commits the episodes below `prefix`."""

    agent: AgentSource
    store: StoreSource
    prefix: str
    label: str = "rollout"

    @property
    def name(self) -> str:
        """For displays."""
        return self.label

    def open(self) -> RolloutWorker:
        """Connect model and store."""
        return RolloutWorker(self)


class RolloutWorker:
    """See `RolloutStage`. Infrastructure trouble is written as an attempt and raised; everything else is a committed episode.

    An episode that the store could not take is kept for the next try: an outage of the store is not paid for in tokens.
    """

    def __init__(self, stage: RolloutStage) -> None:
        self._stage = stage
        self._agent = stage.agent.open()
        self._family = load_family(stage.agent.family)
        self._episodes = EpisodeStore(stage.store.open(), stage.prefix)
        self._worker = f"{socket.gethostname()}:{os.getpid()}"
        self._unstored: dict[str, tuple[Episode, Attempt]] = {}

    async def run(self, item: str, attempt: int) -> Any:
        """Play one item; the note is its index row."""
        spec, store = self._stage.agent.spec(item), self._episodes.store
        if await beside(store, self._episodes.has, spec.id):
            self._unstored.pop(spec.id, None)
            return Skipped(self._note(await beside(store, self._episodes.get, spec.id)))
        kept = self._unstored.pop(spec.id, None)
        episode, tried = kept or await self._play(spec, item, attempt)
        try:
            episode = await beside(store, self._keep, episode, tried)
        except StoreOutage:
            if episode.status is not Status.INFRA_ERROR:
                self._unstored[spec.id] = episode, tried
            raise
        return self._note(episode)

    async def _play(self, spec: EpisodeSpec, item: str, attempt: int) -> tuple[Episode, Attempt]:
        instance, repeat = parse_item(item)
        started = time.monotonic()
        episode = await play(instance, family=self._family, agent=self._agent, sandboxes=shared_pool(), repeat=repeat)
        wall_s = round(time.monotonic() - started, 4)
        return episode, Attempt(id=spec.id, number=attempt, outcome=episode.status, error=episode.error, worker=self._worker, wall_s=wall_s)

    def _keep(self, episode: Episode, tried: Attempt) -> Episode:
        """Commit the episode and write the attempt; the episode that stands.

        In this order: a kill between the two leaves a committed episode without its attempt, not an outcome that is played again.
        """
        if episode.status is Status.INFRA_ERROR:
            self._episodes.record_attempt(tried)
            raise InfraError(
                "the episode met infrastructure trouble", seen=episode.error[-2000:], fix="it is played again in a fresh world"
            )
        stands = self._episodes.commit_first(episode)
        self._episodes.record_attempt(tried)
        return stands

    def _note(self, episode: Episode) -> dict[str, Any]:
        """The index row; with what a bought model's turns cost."""
        usage, source = episode.usage, self._stage.agent.model
        note: dict[str, Any] = {
            "id": episode.id,
            "success": episode.success,
            "status": str(episode.status),
            "turns": len(episode.turns),
            "tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        if isinstance(source, PaidSource):
            used = Usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
            note["expert"] = expert_note(source.bill(used, len(episode.turns)))
        return note

    async def aclose(self) -> None:
        """Close the model client."""
        await self._agent.model.aclose()
