"""The canary: are the served weights the trained ones? Asked of every replica, in log-probabilities of training rows.

Three ways in which publishing goes wrong without an error: the engine serves the base under the new name, it serves an older adapter, or
one replica of several does. Served log-probabilities are compared with two references computed from the files: the base, and base + adapter
as the trainer had it. They must be clearly nearer to the second (R7, I6). An adapter too weak to tell from its base by this is refused as
well: nothing measured on it could mean anything.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cluster.pool_model import PoolSource, actor_name
from coevo.errors import ModelError
from coevo.ports import ChatModel, ModelSource, Scorer

__all__ = ["CANARY_ROWS", "CanaryReading", "judge_canary", "read_canary", "replica_scorers"]

CANARY_ROWS = 32
"""Fewest rows that the canary takes: below it a sign test can't tell."""

_SIGN_LEVEL = 0.01
_NEARNESS = 0.5
_IN_FLIGHT = 8

Row = tuple[Sequence[int], Sequence[int]]
"""(prompt token ids, completion token ids)."""


class CanaryReading(NamedTuple):
    """What one replica served, in nats per token.

    Attributes:
        to_new, to_base: Mean absolute difference of the served log-probabilities to the trained model's and to the base's.
        nearer_rows, rows: Rows on which the served ones are nearer to the trained model.
        p_value: One-sided sign test of that count against a coin.
    """

    to_new: float
    to_base: float
    nearer_rows: int
    rows: int
    p_value: float

    def require(self, replica: str, model_id: str) -> None:
        """Raise `ModelError` with the figures unless the reading passed."""
        if self.passed:
            return
        seen = (
            f"{replica}: {self.to_new:.4f} nats/token from the trained model, {self.to_base:.4f} from the base; "
            f"nearer to the trained one on {self.nearer_rows} of {self.rows} rows (p = {self.p_value:.2g})"
        )
        fix = "served base or a stale adapter: restart the pool; far from both: wrong folder; near both: train longer"
        raise ModelError(f"the served weights are not proven to be {model_id}", seen=seen, fix=fix)

    @property
    def passed(self) -> bool:
        """At most half as far from the trained model as from the base, and nearer on more rows than chance gives."""
        return self.to_new <= _NEARNESS * self.to_base and self.p_value < _SIGN_LEVEL


def judge_canary(served: Sequence[Sequence[float]], new: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> CanaryReading:
    """Compare log-probabilities of the same completions, row by row."""
    to_new = [_distance(a, b) for a, b in zip(served, new, strict=True)]
    to_base = [_distance(a, b) for a, b in zip(served, base, strict=True)]
    weights = [len(row) for row in served]
    nearer = sum(a < b for a, b in zip(to_new, to_base, strict=True))
    rows = len(served)
    tail = sum(math.comb(rows, count) for count in range(nearer, rows + 1)) / 2**rows
    return CanaryReading(_weighted(to_new, weights), _weighted(to_base, weights), nearer, rows, tail)


def _distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Mean absolute difference; infinite when anything is not a number, so a broken engine never looks near."""
    value = sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)
    return value if math.isfinite(value) else math.inf


def _weighted(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def replica_scorers(source: ModelSource) -> Mapping[str, Scorer]:
    """Replica name -> scorer that asks this replica and no other, for each replica of a pool.

    Raises:
        ModelError: The source is not a pool's.
    """
    if not isinstance(source, PoolSource):
        raise ModelError(
            "the canary can't see the replicas of this source", seen=type(source).__name__, fix="pass scorers= to PoolPublisher"
        )
    return {actor_name(source.pool, index): replace(source, only=index).open() for index in range(source.replicas)}


async def read_canary(
    scorers: Mapping[str, Scorer], rows: Sequence[Row], *, new: Sequence[Sequence[float]], base: Sequence[Sequence[float]]
) -> dict[str, CanaryReading]:
    """Score all rows on each replica, a few at a time, and compare with both references."""
    gate = asyncio.Semaphore(_IN_FLIGHT)

    async def ask(scorer: Scorer, row: Row) -> tuple[float, ...]:
        async with gate:
            return await scorer.logprobs(row[0], row[1])

    out = {}
    for name, scorer in scorers.items():
        try:
            served = await asyncio.gather(*(ask(scorer, row) for row in rows))
        finally:
            if isinstance(scorer, ChatModel):
                await scorer.aclose()
        out[name] = judge_canary(served, new, base)
    return out
