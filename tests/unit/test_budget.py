"""Budget approval: the truth is in the tools.

1. A second implementation decides every request from what the tools show and the policies say, and agrees with the grader (T2, T6).
2. Superseded versions, drafts and other units' policies lead elsewhere.
3. The reference keeps balances: it calculates what is left before it spends the next sum.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pytest

from coevo.tasks import load_family
from coevo.tasks.budget.documents import topics_of
from coevo.tasks.budget.standard import BudgetWorld, facts
from coevo.tasks.family import Size, Stream, Style
from tests.contract.walks import Walk

FAMILY = load_family("budget")
LARGE = (Size.STANDARD, Size.LONG)


def world_of(seed: int, size: Size = Size.STANDARD) -> BudgetWorld:
    world = FAMILY.open(FAMILY.instance(Stream.SEARCH, seed, size, diversity=20))
    assert isinstance(world, BudgetWorld)
    return world


class Clerk:
    """Decides a round with tools and regular expressions only."""

    def __init__(self, world: BudgetWorld, unit: str) -> None:
        self.world, self.unit = world, unit
        self.checks, self.money = self.policy("spending checks"), self.policy("funding of requests")
        bands = re.findall(r"up to (\d+) the [a-z ]+ \(contact (C\d+)\)", self.policy("delegation of authority"))
        self.bands = [(int(limit), contact) for limit, contact in bands]
        listed = re.search(r"enters one code: (.*?)\.", self.policy("reason codes"))
        assert listed
        self.codes = dict(part.rsplit(" ", 1) for part in listed[1].split("; "))
        away = re.search(r"contact (C\d+) is away; contact (C\d+) signs", self.policy("absences and deputies"))
        self.deputies = {away[1]: away[2]} if away else {}
        self.rates = world.call("get_currency_board", {})["fx_board"]
        self.balances: dict[str, Decimal] = {}

    def policy(self, query: str) -> str:
        """The text of the valid document, all parts; empty where there is none."""
        page, pages = 1, 1
        while page <= pages:
            hits = self.world.call("search_documents", {"query": query, "page": page})
            for one in hits["documents"]:
                text, part, parts = "", 1, 1
                while part <= parts:
                    shown = self.world.call("read_document", {"document": one["document"], "part": part})
                    text, part, parts = text + "\n\n" + shown["text"], part + 1, shown["parts"]
                if "Status: valid since" in text and set(query.split()) & set(one["title"].lower().split()):
                    return text
            page, pages = page + 1, hits["pages"]
        return ""

    def decide(self) -> dict[str, tuple[str, Any]]:
        """Request -> action and what it carries."""
        page, pages, ids = 1, 1, []
        while page <= pages:
            shown = self.world.call("list_requests", {"unit": self.unit, "page": page})
            ids += [one["request"] for one in shown["requests"]]
            page, pages = page + 1, shown["pages"]
        return {one: self.settle(one) for one in ids}

    def read(self, tool: str, request: str) -> dict[str, Any]:
        (found,) = next(iter(self.world.call(tool, {"requests": [request]}).values()))
        assert isinstance(found, dict)
        return found

    def settle(self, request: str) -> tuple[str, Any]:
        line, centre = self.read("get_requests", request), self.read("get_balances", request)
        amount = Decimal(line["amount"])
        points = re.findall(r"\(\d\) (.*?): (reject|escalate) \(([a-z ]+)\)", self.checks)
        for condition, action, label in points:
            stops, amount = self.holds(condition, request, line, centre, amount)
            if stops:
                return action, self.codes[label]
        return self.fund(line, centre, self.worth(amount, line["currency"]))

    def holds(self, text: str, request: str, line: dict[str, Any], centre: dict[str, Any], amount: Decimal) -> tuple[bool, Decimal]:
        limit = re.search(r"worth more than (\d+)", text)
        large = limit is not None and self.worth(amount, line["currency"]) > int(limit[1])
        if "earlier round" in text:
            return self.read("get_history", request)["earlier"] == "approved", amount
        if "cost centre is closed" in text:
            return centre["status"] == "closed", amount
        if "vendor is blocked" in text:
            return self.read("get_vendors", request)["standing"] == "blocked", amount
        if "no money this year" in text:
            return f"category is {line['category']}," in text, amount
        if "no contract is on file" in text:
            return line["category"] == "services" and self.read("get_files", request)["contract"] == "none", amount
        if "two quotes" in text:
            if not large or self.read("get_files", request)["quotes"] >= 2:
                return False, amount
            offer = re.search(r"second quote is (\d+)", self.ask(line["requester"], f"Is there a second quote for {request}?"))
            return offer is None, min(amount, Decimal(offer[1])) if offer else amount
        assert "owner of the cost centre" in text
        return large and "declined" in self.ask(centre["owner"], f"Do you support {request}?"), amount

    def ask(self, contact: str, message: str) -> str:
        return str(self.world.call("write_message", {"contact": contact, "message": message})["reply"])

    def worth(self, amount: Decimal, currency: str) -> Decimal:
        if currency == "EUR":
            return amount
        step = re.search(r"nearest multiple of (\d+)", self.money)
        assert step
        return (amount * Decimal(str(self.rates[currency])) / int(step[1])).to_integral_value(ROUND_HALF_UP) * int(step[1])

    def fund(self, line: dict[str, Any], centre: dict[str, Any], amount: Decimal) -> tuple[str, Any]:
        caps = re.search(r"no more is granted than (.*?);", self.money)
        for category, cap in re.findall(r"([a-z]+) (\d+)", caps[1] if caps else ""):
            amount = min(amount, Decimal(cap)) if category == line["category"] else amount
        if amount > self.bands[-1][0]:
            return "escalate", self.codes["beyond authority"]
        left = self.balances.setdefault(centre["centre"], Decimal(centre["budget"] - centre["spent"] - centre["committed"]))
        if amount > left:
            share = re.search(r"at least ([\d.]+) times the sum", self.money)
            if share is None or left < Decimal(share[1]) * amount:
                return "reject", self.codes["no money left"]
            amount = left
        self.balances[centre["centre"]] -= amount
        signer = next(contact for limit, contact in self.bands if amount <= limit)
        return "approve", (int(amount), self.deputies.get(signer, signer))


@pytest.mark.parametrize("size", LARGE)
def test_a_clerk_with_tools_and_policies_agrees_with_the_grader(size: Size) -> None:
    """T2, T6: nothing that decides is missing from what the tools show."""
    for seed in range(24 if size is Size.STANDARD else 4):
        world = world_of(seed, size)
        decided = Clerk(world, facts(world).unit.name).decide()
        expected = {
            one: (call.name, (call.arguments["amount"], call.arguments["approver"]) if call.name == "approve" else call.arguments["reason"])
            for one, call in world.expected().items()
        }
        assert decided == expected, world.instance.key


@pytest.mark.parametrize("size", LARGE)
def test_policies_out_of_force_say_something_else(size: Size) -> None:
    """T2: no code, limit or approver of a version in force stands in another version."""
    for seed in range(8):
        data = facts(world_of(seed, size))
        current = {one.topic: one for one in data.shelf.documents if one.topic is not None}
        assert set(current) == set(topics_of(data.rules))
        others = " ".join(one.text for one in data.shelf.documents if one.topic is None and "Status: " in one.text)
        assert others.count("Status: superseded") == len(current)
        words = set(re.findall(r"\w+", others))
        assert not words & {code for _, code in data.rules.codes}
        assert not words & {str(limit) for limit in data.rules.limits}
        assert not words & {*data.rules.approvers}


@pytest.mark.parametrize("style", list(Style))
def test_the_reference_keeps_balances(style: Style) -> None:
    """What is left of a cost centre is calculated before the next approval on it is made."""
    for seed in range(4):
        walk = Walk(world_of(seed))
        walk.follow(FAMILY.policy(style))
        log = walk.world.log
        approved = [place for place, call in enumerate(log) if call.name == "approve"]
        sums = [str(expression) for call in log[: approved[-1]] if call.name == "calculate" for expression in call.arguments["expressions"]]
        for place in approved:
            assert any(expression.endswith(f"-{log[place].arguments['amount']}") for expression in sums)
