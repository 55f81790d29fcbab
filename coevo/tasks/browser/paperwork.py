"""The desks of the portal that deal with money: expense claims and suppliers' invoices."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random
from types import MappingProxyType
from typing import Any

from coevo.tasks.deskwork import Act, Action, Desk, Facts, Ids, Record, Rule, Terms, plain

__all__ = ["CLAIMS", "INVOICES", "PAPER_ACTIONS", "PEOPLE", "TODAY"]

TODAY = date(2026, 10, 20)
"""The portal's calendar day in every instance; the instruction and the home page state it."""

PEOPLE = ("Adler", "Bianchi", "Ceder", "Dahl", "Egger", "Fonseca", "Galli", "Hoekstra", "Ilves", "Jokela", "Kranz", "Lindqvist")
_TOWNS = ("Graz", "Bergen", "Porto", "Tartu", "Ghent", "Turku", "Lyon", "Parma")
_SUPPLIERS = ("Ostwerk", "Pallinor", "Ravensbel", "Solvane", "Tavimex", "Ulmenhof", "Veltrio", "Wassenaar")


def _money(random: Random, low: float, high: float) -> float:
    """An amount in steps of 0.05."""
    return float(plain(random.randint(int(low * 20), int(high * 20)) / 20))


def _day(days_ago: int) -> str:
    return (TODAY - timedelta(days=days_ago)).isoformat()


def _claim_terms(random: Random) -> dict[str, Any]:
    return {
        "days": random.choice((30, 45, 60, 90)),
        "night": random.choice((85, 95, 110, 120)),
        "meal": random.choice((24, 28, 32, 36)),
    }


def _claim_facts(random: Random, terms: Terms) -> dict[str, Any]:
    kind = random.choice(("hotel", "train", "taxi", "meal", "train"))
    nights = random.randint(1, 4) if kind == "hotel" else 0
    amount = _money(random, 8, 60) if kind != "hotel" else float(nights * terms["night"] + random.choice((-21.5, -8, 17.5, 46)))
    return {
        "kind": kind,
        "nights": nights,
        "amount": amount,
        "days": random.choice((random.randint(2, terms["days"]), random.randint(2, 120))),
        "receipt": random.choice(("yes", "yes", "yes", "no")),
        "grade": random.choice(("staff", "staff", "lead")),
        "centre": f"CC{random.randint(100, 999)}",
    }


def _claim_records(random: Random, facts: Facts, ids: Ids) -> tuple[Record, ...]:
    employee = ids.take("E")
    claim = {
        "id": facts["id"],
        "status": "open",
        "category": facts["kind"],
        "town": random.choice(_TOWNS),
        "date": _day(facts["days"]),
        "nights": facts["nights"],
        "amount": plain(facts["amount"]),
        "receipt": facts["receipt"],
        "employee": employee,
    }
    person = {"id": employee, "name": random.choice(PEOPLE), "grade": facts["grade"], "cost_centre": facts["centre"]}
    return (
        Record("claims", facts["id"], claim, ("category", "date", "nights", "amount", "receipt", "employee")),
        Record("employees", employee, person, ("grade", "cost_centre")),
    )


def _code(terms: Terms, label: str) -> str:
    return str(terms["codes"][label])


def _return_claim(label: str) -> Any:
    return lambda facts, terms: Act("return_claim", {"claim": facts["id"], "code": _code(terms, label)})


def _cap_night(facts: Facts, terms: Terms) -> Act:
    arguments = {"claim": facts["id"], "centre": facts["centre"], "code": _code(terms, "capped")}
    return Act("approve_claim", arguments, "amount", f"{facts['nights']}*{terms['night']}")


def _in_full(facts: Facts, terms: Terms) -> Act:
    arguments = {"claim": facts["id"], "amount": plain(facts["amount"]), "centre": facts["centre"], "code": _code(terms, "in full")}
    return Act("approve_claim", arguments)


CLAIMS = Desk(
    name="claims",
    prefix="K",
    title="Expense claims",
    intro="How open claims are settled. A claim is approved for an amount, charged to the employee's cost centre, or returned.",
    rules=(
        Rule(
            "receipt",
            "no receipt: return it, reason no receipt;",
            lambda facts, terms: facts["receipt"] == "no",
            _return_claim("no receipt"),
            label="no receipt",
        ),
        Rule(
            "old",
            "the date lies more than {days} days back: return it, reason too old;",
            lambda facts, terms: facts["days"] > terms["days"],
            _return_claim("too old"),
            label="too old",
            core=True,
        ),
        Rule(
            "taxi",
            "a taxi, for an employee of grade staff: return it, reason taxi;",
            lambda facts, terms: facts["kind"] == "taxi" and facts["grade"] == "staff",
            _return_claim("taxi"),
            label="taxi",
        ),
        Rule(
            "hotel",
            "a hotel that costs more than {night} a night: approve {night} times the nights, code of capped;",
            lambda facts, terms: facts["kind"] == "hotel" and facts["amount"] > facts["nights"] * terms["night"],
            _cap_night,
            label="capped",
        ),
        Rule(
            "meal",
            "a meal above {meal}: return it, reason meal limit;",
            lambda facts, terms: facts["kind"] == "meal" and facts["amount"] > terms["meal"],
            _return_claim("meal limit"),
            label="meal limit",
        ),
        Rule(
            "full",
            "otherwise approve the amount claimed, code of in full.",
            lambda facts, terms: True,
            _in_full,
            label="in full",
            core=True,
        ),
    ),
    terms=_claim_terms,
    facts=_claim_facts,
    records=_claim_records,
    words=("claim", "expenses", "travel"),
)


