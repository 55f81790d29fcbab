"""An LLM expert's turn, its dialogue and its pace, without a wire.

1. A turn that fits its tool's schema reads back into every chat format; whatever does not fit is refused with words that name the fault.
2. A dialogue alternates roles, shows what the weak model saw and no more, and only ever grows at its end while an episode goes on.
3. A dialect concedes exactly what a refusal names, one thing at a time, and nothing for a refusal of the request itself.
4. A pace keeps both limits over any minute, whatever comes at once.
5. The second try carries the first answer and its fault; filtered, cut and empty answers are faults with reasons.
6. Prices: cached tokens are cheaper, no price is None and never 0, and an item paid for in an earlier round is not paid again.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo.chat import AnswerForm, Completion, FinishReason, Message, ModelRequest, Role, Sampling, ToolCall, ToolSpec, Usage
from coevo.errors import ModelError
from coevo.formats import FORMATS, chat_format
from coevo.models.dialect import Dialect, closed_everywhere
from coevo.models.pace import Pace
from coevo.models.structured import ask, find_json
from coevo.prices import load_prices
from coevo.records import Checkpoint, Episode, EpisodeSpec, ExpertUse, Grade, MessageRecord, Status, Turn
from coevo.rewrite.dialogue import play_dialogue, rewrite_dialogue
from coevo.rewrite.spend import expert_note, noted_spend, still_due, use_of
from coevo.rewrite.turn import read_turn, turn_json, turn_schema
from coevo.store.ledger import Spend


def spec(name: str, required: tuple[str, ...] = (), **properties: Any) -> ToolSpec:
    shape = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return ToolSpec(name, f"{name} something", shape)


TOOLS = (
    spec("get_record", ("employee",), employee={"type": "string"}),
    spec("submit_pay", ("employee", "amount"), employee={"type": "string"}, amount={"type": "integer"}),
    spec("finish"),
)


@pytest.mark.parametrize("syntax", sorted(FORMATS))
@pytest.mark.parametrize(
    "call",
    [ToolCall("get_record", {"employee": "E204"}), ToolCall("submit_pay", {"employee": "E204", "amount": 217}), ToolCall("finish", {})],
    ids=lambda call: call.name,
)
def test_a_turn_reads_back_in_every_format(syntax: str, call: ToolCall) -> None:
    """Promise 1."""
    written = chat_format(syntax)
    turn = read_turn(turn_json("Look at the record before paying. Then more. And more.", call), TOOLS, written)
    assert turn.strategy == "Look at the record before paying."
    parsed = written.parse(turn.text, TOOLS)
    assert (parsed.call, parsed.say) == (call, turn.strategy)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"strategy": "Go.", "call": {"name": "get_recrd", "arguments": {}}}, "unknown tool get_recrd"),
        ({"strategy": "Go.", "call": {"name": "get_record", "arguments": {}}}, "'employee' is a required property"),
        ({"strategy": "Go.", "call": {"name": "submit_pay", "arguments": {"employee": "E1", "amount": "much"}}}, "call.arguments.amount"),
        ({"strategy": "Go.", "call": {"name": "finish", "arguments": {"sure": True}}}, "'sure' was unexpected"),
        ({"strategy": " \n ", "call": {"name": "finish", "arguments": {}}}, "one sentence"),
        ({"strategy": "x" * 301, "call": {"name": "finish", "arguments": {}}}, "one sentence"),
        ({"strategy": "Go."}, "'call' is a required property"),
        ([1, 2], "not of type 'object'"),
    ],
)
def test_a_turn_that_does_not_fit_is_refused_by_name(value: Any, said: str) -> None:
    """Promise 1: the words go back to the model."""
    with pytest.raises(ModelError, match=said):
        read_turn(value, TOOLS, chat_format("hermes"))


def test_strict_decoding_is_asked_for_closed_schemas_only() -> None:
    """Promise 3: an endpoint refuses `strict` for a schema with an optional argument."""
    assert closed_everywhere(turn_schema(TOOLS))
    assert not closed_everywhere(turn_schema((*TOOLS, spec("search", (), words={"type": "string"}))))


def told(content: str, call: ToolCall | None = None, role: Role = Role.ASSISTANT) -> Message:
    return Message(role, content, (call,) if call else ())


def episode(messages: list[Message], turns: int) -> Episode:
    """A failed one whose turn t saw the messages up to its own."""
    spec_ = EpisodeSpec(task_key="payroll/mini/x/search/1", world_version="1", harness_hash="h", model_id="m", sampling=Sampling())
    return Episode(
        id=spec_.id,
        spec=spec_,
        status=Status.COMPLETED,
        grade=Grade(
            success=False,
            score=0.0,
            checkpoints=(
                Checkpoint(name="pay:E204", weight=1.0, passed=False, feedback="paid a wrong amount"),
                Checkpoint(name="pay:E9", weight=1.0, passed=True, feedback="never shown"),
            ),
        ),
        messages=tuple(MessageRecord(role=one.role, content=one.content) for one in messages),
        turns=tuple(
            Turn(
                message_index=tuple(range(2 + 2 * number)),
                prompt_shared=0,
                prompt_suffix=(),
                completion_text=messages[2 + 2 * number].content,
                result=messages[3 + 2 * number].content,
            )
            for number in range(turns)
        ),
    )


def test_a_dialogue_shows_the_view_of_the_weak_model() -> None:
    """Promise 2; the turn of a solved episode is not called a failed one."""
    syntax = chat_format("hermes")
    call = ToolCall("get_record", {"employee": "E204"})
    messages = [
        told("You audit payroll.", role=Role.SYSTEM),
        told("Audit department D17.", role=Role.USER),
        told(syntax.render_turn("Look.", call, TOOLS), call),
        told("hours 31", role=Role.TOOL),
        told("no call here at all"),
        told("no tool call found", role=Role.TOOL),
        told(syntax.render_turn("", ToolCall("finish", {}), TOOLS), ToolCall("finish", {})),
        told("finished", role=Role.TOOL),
    ]
    first, second = (play_dialogue(messages[:stop], TOOLS, syntax) for stop in (2, 4))
    assert second[: len(first)] == first
    assert [one.role for one in second] == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER]
    assert json.loads(second[2].content) == turn_json("Look.", call)
    for tool in TOOLS:
        assert json.dumps(dict(tool.parameters)) in first[0].content
    asked = rewrite_dialogue(messages[:6], episode(messages, 3), 2, tools=TOOLS, chat_format=syntax)
    assert all(a.role is not b.role for a, b in pairwise(asked))
    assert "no call here at all" in asked[-2].content
    for shown in ("no tool call found", "pay:E204: paid a wrong amount", '"finish"', "finished"):
        assert shown in asked[-1].content
    assert "never shown" not in "".join(one.content for one in asked)
    failed = episode(messages, 3)
    solved = failed.model_copy(update={"grade": Grade(success=True, score=1.0, checkpoints=())})
    confirming = rewrite_dialogue(messages[:6], solved, 2, tools=TOOLS, chat_format=syntax)
    assert confirming[:-1] == asked[:-1]
    assert "solved the task" in confirming[-1].content
    assert "failed" not in confirming[-1].content


class Answers:
    """A ChatModel that gives these completions, one per call, and keeps the requests."""

    model_id = "answers"

    def __init__(self, *completions: Completion | ModelError) -> None:
        self.left = deque(completions)
        self.asked: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> Completion:
        self.asked.append(request)
        answer = self.left.popleft()
        if isinstance(answer, ModelError):
            raise answer
        return answer

    async def aclose(self) -> None:
        return None


GOOD = json.dumps(turn_json("Finish now.", ToolCall("finish", {})))
QUESTION = ModelRequest((Message(Role.USER, "q"),), (), Sampling(), "s", 5, answer_schema=turn_schema(TOOLS))


def asked(*completions: Completion | ModelError) -> tuple[Any, Answers]:
    model = Answers(*completions)
    return asyncio.run(ask(model, QUESTION, lambda value: read_turn(value, TOOLS, chat_format("mini")))), model


def test_a_second_try_carries_the_fault() -> None:
    """Promise 5."""
    usage = Usage(10, 0, 3)
    answer, model = asked(
        Completion("I would finish.", usage=usage), Completion(f"```json\n{GOOD}\n```", usage=usage, form=AnswerForm.PLAIN)
    )
    assert answer.value.call == ToolCall("finish", {})
    assert (answer.calls, answer.usage, answer.form) == (2, Usage(20, 0, 6), AnswerForm.PLAIN)
    assert answer.faults == ("no JSON object found",)
    again = model.asked[1].messages
    assert again[1] == Message(Role.ASSISTANT, "I would finish.")
    assert "no JSON object found" in again[2].content
    assert model.asked[0].seed != model.asked[1].seed


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (Completion("", FinishReason.FILTERED), "content filter"),
        (Completion(GOOD[:20], FinishReason.LENGTH), "cut at max_tokens"),
        (Completion(""), "no JSON"),
        (ModelError("the endpoint refused the request", seen="too long"), "too long"),
    ],
    ids=["filtered", "cut", "empty", "refused"],
)
def test_unusable_answers_end_with_their_reasons(first: Completion | ModelError, reason: str) -> None:
    """Promise 5: no third try, nothing raised."""
    answer, model = asked(first, first)
    assert answer.value is None
    assert len(answer.faults) == len(model.asked) == 2
    assert all(reason in fault for fault in answer.faults)


def test_thinking_aloud_is_no_answer() -> None:
    """Promise 5: a reasoning model's draft is passed over."""
    answer, model = asked(Completion(f'<think>maybe {{"strategy": 1}}</think>\n{GOOD}'))
    assert answer.value.strategy == "Finish now."
    assert len(model.asked) == 1


