"""The yield section: every call on the way to a verified repair counts, methods stand side by side, and what is not known is not 0.

1. Calls, tokens and dollars of both stages are summed, unusable answers too; ratios are per verified repair.
2. A reference policy calls nobody: ratios are None, not 0. An unknown price makes dollars None, not the rest.
3. Proposers are held against the accepted turn.
"""

from __future__ import annotations

from typing import Any

import pytest

from coevo.identity import content_hash
from coevo.records import CallRecord, Correction, CorrectionCandidate, ExpertUse, Localization, Proposal, RejectedRewrite, UsageRecord
from coevo.report.facts import ReportFacts
from coevo.report.yields import yields
from coevo.store.artifacts import OutputRecord, RowCounts, StageManifest


def use(calls: int, tokens: int, usd: float | None) -> ExpertUse:
    return ExpertUse(calls=calls, usage=UsageRecord(prompt_tokens=tokens - 10, completion_tokens=10), usd=usd)


def correction(episode: str, *, verified: bool, expert: ExpertUse) -> Correction:
    candidate = CorrectionCandidate(strategy="s", call=CallRecord(name="finish"), text="t", schema_valid=True)
    return Correction(
        episode_id=episode,
        turn=1,
        original="o",
        rewritten="t",
        candidates=(candidate,),
        chosen=0,
        chosen_by="test",
        verified=verified,
        rejected=(RejectedRewrite(text="x", reason="no JSON"),),
        expert=expert,
    )


def facts(localizations: list[Localization], corrections: list[Correction]) -> ReportFacts:
    manifests = tuple(
        StageManifest(
            stage=stage,
            input_hash="0" * 12,
            inputs={},
            outputs=(OutputRecord(key=f"trial/{stage}/part-0.parquet", hash=content_hash([stage]), rows=1),),
            code_version="0",
            config_hash="0",
            expected=1,
            rows=RowCounts(written=1),
        )
        for stage in ("localize", "rewrite")
    )
    return ReportFacts(
        run="trial", family="payroll", size="mini", localizations=tuple(localizations), corrections=tuple(corrections), manifests=manifests
    )


def localization(episode: str, turn: int | None, expert: ExpertUse, *proposals: Proposal, method: str = "evidence+replay") -> Localization:
    return Localization(episode_id=episode, turn=turn, method=method, continuations=12, expert=expert, proposals=proposals)


def made(localizations: list[Localization], corrections: list[Correction]) -> dict[str, Any]:
    section = yields(facts(localizations, corrections))
    assert section is not None
    return section


def test_everything_on_the_way_is_paid_by_what_was_verified() -> None:
    """Promise 1."""
    section = made(
        [localization("a", 1, use(3, 300, 0.3)), localization("b", 1, use(2, 200, 0.2)), localization("c", None, use(5, 500, 0.5))],
        [correction("a", verified=True, expert=use(4, 400, 0.4)), correction("b", verified=False, expert=use(6, 600, 0.6))],
    )
    assert section["expert"]["both"] == {"calls": 20, "tokens": 2000, "usd": pytest.approx(2.0)}
    assert section["verified_per_100_calls"] == pytest.approx(5.0)
    assert section["tokens_per_verified"] == pytest.approx(2000)
    assert section["usd_per_verified"] == pytest.approx(2.0)
    assert section["unusable_answers"] == 2
    (row,) = section["whole_methods"]
    assert (row["examined"], row["localized"], row["verified"], row["calls"]) == (3, 2, 1, 20)


def test_not_known_is_not_zero() -> None:
    """Promise 2."""
    free = made([localization("a", 1, ExpertUse())], [correction("a", verified=True, expert=ExpertUse())])
    assert free["verified_per_100_calls"] is free["tokens_per_verified"] is free["usd_per_verified"] is None
    unpriced = made([localization("a", 1, use(3, 300, None))], [correction("a", verified=True, expert=use(1, 100, 0.1))])
    assert unpriced["usd_per_verified"] is None
    assert unpriced["tokens_per_verified"] == pytest.approx(400)
    nothing = made([localization("a", None, use(3, 300, 0.1))], [])
    assert nothing["verified_per_100_calls"] == 0.0
    assert nothing["tokens_per_verified"] is None
    assert yields(facts([], [])) is None


def test_methods_side_by_side() -> None:
    """Promise 3."""
    evidence, judged = Proposal(method="evidence", turns=(3, 1)), Proposal(method="judge:structured", turns=(1,), expert=use(2, 200, 0.2))
    silent = Proposal(method="judge:structured", unlocalizable=True, expert=use(1, 100, 0.1))
    section = made(
        [
            localization("a", 1, use(3, 300, 0.3), evidence, judged, method="evidence+judge:structured+replay"),
            localization("b", None, use(1, 100, 0.1), evidence, silent, method="evidence+judge:structured+replay"),
        ],
        [correction("a", verified=True, expert=use(1, 100, 0.1))],
    )
    by_name = {one["method"]: one for one in section["proposers"]}
    assert (by_name["evidence"]["first_accepted"], by_name["evidence"]["any_accepted"], by_name["evidence"]["decided"]) == (0, 1, 1)
    assert by_name["evidence"]["mean_distance"] == pytest.approx(2.0)
    assert (by_name["judge:structured"]["first_accepted"], by_name["judge:structured"]["unlocalizable"]) == (1, 1)
    assert (by_name["judge:structured"]["calls"], by_name["judge:structured"]["verified"]) == (3, 1)
