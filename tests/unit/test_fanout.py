"""Fan-out internals. The promises that every executor shares are in `tests/contract/test_executors.py`."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coevo.errors import BudgetExceeded, ConfigError, InfraError, StoreError
from coevo.fanout import FanoutPolicy, ItemRunner, LocalExecutor, StageCache, Tries, open_stage, run_items
from coevo.limits import Breaker, Closing
from coevo.ports import ItemOutcome, ItemState, Skipped
from coevo.stages import EchoStage

QUICK = FanoutPolicy(concurrency=4, tries=3, base_s=0.001, cap_s=0.002, breaker_errors=0, abandon_s=0.05)


@dataclass(slots=True)
class Worker:
    """A stage worker made of one function."""

    act: Callable[[str, int], Awaitable[Any]]
    log: list[tuple[str, int]] = field(default_factory=list)
    closed: int = 0
    call_of_interest: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, item: str, attempt: int) -> Any:
        self.log.append((item, attempt))
        if len(self.log) == self.call_of_interest:
            self.reached.set()
        return await self.act(item, attempt)

    async def aclose(self) -> None:
        self.closed += 1


@dataclass(slots=True)
class ManualClock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


async def fine(item: str, attempt: int) -> Any:
    return None


async def infra(item: str, attempt: int) -> Any:
    raise InfraError("no route", seen=item)


async def hang(item: str, attempt: int) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("field_name", "value"),
    [
        ("concurrency", 0),
        ("tries", 0),
        ("base_s", -1.0),
        ("quorum", 0.0),
        ("quorum", 1.1),
        ("item_deadline_s", 0.0),
        ("breaker_errors", -1),
    ],
)
def test_policy_refuses(field_name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field_name) as caught:
        FanoutPolicy(**{field_name: value})  # type: ignore[arg-type]
    assert caught.value.seen == value
    assert caught.value.fix


def test_policy_is_picklable() -> None:
    policy = FanoutPolicy(tries=2)
    assert pickle.loads(pickle.dumps(policy)) == policy


@given(charged=st.integers(0, 200), seed=st.integers(0, 99))
def test_backoff_doubles_up_to_its_cap(charged: int, seed: int) -> None:
    policy = FanoutPolicy(base_s=0.5, cap_s=30.0)
    full = min(30.0, 0.5 * 2.0 ** (charged - 1)) if charged else 0.0
    assert full / 2 <= policy.backoff_s(charged, Random(seed)) <= full


async def test_breaker_opens_on_distinct_items_only() -> None:
    """R4: one bad item, however often it fails, is no outage."""
    breaker = Breaker(FanoutPolicy(breaker_errors=3))
    assert [breaker.failed("a") for _ in range(9)] == [True] * 9
    assert not breaker.is_open
    breaker.failed("b")
    breaker.succeeded()
    breaker.failed("c")
    breaker.failed("d")
    assert not breaker.is_open
    assert breaker.failed("e")
    assert breaker.is_open
    assert not breaker.failed("f"), "errors that arrive while it is open are not charged"


async def test_breaker_probes_one_at_a_time_and_closes_on_success() -> None:
    """R4: while open, one probe per pause; the first success lets all waiting through."""
    clock = ManualClock()
    breaker = Breaker(FanoutPolicy(breaker_errors=1, breaker_pause_s=5.0), clock=clock)
    breaker.failed("a")
    clock.now += 5.0
    assert await breaker.admit() is True
    waiting = [asyncio.create_task(breaker.admit()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    breaker.failed("a")
    breaker.probe_ended(informative=True)
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting), "the next probe waits for its pause"
    breaker.succeeded()
    assert await asyncio.gather(*waiting) == [False, False, False]


async def test_breaker_loses_patience() -> None:
    clock = ManualClock()
    breaker = Breaker(FanoutPolicy(breaker_errors=1, breaker_patience_s=60.0), clock=clock)
    breaker.failed("a")
    clock.now += 61.0
    with pytest.raises(InfraError, match="down"):
        await breaker.admit()


def test_closing_by_deadline_and_quorum() -> None:
    """R5."""
    clock = ManualClock()
    assert Closing(FanoutPolicy(), 10, clock=clock).left_s() is None
    closing = Closing(FanoutPolicy(stage_deadline_s=50.0, quorum=0.5, grace_s=10.0), 3, clock=clock)
    assert closing.left_s() == 50.0
    assert [closing.ended(), closing.ended()] == [False, True]
    assert closing.left_s() == 10.0
    assert "quorum of 50%" in closing.reason
    clock.now += 11.0
    assert closing.left_s() == 0.0
    late = Closing(FanoutPolicy(stage_deadline_s=5.0, quorum=0.5, grace_s=10.0), 2, clock=clock)
    assert not late.ended(), "the deadline is nearer than the grace"
    assert "stage deadline" in late.reason


async def test_the_deadline_is_one_total_over_all_attempts() -> None:
    """R5: attempts that each end in time still end together at the item's deadline, and it moves with the item."""

    async def slow(item: str, attempt: int) -> Any:
        await asyncio.sleep(0.05)
        raise InfraError("slow and bad")

    policy = FanoutPolicy(tries=1000, base_s=0.0, breaker_errors=0, item_deadline_s=0.2)
    worker = Worker(slow)
    outcome = await ItemRunner(worker, policy).run("a")
    assert outcome.state is ItemState.OWED
    assert 1 <= len(worker.log) <= 5
    moved = await ItemRunner(worker, policy).run("b", Tries(made=7, charged=2, spent_s=0.19))
    assert moved.attempts == 8
    assert "slow and bad" in outcome.error
    assert "deadline" in outcome.error


