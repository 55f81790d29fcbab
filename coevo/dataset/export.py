"""Rows as TRL and `datasets` read them: plain Parquet with the columns that the trainers look for, nothing to convert.

`SUPERVISED`: `input_ids` and `labels` (-100 outside the trained turn), which `trl.SFTTrainer` takes as they are. `PREFERENCES`: `prompt`,
`chosen` and `rejected` as text with the chat format's special tokens in it, which `trl.DPOTrainer` tokenizes itself; the token ids that the
text stands for lie beside it. The other columns say where a row comes from; trainers pass over them.
Limits: sampled ids are not always the ids that their text encodes to, so preferences train on what the tokenizer makes of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coevo.dataset.arms import chosen_rewrite
from coevo.formats.family import ChatFormat
from coevo.ports import Tokenizer
from coevo.records import Correction, Episode, TrainingRow

__all__ = ["IGNORED", "PREFERENCES", "SUPERVISED", "preference_rows", "supervised_rows"]

IGNORED = -100
"""Label that carries no loss (PyTorch's cross-entropy)."""

SUPERVISED = {
    "input_ids": "ints",
    "labels": "ints",
    "arm": "str",
    "source": "str",
    "prompt_origin": "str",
    "task_key": "str",
    "episode_id": "str",
    "turn": "int",
}
"""Columns of a supervised table (`coevo.store.tables.arrow_schema`)."""

PREFERENCES = {
    "prompt": "str",
    "chosen": "str",
    "rejected": "str",
    "prompt_token_ids": "ints",
    "chosen_token_ids": "ints",
    "rejected_token_ids": "ints",
    "task_key": "str",
    "episode_id": "str",
    "turn": "int",
}
"""Columns of a table of preference pairs."""


def supervised_rows(rows: Sequence[TrainingRow]) -> list[dict[str, Any]]:
    """One table row per training row."""
    return [
        {
            "input_ids": [*row.prompt_token_ids, *row.completion_token_ids],
            "labels": [IGNORED] * row.loss_span.start + list(row.completion_token_ids),
            "arm": row.arm,
            "source": row.source,
            "prompt_origin": row.prompt_origin.value,
            "task_key": row.task_key,
            "episode_id": row.episode_id,
            "turn": row.turn,
        }
        for row in rows
    ]


def preference_rows(
    corrections: Sequence[Correction],
    episodes: Mapping[str, Episode],
    *,
    tokenizer: Tokenizer,
    chat_format: ChatFormat,
    selection: str,
) -> list[dict[str, Any]]:
    """One pair per verified correction: the weak model's turn rejected, the rewrite chosen, at the prompt that the weak model saw.

    Args:
        corrections: Of failed episodes; unverified ones give no pair, nor do rewrites that say what the weak model said.
        episodes: The failed episodes by id.
        tokenizer: Of the weak model.
        chat_format: Its format.
        selection: Which verified rewrite (`dataset.selection`).
    """
    out = []
    for correction in corrections:
        if not correction.verified:
            continue
        episode = episodes[correction.episode_id]
        prompt = list(episode.prompt_token_ids(correction.turn))
        chosen = chosen_rewrite(correction, selection).text + chat_format.end_of_turn
        rejected = episode.turns[correction.turn].completion_text + chat_format.end_of_turn
        if chosen == rejected:
            continue
        out.append(
            {
                "prompt": tokenizer.decode(prompt),
                "chosen": chosen,
                "rejected": rejected,
                "prompt_token_ids": prompt,
                "chosen_token_ids": tokenizer.encode(chosen),
                "rejected_token_ids": tokenizer.encode(rejected),
                "task_key": episode.spec.task_key,
                "episode_id": episode.id,
                "turn": correction.turn,
            }
        )
    return out
