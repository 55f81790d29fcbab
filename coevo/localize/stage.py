"""The localization stage: one failed episode in, one `Localization` out, everything about it replayed before it is believed.

Suspects come from detectors and, where configured, from judges; they are tried in play order, the earliest first. A suspect is accepted
when the expert's turn there, continued by the weak model, succeeds more often than the larger of two baselines (the original turn kept, a
fresh turn of the weak model), with a lower bound above 0. Continuations grow in two looks; alpha is divided over suspects and looks, so it
holds for the whole episode. `unlocalizable` (turn None) is an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from coevo.evaluate.stats import gain_over_best
from coevo.harness.sandbox import shared_pool
from coevo.localize.evidence import Depth, Suspect, scene_of, strongest
from coevo.localize.judge import JudgeSource, LLMJudge, proposal_of
from coevo.localize.replay import Branch, Continuations, Replayer, Variant
from coevo.ports import BlobStore, StoreSource
from coevo.records import Episode, ExpertUse, Localization, LocalizationCandidate, Proposal, Turn
from coevo.rewrite.expert import Expert, ExpertSource, ReferenceExpertSource, Rewrite
from coevo.rewrite.spend import expert_note
from coevo.rollout import AgentSource
from coevo.store.episodes import EpisodeStore
from coevo.store.singles import Singles
from coevo.store.threads import beside
from coevo.tasks import load_family

__all__ = ["LocalizeStage", "LocalizeWorker", "gain_bound", "localization_key", "read_localization"]


@lru_cache(maxsize=4096)
def gain_bound(new: tuple[int, int], bases: tuple[tuple[int, int], ...], alpha: float) -> float:
    """Memoised `coevo.evaluate.stats.gain_over_best`: few counts occur, and each costs milliseconds."""
    return gain_over_best(new, bases, alpha=alpha)


def localization_key(prefix: str, episode_id: str) -> str:
    """Where an episode's localization lies."""
    return f"{prefix}/localizations/{episode_id}.json"


def read_localization(store: BlobStore, prefix: str, episode_id: str) -> Localization:
    """A committed localization. Raises `StoreError` when there is none."""
    return Localization.from_bytes(store.get(localization_key(prefix, episode_id)))


@dataclass(frozen=True, slots=True)
class LocalizeStage:
    """Picklable description.

    Attributes:
        agent: The weak agent whose failures are localized.
        store: Holds the episodes and takes the localizations.
        prefix: Where the localizations go.
        episodes_prefix: Where the episodes lie.
        candidates: Suspects tried per episode.
        continuations: Continuations per variant at the last look.
        alpha: One-sided error per episode, over all its suspects and looks.
        expert: Whose turn is tried at each suspect.
        depth: Which detectors look; None leaves it to the judges.
        first_look: Continuations per variant at the first of two looks; None takes half of them.
        judges: Who names suspects beside the detectors; theirs come first.
        skip_same_call: A suspect at which the expert makes the very call that the weak model made is passed over without continuations:
            kept and rewritten turn would differ in words alone.
    """

    agent: AgentSource
    store: StoreSource
    prefix: str
    episodes_prefix: str
    candidates: int
    continuations: int
    alpha: float
    expert: ExpertSource = field(default_factory=ReferenceExpertSource)
    depth: Depth | None = Depth.BASIC
    judges: tuple[JudgeSource, ...] = ()
    first_look: int | None = None
    skip_same_call: bool = False

    @property
    def method(self) -> str:
        """Who proposed, and that replay decided."""
        looking = "" if self.depth is None else "evidence" if self.depth is Depth.BASIC else f"evidence:{self.depth}"
        return "+".join((*([looking] if looking else []), *(f"judge:{one.style}" for one in self.judges), "replay"))

    @property
    def name(self) -> str:
        """For displays."""
        return "localize"

    @property
    def looks(self) -> tuple[int, ...]:
        """Continuations after each look: half or as configured, then all."""
        if self.first_look is not None:
            return (self.first_look, self.continuations) if self.first_look < self.continuations else (self.continuations,)
        half = self.continuations // 2
        return (half, self.continuations) if half >= 3 else (self.continuations,)

    def open(self) -> LocalizeWorker:
        """Connect model and store."""
        return LocalizeWorker(self)


