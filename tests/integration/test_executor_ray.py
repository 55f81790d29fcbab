"""The Executor contract on Ray, and what only worker processes can do: die, stop, and be replaced."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from coevo.errors import ConfigError, PrerequisiteError
from coevo.fanout import FanoutPolicy
from coevo.ports import ItemState, MapReport
from coevo.records import Attempt
from coevo.stages import EchoStage, Fault, FaultKind
from coevo.store.local import LocalSource
from tests.contract.test_executors import QUICK, ExecutorContract, ExecutorFactory, attempts_of, ids, states, wait_for

ray = pytest.importorskip("ray")

from cluster.executor import ActorExecutor, ActorOptions, BulkOptions, RayDataExecutor  # noqa: E402
from cluster.session import AuthMode, SessionConfig, open_session  # noqa: E402

OPTIONS = ActorOptions(actors=2, num_cpus=0.5, beat_s=0.2, silence_s=5.0)
BULK = BulkOptions(actors=2, num_cpus=0.5, beat_s=0.2, stall_s=5.0, block_rows=8)


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with open_session(SessionConfig(auth=AuthMode.DISABLED, environment={"RAY_worker_niceness": "0"})):
        yield


@pytest.fixture(scope="module")
def actor_pool(session: None) -> Iterator[ActorExecutor]:
    """One pool for all policies: starting processes is what costs."""
    executor = ActorExecutor(options=OPTIONS)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def bulk_pool(session: None) -> Iterator[RayDataExecutor]:
    executor = RayDataExecutor(options=BULK)
    yield executor
    executor.close()


def worker_pids(source: LocalSource) -> Counter[int]:
    """Attempts started per process."""
    store = source.open()
    records = [Attempt.from_bytes(store.get(info.key)) for info in store.list("echo/attempts/")]
    return Counter(int(record.worker.rpartition(":")[2]) for record in records)


def in_background(run: object) -> tuple[threading.Thread, list[MapReport]]:
    reports: list[MapReport] = []
    thread = threading.Thread(target=lambda: reports.append(run()), daemon=True)  # type: ignore[operator]
    thread.start()
    return thread, reports


class RayContract(ExecutorContract):
    """Also: promises about processes."""

    workers = 2

    def test_a_killed_worker(self, executor_of: ExecutorFactory, source: LocalSource) -> None:
        """R8, R9: SIGKILL without notice: every item still ends once, and the lost attempts are counted."""
        policy = FanoutPolicy(concurrency=4, tries=3, base_s=0.01)
        stage = EchoStage(source, sleep_s=0.1, record_attempts=True)
        executor = executor_of(policy)
        thread, reports = in_background(lambda: executor.map(stage, ids(60)))
        wait_for(lambda: len(worker_pids(source)) >= 1 and attempts_of(source).total() >= 12)
        os.kill(worker_pids(source).most_common(1)[0][0], signal.SIGKILL)
        thread.join(timeout=150.0)
        assert not thread.is_alive()
        assert states(reports[0])[ItemState.OWED] == 0
        assert [outcome.item for outcome in reports[0].outcomes] == ids(60)
        repeated = Counter(outcome.state for outcome in reports[0].outcomes if outcome.attempts > 1)
        assert repeated.total() >= 1
        assert repeated[ItemState.COMMITTED] <= policy.concurrency, "others had committed when their worker died, and are skipped"
        assert all(attempts_of(source)[outcome.item] in {outcome.attempts - 1, outcome.attempts} for outcome in reports[0].outcomes)
        assert sum(info.key.endswith(".json") for info in source.open().list("echo/episodes/")) == 60

    def test_items_that_harm_their_worker(self, executor_of: ExecutorFactory, source: LocalSource) -> None:
        """R1, R8: an item that kills its process is owed after its tries, one that stopped it is found by its silence, and their
        neighbours are committed."""
        policy = FanoutPolicy(concurrency=4, tries=3, base_s=0.01)
        faults = (Fault(FaultKind.KILL_WORKER, frozenset({"e00007"})), Fault(FaultKind.BLOCK, frozenset({"e00022"}), attempts=1))
        report = executor_of(policy).map(EchoStage(source, faults=faults, record_attempts=True), ids(30))
        assert [outcome.item for outcome in report.owed] == ["e00007"]
        assert policy.tries <= report.owed[0].attempts <= policy.tries + 1, "the last one may be one more, alone"
        assert attempts_of(source)["e00007"] == report.owed[0].attempts
        assert report.outcomes[22].attempts == attempts_of(source)["e00022"] == 2

    def test_a_stage_that_does_not_travel(self, executor_of: ExecutorFactory) -> None:
        with pytest.raises(ConfigError, match="can't travel"):
            executor_of(QUICK).map(EchoStage(threading.Lock()), ids(2))  # type: ignore[arg-type]


class TestActorExecutor(RayContract):
    @pytest.fixture
    def executor_of(self, actor_pool: ActorExecutor) -> ExecutorFactory:
        return actor_pool.with_policy

    def test_a_late_start_of_the_last_map_is_ignored(self, executor_of: ExecutorFactory, tmp_path: Path) -> None:
        """R9: a process that is replaced while its map ends serves the next map with the next map's stage."""
        policy = FanoutPolicy(concurrency=1, tries=3, base_s=0.01)
        for number in range(3):
            source = LocalSource(str(tmp_path / f"store{number}"))
            faults = (Fault(FaultKind.KILL_WORKER, frozenset({"last"})),)
            executor_of(policy).map(EchoStage(source, faults=faults, record_attempts=True), ["first", "last"])
            final = LocalSource(str(tmp_path / f"final{number}"))
            report = executor_of(QUICK).map(EchoStage(final), ids(20))
            assert states(report) == {ItemState.COMMITTED: 20}
            assert sum(info.key.endswith(".json") for info in final.open().list("echo/episodes/")) == 20

    def test_work_is_spread_and_processes_stay(self, executor_of: ExecutorFactory, source: LocalSource) -> None:
        executor = executor_of(QUICK)
        assert isinstance(executor, ActorExecutor)
        wait_for(lambda: executor.map(EchoStage(source), ["warm", "up"]) is not None and len(executor.pids) == 2)
        before = executor.pids
        executor.map(EchoStage(source, sleep_s=0.02, record_attempts=True), ids(64))
        assert executor.pids == before
        assert min(worker_pids(source).values()) >= 20

    def test_options(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="worker process"):
            ActorOptions(actors=0)
        with pytest.raises(ConfigError, match="silence_s"):
            ActorOptions(silence_s=1.0, beat_s=1.0)


class TestRayDataExecutor(RayContract):
    @pytest.fixture
    def executor_of(self, bulk_pool: RayDataExecutor) -> ExecutorFactory:
        return bulk_pool.with_policy


def test_no_session_is_a_clear_error() -> None:
    """Last in the file: it ends the session."""
    ray.shutdown()
    with pytest.raises(PrerequisiteError, match="no Ray session"):
        ActorExecutor().map(EchoStage(), ids(2))
