"""The desks of the shop that deal with what is sold: prices of a category, and the coupons of a campaign."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from types import MappingProxyType
from typing import Any

from coevo.tasks.deskwork import Act, Action, Desk, Facts, Ids, Record, Rule, Terms, plain
from coevo.tasks.payroll.arithmetic import Rounding
from coevo.tasks.website.sales import TODAY

__all__ = ["CAMPAIGNS", "CATEGORIES", "COUPONS", "GOODS_ACTIONS", "PRICES"]

CATEGORIES = ("lamps", "chairs", "rugs", "mugs", "tents", "backpacks", "candles", "blankets", "kettles", "clocks")
"""Categories of products; an instance reprices one."""

CAMPAIGNS = ("harvest", "winter", "snowdrop", "lantern", "marathon", "jubilee", "riverside", "midnight")
"""Campaigns that coupons belong to; an instance cleans up one."""

_SUPPLIERS = ("Aldora", "Benvik", "Corvina", "Delmare", "Estuna", "Fjordal", "Gantry", "Holmgard")
_ADJECTIVES = ("plain", "striped", "round", "tall", "folding", "soft", "bright", "small")


def _price_terms(random: Random) -> dict[str, Any]:
    return {
        "category": random.choice(CATEGORIES),
        "factor": random.choice((1.45, 1.5, 1.6, 1.75, 1.8)),
        "clearance": random.choice((1.05, 1.1, 1.15, 1.2)),
        "stock": random.choice((120, 150, 200, 250)),
        "suppliers": sorted(random.sample(_SUPPLIERS, 2)),
        "low_stock": random.choice((4, 6, 8, 10)),
        "step": random.choice((0.05, 0.1, 0.5, 1)),
        "mode": str(random.choice(tuple(Rounding))),
    }


def _price_facts(random: Random, terms: Terms) -> dict[str, Any]:
    cost = random.randint(80, 1600) / 20
    # Never what a rule gives: further off than the widest rounding step.
    due = (cost * terms["factor"], cost * terms["clearance"])
    prices = [round(cost * factor, 2) for factor in (0.85, 0.95, 1.3, 1.4, 1.7, 2.0, 2.3)]
    protected = random.random() < 0.2
    return {
        "cost": cost,
        "price": random.choice([one for one in prices if min(abs(one - value) for value in due) > 1] or [round(cost * 3 + 2, 2)]),
        "supplier": random.choice(terms["suppliers"] if protected else [one for one in _SUPPLIERS if one not in terms["suppliers"]]),
        "stock": random.choice((random.randint(0, 12), random.randint(13, 110), random.randint(13, 400))),
        "campaign": random.choice(("none", "none", "none", random.choice(CAMPAIGNS))),
        "category": terms["category"],
    }


def _price_records(random: Random, facts: Facts, ids: Ids) -> tuple[Record, ...]:
    body = {
        "id": facts["id"],
        "status": "active",
        "name": f"{random.choice(_ADJECTIVES)} {facts['category']}",
        "category": facts["category"],
        "cost": plain(facts["cost"]),
        "old_price": plain(facts["price"]),
        "price": plain(facts["price"]),
        "supplier": facts["supplier"],
        "stock": facts["stock"],
        "campaign": facts["campaign"],
    }
    return (Record("products", facts["id"], body, ("cost", "old_price", "supplier", "stock", "campaign")),)


def _set_price(factor: str) -> Any:
    def act(facts: Facts, terms: Terms) -> Act:
        expression = f"{plain(facts['cost'])}*{plain(terms[factor])}"
        return Act("set_price", {"product": facts["id"]}, "price", expression, terms["step"], Rounding(terms["mode"]))

    return act


def _flag(label: str) -> Any:
    return lambda facts, terms: Act("flag_product", {"product": facts["id"], "code": terms["codes"][label]})


PRICES = Desk(
    name="prices",
    prefix="S",
    title="Repricing of a category",
    intro="How the prices of a category are set anew. The price that is set is rounded to a multiple of the step named below.",
    rules=(
        Rule(
            "agreement",
            "products of the suppliers {suppliers} are bound by an agreement: leave them;",
            lambda facts, terms: facts["supplier"] in terms["suppliers"],
            None,
        ),
        Rule(
            "campaign",
            "products in a campaign: leave them until it is over;",
            lambda facts, terms: facts["campaign"] != "none",
            None,
            core=True,
        ),
        Rule(
            "below_cost",
            "products whose old price is below their cost: flag, reason below cost;",
            lambda facts, terms: facts["price"] < facts["cost"],
            _flag("below cost"),
            label="below cost",
        ),
        Rule(
            "low_stock",
            "products with fewer than {low_stock} pieces in stock: flag, reason low stock;",
            lambda facts, terms: facts["stock"] < terms["low_stock"],
            _flag("low stock"),
            label="low stock",
        ),
        Rule(
            "overstock",
            "products with more than {stock} pieces in stock: the new price is {clearance} times the cost;",
            lambda facts, terms: facts["stock"] > terms["stock"],
            _set_price("clearance"),
            core=True,
        ),
        Rule(
            "normal",
            "all others: the new price is {factor} times the cost. Prices are multiples of {step} (rounding {mode}).",
            lambda facts, terms: True,
            _set_price("factor"),
            core=True,
        ),
    ),
    terms=_price_terms,
    facts=_price_facts,
    records=_price_records,
    words=("price", "pricing", "repricing", "products"),
)


def _coupon_terms(random: Random) -> dict[str, Any]:
    return {
        "campaign": random.choice(CAMPAIGNS),
        "cap": random.choice((15, 20, 25, 30)),
        "uses": random.choice((100, 200, 300, 500)),
        "partners": sorted(random.sample(_SUPPLIERS, 2)),
        "idle": random.choice((30, 45, 60)),
    }


def _coupon_facts(random: Random, terms: Terms) -> dict[str, Any]:
    partner = random.random() < 0.2
    return {
        "campaign": terms["campaign"],
        "percent": random.choice((5, 10, terms["cap"], terms["cap"] + 5, terms["cap"] + 15)),
        "uses": random.choice(("unlimited", terms["uses"], 50)),
        "ends": random.choice((-20, -3, 10, 30, 90)),
        "holder": random.choice(terms["partners"]) if partner else random.choice(("none", "newsletter", "service", "shop")),
        "idle": random.choice((1, 8, 20, terms["idle"] + random.randint(1, 40))),
    }


def _coupon_records(random: Random, facts: Facts, ids: Ids) -> tuple[Record, ...]:
    body = {
        "id": facts["id"],
        "status": "active",
        "campaign": facts["campaign"],
        "percent": facts["percent"],
        "uses": facts["uses"],
        "ends": (TODAY + timedelta(days=facts["ends"])).isoformat(),
        "last_used": (TODAY - timedelta(days=facts["idle"])).isoformat(),
        "holder": facts["holder"],
    }
    return (Record("coupons", facts["id"], body, ("percent", "uses", "ends", "last_used", "holder")),)


def _archive(label: str) -> Any:
    return lambda facts, terms: Act("archive_coupon", {"coupon": facts["id"], "code": terms["codes"][label]})


COUPONS = Desk(
    name="coupons",
    prefix="C",
    title="Coupon hygiene",
    intro="How the coupons of a campaign are cleaned up. A coupon is archived, corrected, or left.",
    rules=(
        Rule(
            "partner",
            "coupons held by the partners {partners} are part of a contract: leave them;",
            lambda facts, terms: facts["holder"] in terms["partners"],
            None,
        ),
        Rule(
            "ended",
            "coupons whose end lies before today: archive, reason ended;",
            lambda facts, terms: facts["ends"] < 0,
            _archive("ended"),
            label="ended",
            core=True,
        ),
        Rule(
            "holderless",
            "coupons without a holder: archive, reason no holder;",
            lambda facts, terms: facts["holder"] == "none",
            _archive("no holder"),
            label="no holder",
        ),
        Rule(
            "idle",
            "coupons last used more than {idle} days ago: archive, reason idle;",
            lambda facts, terms: facts["idle"] > terms["idle"],
            _archive("idle"),
            label="idle",
        ),
        Rule(
            "cap",
            "a discount above {cap} percent: set the percent to {cap} and change nothing else;",
            lambda facts, terms: facts["percent"] > terms["cap"],
            lambda facts, terms: Act("update_coupon", {"coupon": facts["id"], "percent": terms["cap"]}),
            core=True,
        ),
        Rule(
            "unlimited",
            "unlimited uses: set the uses to {uses} and change nothing else;",
            lambda facts, terms: facts["uses"] == "unlimited",
            lambda facts, terms: Act("update_coupon", {"coupon": facts["id"], "uses": terms["uses"]}),
            core=True,
        ),
        Rule("fine", "all others: leave them.", lambda facts, terms: True, None, core=True),
    ),
    terms=_coupon_terms,
    facts=_coupon_facts,
    records=_coupon_records,
    words=("coupon", "discount", "campaign", "campaigns"),
)

GOODS_ACTIONS = MappingProxyType(
    {
        one.tool: one
        for one in (
            Action("set_price", "products", "product", "price", None, "active", ("price",)),
            Action("flag_product", "products", "product", "flag", "flagged", "active", ("code",)),
            Action("update_coupon", "coupons", "coupon", "update", None, "active", ("percent", "uses")),
            Action("archive_coupon", "coupons", "coupon", "archive", "archived", "active", ("code",)),
        )
    }
)
"""Tool -> what it does to a product or a coupon."""
