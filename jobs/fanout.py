"""A stage's items on the executors of a run: shown, paid from the budget, and what is owed told or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coevo.errors import PartialResultError, StoreOutage
from coevo.identity import content_hash
from coevo.ports import Executor, ItemState, MapReport, Progress, Stage
from coevo.records import Record
from coevo.rewrite.spend import PaidSource
from coevo.rollout import AgentSource
from coevo.store.artifacts import StageManifest, StageWriter
from coevo.store.ledger import Spend
from jobs.context import RunContext
from jobs.estimates import EPISODES

__all__ = ["check_owed", "close_records", "fan_out"]


def fan_out(
    context: RunContext, stage: Stage, items: Sequence[str], *, bulk: bool, episodes_per_item: int = 1, expert_calls_per_item: int = 0
) -> MapReport:
    """Run a stage over items with the bulk or the small-batch executor, showing progress, paid from the budget.

    Args:
        context: The run.
        stage: What to run.
        items: On what.
        bulk: Whether the bulk executor may take it; it does from `cluster.bulk_min_items` items on.
        episodes_per_item: Episodes that one item plays at most, for the reservation.
        expert_calls_per_item: Calls of an LLM expert, for the reservation; episodes that it plays itself are counted without this.

    Raises:
        BudgetExceeded: The reservation would pass the budget; what is paid stays stored.
        StoreOutage: Items are owed because the store is out.
    """
    name = f"{stage.name}/{content_hash([stage.name, _agent_of(stage), *items])[:16]}"
    bought = isinstance(getattr(getattr(stage, "agent", None), "model", None), PaidSource)
    calls = round(EPISODES[context.size].turns) if bought else expert_calls_per_item
    with (
        context.ledger.reservation(name, estimate=_spend(context, len(items) * episodes_per_item, tokens=0 if bought else None)) as paid,
        context.account.holding(name, len(items) * calls) as expert,
    ):
        large = bulk and len(items) >= context.config.cluster.bulk_min_items
        executor: Executor = context.serving.bulk if large else context.serving.small
        context.display.stage(stage.name, len(items))
        report = executor.map(stage, items, on_progress=lambda seen: _show(context, seen))
        for outcome in report.outcomes:
            note = outcome.note if isinstance(outcome.note, dict) else {}
            played = int(note.get("continuations", outcome.state is not ItemState.OWED))
            spent = _spend(context, played, tokens=0 if bought else note.get("tokens"))
            # what this process played is paid by the second below; a record that was there was paid by a process that is gone
            paid.add(spent if outcome.state is ItemState.SKIPPED else spent.model_copy(update={"usd": 0.0}))
            expert.take(outcome)
        paid.add(Spend(usd=context.billing.due_usd()))
        context.billing.bought(expert.spends)
        if report.owed:
            _stop_in_outage(context, stage.name, report)
    return report


def close_records(
    context: RunContext, writer: StageWriter, report: MapReport, read: Callable[[str], Record], *, name: str
) -> StageManifest:
    """Close a stage whose workers committed one record per item: owed items are listed, the records compacted into one output.

    Args:
        context: The run.
        writer: Of the stage.
        report: What became of its items.
        read: Item -> its committed record.
        name: Of the output.

    Raises:
        PartialResultError: As `check_owed`.
    """
    check_owed(context, writer.key.stage, report)
    for outcome in report.owed:
        writer.owe(outcome.item, attempts=outcome.attempts)
    records = [read(outcome.item) for outcome in report.outcomes if outcome.state is not ItemState.OWED]
    if records:
        writer.write_records(records, name=name)
    writer.spend(tokens=sum(outcome.note["tokens"] for outcome in report.outcomes if outcome.note and "tokens" in outcome.note))
    return writer.commit()


def check_owed(context: RunContext, stage: str, report: MapReport) -> None:
    """Raise `PartialResultError` (exit code 3) when more than the allowed share is owed."""
    allowed = context.config.rollout.owed_share_max
    if len(report.owed) > allowed * len(report.outcomes):
        raise PartialResultError(
            f"{stage}: too many episodes are owed",
            seen=f"{report.owed_listing()}; allowed {allowed:.1%}",
            fix="run the same command again to play what is owed, or raise rollout.owed_share_max",
        )


def _show(context: RunContext, seen: Progress) -> None:
    context.display.progress(seen)
    context.progress(seen.done, seen.total)
    context.serving.metrics.stage(seen)


def _agent_of(stage: Stage) -> str:
    agent = getattr(stage, "agent", None)
    return f"{agent.model.model_id} {agent.bundle.hash}" if isinstance(agent, AgentSource) else ""


def _spend(context: RunContext, episodes: int, *, tokens: int | None = None) -> Spend:
    """So many episodes; tokens by the plan's estimate where they were not counted, dollars of our own pools by the configured rates."""
    counted = round(episodes * EPISODES[context.size].tokens) if tokens is None else tokens
    return Spend(usd=context.billing.estimate_usd(counted), tokens=counted, episodes=episodes)


def _stop_in_outage(context: RunContext, stage: str, report: MapReport) -> None:
    """Raise `StoreOutage` (exit code 3) with what is owed when that is because the store is out: then nothing can be settled either."""
    try:
        context.store_source.open().head(f"{context.run}/config.json")
    except StoreOutage as outage:
        seen = f"{report.owed_listing()}; {outage.seen}"
        raise StoreOutage(f"{stage}: the store is out", seen=seen, fix="run the same command again when it answers") from outage
