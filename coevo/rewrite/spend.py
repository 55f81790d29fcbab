"""What an expert costs: from usage to dollars, and from the index rows of a stage to the ledger.

A worker states each item's expert use in its note; the driver sums the notes and pays. Answers are recorded in the run's store, so an item
that is tried again is answered from there and its use counts once, whatever happened between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from coevo.chat import AnswerForm, Usage
from coevo.prices import TokenPrice
from coevo.records import ExpertUse, UsageRecord
from coevo.store.ledger import Spend

__all__ = ["PaidSource", "expert_note", "noted_spend", "still_due", "use_of"]


@runtime_checkable
class PaidSource(Protocol):
    """A model source whose tokens are bought from an endpoint."""

    def bill(self, usage: Usage, calls: int) -> ExpertUse:
        """What these tokens cost."""
        ...


def use_of(usage: Usage, *, calls: int, price: TokenPrice | None, form: AnswerForm | None = None) -> ExpertUse:
    """The record of these tokens; dollars None without a price."""
    record = UsageRecord(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens, completion_tokens=usage.completion_tokens)
    return ExpertUse(calls=calls, usage=record, usd=price.cost_usd(usage) if price is not None else None, form=form or "")


def expert_note(use: ExpertUse) -> dict[str, Any]:
    """The part of an index row that `noted_spend` reads."""
    return {"calls": use.calls, "tokens": use.usage.prompt_tokens + use.usage.completion_tokens, "usd": use.usd}


def noted_spend(note: Any) -> Spend:
    """What an index row says of the expert; nothing where it says nothing."""
    found = note.get("expert") if isinstance(note, dict) else None
    return Spend(usd=found["usd"], tokens=found["tokens"]) if found else Spend()


def still_due(noted: Iterable[Spend], settled: Iterable[Spend]) -> Spend:
    """What the notes of all items come to, less what was settled for them before."""
    total, before = _sum(noted), _sum(settled)
    usd = None if total.usd is None or before.usd is None else max(0.0, total.usd - before.usd)
    return Spend(usd=usd, tokens=max(0, total.tokens - before.tokens))


def _sum(spends: Iterable[Spend]) -> Spend:
    total = Spend()
    for spend in spends:
        total = total + spend
    return total
