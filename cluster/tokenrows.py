"""Token rows with a loss mask, in three flat arrays: what the pretraining loop reads.

The file is an uncompressed `.npz` of `ids` (uint16, all rows concatenated), `mask` (uint8, same length; 1 where the token is a target)
and `offsets` (int64, rows + 1), so anything with numpy can write one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from coevo.errors import ConfigError

__all__ = ["Batch", "RowFunction", "RowSource", "TokenRows", "batches"]

_WINDOW_BATCHES = 32
"""Rows of this many batches are sorted by length together: padding stays below a few per cent, order stays random."""


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of one epoch.

    Attributes:
        ids: uint16, token ids of all rows, concatenated.
        mask: uint8, 1 where the token is a training target (the first token of a row never is: nothing predicts it).
        offsets: int64, row r is `ids[offsets[r]:offsets[r + 1]]`.
    """

    ids: npt.NDArray[np.uint16]
    mask: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.mask) or not len(self.offsets) or int(self.offsets[-1]) != len(self.ids):
            seen = f"{len(self.ids)} ids, {len(self.mask)} mask entries, last offset {self.offsets[-1:].tolist()}"
            raise ConfigError(
                "token rows whose arrays do not fit together", seen=seen, fix="write them with TokenRows.from_rows(...).save(path)"
            )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens per row."""
        return np.diff(self.offsets)

    @property
    def target_tokens(self) -> int:
        """Tokens that carry loss."""
        return int(self.mask.sum())

    def epoch(self, number: int) -> TokenRows:
        """The same rows in every epoch (`RowSource`)."""
        del number
        return self

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[Sequence[int], Sequence[int]]]) -> TokenRows:
        """From (token ids, mask) pairs of equal length; ids must be below 65,536.

        Raises:
            ConfigError: When a row's mask has another length than its ids, or an id does not fit.
        """
        ids: list[int] = []
        mask: list[int] = []
        offsets = [0]
        for number, (row, loss) in enumerate(rows):
            if len(row) != len(loss):
                raise ConfigError(
                    "row and mask differ in length", seen=f"row {number}: {len(row)} ids, {len(loss)} mask entries", fix="one 0/1 per id"
                )
            ids.extend(row)
            mask.extend(loss)
            offsets.append(len(ids))
        if ids and not (min(ids) >= 0 and max(ids) < 2**16):
            raise ConfigError("token id outside uint16", seen=max(ids), fix="use a tokenizer with at most 65,536 tokens")
        return cls(np.asarray(ids, np.uint16), np.asarray(mask, np.uint8), np.asarray(offsets, np.int64))

    @classmethod
    def concatenate(cls, parts: Sequence[TokenRows]) -> TokenRows:
        """All rows of `parts`, in order."""
        bases = np.cumsum([0] + [len(part.ids) for part in parts])
        offsets = [np.zeros(1, np.int64)] + [part.offsets[1:] + base for part, base in zip(parts, bases[:-1], strict=True)]
        return cls(np.concatenate([p.ids for p in parts]), np.concatenate([p.mask for p in parts]), np.concatenate(offsets))

    def save(self, path: Path | str) -> None:
        """Write the `.npz`."""
        with Path(path).open("wb") as file:
            np.savez(file, ids=self.ids, mask=self.mask, offsets=self.offsets)

    @classmethod
    def load(cls, path: Path | str) -> TokenRows:
        """Read what `save` wrote; int32 ids are narrowed."""
        with np.load(path) as arrays:
            missing = {"ids", "mask", "offsets"} - set(arrays.files)
            if missing:
                raise ConfigError("not a token-row file", seen=f"{path} lacks {sorted(missing)}", fix="write it with TokenRows.save")
            return cls(arrays["ids"].astype(np.uint16), arrays["mask"].astype(np.uint8), arrays["offsets"].astype(np.int64))


class RowSource(Protocol):
    """Rows per epoch: `TokenRows` itself, or a generator of fresh rows. The same number must give the same rows (resume replays them)."""

    def epoch(self, number: int) -> TokenRows:
        """Rows of the 0-based epoch."""
        ...


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A `RowSource` from a function of the epoch number, optionally beside fixed rows (a curriculum mix).

    Attributes:
        generate: Epoch number -> rows; deterministic.
        fixed: Rows repeated in every epoch, before the generated ones.
    """

    generate: Callable[[int], TokenRows]
    fixed: TokenRows | None = None

    def epoch(self, number: int) -> TokenRows:
        """Fixed rows, then the generated rows of epoch `number`."""
        fresh = self.generate(number)
        return fresh if self.fixed is None else TokenRows.concatenate([self.fixed, fresh])


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded rows [rows, width] and the places that predict a target.

    Attributes:
        tokens: int64 ids, 0 where padded.
        position: int64, flat index (row * width + t) of each place whose next token is a target.
        target: int64, that next token.
        real_tokens: Tokens without padding.
    """

    tokens: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    real_tokens: int


def batches(source: RowSource, *, tokens_per_batch: int, seed: int, skip: int = 0) -> Iterator[Batch]:
    """Endless length-bucketed batches of at most `tokens_per_batch` padded tokens (a longer row is a batch by itself).

    The order is a function of (seed, epoch); `skip` batches are passed over without being built.
    """
    number, passed = 0, 0
    while True:
        rows = source.epoch(number)
        if not len(rows) or not rows.target_tokens:
            raise ConfigError(
                "nothing to train on",
                seen=f"epoch {number}: {len(rows)} rows, {rows.target_tokens} targets",
                fix="give rows with mask 1 somewhere",
            )
        plan = _plan(rows.lengths, tokens_per_batch, np.random.default_rng([seed, number]))
        for members in plan:
            if passed >= skip:
                yield _build(rows, members)
            passed += 1
        number += 1


def _plan(lengths: npt.NDArray[np.int64], tokens_per_batch: int, rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    order = rng.permutation(len(lengths))
    window = max(1, int(_WINDOW_BATCHES * tokens_per_batch / max(1.0, float(lengths.mean()))))
    plan: list[npt.NDArray[np.int64]] = []
    for start in range(0, len(order), window):
        part = order[start : start + window]
        part = part[np.argsort(lengths[part], kind="stable")]
        first = 0
        for end in range(1, len(part) + 1):
            if end == len(part) or int(lengths[part[end]]) * (end + 1 - first) > tokens_per_batch:
                plan.append(part[first:end])
                first = end
    return [plan[index] for index in rng.permutation(len(plan))]


def _build(rows: TokenRows, members: npt.NDArray[np.int64]) -> Batch:
    lengths = rows.lengths[members]
    width = int(lengths.max())
    tokens = np.zeros((len(members), width), np.int64)
    targets = np.zeros((len(members), width), np.uint8)
    for place, (member, length) in enumerate(zip(members, lengths, strict=True)):
        start = int(rows.offsets[member])
        tokens[place, :length] = rows.ids[start : start + length]
        targets[place, : length - 1] = rows.mask[start + 1 : start + length]
    position = np.flatnonzero(targets)
    return Batch(tokens, position, tokens.reshape(-1)[position + 1], int(lengths.sum()))
