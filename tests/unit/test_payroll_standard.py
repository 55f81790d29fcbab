"""Rules of the standard payroll world.

1. The first instances of world version 1 never change.
2. Truth, computed here a second time from the published rules, agrees; documents in force say what the grader applies (T2).
3. Every rule of a template decides a case in every instance.
4. The calculator is exact and refuses everything that is not arithmetic.
5. No cheap way to success.
"""

from __future__ import annotations

import hashlib
import json
import re
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coevo.chat import ToolCall
from coevo.errors import ConfigError, ToolError
from coevo.tasks import load_family
from coevo.tasks.family import Move, Size, Stream, Style
from coevo.tasks.payroll.arithmetic import Rounding, evaluate, plain_number, round_to
from coevo.tasks.payroll.rulebook import (
    Addition,
    Atom,
    Person,
    Rules,
    Topic,
    WidePerson,
    WideRules,
    deciding_atom,
    pay_expression,
    settling_call,
    topics_of,
)
from coevo.tasks.payroll.standard import BATCH, TEMPLATES, StandardWorld, facts
from tests.contract.walks import Walk

FAMILY = load_family("payroll")


def world_of(seed: int = 0, *, stream: Stream = Stream.SEARCH, diversity: int = len(TEMPLATES)) -> StandardWorld:
    world = FAMILY.open(FAMILY.instance(stream, seed, Size.STANDARD, diversity=diversity))
    assert isinstance(world, StandardWorld)
    return world


def failed(world: StandardWorld) -> list[str]:
    return [check.feedback for check in world.grade().checkpoints if not check.passed]


def settle_all(world: StandardWorld) -> None:
    for one in facts(world).unsettled:
        call = settling_call(facts(world).data.rules, one)
        world.call(call.name, call.arguments)
    world.call("finish", {})


LOCKED = ["fe0ac94925e25427", "469a0dd02a4161da", "a7f8e1aace41d0fe", "d0e73408ecc14836", "7d3e9b532ad3bd7f"]


def test_first_instances_of_version_1_never_change() -> None:
    """T7. When this fails, `world_version` must rise."""
    assert FAMILY.world_version == "1"
    assert [hashlib.sha256(world_of(seed, stream=Stream.TEST, diversity=6).snapshot()).hexdigest()[:16] for seed in range(5)] == LOCKED


def decimal_of(number: float) -> Decimal:
    return Decimal(str(number))


def rounded(rules: Rules, exact: Decimal) -> Decimal:
    step = decimal_of(rules.step)
    return (exact / step).to_integral_value(ROUND_HALF_UP if rules.mode is Rounding.HALF_UP else ROUND_FLOOR) * step


def truth_by_hand(rules: Rules, person: Person) -> tuple[str, Any, Any]:
    """A second implementation, in decimals and in the order of the escalation document."""
    reasons = dict(rules.atoms)
    hours = [decimal_of(week) for week in person.weeks if week is not None]
    overtime = sum((max(week - decimal_of(rules.threshold), Decimal(0)) for week in hours), Decimal(0))
    overtime = overtime if person.kind in rules.overtime_kinds else Decimal(0)
    stopped = [
        (Atom.GAP, len(hours) < 4, "hold"),
        (Atom.RATE_CEILING, person.rate > rules.rate_ceiling, "escalate"),
        (Atom.CONTRACTOR_CAP, person.kind == "contractor" and sum(hours) > rules.contractor_cap, "escalate"),
        (Atom.INTERN_CAP, person.kind == "intern" and max(hours) > rules.intern_cap, "escalate"),
        (Atom.APPROVAL, overtime > 0 and person.approval != "approved", "hold"),
    ]
    exact = (sum(hours) - overtime + overtime * decimal_of(rules.multiplier)) * decimal_of(person.rate)
    if isinstance(rules, WideRules) and isinstance(person, WidePerson):
        exact += sum(hours) * decimal_of(rules.night_rate) if Addition.NIGHT in rules.additions and person.shift == "night" else 0
        exact -= person.advance * decimal_of(rules.advance_share) if Addition.ADVANCE in rules.additions else 0
        stopped += [
            (Atom.LEFT, person.status == "left", "escalate"),
            (Atom.BANK, person.bank == "changed", "hold"),
            (Atom.FEW_HOURS, person.kind == "staff" and sum(hours) < rules.minimum_hours, "hold"),
            (Atom.LARGE_SUM, rounded(rules, exact) > rules.sum_limit, "escalate"),
        ]
    for atom, applies, name in stopped:
        if atom in reasons and applies:
            return name, reasons[atom], None
    return (
        "submit_pay",
        float(rounded(rules, exact)),
        rules.codes[("staff", "temp", "contractor", "intern").index(person.kind)],
    )


