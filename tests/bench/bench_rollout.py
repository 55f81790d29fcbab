"""Tokens per second of whole rollouts, against the raw engine on the very same prompts.

Run: python tests/bench/bench_rollout.py [--episodes 300] [--replicas 1] [--rounds 3]

Each round plays fresh instances of the embedded default through Ray, pool, executor, harness, world and store (a temporary folder), and
then gives the prompts of all those turns to vLLM's own `LLM.generate` in this process, same arguments, one replica's worth of engine,
turn by turn (all first turns, all second turns, ...), each with the length that the episode's completion had. That is the most that an
engine can be fed: every turn of a wave is there at once, and nothing waits for a tool. The figure to quote is the median of per-round
ratios of completion tokens per second of wall clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cluster.dispatch import ActorOptions
from cluster.engines.family import EngineConfig
from cluster.executor import ActorExecutor
from cluster.servers import ModelPool, PoolConfig
from cluster.session import QUIET_ENVIRONMENT, SessionConfig, open_session
from coevo.chat import Sampling
from coevo.fanout import FanoutPolicy
from coevo.harness.bundle import HarnessBundle
from coevo.mini.model import folder_model_id, mini_path
from coevo.records import Episode
from coevo.rollout import AgentSource, RolloutStage, draw_items
from coevo.store import LocalSource
from coevo.store.episodes import EpisodeStore
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream

SAMPLING = Sampling(0.7, 1.0, 96)


class Side(NamedTuple):
    """Completion tokens and seconds of wall clock."""

    tokens: int
    wall_s: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.wall_s


class Turn(NamedTuple):
    """One turn of an episode: prompt ids, and how many tokens the model answered."""

    prompt: tuple[int, ...]
    tokens: int


def waves(episodes: Sequence[Episode]) -> list[list[Turn]]:
    """The turns of all episodes by their number."""
    out: list[list[Turn]] = []
    for number in count():
        wave = [
            Turn(tuple(one.prompt_token_ids(number)), len(one.turns[number].completion_token_ids))
            for one in episodes
            if number < len(one.turns)
        ]
        if not wave:
            return out
        out.append(wave)
    return out


def raw(llm: Any, episodes: Sequence[Episode], salt: int) -> Side:
    """The same prompts and lengths through the library alone, its prefix cache empty at the start as the pool's was."""
    from vllm import SamplingParams

    rounds = waves(episodes)
    llm.reset_prefix_cache()
    started, tokens = time.perf_counter(), 0
    for wave in rounds:
        params = [
            SamplingParams(
                temperature=SAMPLING.temperature, max_tokens=turn.tokens, ignore_eos=True, seed=salt, logprobs=0, detokenize=False
            )
            for turn in wave
        ]
        done = llm.generate([{"prompt_token_ids": list(turn.prompt)} for turn in wave], params, use_tqdm=False)
        tokens += sum(len(one.outputs[0].token_ids) for one in done)
    return Side(tokens, time.perf_counter() - started)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description="Rollout throughput as a ratio to the raw engine on the same prompts.")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=96)
    return parser.parse_args()


def main() -> None:
    """Alternate the sides, print one JSON line."""
    args = parse()
    os.environ.update(QUIET_ENVIRONMENT)
    from vllm import LLM

    from cluster.engines.precision import compute_dtype
    from cluster.engines.vllm import engine_arguments

    config = EngineConfig(
        str(mini_path()), folder_model_id(str(mini_path())), max_model_len=1024, max_num_seqs=48, kv_cache_bytes=192 << 20
    )
    llm: Any = LLM(**engine_arguments(config, on_cpu=True, dtype=compute_dtype(config.dtype, device="cpu")))
    family = load_family("payroll")
    bundle = HarnessBundle.load(family.base_harness(Size.MINI))
    sides: list[tuple[Side, Side]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        open_session(SessionConfig(num_cpus=8)),
        ModelPool(PoolConfig(engine=config, replicas=args.replicas)) as pool,
    ):
        executor = ActorExecutor(FanoutPolicy(concurrency=args.concurrency), ActorOptions(actors=1))
        agent = AgentSource("payroll", pool.source(), bundle, "mini", str(mini_path()), 1024, SAMPLING)
        for number in range(args.rounds + 1):
            store = LocalSource(f"{folder}/{number}")
            seeds = range(number * args.episodes, (number + 1) * args.episodes)
            items = draw_items(family, Stream.PRETRAIN, Size.MINI, seeds, diversity=1)
            started = time.perf_counter()
            report = executor.map(RolloutStage(agent, store, "bench"), items)
            wall_s = time.perf_counter() - started
            kept = EpisodeStore(store.open(), "bench")
            episodes = [kept.get(outcome.note["id"]) for outcome in report.outcomes if outcome.note]
            played = Side(sum(one.usage.completion_tokens for one in episodes), wall_s)
            pair = (played, raw(llm, episodes, number))
            if number:  # round 0 warms both sides
                sides.append(pair)
        executor.close()
    ratios = sorted(played.rate / alone.rate for played, alone in sides)
    print(
        json.dumps(
            {
                "load": os.getloadavg(),
                "episodes_per_s": [round(args.episodes / played.wall_s, 1) for played, _ in sides],
                "rollout_tokens_per_s": [round(played.rate) for played, _ in sides],
                "raw_engine_tokens_per_s": [round(alone.rate) for _, alone in sides],
                "ratio": {"min": round(ratios[0], 3), "median": round(statistics.median(ratios), 3), "max": round(ratios[-1], 3)},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
