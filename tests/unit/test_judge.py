"""Judges: one structured call, three baselines, and what becomes of their answers in the localization stage.

1. A structured answer is cause, counterfactual and up to k turns, most likely first; it may be `unlocalizable`.
2. An answer that does not fit is asked for once more with the fault; two bad ones name no turn and are recorded.
3. Step by step stops at the first mistake and shows nothing behind it; binary search needs about log2 of the turns.
4. A stage puts judges' turns before those of detectors, records who named what, and pays every call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coevo.chat import Completion, ModelRequest, Role, Sampling, Usage
from coevo.config import parse_config
from coevo.errors import ConfigError
from coevo.localize.drill import Case, cases
from coevo.localize.evidence import Depth, Suspect
from coevo.localize.faults import FaultKind
from coevo.localize.judge import JudgeSource, JudgeStyle, transcript
from coevo.localize.stage import LocalizeStage
from coevo.records import Episode, EpisodeSpec, Grade, MessageRecord, Status, Turn
from coevo.rewrite.llm import LLMRecipe
from coevo.store import LocalSource
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream

Answer = Callable[[str, int], Any]


@dataclass
class Scripted:
    """Answers the n-th question by a function of its text; keeps what it was asked."""

    answer: Answer
    asked: list[str] = field(default_factory=list)
    model_id: str = "judge@1"

    async def complete(self, request: ModelRequest) -> Completion:
        text = next(message.content for message in request.messages if message.role is Role.USER)
        self.asked.append(text)
        value = self.answer(text, len(self.asked) - 1)
        return Completion(value if isinstance(value, str) else json.dumps(value), usage=Usage(100, 0, 10))

    async def aclose(self) -> None:
        return None


@dataclass(frozen=True)
class Source:
    model: Scripted

    @property
    def model_id(self) -> str:
        return self.model.model_id

    def open(self) -> Scripted:
        return self.model


def judge(answer: Answer, style: JudgeStyle = JudgeStyle.STRUCTURED) -> tuple[Scripted, JudgeSource]:
    model = Scripted(answer)
    return model, JudgeSource(LLMRecipe(Source(model)), style)


def episode(turns: int) -> Episode:
    played = [
        Turn(message_index=(0, 1), prompt_shared=0, prompt_suffix=(), completion_text=f"said {index}", result=f"result {index}")
        for index in range(turns)
    ]
    messages = (MessageRecord(role="system", content="s"), MessageRecord(role="user", content="the task"))
    spec = EpisodeSpec(task_key="payroll/mini/audit/search/0", world_version="1", harness_hash="0", model_id="m", sampling=Sampling())
    grade = Grade(success=False, score=0.0)
    return Episode(id=spec.id, spec=spec, status=Status.COMPLETED, grade=grade, messages=messages, turns=tuple(played))


def blamed(*turns: int, unlocalizable: bool = False) -> dict[str, Any]:
    named = [{"turn": turn, "reason": f"because {turn}"} for turn in turns]
    return {"cause": "a cause", "counterfactual": "it would succeed", "turns": named, "unlocalizable": unlocalizable}


def test_a_structured_answer() -> None:
    """Promise 1."""
    model, source = judge(lambda text, number: blamed(4, 1))
    found = asyncio.run(source.open().blame(episode(6), k=3, evidence=[Suspect(1, "refused", "was refused", 1.0)]))
    assert [one.turn for one in found.turns] == [4, 1]
    assert (found.cause, found.counterfactual, found.unlocalizable) == ("a cause", "it would succeed", False)
    assert found.use.calls == 1
    assert "turn 1: was refused" in model.asked[0]
    assert all(f"said {index}" in model.asked[0] for index in range(6))


def test_unlocalizable_is_an_answer() -> None:
    """Promise 1."""
    found = asyncio.run(judge(lambda text, number: blamed(unlocalizable=True))[1].open().blame(episode(3), k=2))
    assert found.unlocalizable
    assert found.turns == ()


@pytest.mark.parametrize("bad", ["no json", blamed(9), blamed(), blamed(1, unlocalizable=True), blamed(0, 1, 2), {"turn": 1}])
def test_a_bad_answer_is_asked_for_once_more(bad: Any) -> None:
    """Promise 2."""
    model, source = judge(lambda text, number: bad if number == 0 else blamed(2))
    found = asyncio.run(source.open().blame(episode(4), k=2))
    assert [one.turn for one in found.turns] == [2]
    assert (found.use.calls, len(model.asked)) == (2, 2)
    never, source = judge(lambda text, number: bad)
    found = asyncio.run(source.open().blame(episode(4), k=2))
    assert (found.turns, found.unlocalizable, len(found.faults), len(never.asked)) == ((), False, 2, 2)


def test_all_at_once() -> None:
    found = asyncio.run(judge(lambda text, number: {"turn": 3, "reason": "r"}, JudgeStyle.ALL_AT_ONCE)[1].open().blame(episode(5), k=4))
    assert [one.turn for one in found.turns] == [3]


def test_step_by_step() -> None:
    """Promise 3."""
    model, source = judge(lambda text, number: {"mistake": number == 2, "reason": "r"}, JudgeStyle.STEP_BY_STEP)
    found = asyncio.run(source.open().blame(episode(6), k=1))
    assert [one.turn for one in found.turns] == [2]
    assert len(model.asked) == 3
    assert "said 2" in model.asked[2]
    assert "said 3" not in model.asked[2]
    nothing = asyncio.run(
        judge(lambda text, number: {"mistake": False, "reason": "r"}, JudgeStyle.STEP_BY_STEP)[1].open().blame(episode(3), k=1)
    )
    assert nothing.unlocalizable


@pytest.mark.parametrize("label", range(7))
def test_binary_search(label: int) -> None:
    """Promise 3."""

    def half(text: str, number: int) -> dict[str, str]:
        low, middle = (int(part.split(" ")[-1]) for part in text.rpartition("Is it among ")[2].split(", or")[0].split(" to "))
        return {"half": "earlier" if low <= label <= middle else "later", "reason": "r"}

    model, source = judge(half, JudgeStyle.BINARY_SEARCH)
    found = asyncio.run(source.open().blame(episode(7), k=1))
    assert [one.turn for one in found.turns] == [label]
    assert len(model.asked) <= 3


def test_a_transcript_is_numbered_and_cut() -> None:
    text = transcript(episode(3), last=1)
    assert "## Turn 1" in text
    assert "## Turn 2" not in text
    assert "the task" in text


@pytest.fixture(scope="module")
def case() -> Case:
    instance = load_family("payroll").instance(Stream.SEARCH, 5000, Size.MINI, diversity=3)
    return asyncio.run(cases(instance, FaultKind.WRONG_ARGUMENT, strength=1.0, slip=0.0))[0]


def stage(case: Case, tmp_path: Path, *judges: JudgeSource, depth: Depth | None = None, candidates: int = 3) -> LocalizeStage:
    return LocalizeStage(
        case.agent, LocalSource(str(tmp_path)), "found", "run", candidates, 6, 0.1, depth=depth, judges=judges, skip_same_call=True
    )


def test_a_stage_tries_what_a_judge_names(case: Case, tmp_path: Path) -> None:
    """Promise 4."""
    label = case.fault.turn
    _, right = judge(lambda text, number: blamed(label))
    _, wrong = judge(lambda text, number: {"turn": 0, "reason": "r"}, JudgeStyle.ALL_AT_ONCE)
    record, _ = asyncio.run(stage(case, tmp_path, wrong, right).open().localize(case.episode))
    assert record.turn == label
    assert record.method == "judge:all_at_once+judge:structured+replay"
    assert {one.method: one.turns for one in record.proposals} == {"judge:all_at_once": (0,), "judge:structured": (label,)}
    assert record.expert.calls == 2
    both, _ = asyncio.run(stage(case, tmp_path, wrong, depth=Depth.FULL, candidates=2).open().localize(case.episode))
    assert [one.method for one in both.proposals] == ["evidence", "judge:all_at_once"]
    assert 0 in {one.turn for one in both.candidates}
    assert len(both.candidates) <= 2
    nobody, _ = asyncio.run(stage(case, tmp_path, judge(lambda text, number: blamed(unlocalizable=True))[1]).open().localize(case.episode))
    assert (nobody.turn, nobody.candidates) == (None, ())


def test_configuration_of_judges() -> None:
    with pytest.raises(ConfigError, match="asks an LLM"):
        parse_config({"name": "run", "localize": {"judges": ["structured"]}})
    with pytest.raises(ConfigError, match="leaves nobody"):
        parse_config({"name": "run", "localize": {"evidence": "none"}})
