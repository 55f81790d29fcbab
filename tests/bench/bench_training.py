"""Training tokens per second, against a plain TRL script on the same rows in the same run, and what packing gains.

Run: python tests/bench/bench_training.py [--base FOLDER] [--rows 256] [--longest 600] [--global-batch 8] [--micro-batch 4] [--rounds 3]
     [--method lora|full]

Sides: `trl` (what a user would write: `datasets` reads the exported Parquet, `SFTTrainer` trains it), `ours` (`RayLoraTrainer` in one
process, from the store, with its counting and its curve), `packed` (ours with `train.packing`). Same base, rows, LoRA, batch, learning
rate, one thread; each side in a process of its own; sides take turns, so that a busy machine slows all of them. Tokens are those of the
rows, padding not counted; seconds run from the first step to the last, start-up not counted. The figures to quote are medians of per-round
ratios. Gradient checkpointing is off on all sides: TRL's default of on would make its script slower where memory is no question.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from coevo.config import TrainConfig  # noqa: E402
from coevo.dataset.export import SUPERVISED, supervised_rows  # noqa: E402
from coevo.mini.model import mini_path  # noqa: E402
from coevo.ports import TrainingJob  # noqa: E402
from coevo.records import LossSpan, PromptOrigin, TrainingRow  # noqa: E402
from coevo.store.local import LocalSource  # noqa: E402
from coevo.store.tables import arrow_schema, decode_records, encode_records, encode_rows, table_of  # noqa: E402

SIDES = ("trl", "ours", "packed")


def rows(count: int, *, longest: int, vocabulary: int) -> list[TrainingRow]:
    """Prompts of log-uniform length up to `longest`, turns of 12 to 40 tokens: agents' rows are uneven."""
    draw = random.Random(0)
    out = []
    for number in range(count):
        length = round(40 * (longest / 40) ** draw.random())
        prompt = tuple(draw.randrange(vocabulary) for _ in range(length))
        turn = tuple(draw.randrange(vocabulary) for _ in range(draw.randrange(12, 41)))
        span = LossSpan(start=length, stop=length + len(turn))
        out.append(
            TrainingRow(
                arm="correction",
                prompt_token_ids=prompt,
                prompt_origin=PromptOrigin.SAMPLED,
                completion_token_ids=turn,
                loss_span=span,
                episode_id=f"{number:064x}",
                turn=0,
                task_key="k",
                source="rewritten_turn",
            )
        )
    return out


def plain_trl(folder: Path, base: str, config: TrainConfig) -> dict[str, float]:
    """A script as TRL's documentation has it, with a clock in a callback."""
    import torch
    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    from cluster.lora_targets import targets_for

    class Clock(TrainerCallback):  # type: ignore[misc]
        seconds = 0.0

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self.began = time.monotonic()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.seconds = time.monotonic() - self.began

    torch.set_num_threads(1)
    clock = Clock()
    kind = json.loads((Path(base) / "config.json").read_text())["model_type"]
    trainer = SFTTrainer(
        model=base,
        train_dataset=load_dataset("parquet", data_files=str(folder / "sft.parquet"), split="train", cache_dir=str(folder / "cache")),
        args=SFTConfig(
            output_dir=str(folder / "trl"),
            num_train_epochs=config.epochs,
            per_device_train_batch_size=config.micro_batch or config.global_batch,
            gradient_accumulation_steps=config.global_batch // (config.micro_batch or config.global_batch),
            learning_rate=config.learning_rate,
            max_length=None,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            model_init_kwargs={"dtype": "float32"},
        ),
        peft_config=LoraConfig(
            r=config.rank, lora_alpha=config.lora_alpha, target_modules=list(targets_for(kind).modules), task_type="CAUSAL_LM"
        )
        if config.method == "lora"
        else None,
        callbacks=[clock],
    )
    trainer.train()
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    return {"seconds": clock.seconds, "loss_last": losses[-1]}


def ours(folder: Path, base: str, config: TrainConfig, *, packing: bool) -> dict[str, float]:
    """Our trainer; `seconds` are its own count of the same span."""
    from cluster.training import RayLoraTrainer

    settings = config.model_copy(update={"packing": packing}).model_dump(mode="json")
    output = f"out/{time.time_ns()}"
    job = TrainingJob("base", base, "correction", "rows.parquet", "d", 0, output, settings)
    adapter = RayLoraTrainer(LocalSource(str(folder / "store")), str(folder / "scratch"), in_process=True).train(job)
    return {"seconds": adapter.metrics["seconds"], "loss_last": adapter.metrics["loss_last"]}


def child(side: str, folder: Path, base: str, config: TrainConfig) -> None:
    """One side, in this process; its result is the last line."""
    result = plain_trl(folder, base, config) if side == "trl" else ours(folder, base, config, packing=side == "packed")
    print(json.dumps(result))


def measured(side: str, arguments: Sequence[str], folder: Path) -> dict[str, float]:
    """One side in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RAY_AUTH_MODE": "disabled"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [sys.executable, __file__, *arguments, "--side", side, "--folder", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def prepare(folder: Path, count: int, longest: int, base: str) -> int:
    """The same rows for all sides; returns their tokens."""
    vocabulary = json.loads((Path(base) / "config.json").read_text())["vocab_size"]
    made = rows(count, longest=longest, vocabulary=vocabulary)
    data = encode_records(made, table_of(TrainingRow))
    LocalSource(str(folder / "store")).open().put_if_absent("rows.parquet", data)
    (folder / "sft.parquet").write_bytes(encode_rows(supervised_rows(list(decode_records(data, TrainingRow))), arrow_schema(SUPERVISED)))
    return sum(len(row.prompt_token_ids) + len(row.completion_token_ids) for row in made)


def main() -> None:
    """Take turns and print tokens per second, ratios and their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=str(mini_path()), help="Hugging Face folder; the embedded model by default")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--longest", type=int, default=600, help="longest prompt in tokens")
    parser.add_argument("--global-batch", type=int, default=8, help="rows of one optimizer step")
    parser.add_argument("--micro-batch", type=int, default=4, help="rows of one forward pass; a worker of the quickstart has four")
    parser.add_argument("--method", choices=("lora", "full"), default="lora")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    config = TrainConfig(
        method=given.method,
        epochs=1,
        global_batch=given.global_batch,
        micro_batch=given.micro_batch,
        max_length=given.longest + 64,
        workers=1,
        zero_stage=0,
        learning_rate=1e-4,
    )
    if given.side:
        child(given.side, given.folder, given.base, config)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = prepare(folder, given.rows, given.longest, given.base)
        batches = f"batches of {given.global_batch} in passes of {given.micro_batch}"
        print(f"{given.rows} rows, {tokens} tokens, {batches}, {given.method}, {given.rounds} rounds")
        rates: dict[str, list[float]] = {side: [] for side in SIDES}
        for number in range(given.rounds):
            order = SIDES[number % len(SIDES) :] + SIDES[: number % len(SIDES)]
            for side in order:
                result = measured(side, sys.argv[1:], folder)
                rates[side].append(tokens / result["seconds"])
                print(f"round {number} {side}: {rates[side][-1]:.0f} tokens/s, last loss {result['loss_last']:.4f}", flush=True)
    for name, side, other in (("ours / trl", "ours", "trl"), ("packed / trl", "packed", "trl"), ("packed / ours", "packed", "ours")):
        ratios = [one / two for one, two in zip(rates[side], rates[other], strict=True)]
        print(f"{name}: {statistics.median(ratios):.2f} (rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
