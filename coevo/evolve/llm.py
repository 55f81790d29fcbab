"""The LLM proposer: an agent played by `coevo.episode.play` in the workshop, with any ChatModel.

Several agents can work at once at the same desk; their edits are merged, equal ones once. It needs a model that writes code, not the
embedded one. What went wrong with the model is told apart from what the model did: when no agent came to an edit and a backend failed, the
call raises, so that an outage never looks like a search with nothing left to propose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from coevo.chat import Sampling
from coevo.episode import Agent, play
from coevo.errors import InfraError
from coevo.evolve.propose import Edit, Evidence, Proposed
from coevo.evolve.workshop import Desk, Workshop, edits_of, workshop_harness
from coevo.formats import chat_format
from coevo.gather import gather_all
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import SandboxPool, shared_pool
from coevo.models.tokenizer import FolderTokenizer
from coevo.ports import ModelSource
from coevo.records import Episode, Status
from coevo.tasks.family import Size, Stream

__all__ = ["LLMProposer", "ProposerModel"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProposerModel:
    """Who proposes, and how it is asked. Configuration, not a connection.

    Attributes:
        source: The model.
        chat_format: Name of the format of its turns.
        sampling: Decoding settings of one turn.
        tokenizer_path: Folder with `tokenizer.json` for models of our own pools; None for endpoints that render by themselves.
        max_model_len: Context in tokens; counts only with a tokenizer.
    """

    source: ModelSource
    chat_format: str = "hermes"
    sampling: Sampling = field(default_factory=lambda: Sampling(0.7, 1.0, 4096))
    tokenizer_path: str | None = None
    max_model_len: int = 10**9


class LLMProposer:
    """See the module docstring. A model is opened per call, so calls from several threads don't meet.

    Args:
        model: Who proposes.
        agents: Agents that work at once, each with a seed of its own.
        edits: Edits that one agent may submit.
        max_turns: Turns that one agent may take; None leaves it to the workshop's harness.
        sandboxes: Where candidates are dry-run; the process's own pool by default.
    """

    name = "llm"

    def __init__(
        self,
        model: ProposerModel,
        *,
        agents: int = 1,
        edits: int = 3,
        max_turns: int | None = None,
        sandboxes: SandboxPool | None = None,
    ) -> None:
        self._model, self._agents, self._edits = model, agents, edits
        self._bundle = workshop_harness(max_turns=max_turns)
        self._sandboxes = sandboxes

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]:
        """The edits of all agents. Raises like `propose_traced`."""
        return list(self.propose_traced(parent, evidence, rng).edits)

    def propose_traced(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> Proposed:
        """The edits, first those that came first in their agent's work; and the agents' episodes.

        Without a failed episode of the parent nothing is asked.

        Raises:
            InfraError: The model failed before any agent had submitted an edit.
        """
        desk = Desk(parent, evidence, self._sandboxes or shared_pool(), self._edits)
        seed = rng.getrandbits(40)
        if not any(name.startswith("f") for name in desk.played):
            return Proposed(())
        episodes = _run(self._play(desk, seed))
        found = [edits_of(desk, episode) for episode in episodes]
        order = [edits[index] for index in range(self._edits) for edits in found if index < len(edits)]
        merged = tuple({edit.bundle.hash: edit for edit in reversed(order)}.values())[::-1]
        broken = [episode for episode in episodes if episode.status is Status.INFRA_ERROR]
        if broken and not merged:
            lines = [line for line in broken[0].error.splitlines() if line.strip()]
            seen = f"{len(broken)} of {len(episodes)} agents; {lines[-1][:300] if lines else ''}"
            raise InfraError("the proposer's model failed", seen=seen, fix="run the same command again when it answers")
        return Proposed(merged, tuple(episodes))

    async def _play(self, desk: Desk, seed: int) -> list[Episode]:
        family, model = Workshop(desk), self._model.source.open()
        tokenizer = FolderTokenizer(self._model.tokenizer_path) if self._model.tokenizer_path is not None else None
        agent = Agent(model, self._bundle, chat_format(self._model.chat_format), tokenizer, self._model.max_model_len, self._model.sampling)
        instance = family.instance(Stream.SEARCH, seed, Size.STANDARD)
        try:
            plays = [play(instance, family=family, agent=agent, sandboxes=desk.sandboxes, repeat=number) for number in range(self._agents)]
            return await gather_all(*plays)
        finally:
            await model.aclose()


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, also where the caller's thread runs an event loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
