"""What must hold of a dataset before anything trains on it: no row lost, cut, foreign or misplaced.

Silent drops are how fine-tuning goes wrong unnoticed (a trainer that truncates a row from the end removes exactly the trained turn), so
everything here counts and refuses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, replace

from coevo.errors import ConfigError, StoreError
from coevo.formats.family import ChatFormat
from coevo.ports import Tokenizer
from coevo.records import TrainingRow

__all__ = ["MAX_CUT_SHARE", "DatasetFacts", "FittedRows", "check_rows", "fit_rows", "require_disjoint"]

MAX_CUT_SHARE = 0.05
"""Share of rows that may be too long; the paper doubles its sequence length above it."""


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """Counts of a checked dataset.

    Attributes:
        rows: Rows.
        trained_tokens: Tokens that carry loss.
        longest: Longest row in tokens.
        sources: Rows by where their turn comes from.
        cut: Rows left out because they are longer than the trainer takes.
        token_ratio: Trained tokens over the first arm's; None where there is nothing to compare with.
    """

    rows: int
    trained_tokens: int
    longest: int
    sources: dict[str, int]
    cut: int = 0
    token_ratio: float | None = None

    def beside(self, *, cut: int, token_ratio: float) -> DatasetFacts:
        """With what is known of the arm beside its rows."""
        return replace(self, cut=cut, token_ratio=round(token_ratio, 4))


@dataclass(frozen=True, slots=True)
class FittedRows:
    """The rows that fit, and how many did not."""

    rows: list[TrainingRow]
    cut: int


def fit_rows(rows: Sequence[TrainingRow], *, arm: str, max_length: int) -> FittedRows:
    """Leave out rows longer than `max_length`, counted; a cut row would lose the end of the very turn that it is there for.

    Raises:
        ConfigError: More than `MAX_CUT_SHARE` of the rows are too long; the message names a length that suffices.
    """
    lengths = sorted(_length(row) for row in rows)
    kept = [row for row in rows if _length(row) <= max_length]
    cut = len(rows) - len(kept)
    if cut > MAX_CUT_SHARE * len(rows):
        enough = lengths[math.ceil((1 - MAX_CUT_SHARE) * len(lengths)) - 1]
        nearly = f", {enough} all but {MAX_CUT_SHARE:.0%}" if enough < lengths[-1] else ""
        raise ConfigError(
            "too many training rows would be cut",
            seen=f"{cut} of {len(rows)} rows of {arm} are longer than train.max_length={max_length}, more than {MAX_CUT_SHARE:.0%}",
            fix=f"--set train.max_length={lengths[-1]} takes all of them{nearly}",
        )
    return FittedRows(kept, cut)


def require_disjoint(mined: Collection[str], evaluated: Container[str]) -> None:
    """Refuse task keys on both sides (I8).

    Raises:
        StoreError: As said.
    """
    both = sorted(key for key in set(mined) if key in evaluated)
    if both:
        seen = f"{len(both)} of {len(set(mined))}, the first {both[0]}"
        raise StoreError("training rows come from evaluation instances", seen=seen, fix="mine the search stream, evaluate the others")


def check_rows(
    rows: Sequence[TrainingRow], *, tokenizer: Tokenizer, chat_format: ChatFormat, max_length: int, forbidden_tasks: Container[str] = ()
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
        length = _length(row)
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
        longest=max((_length(row) for row in rows), default=0),
        sources=sources,
    )


def _length(row: TrainingRow) -> int:
    return len(row.prompt_token_ids) + len(row.completion_token_ids)
