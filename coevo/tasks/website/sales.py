"""The desks of the shop that deal with customers' orders: return requests, and orders that wait for release."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random
from types import MappingProxyType
from typing import Any

from coevo.tasks.deskwork import Act, Action, Ask, Desk, Facts, Ids, Record, Rule, Terms, plain

__all__ = ["ORDERS", "RETURNS", "SALES_ACTIONS", "TODAY"]

TODAY = date(2026, 11, 30)
"""The shop's calendar day in every instance; the instruction states it."""

_CATEGORIES = ("clothing", "shoes", "bags", "beauty", "outdoor", "kitchen", "toys", "books")
_COUNTRIES = ("Austria", "Belgium", "Czechia", "Denmark", "Estonia", "Finland", "Greece", "Hungary", "Ireland", "Norway")
_CARRIERS = ("Hermod", "Postline", "Kestrel", "Bluebox", "Trailway", "Nordpak", "Swiftly", "Cargomar")
_NAMES = ("Aalto", "Brandt", "Costa", "Dimitrov", "Eriksen", "Farkas", "Grimaldi", "Horvat", "Iversen", "Jansen", "Kovacs", "Laurent")


def _money(random: Random, low: float, high: float) -> float:
    """An amount in steps of 0.05."""
    return float(plain(random.randint(int(low * 20), int(high * 20)) / 20))


def _day(days_ago: int) -> str:
    return (TODAY - timedelta(days=days_ago)).isoformat()


def _code(terms: Terms, label: str) -> str:
    return str(terms["codes"][label])


def _reject(label: str) -> Any:
    return lambda facts, terms: Act("reject_return", {"request": facts["id"], "code": _code(terms, label)})


def _refund(facts: Facts, terms: Terms, label: str, rest: str) -> Act:
    expression = f"{facts['quantity']}*{plain(facts['price'])}{rest}"
    return Act("refund_return", {"request": facts["id"], "code": _code(terms, label)}, "amount", expression)


def _return_terms(random: Random) -> dict[str, Any]:
    window = random.choice((14, 20, 21, 28, 30))
    return {
        "window": window,
        "plus_window": window + random.choice((15, 25, 32)),
        "final": random.sample(_CATEGORIES, 2),
        "limit": random.choice((150, 180, 200, 240)),
        "fee": random.choice((2.5, 2.95, 3.4, 4.5, 4.95)),
    }


def _return_facts(random: Random, terms: Terms) -> dict[str, Any]:
    final = random.random() < 0.2
    return {
        "reason": random.choice(("changed_mind", "changed_mind", "damaged", "wrong_item")),
        "quantity": random.randint(1, 3),
        "price": _money(random, 12, 110),
        "shipping": _money(random, 3, 10),
        "days": random.choice((random.randint(1, terms["window"]), random.randint(1, 75))),
        "tier": random.choice(("basic", "basic", "plus")),
        "category": random.choice(terms["final"] if final else [one for one in _CATEGORIES if one not in terms["final"]]),
        "condition": random.choice(("unworn", "unworn", "worn")),
    }


def _return_records(random: Random, facts: Facts, ids: Ids) -> tuple[Record, ...]:
    order = ids.take("O")
    requested = random.randint(0, 4)
    request = {
        "id": facts["id"],
        "status": "open",
        "reason": facts["reason"],
        "quantity": facts["quantity"],
        "requested": _day(requested),
        "order": order,
    }
    sold = {
        "id": order,
        "status": "delivered",
        "delivered": _day(requested + facts["days"]),
        "category": facts["category"],
        "unit_price": plain(facts["price"]),
        "bought": facts["quantity"] + random.randint(0, 2),
        "shipping_paid": plain(facts["shipping"]),
        "customer_tier": facts["tier"],
        "name": random.choice(_NAMES),
    }
    vital = ("delivered", "category", "unit_price", "shipping_paid", "customer_tier")
    return (
        Record("returns", facts["id"], request, ("reason", "quantity", "requested", "order")),
        Record("orders", order, sold, vital),
    )


