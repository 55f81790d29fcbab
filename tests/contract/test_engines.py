"""Every inference engine keeps one contract.

Promises:
 1. Sampled and scored log-probabilities are those of the untempered model: equal to a plain forward pass, whatever the sampling.
 2. A completion ends with the end-of-turn token, or at the token limit, and says which.
 3. The same (prompt, sampling, seed) gives the same tokens, alone and in a crowd.
 4. Concurrent requests all come back, each with its own answer.
 5. An id that is not served is refused by name; an id never changes its weights (R7).
 6. After a swap the new weights answer and score, exactly as a fresh engine on them.
 7. A cancelled request leaves the engine usable; a closed engine fails its callers (R8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.engines.family import Engine, EngineConfig, EngineKind, ServingForm, open_engine
from cluster.tiny import make_tiny_adapter, make_tiny_model
from coevo.chat import FinishReason, Sampling
from coevo.errors import ConfigError, InfraError, ModelError, StoreError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(900)  # a start imports an inference library: seconds on a quiet machine, minutes on a busy one

PROMPTS = [tuple(5 + (7 * row + 3 * column) % 250 for column in range(6 + 9 * row)) for row in range(6)]
GREEDY = Sampling(temperature=0.0, max_tokens=12)
WARM = Sampling(temperature=0.7, top_p=0.9, max_tokens=16)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two tiny models with one tokenizer."""
    root = tmp_path_factory.mktemp("models")
    return make_tiny_model(root / "a", seed=1), make_tiny_model(root / "b", seed=2)


@pytest.fixture(scope="module", params=list(EngineKind), ids=lambda kind: kind.value)
def engine(request: pytest.FixtureRequest, folders: tuple[str, str]) -> Iterator[Engine]:
    """One engine per kind, serving model a."""
    if request.param is EngineKind.VLLM:
        pytest.importorskip("vllm")
    opened = open_engine(config_of(folders[0], request.param))
    yield opened
    opened.close()


def config_of(folder: str, kind: EngineKind, **changes: object) -> EngineConfig:
    """A small float32 setup."""
    settings: dict[str, object] = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 8, "kv_cache_bytes": 64 << 20}
    return EngineConfig(model_path=folder, model_id="tiny@a", kind=kind, **(settings | changes))  # type: ignore[arg-type]


def forward_logprobs(folder: str, prompt: tuple[int, ...], completion: tuple[int, ...]) -> list[float]:
    """The reference: one plain forward pass in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([[*prompt, *completion]])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(prompt) - 1 : -1]
    return [float(row[token]) for row, token in zip(torch.log_softmax(logits.float(), -1), completion, strict=True)]


@pytest.mark.parametrize("sampling", [GREEDY, WARM, Sampling(temperature=1.3, max_tokens=8)], ids=["greedy", "nucleus", "hot"])
def test_logprobs_are_the_models_own(engine: Engine, folders: tuple[str, str], sampling: Sampling) -> None:
    """Promise 1: sampled log-probabilities equal a forward pass, and `score` agrees, also when the prompt is cached."""

    async def play() -> None:
        for seed, prompt in enumerate(PROMPTS):
            drawn = await engine.generate(prompt, sampling, seed=seed, model_id="tiny@a")
            wanted = forward_logprobs(folders[0], prompt, drawn.token_ids)
            assert drawn.logprobs == pytest.approx(wanted, abs=2e-3)
            assert await engine.score(prompt, drawn.token_ids, model_id="tiny@a") == pytest.approx(wanted, abs=2e-3)

    asyncio.run(play())


def test_stop_and_length(engine: Engine, folders: tuple[str, str]) -> None:
    """Promise 2: the stop id is kept in the ids and sets the reason; the limit sets the other."""

    async def play() -> None:
        hot = Sampling(temperature=2.0, max_tokens=24)
        drawn = await asyncio.gather(*(engine.generate(PROMPTS[1], hot, seed=seed) for seed in range(64)))
        assert {one.finish_reason for one in drawn} == {FinishReason.STOP, FinishReason.LENGTH}
        for one in drawn:
            assert (one.token_ids[-1] == 2) == (one.finish_reason is FinishReason.STOP)
            assert 2 not in one.token_ids[:-1]
            assert len(one.token_ids) == len(one.logprobs)
            assert len(one.token_ids) == 24 or one.finish_reason is FinishReason.STOP
        long = await engine.generate(tuple([9] * 250), Sampling(temperature=0.0, max_tokens=99), seed=0)
        assert len(long.token_ids) <= 6

    asyncio.run(play())


def test_seed_decides_the_completion(engine: Engine) -> None:
    """Promises 3 and 4: alone and among 40 others, a seed gives its own tokens, and different seeds differ."""

    async def play() -> None:
        alone = [await engine.generate(prompt, WARM, seed=11) for prompt in PROMPTS]
        crowd = await asyncio.gather(*(engine.generate(PROMPTS[n % 6], WARM, seed=11 if n < 6 else n) for n in range(46)))
        assert [one.token_ids for one in crowd[:6]] == [one.token_ids for one in alone]
        assert len({one.token_ids for one in crowd}) > 20
        assert engine.stats().depth == 0

    asyncio.run(play())


def test_what_can_not_be_served_is_refused(engine: Engine) -> None:
    """Promise 5: wrong id, too long, empty: a `ModelError` of this request only."""

    async def play() -> None:
        with pytest.raises(ModelError, match=r"tiny@other.*tiny@a"):
            await engine.generate(PROMPTS[0], GREEDY, seed=0, model_id="tiny@other")
        with pytest.raises(ModelError, match=r"tiny@other.*tiny@a"):
            await engine.score(PROMPTS[0], (5, 6), model_id="tiny@other")
        with pytest.raises(ModelError):
            await engine.generate(tuple([9] * 256), GREEDY, seed=0)
        with pytest.raises(ModelError):
            await engine.generate((), GREEDY, seed=0)
        with pytest.raises(ModelError):
            await engine.score(tuple([9] * 250), tuple([9] * 20))
        assert (await engine.generate(PROMPTS[0], GREEDY, seed=0)).token_ids

    asyncio.run(play())


def test_cancelled_requests_are_dropped(engine: Engine) -> None:
    """Promise 7: after 30 cancelled callers the engine is empty and answers."""

    async def play() -> None:
        long = Sampling(temperature=1.0, max_tokens=200)
        tasks = [asyncio.ensure_future(engine.generate(PROMPTS[0], long, seed=seed)) for seed in range(30)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        before = engine.stats().completion_tokens
        await engine.generate(PROMPTS[0], GREEDY, seed=0)
        assert engine.stats().depth == 0
        assert engine.stats().completion_tokens - before < 30 * 200 / 4  # had they run on, they would have sampled most of this

    asyncio.run(play())


def test_weights_swap(engine: Engine, folders: tuple[str, str]) -> None:
    """Promises 5 and 6: the swap changes the answers to model b's, and nothing else may use a known id."""

    async def play() -> None:
        old = [await engine.generate(prompt, GREEDY, seed=0) for prompt in PROMPTS]
        with pytest.raises(StoreError, match="never changes"):
            await engine.load_weights(folders[1], model_id="tiny@a")
        with pytest.raises(ModelError):
            await engine.load_adapter(folders[1], model_id="tiny@lora")
        await engine.load_weights(folders[1], model_id="tiny@b")
        for before, prompt in zip(old, PROMPTS, strict=True):
            now = await engine.generate(prompt, GREEDY, seed=0, model_id="tiny@b")
            assert now.logprobs == pytest.approx(forward_logprobs(folders[1], prompt, now.token_ids), abs=2e-3)
            assert await engine.score(prompt, before.token_ids) == pytest.approx(
                forward_logprobs(folders[1], prompt, before.token_ids), abs=2e-3
            )
        with pytest.raises(ModelError, match=r"tiny@a.*tiny@b"):
            await engine.generate(PROMPTS[0], GREEDY, seed=0, model_id="tiny@a")
        await engine.load_weights(folders[0], model_id="tiny@a")
        again = [await engine.generate(prompt, GREEDY, seed=0) for prompt in PROMPTS]
        assert [one.token_ids for one in again] == [one.token_ids for one in old]

    asyncio.run(play())


