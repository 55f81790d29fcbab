"""A pool of real engines in real Ray actors.

Promises:
 1. Two replicas start one after the other and serve (R16); turns of one conversation stay on one replica (R6).
 2. A SIGKILLed server under load: every request completes or is an `InfraError`, the pool heals to full size, and the failure is kept with
    its reason (R8, R10); a client in another process finds the replacement.
 3. A server that stops without dying is seen by its missing heartbeat (R8).
 4. A weight swap reaches every replica, and the old id is refused from then on (R7).
 5. An engine that can't start ends `start` with its own words (R10).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import ray

from cluster.engines.family import EngineConfig, EngineKind
from cluster.pool_model import PoolModel, PoolSource
from cluster.router import RouterConfig
from cluster.servers import ModelPool, PoolConfig
from cluster.session import SessionConfig, open_session
from cluster.tiny import make_tiny_model
from coevo.chat import Completion, FinishReason, Message, ModelRequest, Role, Sampling
from coevo.errors import ConfigError, InfraError, ModelError
from coevo.ports import ChatModel, Scorer
from tests.contract.test_executors import wait_for

pytestmark = pytest.mark.timeout(900)  # a start imports an inference library: seconds on a quiet machine, minutes on a busy one

CANCELLED = 384  # requests; two engines run 16 each at once
KIND = EngineKind.VLLM if find_spec("vllm") else EngineKind.TRANSFORMERS


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two tiny models with one tokenizer."""
    root = tmp_path_factory.mktemp("models")
    return make_tiny_model(root / "a", seed=1), make_tiny_model(root / "b", seed=2)


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """A private local cluster."""
    with open_session(SessionConfig(num_cpus=4)):
        yield