def _late(facts: Facts, terms: Terms) -> bool:
    return bool(facts["days"] > (terms["plus_window"] if facts["tier"] == "plus" else terms["window"]))


RETURNS = Desk(
    name="returns",
    prefix="R",
    title="Return requests",
    intro="How open return requests are settled. Each is refunded, rejected or escalated, once.",
    rules=(
        Rule(
            "final_sale",
            "goods of the categories {final} are not taken back when the customer only changed their mind: reject, reason final sale;",
            lambda facts, terms: facts["category"] in terms["final"] and facts["reason"] == "changed_mind",
            _reject("final sale"),
            label="final sale",
        ),
        Rule(
            "late",
            "more than {window} days lie between delivery and request, or more than {plus_window} for customers of the tier plus: reject, "
            "reason too late;",
            _late,
            _reject("too late"),
            label="too late",
            core=True,
        ),
        Rule(
            "worn",
            "the customer changed their mind and the goods were worn (the returns hall sees every parcel; ask there): reject, "
            "reason used goods;",
            lambda facts, terms: facts["reason"] == "changed_mind" and facts["condition"] == "worn",
            _reject("used goods"),
            label="used goods",
            ask=Ask("returns", "condition", "{id}: the parcel is here, I looked at it. The goods are {value}."),
            arises=lambda facts, terms: facts["reason"] == "changed_mind",
        ),
        Rule(
            "limit",
            "the goods returned are worth more than {limit}: escalate, reason high value;",
            lambda facts, terms: facts["quantity"] * facts["price"] > terms["limit"],
            lambda facts, terms: Act("escalate_return", {"request": facts["id"], "code": _code(terms, "high value")}),
            label="high value",
        ),
        Rule(
            "fault",
            "the goods were damaged or the wrong item: refund the unit price times the quantity, plus the shipping paid, reason our fault;",
            lambda facts, terms: facts["reason"] != "changed_mind",
            lambda facts, terms: _refund(facts, terms, "our fault", f"+{plain(facts['shipping'])}"),
            label="our fault",
            core=True,
        ),
        Rule(
            "change",
            "otherwise refund the unit price times the quantity, minus a flat {fee} for handling, reason change of mind.",
            lambda facts, terms: True,
            lambda facts, terms: _refund(facts, terms, "change of mind", f"-{plain(terms['fee'])}"),
            label="change of mind",
            core=True,
        ),
    ),
    terms=_return_terms,
    facts=_return_facts,
    records=_return_records,
    words=("return", "refund", "refunds"),
)


def _order_terms(random: Random) -> dict[str, Any]:
    light, heavy, express = random.sample(_CARRIERS, 3)
    return {
        "unpaid_days": random.choice((5, 7, 10, 12)),
        "served": sorted(random.sample(_COUNTRIES, 6)),
        "high": random.choice((250, 300, 350, 400)),
        "heavy": random.choice((12, 15, 18, 25)),
        "light_carrier": light,
        "heavy_carrier": heavy,
        "express_carrier": express,
    }


def _order_facts(random: Random, terms: Terms) -> dict[str, Any]:
    served = random.random() < 0.85
    return {
        "paid": random.choice(("yes", "yes", "yes", "no")),
        "days": random.randint(1, 20),
        "country": random.choice(terms["served"] if served else [one for one in _COUNTRIES if one not in terms["served"]]),
        "total": _money(random, 20, 480),
        "weight": random.choice((random.randint(1, terms["heavy"]), random.randint(1, 40))),
        "speed": random.choice(("normal", "normal", "express")),
        "standing": random.choice(("good", "good", "good", "blocked")),
        "earlier": random.choice((0, 0, 1, 3, 8)),
        "address": random.choice(("complete", "complete", "doubtful")),
        "answer": random.choice(("confirmed", "unreachable")),
    }


