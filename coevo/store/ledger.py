"""The budget: reserved before work, settled after, kept in the store so that a resumed run goes on from what was paid.

A reservation has a name of its own ("gate/r0-g2"). Its two facts, reserved and settled, are append-only objects: reserving a name again
after a kill adopts the open reservation instead of paying twice, and a settled name is answered from the store. Until it is settled a
reservation counts in full, and work starts or resumes only while all that is paid and held fits: so with one reservation at work at a
time, the budget is passed by at most what that one overran its estimate (I10). Limit: of several at work together each may overrun.
One driver owns a ledger; its threads may share it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from coevo.errors import BudgetExceeded, ConfigError, StoreError, StoreOutage
from coevo.identity import content_hash
from coevo.ports import BlobStore, PutResult
from coevo.records import Record
from coevo.store.keys import join

__all__ = ["Budget", "EntryKind", "Ledger", "LedgerEntry", "Reservation", "Spend", "check_affordable"]

_UNITS = ("usd", "tokens", "episodes", "seconds")
_ROUNDING = 1e-9  # float sums of dollars and seconds


class Spend(BaseModel):
    """An amount: dollars (None = no price known), tokens, episodes, seconds of wall clock."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    usd: float | None = Field(0.0, ge=0)
    tokens: int = Field(0, ge=0)
    episodes: int = Field(0, ge=0)
    seconds: float = Field(0.0, ge=0)

    def __add__(self, other: Spend) -> Spend:
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        return Spend(
            usd=usd, tokens=self.tokens + other.tokens, episodes=self.episodes + other.episodes, seconds=self.seconds + other.seconds
        )

    def times(self, factor: int) -> Spend:
        """The amount `factor` times."""
        usd = None if self.usd is None else self.usd * factor
        return Spend(usd=usd, tokens=self.tokens * factor, episodes=self.episodes * factor, seconds=self.seconds * factor)