def engine(folder: str, **changes: object) -> EngineConfig:
    """A small float32 setup."""
    settings: dict[str, object] = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 16, "kv_cache_bytes": 64 << 20, "kind": KIND}
    return EngineConfig(model_path=folder, model_id="tiny@a", **(settings | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pool(session: None, folders: tuple[str, str]) -> Iterator[ModelPool]:
    """Two replicas of model a."""
    with ModelPool(PoolConfig(engine=engine(folders[0]), heartbeat_s=0.2, heartbeat_timeout_s=5.0)) as opened:
        yield opened


def request(number: int, *, session: str = "", tokens: int = 32, prompt: tuple[int, ...] = ()) -> ModelRequest:
    """A request whose prompt depends on its number."""
    ids = prompt or tuple(5 + (number * 31 + column * 7) % 250 for column in range(40))
    sampling = Sampling(temperature=0.8, max_tokens=tokens)
    messages = (Message(Role.USER, f"request {number}"),)
    return ModelRequest(messages, (), sampling, session or f"episode-{number}", number, prompt_token_ids=ids, model_id="tiny@a")


async def conversation(model: PoolModel, number: int, turns: int) -> list[Completion]:
    """Turns that each extend the last prompt and completion."""
    ids = request(number).prompt_token_ids or ()
    done = []
    for turn in range(turns):
        completion = await model.complete(request(1000 * number + turn, session=f"talk-{number}", tokens=12, prompt=ids))
        ids = (*ids, *completion.token_ids, *range(10, 30))
        done.append(completion)
    return done


async def outcome(model: ChatModel, wanted: ModelRequest) -> Completion | InfraError:
    """A completion, or the one error that is allowed."""
    try:
        return await model.complete(wanted)
    except InfraError as error:
        return error


def heal(pool: ModelPool) -> None:
    """Wait until the pool is whole again."""
    deadline = time.monotonic() + 120
    while pool.stats().ready < 2:
        assert time.monotonic() < deadline, pool.stats()
        time.sleep(0.2)


def test_conversations_are_served_and_stay_together(pool: ModelPool) -> None:
    """Promise 1."""

    async def play() -> None:
        model = pool.source().open()
        assert isinstance(model, ChatModel)
        assert isinstance(model, Scorer)
        talks = await asyncio.gather(*(conversation(model, number, turns=4) for number in range(16)))
        stats = model.router_stats()
        assert stats.sticky == 16 * 3
        assert stats.moved == 0
        if KIND is EngineKind.VLLM:
            assert all(turn.usage.cached_tokens >= 32 for talk in talks for turn in talk[1:])
        again = await model.complete(request(3000, session="talk-3", tokens=12, prompt=request(3).prompt_token_ids or ()))
        assert again.token_ids == talks[3][0].token_ids
        scored = await model.logprobs(request(3).prompt_token_ids or (), again.token_ids)
        assert scored == pytest.approx(again.logprobs, abs=2e-3)
        await model.aclose()

    asyncio.run(play())
    served = [one.health.stats.finished for one in pool.stats().replicas if one.health]
    assert len(served) == 2
    first, second = pool.stats().replicas
    assert first.ready_at is not None
    assert second.started_at is not None
    assert second.started_at >= first.ready_at
    assert pool.stats().failures == ()


def test_text_leaves_out_the_end_of_turn(pool: ModelPool) -> None:
    """Promise 1: ids keep the end-of-turn token, text does not; other special tokens stay readable."""

    async def play() -> None:
        model = pool.source().open()
        hot = [replace(request(n), sampling=Sampling(temperature=2.0, max_tokens=100)) for n in range(24)]
        done = await asyncio.gather(*(model.complete(one) for one in hot))
        ended = [one for one in done if one.finish_reason is FinishReason.STOP]
        assert ended
        assert all(one.token_ids[-1] == 2 and "<|im_end|>" not in one.text for one in ended)
        assert any("<tool_call>" in one.text or "<|im_start|>" in one.text for one in done)
        with pytest.raises(ModelError, match="token ids"):
            await model.complete(replace(request(1), prompt_token_ids=None))
        with pytest.raises(ModelError, match="tiny@zzz"):
            await model.complete(replace(request(1), model_id="tiny@zzz"))

    asyncio.run(play())


def test_cancelled_callers_free_the_engines(pool: ModelPool) -> None:
    """A caller that gives up takes its request out of the engine, across processes.

    Twelve times as many requests as the engines run at once: however fast the machine, most can't have finished by the cancellation, and
    all would have finished by the time the engines are idle, had they run on.
    """

    def finished() -> int:
        return sum(one.health.stats.finished for one in pool.stats().replicas if one.health)

    async def play() -> None:
        model = replace(pool.source(), router=RouterConfig(admission_limit=CANCELLED)).open()
        running = [asyncio.ensure_future(model.complete(request(number, tokens=400))) for number in range(CANCELLED)]
        await asyncio.to_thread(wait_for, lambda: sum(model.router_stats().in_flight.values()) == CANCELLED)
        await asyncio.to_thread(wait_for, lambda: pool.stats().depth > 0)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert model.router_stats().in_flight == dict.fromkeys(model.router_stats().in_flight, 0)

    before = finished()
    asyncio.run(play())
    wait_for(lambda: not pool.stats().depth)
    assert finished() - before < CANCELLED / 2


def test_a_killed_server_is_replaced(pool: ModelPool) -> None:
    """Promise 2: SIGKILL with 64 requests in flight, from this process and from a client in another one."""
    remote = ray.remote(num_cpus=0)(remote_batch).remote(pool.source(), 16)

    async def play() -> list[Completion | InfraError]:
        model = pool.source().open()
        await model.complete(request(0))
        running = [asyncio.ensure_future(outcome(model, request(number, tokens=96))) for number in range(64)]
        await asyncio.sleep(0.15)
        victim = pool.stats().replicas[0].pid
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        done = await asyncio.gather(*running)
        await asyncio.to_thread(heal, pool)
        later = await asyncio.gather(*(model.complete(request(number)) for number in range(32)))
        await asyncio.sleep(1.0)
        later += await asyncio.gather(*(model.complete(request(number)) for number in range(100, 132)))
        assert all(one.token_ids for one in later)
        assert set(model.router_stats().in_flight) == {one.name for one in pool.stats().replicas}
        return list(done)

    done = asyncio.run(play())
    assert len(done) == 64
    assert sum(isinstance(one, Completion) for one in done) >= 32
    assert len(ray.get(remote, timeout=120)) == 16
    failure = pool.stats().failures[-1]
    assert "died" in failure.reason
    assert failure.replica == pool.stats().replicas[0].name
    assert pool.stats().replicas[0].generation == 2


def remote_batch(source: PoolSource, count: int) -> list[str]:
    """Runs in a worker process: opens the source there and plays; infrastructure trouble is an allowed outcome."""

    async def play() -> list[str]:
        model = source.open()
        done = await asyncio.gather(*(outcome(model, request(number, tokens=64)) for number in range(count)))
        return [type(one).__name__ for one in done]

    return asyncio.run(play())


def test_a_frozen_server_is_seen(pool: ModelPool) -> None:
    """Promise 3: SIGSTOP leaves the process alive; only the missing heartbeat tells. Its requests move on."""
    victim = pool.stats().replicas[1].pid
    assert victim is not None

    async def play() -> None:
        model = pool.source().open()
        await model.complete(request(0))
        os.kill(victim, signal.SIGSTOP)
        done = await asyncio.gather(*(outcome(model, request(number)) for number in range(16)))
        assert sum(isinstance(one, Completion) for one in done) >= 8

    asyncio.run(play())
    heal(pool)
    assert "heartbeat" in pool.stats().failures[-1].reason


def test_weights_swap_on_every_replica(pool: ModelPool, folders: tuple[str, str]) -> None:
    """Promise 4: after the swap both replicas give model b's log-probabilities, and the old source is refused."""

    async def probe(source: PoolSource, model_id: str) -> set[tuple[float, ...]]:
        model = source.open()
        greedy = Sampling(temperature=0.0, max_tokens=6)
        wanted = [replace(request(7, session=f"s{n}"), sampling=greedy, model_id=model_id) for n in range(24)]
        done = await asyncio.gather(*(model.complete(one) for one in wanted))
        return {tuple(round(value, 2) for value in one.logprobs) for one in done}

    old_source = pool.source()
    old = asyncio.run(probe(old_source, "tiny@a"))
    source = pool.load_weights(folders[1], model_id="tiny@b")
    new = asyncio.run(probe(source, "tiny@b"))
    assert source.model_id == pool.model_id == "tiny@b"
    assert len(old) == len(new) == 1
    assert old != new
    with pytest.raises(ModelError, match=r"tiny@a.*tiny@b"):
        asyncio.run(probe(old_source, "tiny@a"))
    assert all(one.health and one.health.peak_rss_bytes < 1.5 * 2**30 for one in pool.stats().replicas)


def test_scale_to_zero_ends_the_processes(pool: ModelPool) -> None:
    """A phase without this model keeps nothing alive; its clients get `InfraError`."""
    pool.scale(0)

    async def play() -> None:
        model = replace(pool.source(), wait_s=1.0).open()
        with pytest.raises(InfraError, match="no replica"):
            await model.complete(replace(request(1), model_id=""))

    asyncio.run(play())
    with pytest.raises(ConfigError, match="scales between"):
        pool.scale(3)


def test_a_start_that_fails_says_why(session: None, folders: tuple[str, str], tmp_path: Path) -> None:
    """Promise 5: broken weights end `start` with the root error, and nothing is left running (R10)."""
    broken = Path(make_tiny_model(tmp_path / "broken", seed=3))
    (broken / "model.safetensors").write_bytes(b"not safetensors")
    config = PoolConfig(engine=engine(str(broken), kind=EngineKind.TRANSFORMERS), replicas=1, heartbeat_s=0.1, max_start_failures=1)
    pool = ModelPool(config)
    with pytest.raises(InfraError, match=r"(?is)does not start.*safetensor"):
        pool.start()
    with pytest.raises(ConfigError, match="at least one"):
        ModelPool(PoolConfig(engine=engine(folders[0]), replicas=0))
