"""The rewrite stage: one localized episode in, one `Correction` out.

The expert offers N rewrites of the localized turn. Each is checked against the tool schema, executed in a replayed world and continued m
times by the weak model, with fresh continuations (not those that localized the turn, which were selected for looking good). Verified = the
gain over the larger of the localization's two baselines has a lower bound above 0. A turn none of whose rewrites verifies gives a
Correction with `verified` False.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from coevo.errors import ConfigError, StoreError
from coevo.gather import gather_all
from coevo.harness.sandbox import shared_pool
from coevo.localize.replay import Branch, Continuations, Replayer, Variant
from coevo.localize.stage import gain_bound, read_localization
from coevo.ports import BlobStore, Scorer, StoreSource
from coevo.records import Correction, CorrectionCandidate, Episode, LocalizationCandidate
from coevo.rewrite.expert import Expert, ExpertSource, Offer, ReferenceExpertSource, Rewrite
from coevo.rewrite.select import CHOSEN_BY, StudentLikelihood, choose, score_turn
from coevo.rewrite.spend import expert_note
from coevo.rewrite.turn import candidate_of
from coevo.rollout import AgentSource
from coevo.store.episodes import EpisodeStore
from coevo.store.singles import Singles
from coevo.store.threads import beside
from coevo.tasks import load_family

__all__ = ["RewriteStage", "RewriteWorker", "correction_key", "read_correction"]


def correction_key(prefix: str, episode_id: str) -> str:
    """Where an episode's correction lies."""
    return f"{prefix}/corrections/{episode_id}.json"


def read_correction(store: BlobStore, prefix: str, episode_id: str) -> Correction:
    """A committed correction. Raises `StoreError` when there is none."""
    return Correction.from_bytes(store.get(correction_key(prefix, episode_id)))


@dataclass(frozen=True, slots=True)
class RewriteStage:
    """Picklable description.

    Attributes:
        agent: The weak agent.
        store: Holds episodes and localizations, takes corrections.
        prefix: Where the corrections go.
        localize_prefix: Where the localizations lie.
        episodes_prefix: Where the episodes lie.
        candidates: Rewrites asked of the expert (N).
        continuations: Continuations per rewrite (m).
        alpha: One-sided error per episode, over its rewrites.
        expert: Who rewrites.
    """

    agent: AgentSource
    store: StoreSource
    prefix: str
    localize_prefix: str
    episodes_prefix: str
    candidates: int
    continuations: int
    alpha: float
    expert: ExpertSource = field(default_factory=ReferenceExpertSource)

    @property
    def name(self) -> str:
        """For displays."""
        return "rewrite"

    def open(self) -> RewriteWorker:
        """Connect model and store."""
        return RewriteWorker(self)


class RewriteWorker:
    """See the module docstring."""

    def __init__(self, stage: RewriteStage) -> None:
        self._stage = stage
        self._agent, family = stage.agent.open(), load_family(stage.agent.family)
        if not isinstance(self._agent.model, Scorer) or self._agent.tokenizer is None:
            raise ConfigError("the weak model can't score given turns", seen=self._agent.model.model_id, fix="serve it with our own pool")
        self._scorer: Scorer = self._agent.model
        self._tokenizer = self._agent.tokenizer
        self._store = stage.store.open()
        self._episodes = EpisodeStore(self._store, stage.episodes_prefix)
        self._replayer = Replayer(self._agent, family, shared_pool())
        self._singles = Singles(self._store, kind=Correction, key=partial(correction_key, stage.prefix))
        self._expert: Expert = stage.expert.open(self._agent, family)

    async def run(self, item: str, attempt: int) -> Any:
        """Correct one localized episode id."""
        settled = await self._singles.settle(item, lambda: self._corrected(item))
        return settled.note(_note(settled.record))

    async def _corrected(self, item: str) -> tuple[Correction, int]:
        localization = await beside(self._store, read_localization, self._store, self._stage.localize_prefix, item)
        place = next((one for one in localization.candidates if one.turn == localization.turn), None)
        if place is None:
            raise StoreError("an unlocalized episode reached the rewrite stage", seen=item, fix="rewrite only localized episodes")
        return await self.correct(await beside(self._store, self._episodes.get, item), place)

    async def correct(self, episode: Episode, place: LocalizationCandidate) -> tuple[Correction, int]:
        """Ask for rewrites, verify each, choose. Also the tokens it took."""
        offer = await self._expert.rewrite(episode, place.turn, n=self._stage.candidates)
        alpha = self._stage.alpha / max(1, len(offer.rewrites))
        judged = await gather_all(*(self._judge(episode, place, rewrite, alpha) for rewrite in offer.rewrites))
        candidates = tuple(candidate for candidate, _, _ in judged)
        totals = [likelihood.total for _, likelihood, _ in judged]
        return self._chosen(episode, place.turn, offer, candidates, totals), sum(tokens for _, _, tokens in judged)

    def _chosen(
        self, episode: Episode, turn: int, offer: Offer, candidates: tuple[CorrectionCandidate, ...], totals: Sequence[float]
    ) -> Correction:
        """The record: the verified candidate nearest to the student, else the expert's first, else none."""
        verified = choose(candidates, totals)
        chosen = verified if verified is not None else 0 if candidates else -1
        best = candidates[chosen] if candidates else None
        return Correction(
            episode_id=episode.id,
            turn=turn,
            original=episode.turns[turn].completion_text,
            rewritten=best.text if best is not None else "",
            candidates=candidates,
            chosen=chosen,
            chosen_by=CHOSEN_BY,
            verified=verified is not None,
            gain_lower=best.gain_lower if best is not None else None,
            student_nll=totals[chosen] if best is not None else None,
            expert_model_id=self._expert.model_id,
            rejected=offer.rejected,
            expert=offer.use,
        )

    async def _judge(
        self, episode: Episode, place: LocalizationCandidate, rewrite: Rewrite, alpha: float
    ) -> tuple[CorrectionCandidate, StudentLikelihood, int]:
        branch = Branch(place.turn, Variant.REWRITTEN, rewrite.text)
        new: Continuations = await self._replayer.run(episode, branch, m=self._stage.continuations, purpose="verify")
        bases = tuple((round((p or 0.0) * place.m), place.m) for p in (place.p_kept, place.p_resampled))
        likelihood = await score_turn(
            self._scorer,
            self._tokenizer,
            self._agent.chat_format,
            prompt=episode.prompt_token_ids(place.turn),
            say=rewrite.strategy,
            text=rewrite.text,
            model_id=episode.spec.model_id,
        )
        valid = self._agent.chat_format.parse(rewrite.text, self._replayer.tools(episode)).call is not None
        measured = {
            "executed": new.executed,
            "continued": new.m,
            "successes": new.successes,
            "gain_lower": gain_bound((new.successes, new.m), bases, alpha),
            "student_nll_strategy": likelihood.strategy,
            "student_nll_call": likelihood.call,
            "student_nll": likelihood.total,
        }
        return candidate_of(rewrite, schema_valid=valid).model_copy(update=measured), likelihood, new.tokens

    async def aclose(self) -> None:
        """Close the model client and the expert's."""
        await self._expert.aclose()
        await self._agent.model.aclose()


def _note(correction: Correction) -> dict[str, Any]:
    continuations = sum(candidate.continued for candidate in correction.candidates)
    return {
        "turn": correction.turn,
        "verified": correction.verified,
        "continuations": continuations,
        "call": correction.candidates[correction.chosen].call.name if correction.candidates else "",
        "expert": expert_note(correction.expert),
    }