def test_truth_agrees_with_a_second_implementation() -> None:
    """T2, T6: labels computed by code, twice."""
    kinds = set()
    for seed in range(120):
        data = facts(world_of(seed)).data
        for person in data.people:
            call = settling_call(data.rules, person)
            name, value, code = truth_by_hand(data.rules, person)
            assert call.name == name, (seed, person)
            if name == "submit_pay":
                assert call.arguments["amount"] == pytest.approx(value, abs=1e-9)
                assert call.arguments["code"] == code
            else:
                assert call.arguments["reason"] == value
            kinds.add((name, person.kind))
    assert len(kinds) >= 9


def test_every_rule_decides_a_case_and_overtime_is_paid() -> None:
    for seed in range(120):
        data = facts(world_of(seed)).data
        decided = [deciding_atom(data.rules, person) for person in data.people]
        assert {atom for atom, _ in data.rules.atoms} <= set(decided), seed
        assert any(
            atom is None and "*" in pay_expression(data.rules, person).partition("*")[2]
            for atom, person in zip(decided, data.people, strict=True)
        )
        assert 6 <= len(data.people) <= 14
        assert len({person.id for person in data.people}) == len(data.people)


def test_templates_apply_different_rules() -> None:
    assert len(TEMPLATES) == 20
    assert (
        len({(one.atoms, one.draft, one.additions) for one in TEMPLATES.values()})
        == len({one.wording for one in TEMPLATES.values()})
        == len(TEMPLATES)
    )
    used = {world_of(seed).instance.template for seed in range(120)}
    assert used == set(TEMPLATES)


def test_documents_in_force_state_the_rules_and_older_ones_state_others() -> None:
    """T2: policy texts and checker come from one source; a superseded version names its successor and would mislead."""
    for seed in range(60):
        data = facts(world_of(seed)).data
        rules = data.rules
        current = {one.topic: one for one in data.library if one.topic is not None}
        assert set(current) == set(topics_of(rules))
        time = re.search(
            r"hours beyond ([\d.]+) .* paid at ([\d.]+) times .* multiple of ([\d.]+) \(mode (\w+)\)", current[Topic.TIME].text
        )
        assert time is not None
        assert tuple(map(float, time.groups()[:3])) == (rules.threshold, rules.multiplier, rules.step)
        assert time[4] == rules.mode
        for kind, code in re.findall(r"(staff|temp|contractor|intern) (\w\d\d)", current[Topic.CODES].text):
            assert rules.code(kind) == code
        stated = re.findall(r"(hold|escalate) with reason (\w\d\d)", current[Topic.ESCALATION].text)
        assert [reason for _, reason in stated] == [reason for _, reason in rules.atoms]
        for topic, one in current.items():
            old = [other for other in data.library if f"replaced by {one.id}" in other.text]
            assert len(old) == 1, topic
            assert old[0].title == one.title
            assert old[0].text.partition(". ")[0] != one.text.partition(". ")[0]
            assert not old[0].facts


def test_documents_can_be_found_by_their_words() -> None:
    for seed in range(30):
        world = world_of(seed)
        for one in facts(world).data.library:
            hits = world.call("search_documents", {"query": one.title})["documents"]
            assert len(hits) <= 5
            assert one.id in {hit["document"] for hit in hits}, one.title
            assert world.call("read_document", {"document": one.id})["text"] == one.text
        assert world.call("search_documents", {"query": "zebra"}) == {"documents": []}


def test_pages_show_everyone_once() -> None:
    world = world_of(1)
    department, page, shown = facts(world).data.department, 1, []
    while True:
        result = world.call("list_employees", {"department": department, "page": page})
        shown += [one["employee"] for one in result["employees"]]
        assert len(result["employees"]) <= BATCH
        if page == result["pages"]:
            break
        page += 1
    assert shown == [one.id for one in facts(world).data.people]
    assert world.call("list_employees", {"department": department.upper()})["page"] == 1
    for arguments in ({"department": department, "page": page + 1}, {"department": department, "page": 0}, {"department": "Zoo"}):
        with pytest.raises(ToolError):
            world.call("list_employees", arguments)


def test_batches_are_bounded_and_checked() -> None:
    world = world_of(1)
    ids = [one.id for one in facts(world).data.people]
    assert len(world.call("get_records", {"employees": [ids[0], ids[0]]})["records"]) == 1
    for bad in ([], ids[: BATCH + 1], [ids[0], "E1"], ids[0]):
        with pytest.raises(ToolError):
            world.call("get_records", {"employees": bad})


