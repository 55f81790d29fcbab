"""Which turns are trained on, per arm. One row = one trained turn; arms are compared at equal rows.

`correction`: verified rewrites at exactly the prompt the weak model saw, mixed with the weak model's own successful turns (one-sided
corrections over-generalize). `imitation`: every turn of the expert's successful episodes under the same harness. Rows come only from
graded, successful or corrected episodes of the search stream (I2, I8); order and choice are functions of the seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from coevo.config import DatasetConfig
from coevo.errors import ConfigError
from coevo.formats.family import ChatFormat
from coevo.identity import derive_seed
from coevo.ports import Tokenizer
from coevo.records import Correction, Episode, LossSpan, PromptOrigin, TrainingRow, Turn
from coevo.tasks.family import Stream, TaskInstance

__all__ = ["correction_rows", "equalize", "imitation_rows"]


def correction_rows(
    corrections: Sequence[Correction],
    episodes: Mapping[str, Episode],
    successes: Sequence[Episode],
    *,
    tokenizer: Tokenizer,
    chat_format: ChatFormat,
    config: DatasetConfig,
    seed: int,
) -> list[TrainingRow]:
    """Rows of the correction arm, shuffled.

    Args:
        corrections: Of failed episodes; unverified ones are left out.
        episodes: The failed episodes by id.
        successes: The weak agent's successful episodes, for the self-success share.
        tokenizer: Of the weak model.
        chat_format: Its format.
        config: Sizes and shares.
        seed: Of choice and order.
    """
    verified = [correction for correction in corrections if correction.verified]
    random = Random(derive_seed("correction rows", seed))
    wanted = round(config.rows * (1 - config.self_success_share))
    rewritten = [_rewritten(correction, episodes[correction.episode_id], tokenizer, chat_format) for correction in verified[:wanted]]
    share = config.self_success_share
    wanted_own = round(len(rewritten) * share / (1 - share))
    pool = _own_turns(successes, _contrast_tools(verified, episodes) if config.self_success == "contrast" else None)
    own = [_sampled("self_success", episode, index) for episode, index in random.sample(pool, min(wanted_own, len(pool)))]
    rows = rewritten + own
    random.shuffle(rows)
    return rows


def imitation_rows(
    episodes: Sequence[Episode], *, tokenizer: Tokenizer, chat_format: ChatFormat, config: DatasetConfig, seed: int
) -> list[TrainingRow]:
    """Every turn of the expert's successful episodes, episode by episode in a seeded order, up to `config.rows`."""
    random = Random(derive_seed("imitation rows", seed))
    order = [episode for episode in episodes if episode.success]
    random.shuffle(order)
    rows: list[TrainingRow] = []
    for episode in order:
        for index, turn in enumerate(episode.turns):
            completion = tuple(tokenizer.encode(turn.completion_text + chat_format.end_of_turn))
            rows.append(_row("imitation", episode, index, completion, PromptOrigin.RENDERED, "expert_turn"))
    rows = rows[: config.rows]
    random.shuffle(rows)
    return rows


def equalize(arms: Mapping[str, Sequence[TrainingRow]]) -> dict[str, list[TrainingRow]]:
    """All arms cut to the smallest one's number of rows, from the end of their shuffled order.

    Raises:
        ConfigError: An arm has no rows at all.
    """
    empty = sorted(name for name, rows in arms.items() if not rows)
    if empty:
        fix = "play more episodes: raise localize.rollouts, or leave the arm out with dataset.arms"
        raise ConfigError("an arm has no rows", seen=", ".join(empty), fix=fix)
    size = min(len(rows) for rows in arms.values())
    return {name: list(rows[:size]) for name, rows in arms.items()}


def _contrast_tools(corrections: Iterable[Correction], episodes: Mapping[str, Episode]) -> frozenset[str]:
    """Tools that the failed turns called: the decisions that corrections turn around."""
    calls = (episodes[correction.episode_id].turns[correction.turn].call for correction in corrections)
    return frozenset(call.name for call in calls if call is not None)


def _own_turns(successes: Sequence[Episode], tools: frozenset[str] | None) -> list[tuple[Episode, int]]:
    def fits(turn: Turn) -> bool:
        return turn.call is not None and not turn.result_error and (tools is None or turn.call.name in tools)

    return [(episode, index) for episode in successes if episode.success for index, turn in enumerate(episode.turns) if fits(turn)]


def _rewritten(correction: Correction, episode: Episode, tokenizer: Tokenizer, chat_format: ChatFormat) -> TrainingRow:
    completion = tuple(tokenizer.encode(correction.rewritten + chat_format.end_of_turn))
    return _row("correction", episode, correction.turn, completion, PromptOrigin.SAMPLED, "rewritten_turn")


def _sampled(source: str, episode: Episode, index: int) -> TrainingRow:
    return _row("correction", episode, index, episode.turns[index].completion_token_ids, PromptOrigin.SAMPLED, source)


def _row(arm: str, episode: Episode, turn: int, completion: tuple[int, ...], origin: PromptOrigin, source: str) -> TrainingRow:
    instance = TaskInstance.parse(episode.spec.task_key)
    if instance.stream is not Stream.SEARCH:
        raise ConfigError("training rows come from the search stream only", seen=instance.key, fix="mine episodes of the search stream")
    prompt = episode.prompt_token_ids(turn)
    return TrainingRow(
        arm=arm,
        prompt_token_ids=prompt,
        prompt_origin=origin,
        completion_token_ids=completion,
        loss_span=LossSpan(start=len(prompt), stop=len(prompt) + len(completion)),
        episode_id=episode.id,
        turn=turn,
        task_key=episode.spec.task_key,
        source=source,
    )
