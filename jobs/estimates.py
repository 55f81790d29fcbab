"""What one episode and one training row take, for plans and reservations. Constants with their source; nothing is measured here."""

from __future__ import annotations

from dataclasses import dataclass

from coevo.tasks.family import Size

__all__ = ["CANARY_ROWS", "EPISODES", "EpisodeEstimate", "row_tokens"]

CANARY_ROWS = 32
"""Training rows whose served logprobs are compared with trainer and base, per adapter (ARCHITECTURE 8 asks for at least 32)."""


@dataclass(frozen=True, slots=True)
class EpisodeEstimate:
    """What one episode of the weak model takes: turns, prompt tokens summed over the turns (cached ones included), completion tokens."""

    turns: float
    prompt_tokens: float
    completion_tokens: float

    @property
    def tokens(self) -> float:
        """Both."""
        return self.prompt_tokens + self.completion_tokens


EPISODES = {
    Size.MINI: EpisodeEstimate(turns=11, prompt_tokens=2_100, completion_tokens=150),
    Size.STANDARD: EpisodeEstimate(turns=25, prompt_tokens=46_000, completion_tokens=1_000),
    Size.LONG: EpisodeEstimate(turns=30, prompt_tokens=102_000, completion_tokens=760),
}
"""By instance size. Mini: the reference policy under the base harness took 10.4 turns, 1,940 and 140 tokens (mean of 12 instances).
Standard: 25 turns, 125,000 and 3,700 characters at 4 characters a token, and 600 tokens of tool descriptions in each prompt.
Long (payroll): 30 turns, 292,000 and 3,050 characters at 4 characters a token, and 960 tokens of tool descriptions in each prompt."""


def row_tokens(size: Size) -> float:
    """Tokens of a training row: the mean prompt of a turn and its completion."""
    one = EPISODES[size]
    return one.tokens / one.turns