@given(st.text(alphabet='{}[]":,ab \\\n', max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Promise 5: whatever a model writes is a value or a `ModelError`."""
    with suppress(ModelError):
        assert isinstance(find_json(text), dict)


def test_a_dialect_concedes_what_is_named() -> None:
    """Promise 3."""
    plain = {"model": "m", "messages": [], "max_tokens": 9, "seed": 1, "temperature": 0.5}
    dialect, schema = Dialect(), turn_schema(TOOLS)
    body = dialect.worded(plain, schema)
    assert body["response_format"]["json_schema"]["strict"] is True
    assert not dialect.concede("maximum context length is 8 tokens, 3 in the functions", body, form=AnswerForm.SCHEMA)
    assert not dialect.concede("you are over your quota", body, form=AnswerForm.SCHEMA)
    assert dialect.worded(plain, schema) == body
    lax = Dialect()
    assert lax.concede("unknown field: strict", body, form=AnswerForm.SCHEMA)
    assert "strict" not in lax.worded(plain, schema)["response_format"]["json_schema"]
    assert dialect.concede("response_format is not supported", body, form=AnswerForm.SCHEMA)
    assert dialect.concede("unknown field response_format", body, form=AnswerForm.SCHEMA)  # a request sent before the concession
    body = dialect.worded(plain, schema)
    assert "response_format" not in body
    assert body["tool_choice"]["function"]["name"] == body["tools"][0]["function"]["name"]
    assert body["tools"][0]["function"]["strict"] is True
    assert dialect.concede('tool_choice=function "answer" requires --tool-call-parser to be set', body, form=AnswerForm.TOOL)
    assert dialect.concede("use 'max_completion_tokens' instead of 'max_tokens'", body, form=None)
    assert dialect.concede("temperature does not support 0.5", plain, form=None)
    assert dialect.worded(plain, schema) == {"model": "m", "messages": [], "seed": 1, "max_completion_tokens": 9}
    assert dialect.form is AnswerForm.PLAIN


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(30, 600), st.integers(1_000, 9_000))
def test_a_pace_keeps_its_limits(sizes: list[int], requests: int, tokens: int) -> None:
    """Promise 4: all come at once; in every window of a minute no more start than the limits and the first burst allow."""
    starts: list[tuple[float, int]] = []

    async def all_at_once() -> None:
        now = 0.0

        async def never(seconds: float) -> None:
            starts[-1] = (now + seconds, starts[-1][1])

        pace = Pace(requests, tokens, clock=lambda: now, sleep=never)
        for size in sizes:
            starts.append((now, size))
            await pace.enter(size)

    asyncio.run(all_at_once())
    for index, (begin, _) in enumerate(starts):
        window = [size for at, size in starts[index:] if at < begin + 60.0]
        assert len(window) <= requests * 65 / 60 + 1
        assert sum(window) <= tokens * 65 / 60 + max(sizes)
    assert [at for at, _ in starts] == sorted(at for at, _ in starts)


def test_tokens_not_used_are_given_back() -> None:
    """Promise 4."""
    waits: list[float] = []

    async def run(used: int) -> None:
        async def note(seconds: float) -> None:
            waits.append(seconds)

        pace = Pace(None, 600, clock=lambda: 0.0, sleep=note)
        await pace.enter(50)
        pace.correct(estimated=50, used=used)
        await pace.enter(50)

    asyncio.run(run(0))
    asyncio.run(run(50))
    assert waits == [pytest.approx(5.0)]


def test_dollars_are_known_or_none() -> None:
    """Promise 6, I10: an unknown price is never a free call."""
    sheet = load_prices()
    price = next(one for one in sheet.tokens.values() if one.cached is not None and one.cached < one.prompt)
    usage = Usage(1_000_000, 400_000, 10_000)
    whole = use_of(Usage(1_000_000, 0, 10_000), calls=1, price=price)
    part = use_of(usage, calls=2, price=price, form=AnswerForm.TOOL)
    assert part.usd is not None
    assert whole.usd is not None
    assert part.usd < whole.usd
    unknown = use_of(usage, calls=1, price=None)
    assert unknown.usd is None
    assert (part + unknown).usd is None
    assert (part + part).usd == pytest.approx(2 * part.usd)
    assert noted_spend({"expert": expert_note(part)}) == Spend(usd=part.usd, tokens=1_010_000)
    assert noted_spend({"expert": expert_note(ExpertUse())}) == noted_spend({"turn": 3}) == noted_spend(None) == Spend()


def test_later_rounds_pay_the_rest() -> None:
    """Promise 6: an owed item's cost is due in the round that ends it, and nothing is due twice."""
    first = [Spend(usd=1.0, tokens=10), Spend(usd=0.5, tokens=5)]
    paid = still_due(first, [])
    assert paid == Spend(usd=1.5, tokens=15)
    assert still_due([*first, Spend(usd=2.0, tokens=20)], [paid]) == Spend(usd=2.0, tokens=20)
    assert still_due(first[:1], [paid]) == Spend()
    assert still_due([Spend(usd=None, tokens=30)], [paid]) == Spend(usd=None, tokens=15)