def test_adapters_and_base_share_a_batch(folders: tuple[str, str], tmp_path: Path) -> None:
    """Promises 1 and 5 in the LoRA form: base rows beside adapter rows keep the base's weights (a known fault of LoRA on CPU)."""
    pytest.importorskip("vllm")
    pytest.importorskip("peft")
    adapters = {f"tiny@{name}": make_tiny_adapter(folders[0], tmp_path / name, seed=seed) for seed, name in enumerate("xy")}
    engine = open_engine(config_of(folders[0], EngineKind.VLLM, serving_form=ServingForm.LORA, max_adapters=2))

    async def play() -> None:
        ids = ["tiny@a", *adapters]
        base = await engine.generate(PROMPTS[2], GREEDY, seed=0)
        for model_id, folder in adapters.items():
            await engine.load_adapter(folder, model_id=model_id)
        alone = {name: await engine.generate(PROMPTS[2], GREEDY, seed=0, model_id=name) for name in ids}
        assert len({one.token_ids for one in alone.values()}) == 3
        assert alone["tiny@a"].token_ids == base.token_ids
        scored = [engine.score(PROMPTS[2], base.token_ids, model_id=name) for name in ids]
        mixed = await asyncio.gather(*(engine.generate(PROMPTS[2], GREEDY, seed=0, model_id=name) for name in ids * 3), *scored)
        for name, one in zip(ids * 3, mixed[:9], strict=True):
            assert one.token_ids == alone[name].token_ids
        assert mixed[9] == pytest.approx(base.logprobs, abs=2e-3)
        assert mixed[10] != pytest.approx(base.logprobs, abs=0.05)
        with pytest.raises(StoreError, match="never changes"):
            await engine.load_adapter(adapters["tiny@y"], model_id="tiny@x")
        with pytest.raises(ModelError, match="slots"):
            await engine.load_adapter(make_tiny_adapter(folders[0], tmp_path / "z", seed=9), model_id="tiny@z")

    try:
        asyncio.run(play())
    finally:
        engine.close()


def test_closed_engine_fails_its_callers(folders: tuple[str, str]) -> None:
    """Promise 7: a caller waiting at close, and one after it, get `InfraError`."""
    engine = open_engine(config_of(folders[0], EngineKind.TRANSFORMERS))

    async def play() -> None:
        waiting = asyncio.ensure_future(engine.generate(PROMPTS[0], Sampling(temperature=0.0, max_tokens=240), seed=0))
        await asyncio.sleep(0)
        engine.close()
        with pytest.raises(InfraError):
            await waiting
        with pytest.raises(InfraError):
            await engine.generate(PROMPTS[0], GREEDY, seed=0)

    asyncio.run(play())


def test_bad_configurations_are_refused_before_start(folders: tuple[str, str], tmp_path: Path) -> None:
    """A folder without a model, and adapters on an engine that can't hold them, are `ConfigError`s that name the value."""
    with pytest.raises(ConfigError, match=r"config.json"):
        open_engine(config_of(str(tmp_path), EngineKind.VLLM))
    with pytest.raises(ConfigError, match="merged"):
        open_engine(config_of(folders[0], EngineKind.TRANSFORMERS, serving_form=ServingForm.LORA))
