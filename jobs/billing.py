"""What a run's own processes cost: rates from the configuration, held seconds from the pools, dollars for the ledger.

Two figures, never mixed: an *estimate* from tokens and the configured tokens per second, for plans and reservations; and the *measured*
dollars of what was held, for payments and manifests. Held time between two batches is paid with the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cached_property

from cluster.cost import HeldMeter, ProcessRate, process_rate
from coevo.config import PlacementConfig, RunConfig
from coevo.errors import ConfigError
from coevo.prices import PriceSheet, load_prices
from coevo.store.artifacts import Held
from coevo.store.ledger import Spend
from coevo.tasks.family import Size
from jobs.estimates import EPISODES, row_tokens

__all__ = ["Billing", "engine_rate", "estimated_usd", "expert_rate", "require_prices", "training_held", "training_rate", "training_usd"]

_HOUR_S = 3600.0


def engine_rate(config: RunConfig, sheet: PriceSheet) -> ProcessRate:
    """Of one engine of the weak model. Raises `ConfigError` as `process_rate` does."""
    return process_rate(config.cluster.pools.weak, sheet, num_cpus=1.0, where="cluster.pools.weak")


def expert_rate(config: RunConfig, sheet: PriceSheet) -> ProcessRate:
    """Of one engine of an expert of `kind: pool`. Raises `ConfigError` as `process_rate` does."""
    return process_rate(config.cluster.pools.expert, sheet, num_cpus=1.0, where="cluster.pools.expert")


def training_rate(config: RunConfig, sheet: PriceSheet) -> ProcessRate:
    """Of one training worker. Raises `ConfigError` as `process_rate` does."""
    return process_rate(config.cluster.pools.train, sheet, num_cpus=1.0, where="cluster.pools.train")


def estimated_usd(rate: ProcessRate, placement: PlacementConfig, tokens: float) -> float | None:
    """Dollars for so many tokens; None without a price or a throughput."""
    if rate.usd_per_hour == 0:
        return 0.0
    if rate.usd_per_hour is None or placement.tokens_per_s is None:
        return None
    return rate.usd_per_hour * tokens / placement.tokens_per_s / _HOUR_S


def training_held(config: RunConfig, sheet: PriceSheet, *, seconds: float) -> Held:
    """What all training workers held over the seconds of one fine-tuning."""
    return training_rate(config, sheet).held(seconds * config.train.workers)


def training_usd(config: RunConfig, sheet: PriceSheet) -> float | None:
    """Dollars that one fine-tuning should take; None without a price or a throughput."""
    tokens = config.dataset.rows * config.train.epochs * row_tokens(Size(config.size))
    return estimated_usd(training_rate(config, sheet), config.cluster.pools.train, tokens)


def require_prices(config: RunConfig) -> None:
    """Check the sheet against the run, and refuse a budget in dollars without a price of the engines.

    Raises:
        ConfigError: Unreadable sheet, unknown instance type, or a budget in dollars that nothing could be counted against.
    """
    sheet = load_prices(config.prices)
    rates = {"weak": engine_rate(config, sheet), "train": training_rate(config, sheet)}
    if config.expert.kind == "pool":
        rates["expert"] = expert_rate(config, sheet)
    if config.budget.usd is None or config.weak.engine == "recorded":
        return
    for name, rate in rates.items():
        placement: PlacementConfig = getattr(config.cluster.pools, name)
        lacking = [key for key in ("instance_type", "tokens_per_s") if getattr(placement, key) is None]
        if lacking and rate.usd_per_hour != 0:
            seen = f"budget.usd={config.budget.usd:g}; cluster.pools.{name} has no {' and no '.join(lacking)}"
            fix = "set both (instance_type `owned` counts at no price), or bound budget.tokens or budget.episodes instead"
            raise ConfigError("a budget in dollars needs prices", seen=seen, fix=fix)


class Billing:
    """The meters of an opened run. The pool's meter stays when the pool ends: what was held was held."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._meters: list[HeldMeter] = []
        self._expert_usd: float | None = None
        self._paid_usd = 0.0
        self._closed = Held()

    @cached_property
    def sheet(self) -> PriceSheet:
        """The prices of the run."""
        return load_prices(self._config.prices)

    @cached_property
    def rate(self) -> ProcessRate:
        """Of one engine."""
        return engine_rate(self._config, self.sheet)

    def watch(self, count: Callable[[], int], *, rate: ProcessRate | None = None, clock: Callable[[], float] = time.monotonic) -> HeldMeter:
        """A meter for a new pool; `count` says how many of its processes exist. Without a `rate`: the weak model's engines."""
        self._meters.append(HeldMeter(self.rate if rate is None else rate, count, clock=clock))
        return self._meters[-1]

    def bought(self, expert: Iterable[Spend]) -> None:
        """Count dollars that went to an expert; those of unknown price leave the sum as it is."""
        for spend in expert:
            if spend.usd is not None and (spend.tokens or spend.usd):
                self._expert_usd = (self._expert_usd or 0.0) + spend.usd

    def held(self) -> Held:
        """What all engines held so far, and what experts got; dollars of engines are 0 before the first when their price is known."""
        readings = [meter.read() for meter in self._meters]
        known = self.rate.usd_per_hour is not None and all(one.usd is not None for one in readings)
        usd = sum(one.usd or 0.0 for one in readings) if known else None
        return Held(sum(one.gpu_s for one in readings), sum(one.cpu_s for one in readings), usd, self._expert_usd)

    def close_stage(self) -> Held:
        """What was held since the last call: the share of the stage whose manifest is written now."""
        held = self.held()
        share, self._closed = held.since(self._closed), held
        return share

    def due_usd(self) -> float | None:
        """Measured dollars of engines since the last call; None without a price."""
        usd = self.held().usd
        if usd is None:
            return None
        due, self._paid_usd = usd - self._paid_usd, usd
        return due

    def episode(self) -> Spend:
        """Estimate of one episode of the weak model."""
        tokens = round(EPISODES[Size(self._config.size)].tokens)
        return Spend(usd=self.estimate_usd(tokens), tokens=tokens, episodes=1)

    def estimate_usd(self, tokens: float) -> float | None:
        """Dollars that so many tokens of the weak model should take."""
        if self._config.weak.engine == "recorded":
            return None if self.rate.usd_per_hour is None else 0.0
        return estimated_usd(self.rate, self._config.cluster.pools.weak, tokens)
