"""The thread between asyncio and an engine core, driven by a core that does arithmetic.

Promises:
 1. A core that raises while stepping fails every waiting caller and every later one with `InfraError`; nobody is left waiting (R8).
 2. The error carries the root traceback (R10).
 3. Exclusive work runs alone: it waits for what runs, and holds back what came later.
 4. A refused request fails alone; a cancelled one is aborted in the core.
 5. A core that can't be built raises from the constructor, our own errors unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cluster.engines.family import RawCompletion
from cluster.engines.threaded import EngineCore, GenerateWork, Result, ScoreWork, ThreadedEngine
from coevo.chat import FinishReason, Sampling
from coevo.errors import InfraError, ModelError, PrerequisiteError

STEPS = Sampling(temperature=0.0, max_tokens=3)


class CountingCore:
    """Counts `max_tokens` steps down per request; prompt (13,) breaks the core, (7,) is refused, (0,) never ends."""

    exclusive_scoring = True
    dtype = "float32"

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.log: list[str] = []
        self.aborted: list[int] = []
        self.bad = False

    @property
    def busy(self) -> bool:
        return bool(self.left)

    def submit(self, ticket: int, work: GenerateWork | ScoreWork) -> None:
        if work.prompt == (7,):
            raise ModelError("unlucky", seen=7)
        self.bad = self.bad or work.prompt == (13,)
        if isinstance(work, ScoreWork):
            self.log.append(f"score with {len(self.left)}")
            self.left[ticket] = -1
        else:
            self.left[ticket] = 10**9 if work.prompt == (0,) else work.sampling.max_tokens

    def abort(self, ticket: int) -> None:
        self.left.pop(ticket, None)
        self.aborted.append(ticket)

    def step(self) -> list[Result]:
        if self.bad:
            raise ZeroDivisionError("the core broke")
        if any(left == -1 for left in self.left.values()):
            assert len(self.left) == 1, "scoring must run alone"
            ticket = next(iter(self.left))
            self.left.clear()
            return [Result(ticket, (-1.0,))]
        done = []
        for ticket in list(self.left):
            self.left[ticket] -= 1
            if not self.left[ticket]:
                del self.left[ticket]
                done.append(Result(ticket, RawCompletion((1,), (-0.5,), 0, FinishReason.STOP)))
        return done

    def load_weights(self, folder: str, model_id: str) -> None:
        self.log.append(f"load {model_id} with {len(self.left)}")

    def load_adapter(self, folder: str, model_id: str) -> None:
        raise ModelError("no adapters", seen=model_id)

    def model_ids(self) -> tuple[str, ...]:
        return ("m",)

    def running(self) -> int:
        return len(self.left)

    def kv_use(self) -> float | None:
        return None

    def close(self) -> None:
        self.log.append("closed")


@pytest.fixture
def engine() -> ThreadedEngine:
    core = CountingCore()
    return ThreadedEngine(lambda: core)


def core_of(engine: ThreadedEngine) -> CountingCore:
    core = engine._core
    assert isinstance(core, CountingCore)
    return core


async def test_a_broken_core_fails_every_caller(engine: ThreadedEngine) -> None:
    """R8, R10, promises 1 and 2."""
    waiting = [asyncio.ensure_future(engine.generate((0,), STEPS, seed=n)) for n in range(20)]
    await asyncio.sleep(0.01)
    last = asyncio.ensure_future(engine.generate((13,), STEPS, seed=0))
    done = await asyncio.wait_for(asyncio.gather(*waiting, last, return_exceptions=True), timeout=30)
    assert all(isinstance(one, InfraError) for one in done)
    assert "ZeroDivisionError: the core broke" in str(done[0])
    with pytest.raises(InfraError, match="has died"):
        await engine.generate((1,), STEPS, seed=0)
    assert "ZeroDivisionError" in engine.error
    engine.close()  # callers hear of the death before the core is closed: wait for the thread
    assert core_of(engine).log[-1] == "closed"


async def test_exclusive_work_runs_alone(engine: ThreadedEngine) -> None:
    """Promise 3: a swap and scores among 60 requests; the core itself checks that scoring is alone."""
    calls: list[asyncio.Future[object]] = []
    for number in range(60):
        calls.append(asyncio.ensure_future(engine.generate((1,), STEPS, seed=number)))
        if number % 10 == 5:
            calls.append(asyncio.ensure_future(engine.score((1,), (2,))))
        if number == 30:
            calls.append(asyncio.ensure_future(engine.load_weights("folder", model_id="m2")))
    await asyncio.wait_for(asyncio.gather(*calls), timeout=30)
    log = core_of(engine).log
    assert log.count("score with 0") == 6
    assert "load m2 with 0" in log
    assert len(log) == 7
    assert engine.stats().finished == 67
    engine.close()


async def test_one_bad_request_fails_alone(engine: ThreadedEngine) -> None:
    """Promise 4."""
    good, bad, adapter, empty = await asyncio.gather(
        engine.generate((1,), STEPS, seed=0),
        engine.generate((7,), STEPS, seed=0),
        engine.load_adapter("folder", model_id="a"),
        engine.score((), (1,)),
        return_exceptions=True,
    )
    assert isinstance(good, RawCompletion)
    assert isinstance(bad, ModelError)
    assert isinstance(adapter, ModelError)
    assert isinstance(empty, ModelError)
    assert engine.error == ""
    engine.close()


async def test_cancelled_work_leaves_the_core(engine: ThreadedEngine) -> None:
    """Promise 4: the endless request is aborted, and one held behind exclusive work is simply dropped."""
    endless = asyncio.ensure_future(engine.generate((0,), STEPS, seed=0))
    held = asyncio.ensure_future(engine.score((1,), (2,)))
    behind = asyncio.ensure_future(engine.generate((1,), STEPS, seed=0))
    await asyncio.sleep(0.01)
    behind.cancel()
    endless.cancel()
    assert await asyncio.wait_for(held, timeout=30) == (-1.0,)
    assert len(core_of(engine).aborted) == 1
    assert engine.stats().depth == 0
    engine.close()
    with pytest.raises(InfraError, match="closed"):
        await engine.generate((1,), STEPS, seed=0)


@pytest.mark.parametrize(("error", "kind"), [(PrerequisiteError("no wheel"), PrerequisiteError), (OSError("disk"), InfraError)])
def test_a_core_that_can_not_be_built(error: Exception, kind: type[Exception]) -> None:
    """Promise 5, R10."""

    def build() -> EngineCore:
        raise error

    opener: Callable[[], EngineCore] = build
    with pytest.raises(kind, match=r"no wheel|disk"):
        ThreadedEngine(opener)
