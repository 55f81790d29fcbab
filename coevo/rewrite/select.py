"""Which verified rewrite to train on: the one that the weak model itself finds likeliest.

The repair nearest to how the weak model already writes keeps model-harness fit, so among candidates with a verified gain the lowest
per-token negative log-likelihood wins, and strategy sentence and call are reported apart. Ties go to the earlier candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coevo.formats.family import ChatFormat
from coevo.ports import Scorer, Tokenizer
from coevo.records import CorrectionCandidate

__all__ = ["CHOSEN_BY", "StudentLikelihood", "choose", "score_turn"]

CHOSEN_BY = "lowest student NLL among the verified"


class StudentLikelihood(NamedTuple):
    """Mean negative log-likelihood per token, in nats; `strategy` is None when nothing is said."""

    strategy: float | None
    call: float
    total: float


async def score_turn(
    scorer: Scorer, tokenizer: Tokenizer, chat_format: ChatFormat, *, prompt: Sequence[int], say: str, text: str, model_id: str
) -> StudentLikelihood:
    """Score a rewritten turn under the student at exactly the prompt it saw.

    Args:
        scorer: Teacher-forced scoring of the student.
        tokenizer: The student's.
        chat_format: Whose end of turn closes the text.
        prompt: Prompt token ids of the turn.
        say: The strategy sentence.
        text: The whole turn.
        model_id: The student's id.
    """
    ids = tokenizer.encode(text + chat_format.end_of_turn)
    logprobs = await scorer.logprobs(prompt, ids, model_id=model_id)
    spoken = _tokens_to(tokenizer, ids, text.index(say.strip()) + len(say.strip())) if say.strip() else 0
    strategy = -sum(logprobs[:spoken]) / spoken if spoken else None
    return StudentLikelihood(strategy, -sum(logprobs[spoken:]) / max(1, len(ids) - spoken), -sum(logprobs) / len(ids))


def _tokens_to(tokenizer: Tokenizer, ids: Sequence[int], chars: int) -> int:
    """How many of these very tokens it takes to say the first `chars` characters; one that reaches beyond them counts."""
    return next((count for count in range(1, len(ids)) if len(tokenizer.decode(ids[:count])) >= chars), len(ids))


def choose(candidates: Sequence[CorrectionCandidate], totals: Sequence[float]) -> int | None:
    """Index of the verified candidate with the lowest total NLL per token; None when none is verified."""
    verified = [
        index
        for index, candidate in enumerate(candidates)
        if candidate.schema_valid and candidate.executed and candidate.gain_lower is not None and candidate.gain_lower > 0
    ]
    return min(verified, key=lambda index: (totals[index], index), default=None)