async def test_tries_move_with_the_item() -> None:
    """R8: attempt numbers go on where the lost worker stopped."""
    worker = Worker(infra)
    outcome = await ItemRunner(worker, QUICK).run("a", Tries(made=4, charged=1))
    assert worker.log == [("a", 5), ("a", 6)]
    assert outcome.attempts == 6


async def test_retries_are_told_before_their_backoff() -> None:
    told: list[tuple[str, int]] = []
    runner = ItemRunner(Worker(infra), QUICK, on_retry=lambda item, tries, error: told.append((item, tries.made)))
    await runner.run("a")
    assert told == [("a", 1), ("a", 2)]


async def test_a_probe_that_tells_nothing_makes_room_for_the_next() -> None:
    """R4: an item with a bug as the probe neither closes the breaker nor delays recovery."""
    down = {"now": True}

    async def act(item: str, attempt: int) -> Any:
        if item == "bug":
            raise ValueError("bug")
        if down["now"]:
            raise InfraError("down")

    worker = Worker(act, call_of_interest=8)
    policy = FanoutPolicy(concurrency=3, tries=2, base_s=0.001, breaker_errors=2, breaker_pause_s=0.02)
    task = asyncio.create_task(run_items(worker, ["a", "b", "bug", "c"], policy))
    await worker.reached.wait()
    down["now"] = False
    outcomes = await asyncio.wait_for(task, 10)
    assert Counter(outcome.state for outcome in outcomes) == {ItemState.COMMITTED: 3, ItemState.OWED: 1}


async def test_an_outage_without_end_owes_the_rest() -> None:
    """R4, R5: patience bounds the pause, so the stage always ends."""
    policy = FanoutPolicy(concurrency=2, tries=2, base_s=0.0, breaker_errors=2, breaker_pause_s=0.02, breaker_patience_s=0.2)
    worker = Worker(infra)
    outcomes = await asyncio.wait_for(run_items(worker, [f"{n}" for n in range(50)], policy), 10)
    assert all(outcome.state is ItemState.OWED for outcome in outcomes)
    assert len(worker.log) < 30, "most items were never dispatched"
    assert "the backend is down" in outcomes[-1].error


async def test_errors_that_repetition_cannot_mend_are_final() -> None:
    """I10: a spent budget is not asked again."""

    async def act(item: str, attempt: int) -> Any:
        raise BudgetExceeded("no money left", seen=item, fix="raise the budget")

    worker = Worker(act)
    outcomes = await run_items(worker, ["a", "b"], QUICK)
    assert [(outcome.state, outcome.attempts) for outcome in outcomes] == [(ItemState.OWED, 1)] * 2
    assert "no money left" in outcomes[0].error


async def test_a_deadline_names_the_line_that_hung() -> None:
    """R10."""
    policy = FanoutPolicy(item_deadline_s=0.05)
    (outcome,) = await run_items(Worker(hang), ["a"], policy)
    assert outcome.error.endswith("in hang")
    assert "test_fanout.py" in outcome.error


