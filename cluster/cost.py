"""What a run's processes hold and what that costs: GPU-seconds, CPU-seconds and dollars, sampled while they live.

A process is paid for what it reserves, busy or not: its share of a node of the configured instance type, from the moment it exists until
it ends. Sampled once per period, so each start and end is off by at most one period. Not seen: nodes that boot, linger or stay half
empty, the head, executors and storage. The cloud's own bill is the truth; this says which stage caused it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from coevo.config import PlacementConfig
from coevo.errors import ConfigError
from coevo.prices import Market, PriceSheet
from coevo.store.artifacts import Held

__all__ = ["HeldMeter", "ProcessRate", "process_rate"]

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class ProcessRate:
    """What one process reserves, and its dollars per hour (None = no instance type configured)."""

    gpus: float
    cpus: float
    usd_per_hour: float | None = None

    def held(self, process_s: float) -> Held:
        """What this many process-seconds come to."""
        usd = None if self.usd_per_hour is None else self.usd_per_hour * process_s / _HOUR_S
        return Held(self.gpus * process_s, self.cpus * process_s, usd)


def process_rate(placement: PlacementConfig, sheet: PriceSheet, *, num_cpus: float, where: str) -> ProcessRate:
    """The rate of one process of a kind.

    Args:
        placement: What it asks of its node, and the node's instance type.
        sheet: The prices.
        num_cpus: CPUs of the kind where the placement names none.
        where: Config section, for messages.

    Raises:
        ConfigError: Unknown instance type, no price in that market, or a node that the process does not fit.
    """
    gpus, cpus = placement.num_gpus, num_cpus if placement.num_cpus is None else placement.num_cpus
    if placement.instance_type is None:
        return ProcessRate(gpus, cpus)
    price = sheet.instance(placement.instance_type)
    share = price.share(gpus=gpus, cpus=cpus)
    if not 0 < share <= 1:
        seen = f"{where}: {gpus:g} GPUs and {cpus:g} CPUs on {placement.instance_type} with {price.gpus} and {price.cpus}"
        fix = f"set {where}.num_gpus to what one process takes (at most {price.gpus}), or another instance_type"
        raise ConfigError("a process takes no share, or more than all, of its node", seen=seen, fix=fix)
    return ProcessRate(gpus, cpus, share * price.usd_per_hour(Market(placement.market)))


class HeldMeter:
    """A running sum over the processes of one kind.

    Args:
        rate: Of one process.
        count: How many exist now.
        clock: Monotonic seconds.
    """

    def __init__(self, rate: ProcessRate, count: Callable[[], int], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._count = count
        self._clock = clock
        self._lock = threading.Lock()
        self._process_s = 0.0
        self._last = (clock(), 0)

    def sample(self) -> int:
        """Take note of how many there are; that number since the last sample is the mean of both."""
        with self._lock:
            count, now = self._count(), self._clock()
            then, before = self._last
            self._process_s += 0.5 * (before + count) * (now - then)
            self._last = (now, count)
        return count

    def read(self) -> Held:
        """What was held so far."""
        self.sample()
        with self._lock:
            return self._rate.held(self._process_s)
