"""What arms ask of the expert beside the corrections: its turn at a given place, nothing replayed; or to take over there and finish.

An item says where: `<episode id>@<turn>.<turn>...` for rewrites, the turns tried in order until the expert has an answer (a reference
policy has none once the task can't be saved), `<episode id>@<turn>` for a takeover. Each result commits itself to the store, as every
stage's does. Rewrites are stored as unverified `Correction`s, takeovers as episodes whose first turns are the weak model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from coevo.chat import Usage
from coevo.episode import forced_prefix, play
from coevo.errors import ConfigError, InfraError
from coevo.harness.sandbox import shared_pool
from coevo.identity import content_hash, derive_seed
from coevo.localize.evidence import suspects
from coevo.ports import BlobStore, Skipped, StoreSource
from coevo.records import Correction, Episode, EpisodeSpec, ExpertUse, Status
from coevo.rewrite.expert import Expert, ExpertSource, Offer, ReferenceExpertSource
from coevo.rewrite.spend import PaidSource, expert_note
from coevo.rewrite.turn import candidate_of
from coevo.rollout import AgentSource
from coevo.store.episodes import EpisodeStore
from coevo.store.singles import Singles
from coevo.store.threads import beside
from coevo.tasks import load_family
from coevo.tasks.family import TaskInstance

__all__ = [
    "AskStage",
    "AskWorker",
    "TakeoverStage",
    "TakeoverWorker",
    "at_last",
    "at_random",
    "at_suspect",
    "at_turns",
    "read_asked",
    "takeover_spec",
]

TRIES = 6
"""Turns of an episode at which the expert is asked, at most."""


def at_random(episodes: Iterable[Episode], *, seed: int) -> tuple[str, ...]:
    """Items that ask at turns drawn uniformly, without replacement, from each episode."""
    items = []
    for episode in episodes:
        order = list(range(len(episode.turns)))
        Random(derive_seed("random turn", seed, episode.id)).shuffle(order)
        items.append(_item(episode.id, order[:TRIES]))
    return tuple(items)


def at_last(episodes: Iterable[Episode]) -> tuple[str, ...]:
    """Items that ask at the last turn of each episode, or the last one before it at which the expert has an answer."""
    return tuple(_item(episode.id, list(range(len(episode.turns)))[::-1][:TRIES]) for episode in episodes)


def at_suspect(episodes: Iterable[Episode]) -> tuple[str, ...]:
    """Items that ask at the turn with the strongest evidence, and nowhere else: localization that nothing was replayed for."""
    return tuple(_item(episode.id, [suspect.turn for suspect in suspects(episode, limit=1)]) for episode in episodes)


def at_turns(turns: Iterable[tuple[Episode, int]]) -> tuple[str, ...]:
    """Items that ask at these turns and nowhere else."""
    return tuple(_item(episode.id, [turn]) for episode, turn in turns)


def _item(episode_id: str, turns: Sequence[int]) -> str:
    return f"{episode_id}@{'.'.join(map(str, turns))}"


def _parse(item: str) -> tuple[str, tuple[int, ...]]:
    id, mark, turns = item.partition("@")
    try:
        return id, tuple(int(turn) for turn in turns.split(".") if turn) if mark else ()
    except ValueError as error:
        raise ConfigError("an item does not say at which turns to ask", seen=item, fix="give <episode id>@<turn>.<turn>") from error


def _asked_key(prefix: str, item: str) -> str:
    return f"{prefix}/asked/{content_hash(item.encode())}.json"


def read_asked(store: BlobStore, prefix: str, item: str) -> Correction:
    """What the expert said to an item; without candidates when it had no answer. Raises `StoreError` when it was not asked."""
    return Correction.from_bytes(store.get(_asked_key(prefix, item)))


@dataclass(frozen=True, slots=True)
class AskStage:
    """Picklable description.

    Attributes:
        agent: The weak agent whose episodes are rewritten.
        store: Holds the episodes, takes the answers.
        prefix: Where the answers go.
        episodes_prefix: Where the episodes lie.
        label: Why the expert is asked; stored as `chosen_by`.
        expert: Who is asked.
    """

    agent: AgentSource
    store: StoreSource
    prefix: str
    episodes_prefix: str
    label: str
    expert: ExpertSource = field(default_factory=ReferenceExpertSource)

    @property
    def name(self) -> str:
        """For displays."""
        return f"dataset/{self.label}"

    def open(self) -> AskWorker:
        """Connect expert and store."""
        return AskWorker(self)


class AskWorker:
    """See the module docstring; one record, one PUT per item."""

    def __init__(self, stage: AskStage) -> None:
        self._stage = stage
        self._agent = stage.agent.open()
        self._store = stage.store.open()
        self._episodes = EpisodeStore(self._store, stage.episodes_prefix)
        self._expert: Expert = stage.expert.open(self._agent, load_family(stage.agent.family))
        self._singles = Singles(self._store, kind=Correction, key=partial(_asked_key, stage.prefix))

    async def run(self, item: str, attempt: int) -> Any:
        """Ask at the turns of an item, in order."""
        settled = await self._singles.settle(item, lambda: self._ask(item))
        return settled.note(_note(settled.record), counted=False)

    async def _ask(self, item: str) -> tuple[Correction, int]:
        id, turns = _parse(item)
        episode: Episode = await beside(self._store, self._episodes.get, id)
        offer, asked, use = Offer(()), turns[0] if turns else 0, ExpertUse()
        for turn in turns:
            offer, asked = await self._expert.rewrite(episode, turn, n=1), turn
            use += offer.use
            if offer.rewrites:
                break
        candidates = tuple(candidate_of(one, schema_valid=True) for one in offer.rewrites)
        correction = Correction(
            episode_id=id,
            turn=asked,
            original=episode.turns[asked].completion_text,
            rewritten=candidates[0].text if candidates else "",
            candidates=candidates,
            chosen=0 if candidates else -1,
            chosen_by=f"first offered, not verified: {self._stage.label}",
            verified=False,
            expert_model_id=self._expert.model_id,
            rejected=offer.rejected,
            expert=use,
        )
        return correction, 0

    async def aclose(self) -> None:
        """Close the expert and the weak model's client."""
        await self._expert.aclose()
        await self._agent.model.aclose()


