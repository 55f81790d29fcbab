"""What is known about a map outside of the processes that run it: outcomes, attempts begun, heartbeats.

Ray Data emits a row only when its whole block is done and in the order of its own queues, and a pool with a lost actor can stop for
ever without an error (ray issue 62746). So worker processes report to this ledger, an actor of its own, and the driver judges
progress by it alone. Attempts survive the process that made them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from coevo.errors import CoevoError
from coevo.fanout import FanoutPolicy, Tries
from coevo.ports import ItemOutcome, ItemState

__all__ = ["LEAVING", "SUSPECT_LOSSES", "LedgerNews", "MapLedger", "Watchdog", "WorkerEvent", "owed"]

SUSPECT_LOSSES = 2  # one loss is bad luck (a reclaimed spot node), two are a pattern


LEAVING = "the node of this worker is being drained"
"""Last line of the error of an item that a worker gave back."""


class WorkerEvent(NamedTuple):
    """News of one item: its outcome, or (outcome None) a failed attempt that will be repeated.

    `left`: the worker gave the item back unfinished, because its node is being drained; the outcome only says so.
    """

    item: str
    tries: Tries
    error: str = ""
    outcome: ItemOutcome | None = None
    left: bool = False


def owed(item: str, tries: Tries, error: str) -> ItemOutcome:
    """The outcome of an item that stays without a record."""
    return ItemOutcome(item, ItemState.OWED, attempts=tries.made, error=error)


class Watchdog:
    """Notices that nothing moves (R8).

    Args:
        stall_s: Seconds without a sign of life that count as a stall.
        start_s: Seconds until the first sign: processes start and engines load.
        clock: Seconds.
    """

    def __init__(self, stall_s: float, *, start_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_s = stall_s
        self._clock = clock
        self._limit_at = clock() + start_s

    def sign(self) -> None:
        """Something moved."""
        self._limit_at = self._clock() + self._stall_s

    @property
    def stalled(self) -> bool:
        """True when no sign came in time."""
        return self._clock() > self._limit_at


class LedgerNews(NamedTuple):
    """What came in since the last look.

    Attributes:
        outcomes: Ended items.
        alive: A worker with items in flight gave a sign of life.
        error: The stage did not open in a worker.
    """

    outcomes: list[ItemOutcome]
    alive: bool
    error: CoevoError | None = None


class MapLedger:
    """Book of one bulk map at a time; runs as an actor. Items are claimed by a worker before their attempt and end once."""

    def __init__(self, policy: FanoutPolicy | None = None) -> None:
        self.begin(policy or FanoutPolicy())

    def begin(self, policy: FanoutPolicy) -> None:
        """Open a new book. Only after a map that ended by itself: nobody may report to the old one any more."""
        self._policy = policy
        self._tries: dict[str, Tries] = {}
        self._claimed: set[str] = set()
        self._losses: Counter[str] = Counter()
        self._suspects: set[str] = set()
        self._ended: set[str] = set()
        self._fresh: list[ItemOutcome] = []
        self._alive = False
        self._error: CoevoError | None = None

    def claim(self, items: Sequence[str]) -> list[Tries | None]:
        """What was spent on each item before the attempt that now begins; None for an item that is not to be run.

        An item that was claimed and did not end was lost with its worker: that attempt counts. After two losses, or when its tries
        are used up by them, it is left for a process of its own (`Dispatch` runs suspects alone).
        """
        self._alive = True
        return [self._claim(item) for item in items]

    def _claim(self, item: str) -> Tries | None:
        if item in self._ended:
            return None
        tries = self._tries.get(item, Tries())
        if item in self._claimed:
            tries = self._tries[item] = tries._replace(made=tries.made + 1, charged=tries.charged + 1)
            self._losses[item] += 1
            self._claimed.discard(item)
            if self._losses[item] >= SUSPECT_LOSSES or tries.charged >= self._policy.tries:
                self._suspects.add(item)
        if item in self._suspects:
            return None
        self._claimed.add(item)
        return tries

    def report(self, in_flight: int, events: Sequence[WorkerEvent]) -> None:
        """Heartbeat of a worker with its news."""
        self._alive = self._alive or in_flight > 0 or bool(events)
        for event in events:
            if event.left:  # its tries are those of the last failed attempt, reported before
                self._claimed.discard(event.item)
                continue
            self._tries[event.item] = event.tries
            if event.outcome is not None:
                self._claimed.discard(event.item)
                self._end(event.outcome)

    def _end(self, outcome: ItemOutcome) -> None:
        if outcome.item not in self._ended:
            self._ended.add(outcome.item)
            self._fresh.append(outcome)

    def refuse(self, error: CoevoError) -> None:
        """A worker could not open the stage."""
        self._error = error

    def drain(self) -> LedgerNews:
        """News since the last call."""
        news = LedgerNews(self._fresh, self._alive, self._error)
        self._fresh, self._alive = [], False
        return news

    def unfinished(self) -> tuple[dict[str, Tries], frozenset[str]]:
        """Spent tries of the items that did not end, attempts in flight included; and the suspects among them."""
        spent = {item: tries for item, tries in self._tries.items() if item not in self._ended}
        for item in self._claimed:
            tries = self._tries.get(item, Tries())
            spent[item] = tries._replace(made=tries.made + 1, charged=tries.charged + 1)
        return spent, frozenset(self._suspects - self._ended)
