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


def wait_for(condition: Callable[[], bool], *, limit_s: float = 60.0) -> None:
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

    def test_one_bug_of_500(self, executor_of: ExecutorFactory, source: LocalSource) -> None:
        """R1: 499 committed and 1 owed with the original traceback."""
        bad = "e00137"
        stage = EchoStage(source, faults=(Fault(FaultKind.BUG, frozenset({bad})),), record_attempts=True)
        report = executor_of(QUICK).map(stage, ids(500))
        assert states(report) == {ItemState.COMMITTED: 499, ItemState.OWED: 1}
        assert [outcome.item for outcome in report.outcomes] == ids(500)
        (owed,) = report.owed
        assert owed.item == bad
        assert f"injected bug at {bad}" in owed.error
        assert "Traceback" in owed.error
        assert "CancelledError" not in owed.error
        assert owed.attempts == 2
        assert attempts_of(source) == {item: 2 if item == bad else 1 for item in ids(500)}

    def test_nothing_an_item_does_leaves_map(self, executor_of: ExecutorFactory, source: LocalSource) -> None:
        """R1, I1: foreign cancellation and sys.exit are outcomes too, and the neighbours live."""
        stage = EchoStage(source, faults=(Fault(FaultKind.CANCEL, frozenset({"e00001"})), Fault(FaultKind.EXIT, frozenset({"e00002"}))))
        report = executor_of(QUICK).map(stage, ids(20))
        assert states(report) == {ItemState.COMMITTED: 18, ItemState.OWED: 2}
        assert "CancelledError inside the attempt" in report.outcomes[1].error
        assert "sys.exit(3)" in report.outcomes[2].error

    def test_only_infrastructure_is_retried(self, executor_of: ExecutorFactory, source: LocalSource) -> None:
        """R3, I3: an InfraError gets a fresh attempt; a recorded task failure is final."""
        faults = (Fault(FaultKind.INFRA, frozenset({"e00003"}), attempts=1), Fault(FaultKind.TASK_FAILURE, frozenset({"e00004"})))
        report = executor_of(QUICK).map(EchoStage(source, faults=faults, record_attempts=True), ids(10))
        assert states(report) == {ItemState.COMMITTED: 10}
        assert report.outcomes[3].attempts == 2
        assert report.outcomes[3].note == {"tokens": 6, "success": True}
        assert report.outcomes[4].attempts == 1
        assert report.outcomes[4].note == {"tokens": 6, "success": False}
        assert attempts_of(source) == {item: 2 if item == "e00003" else 1 for item in ids(10)}

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
        thread.join(timeout=60.0)
        assert not thread.is_alive()
        assert touched <= 2 * self.workers * policy.concurrency, "dispatch went on during the outage"
        assert states(reports[0]) == {ItemState.COMMITTED: 80}
        assert {outcome.item: outcome.attempts for outcome in reports[0].outcomes} == attempts_of(source)

    @pytest.mark.parametrize("kind", [FaultKind.HANG, FaultKind.STUBBORN])
    def test_a_hang_ends_at_its_deadline(self, executor_of: ExecutorFactory, source: LocalSource, kind: FaultKind) -> None:
        """R5: also when every single await ends, and when cancellation is ignored."""
        policy = FanoutPolicy(concurrency=4, tries=5, base_s=0.01, breaker_errors=0, item_deadline_s=0.5, abandon_s=0.1)
        stage = EchoStage(source, faults=(Fault(kind, frozenset({"e00000"})),))
        report = executor_of(policy).map(stage, ids(30))
        assert states(report) == {ItemState.COMMITTED: 29, ItemState.OWED: 1}
        assert "deadline of 0.5 s over, waiting at" in report.outcomes[0].error
        assert report.outcomes[0].attempts == 1

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

    def test_second_map_skips(self, executor_of: ExecutorFactory, source: LocalSource) -> None:
        """R2, R9: committed + skipped + owed = expected, and progress ends at the total."""
        executor = executor_of(QUICK)
        executor.map(EchoStage(source), ids(12))
        seen: list[Progress] = []
        stage = EchoStage(source, faults=(Fault(FaultKind.INFRA, frozenset({"e00015"})),))
        report = executor.map(stage, ids(20), on_progress=seen.append)
        assert states(report) == {ItemState.SKIPPED: 12, ItemState.COMMITTED: 7, ItemState.OWED: 1}
        assert [progress.done for progress in seen] == sorted({progress.done for progress in seen})
        assert seen[-1] == Progress("echo", done=20, total=20, owed=1, tokens=19 * 6)

    def test_a_stage_that_does_not_open(self, executor_of: ExecutorFactory, source: LocalSource, tmp_path: Path) -> None:
        """R1: the user's errors are raised; any other failure to open owes every item with its traceback."""
        executor = executor_of(QUICK)
        (tmp_path / "file").write_text("not a folder")
        with pytest.raises(StoreError):
            executor.map(EchoStage(LocalSource(str(tmp_path / "file"))), ids(3))
        report = executor.map(EchoStage("no source"), ids(3))  # type: ignore[arg-type]
        assert states(report) == {ItemState.OWED: 3}
        assert "AttributeError" in report.outcomes[2].error
        assert report.outcomes[2].attempts == 0
        assert states(executor.map(EchoStage(source), ids(3))) == {ItemState.COMMITTED: 3}

    def test_odd_lists(self, executor_of: ExecutorFactory) -> None:
        executor = executor_of(QUICK)
        assert executor.map(EchoStage(), []).outcomes == ()
        with pytest.raises(ConfigError, match="occurs twice"):
            executor.map(EchoStage(), ["a", "b", "a"])

    def test_close_is_repeatable(self, executor_of: ExecutorFactory) -> None:
        executor = executor_of(QUICK)
        executor.close()
        assert states(executor.map(EchoStage(), ids(3))) == {ItemState.COMMITTED: 3}
        executor.close()
        executor.close()


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
