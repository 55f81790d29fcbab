"""The rules of the shop's and the portal's desks.

1. The first instances of world version 1 never change.
2. Truth, computed here a second time from what the records show, agrees (T2, T6): dates are subtracted, texts are read.
3. Documents in force say what the grader applies; superseded ones and drafts say other things under the same title.
4. Every active rule decides a case; a case that needs an action is not right as it stands.
5. Everything that is needed can be found: ids lead from the queue to the records, and the colleague who knows answers.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import date
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import Any

import pytest

from coevo.tasks import load_family
from coevo.tasks.browser import paperwork
from coevo.tasks.deskwork import active_rules, deciding_rule, literals
from coevo.tasks.deskwork_policy import Work
from coevo.tasks.family import Size, Stream, TaskInstance
from coevo.tasks.website import sales
from coevo.tasks.website.content import _STATEMENTS

CASES = [("website", Size.STANDARD), ("website", Size.LONG), ("browser", Size.STANDARD), ("browser", Size.LONG)]
Fields = Mapping[str, Any]
LOCKED = {
    "website": ["a30e6494d44b7fd7", "ef9f298d37b18c9a", "70040a79d2c1c1b0"],
    "browser": ["cda98719b38eb0a6", "72863e9268266798", "10b17ba1daad35da"],
}


def worlds(name: str, size: Size, count: int = 1) -> Any:
    family = load_family(name)
    for template in family.templates(size)[: 3 if size is Size.LONG else None]:
        for seed in range(count):
            yield family.open(TaskInstance(name, template, Stream.SEARCH, seed, size))


@pytest.mark.parametrize("name", sorted(LOCKED))
def test_first_instances_of_version_1_never_change(name: str) -> None:
    """T7. When this fails, `world_version` must rise."""
    family = load_family(name)
    assert family.world_version == "1"
    drawn = {size: [family.open(family.instance(Stream.TEST, seed, size, diversity=20)).snapshot() for seed in range(3)] for size in Size}
    assert [hashlib.sha256(b"".join(one)).hexdigest()[:16] for one in drawn.values()] == LOCKED[name]


def days(earlier: str, later: str | date) -> int:
    return (date.fromisoformat(str(later)) - date.fromisoformat(earlier)).days


def money(value: Any) -> Decimal:
    return Decimal(str(value))


def returned(case: Fields, order: Fields, terms: Fields, atoms: tuple[str, ...], told: Fields) -> Any:
    worth, minded = money(order["unit_price"]) * case["quantity"], case["reason"] == "changed_mind"
    limit = terms["plus_window"] if order["customer_tier"] == "plus" else terms["window"]
    if "final_sale" in atoms and order["category"] in terms["final"] and minded:
        return "reject_return", "final sale"
    if days(order["delivered"], case["requested"]) > limit:
        return "reject_return", "too late"
    if "worn" in atoms and minded and told["condition"] == "worn":
        return "reject_return", "used goods"
    if "limit" in atoms and worth > terms["limit"]:
        return "escalate_return", "high value"
    if minded:
        return "refund_return", "change of mind", worth - money(terms["fee"])
    return "refund_return", "our fault", worth + money(order["shipping_paid"])


def ordered(case: Fields, customer: Fields, terms: Fields, atoms: tuple[str, ...], told: Fields) -> Any:
    if "blocked" in atoms and customer["standing"] == "blocked":
        return "hold_order", "blocked customer"
    if case["paid"] == "no":
        return ("cancel_order", "not paid") if days(case["placed"], sales.TODAY) > terms["unpaid_days"] else None
    if case["country"] not in terms["served"]:
        return "cancel_order", "not served"
    if "first" in atoms and customer["earlier_orders"] == 0 and case["total"] > terms["high"]:
        return "hold_order", "first order"
    if "address" in atoms and case["address"] == "doubtful" and told["answer"] == "unreachable":
        return "hold_order", "address"
    express = "express" in atoms and case["speed"] == "express"
    return "release_order", terms[
        "express_carrier" if express else "heavy_carrier" if case["weight_kg"] > terms["heavy"] else "light_carrier"
    ]


def priced(case: Fields, _: Fields, terms: Fields, atoms: tuple[str, ...], told: Fields) -> Any:
    if ("agreement" in atoms and case["supplier"] in terms["suppliers"]) or case["campaign"] != "none":
        return None
    if "below_cost" in atoms and case["old_price"] < case["cost"]:
        return "flag_product", "below cost"
    if "low_stock" in atoms and case["stock"] < terms["low_stock"]:
        return "flag_product", "low stock"
    step = money(terms["step"])
    exact = money(case["cost"]) * money(terms["clearance" if case["stock"] > terms["stock"] else "factor"])
    rounding = ROUND_FLOOR if terms["mode"] == "down" else ROUND_HALF_UP
    return "set_price", (exact / step).to_integral_value(rounding) * step


def couponed(case: Fields, _: Fields, terms: Fields, atoms: tuple[str, ...], told: Fields) -> Any:
    if "partner" in atoms and case["holder"] in terms["partners"]:
        return None
    if days(str(sales.TODAY), case["ends"]) < 0:
        return "archive_coupon", "ended"
    if "holderless" in atoms and case["holder"] == "none":
        return "archive_coupon", "no holder"
    if "idle" in atoms and days(case["last_used"], sales.TODAY) > terms["idle"]:
        return "archive_coupon", "idle"
    if case["percent"] > terms["cap"]:
        return "update_coupon", terms["cap"]
    return ("update_coupon", terms["uses"]) if case["uses"] == "unlimited" else None


def reviewed(case: Fields, _: Fields, terms: Fields, atoms: tuple[str, ...], told: Fields) -> Any:
    text, low = case["text"], case["stars"] <= terms["stars"]
    if "www." in text:
        return "hide_review", "advertising"
    if re.search(r"\b0\d{3} \d{4}\b", text):
        return "hide_review", "personal data"
    if "rival" in atoms and any(rival in text for rival in terms["rivals"]):
        return "hide_review", "competitor"
    if "days late" in text:
        return "forward_review", "delivery"
    if "unverified" in atoms and low and case["verified_buyer"] == "no":
        return "hide_review", "unverified"
    if "recent" in atoms and low and case["days_since_purchase"] <= terms["days"]:
        return "forward_review", "early trouble"
    return ("publish_review",)


def paged(case: Fields, _: Fields, terms: Fields, atoms: tuple[str, ...], told: Fields) -> Any:
    if "legal" in atoms and case["owner"] == "legal":
        return "flag_page", "legal text"
    if "redesign" in atoms and case["redesign"] == "yes":
        return None
    for name, sentence in _STATEMENTS.items():
        for section in ("section_1", "section_2", "section_3"):
            found = re.search(re.escape(sentence).replace(r"\{\}", r"([\d.]+)"), case[section])
            if found is not None:
                return None if money(found[1]) == money(terms[name]) else ("edit_page", section, money(found[1]), money(terms[name]))
    raise AssertionError("a help page states nothing")


def claimed(case: Fields, employee: Fields, terms: Fields, atoms: tuple[str, ...], told: Fields) -> Any:
    kind, amount, centre = case["category"], money(case["amount"]), employee["cost_centre"]
    if "receipt" in atoms and case["receipt"] == "no":
        return "return_claim", "no receipt"
    if days(case["date"], paperwork.TODAY) > terms["days"]:
        return "return_claim", "too old"
    if "taxi" in atoms and kind == "taxi" and employee["grade"] == "staff":
        return "return_claim", "taxi"
    if "hotel" in atoms and kind == "hotel" and amount > case["nights"] * terms["night"]:
        return "approve_claim", centre, "capped", money(case["nights"] * terms["night"])
    if "meal" in atoms and kind == "meal" and amount > terms["meal"]:
        return "return_claim", "meal limit"
    return "approve_claim", amount, centre, "in full"


def invoiced(case: Fields, purchase: Fields, terms: Fields, atoms: tuple[str, ...], told: Fields) -> Any:
    amount = money(case["amount"])
    if "blocked" in atoms and purchase["supplier_standing"] == "blocked":
        return "park_invoice", "blocked supplier"
    if "partial" in atoms and purchase["delivery"] == "partial":
        return "park_invoice", "delivery"
    if amount > money(purchase["ordered"]) + terms["tolerance"]:
        return "dispute_invoice", "overcharged", amount - money(purchase["ordered"])
    if "early" in atoms and case["payment"] == "discount" and days(case["received"], paperwork.TODAY) <= terms["early"]:
        return "book_invoice", purchase["account"], (amount * money(terms["discount"])).quantize(Decimal("0.01"), ROUND_HALF_UP)
    return "book_invoice", amount, purchase["account"]


def accessed(case: Fields, employee: Fields, terms: Fields, atoms: tuple[str, ...], told: Fields) -> Any:
    if "training" in atoms and employee["training"] == "missing":
        return "deny_access", "no training"
    if "watched" in atoms and case["system"] in terms["watched"] and told["cleared"] == "refused":
        return "deny_access", "not cleared"
    short = employee["contract"] == "temporary" and case["days"] > terms["longest"]
    return "grant_access", case["role"], terms["longest"] if short else case["days"]


def booked(case: Fields, room: Fields, terms: Fields, atoms: tuple[str, ...], told: Fields) -> Any:
    if "closed" in atoms and room["state"] == "closed":
        return "decline_booking", "closed room"
    if "long" in atoms and case["hours"] > terms["hours"]:
        return "decline_booking", "too long"
    if "video" in atoms and case["needs_video"] == "yes" and room["video"] == "no":
        return "decline_booking", "no video"
    if case["people"] > room["seats"]:
        return "decline_booking", "too small"
    return "confirm_booking", terms["crowd_setup" if "crowd" in atoms and case["people"] >= terms["crowd"] else "few_setup"]


def ticketed(case: Fields, device: Fields, terms: Fields, atoms: tuple[str, ...], told: Fields) -> Any:
    hardware = case["category"] == "hardware"
    if "duplicate" in atoms and case["duplicate_of"] != "none":
        return "close_ticket", "duplicate"
    if "password" in atoms and case["category"] == "password":
        return "close_ticket", "self service"
    if "warranty" in atoms and hardware and device["warranty"] == "valid":
        return "assign_ticket", "vendor", terms["calm"]
    if "waiting" in atoms and case["days_waiting"] > terms["waiting"]:
        return "assign_ticket", terms["other"], terms["urgent"]
    return "assign_ticket", terms["hardware"] if hardware else terms["other"], terms["calm"]


BY_HAND: dict[str, Callable[..., Any]] = {
    "returns": returned,
    "orders": ordered,
    "prices": priced,
    "coupons": couponed,
    "reviews": reviewed,
    "pages": paged,
    "claims": claimed,
    "invoices": invoiced,
    "access": accessed,
    "bookings": booked,
    "tickets": ticketed,
}


def by_hand(work: Work, told: Fields) -> Counter[Any]:
    own, *linked = (record.body for record in work.case.records)
    verdict = BY_HAND[work.desk.name](own, linked[0] if linked else {}, work.brief.terms, work.brief.atoms, told)
    if verdict is None:
        return Counter()
    codes = work.brief.terms["codes"]
    return Counter(codes.get(one, one) if isinstance(one, str) else float(one) for one in verdict)


def told_about(world: Any, work: Work) -> dict[str, str]:
    """What the colleagues say, in their own words."""
    told = {}
    for ask in work.asks:
        person = next(one for one in world._data.staff if one.id == world.truth().contacts[ask.role])
        reply = next(answer.text for answer in person.answers if answer.subject == work.case.id)
        told[ask.fact] = reply.rstrip(".").split()[-1]
    return told


@pytest.mark.parametrize(("name", "size"), [("website", Size.STANDARD), ("browser", Size.STANDARD)])
def test_truth_agrees_with_a_second_implementation(name: str, size: Size) -> None:
    tools = set()
    for world in worlds(name, size, 3):
        for work in world.truth().work:
            expected = by_hand(work, told_about(world, work))
            values = () if work.call is None else (value for value in work.call.arguments.values() if value != work.case.id)
            numbers = re.compile(r"[0-9]+(\.[0-9]+)?")
            actual = Counter(float(one) if not isinstance(one, str) or numbers.fullmatch(one) else one for one in values)
            actual += Counter([] if work.call is None else [work.call.name])
            assert actual == expected, (world.instance.key, work.case, work.brief.terms)
            tools.add(work.call.name if work.call is not None else None)
    assert set(world.truth().actions) <= tools


@pytest.mark.parametrize(("name", "size"), CASES)
def test_documents_in_force_say_what_the_grader_applies(name: str, size: Size) -> None:
    for world in worlds(name, size):
        shelf, truth = world._data.shelf, world.truth()
        for topic, current in truth.documents.items():
            assert set(current.facts) <= set(literals(current.text)), (world.instance.key, topic)
            assert current.text.startswith("Status: in force since")
            others = [one for one in shelf if one.title == current.title and one.id != current.id]
            assert others
            assert all(re.match(r"Status: (superseded|draft)", one.text) and not one.facts and one.text != current.text for one in others)
        needed = {f"{work.desk.name} rules" for work in truth.work}
        assert needed <= set(truth.documents)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_every_rule_decides_a_case_and_nothing_is_right_untouched(name: str, size: Size) -> None:
    for world in worlds(name, size):
        for desk, brief in world._data.desks():
            decided = {deciding_rule(desk, brief.atoms, case.facts, brief.terms).name for case in brief.cases}
            assert decided == {rule.name for rule in active_rules(desk, brief.atoms)}, world.instance.key
        for work in world.truth().work:
            body = work.case.records[0].body
            assert not work.expected or any(body.get(name) != value for name, value in work.expected.items()), (
                world.instance.key,
                work.case.id,
            )
            assert bool(work.expected) == (work.call is not None)
        assert any(work.call is not None for work in world.truth().work)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_ids_lead_to_everything(name: str, size: Size) -> None:
    for world in worlds(name, size):
        ids = [one.id for one in world._data.records]
        assert len(ids) == len(set(ids))
        for work in world.truth().work:
            own, *linked = work.case.records
            assert all(one.id in own.body.values() for one in linked)
            assert told_about(world, work).keys() == {ask.fact for ask in work.asks}


@pytest.mark.parametrize("name", ["website", "browser"])
def test_long_worlds_hold_a_hundred_thousand_tokens(name: str) -> None:
    """Issue 4: characters / 4 of records and documents, as tools show them."""
    for world in worlds(name, Size.LONG):
        records = sum(len(str(one.body)) for one in world._data.records)
        documents = sum(len(one.text) for one in world._data.shelf)
        assert (records + documents) / 4 > 100_000, world.instance.key
