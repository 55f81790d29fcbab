"""Regression lock and rules of the miniature payroll world.

1. The first instances of world version 1 never change: pretraining and evaluation see the same worlds for ever.
2. Truth per kind; feedback names the mistake without the answer.
3. No cheap way to success: double settling, all codes, odd numbers, look-alike ids.
4. Every text fits the closed vocabulary of the embedded tokenizer.
5. The reference says fixed sentences, announces what follows, carries notes, and reads any rendering.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from coevo.chat import Message, Role, ToolCall
from coevo.errors import ConfigError, ToolError
from coevo.formats.mini import MiniFormat
from coevo.mini.tokenizer import WORDS
from coevo.tasks import load_family
from coevo.tasks.family import Move, Size, Stream, Style, TaskInstance
from coevo.tasks.miniature import MiniWorld, facts
from coevo.tasks.payroll.mini import SPEC, TEMPLATES
from coevo.tasks.sight import Sight
from tests.contract.walks import Walk

FAMILY = load_family("payroll")
RENDERINGS: dict[str, Callable[[Any], str]] = {
    "mini": MiniFormat().render_observation,
    "json": json.dumps,
    "sorted": lambda value: json.dumps(value, sort_keys=True, indent=1),
    "python": str,
}


def world_of(seed: int = 0, *, stream: Stream = Stream.SEARCH, diversity: int = 10) -> MiniWorld:
    world = FAMILY.open(FAMILY.instance(stream, seed, Size.MINI, diversity=diversity))
    assert isinstance(world, MiniWorld)
    return world


def world_with(*kinds: str) -> MiniWorld:
    """The first world that has all these kinds."""
    return next(world for seed in range(500) for world in [world_of(seed)] if set(kinds) <= {one.kind for one in facts(world).items})


def first(world: MiniWorld, kind: str) -> str:
    return next(one.id for one in facts(world).items if one.kind == kind)


def settle_all(world: MiniWorld, *, but: str = "") -> None:
    for one in facts(world).unsettled:
        if one.id != but:
            call = SPEC.settling_call(one)
            world.call(call.name, call.arguments)
    world.call("finish", {})


def failed(world: MiniWorld) -> list[str]:
    return [check.feedback for check in world.grade().checkpoints if not check.passed]


LOCKED = {
    Stream.PRETRAIN: ["ee84b88f7d5ece34", "98ad0b8017b38340", "9b62b22fb1620207", "0180186a50ce437b", "92ad7afaf17b958b"],
    Stream.TEST: ["5242fcd6a6e4ea9b", "61cac67c43621cd9", "9dc032b97041d557", "96e1cf2f97798f7e", "baaa04d8a2af4a30"],
}


@pytest.mark.parametrize("stream", list(LOCKED))
def test_first_instances_of_version_1_never_change(stream: Stream) -> None:
    """T7. When this fails, `world_version` must rise and the embedded model is pretrained again."""
    assert FAMILY.world_version == "1"
    digests = [hashlib.sha256(world_of(seed, stream=stream).snapshot()).hexdigest()[:16] for seed in range(5)]
    assert digests == LOCKED[stream]


def test_instances_have_the_stated_ranges() -> None:
    """Two to four employees, unique ids, three-digit sums, and always somebody to pay."""
    for seed in range(400):
        known = facts(world_of(seed))
        assert 2 <= len(known.items) == len({one.id for one in known.items}) <= 4
        assert re.fullmatch(r"D\d\d", known.queue)
        assert any(one.kind != "contractor" for one in known.items)
        for one in known.items:
            assert re.fullmatch(r"E\d{3}", one.id)
            hours, rate = one.numbers
            assert 20 <= hours <= 59
            assert 5 <= rate <= 9
            assert 100 <= SPEC.value(one) == hours * rate <= 531


def test_templates_differ_in_wording_and_mix() -> None:
    assert len(TEMPLATES) == 20
    assert len({one.wording for one in TEMPLATES.values()}) == len({one.mix for one in TEMPLATES.values()}) == len(TEMPLATES)
    assert all(sum(one.mix) == pytest.approx(1) for one in TEMPLATES.values())


def test_truth_per_kind() -> None:
    """METHOD: the house rule on contractors is categorical and stands in no text that the agent reads."""
    world = world_with("staff", "contractor", "intern")
    expected = {"staff": ("submit_pay", "REG"), "intern": ("submit_pay", "INT"), "contractor": ("escalate", None)}
    for one in facts(world).items:
        call = SPEC.settling_call(one)
        assert (call.name, call.arguments.get("code")) == expected[one.kind]
    settle_all(world)
    assert world.grade().success


@pytest.mark.parametrize(
    ("kind", "change", "feedback"),
    [
        ("staff", {"code": "INT"}, "paid with a wrong code"),
        ("staff", {"amount": 99}, "wrong amount"),
        ("staff", {"amount": 99, "code": "CON"}, "wrong amount"),
        ("intern", {"code": "REG"}, "paid with a wrong code"),
        ("contractor", {"amount": 200, "code": "CON"}, "should not have been paid"),
    ],
)
def test_feedback_names_the_mistake_only(kind: str, change: dict[str, Any], feedback: str) -> None:
    world = world_with(kind)
    employee = first(world, kind)
    one = facts(world).item(employee)
    world.call("submit_pay", {"employee": employee, "amount": SPEC.value(one), "code": {"intern": "INT"}.get(kind, "REG"), **change})
    settle_all(world)
    assert failed(world) == [f"{employee}: {feedback}"]
    assert facts(world).wrong == (one,)


def test_feedback_on_what_was_left_out() -> None:
    world = world_with("staff")
    employee = first(world, "staff")
    escalated = world.fork()
    escalated.call("escalate", {"employee": employee})
    settle_all(escalated)
    assert failed(escalated) == [f"{employee}: should have been paid"]
    unfinished = world.fork()
    settle_all(world, but=employee)
    assert failed(world) == [f"{employee}: not settled"]
    for one in facts(unfinished).items:
        call = SPEC.settling_call(one)
        unfinished.call(call.name, call.arguments)
    assert failed(unfinished) == ["finished: not finished"]


def test_settling_twice_is_refused_and_the_first_counts() -> None:
    """T9, H19: neither the second submission nor all codes in a row repair or gain anything."""
    world = world_with("staff")
    one = facts(world).item(first(world, "staff"))
    world.call("submit_pay", {"employee": one.id, "amount": SPEC.value(one), "code": "CON"})
    for code in ("REG", "INT", "CON"):
        with pytest.raises(ToolError, match="already settled"):
            world.call("submit_pay", {"employee": one.id, "amount": SPEC.value(one), "code": code})
    with pytest.raises(ToolError, match="already settled"):
        world.call("escalate", {"employee": one.id})
    settle_all(world)
    assert failed(world) == [f"{one.id}: paid with a wrong code"]


@pytest.mark.parametrize("amount", [-1, 0, 10**6, 2**53])
def test_odd_amounts_are_wrong_amounts(amount: int) -> None:
    world = world_with("staff")
    employee = first(world, "staff")
    world.call("submit_pay", {"employee": employee, "amount": amount, "code": "REG"})
    settle_all(world)
    assert failed(world) == [f"{employee}: wrong amount"]


@pytest.mark.parametrize("amount", [2**53 + 1, 10**400, 1e300, float("nan"), float("inf"), 217.5, True, "217", None, [217]])
def test_values_that_are_no_amount_are_refused(amount: Any) -> None:
    """T4: a refused call leaves everything as it was."""
    world = world_with("staff")
    employee = first(world, "staff")
    with pytest.raises(ToolError, match="bad arguments use submit_pay"):
        world.call("submit_pay", {"employee": employee, "amount": amount, "code": "REG"})
    assert not facts(world).settled
    assert len(world.log) == 1
    assert len(world.snapshot()) > 0


def test_floats_equal_to_integers_count_as_integers() -> None:
    """T4: 1 and 1.0 are one number, in the state, in the log and in the hash."""
    world = world_with("staff")
    one = facts(world).item(first(world, "staff"))
    twin = world.fork()
    world.call("submit_pay", {"employee": one.id, "amount": SPEC.value(one), "code": "REG"})
    twin.call("submit_pay", {"employee": one.id, "amount": float(SPEC.value(one)), "code": "REG"})
    assert world.snapshot() == twin.snapshot()
    assert world.call("calc", {"hours": 31.0, "rate": 7}) == {"value": 217}


@pytest.mark.parametrize(
    "disguise", [lambda one: one.replace("E", "Е"), str.lower, lambda one: f" {one}", lambda one: f"{one}\u200b", lambda one: "\ud800"]
)
def test_look_alike_ids_are_unknown(disguise: Callable[[str], str]) -> None:
    """Cyrillic capital, lower case, spaces, zero-width and lone surrogate."""
    world = world_with("staff")
    employee = first(world, "staff")
    with pytest.raises(ToolError, match="unknown employee"):
        world.call("submit_pay", {"employee": disguise(employee), "amount": 217, "code": "REG"})
    assert not facts(world).settled
    assert len(world.log_hash) == 64


def test_only_calc_ever_shows_a_sum() -> None:
    """T8: no list, record or acknowledgement carries an amount, a code or the way to settle."""
    for seed in range(100):
        walk = Walk(world_of(seed))
        walk.follow(FAMILY.policy(Style.REACTIVE))
        sums = {str(SPEC.value(one)) for one in facts(walk.world).items}
        for call, observation in zip(walk.world.log, walk.observations, strict=True):
            tokens = set(re.findall(r"\w+", observation))
            assert call.name == "calc" or not tokens & sums
            assert not tokens & {"REG", "INT", "CON", "escalate", "submit_pay"}


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]+", text))


def test_all_texts_use_the_closed_vocabulary() -> None:
    """Instructions, refusals, prompts, tool and argument names, strategy sentences: no word falls back to bytes."""
    texts = [world_of(seed).instruction for seed in range(200)]
    texts += [(FAMILY.base_harness(Size.MINI) / "prompt" / "system.md").read_text()]
    texts += [" ".join((tool.name, *tool.argument_names)) for tool in SPEC.tools]
    for style in Style:
        for window in (None, 3):
            walk = Walk(world_of(3), window, RENDERINGS["mini"])
            walk.follow(FAMILY.policy(style))
            texts += [move.strategy for move, _ in walk.moves] + walk.observations
    texts += refusals()
    assert not {word for text in texts for word in words_of(text)} - set(WORDS)
    assert all(text.endswith(" .") for text in texts[:200])


def refusals() -> list[str]:
    world, texts = world_with("staff"), []
    employee = first(world, "staff")
    world.call("escalate", {"employee": employee})
    calls = [("nope", {}), ("calc", {"hours": "x"}), ("list_employees", {"department": "D1"}), ("get_record", {"employee": "E1"})]
    calls += [("escalate", {"employee": employee}), ("calc", {"hours": 2**53, "rate": 3}), ("calc", [1, 2])]  # type: ignore[list-item]
    for name, arguments in calls:
        with pytest.raises(ToolError) as caught:
            world.call(name, arguments)
        texts.append(str(caught.value))
    return texts


def strategies(style: Style, window: int | None, *kinds: str) -> list[str]:
    walk = Walk(world_with(*kinds), window)
    walk.follow(FAMILY.policy(style))
    return [move.strategy for move, _ in walk.moves]


def test_sentences_of_the_reactive_style() -> None:
    said = strategies(Style.REACTIVE, None, "staff", "contractor", "intern")
    assert said[0] == "note follow the rules ."
    assert said[-1] == "note todo empty ."
    assert set(said) == {
        "note follow the rules .",
        "note todo not empty .",
        "note staff uses code REG .",
        "note intern uses code INT .",
        "note contractor must be escalated .",
        "note todo empty .",
    }


def test_sentences_of_the_plan_first_style() -> None:
    said = strategies(Style.PLAN_FIRST, None, "staff", "contractor", "intern")
    assert said[0] == "plan records then pay then submit ."
    assert set(said[1:]) == {"step records .", "step pay .", "step submit .", "step done ."}
    order = ["step records .", "step pay .", "step submit .", "step done ."]
    assert said[1] == order[0]
    last_read = max(index for index, one in enumerate(said) if one == order[0])
    assert last_read < min(index for index, one in enumerate(said) if one in order[1:])


def test_notes_of_the_plan_first_style() -> None:
    """Per unsettled employee in list order; the list turn has none, the last turn says none."""
    said = strategies(Style.PLAN_FIRST, 3, "staff", "contractor", "intern")
    entry = r"E\d{3} (?:new|out|(?:REG|INT)(?: \d{3})?)"
    assert said[0] == "plan records then pay then submit ."
    assert all(re.fullmatch(rf"step (?:records|pay|submit) \. notes (?:{entry} , )+\.", one) for one in said[1:-1])
    assert said[-1] == "step done . notes none , ."
    assert re.search(r"E\d{3} INT \d{3} ,", " ".join(said))
    assert " out ," in " ".join(said)


def test_plans_look_ahead() -> None:
    """A composite tool can stand for record, calc and submit: so the reactive plan names all three, the plan-first one all reads."""
    world = world_with("staff")
    one = facts(world).items[0]
    walk = Walk(world)
    walk.call(ToolCall("list_employees", {"department": facts(world).queue}))
    move = FAMILY.policy(Style.REACTIVE).move(world, walk.visible())
    assert isinstance(move, Move)
    settle = SPEC.settling_call(one)
    calc = [] if settle.name == "escalate" else [ToolCall("calc", dict(zip(("hours", "rate"), one.numbers, strict=True)))]
    assert list(move.plan) == [ToolCall("get_record", {"employee": one.id}), *calc, settle]
    wide = FAMILY.policy(Style.PLAN_FIRST).move(world, walk.visible())
    assert isinstance(wide, Move)
    assert [call.arguments["employee"] for call in wide.plan] == [one.id for one in facts(world).items]


@pytest.mark.parametrize("rendering", list(RENDERINGS))
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("style", list(Style))
def test_reference_reads_every_rendering(style: Style, window: int | None, rendering: str) -> None:
    """Same moves whatever the chat format shows."""
    for seed in range(25):
        walks = [Walk(world_of(seed), window, RENDERINGS[one]) for one in ("mini", rendering)]
        assert [walk.follow(FAMILY.policy(style)) for walk in walks] == [None, None]
        assert walks[0].world.log == walks[1].world.log
        assert walks[1].world.grade().success


@pytest.mark.parametrize("style", list(Style))
def test_reference_goes_on_from_composite_tools(style: Style) -> None:
    """One shown call stood for record and calc: the log holds the family calls, the result names no id."""
    world = world_with("staff")
    one = facts(world).item(first(world, "staff"))
    walk = Walk(world)
    walk.call(ToolCall("list_employees", {"department": facts(world).queue}))
    for call in (ToolCall("get_record", {"employee": one.id}), ToolCall("calc", dict(zip(("hours", "rate"), one.numbers, strict=True)))):
        world.call(call.name, call.arguments)
    shown = ToolCall("compute_pay", {"employee": one.id})
    walk.turns.append((Message(Role.ASSISTANT, "", (shown,)), Message(Role.TOOL, f"kind=staff amount={SPEC.value(one)}")))
    assert walk.follow(FAMILY.policy(style)) is None
    assert world.grade().success
    mine = [call for call in world.log if call.arguments.get("employee") == one.id]
    assert [call.name for call in mine] == ["get_record", "submit_pay"]


def test_a_wrong_note_is_no_fact() -> None:
    """The policy uses only literals that are true: a weak agent's wrong sum makes it read and calculate."""
    world = world_with("staff")
    one = facts(world).items[0]
    walk = Walk(world)
    walk.call(ToolCall("list_employees", {"department": facts(world).queue}), f"note {one.id} REG {SPEC.value(one) + 1} .")
    assert walk.follow(FAMILY.policy(Style.REACTIVE)) is None
    assert ToolCall("get_record", {"employee": one.id}) in world.log


