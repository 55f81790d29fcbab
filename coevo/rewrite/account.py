"""The account of an LLM expert: what its turns take from the run's ledger, round by round, nothing twice and nothing forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from coevo.models.recorded import recorded_usage
from coevo.ports import BlobStore, ItemOutcome, ItemState
from coevo.prices import TokenPrice
from coevo.rewrite.spend import noted_spend, still_due, use_of
from coevo.store.ledger import Ledger, Spend

__all__ = ["ExpertAccount", "Round"]

_PROBES = "expert/probe/"


@dataclass(slots=True)
class Round:
    """One fan-out's expert spending, item by item; `owed` when an item has no record that could say what was asked for it."""

    spends: list[Spend] = field(default_factory=list)
    owed: bool = False

    def take(self, outcome: ItemOutcome) -> None:
        """Count one item."""
        self.spends.append(noted_spend(outcome.note))
        self.owed |= outcome.state is ItemState.OWED


class ExpertAccount:
    """Pays an LLM expert from the run's ledger, under names of its own, so that its dollars stay apart from the engines'.

    An item's note says what its record took, tries included. What was asked for an item that stays owed stands in the run's recording
    alone, so a round with owed items pays all that is recorded and not paid. Limit: with a recording elsewhere only notes count.

    Args:
        store: The run's.
        ledger: The run's.
        price: Of the expert's tokens; None when it is not known.
        per_call: Estimate of one call; None when the expert is no LLM and costs nothing.
        recording: Prefix of the run's own recording of every answer; None when it lies elsewhere.
    """

    def __init__(
        self,
        store: BlobStore,
        ledger: Ledger,
        *,
        price: TokenPrice | None = None,
        per_call: Spend | None = None,
        recording: str | None = None,
    ) -> None:
        self._store, self._ledger = store, ledger
        self._price, self._per_call, self._recording = price, per_call, recording

    @contextmanager
    def holding(self, name: str, calls: int) -> Iterator[Round]:
        """Hold what `calls` may take, settle what the round took less what earlier rounds of the same work have paid.

        Raises:
            BudgetExceeded: The reservation would pass the budget.
            ConfigError: Dollars are bounded and the expert has no price.
        """
        this = Round()
        if self._per_call is None or not calls:
            yield this
            return
        earlier = self._settled(f"expert/{name}/")
        with self._ledger.reservation(f"expert/{name}/{len(earlier)}", estimate=self._per_call.times(calls)) as paid:
            yield this
            due = still_due(this.spends, earlier)
            if this.owed and self._recording is not None:
                recorded = still_due([self._recorded(self._recording), *self._settled(_PROBES)], self._settled("expert/"))
                due = recorded if recorded.tokens > due.tokens else due
            paid.add(due)

    def pay_probe(self, spend: Spend | None) -> None:
        """Enter what the question before the run cost."""
        if spend is not None:
            with self._ledger.reservation(f"{_PROBES}{len(self._settled(_PROBES))}", estimate=spend) as paid:
                paid.add(spend)

    def _settled(self, start: str) -> list[Spend]:
        found = (one for one in self._ledger.reservations() if one.name.startswith(start))
        return [one.settled for one in found if one.settled is not None]

    def _recorded(self, prefix: str) -> Spend:
        """Every answer in the run's recording."""
        usage = recorded_usage(self._store, prefix)
        use = use_of(usage, calls=0, price=self._price)
        return Spend(usd=use.usd, tokens=usage.prompt_tokens + usage.completion_tokens)
