"""Rows as training workers see them: read whole or refused, in an order drawn here, laid side by side or end to end."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coevo.dataset.export import IGNORED
from coevo.errors import ConfigError, StoreError
from coevo.identity import derive_seed
from coevo.records import TrainingRow
from coevo.store.tables import decode_records

__all__ = ["EMPTY", "NO_ROW", "Collator", "TokenRow", "load_rows", "training_order"]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A row as the model sees it.

    Attributes:
        input_ids: int32 token ids, 4 bytes each: rows of 98,304 tokens are not kept as Python integers.
        start, stop: The trained tokens, half-open.
    """

    input_ids: array[int]
    start: int
    stop: int

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def labels(self) -> tuple[int, ...]:
        """The token where it carries loss, -100 elsewhere."""
        return tuple(token if self.start <= place < self.stop else IGNORED for place, token in enumerate(self.input_ids))

    @property
    def trained_tokens(self) -> int:
        """Tokens that carry loss."""
        return self.stop - self.start


EMPTY = TokenRow(array("i", (0, 0)), 0, 0)
"""Fills the last global batch: no label, no loss, not counted."""

NO_ROW = -1
"""Number of the empty row in a stream of row numbers."""


def load_rows(data: bytes, *, max_length: int, where: str) -> list[TokenRow]:
    """Rows of a Parquet file of `TrainingRow`s, every one whole.

    Raises:
        ConfigError: Rows longer than `max_length` (they would be cut).
        StoreError: No rows, or a loss span that leaves the row or starts at a token that nothing predicts.
    """
    rows = [_token_row(number, row, where) for number, row in enumerate(decode_records(data, TrainingRow))]
    if not rows:
        raise StoreError("no rows to train on", seen=where, fix="build the dataset first")
    long = [len(row) for row in rows if len(row) > max_length]
    if long:
        seen = f"{len(long)} of {len(rows)} rows in {where}, the longest {max(long)} tokens"
        raise ConfigError("training rows would be cut", seen=seen, fix=f"set train.max_length to {max(long)} or more")
    return rows


def _token_row(number: int, row: TrainingRow, where: str) -> TokenRow:
    ids = array("i", (*row.prompt_token_ids, *row.completion_token_ids))
    start, stop = row.loss_span.start, row.loss_span.stop
    if not 1 <= start < stop <= len(ids):
        raise StoreError(
            "loss span outside the row", seen=f"row {number} of {where}: [{start}, {stop}) of {len(ids)}", fix="rebuild the dataset"
        )
    return TokenRow(ids, start, stop)


def training_order(rows: Sequence[int], *, epochs: int, global_batch: int, seed: int) -> list[int]:
    """Row numbers of all epochs in training order, filled with `NO_ROW` to a whole number of global batches.

    Within a global batch the order does not change the gradient, so rows of like length stand together: less padding in a micro batch, and
    workers that wait less for one another.

    Args:
        rows: Length in tokens of each row.
        epochs: Times that each row occurs.
        global_batch: Rows per optimizer step.
        seed: Of the draw.
    """
    order: list[int] = []
    for epoch in range(epochs):
        numbers = list(range(len(rows)))
        random.Random(derive_seed("training order", seed, epoch)).shuffle(numbers)
        order.extend(numbers)
    order.extend([NO_ROW] * (-len(order) % global_batch))
    batches = (order[first : first + global_batch] for first in range(0, len(order), global_batch))
    return [number for batch in batches for number in sorted(batch, key=lambda number: rows[number] if number >= 0 else 0)]


@dataclass(frozen=True, slots=True)
class Collator:
    """Row numbers to tensors.

    Attributes:
        rows: All rows.
        pad: Id of the padding token.
        packing: End to end in one sequence, whose positions start again at every row: attention then keeps the rows apart, in the kernels
            by their positions, elsewhere by the mask that transformers builds from them. Else side by side, padded on the right.
    """

    rows: Sequence[TokenRow]
    pad: int
    packing: bool = False

    def __call__(self, items: Sequence[Mapping[str, int]]) -> dict[str, Any]:
        """One micro batch."""
        rows = [self.rows[item["row"]] if item["row"] != NO_ROW else EMPTY for item in items]
        return self._packed([row for row in rows if row is not EMPTY] or [EMPTY]) if self.packing else self._padded(rows)

    def _padded(self, rows: Sequence[TokenRow]) -> dict[str, Any]:
        import torch

        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self.pad)
        labels = torch.full((len(rows), width), IGNORED)
        mask = torch.zeros((len(rows), width), dtype=torch.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = torch.tensor(row.input_ids)
            labels[place, row.start : row.stop] = ids[place, row.start : row.stop]
            mask[place, : len(row)] = 1
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}

    def _packed(self, rows: Sequence[TokenRow]) -> dict[str, Any]:
        import torch

        ids = torch.cat([torch.tensor(row.input_ids) for row in rows]).long()
        labels = torch.full_like(ids, IGNORED)
        first = 0
        for row in rows:
            labels[first + row.start : first + row.stop] = ids[first + row.start : first + row.stop]
            first += len(row)
        positions = torch.cat([torch.arange(len(row)) for row in rows])
        return {"input_ids": ids[None], "labels": labels[None], "position_ids": positions[None]}
