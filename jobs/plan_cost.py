"""Hours and dollars of a plan, stage by stage: estimates from counts, the stated token constants, and the configured speeds and prices.

Busy time only: start-up, idle replicas and losses come on top, and the measured bill of a run says by how much. None = a price or a speed
is not configured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.cost import ProcessRate
from coevo.config import PlacementConfig, RunConfig
from coevo.prices import PriceSheet, load_prices
from coevo.tasks.family import Size
from jobs.billing import engine_rate, estimated_usd, expert_rate, training_rate
from jobs.estimates import row_tokens
from jobs.expert import call_estimate

__all__ = ["StageCost", "StageWork", "cost_lines", "expert_lines", "plan_cost"]

_HOUR_S = 3600.0
_Part = tuple[float | None, float | None, float | None]
"""Process hours, GPU hours, dollars."""
_UNPAID = ("reference", "recorded")
"""Experts that cost neither dollars nor engines."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """What a stage asks of engines, trainers and an LLM expert: tokens of the weak model, training rows, calls of the expert."""

    stage: str
    tokens: float = 0.0
    trained_rows: int = 0
    expert_calls: int = 0


@dataclass(frozen=True, slots=True)
class StageCost:
    """Estimate of one stage. `process_h` are hours of engines or training workers, summed over them."""

    stage: str
    process_h: float | None
    gpu_h: float | None
    usd: float | None


def plan_cost(config: RunConfig, work: Sequence[StageWork]) -> tuple[StageCost, ...]:
    """One estimate per stage.

    Raises:
        ConfigError: Unreadable price sheet, unknown instance type.
    """
    sheet = load_prices(config.prices)
    return tuple(_stage_cost(config, sheet, one) for one in work)


def _stage_cost(config: RunConfig, sheet: PriceSheet, work: StageWork) -> StageCost:
    engines = _part(config.cluster.pools.weak, engine_rate(config, sheet), work.tokens)
    trained = work.trained_rows * row_tokens(Size(config.size))
    trainers = _part(config.cluster.pools.train, training_rate(config, sheet), trained)
    expert = _expert(config, sheet, work.expert_calls)
    hours, gpu_h, usd = (_sum(*parts) for parts in zip(engines, trainers, expert, strict=True))
    return StageCost(work.stage, hours, gpu_h, usd)


def _expert(config: RunConfig, sheet: PriceSheet, calls: int) -> _Part:
    """An expert behind an endpoint costs dollars by the token, one of the run's own hours of its engines; the reference policy nothing."""
    if not calls or config.expert.kind in _UNPAID:
        return 0.0, 0.0, 0.0
    each = call_estimate(config).times(calls)
    if config.expert.kind == "pool":
        return _part(config.cluster.pools.expert, expert_rate(config, sheet), each.tokens)
    return 0.0, 0.0, each.usd


def _part(placement: PlacementConfig, rate: ProcessRate, tokens: float) -> _Part:
    if not tokens:
        return 0.0, 0.0, 0.0
    hours = None if placement.tokens_per_s is None else tokens / placement.tokens_per_s / _HOUR_S
    return hours, None if hours is None else hours * rate.gpus, estimated_usd(rate, placement, tokens)


def _sum(*amounts: float | None) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def _known(amounts: Iterable[float | None]) -> float:
    return sum(amount for amount in amounts if amount is not None)


def expert_lines(config: RunConfig, work: Sequence[StageWork]) -> list[str]:
    """What an LLM expert is asked and what that costs, as text; nothing for an expert that costs nothing."""
    calls = sum(one.expert_calls for one in work)
    if not calls or config.expert.kind in _UNPAID:
        return []
    each = call_estimate(config)
    if config.expert.kind == "pool":
        paid = "paid by the hours of its engines"
    else:
        paid = "no price known: set expert.price" if each.usd is None else f"${_figure(each.usd * calls)} at the sheet's price"
    return [f"the expert: at most {calls:,} calls, estimated at {each.tokens:,} tokens each, rather too many; {paid}"]


def cost_lines(config: RunConfig, costs: Sequence[StageCost]) -> list[str]:
    """The estimate as text: one line per stage that costs time, the sum, and where prices come from."""
    lacking = [
        f"cluster.pools.{name}.{key}"
        for name in ("weak", "train", *(("expert",) if config.expert.kind == "pool" else ()))
        for key in ("tokens_per_s", "instance_type")
        if getattr(getattr(config.cluster.pools, name), key) is None
    ]
    if all(one.process_h is None or one.process_h == 0 for one in costs) and not any(one.usd for one in costs):
        return [f"hours and dollars are not estimated: set {', '.join(lacking)}"] if lacking else []
    sheet = load_prices(config.prices)
    lines = [f"busy hours and dollars, estimated; prices of {sheet.as_of} ({config.prices or 'shipped sheet'}: {sheet.note})"]
    whole = all(one.usd is not None for one in costs)
    total = StageCost(
        "sum" if whole else "known part", *(_known(getattr(one, key) for one in costs) for key in ("process_h", "gpu_h", "usd"))
    )
    shown = [one for one in costs if one.process_h != 0 or one.usd != 0]
    for one in (*shown, total):
        hours = f"{_figure(one.process_h)} process hours, {_figure(one.gpu_h)} GPU hours"
        lines.append(f"  {one.stage:<10} {hours}, {'$' if one.usd is not None else ''}{_figure(one.usd)}")
    return [*lines, *([f"  not estimated for lack of {', '.join(lacking)}"] if lacking else [])]


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.2f}"
