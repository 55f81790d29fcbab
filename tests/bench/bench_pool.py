"""Tokens per second through a pool, against the same engine used directly in this process, on the same prompts.

Run: python tests/bench/bench_pool.py [--model FOLDER] [--kind vllm|transformers] [--requests 64] [--tokens 48] [--rounds 5]

The sides take turns within one run, so that a busy machine slows all of them; the figures to quote are medians of per-round ratios: of
tokens per wall-clock second, and of tokens per CPU second of client and servers together, which other load hardly moves.
Sides: `library` (vLLM's own LLM.generate on one list: no thread, no asyncio; vllm only), `engine` (ours, in this process), `pool1` (one
replica behind Ray) and `pool2` (two replicas).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil

from cluster.engines.family import Engine, EngineConfig, EngineKind, open_engine
from cluster.pool_model import PoolModel
from cluster.servers import ModelPool, PoolConfig
from cluster.session import QUIET_ENVIRONMENT, SessionConfig, open_session
from cluster.tiny import make_tiny_model
from coevo.chat import Message, ModelRequest, Role, Sampling


class Pass(NamedTuple):
    """One side's turn: completion tokens, seconds of wall clock, CPU seconds of this process and of the server processes."""

    tokens: int
    wall_s: float
    cpu_s: float
    server_cpu_s: float


def prompts(count: int, length: int) -> list[tuple[int, ...]]:
    """Prompts that share no prefix."""
    return [tuple(5 + (31 * row + 7 * column + row * column) % 250 for column in range(length)) for row in range(count)]


def timed(work: Callable[[], int], pids: list[int]) -> Pass:
    """Run one side; `pids` are the processes that serve it."""
    servers, wall, cpu = server_cpu_s(pids), time.perf_counter(), time.process_time()
    tokens = work()
    return Pass(tokens, time.perf_counter() - wall, time.process_time() - cpu, server_cpu_s(pids) - servers)


def server_cpu_s(pids: list[int]) -> float:
    """User and system CPU seconds so far."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system for one in times)


def pids_of(pool: ModelPool) -> list[int]:
    """Processes of a pool."""
    return [one.pid for one in pool.stats().replicas if one.pid is not None]


def through_engine(engine: Engine, rows: list[tuple[int, ...]], sampling: Sampling, salt: int) -> int:
    """All prompts at once into our engine."""

    async def play() -> int:
        done = await asyncio.gather(*(engine.generate((5 + salt, *row), sampling, seed=salt) for row in rows))
        return sum(len(one.token_ids) for one in done)

    return asyncio.run(play())


def through_pool(loop: asyncio.AbstractEventLoop, model: PoolModel, rows: list[tuple[int, ...]], sampling: Sampling, salt: int) -> int:
    """All prompts at once through a pool."""

    async def play() -> int:
        message = (Message(Role.USER, "x"),)
        requests = [ModelRequest(message, (), sampling, f"s{n}", salt, prompt_token_ids=(5 + salt, *row)) for n, row in enumerate(rows)]
        done = await asyncio.gather(*(model.complete(one) for one in requests))
        return sum(len(one.token_ids) for one in done)

    return loop.run_until_complete(play())


def library_side(config: EngineConfig) -> Callable[[list[tuple[int, ...]], Sampling, int], int]:
    """vLLM alone, with the same arguments."""
    from vllm import LLM, SamplingParams

    from cluster.engines.precision import compute_dtype
    from cluster.engines.vllm import engine_arguments

    llm: Any = LLM(**engine_arguments(config, on_cpu=True, dtype=compute_dtype(config.dtype, device="cpu")))

    def run(rows: list[tuple[int, ...]], sampling: Sampling, salt: int) -> int:
        params = SamplingParams(
            temperature=sampling.temperature, max_tokens=sampling.max_tokens, seed=salt, logprobs=0, detokenize=False, stop_token_ids=[2]
        )
        inputs = [{"prompt_token_ids": [5 + salt, *row]} for row in rows]
        return sum(len(one.outputs[0].token_ids) for one in llm.generate(inputs, params, use_tqdm=False))

    return run


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description="Throughput of a model pool as ratios against the engine used directly.")
    parser.add_argument("--model", default="", help="model folder; a random tiny one when empty")
    parser.add_argument("--kind", default="vllm", choices=[kind.value for kind in EngineKind])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    """Alternate the sides, print one JSON line."""
    args = parse()
    os.environ.update(QUIET_ENVIRONMENT)
    with ExitStack() as stack:
        folder = args.model or make_tiny_model(stack.enter_context(tempfile.TemporaryDirectory()), hidden=128, layers=4)
        config = EngineConfig(folder, "bench@model", kind=EngineKind(args.kind), max_model_len=512, max_num_seqs=32)
        rows, sampling = prompts(args.requests, args.prompt), Sampling(temperature=1.0, max_tokens=args.tokens)
        sides: dict[str, Callable[[int], int]] = {}
        if config.kind is EngineKind.VLLM:
            library = library_side(config)
            sides["library"] = lambda salt: library(rows, sampling, salt)
        engine = open_engine(config)
        stack.callback(engine.close)
        sides["engine"] = lambda salt: through_engine(engine, rows, sampling, salt)
        stack.enter_context(open_session(SessionConfig()))
        one = stack.enter_context(ModelPool(PoolConfig(engine=config, replicas=1)))
        two = stack.enter_context(ModelPool(PoolConfig(engine=config, replicas=2)))
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        models = {"pool1": one.source().open(), "pool2": two.source().open()}
        sides["pool1"] = lambda salt: through_pool(loop, models["pool1"], rows, sampling, salt)
        sides["pool2"] = lambda salt: through_pool(loop, models["pool2"], rows, sampling, salt)
        pids = {"pool1": pids_of(one), "pool2": pids_of(two)}
        for side in sides.values():
            side(0)
        passes: dict[str, list[Pass]] = {name: [] for name in sides}
        for salt in range(1, args.rounds + 1):
            for name, side in sides.items():
                passes[name].append(timed(lambda side=side, salt=salt: side(salt), pids.get(name, [])))  # type: ignore[misc]
    print(json.dumps(report(passes, args.requests), indent=1))


def report(passes: dict[str, list[Pass]], requests: int) -> dict[str, Any]:
    """Medians of tokens/s and of [smallest, median, largest] per-round ratio to the engine; CPU milliseconds per request by process."""

    def ratios(rate: Callable[[Pass], float]) -> dict[str, list[float]]:
        return {name: spread([rate(a) / rate(b) for a, b in zip(turns, passes["engine"], strict=True)]) for name, turns in passes.items()}

    def cpu_ms(part: Callable[[Pass], float]) -> dict[str, float]:
        return {name: round(1000 * statistics.median(part(one) for one in turns) / requests, 3) for name, turns in passes.items()}

    return {
        "load": os.getloadavg(),
        "tokens_per_s": {name: round(statistics.median(one.tokens / one.wall_s for one in turns), 1) for name, turns in passes.items()},
        "wall_ratio_to_engine": ratios(lambda one: one.tokens / one.wall_s),
        "cpu_ratio_to_engine": ratios(lambda one: one.tokens / (one.cpu_s + one.server_cpu_s)),
        "this_process_cpu_ms_per_request": cpu_ms(lambda one: one.cpu_s),
        "server_cpu_ms_per_request": cpu_ms(lambda one: one.server_cpu_s),
    }


def spread(values: list[float]) -> list[float]:
    """Smallest, median, largest."""
    return [round(min(values), 3), round(statistics.median(values), 3), round(max(values), 3)]


if __name__ == "__main__":
    main()
