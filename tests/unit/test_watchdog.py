"""The ledger of a bulk map and its watchdog, without Ray."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.watchdog import MapLedger, Watchdog, WorkerEvent
from coevo.errors import StoreError
from coevo.fanout import FanoutPolicy, Tries
from coevo.ports import ItemOutcome, ItemState


@dataclass(slots=True)
class ManualClock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def committed(item: str, attempts: int = 1) -> WorkerEvent:
    return WorkerEvent(item, Tries(made=attempts), outcome=ItemOutcome(item, ItemState.COMMITTED, attempts=attempts))


def test_watchdog_gives_time_to_start_and_then_less() -> None:
    """R8."""
    clock = ManualClock()
    watchdog = Watchdog(10.0, start_s=100.0, clock=clock)
    clock.now = 99.0
    assert not watchdog.stalled
    watchdog.sign()
    clock.now = 108.0
    assert not watchdog.stalled
    clock.now = 110.0
    assert watchdog.stalled
    watchdog.sign()
    assert not watchdog.stalled


def test_attempts_survive_the_worker() -> None:
    """R8, I1: a claim without an end counts as an attempt at the next claim; reported retries count too."""
    ledger = MapLedger(FanoutPolicy(tries=5))
    assert ledger.claim(["a", "b"]) == [Tries(), Tries()]
    ledger.report(2, [WorkerEvent("a", Tries(made=2, charged=1, spent_s=3.0), error="down")])
    assert ledger.claim(["a", "b"]) == [Tries(made=3, charged=2, spent_s=3.0), Tries(made=1, charged=1)]


def test_an_ended_item_is_not_run_again_and_ends_once() -> None:
    """R9: also when its block is."""
    ledger = MapLedger(FanoutPolicy())
    ledger.claim(["a"])
    ledger.report(0, [committed("a")])
    ledger.report(0, [committed("a", attempts=2)])
    assert [outcome.attempts for outcome in ledger.drain().outcomes] == [1]
    assert ledger.claim(["a"]) == [None]
    assert ledger.drain().outcomes == []
    assert ledger.unfinished() == ({}, frozenset())


def test_an_item_lost_twice_is_left_for_a_process_of_its_own() -> None:
    """R1: one that kills its process must not use up its neighbours' tries."""
    ledger = MapLedger(FanoutPolicy(tries=5))
    assert [ledger.claim(["a"]) for _ in range(3)] == [[Tries()], [Tries(1, 1)], [None]]
    assert ledger.unfinished() == ({"a": Tries(2, 2)}, frozenset({"a"}))


def test_tries_used_up_by_losses_leave_one_chance_alone() -> None:
    ledger = MapLedger(FanoutPolicy(tries=1))
    ledger.claim(["a"])
    assert ledger.claim(["a"]) == [None]
    assert ledger.drain().outcomes == []
    assert ledger.unfinished() == ({"a": Tries(1, 1)}, frozenset({"a"}))


def test_a_new_book_forgets_the_old_map() -> None:
    ledger = MapLedger()
    ledger.claim(["a"])
    ledger.report(0, [committed("a")])
    ledger.begin(FanoutPolicy(tries=1))
    assert ledger.drain().outcomes == []
    assert ledger.claim(["a"]) == [Tries()]


def test_what_is_in_flight_counts_when_the_map_is_cut() -> None:
    ledger = MapLedger(FanoutPolicy())
    ledger.claim(["a", "b"])
    ledger.report(1, [committed("a")])
    assert ledger.unfinished() == ({"b": Tries(1, 1)}, frozenset())


def test_only_work_counts_as_a_sign_of_life() -> None:
    """R8: the heartbeat of an idle worker must not hide a stalled pipeline."""
    ledger = MapLedger(FanoutPolicy())
    ledger.report(0, [])
    assert not ledger.drain().alive
    ledger.report(3, [])
    assert ledger.drain().alive
    assert not ledger.drain().alive
    error = StoreError("no bucket")
    ledger.refuse(error)
    assert ledger.drain().error is error