def _order_records(random: Random, facts: Facts, ids: Ids) -> tuple[Record, ...]:
    customer = ids.take("U")
    order = {
        "id": facts["id"],
        "status": "waiting",
        "placed": _day(facts["days"]),
        "paid": facts["paid"],
        "total": plain(facts["total"]),
        "weight_kg": facts["weight"],
        "speed": facts["speed"],
        "country": facts["country"],
        "address": facts["address"],
        "customer": customer,
    }
    person = {"id": customer, "name": random.choice(_NAMES), "standing": facts["standing"], "earlier_orders": facts["earlier"]}
    return (
        Record("orders", facts["id"], order, ("placed", "paid", "total", "weight_kg", "speed", "country", "address", "customer")),
        Record("customers", customer, person, ("standing", "earlier_orders")),
    )


def _hold(label: str) -> Any:
    return lambda facts, terms: Act("hold_order", {"order": facts["id"], "code": _code(terms, label)})


def _cancel(label: str) -> Any:
    return lambda facts, terms: Act("cancel_order", {"order": facts["id"], "code": _code(terms, label)})


def _release(carrier: str) -> Any:
    return lambda facts, terms: Act("release_order", {"order": facts["id"], "carrier": terms[carrier]})


ORDERS = Desk(
    name="orders",
    prefix="O",
    title="Release of waiting orders",
    intro="What happens to orders that wait. Each is released to a carrier, held, cancelled, or left waiting.",
    rules=(
        Rule(
            "blocked",
            "the customer's standing is blocked: hold, reason blocked customer;",
            lambda facts, terms: facts["standing"] == "blocked",
            _hold("blocked customer"),
            label="blocked customer",
        ),
        Rule(
            "unpaid_old",
            "not paid, and placed more than {unpaid_days} days ago: cancel, reason not paid;",
            lambda facts, terms: facts["paid"] == "no" and facts["days"] > terms["unpaid_days"],
            _cancel("not paid"),
            label="not paid",
            core=True,
        ),
        Rule("unpaid", "not paid: leave it waiting;", lambda facts, terms: facts["paid"] == "no", None, core=True),
        Rule(
            "country",
            "it goes to a country that we do not serve (we serve {served}): cancel, reason not served;",
            lambda facts, terms: facts["country"] not in terms["served"],
            _cancel("not served"),
            label="not served",
            core=True,
        ),
        Rule(
            "first",
            "a customer's first order (no earlier ones) with a total above {high}: hold, reason first order;",
            lambda facts, terms: facts["earlier"] == 0 and facts["total"] > terms["high"],
            _hold("first order"),
            label="first order",
        ),
        Rule(
            "address",
            "the address is doubtful and customer care could not confirm it (ask the colleague of customer care): hold, reason address;",
            lambda facts, terms: facts["address"] == "doubtful" and facts["answer"] == "unreachable",
            _hold("address"),
            label="address",
            ask=Ask("care", "answer", "{id}: we called about the address. Result: {value}."),
            arises=lambda facts, terms: facts["address"] == "doubtful",
        ),
        Rule(
            "express",
            "speed express: release to {express_carrier};",
            lambda facts, terms: facts["speed"] == "express",
            _release("express_carrier"),
        ),
        Rule(
            "heavy",
            "heavier than {heavy} kg: release to {heavy_carrier};",
            lambda facts, terms: facts["weight"] > terms["heavy"],
            _release("heavy_carrier"),
            core=True,
        ),
        Rule("light", "otherwise release to {light_carrier}.", lambda facts, terms: True, _release("light_carrier"), core=True),
    ),
    terms=_order_terms,
    facts=_order_facts,
    records=_order_records,
    words=("order", "release", "shipping", "carrier"),
)

SALES_ACTIONS = MappingProxyType(
    {
        one.tool: one
        for one in (
            Action("refund_return", "returns", "request", "refund", "refunded", "open", ("amount", "code")),
            Action("reject_return", "returns", "request", "reject", "rejected", "open", ("code",)),
            Action("escalate_return", "returns", "request", "escalate", "escalated", "open", ("code",)),
            Action("release_order", "orders", "order", "release", "released", "waiting", ("carrier",)),
            Action("hold_order", "orders", "order", "hold", "held", "waiting", ("code",)),
            Action("cancel_order", "orders", "order", "cancel", "cancelled", "waiting", ("code",)),
        )
    }
)
"""Tool -> what it does to a return request or an order."""