def _invoice_terms(random: Random) -> dict[str, Any]:
    return {
        "tolerance": random.choice((2, 3, 5, 8)),
        "discount": random.choice((0.97, 0.98, 0.96)),
        "early": random.choice((7, 8, 10)),
    }


def _invoice_facts(random: Random, terms: Terms) -> dict[str, Any]:
    ordered = _money(random, 60, 900)
    over = random.choice((0, 0, 0, -4.5, terms["tolerance"] + random.randint(1, 900) / 20))
    return {
        "amount": float(plain(round(ordered + over, 2))),
        "ordered": ordered,
        "delivery": random.choice(("complete", "complete", "complete", "partial")),
        "standing": random.choice(("good", "good", "good", "blocked")),
        "terms": random.choice(("net", "discount")),
        "age": random.randint(1, 20),
        "account": f"AC{random.randint(100, 999)}",
    }


def _invoice_records(random: Random, facts: Facts, ids: Ids) -> tuple[Record, ...]:
    order = ids.take("P")
    invoice = {
        "id": facts["id"],
        "status": "open",
        "supplier": random.choice(_SUPPLIERS),
        "received": _day(facts["age"]),
        "amount": plain(facts["amount"]),
        "payment": facts["terms"],
        "purchase": order,
    }
    purchase = {
        "id": order,
        "ordered": plain(facts["ordered"]),
        "delivery": facts["delivery"],
        "supplier_standing": facts["standing"],
        "account": facts["account"],
    }
    return (
        Record("invoices", facts["id"], invoice, ("received", "amount", "payment", "purchase")),
        Record("purchases", order, purchase, ("ordered", "delivery", "supplier_standing", "account")),
    )


def _park(label: str) -> Any:
    return lambda facts, terms: Act("park_invoice", {"invoice": facts["id"], "code": _code(terms, label)})


def _over(facts: Facts, terms: Terms) -> bool:
    return bool(facts["amount"] > facts["ordered"] + terms["tolerance"])


INVOICES = Desk(
    name="invoices",
    prefix="N",
    title="Suppliers' invoices",
    intro="What happens to open invoices. Each is booked to the account of its purchase, disputed, or parked.",
    rules=(
        Rule(
            "blocked",
            "the supplier's standing is blocked: park it, reason blocked supplier;",
            lambda facts, terms: facts["standing"] == "blocked",
            _park("blocked supplier"),
            label="blocked supplier",
        ),
        Rule(
            "partial",
            "the delivery is partial: park it, reason delivery;",
            lambda facts, terms: facts["delivery"] == "partial",
            _park("delivery"),
            label="delivery",
        ),
        Rule(
            "over",
            "the amount is more than {tolerance} above what was ordered: dispute the difference, reason overcharged;",
            _over,
            lambda facts, terms: Act(
                "dispute_invoice",
                {"invoice": facts["id"], "code": _code(terms, "overcharged")},
                "amount",
                f"{plain(facts['amount'])}-{plain(facts['ordered'])}",
            ),
            label="overcharged",
            core=True,
        ),
        Rule(
            "early",
            "payment discount, and received at most {early} days ago: book {discount} times the amount;",
            lambda facts, terms: facts["terms"] == "discount" and facts["age"] <= terms["early"],
            lambda facts, terms: Act(
                "book_invoice",
                {"invoice": facts["id"], "account": facts["account"]},
                "amount",
                f"{plain(facts['amount'])}*{plain(terms['discount'])}",
            ),
        ),
        Rule(
            "book",
            "otherwise book the amount.",
            lambda facts, terms: True,
            lambda facts, terms: Act(
                "book_invoice", {"invoice": facts["id"], "amount": plain(facts["amount"]), "account": facts["account"]}
            ),
            core=True,
        ),
    ),
    terms=_invoice_terms,
    facts=_invoice_facts,
    records=_invoice_records,
    words=("invoice", "booking", "suppliers"),
)

PAPER_ACTIONS = MappingProxyType(
    {
        one.tool: one
        for one in (
            Action("approve_claim", "claims", "claim", "approve", "approved", "open", ("amount", "centre", "code")),
            Action("return_claim", "claims", "claim", "return", "returned", "open", ("code",)),
            Action("book_invoice", "invoices", "invoice", "book", "booked", "open", ("amount", "account")),
            Action("dispute_invoice", "invoices", "invoice", "dispute", "disputed", "open", ("amount", "code")),
            Action("park_invoice", "invoices", "invoice", "park", "parked", "open", ("code",)),
        )
    }
)
"""Form -> what it does to a claim or an invoice."""