async def test_odd_notes_become_text() -> None:
    async def odd(item: str, attempt: int) -> Any:
        return Skipped(object()) if item == "b" else {"tokens": 3}

    first, second = await run_items(Worker(odd), ["a", "b"], QUICK)
    assert first.note == {"tokens": 3}
    assert second.state is ItemState.SKIPPED
    assert second.note.startswith("<object")


async def test_concurrency_is_bounded() -> None:
    running = 0
    most = 0

    async def count(item: str, attempt: int) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    await run_items(Worker(count), [f"{n}" for n in range(40)], QUICK)
    assert most == QUICK.concurrency


async def test_cancelling_the_stage_leaves_no_attempt_running() -> None:
    worker = Worker(hang, call_of_interest=2)
    task = asyncio.create_task(run_items(worker, ["a", "b"], QUICK))
    await worker.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_callback_that_raises_ends_the_call() -> None:
    def refuse(outcome: ItemOutcome) -> None:
        raise OSError("display gone")

    with pytest.raises(OSError, match="display gone"):
        await run_items(Worker(fine), ["a", "b", "c"], QUICK, refuse)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@settings(max_examples=40, deadline=None)
@given(plan=st.lists(st.sampled_from(["ok", "skip", "infra", "bug", "cancel", "exit", "flaky"]), max_size=30), lanes=st.integers(1, 7))
def test_every_item_ends_exactly_once(plan: list[str], lanes: int) -> None:
    """I1, R2: whatever the mix, one outcome per item in order, and the callback sees each once."""

    async def act(item: str, attempt: int) -> Any:
        kind = plan[int(item)]
        await asyncio.sleep(0)
        if kind == "infra" or (kind == "flaky" and attempt < 3):
            raise InfraError("down")
        if kind == "bug":
            raise KeyError(item)
        if kind == "cancel":
            raise asyncio.CancelledError
        if kind == "exit":
            raise SystemExit(1)
        return Skipped() if kind == "skip" else None

    policy = FanoutPolicy(concurrency=lanes, tries=3, base_s=0.0, breaker_errors=0)
    seen: list[str] = []
    items = [str(index) for index in range(len(plan))]
    outcomes = asyncio.run(run_items(Worker(act), items, policy, lambda outcome: seen.append(outcome.item)))
    assert [outcome.item for outcome in outcomes] == items
    assert sorted(seen) == sorted(items)
    expected = {"ok": ItemState.COMMITTED, "flaky": ItemState.COMMITTED, "skip": ItemState.SKIPPED}
    assert [outcome.state for outcome in outcomes] == [expected.get(kind, ItemState.OWED) for kind in plan]


@dataclass(slots=True)
class Opening:
    """A stage that fails to open some times; not picklable by value on purpose of counting."""

    errors: list[BaseException]
    name: str = "opening"
    opened: int = 0
    worker: Worker = field(default_factory=lambda: Worker(fine))

    def open(self) -> Worker:
        self.opened += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.worker


async def test_opening_is_retried_unless_the_user_must_act() -> None:
    stage = Opening([RuntimeError("busy"), SystemExit(2)])
    assert await open_stage(stage, QUICK) is stage.worker
    assert stage.opened == 3
    with pytest.raises(InfraError, match="did not open in 3 tries") as caught:
        await open_stage(Opening([RuntimeError("busy")] * 3), QUICK)
    assert "RuntimeError: busy" in str(caught.value)
    refused = Opening([StoreError("no bucket")])
    with pytest.raises(StoreError):
        await open_stage(refused, QUICK)
    assert refused.opened == 1


async def test_stage_cache_opens_once_and_closes_the_oldest() -> None:
    cache = StageCache(limit=2)
    stages = {key: Opening([]) for key in "abc"}
    for key in "abacb":
        await cache.worker(key, lambda key=key: stages[key], QUICK)  # type: ignore[misc]
    assert {key: stage.opened for key, stage in stages.items()} == {"a": 1, "b": 2, "c": 1}
    await cache.aclose()
    assert {key: stage.worker.closed for key, stage in stages.items()} == {"a": 1, "b": 2, "c": 1}


async def test_local_executor_inside_a_running_loop() -> None:
    """An agent's tool may call `map` from a coroutine."""
    executor = LocalExecutor(QUICK)
    report = executor.map(EchoStage(), ["a", "b"])
    executor.close()
    assert [outcome.state for outcome in report.outcomes] == [ItemState.COMMITTED, ItemState.COMMITTED]
