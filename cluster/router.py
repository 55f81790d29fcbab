"""Which replica takes a request: sticky by session, least loaded for new ones, with admission control.

Pure bookkeeping: no Ray, no clock but the one given, no waiting. A caller submits tickets, gets an assignment at once or later from the
`release` of another ticket, and releases every ticket it was assigned. Rules (R6, and the public threads on consistent hashing that kept
full engines full):

1. A session stays on its replica, whose prefix cache holds its history.
2. It moves when its replica is dead or full, or when the replica carries `imbalance` more requests than the least loaded one.
3. A ticket waits only while every live replica is at its admission limit; so no replica idles while another queues.
4. A freed place goes first to a waiting ticket of that replica or of no replica; a ticket pinned elsewhere takes it when nobody else
   waits, or when it has been passed over `patience` times.

Limits: a router sees the requests of its own client. Load caused by others reaches it only as the depth that replicas report.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Assignment", "Router", "RouterConfig", "RouterStats"]


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Thresholds of a router.

    Attributes:
        admission_limit: Requests in flight per replica from this client; the engine's batch size plus a small queue is a good value.
        imbalance: A pinned session moves when its replica has this many requests more than the least loaded one.
        patience: Times a waiting ticket is passed over in favour of sticky ones before it takes any free place.
        max_sessions: Pins kept; the least recently used are forgotten.
        report_fresh_s: Seconds for which a replica's report about other clients' load is believed.
        kv_high: Share of the KV cache above which a replica takes new sessions only when all are above it.
    """

    admission_limit: int = 64
    imbalance: int = 8
    patience: int = 16
    max_sessions: int = 65536
    report_fresh_s: float = 2.0
    kv_high: float = 0.95


class Assignment(NamedTuple):
    """Ticket -> replica."""

    ticket: int
    replica: str


@dataclass(frozen=True, slots=True)
class RouterStats:
    """Counters since construction; `in_flight` is now."""

    in_flight: dict[str, int]
    waiting: int
    sessions: int
    assigned: int
    sticky: int
    moved: int


@dataclass(slots=True)
class _Replica:
    in_flight: int = 0
    foreign: int = 0
    kv_use: float | None = None
    reported_at: float = float("-inf")


@dataclass(slots=True)
class _Waiting:
    ticket: int
    session: str
    passed_over: int = 0


class Router:
    """See the module. Not thread-safe: one event loop owns it.

    Args:
        config: Thresholds.
        clock: Monotonic seconds; only ages the replicas' reports.
    """

    def __init__(self, config: RouterConfig | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config or RouterConfig()
        self._clock = clock
        self._replicas: dict[str, _Replica] = {}
        self._pins: OrderedDict[str, str] = OrderedDict()
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._placed: dict[int, str] = {}
        self._assigned = 0
        self._sticky = 0
        self._moved = 0

    @property
    def replicas(self) -> tuple[str, ...]:
        """Live replicas, in the order they were added."""
        return tuple(self._replicas)

    def stats(self) -> RouterStats:
        """Counters and the present load."""
        in_flight = {name: replica.in_flight for name, replica in self._replicas.items()}
        return RouterStats(in_flight, len(self._waiting), len(self._pins), self._assigned, self._sticky, self._moved)

    def pinned(self, session: str) -> str | None:
        """The replica that holds the session's history, if it is alive and remembered."""
        return self._pins.get(session)

    def add(self, *replicas: str) -> tuple[Assignment, ...]:
        """Replicas became healthy; returns the waiting tickets that get a place at once, spread over all of them."""
        for replica in replicas:
            self._replicas.setdefault(replica, _Replica())
        placed = []
        for entry in list(self._waiting.values()):
            choice = self._choose(entry.session)
            if choice is None:
                break
            del self._waiting[entry.ticket]
            placed.append(self._assign(entry.ticket, entry.session, choice))
        return tuple(placed)

    def drop(self, replica: str) -> tuple[int, ...]:
        """A replica died: its pins are forgotten and the tickets in flight on it are returned (they need no `release`)."""
        self._replicas.pop(replica, None)
        for session in [session for session, pin in self._pins.items() if pin == replica]:
            del self._pins[session]
        lost = tuple(ticket for ticket, where in self._placed.items() if where == replica)
        for ticket in lost:
            del self._placed[ticket]
        return lost

    def submit(self, ticket: int, *, session: str) -> Assignment | None:
        """Place a request, or queue it (None) when every live replica is full or none is alive."""
        replica = self._choose(session)
        if replica is None:
            self._waiting[ticket] = _Waiting(ticket, session)
            return None
        return self._assign(ticket, session, replica)

    def release(self, ticket: int) -> tuple[Assignment, ...]:
        """A request ended, or its caller gave up while waiting; returns who takes the place."""
        if self._waiting.pop(ticket, None) is not None:
            return ()
        replica = self._placed.pop(ticket, None)
        if replica is None or replica not in self._replicas:
            return ()
        self._replicas[replica].in_flight -= 1
        return self._fill(replica)

    def report(self, replica: str, *, depth: int, kv_use: float | None = None) -> None:
        """What a replica said about itself: requests it holds from all clients, and the used share of its KV cache."""
        state = self._replicas.get(replica)
        if state is not None:
            state.foreign = max(0, depth - state.in_flight)
            state.kv_use = kv_use
            state.reported_at = self._clock()

    def forget(self, session: str) -> None:
        """The session is over: its pin is dropped."""
        self._pins.pop(session, None)

    def _load(self, replica: str) -> int:
        state = self._replicas[replica]
        fresh = self._clock() - state.reported_at <= self._config.report_fresh_s
        return state.in_flight + (state.foreign if fresh else 0)

    def _crowded(self, replica: str) -> bool:
        state = self._replicas[replica]
        fresh = self._clock() - state.reported_at <= self._config.report_fresh_s
        return fresh and state.in_flight > 0 and (state.kv_use or 0.0) > self._config.kv_high

    def _open(self) -> list[str]:
        return [name for name, state in self._replicas.items() if state.in_flight < self._config.admission_limit]

    def _choose(self, session: str) -> str | None:
        free = self._open()
        if not free:
            return None
        least = min(free, key=lambda name: (self._crowded(name), self._load(name)))
        pin = self._pins.get(session)
        if pin in free and self._load(pin) - self._load(least) < self._config.imbalance:
            return pin
        return least

    def _assign(self, ticket: int, session: str, replica: str) -> Assignment:
        pin = self._pins.pop(session, None)
        self._pins[session] = replica
        while len(self._pins) > self._config.max_sessions:
            self._pins.popitem(last=False)
        self._assigned += 1
        self._sticky += pin == replica
        self._moved += pin is not None and pin != replica
        self._replicas[replica].in_flight += 1
        self._placed[ticket] = replica
        return Assignment(ticket, replica)

    def _fill(self, replica: str) -> tuple[Assignment, ...]:
        filled = []
        while self._waiting and self._replicas[replica].in_flight < self._config.admission_limit:
            entry = self._next_for(replica)
            del self._waiting[entry.ticket]
            filled.append(self._assign(entry.ticket, entry.session, replica))
        return tuple(filled)

    def _next_for(self, replica: str) -> _Waiting:
        for entry in self._waiting.values():
            if self._pins.get(entry.session) in (None, replica) or entry.passed_over >= self._config.patience:
                return entry
            entry.passed_over += 1
        return next(iter(self._waiting.values()))
