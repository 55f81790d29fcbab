"""The search's own budget: what a batch may cost is reserved before it is played and settled after, whatever the run's budget says.

The search stops when the next batch does not fit; what was paid stays committed, the accepted edits stay accepted, and the episodes of the
final measurement were held back from the start. A search that was killed adopts its reservations: names are functions of what is played.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coevo.config import EvolveConfig
from coevo.errors import BudgetExceeded
from coevo.evolve.evaluator import Evaluator, Play
from coevo.evolve.plan import plan_search
from coevo.identity import content_hash
from coevo.records import Episode
from coevo.store.ledger import Budget, Ledger, Reservation, Spend, check_affordable

__all__ = ["BudgetUsed", "MeteredEvaluator", "check_search_budget"]


def check_search_budget(config: EvolveConfig, *, each: Spend) -> Budget:
    """The search's own budget, when it pays for the first candidate of every restart and for the end of the search (H4).

    Args:
        config: The search.
        each: Estimate of one episode.

    Raises:
        ConfigError: It does not: the search would end before any restart had a verdict, or without its last measurement.
    """
    budget, plan = Budget(**config.budget.model_dump()), plan_search(config)
    check_affordable(budget, seed=each.times(sum(plan.closing.values())), candidate=each.times(plan.first_candidates))
    return budget


class BudgetUsed(BudgetExceeded):
    """The search's own budget can't pay for the next batch: the search ends with what it has."""


@dataclass(frozen=True, slots=True)
class MeteredEvaluator:
    """An evaluator that pays from a ledger.

    Attributes:
        inner: Who plays.
        ledger: The search's budget.
        per_episode: Estimate of one episode.
        held: Purposes that are played at the end -> episodes held back for them (`hold`).
    """

    inner: Evaluator
    ledger: Ledger
    per_episode: Spend
    held: Mapping[str, int]

    def hold(self) -> None:
        """Hold back what the end needs, anew under every budget. Raises `BudgetExceeded` when that alone is more than the budget."""
        for purpose, episodes in self.held.items():
            self.ledger.reserve(self._hold_name(purpose), estimate=self.per_episode.times(episodes))

    def release(self, purposes: Collection[str] | None = None) -> None:
        """Give back what was held for these purposes; for all of them by default."""
        names = {self._hold_name(purpose) for purpose in self.held if purposes is None or purpose in purposes}
        for one in self.ledger.reservations():
            if one.settled is None and one.name in names:
                self.ledger.settle(one, one.paid)

    def play(self, plays: Sequence[Play]) -> Sequence[Mapping[str, Episode]]:
        """Play a batch when it fits.

        Raises:
            BudgetUsed: It does not; nothing was played.
        """
        reservation, started_s = self._reserve(plays), time.monotonic()
        episodes = self.inner.play(plays)
        reservation.add(_paid(episodes, time.monotonic() - started_s, self.per_episode))
        self.ledger.settle(reservation, reservation.paid)
        return episodes

    def _reserve(self, plays: Sequence[Play]) -> Reservation:
        self.release({play.purpose for play in plays})
        estimate = self.per_episode.times(sum(len(play.items) for play in plays))
        try:
            return self.ledger.reserve(_name(plays), estimate=estimate)
        except BudgetExceeded as error:
            raise BudgetUsed(error.what, seen=error.seen, fix="raise evolve.budget under another run name") from error

    def _hold_name(self, purpose: str) -> str:
        return f"hold/{purpose}/{content_hash(self.ledger.budget.model_dump())[:16]}"


def _name(plays: Sequence[Play]) -> str:
    return f"play/{content_hash([[play.bundle.hash, play.purpose, play.null, list(play.items)] for play in plays])[:32]}"


def _paid(episodes: Sequence[Mapping[str, Episode]], seconds: float, per_episode: Spend) -> Spend:
    """Tokens as counted, dollars by the estimate's price per episode, seconds as passed."""
    played = [episode for one in episodes for episode in one.values()]
    tokens = sum(episode.usage.prompt_tokens + episode.usage.completion_tokens for episode in played)
    return Spend(usd=per_episode.times(len(played)).usd, tokens=tokens, episodes=len(played), seconds=round(seconds, 3))