def _note(correction: Correction) -> dict[str, Any]:
    return {"turn": correction.turn, "offered": bool(correction.candidates), "continuations": 0, "expert": expert_note(correction.expert)}


def takeover_spec(expert: AgentSource, episode: Episode, turn: int) -> EpisodeSpec:
    """Identity of the episode in which the expert takes over `episode` at `turn`."""
    return EpisodeSpec(
        task_key=episode.spec.task_key,
        world_version=load_family(expert.family).world_version,
        harness_hash=expert.bundle.hash,
        model_id=expert.model.model_id,
        sampling=expert.sampling,
        repeat=0,
        branch=content_hash(["takeover", episode.id, turn]),
    )


@dataclass(frozen=True, slots=True)
class TakeoverStage:
    """Picklable description.

    Attributes:
        agent: The expert under the weak agent's harness, format and tokenizer.
        store: Holds the weak agent's episodes, takes the takeovers.
        prefix: Where both lie.
    """

    agent: AgentSource
    store: StoreSource
    prefix: str

    @property
    def name(self) -> str:
        """For displays."""
        return "dataset/takeover"

    def open(self) -> TakeoverWorker:
        """Connect expert and store."""
        return TakeoverWorker(self)


class TakeoverWorker:
    """See the module docstring. A takeover is an episode like any other: committed by itself, never an infrastructure error."""

    def __init__(self, stage: TakeoverStage) -> None:
        self._stage = stage
        self._agent, self._family = stage.agent.open(), load_family(stage.agent.family)
        self._episodes = EpisodeStore(stage.store.open(), stage.prefix)

    async def run(self, item: str, attempt: int) -> Any:
        """Play one takeover."""
        store = self._episodes.store
        id, (turn, *_) = _parse(item)
        started: Episode = await beside(store, self._episodes.get, id)
        spec = takeover_spec(self._stage.agent, started, turn)
        if await beside(store, self._episodes.has, spec.id):
            return Skipped(self._note(await beside(store, self._episodes.get, spec.id), turn))
        played = await play(
            TaskInstance.parse(spec.task_key),
            family=self._family,
            agent=self._agent,
            sandboxes=shared_pool(),
            prefix=forced_prefix(started, turn),
            branch=spec.branch,
        )
        if played.status is Status.INFRA_ERROR:
            raise InfraError("a takeover met infrastructure trouble", seen=played.error[-1000:], fix="it is played again in a fresh world")
        return self._note(await beside(store, self._episodes.commit_first, played), turn)

    def _note(self, episode: Episode, turn: int) -> dict[str, Any]:
        usage, source = episode.usage, self._stage.agent.model
        note: dict[str, Any] = {"id": episode.id, "success": episode.success, "tokens": usage.prompt_tokens + usage.completion_tokens}
        if isinstance(source, PaidSource):
            used = Usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
            note["expert"] = expert_note(source.bill(used, max(0, len(episode.turns) - turn)))
        return note

    async def aclose(self) -> None:
        """Close the expert's client."""
        await self._agent.model.aclose()
