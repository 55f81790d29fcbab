"""What every Executor promises.

1. R1, I1: one bad item of many costs one outcome, with the original error; no exception leaves `map`.
2. R2: expected = committed + skipped + owed, in the order of the given items.
3. R3: infrastructure errors are retried in a fresh attempt, recorded task failures never.
4. R4: an outage pauses dispatch, spends no tries, and the stage resumes by itself.
5. R5: a hang ends at the item's deadline; a straggler does not hold the stage.
6. R9: the same items again are skipped, not done twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coevo.errors import ConfigError, StoreError
from coevo.fanout import FanoutPolicy, LocalExecutor
from coevo.ports import Executor, ItemState, MapReport, Progress
from coevo.stages import EchoStage, Fault, FaultKind
from coevo.store.local import LocalSource

ExecutorFactory = Callable[[FanoutPolicy], Executor]
QUICK = FanoutPolicy(concurrency=8, tries=2, base_s=0.01, cap_s=0.05, breaker_errors=0, item_deadline_s=60.0, abandon_s=0.1)


def ids(count: int) -> list[str]:
    return [f"e{index:05d}" for index in range(count)]


def states(report: MapReport) -> Counter[ItemState]:
    return Counter(outcome.state for outcome in report.outcomes)


def attempts_of(source: LocalSource) -> Counter[str]:
    """Attempts started per item, as the stage wrote them."""
    return Counter(info.key.split("/")[2] for info in source.open().list("echo/attempts/"))


def wait_for(condition: Callable[[], bool], *, limit_s: float = 150.0) -> None:
    ends = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends, "the awaited condition never came"
        time.sleep(0.02)


class ExecutorContract:
    """Subclasses give `workers` (processes that run items) and the fixture `executor_of`."""

    workers = 1

    @pytest.fixture
    def source(self, tmp_path: Path) -> LocalSource:
        return LocalSource(str(tmp_path / "store"))

    def test_bad_items_among_500(self, executor_of: ExecutorFactory, source: LocalSource) -> None:
        """R1, R2, R3, R9, I1, I3: a bug, a foreign cancellation and a sys.exit cost one item each; infrastructure is retried, a recorded
        failure is final; the same items again are skipped."""
        bug, cancelled, left, flaky, failed = "e00137", "e00138", "e00139", "e00003", "e00004"
        faults = (
            Fault(FaultKind.BUG, frozenset({bug})),
            Fault(FaultKind.CANCEL, frozenset({cancelled})),
            Fault(FaultKind.EXIT, frozenset({left})),
            Fault(FaultKind.INFRA, frozenset({flaky}), attempts=1),
            Fault(FaultKind.TASK_FAILURE, frozenset({failed})),
        )
        executor = executor_of(QUICK)
        report = executor.map(EchoStage(source, faults=faults, record_attempts=True), ids(500))
        assert [outcome.item for outcome in report.outcomes] == ids(500)
        assert states(report) == {ItemState.COMMITTED: 497, ItemState.OWED: 3}
        by_item = {outcome.item: outcome for outcome in report.outcomes}
        assert f"injected bug at {bug}" in by_item[bug].error
        assert "Traceback" in by_item[bug].error
        assert "CancelledError" not in by_item[bug].error
        assert "CancelledError inside the attempt" in by_item[cancelled].error
        assert "sys.exit(3)" in by_item[left].error
        assert by_item[flaky].note == {"tokens": 6, "success": True}
        assert by_item[failed].note == {"tokens": 6, "success": False}
        twice = {bug, cancelled, left, flaky}
        assert attempts_of(source) == {item: 2 if item in twice else 1 for item in ids(500)}
        assert {item: outcome.attempts for item, outcome in by_item.items()} == attempts_of(source)

        seen: list[Progress] = []
        again = executor.map(EchoStage(source, faults=faults[:1]), ids(510)[90:], on_progress=seen.append)
        assert states(again) == {ItemState.SKIPPED: 407, ItemState.COMMITTED: 12, ItemState.OWED: 1}
        assert [progress.done for progress in seen] == sorted({progress.done for progress in seen})
        assert seen[-1] == Progress("echo", done=420, total=420, owed=1, tokens=419 * 6)

    def test_outage_then_recovery(self, executor_of: ExecutorFactory, source: LocalSource) -> None:
        """R4: with 2 tries each, an outage of many attempts owes nothing."""
        policy = FanoutPolicy(concurrency=4, tries=2, base_s=0.01, cap_s=0.02, breaker_errors=2, breaker_pause_s=0.1)
        stage = EchoStage(source, outage_key="outage", record_attempts=True)
        store = source.open()
        store.put_if_absent("outage", b"")
        executor = executor_of(policy)
        reports: list[MapReport] = []
        thread = threading.Thread(target=lambda: reports.append(executor.map(stage, ids(80))), daemon=True)
        thread.start()
        enough = self.workers * policy.concurrency + 5
        wait_for(lambda: attempts_of(source).total() >= enough)
        touched = len(attempts_of(source))
        store.delete("outage")
        thread.join(timeout=150.0)
        assert not thread.is_alive()
        assert touched <= 2 * self.workers * policy.concurrency, "dispatch went on during the outage"
        assert states(reports[0]) == {ItemState.COMMITTED: 80}
        assert {outcome.item: outcome.attempts for outcome in reports[0].outcomes} == attempts_of(source)

    def test_a_hang_ends_at_its_deadline(self, executor_of: ExecutorFactory, source: LocalSource) -> None:
        """R5: also when every single await ends, and when cancellation is ignored."""
        policy = FanoutPolicy(concurrency=4, tries=5, base_s=0.01, breaker_errors=0, item_deadline_s=1.0, abandon_s=0.1)
        faults = (Fault(FaultKind.HANG, frozenset({"e00000"})), Fault(FaultKind.STUBBORN, frozenset({"e00001"})))
        report = executor_of(policy).map(EchoStage(source, faults=faults), ids(30))
        assert states(report) == {ItemState.COMMITTED: 28, ItemState.OWED: 2}
        for outcome in report.owed:
            assert "deadline of 1.0 s over, waiting at" in outcome.error
            assert outcome.attempts == 1

    def test_one_straggler_of_100_does_not_hold_the_stage(self, executor_of: ExecutorFactory, source: LocalSource) -> None:
        """R5: quorum close; the straggler is carried over as owed."""
        policy = FanoutPolicy(concurrency=8, item_deadline_s=None, quorum=0.99, grace_s=0.2, abandon_s=0.1)
        stage = EchoStage(source, faults=(Fault(FaultKind.HANG, frozenset({"e00050"})),))
        report = executor_of(policy).map(stage, ids(100))
        assert states(report) == {ItemState.COMMITTED: 99, ItemState.OWED: 1}
        assert report.owed[0].item == "e00050"
        assert "quorum" in report.owed[0].error

    def test_stage_deadline(self, executor_of: ExecutorFactory, source: LocalSource) -> None:
        """R5: a stage of hangs ends; every item is owed, also those that never started."""
        policy = FanoutPolicy(concurrency=2, item_deadline_s=None, stage_deadline_s=1.0, abandon_s=0.1)
        report = executor_of(policy).map(EchoStage(source, faults=(Fault(FaultKind.HANG, frozenset(ids(20))),)), ids(20))
        assert states(report) == {ItemState.OWED: 20}
        assert all("stage deadline" in outcome.error for outcome in report.outcomes)
        assert report.outcomes[-1].attempts == 0

    def test_a_stage_that_does_not_open(self, executor_of: ExecutorFactory, tmp_path: Path) -> None:
        """R1: the user's errors are raised; any other failure to open owes every item with its traceback."""
        executor = executor_of(QUICK)
        (tmp_path / "file").write_text("not a folder")
        with pytest.raises(StoreError):
            executor.map(EchoStage(LocalSource(str(tmp_path / "file"))), ids(3))
        report = executor.map(EchoStage("no source"), ids(3))  # type: ignore[arg-type]
        assert states(report) == {ItemState.OWED: 3}
        assert "AttributeError" in report.outcomes[2].error
        assert report.outcomes[2].attempts == 0

    def test_odd_lists(self, executor_of: ExecutorFactory) -> None:
        executor = executor_of(QUICK)
        executor.close()
        assert executor.map(EchoStage(), []).outcomes == ()
        with pytest.raises(ConfigError, match="occurs twice"):
            executor.map(EchoStage(), ["a", "b", "a"])


class TestLocalExecutor(ExecutorContract):
    @pytest.fixture
    def executor_of(self) -> Iterator[ExecutorFactory]:
        made: list[LocalExecutor] = []

        def make(policy: FanoutPolicy) -> LocalExecutor:
            made.append(LocalExecutor(policy))
            return made[-1]

        yield make
        for executor in made:
            executor.close()
