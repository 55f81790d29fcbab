"""A cluster of a head that runs no work and two nodes. Promises:

1. Executor workers, engines and training workers spread over both nodes; the head runs none of them; labels decide where they may run.
2. A node that is SIGKILLed in mid-map costs attempts, not items (R8, R9).
3. A notice drains its node: from then on no attempt begins there, what was in flight ends, every item is committed. Actors and Ray Data.
4. A replica on a draining node serves until its successor serves elsewhere; no request fails.
5. Training writes a checkpoint on the notice, at a step that no schedule asked for, and goes on elsewhere from exactly there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.engines.family import EngineConfig, EngineKind
from cluster.executor import ActorExecutor, ActorOptions, BulkOptions, RayDataExecutor
from cluster.local_nodes import LocalNode, LocalNodes, NodeSpec
from cluster.notices import FileNotice, WatchPlan
from cluster.servers import ModelPool, PoolConfig, ReplicaState
from cluster.session import AuthMode, SessionConfig, open_session
from cluster.spot import SpotWatch
from cluster.tiny import make_tiny_model
from cluster.training import RayLoraTrainer
from coevo.chat import Message, ModelRequest, Role, Sampling
from coevo.fanout import FanoutPolicy
from coevo.ports import Executor, ItemState
from coevo.stages import EchoStage
from coevo.store.local import LocalSource
from tests.contract.test_executors import ids, states, wait_for
from tests.integration.test_executor_ray import in_background, worker_pids
from tests.integration.test_training import setting

pytestmark = pytest.mark.timeout(600)

POLICY = FanoutPolicy(concurrency=4, tries=4, base_s=0.01, abandon_s=0.1)
LABEL = {"coevo-work": 1.0}
SPEC = NodeSpec(num_cpus=2, resources={"coevo-work": 4, "spot": 1})
ASKS = {"coevo-work": 0.01}


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    """The head; each test starts the nodes that it needs."""
    with LocalNodes(NodeSpec(num_cpus=0), jobs=False, auth=AuthMode.DISABLED) as started:
        yield started


@pytest.fixture
def pair(nodes: LocalNodes) -> Iterator[tuple[LocalNode, LocalNode]]:
    """Two fresh nodes, joined by this process, when the cluster has missed those the last test killed: till then Ray places on them."""
    import ray

    both = nodes.add(SPEC), nodes.add(SPEC)
    with open_session(SessionConfig(address=nodes.address, environment={"RAY_worker_niceness": "0"})):
        wait_for(lambda: alive(ray) == {node.id for node in nodes.nodes})
        yield both
    for node in both:
        nodes.kill(node)


def alive(ray: Any) -> set[str]:
    """Ids of the nodes that the cluster believes in."""
    return {one["NodeID"] for one in ray.nodes() if one["Alive"]}


@pytest.fixture
def source(tmp_path: Path) -> LocalSource:
    return LocalSource(str(tmp_path / "store"))


class Census:
    """Which pids each node ever had, looked up while it lives."""

    def __init__(self, *nodes: LocalNode) -> None:
        self.pids: dict[str, set[int]] = {node.name: set() for node in nodes}
        self._nodes = nodes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(0.1):
            for node in self._nodes:
                self.pids[node.name] |= {process.pid for process in node.processes()}

    def __enter__(self) -> Census:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def attempts(self, source: LocalSource, node: LocalNode) -> int:
        """Attempts begun on the node."""
        return sum(count for pid, count in worker_pids(source).items() if pid in self.pids[node.name])


def actors() -> Executor:
    return ActorExecutor(POLICY, ActorOptions(actors=2, num_cpus=1, resources=ASKS, beat_s=0.2, silence_s=60.0))


def bulk() -> Executor:
    return RayDataExecutor(POLICY, BulkOptions(actors=2, num_cpus=1, resources=ASKS, beat_s=0.2, stall_s=90.0, block_rows=2))


def test_a_killed_node_costs_attempts(nodes: LocalNodes, pair: tuple[LocalNode, LocalNode], source: LocalSource) -> None:
    """Promises 1 and 2."""
    first, second = pair
    executor = actors()
    with Census(nodes.head, first, second) as census:
        thread, reports = in_background(lambda: executor.map(EchoStage(source, sleep_s=0.5, record_attempts=True), ids(120)))
        wait_for(lambda: min(census.attempts(source, node) for node in pair) >= 8)
        nodes.kill(second)
        thread.join(timeout=300.0)
    assert not thread.is_alive()
    assert states(reports[0])[ItemState.OWED] == 0
    assert sum(outcome.attempts > 1 for outcome in reports[0].outcomes) >= 1
    assert sum(info.key.endswith(".json") for info in source.open().list("echo/episodes/")) == 120
    assert census.attempts(source, nodes.head) == 0
    executor.close()


@pytest.mark.parametrize("make", [actors, bulk])
def test_nothing_begins_on_a_draining_node(
    make: Callable[[], Executor], pair: tuple[LocalNode, LocalNode], source: LocalSource, tmp_path: Path
) -> None:
    """Promise 3, for both executors."""
    leaving = pair[1]
    executor = make()
    stage = EchoStage(source, sleep_s=1.0, record_attempts=True)
    with SpotWatch(WatchPlan(FileNotice(str(tmp_path)), period_s=0.2)) as watch, Census(*pair) as census:
        watch.wait_ready(3)
        thread, reports = in_background(lambda: executor.map(stage, ids(120)))
        wait_for(lambda: min(census.attempts(source, node) for node in pair) >= 4)
        (tmp_path / f"{leaving.id}.json").write_text('{"seconds": 60}')
        wait_for(lambda: leaving.id in watch.notices)
        begun = at_rest(lambda: census.attempts(source, leaving))
        thread.join(timeout=300.0)
        assert not thread.is_alive()
        assert census.attempts(source, leaving) == begun
    assert states(reports[0]) == {ItemState.COMMITTED: 120}
    assert {outcome.attempts for outcome in reports[0].outcomes} == {1}, "what was in flight ended where it was"
    assert begun < 60
    executor.close()


def at_rest(count: Callable[[], int], *, quiet_s: float = 4.0, limit_s: float = 120.0) -> int:
    """The count when it has not moved for `quiet_s`, four items' length: how soon a notice takes effect depends on the machine's load."""
    seen, since = count(), time.monotonic()
    deadline = since + limit_s
    while time.monotonic() - since < quiet_s:
        assert time.monotonic() < deadline, "attempts kept beginning"
        time.sleep(0.2)
        if (now := count()) != seen:
            seen, since = now, time.monotonic()
    return seen


def request(number: int) -> ModelRequest:
    prompt = tuple(5 + (number * 31 + column * 7) % 250 for column in range(24))
    messages = (Message(Role.USER, "?"),)
    return ModelRequest(messages, (), Sampling(max_tokens=8), f"s{number}", number, prompt_token_ids=prompt, model_id="tiny@a")


def test_a_replica_moves_before_its_node_goes(nodes: LocalNodes, pair: tuple[LocalNode, LocalNode], tmp_path: Path) -> None:
    """Promises 1 and 4."""
    import ray

    from cluster.drain import request_drain

    folder = make_tiny_model(tmp_path / "model", seed=1)
    engine = EngineConfig(
        model_path=folder, model_id="tiny@a", kind=EngineKind.TRANSFORMERS, dtype="float32", max_model_len=256, kv_cache_bytes=32 << 20
    )
    config = PoolConfig(engine=engine, replicas=2, num_cpus=1, resources=ASKS, heartbeat_s=0.2)
    with ModelPool(config) as pool:
        model = pool.source().open()
        places = [slot.place.node for slot in pool._slots if slot.place is not None]
        assert set(places) == {node.id for node in pair}
        failed: Counter[str] = Counter()
        served = 0

        async def ask_until(over: Callable[[], bool]) -> None:
            nonlocal served
            while not over():
                answers = await asyncio.gather(*(model.complete(request(served + n)) for n in range(4)), return_exceptions=True)
                failed.update(type(one).__name__ for one in answers if isinstance(one, BaseException))
                served += len(answers)

        request_drain(pair[1].id, reason="test", deadline=time.time() + 300)

        def moved() -> bool:
            return not pool._leaving and all(
                slot.state is ReplicaState.READY and slot.place is not None and slot.place.node == pair[0].id for slot in pool._slots
            )

        deadline = time.monotonic() + 240
        asyncio.run(ask_until(lambda: moved() or time.monotonic() > deadline))
        assert moved()
        asyncio.run(ask_until(lambda: served >= 40))
        assert not failed
        assert any("drained" in failure.reason for failure in pool.stats().failures)
        with contextlib.suppress(ray.exceptions.RayError):
            asyncio.run(model.aclose())


@pytest.mark.timeout(900)
def test_training_saves_on_notice_and_moves(
    nodes: LocalNodes, pair: tuple[LocalNode, LocalNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promises 1 and 5; R12. No failure is allowed, so the announced loss is not counted as one."""
    from cluster.drain import request_drain

    monkeypatch.setenv("RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S", "0.5")
    source, job = setting(tmp_path)
    job = replace(job, settings=job.settings | {"save_steps": 30, "max_failures": 0, "epochs": 12})
    scratch = tmp_path / "scratch"
    trainer = RayLoraTrainer(source, str(scratch), spread=True, resources_per_worker={"CPU": 1.0, **ASKS}, min_workers=1, step_delay_s=0.3)
    workers: list[int] = []

    def drain() -> None:
        wait_for(lambda: saved(scratch) == {30}, limit_s=400)
        workers.extend(len(node.workers("RayTrainWorker")) for node in (nodes.head, *pair))
        request_drain(pair[1].id, reason="test", deadline=time.time() + 6)
        wait_for(lambda: len(saved(scratch)) > 1, limit_s=120)
        time.sleep(10.0)
        nodes.kill(pair[1])

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    adapter = trainer.train(job)
    thread.join(timeout=60)
    assert workers == [0, 1, 1]
    assert 30 < adapter.metrics["resumed_at_step"] < 60
    assert adapter.steps == 63
    assert adapter.rows == 21


def saved(scratch: Path) -> set[int]:
    """Steps of the checkpoints."""
    return {int(path.parent.name.removeprefix("step_")) for path in scratch.glob("train-*/step_*/progress.json")}
