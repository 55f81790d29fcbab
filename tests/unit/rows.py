"""Hand-built episodes, corrections and a letter tokenizer: datasets can be tested without playing anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from coevo.chat import Sampling
from coevo.formats.mini import CALL, END, SPECIAL_TOKENS
from coevo.records import (
    CallRecord,
    Checkpoint,
    Correction,
    CorrectionCandidate,
    Episode,
    EpisodeSpec,
    Grade,
    MessageRecord,
    Status,
    Turn,
)

_SPLIT = re.compile("(" + "|".join(re.escape(token) for token in SPECIAL_TOKENS) + ")")


@dataclass(frozen=True)
class Letters:
    """One id per character, the mini format's special tokens below 100."""

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in _SPLIT.split(text):
            ids += [SPECIAL_TOKENS.index(part)] if part in SPECIAL_TOKENS else [100 + ord(letter) for letter in part]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(SPECIAL_TOKENS[token] if token < 100 else chr(token - 100) for token in ids)


def say(call: CallRecord, strategy: str = "") -> str:
    """A turn in the mini format."""
    values = ",".join(f" {value}" for value in call.arguments.values())
    return f"{f' {strategy}' if strategy else ''}{CALL} {call.name}({values})"


def an_episode(
    number: int, *, success: bool, calls: Sequence[str], stream: str = "search", model: str = "weak", strategy: str = ""
) -> Episode:
    """An episode of `calls`, each prompt the previous prompt plus the turn plus an observation."""
    letters = Letters()
    spec = EpisodeSpec(
        task_key=f"payroll/mini/t{number % 3}/{stream}/{number}",
        world_version="1",
        harness_hash="h" * 64,
        model_id=model,
        sampling=Sampling(0.7, 1.0, 96),
    )
    turns: list[Turn] = []
    suffix = letters.encode(f"<|system|> audit<|end|><|user|> department D{number}<|end|><|assistant|>")
    shared = 0
    for place, name in enumerate(calls):
        call = CallRecord(name=name, arguments={"employee": f"E{number}{place}"})
        text = say(call, f"{strategy} {place}" if strategy else "")
        completion = tuple(letters.encode(text + END))
        turn = Turn(
            message_index=tuple(range(2 + 2 * place)),
            prompt_shared=shared,
            prompt_suffix=tuple(suffix),
            completion_text=text,
            completion_token_ids=completion,
            say=f"{strategy} {place}" if strategy else "",
            call=call,
            executed=(call,),
            result="ok",
            world_calls_before=place,
        )
        turns.append(turn)
        shared += len(suffix) + len(completion)
        suffix = letters.encode(f"<|tool|> ok {place}<|end|><|assistant|>")
    grade = Grade(success=success, score=float(success), checkpoints=(Checkpoint(name="paid:E1", weight=1.0, passed=success),))
    messages = (MessageRecord(role="system", content="audit"), MessageRecord(role="user", content=f"department D{number}"))
    return Episode(id=spec.id, spec=spec, status=Status.COMPLETED, grade=grade, messages=messages, turns=tuple(turns))


def a_correction(episode: Episode, turn: int, *, verified: bool = True, offers: int = 1, gain: float = 0.2) -> Correction:
    """A correction whose candidate `n` says `step n` and gains `gain + n / 100`."""
    candidates = []
    for number in range(offers):
        call = CallRecord(name="escalate", arguments={"employee": f"E{turn}"})
        candidates.append(
            CorrectionCandidate(
                strategy=f"step {number}",
                call=call,
                text=say(call, f"step {number}"),
                schema_valid=True,
                executed=True,
                continued=6,
                successes=5,
                gain_lower=gain + number / 100 if verified else -0.1,
                student_nll_strategy=1.0 + number,
                student_nll_call=0.5,
            )
        )
    return Correction(
        episode_id=episode.id,
        turn=turn,
        original=episode.turns[turn].completion_text,
        rewritten=candidates[0].text if candidates else "",
        candidates=tuple(candidates),
        chosen=0 if candidates else -1,
        chosen_by="lowest student NLL among the verified",
        verified=verified,
        gain_lower=candidates[0].gain_lower if candidates else None,
        student_nll=0.8,
    )


FAILED = [an_episode(number, success=False, calls=["look", "pay", "pay", "finish"]) for number in range(60)]
SUCCEEDED = [an_episode(100 + number, success=True, calls=["look", "pay", "look", "escalate", "finish"]) for number in range(40)]
EXPERTS = [
    an_episode(200 + number, success=number % 7 != 0, calls=["look", "look", "pay", "finish"], model="expert", strategy="so")
    for number in range(50)
]
CORRECTIONS = [a_correction(episode, 1 + number % 2, verified=number % 4 != 0) for number, episode in enumerate(FAILED)]
