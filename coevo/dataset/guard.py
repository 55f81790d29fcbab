"""What must hold of a dataset before anything trains on it: no row lost, cut, foreign or misplaced.

Silent drops are how fine-tuning goes wrong unnoticed (a trainer that truncates a row from the end removes exactly the trained turn), so
everything here counts and refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from coevo.errors import ConfigError, StoreError
from coevo.formats.family import ChatFormat
from coevo.ports import Tokenizer
from coevo.records import TrainingRow

__all__ = ["DatasetFacts", "check_rows"]


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """Counts of a checked dataset."""

    rows: int
    trained_tokens: int
    longest: int
    sources: dict[str, int]


def check_rows(
    rows: Sequence[TrainingRow], *, tokenizer: Tokenizer, chat_format: ChatFormat, max_length: int, forbidden_tasks: Collection[str] = ()
) -> DatasetFacts:
    """Check every row.

    Args:
        rows: The dataset.
        tokenizer: Of the model to train.
        chat_format: Its format: a trained turn must end its turn exactly once, at its end.
        max_length: Longest row the trainer takes, in tokens.
        forbidden_tasks: Task keys that must not occur (selection and test instances).

    Raises:
        ConfigError: A row is longer than `max_length` (it would be cut).
        StoreError: A loss span that is not exactly the completion, a turn that does not close, a duplicate, a forbidden task.
    """
    end = tokenizer.encode(chat_format.end_of_turn)
    seen: set[tuple[str, int, tuple[int, ...]]] = set()
    sources: dict[str, int] = {}
    for number, row in enumerate(rows):
        length = len(row.prompt_token_ids) + len(row.completion_token_ids)
        if length > max_length:
            raise ConfigError(
                "a training row would be cut", seen=f"row {number}: {length} tokens", fix=f"raise train.max_length above {length}"
            )
        if (row.loss_span.start, row.loss_span.stop) != (len(row.prompt_token_ids), length) or not row.completion_token_ids:
            raise StoreError("a loss span is not the trained turn", seen=f"row {number}: {row.loss_span}", fix="rebuild the dataset")
        closes = [place for place, token in enumerate(row.completion_token_ids) if token == end[0]]
        if closes != [len(row.completion_token_ids) - 1]:
            raise StoreError("a trained turn does not close exactly once", seen=f"row {number}: {closes}", fix="rebuild the dataset")
        key = (row.episode_id, row.turn, row.completion_token_ids)
        if key in seen:
            raise StoreError("a training row stands twice", seen=f"row {number}", fix="rebuild the dataset")
        if row.task_key in forbidden_tasks:
            raise StoreError("a training row comes from an evaluation instance", seen=row.task_key, fix="keep the streams apart")
        seen.add(key)
        sources[row.source] = sources.get(row.source, 0) + 1
    return DatasetFacts(
        rows=len(rows),
        trained_tokens=sum(len(row.completion_token_ids) for row in rows),
        longest=max((len(row.prompt_token_ids) + len(row.completion_token_ids) for row in rows), default=0),
        sources=sources,
    )