class LocalizeWorker:
    """See the module docstring; one record, one PUT per episode."""

    def __init__(self, stage: LocalizeStage) -> None:
        self._stage = stage
        agent, family = stage.agent.open(), load_family(stage.agent.family)
        self._family, self._model = family, agent.model
        self._store = stage.store.open()
        self._episodes = EpisodeStore(self._store, stage.episodes_prefix)
        self._replayer = Replayer(agent, family, shared_pool())
        self._singles = Singles(self._store, kind=Localization, key=partial(localization_key, stage.prefix))
        self._expert: Expert = stage.expert.open(agent, family)
        self._judges: tuple[LLMJudge, ...] = tuple(one.open() for one in stage.judges)

    async def run(self, item: str, attempt: int) -> Any:
        """Localize one episode id."""
        settled = await self._singles.settle(item, lambda: self._localized(item))
        return settled.note(_note(settled.record))

    async def _localized(self, item: str) -> tuple[Localization, int]:
        return await self.localize(await beside(self._store, self._episodes.get, item))

    async def localize(self, episode: Episode) -> tuple[Localization, int]:
        """Try the suspects in play order; the first whose gain has a lower bound above 0 is the turn. And the tokens it took."""
        named, proposals = await self._named(episode)
        tried: list[LocalizationCandidate] = []
        spent, tokens, found = 0, 0, None
        asked = sum((one.expert for one in proposals), ExpertUse())
        for suspect in named:
            candidate, used, asking = await self._try(episode, suspect, tests=len(named))
            tried.append(candidate)
            asked += asking
            spent += used.m
            tokens += used.tokens
            if candidate.gain_lower is not None and candidate.gain_lower > 0:
                found = suspect.turn
                break
        localization = Localization(
            episode_id=episode.id,
            turn=found,
            method=self._stage.method,
            candidates=tuple(tried),
            continuations=spent,
            alpha=self._stage.alpha,
            expert=asked,
            proposals=proposals,
        )
        return localization, tokens

    async def _named(self, episode: Episode) -> tuple[tuple[Suspect, ...], tuple[Proposal, ...]]:
        """The suspects in play order, at most `candidates`, the judges' first; and who named what, where there are judges."""
        stage, depth = self._stage, self._stage.depth
        found = () if depth is None else strongest(scene_of(episode, self._family), limit=stage.candidates, depth=depth)
        proposals = [Proposal(method="evidence", turns=tuple(one.turn for one in found))] if stage.judges and found else []
        chosen: dict[int, Suspect] = {}
        for source, judge in zip(stage.judges, self._judges, strict=True):
            blame = await judge.blame(episode, k=stage.candidates, evidence=found)
            proposals.append(proposal_of(f"judge:{source.style}", blame))
            for rank, one in enumerate(blame.turns):
                chosen.setdefault(one.turn, Suspect(one.turn, f"judge:{source.style}", one.reason, 9.0 - rank))
        for suspect in found:
            chosen.setdefault(suspect.turn, suspect)
        kept = sorted(chosen.values(), key=lambda one: (-one.weight, one.turn))[: stage.candidates]
        return tuple(sorted(kept, key=lambda one: one.turn)), tuple(proposals)

    async def _try(self, episode: Episode, suspect: Suspect, *, tests: int) -> tuple[LocalizationCandidate, Continuations, ExpertUse]:
        offer = await self._expert.rewrite(episode, suspect.turn, n=1)
        if not offer.rewrites:
            why = f"the expert's answer can't be used: {offer.rejected[0].reason}" if offer.rejected else "not recoverable from here"
            return LocalizationCandidate(turn=suspect.turn, evidence=f"{suspect.reason}; {why}"), Continuations(0, 0, True, 0), offer.use
        if self._stage.skip_same_call and _same_call(episode.turns[suspect.turn], offer.rewrites[0]):
            why = f"{suspect.reason}; the expert would make the same call"
            return LocalizationCandidate(turn=suspect.turn, evidence=why), Continuations(0, 0, True, 0), offer.use
        branches = (
            Branch(suspect.turn, Variant.REWRITTEN, offer.rewrites[0].text),
            Branch(suspect.turn, Variant.KEPT),
            Branch(suspect.turn, Variant.RESAMPLED),
        )
        alpha = self._stage.alpha / (tests * len(self._stage.looks))
        sums: list[Continuations] = [Continuations(0, 0, True, 0) for _ in branches]
        bound = -1.0
        for look in self._stage.looks:
            sums = [total + await self._more(episode, branch, total, look) for branch, total in zip(branches, sums, strict=True)]
            new, *bases = sums
            bound = gain_bound((new.successes, new.m), tuple((base.successes, base.m) for base in bases), alpha)
            if bound > 0 or new.successes <= max(base.successes for base in bases):
                break
        new, kept, resampled = sums
        candidate = LocalizationCandidate(
            turn=suspect.turn,
            evidence=suspect.reason,
            p_kept=kept.successes / kept.m,
            p_resampled=resampled.successes / resampled.m,
            p_rewritten=new.successes / new.m,
            m=new.m,
            gain_lower=bound,
        )
        return candidate, new + kept + resampled, offer.use

    async def _more(self, episode: Episode, branch: Branch, so_far: Continuations, look: int) -> Continuations:
        return await self._replayer.run(episode, branch, m=look - so_far.m, first=so_far.m)

    async def aclose(self) -> None:
        """Close the model client and the expert's."""
        for judge in self._judges:
            await judge.aclose()
        await self._expert.aclose()
        await self._model.aclose()


def _same_call(turn: Turn, rewrite: Rewrite) -> bool:
    return turn.call is not None and (turn.call.name, turn.call.arguments) == (rewrite.call.name, dict(rewrite.call.arguments))


def _note(localization: Localization) -> dict[str, Any]:
    return {
        "turn": localization.turn,
        "continuations": localization.continuations,
        "tried": len(localization.candidates),
        "expert": expert_note(localization.expert),
    }
