"""Two faults of vLLM 0.32 on CPU that ended engines here, as regression locks.

1. bf16 attention on a processor with AMX: a short prompt before anything asked for the tile registers ended the process with SIGILL.
2. Requests with their own seeds whose prompts are cut over two steps: "CPU Generator does not use offset" killed the engine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.tiny import make_tiny_model

pytest.importorskip("vllm")

PROGRAM = """
import asyncio, sys
from cluster.engines.family import EngineConfig, open_engine
from coevo.chat import Sampling

async def main():
    engine = open_engine(EngineConfig(sys.argv[1], "tiny", max_model_len=512, max_num_seqs=16))
    first = await engine.generate((5, 6, 7), Sampling(0.7, 1.0, 4), seed=1)
    prompts = [tuple(5 + (7 * row + 3 * place) % 200 for place in range(300)) for row in range(16)]
    many = await asyncio.gather(*(engine.generate(one, Sampling(0.7, 1.0, 4), seed=row) for row, one in enumerate(prompts)))
    engine.close()
    print("answers", len(first.token_ids) > 0, sum(len(one.token_ids) > 0 for one in many))

asyncio.run(main())
"""


@pytest.mark.timeout(300)
def test_short_and_crowded_bf16_prompts_leave_the_engine_alive(tmp_path: Path) -> None:
    """Both faults end the process or the engine, so they are provoked in a process of their own."""
    folder = make_tiny_model(tmp_path / "model", seed=4)
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, timeout=280, env=environment, check=False
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-1500:]}"
    assert "answers True 16" in done.stdout
