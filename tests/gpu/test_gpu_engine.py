"""The engine contract's core on a CUDA device: the same code as on CPU, other settings. Skipped with the reason where there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster.engines.family import EngineConfig, open_engine
from cluster.tiny import make_tiny_model
from coevo.chat import Sampling


def test_a_gpu_engine_samples_what_it_scores(tmp_path: Path) -> None:
    """Greedy tokens come back, and their sampled log-probabilities agree with teacher-forced scoring."""
    folder = make_tiny_model(tmp_path / "model", seed=3)
    engine = open_engine(EngineConfig(folder, "tiny", kv_cache_bytes=None, gpu_memory_utilization=0.3, max_model_len=512))
    prompt = tuple(range(5, 40))

    async def both() -> tuple[tuple[float, ...], tuple[float, ...]]:
        raw = await engine.generate(prompt, Sampling(0.0, 1.0, 12), seed=1)
        return raw.logprobs, await engine.score(prompt, raw.token_ids)

    try:
        sampled, scored = asyncio.run(both())
    finally:
        engine.close()
    assert len(sampled) == len(scored) > 0
    assert max(abs(a - b) for a, b in zip(sampled, scored, strict=True)) < 0.1
