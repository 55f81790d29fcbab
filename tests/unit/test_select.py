"""Choosing among rewrites: token-exact likelihoods, and the lowest of the verified.

1. Strategy and call are scored over the very tokens of the turn, also where a token reaches over the border; the two parts make the whole.
2. A turn that says nothing has no strategy likelihood.
3. Only schema-valid, executed candidates with a lower bound above 0 can be chosen; ties go to the earlier one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from coevo.formats import chat_format
from coevo.records import CallRecord, CorrectionCandidate
from coevo.rewrite.select import StudentLikelihood, choose, score_turn


class Chunks:
    """Tokens of three characters each: unlike those of a prefix encoded by itself."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, text: str) -> list[int]:
        pieces = [text[start : start + 3] for start in range(0, len(text), 3)]
        self.texts += [piece for piece in pieces if piece not in self.texts]
        return [self.texts.index(piece) for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.texts[one] for one in ids)


class Rising:
    """The n-th token has log-probability -(n + 1)."""

    async def logprobs(self, prompt: Sequence[int], completion: Sequence[int], *, model_id: str = "") -> tuple[float, ...]:
        return tuple(-float(place + 1) for place in range(len(completion)))


def scored(say: str, call: str) -> tuple[StudentLikelihood, int, int]:
    """The likelihoods, all tokens, and the tokens up to the end of what is said."""
    tokenizer, syntax = Chunks(), chat_format("hermes")
    found = asyncio.run(score_turn(Rising(), tokenizer, syntax, prompt=(1, 2), say=say, text=say + call, model_id="m"))
    return found, len(tokenizer.encode(say + call + syntax.end_of_turn)), -(-len(say) // 3)


@pytest.mark.parametrize("say", ["abcdef", "abcd", "ab"])
def test_parts_make_the_whole(say: str) -> None:
    """Promise 1."""
    found, tokens, spoken = scored(say, "<tool_call>{}</tool_call>")
    assert found.strategy == pytest.approx((spoken + 1) / 2)
    assert found.call == pytest.approx((spoken + 1 + tokens) / 2)
    assert found.total == pytest.approx((tokens + 1) / 2)
    assert found.strategy * spoken + found.call * (tokens - spoken) == pytest.approx(found.total * tokens)


def test_a_silent_turn_has_no_strategy() -> None:
    """Promise 2."""
    found, _, _ = scored("", "<tool_call>{}</tool_call>")
    assert found.strategy is None
    assert found.call == found.total


def candidate(*, lower: float | None = 0.1, valid: bool = True, executed: bool = True) -> CorrectionCandidate:
    call = CallRecord(name="finish")
    return CorrectionCandidate(strategy="s", call=call, text="t", schema_valid=valid, executed=executed, gain_lower=lower)


def test_the_lowest_of_the_verified() -> None:
    """Promise 3."""
    unverified = [candidate(lower=0.0), candidate(lower=None), candidate(valid=False), candidate(executed=False)]
    assert choose(unverified, [0.1] * 4) is None
    assert choose([*unverified, candidate(), candidate()], [0.1, 0.1, 0.1, 0.1, 2.0, 1.0]) == 5
    assert choose([candidate(), candidate()], [1.0, 1.0]) == 0
