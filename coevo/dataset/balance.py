"""Arms at equal rows and nearly equal trained tokens, so that a difference between them is what they hold and not how much.

Rows first: every arm is cut to the smallest one's number. Then tokens: where an arm's trained tokens are further than the tolerance from
the first arm's, kept rows are exchanged for the arm's own surplus rows, one exchange at a time, each the one that comes nearest to what is
missing. An arm without surplus, or one whose turns are shorter by construction (`correction_call_only`), may stay outside; that is told and
nothing is invented to fill it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from coevo.errors import ConfigError
from coevo.records import TrainingRow

__all__ = ["equalize", "token_ratios", "trained_tokens"]


def equalize(arms: Mapping[str, Sequence[TrainingRow]], *, token_tolerance: float = 0.10) -> dict[str, list[TrainingRow]]:
    """All arms cut to the smallest one's number of rows, from the end of their order, their trained tokens brought near the first's.

    Args:
        arms: Rows by arm; the first one is what the others are compared with, and is only cut.
        token_tolerance: Share by which an arm's trained tokens may differ from the first arm's before rows are exchanged.

    Raises:
        ConfigError: An arm has no rows at all.
    """
    empty = sorted(name for name, rows in arms.items() if not rows)
    if empty:
        fix = "play more episodes: raise localize.rollouts (or localize.max_rollouts), or leave the arm out with dataset.arms"
        raise ConfigError("an arm has no rows", seen=", ".join(empty), fix=fix)
    size = min(len(rows) for rows in arms.values())
    out: dict[str, list[TrainingRow]] = {}
    for name, rows in arms.items():
        target = trained_tokens(next(iter(out.values()))) if out else trained_tokens(rows[:size])
        out[name] = _near(list(rows[:size]), list(rows[size:]), target, round(token_tolerance * target))
    return out


def token_ratios(arms: Mapping[str, Sequence[TrainingRow]]) -> dict[str, float]:
    """Trained tokens of each arm over the first one's."""
    first = trained_tokens(next(iter(arms.values()))) if arms else 0
    return {name: trained_tokens(rows) / first for name, rows in arms.items()}


def trained_tokens(rows: Sequence[TrainingRow]) -> int:
    """Tokens that carry loss."""
    return sum(_length(row) for row in rows)


def _length(row: TrainingRow) -> int:
    return row.loss_span.stop - row.loss_span.start


def _near(kept: list[TrainingRow], spare: list[TrainingRow], target: int, slack: int) -> list[TrainingRow]:
    """`kept` with as few exchanges as bring its tokens within `slack` of `target`, or as near as `spare` allows."""
    spare.sort(key=_length)
    off = trained_tokens(kept) - target
    while abs(off) > slack and spare:
        lengths = [_length(row) for row in spare]
        options = []
        for place, row in enumerate(kept):
            near = bisect_left(lengths, _length(row) - off)
            options += [(abs(off + lengths[other] - _length(row)), place, other) for other in (near - 1, near) if 0 <= other < len(spare)]
        left, place, other = min(options)
        if left >= abs(off):
            break
        off += lengths[other] - _length(kept[place])
        kept[place] = spare.pop(other)
    return kept
