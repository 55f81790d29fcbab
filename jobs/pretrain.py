"""Pretrain the embedded model: corpus, training, gates. `python -m jobs.pretrain --work W --out O --seed 0`.

The corpus is a function of its recipe and the code, the weights of corpus, shape, seed and processor type. The gates are those of
`coevo.mini.gates`, fixed before any training. The same command again goes on where it was stopped: finished parts of the corpus are kept,
training resumes from its last checkpoint. What ships is the output for seed 0 with the files in `SHIPPED`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevo.errors import ConfigError, nearest
from coevo.harness.sandbox import shared_pool
from coevo.mini.corpus import CorpusPlan
from coevo.mini.demonstrator import Demonstrator, Habits
from coevo.mini.gates import GATE_INSTANCES, Rates, judge, measure, sharpened
from coevo.mini.harnesses import DemoHarness
from coevo.mini.model import folder_model_id
from coevo.mini.parts import CorpusRecipe, build_parts
from coevo.mini.tokenizer import save_tokenizer
from coevo.models.tokenizer import FolderTokenizer
from coevo.tasks import FAMILIES, load_family

if TYPE_CHECKING:
    from cluster.engine_model import EngineModel

__all__ = ["CORPUS_SEED", "EPISODES", "SHIPPED", "STEPS", "chosen_families", "measure_gates", "measure_teacher", "open_engine"]

CORPUS_SEED = 1
EPISODES = 49_000
STEPS = 6000
TOKENS_PER_BATCH = 4096
SHIPPED = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
"""Files of the output that ship with the package, beside `pretrain.json` and `gates.json`."""


def chosen_families(text: str) -> tuple[str, ...]:
    """`all`, or names with commas. Raises `ConfigError` for an unknown one."""
    names = tuple(FAMILIES) if text == "all" else tuple(text.split(","))
    for name in names:
        if name not in FAMILIES:
            raise ConfigError("unknown task family", seen=name, fix=f"{nearest(name, FAMILIES)}, or all")
    return names


def open_engine(folder: Path) -> EngineModel:
    """The folder's model on vLLM in this process, with a context of 1,024 tokens."""
    from cluster.engine_model import EngineModel
    from cluster.engines.family import EngineConfig

    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
    return EngineModel(EngineConfig(str(folder), folder_model_id(str(folder)), max_model_len=1024, max_num_seqs=64))


def measure_gates(folder: Path, families: tuple[str, ...]) -> dict[str, Any]:
    """Success of the folder's model per family on held-out pretraining instances, with intervals, and the gates' verdict."""
    model = open_engine(folder)
    tokenizer, sandboxes = FolderTokenizer(folder), shared_pool()
    measured = {
        name: asyncio.run(measure(load_family(name), lambda _: model, tokenizer=tokenizer, sandboxes=sandboxes)) for name in families
    }
    asyncio.run(model.aclose())
    return judge(measured)


def measure_teacher(work: Path, families: tuple[str, ...], *, instances: int = GATE_INSTANCES) -> dict[str, Any]:
    """The same for the demonstrator with habits as a model samples them: what pretraining can reach. No engine."""
    save_tokenizer(work / "tokenizer")
    tokenizer, habits = FolderTokenizer(work / "tokenizer"), sharpened(Habits())

    async def of(name: str) -> Rates:
        family = load_family(name)

        def clerk(harness: DemoHarness) -> Demonstrator:
            return Demonstrator(harness, family, habits=habits, seed=CORPUS_SEED)

        return await measure(family, clerk, tokenizer=tokenizer, sandboxes=shared_pool(), instances=instances)

    return judge({name: asyncio.run(of(name)) for name in families})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Pretrain the embedded model and check its gates.")
    parser.add_argument("--work", type=Path, required=True, help="folder of the corpus, shared by seeds")
    parser.add_argument("--out", type=Path, help="folder of the model")
    parser.add_argument("--families", default="all", help="all, or names with commas")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batch order")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--episodes", type=int, default=EPISODES, help="demonstrations in the corpus")
    parser.add_argument("--processes", type=int, default=2, help="processes that build the corpus")
    parser.add_argument("--shape", type=int, nargs=4, default=(128, 4, 4, 384), metavar=("HIDDEN", "LAYERS", "HEADS", "INTERMEDIATE"))
    parser.add_argument("--positions", type=int, default=1024, help="context of the model in tokens")
    parser.add_argument("--dtype", default="auto", choices=("auto", "bfloat16", "float32"), help="arithmetic of training")
    parser.add_argument("--teacher", action="store_true", help="print the demonstrator's own success and stop")
    parser.add_argument("--ship", type=Path, help="also copy the shipped files here, when the gates hold")
    return parser


def _train(chosen: argparse.Namespace, families: tuple[str, ...]) -> None:
    from cluster.engines.precision import compute_dtype
    from cluster.pretrain import PretrainConfig, pretrain
    from cluster.tokenrows import TokenRows

    recipe = CorpusRecipe(families, CORPUS_SEED, CorpusPlan(episodes=chosen.episodes))
    parts = build_parts(
        recipe, chosen.work, processes=chosen.processes, on_part=lambda done, of: print(f"corpus: {done} of {of} parts", flush=True)
    )
    hidden, layers, heads, intermediate = chosen.shape
    config = PretrainConfig(
        steps=chosen.steps,
        seed=chosen.seed,
        tokens_per_batch=TOKENS_PER_BATCH,
        hidden=hidden,
        layers=layers,
        heads=heads,
        intermediate=intermediate,
        positions=chosen.positions,
        dtype=compute_dtype(chosen.dtype, device="cpu"),
    )
    rows = TokenRows.concatenate([TokenRows.load(path) for path in parts])
    print(f"corpus: {len(rows)} rows, {len(rows.ids)} tokens, {rows.target_tokens} targets", flush=True)
    tokenizer, show = chosen.work / "tokenizer", lambda line: print(json.dumps(asdict(line)), flush=True)
    pretrain(config, rows, tokenizer=tokenizer, out=chosen.out, on_line=show)


def main() -> None:
    """Command line."""
    chosen = _parser().parse_args()
    families = chosen_families(chosen.families)
    if chosen.teacher or chosen.out is None:
        print(json.dumps(measure_teacher(chosen.work, families), indent=1))
        return
    _train(chosen, families)
    gates = measure_gates(chosen.out, families)
    print(json.dumps(gates, indent=1), flush=True)
    (chosen.out / "gates.json").write_text(json.dumps(gates, indent=1) + "\n", encoding="utf-8")
    if chosen.ship is not None and not gates["failures"]:
        chosen.ship.mkdir(parents=True, exist_ok=True)
        for name in (*SHIPPED, "pretrain.json", "gates.json"):
            shutil.copyfile(chosen.out / name, chosen.ship / name)


if __name__ == "__main__":
    main()