@pytest.mark.parametrize(
    ("change", "feedback"),
    [
        ({"amount": 0.01}, "wrong amount"),
        ({"code": "Q10"}, "paid with a wrong code"),
        ({"code": "q"}, "paid with a wrong code"),
        ({"amount": -5, "code": "Q10"}, "wrong amount"),
    ],
)
def test_feedback_on_payments(change: dict[str, Any], feedback: str) -> None:
    world = world_of(2)
    data = facts(world).data
    one = next(person for person in data.people if settling_call(data.rules, person).name == "submit_pay")
    world.call("submit_pay", {**settling_call(data.rules, one).arguments, **change})
    settle_all(world)
    assert failed(world) == [f"{one.id}: {feedback}"]


def test_feedback_on_stopped_cases_gives_no_answer_away() -> None:
    world = next(world for seed in range(50) for world in [world_of(seed)] if world.instance.template == "full")
    data = facts(world).data
    stopped = [person for person in data.people if settling_call(data.rules, person).name != "submit_pay"]
    paid = next(person for person in data.people if person not in stopped)
    right = [settling_call(data.rules, person) for person in stopped]
    world.call("submit_pay", {"employee": stopped[0].id, "amount": 1, "code": "A10"})
    world.call("escalate" if right[1].name == "hold" else "hold", right[1].arguments)
    world.call(right[2].name, {**right[2].arguments, "reason": "Q99"})
    world.call("hold", {"employee": paid.id, "reason": "Q99"})
    settle_all(world)
    expected = {
        stopped[0].id: "should not have been paid",
        stopped[1].id: "settled in a wrong way",
        stopped[2].id: "settled for a wrong reason",
        paid.id: "should have been paid",
    }
    assert sorted(failed(world)) == sorted(f"{one}: {text}" for one, text in expected.items())


def test_settling_twice_is_refused_in_every_way() -> None:
    world = world_of(3)
    one = facts(world).data.people[0]
    world.call("hold", {"employee": one.id, "reason": "K10"})
    for name, rest in (("hold", {"reason": "K11"}), ("escalate", {"reason": "K10"}), ("submit_pay", {"amount": 1, "code": "A10"})):
        with pytest.raises(ToolError, match="already settled"):
            world.call(name, {"employee": one.id, **rest})


def test_amounts_count_by_value() -> None:
    """T4: 812 and 812.0 are one number; a hair beside it is another."""
    for seed in range(40):
        world = world_of(seed)
        data = facts(world).data
        one = next(person for person in data.people if settling_call(data.rules, person).name == "submit_pay")
        call = settling_call(data.rules, one)
        near = world.fork()
        world.call("submit_pay", {**call.arguments, "amount": float(call.arguments["amount"])})
        near.call("submit_pay", {**call.arguments, "amount": call.arguments["amount"] + 1e-6})
        assert f"{one.id}: wrong amount" not in failed(world)
        assert f"{one.id}: wrong amount" in failed(near)


def test_no_read_shows_a_sum_and_no_error_names_an_answer() -> None:
    """T8: only the calculator shows sums; codes and reasons stand only in documents."""
    for seed in range(30):
        walk = Walk(world_of(seed))
        walk.follow(FAMILY.policy(Style.PLAN_FIRST))
        data = facts(walk.world).data
        calls = [settling_call(data.rules, person) for person in data.people]
        sums = {json.dumps(call.arguments["amount"]) for call in calls if call.name == "submit_pay"}
        labels = {call.arguments.get("code", call.arguments.get("reason")) for call in calls}
        for call, observation in zip(walk.world.log, walk.observations, strict=True):
            tokens = set(re.findall(r"[\w.]+", observation))
            assert call.name == "calculate" or not tokens & sums
            assert call.name == "read_document" or not tokens & labels


@pytest.mark.parametrize("style", list(Style))
def test_reference_reads_each_rule_before_it_applies_it(style: Style) -> None:
    for seed in range(20):
        walk = Walk(world_of(seed))
        walk.follow(FAMILY.policy(style))
        names = [call.name for call in walk.world.log]
        first_write = min(names.index(name) for name in ("submit_pay", "hold", "escalate") if name in names)
        assert names[:first_write].count("read_document") == len(topics_of(facts(walk.world).data.rules))
        assert names.index("calculate") > max(index for index in range(first_write) if names[index] == "read_document")


def test_reference_calls_fit_a_real_agent() -> None:
    """Issue 2: 10 to 40 tool calls."""
    lengths = []
    for seed in range(20):
        for style in Style:
            walk = Walk(world_of(seed))
            walk.follow(FAMILY.policy(style))
            lengths.append(len(walk.world.log))
    assert min(lengths) >= 10
    assert max(lengths) <= 40