class Budget(BaseModel):
    """Upper bounds; None = unlimited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    usd: float | None = Field(None, ge=0)
    """Dollars. With a bound here every reservation needs a known price."""
    tokens: int | None = Field(None, ge=0)
    """Prompt + completion tokens."""
    episodes: int | None = Field(None, ge=0)
    """Episodes, replay continuations included."""
    seconds: float | None = Field(None, ge=0)
    """Seconds of wall clock of the paid work."""

    def overdrawn(self, spend: Spend) -> dict[str, str]:
        """Unit -> `amount of bound` for every bound that `spend` passes.

        Raises:
            ConfigError: Dollars are bounded and `spend` has no price.
        """
        if self.usd is not None and spend.usd is None:
            fix = "give the models a price, or bound tokens or episodes instead of dollars"
            raise ConfigError("a budget in dollars needs prices", seen=f"budget ${self.usd:g}, work of unknown price", fix=fix)
        out = {}
        for unit in _UNITS:
            bound, amount = getattr(self, unit), getattr(spend, unit)
            if bound is not None and amount > bound + _ROUNDING:
                out[unit] = f"{amount:g} of {bound:g}"
        return out


def check_affordable(budget: Budget, *, seed: Spend, candidate: Spend) -> None:
    """Refuse a budget that can't pay for measuring the seed and one candidate of every restart (H4), before anything is spent.

    Args:
        budget: The budget of the search.
        seed: Estimate for measuring the starting harness, and what else is played whatever is found.
        candidate: Estimate for one candidate of every restart, from proposal to verdict.

    Raises:
        ConfigError: Naming each unit that falls short and what the least would be.
    """
    short = budget.overdrawn(seed + candidate)
    if short:
        seen = ", ".join(f"{unit}: needs {amount}" for unit, amount in short.items())
        fix = "raise the budget to at least the first figure, or make the gate smaller"
        raise ConfigError("the budget can't pay for the seed and one candidate of every restart", seen=seen, fix=fix)


class EntryKind(StrEnum):
    """What a ledger entry states."""

    RESERVED = "reserved"
    """Held before work began."""
    SETTLED = "settled"
    """Paid; replaces the reservation of the same name."""


class LedgerEntry(Record):
    """One append-only line of the ledger."""

    name: str
    kind: EntryKind
    spend: Spend


@dataclass(slots=True)
class Reservation:
    """An amount held under a name. `paid` grows by `add` while the work runs; `settled` is the paid amount once it is final.

    Attributes:
        name: Unique in the ledger.
        held: The estimate.
        settled: What was paid, or None while it is open.
        adopted: True when an earlier, killed run had reserved it.
    """

    name: str
    held: Spend
    settled: Spend | None = None
    adopted: bool = False
    paid: Spend = field(default_factory=Spend)

    def add(self, spend: Spend) -> None:
        """Count something paid under this reservation."""
        self.paid = self.paid + spend


class Ledger:
    """Reservations and payments against one budget, stored under `<prefix>/ledger/`.

    Args:
        store: The object store.
        budget: The bounds. They may differ between runs: what was paid stays.
        prefix: Key prefix, usually the run name.
    """

    def __init__(self, store: BlobStore, *, budget: Budget, prefix: str = "") -> None:
        self._store = store
        self._budget = budget
        self._prefix = join(prefix, "ledger")
        self._lock = threading.RLock()
        self._reservations: dict[str, Reservation] = {}
        self._load()

    @property
    def budget(self) -> Budget:
        """The bounds."""
        return self._budget

    @property
    def spent(self) -> Spend:
        """Settled payments."""
        with self._lock:
            return _total(r.settled for r in self._reservations.values() if r.settled is not None)

    @property
    def held(self) -> Spend:
        """Open reservations, those of killed runs included."""
        with self._lock:
            return _total(r.held for r in self._reservations.values() if r.settled is None)

    @property
    def remaining(self) -> Budget:
        """What is left to reserve; None stays unlimited, never below 0."""
        used = self.spent + self.held
        left: dict[str, float | None] = {}
        for unit in _UNITS:
            bound, amount = getattr(self._budget, unit), getattr(used, unit)
            left[unit] = None if bound is None else max(0, bound - (amount or 0))
        return Budget.model_validate(left)

    def reservations(self) -> tuple[Reservation, ...]:
        """All reservations, by name."""
        with self._lock:
            return tuple(self._reservations[name] for name in sorted(self._reservations))

    def affords(self, estimate: Spend) -> bool:
        """True when `estimate` could be reserved now."""
        with self._lock:
            return not self._budget.overdrawn(self.spent + self.held + estimate)

    def reserve(self, name: str, *, estimate: Spend) -> Reservation:
        """Hold `estimate` under `name`, before the work. A settled name is returned as it is, an open one if what is paid and held fits.

        Raises:
            BudgetExceeded: It would pass a bound, or others overran their estimates; nothing is stored and nothing paid is lost.
            ConfigError: Dollars are bounded and the estimate has no price.
        """
        with self._lock:
            known = self._reservations.get(name)
            if known is not None and known.settled is not None:
                return known
            wanted = self.spent + self.held  # holds an open reservation of this name already
            over = self._budget.overdrawn(wanted if known is not None else wanted + estimate)
            if over:
                seen = ", ".join(f"{unit}: {amount}" for unit, amount in over.items())
                raise BudgetExceeded(
                    f"reserving {name!r} would pass the budget", seen=seen, fix="raise the budget and run the same command again"
                )
            if known is not None:
                return known
            self._append(LedgerEntry(name=name, kind=EntryKind.RESERVED, spend=estimate))
            self._reservations[name] = Reservation(name, estimate)
            return self._reservations[name]

    def settle(self, reservation: Reservation, actual: Spend) -> Spend:
        """Replace the reservation by what was paid; the amount that stands. Settling twice keeps the first.

        Raises:
            StoreError: The name was never reserved here.
        """
        with self._lock:
            known = self._reservations.get(reservation.name)
            if known is None:
                raise StoreError("only a reservation of this ledger can be settled", seen=reservation.name, fix="reserve it first")
            if known.settled is None:
                known.settled = self._append(LedgerEntry(name=known.name, kind=EntryKind.SETTLED, spend=actual))
            return known.settled

    @contextmanager
    def reservation(self, name: str, *, estimate: Spend) -> Iterator[Reservation]:
        """Reserve, run the block, settle with what the block added. A failing block settles what it paid too (H2).

        A process kill and a store that is out settle nothing: the reservation then stays held in full and the next run adopts it, so the
        block must add what its results in the store cost, the ones of the killed run included.
        """
        reservation = self.reserve(name, estimate=estimate)
        try:
            yield reservation
        except StoreOutage:
            raise
        except BaseException:
            self.settle(reservation, reservation.paid)
            raise
        self.settle(reservation, reservation.paid)

    def _key(self, entry: LedgerEntry) -> str:
        return join(self._prefix, f"{content_hash(entry.name.encode())[:32]}.{entry.kind}.json")

    def _append(self, entry: LedgerEntry) -> Spend:
        if self._store.put_if_absent(self._key(entry), entry.to_bytes()) is PutResult.CONFLICT:
            return LedgerEntry.from_bytes(self._store.get(self._key(entry))).spend
        return entry.spend

    def _load(self) -> None:
        entries = [LedgerEntry.from_bytes(self._store.get(info.key)) for info in self._store.list(f"{self._prefix}/")]
        for entry in sorted(entries, key=lambda entry: entry.kind):  # "reserved" sorts before "settled"
            if entry.kind is EntryKind.RESERVED:
                self._reservations[entry.name] = Reservation(entry.name, entry.spend, adopted=True)
            elif entry.name in self._reservations:
                self._reservations[entry.name].settled = entry.spend
            else:
                raise StoreError("a payment without its reservation", seen=entry.name, fix="restore the ledger folder of the run")


def _total(spends: Iterator[Spend]) -> Spend:
    total = Spend()
    for spend in spends:
        total = total + spend
    return total
