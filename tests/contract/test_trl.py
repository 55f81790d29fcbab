"""The dataset's Parquet as the outside world reads it: `datasets` loads it, TRL's trainers take it, both unchanged.

1. `<arm>-sft` goes into `SFTTrainer` as it is; what carries loss there is the turn, decoded, and no row is dropped.
2. `preferences` goes into `DPOTrainer` as it is; prompt, rejected and chosen turn come out token by token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.tiny import make_tiny_model
from coevo.config import Arm, DatasetConfig
from coevo.dataset.arms import Material, arm_rows
from coevo.dataset.export import IGNORED, PREFERENCES, SUPERVISED, preference_rows, supervised_rows
from coevo.formats.hermes import HermesFormat
from coevo.models.tokenizer import FolderTokenizer
from coevo.records import Correction, Episode
from coevo.store.tables import arrow_schema, encode_rows
from tests.unit.rows import a_correction, an_episode

FORMAT = HermesFormat()
COMMON = {"report_to": "none", "use_cpu": True, "bf16": False, "max_steps": 1, "per_device_train_batch_size": 2, "disable_tqdm": True}


def in_hermes(episode: Episode, tokenizer: FolderTokenizer) -> Episode:
    """The episode as a model with this tokenizer would have played it."""
    turns, shared = [], 0
    for place, turn in enumerate(episode.turns):
        assert turn.call is not None
        text = FORMAT.render_turn(turn.say, turn.call, ())  # type: ignore[arg-type]
        completion = tuple(tokenizer.encode(text + FORMAT.end_of_turn))
        suffix = tuple(tokenizer.encode(f"<|im_start|>user\nstep {place} é<|im_end|>\n<|im_start|>assistant\n"))
        turns.append(
            turn.model_copy(
                update={
                    "completion_text": text,
                    "completion_token_ids": completion,
                    "prompt_shared": shared,
                    "prompt_suffix": suffix,
                }
            )
        )
        shared += len(suffix) + len(completion)
    return episode.model_copy(update={"turns": tuple(turns)})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("base"))


def corrected(tokenizer: FolderTokenizer) -> tuple[list[Correction], dict[str, Episode]]:
    failed = [in_hermes(an_episode(number, success=False, calls=["look", "pay", "finish"]), tokenizer) for number in range(6)]
    corrections = []
    for number, episode in enumerate(failed):
        made = a_correction(episode, 1, verified=number != 5)
        call = made.candidates[0].call
        text = FORMAT.render_turn(f"step {number}", call, ())  # type: ignore[arg-type]
        candidate = made.candidates[0].model_copy(update={"text": text})
        corrections.append(made.model_copy(update={"candidates": (candidate,), "rewritten": text}))
    return corrections, {episode.id: episode for episode in failed}


def loaded(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], folder: Path) -> Any:
    from datasets import load_dataset

    path = folder / "rows.parquet"
    path.write_bytes(encode_rows(rows, arrow_schema(columns)))
    return load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(folder / "cache"))


def test_supervised_rows_are_what_sft_trains_on(base: str, tmp_path: Path) -> None:
    """Promise 1."""
    from trl import SFTConfig, SFTTrainer

    tokenizer = FolderTokenizer(base)
    corrections, failed = corrected(tokenizer)
    config = DatasetConfig(rows=8, self_success="none")
    material = Material(corrections=corrections, failed=failed)
    rows = arm_rows(Arm.CORRECTION, material, tokenizer=tokenizer, chat_format=FORMAT, config=config, seed=0)
    data = loaded(supervised_rows(rows), SUPERVISED, tmp_path)
    args = SFTConfig(output_dir=str(tmp_path / "out"), max_length=None, **COMMON)
    trainer = SFTTrainer(model=base, args=args, train_dataset=data)
    assert len(trainer.train_dataset) == len(rows) == 5
    for row, seen in zip(rows, trainer.train_dataset, strict=True):
        trained = [label for label in seen["labels"] if label != IGNORED]
        assert tuple(trained) == row.completion_token_ids
        assert tuple(seen["input_ids"]) == row.prompt_token_ids + row.completion_token_ids
    texts = {text for batch in trainer.get_train_dataloader() for text in trained_texts(batch, tokenizer)}
    assert texts == {one.rewritten + FORMAT.end_of_turn for one in corrections if one.verified}
    trainer.train()


def trained_texts(batch: Mapping[str, Any], tokenizer: FolderTokenizer) -> list[str]:
    return [tokenizer.decode([label for label in labels.tolist() if label != IGNORED]) for labels in batch["labels"]]


def test_preference_pairs_are_what_dpo_trains_on(base: str, tmp_path: Path) -> None:
    """Promise 2."""
    from trl import DPOConfig, DPOTrainer

    tokenizer = FolderTokenizer(base)
    corrections, failed = corrected(tokenizer)
    pairs = preference_rows(corrections, failed, tokenizer=tokenizer, chat_format=FORMAT, selection="lowest_nll")
    assert len(pairs) == 5
    data = loaded(pairs, PREFERENCES, tmp_path)
    args = DPOConfig(output_dir=str(tmp_path / "out"), max_length=None, **COMMON)
    trainer = DPOTrainer(model=base, args=args, train_dataset=data)
    for pair, seen in zip(pairs, trainer.train_dataset, strict=True):
        for name in ("prompt", "chosen", "rejected"):
            assert seen[f"{name}_ids"] == pair[f"{name}_token_ids"]
        episode = failed[pair["episode_id"]]
        assert tuple(pair["prompt_token_ids"]) == episode.prompt_token_ids(1)
        assert tuple(pair["rejected_token_ids"]) == episode.turns[1].completion_token_ids
        assert pair["chosen"] != pair["rejected"]
    trainer.train()