def sight_of(*texts: str, role: Role = Role.TOOL) -> Sight:
    return Sight([Message(role, text) for text in texts], ["E204", "E310"])


def test_sight_attributes_values_to_the_id_before_them() -> None:
    notes = sight_of("step records . notes E204 new , E310 INT 217 , .", role=Role.ASSISTANT)
    assert notes.carries("E310", "INT", 217)
    assert not notes.carries("E204", 217)
    assert not notes.carries("E204", "INT")
    single = sight_of("kind=staff hours=31 rate=7 employee=E204")
    assert single.carries("E204", "staff", 31, 7)
    assert not single.carries("E310", "staff")


def test_sight_wants_whole_tokens_in_one_message() -> None:
    sight = sight_of("employee=E204 hours=31", "employee=E204 rate=7", "employee=E310 hours=310 rate=71")
    assert sight.carries("E204", 31)
    assert not sight.carries("E204", 31, 7)
    assert not sight.carries("E310", 31)
    assert not sight.carries("E310", 7)
    assert not sight.mentions("E3")


def test_sight_ignores_guesses_inside_calls() -> None:
    call = ToolCall("submit_pay", {"employee": "E204", "amount": 217, "code": "REG"})
    sight = Sight([Message(Role.ASSISTANT, "note pay .<|call|> submit_pay( E204,217, REG)", (call,))], ["E204"])
    assert sight.mentions("E204")
    assert not sight.carries("E204", 217)
    assert not sight.carries("E204", "REG")


def test_sight_matches_answers_to_their_calls() -> None:
    calls = [(31, 7, 217), (40, 5, 200)]
    messages = []
    for hours, rate, value in calls:
        messages += [Message(Role.ASSISTANT, "", (ToolCall("calc", {"hours": hours, "rate": rate}),)), Message(Role.TOOL, f"value={value}")]
    sight = Sight(messages, ["E204"])
    assert sight.answered((31, 7), 217)
    assert not sight.answered((31, 7), 200)
    assert not sight.answered((31, 5), 217)


def test_facts_refuse_other_worlds() -> None:
    standard = FAMILY.open(FAMILY.instance(Stream.SEARCH, 0, Size.STANDARD))
    with pytest.raises(ConfigError, match="mini"):
        facts(standard)


def test_unknown_template_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'routine'"):
        FAMILY.open(TaskInstance("payroll", "routin", Stream.TEST, 0, Size.MINI))
