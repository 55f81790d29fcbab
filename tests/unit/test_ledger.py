"""The budget.

1. Spend never exceeds the budget by more than one reservation, whatever is killed where (I10).
2. A resumed run goes on from what was paid; the same work is never paid twice (I4, H2).
3. A budget that can't pay for the seed and one candidate is refused before anything is spent (H4).
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coevo.errors import BudgetExceeded, ConfigError, StoreError
from coevo.store import LocalStore
from coevo.store.ledger import Budget, Ledger, Spend, check_affordable


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def ledger(store: LocalStore, **bounds: float) -> Ledger:
    return Ledger(store, budget=Budget.model_validate(bounds), prefix="run")


def test_reserve_then_settle(store: LocalStore) -> None:
    book = ledger(store, usd=10, episodes=100)
    held = book.reserve("gate/0", estimate=Spend(usd=4, episodes=60))
    assert (book.spent, book.held) == (Spend(), Spend(usd=4, episodes=60))
    assert book.remaining == Budget(usd=6, episodes=40)
    with pytest.raises(BudgetExceeded) as caught:
        book.reserve("gate/1", estimate=Spend(usd=1, episodes=41))
    assert "episodes: 101 of 100" in str(caught.value)
    assert "usd" not in str(caught.value.seen)
    assert book.settle(held, Spend(usd=3, episodes=50)) == Spend(usd=3, episodes=50)
    assert (book.spent, book.held) == (Spend(usd=3, episodes=50), Spend())
    assert book.affords(Spend(usd=7, episodes=50))
    assert not book.affords(Spend(usd=7.01))
    assert book.settle(held, Spend(usd=9)) == Spend(usd=3, episodes=50), "the first settlement stands"


def test_a_refused_reservation_leaves_nothing(store: LocalStore) -> None:
    book = ledger(store, tokens=10)
    before = [info.key for info in store.list("")]
    with pytest.raises(BudgetExceeded):
        book.reserve("big", estimate=Spend(tokens=11))
    assert [info.key for info in store.list("")] == before
    assert book.reservations() == ()


def test_unlimited_budgets_only_count(store: LocalStore) -> None:
    book = ledger(store)
    for number in range(3):
        with book.reservation(f"r{number}", estimate=Spend(usd=None, tokens=10**9)) as held:
            held.add(Spend(usd=None, tokens=5))
    assert book.spent == Spend(usd=None, tokens=15)
    assert book.remaining == Budget()


def test_dollars_need_prices(store: LocalStore) -> None:
    with pytest.raises(ConfigError, match="needs prices"):
        ledger(store, usd=1).reserve("x", estimate=Spend(usd=None))


def test_a_resumed_run_goes_on_from_what_was_paid(store: LocalStore) -> None:
    book = ledger(store, tokens=100)
    book.settle(book.reserve("seed", estimate=Spend(tokens=40)), Spend(tokens=30))
    book.reserve("gate/0", estimate=Spend(tokens=50))
    resumed = ledger(store, tokens=100)
    assert (resumed.spent, resumed.held) == (Spend(tokens=30), Spend(tokens=50))
    done = resumed.reserve("seed", estimate=Spend(tokens=40))
    assert done.settled == Spend(tokens=30), "settled work is answered from the store"
    adopted = resumed.reserve("gate/0", estimate=Spend(tokens=50))
    assert adopted.adopted
    assert adopted.settled is None
    assert resumed.held == Spend(tokens=50), "an open reservation is adopted, not doubled"
    resumed.settle(adopted, Spend(tokens=45))
    assert ledger(store, tokens=100).spent == Spend(tokens=75)
    assert [held.name for held in resumed.reservations()] == ["gate/0", "seed"]


def test_a_larger_budget_continues(store: LocalStore) -> None:
    book = ledger(store, tokens=10)
    book.settle(book.reserve("a", estimate=Spend(tokens=8)), Spend(tokens=9))
    with pytest.raises(BudgetExceeded):
        book.reserve("b", estimate=Spend(tokens=8))
    ledger(store, tokens=20).reserve("b", estimate=Spend(tokens=8))


def test_an_overrun_elsewhere_stops_the_resumed_reservation(store: LocalStore) -> None:
    """I10: killed work may not resume once another reservation has overrun the budget; a larger budget lets it."""
    ledger(store, tokens=10).reserve("killed", estimate=Spend(tokens=4))
    book = ledger(store, tokens=10)
    book.settle(book.reserve("other", estimate=Spend(tokens=6)), Spend(tokens=9))
    with pytest.raises(BudgetExceeded, match="killed"):
        book.reserve("killed", estimate=Spend(tokens=4))
    assert book.held == Spend(tokens=4)
    assert ledger(store, tokens=13).reserve("killed", estimate=Spend(tokens=4)).adopted


def test_paid_work_of_a_failing_block_is_settled(store: LocalStore) -> None:
    """H2: a stop in mid-evaluation never throws paid results away."""
    book = ledger(store, tokens=10)

    def work() -> None:
        with book.reservation("x", estimate=Spend(tokens=10)) as held:
            held.add(Spend(tokens=4))
            held.add(Spend(tokens=2))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert ledger(store, tokens=10).spent == Spend(tokens=6)


def test_foreign_reservations_are_refused(store: LocalStore, tmp_path: Path) -> None:
    other = Ledger(LocalStore(tmp_path / "other"), budget=Budget())
    with pytest.raises(StoreError, match="reservation of this ledger"):
        ledger(store).settle(other.reserve("x", estimate=Spend()), Spend())


def test_a_payment_without_its_reservation_is_noticed(store: LocalStore) -> None:
    book = ledger(store)
    book.settle(book.reserve("x", estimate=Spend()), Spend())
    (reserved,) = (info.key for info in store.list("run/ledger/") if ".reserved." in info.key)
    store.delete(reserved)
    with pytest.raises(StoreError, match="without its reservation"):
        ledger(store)


def test_threads_share_a_budget(store: LocalStore) -> None:
    """I10: 32 threads race for a budget of 10."""
    book, barrier, refused = ledger(store, episodes=10), threading.Barrier(32), []

    def work(number: int) -> None:
        barrier.wait(30)
        try:
            with book.reservation(f"t{number}", estimate=Spend(episodes=1)) as held:
                held.add(Spend(episodes=1))
        except BudgetExceeded:
            refused.append(number)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(work, range(32)))
    assert (book.spent.episodes, len(refused)) == (10, 22)


Step = tuple[str, int, int, bool]
STEPS = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=20)


@settings(deadline=None, max_examples=150, derandomize=True)
@example([("a", 0, 0, True), ("b", 0, 1, False), ("a", 0, 1, False)], 0)
@given(STEPS, st.integers(0, 20))
def test_spend_never_passes_the_budget_by_more_than_one_reservation(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], bound: int
) -> None:
    """I10, over random work that costs less or more than estimated and is killed at random points; one reservation open at a time."""
    store = LocalStore(tmp_path_factory.mktemp("ledger"))
    paid: dict[str, int] = {}
    book = ledger(store, tokens=bound)
    for name, estimate, actual, killed in steps:
        try:
            held = book.reserve(name, estimate=Spend(tokens=estimate))
        except BudgetExceeded:
            continue
        if held.settled is None:
            paid[name] = actual
            if not killed:
                book.settle(held, Spend(tokens=actual))
        if killed:
            book = ledger(store, tokens=bound)
        largest = max([*paid.values(), 0])
        assert book.spent.tokens <= bound + largest
    settled = {held.name: held.settled.tokens for held in book.reservations() if held.settled is not None}
    assert settled.items() <= paid.items()
    assert ledger(store, tokens=bound).spent == book.spent


def test_a_budget_must_pay_for_the_seed_and_one_candidate() -> None:
    """H4."""
    seed, candidate = Spend(usd=2, episodes=100), Spend(usd=3, episodes=300)
    check_affordable(Budget(usd=5, episodes=400), seed=seed, candidate=candidate)
    check_affordable(Budget(), seed=seed, candidate=candidate)
    with pytest.raises(ConfigError) as caught:
        check_affordable(Budget(usd=4.5, episodes=399), seed=seed, candidate=candidate)
    text = str(caught.value)
    assert "usd: needs 5 of 4.5" in text
    assert "episodes: needs 400 of 399" in text
    assert caught.value.exit_code == 2


def test_spend_arithmetic() -> None:
    assert Spend(usd=1, tokens=2, episodes=3, seconds=0.5).times(4) == Spend(usd=4, tokens=8, episodes=12, seconds=2)
    assert Spend(usd=None).times(2).usd is None
    assert (Spend(usd=1) + Spend(usd=None)).usd is None
    for field in ("usd", "tokens", "episodes", "seconds"):
        with pytest.raises(ValueError, match="greater than or equal"):
            Spend.model_validate({field: -1})
