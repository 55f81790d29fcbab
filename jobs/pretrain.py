"""Pretrain the embedded model: corpus, training, gates. `python -m jobs.pretrain --out FOLDER --seed 0`.

The corpus is a function of its seed and the code, the weights of corpus, seed and processor type. The gates are those of
`coevo.mini.gates`, fixed before any training. The shipped folder is the output for seed 0 with the files in `SHIPPED`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from coevo.chat import Sampling
from coevo.episode import Agent, play
from coevo.errors import InfraError
from coevo.evaluate.stats import wilson
from coevo.formats.mini import MiniFormat
from coevo.harness.sandbox import shared_pool
from coevo.mini.corpus import CorpusPlan, build_corpus, pack
from coevo.mini.gates import GATE_INSTANCES, GATE_SEED_FIRST, check_gates
from coevo.mini.harnesses import DemoHarness, base_demo, hand_made
from coevo.mini.model import folder_model_id
from coevo.mini.tokenizer import save_tokenizer
from coevo.models.tokenizer import FolderTokenizer
from coevo.ports import ChatModel
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream

__all__ = ["CORPUS_SEED", "EPISODES", "SHIPPED", "STEPS", "measure_gates"]

CORPUS_SEED = 1
EPISODES = 24_000
STEPS = 3200
TOKENS_PER_BATCH = 4096
SHIPPED = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
"""Files of the output that ship with the package, beside `pretrain.json`."""


def _part(arguments: tuple[int, int, str]) -> str:
    """One process's share of the corpus, saved as rows; returns the path."""
    first, episodes, folder = arguments
    path = Path(folder) / f"rows-{first:06d}.npz"
    if not path.exists():
        tokenizer = FolderTokenizer(Path(folder) / "tokenizer")
        rows = build_corpus(
            replace(CorpusPlan(), episodes=episodes),
            family=load_family("payroll"),
            tokenizer=tokenizer,
            sandboxes=shared_pool(),
            seed=CORPUS_SEED,
            first=first,
        )
        fresh = path.with_suffix(".new.npz")
        np.savez(fresh, **pack(rows))  # type: ignore[arg-type]
        fresh.rename(path)
    return str(path)


def corpus(folder: Path, *, episodes: int, processes: int) -> list[str]:
    """Build the corpus with some processes; paths of its parts, in order."""
    save_tokenizer(folder / "tokenizer")
    share = -(-episodes // processes)
    parts = [(first, min(share, episodes - first), str(folder)) for first in range(0, episodes, share)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_part, parts))


async def _success(model: ChatModel, harness: DemoHarness, tokenizer: FolderTokenizer, seeds: Sequence[int]) -> int:
    agent = Agent(model, harness.bundle, MiniFormat(), tokenizer, 1024, Sampling(0.7, 1.0, 96))
    family = load_family("payroll")
    instances = [family.instance(Stream.PRETRAIN, seed, Size.MINI, diversity=3) for seed in seeds]
    episodes = await asyncio.gather(*(play(one, family=family, agent=agent, sandboxes=shared_pool()) for one in instances))
    ungraded = [episode for episode in episodes if episode.grade is None]
    if ungraded:
        raise InfraError("gate episodes met infrastructure trouble", seen=ungraded[0].error[-1500:], fix="mend it and measure again")
    return sum(episode.success for episode in episodes)


def measure_gates(folder: Path) -> dict[str, Any]:
    """Success under the base and the hand-made harness on held-out pretraining instances, with intervals, and the gates' verdict."""
    from cluster.engine_model import EngineModel
    from cluster.engines.family import EngineConfig

    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
    model = EngineModel(EngineConfig(str(folder), folder_model_id(str(folder)), max_model_len=1024, max_num_seqs=64))
    tokenizer = FolderTokenizer(folder)
    seeds = range(GATE_SEED_FIRST, GATE_SEED_FIRST + GATE_INSTANCES)
    facts: dict[str, Any] = {"instances": GATE_INSTANCES}
    for name, harness in (("base", base_demo()), ("hand_made", hand_made())):
        won = asyncio.run(_success(model, harness, tokenizer, seeds))
        facts[name] = {"success": won / GATE_INSTANCES, "interval": list(wilson(won, GATE_INSTANCES))[:2]}
    asyncio.run(model.aclose())
    facts["failures"] = check_gates(facts["base"]["success"], facts["hand_made"]["success"])
    return facts


def main() -> None:
    """Command line."""
    from cluster.pretrain import PretrainConfig, pretrain
    from cluster.tokenrows import TokenRows

    parser = argparse.ArgumentParser(description="Pretrain the embedded model and check its gates.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--work", type=Path, required=True, help="folder of the corpus, shared by seeds")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batch order")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--processes", type=int, default=2, help="processes that build the corpus")
    parser.add_argument("--ship", type=Path, help="also copy the shipped files here, when the gates hold")
    chosen = parser.parse_args()
    parts = corpus(chosen.work, episodes=chosen.episodes, processes=chosen.processes)
    rows = TokenRows.concatenate([TokenRows.load(path) for path in parts])
    config = PretrainConfig(steps=chosen.steps, seed=chosen.seed, tokens_per_batch=TOKENS_PER_BATCH)
    pretrain(
        config, rows, tokenizer=chosen.work / "tokenizer", out=chosen.out, on_line=lambda line: print(json.dumps(asdict(line)), flush=True)
    )
    gates = measure_gates(chosen.out)
    print(json.dumps(gates, indent=1), flush=True)
    (chosen.out / "gates.json").write_text(json.dumps(gates, indent=1) + "\n", encoding="utf-8")
    if chosen.ship is not None and not gates["failures"]:
        chosen.ship.mkdir(parents=True, exist_ok=True)
        for name in (*SHIPPED, "pretrain.json", "gates.json"):
            shutil.copyfile(chosen.out / name, chosen.ship / name)


if __name__ == "__main__":
    main()