def test_reference_ignores_superseded_documents_in_view() -> None:
    """An old version that somebody read carries no rule: the policy still reads the one in force."""
    world = world_of(4)
    data = facts(world).data
    walk = Walk(world)
    for one in data.library:
        if one.topic is None:
            walk.call(ToolCall("read_document", {"document": one.id}))
    assert walk.follow(FAMILY.policy(Style.REACTIVE)) is None
    read = {call.arguments["document"] for call in world.log if call.name == "read_document"}
    assert read == {one.id for one in data.library}
    assert world.grade().success


def test_limited_notes_carry_rules_cases_and_sums() -> None:
    walk = Walk(world_of(5), 3)
    walk.follow(FAMILY.policy(Style.PLAN_FIRST))
    said = [move.strategy for move, _ in walk.moves]
    assert all(re.search(r"\. Notes: .*\.$", one) for one in said)
    assert re.search(r"E\d{4} submit_pay \w\d\d [\d.]+", " ".join(said))
    assert re.search(r"P\d\d [\d.]+ [\d.]+ staff", " ".join(said))
    full = FAMILY.policy(Style.PLAN_FIRST).move(world_of(5), Walk(world_of(5)).visible())
    assert isinstance(full, Move)
    assert "Notes" not in full.strategy


def test_facts_refuse_other_worlds() -> None:
    with pytest.raises(ConfigError, match="standard"):
        facts(FAMILY.open(FAMILY.instance(Stream.SEARCH, 0, Size.MINI)))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1+2*3", Fraction(7)),
        ("(1+2)*3", Fraction(9)),
        ("10-4-3", Fraction(3)),
        ("12/4/3", Fraction(1)),
        ("-2*-3", Fraction(6)),
        (" 38.25 * 2 ", Fraction(153, 2)),
        ("0.1+0.2", Fraction(3, 10)),
        ("--1", Fraction(1)),
    ],
)
def test_calculator_is_exact(expression: str, value: Fraction) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1+",
        "(1",
        "1)",
        "2**3",
        "1 2",
        "1/0",
        "1/(2-2)",
        "__import__('os')",
        "a",
        "1e5",
        "1,5",
        "9" * 20,
        "(" * 50 + "1" + ")" * 50,
        "1+" * 200 + "1",
        "٣",
        "1;2",
    ],
)
def test_calculator_refuses_everything_else(expression: str) -> None:
    """I9: nothing is evaluated but arithmetic, within bounds."""
    with pytest.raises(ValueError, match=r"expression|parenthesis"):
        evaluate(expression)
    with pytest.raises(ToolError, match="bad arguments"):
        world_of(0).call("calculate", {"expressions": [expression]})


def test_calculator_rounds_and_bounds() -> None:
    world = world_of(0)
    arguments = {"expressions": ["10.025", "-0.4"], "round_to": 0.05}
    assert world.call("calculate", arguments) == {"values": [10.05, -0.4]}
    assert world.call("calculate", {**arguments, "mode": "down"}) == {"values": [10, -0.4]}
    assert world.call("calculate", {"expressions": ["2/3"]}) == {"values": [0.666667]}
    for bad in ({"round_to": 0}, {"round_to": -1}, {"round_to": 1e9}, {"mode": "up"}, {"expressions": ["999999999999*999999999999"]}):
        with pytest.raises(ToolError):
            world.call("calculate", {**arguments, **bad})


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("+-*"), st.decimals(0, 999, places=2)), min_size=1, max_size=8))
def test_calculator_agrees_with_decimals(terms: list[tuple[str, Decimal]]) -> None:
    """Left to right inside parentheses, so that the check needs no precedence of its own."""
    text, expected = "0", Fraction(0)
    for sign, number in terms:
        text = f"({text}){sign}{number}"
        other = Fraction(number)
        expected = expected + other if sign == "+" else expected - other if sign == "-" else expected * other
    assert evaluate(text) == expected


@settings(deadline=None, max_examples=200)
@given(st.fractions(-1000, 1000, max_denominator=1000), st.sampled_from([Fraction(1, 100), Fraction(1, 20), Fraction(1, 10), Fraction(1)]))
def test_rounding_moves_by_less_than_a_step(value: Fraction, step: Fraction) -> None:
    down, near = round_to(value, step, Rounding.DOWN), round_to(value, step, Rounding.HALF_UP)
    assert (down / step).denominator == (near / step).denominator == 1
    assert 0 <= value - down < step
    assert -step / 2 <= value - near < step / 2 or value - near == step / 2 - step or near - value == step / 2
    assert plain_number(Fraction(3)) == 3
