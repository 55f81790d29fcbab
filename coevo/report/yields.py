"""What repairs cost in calls, tokens and dollars of the expert, and localization methods side by side.

A verified repair is paid by all that was asked on the way to it: judges, turns tried at suspects, rewrites, unusable answers too. A
method's row holds its own proposals against the turn that replay accepted; only turns that somebody named are tried, so rows of one run
compare agreement, not truth. Exact labels exist in the drill only (`tests/bench/bench_localize.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from coevo.records import Correction, ExpertUse, Localization, Proposal
from coevo.report.facts import ReportFacts, sources

__all__ = ["yields"]


def yields(facts: ReportFacts) -> dict[str, Any] | None:
    """The section; None before anything was localized."""
    if not facts.localizations:
        return None
    located, rewritten = _total(one.expert for one in facts.localizations), _total(one.expert for one in facts.corrections)
    verified = {one.episode_id: one for one in facts.corrections if one.verified}
    return {
        "sources": sources(facts, ["localize", "rewrite"]),
        "verified": len(verified),
        "expert": {"localize": _use(located), "rewrite": _use(rewritten), "both": _use(located + rewritten)},
        "unusable_answers": sum(len(one.rejected) for one in facts.corrections)
        + sum(len(proposal.faults) for one in facts.localizations for proposal in one.proposals),
        **_per_repair(located + rewritten, len(verified)),
        "whole_methods": [
            _whole(name, [one for one in facts.localizations if one.method == name], verified, _rewritten(facts.corrections))
            for name in dict.fromkeys(one.method for one in facts.localizations)
        ],
        "proposers": [
            _proposer(name, facts.localizations, verified)
            for name in dict.fromkeys(proposal.method for one in facts.localizations for proposal in one.proposals)
        ],
    }


def _rewritten(corrections: Sequence[Correction]) -> dict[str, ExpertUse]:
    """Episode id -> what its rewrites took."""
    return {one.episode_id: one.expert for one in corrections}


def _whole(name: str, records: Sequence[Localization], verified: dict[str, Correction], rewritten: dict[str, ExpertUse]) -> dict[str, Any]:
    """A method as it was run, from failed episodes to verified repairs."""
    asked = _total(one.expert for one in records) + _total(rewritten.get(one.episode_id, ExpertUse()) for one in records)
    repaired = sum(one.episode_id in verified for one in records)
    return {
        "method": name,
        "examined": len(records),
        "localized": sum(one.turn is not None for one in records),
        "verified": repaired,
        "continuations_per_episode": fmean(one.continuations for one in records),
        **_use(asked),
        **_per_repair(asked, repaired),
    }


def _proposer(name: str, records: Sequence[Localization], verified: dict[str, Correction]) -> dict[str, Any]:
    """What one method named, held against the turns that replay accepted."""
    pairs = [(one, proposal) for one in records for proposal in one.proposals if proposal.method == name]
    decided = [(one.turn, proposal) for one, proposal in pairs if one.turn is not None]
    distances = [abs(proposal.turns[0] - turn) for turn, proposal in decided if proposal.turns]
    asked = _total(proposal.expert for _, proposal in pairs)
    repaired = sum(_names(proposal, one.turn) and one.episode_id in verified for one, proposal in pairs)
    return {
        "method": name,
        "asked": len(pairs),
        "named": sum(bool(proposal.turns) for _, proposal in pairs),
        "unlocalizable": sum(proposal.unlocalizable for _, proposal in pairs),
        "decided": len(decided),
        "first_accepted": sum(proposal.turns[:1] == (turn,) for turn, proposal in decided),
        "any_accepted": sum(_names(proposal, turn) for turn, proposal in decided),
        "mean_distance": fmean(distances) if distances else None,
        "verified": repaired,
        **_use(asked),
        **_per_repair(asked, repaired),
    }


def _names(proposal: Proposal, turn: int | None) -> bool:
    return turn is not None and turn in proposal.turns


def _total(uses: Iterable[ExpertUse]) -> ExpertUse:
    return sum(uses, ExpertUse())


def _use(use: ExpertUse) -> dict[str, Any]:
    return {"calls": use.calls, "tokens": use.usage.prompt_tokens + use.usage.completion_tokens, "usd": use.usd}


def _per_repair(use: ExpertUse, verified: int) -> dict[str, Any]:
    """None where no call was made (a reference policy), nothing was verified or no price is known."""
    tokens = use.usage.prompt_tokens + use.usage.completion_tokens
    counted = bool(verified and use.calls)
    return {
        "verified_per_100_calls": 100 * verified / use.calls if use.calls else None,
        "tokens_per_verified": tokens / verified if counted else None,
        "usd_per_verified": use.usd / verified if counted and use.usd is not None else None,
    }
