"""What the reference of the budget round needs to know, fact by fact, and where each is read; see `coevo.tasks.inquiry`."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

from coevo.chat import ToolCall
from coevo.tasks.budget.documents import QUERIES, topics_of
from coevo.tasks.budget.rulebook import CURRENCIES, HOME, Atom, Centre, Request, Rules, Verdict
from coevo.tasks.budget.standard import BudgetData, closing_call, facts, verdicts
from coevo.tasks.family import Style
from coevo.tasks.inquiry import BATCH, Agenda, Case, Fact, Inquiry, Lookup, Single, Sum, rule_of, token
from coevo.tasks.library import Library
from coevo.tasks.payroll.arithmetic import plain_number
from coevo.tasks.rounds import plain, progress_of

__all__ = ["agenda", "budget_policy"]

_SENTENCES = MappingProxyType(
    {
        "list_requests": "I look at a page of open requests.",
        "get_requests": "I read the requests.",
        "get_files": "The checks ask what is on file, so I look.",
        "get_history": "The checks ask for earlier decisions, so I look them up.",
        "get_balances": "I read the balances.",
        "get_vendors": "I check the vendors.",
        "get_currency_board": "Sums stand in several currencies, so I read the board.",
        "read_document": "I read on.",
        "write_message": "The policy says that I must ask before I go on.",
        "calculate": "I calculate what the policies compare.",
        "approve": "Every check is passed and money is left, so I approve.",
        "reject": "A policy says that this request is rejected.",
        "escalate": "A policy says that this request goes to the board.",
        "close_round": "Everything is settled, so I close the round.",
        "finish": "The round is closed, so I finish.",
    }
)


def budget_policy(style: Style) -> Inquiry:
    """The reference policy in a style."""
    return Inquiry(style, agenda=lambda world: agenda(facts(world)), progress=progress_of)


@lru_cache(maxsize=16)
def agenda(data: BudgetData) -> Agenda:
    """The agenda of one instance."""
    library = Library(data.shelf.documents, part_chars=data.part_chars)
    in_force = {one.topic: one for one in data.shelf.documents if one.topic is not None}
    sources = _sources(data)
    pages = -(-len(sources) // BATCH)
    return Agenda(
        cases=tuple(
            Case(source.one.id, place // BATCH + 1, tuple(source.goals()), source.verdict.settle) for place, source in enumerate(sources)
        ),
        closing=Case("close_round", 0, tuple(_closing_goals(sources)), closing_call(data)),
        rules=tuple(rule_of(library, in_force[topic], topic=str(topic), query=QUERIES[topic]) for topic in topics_of(data.rules)),
        listings=tuple(ToolCall("list_requests", {"unit": data.unit.name, "page": page}) for page in range(1, pages + 1)),
        announcement="Plan: list all requests, read the policies and what they ask for, ask people, keep the balances, settle, close.",
        sentences=_SENTENCES,
    )


def _sources(data: BudgetData) -> list[_Sources]:
    """One per request; each knows the last grant before it on its cost centre."""
    centres, vendors = {one.id: one for one in data.centres}, {one.id: one for one in data.vendors}
    last: dict[str, _Sources] = {}
    sources = []
    for one, verdict in zip(data.unit.requests, verdicts(data), strict=True):
        source = _Sources(data.rules, one, verdict, centres[one.centre], vendors[one.vendor].standing, last.get(one.centre))
        sources.append(source)
        if verdict.granted is not None:
            last[one.centre] = source
    return sources


def _closing_goals(sources: list[_Sources]) -> Iterator[Fact]:
    granted = [source.left() for source in sources if source.verdict.granted is not None]
    yield from granted
    values = [source.verdict.granted for source in sources if source.verdict.granted is not None]
    yield Fact("", (token(sum(values)),), Sum("+".join(map(str, values)), sum(values)), 12, tuple(granted))


class _Sources:
    """The facts about one request."""

    def __init__(self, rules: Rules, one: Request, verdict: Verdict, centre: Centre, standing: str, before: _Sources | None) -> None:
        self.rules, self.one, self.verdict = rules, one, verdict
        self._centre, self._standing, self._before = centre, standing, before

    def goals(self) -> Iterator[Fact]:
        """What decides the case, in the order of the checks."""
        yield self.record()
        yield from self._checks()
        verdict = self.verdict
        if verdict.first_worth is None:
            return
        if self.one.currency != HOME:
            yield self._worth(self.one.amount, verdict.first_worth)
        if verdict.asked_quote:
            yield self._quote()
        if verdict.worth is not None and verdict.worth != verdict.first_worth and self.one.currency != HOME:
            yield self._worth(min(self.one.amount, self.one.offer or self.one.amount), verdict.worth)
        if verdict.asked_consent:
            yield self._consent()
        if verdict.available is not None and verdict.wanted is not None:
            yield self._available()
            if self.rules.has(Atom.PARTIAL) and verdict.wanted > verdict.available:
                yield self._needed(verdict.wanted)
        if verdict.granted is not None:
            yield self.left()

    def record(self) -> Fact:
        one = self.one
        tokens = ("category", one.category, "amount", str(one.amount), one.currency, one.centre, one.vendor, one.requester)
        return Fact(one.id, tokens, Lookup("get_requests", "requests"), 1)

    def left(self) -> Fact:
        """What the cost centre has after the grant."""
        granted, available = self.verdict.granted or 0, self.verdict.available or 0
        basis = (self.record(), *self._grounds(), self._available())
        tokens = ("granted", str(granted), "left", str(available - granted))
        return Fact(self.one.id, tokens, Sum(f"{available}-{granted}", available - granted), 11, basis)

    def _checks(self) -> Iterator[Fact]:
        """The reads of the checks up to the one that decides."""
        one, contract = self.one, "signed" if self.one.contract else "none"
        history = Fact(one.id, ("earlier", one.earlier), Lookup("get_history", "requests"), 2)
        files = Fact(one.id, ("quotes", str(one.quotes), "contract", contract), Lookup("get_files", "requests"), 3)
        vendor = Fact(one.id, ("standing", self._standing), Lookup("get_vendors", "requests"), 4)
        reads = {Atom.DUPLICATE: history, Atom.CLOSED: self._balance(), Atom.BLOCKED: vendor}
        if one.category == "services":
            reads[Atom.CONTRACT] = files
        worth = self.verdict.first_worth
        if worth is not None and worth > self.rules.quote_limit:
            reads[Atom.QUOTES] = files
        for atom, fact in reads.items():
            if self.rules.has(atom):
                yield fact
            if atom is self.verdict.stopped:
                return

    def _grounds(self) -> Iterator[Fact]:
        """What the granted sum rests on."""
        verdict = self.verdict
        if verdict.asked_quote:
            yield self._quote()
        if verdict.worth is not None and self.one.currency != HOME:
            amount = min(self.one.amount, self.one.offer) if verdict.asked_quote and self.one.offer is not None else self.one.amount
            yield self._worth(amount, verdict.worth)

    def _balance(self) -> Fact:
        one = self._centre
        sums = ("budget", str(one.budget), "spent", str(one.spent), "committed", str(one.committed))
        tokens = (one.id, "status", one.status, "owner", one.owner, *sums)
        return Fact(self.one.id, tokens, Lookup("get_balances", "requests"), 4)

    def _worth(self, amount: int, value: int) -> Fact:
        expression = f"{amount}*{plain(self.rules.rate(self.one.currency))}"
        basis = (self.record(), _board(self.rules), *([self._quote()] if amount != self.one.amount else []))
        return Fact(self.one.id, ("worth", str(value)), Sum(expression, value, self.rules.step), 7, basis)

    def _quote(self) -> Fact:
        one = self.one
        tokens = ("no", "second", "quote") if one.offer is None else ("second", "quote", str(one.offer))
        call = ToolCall("write_message", {"contact": one.requester, "message": f"Is there a second quote for {one.id}?"})
        return Fact(one.id, tokens, Single(call), 6, (self.record(),))

    def _consent(self) -> Fact:
        one = self.one
        call = ToolCall("write_message", {"contact": self._centre.owner, "message": f"Do you support request {one.id}?"})
        return Fact(one.id, (one.consent,), Single(call), 8, (self.record(), self._balance()))

    def _available(self) -> Fact:
        """Of the cost centre at the start of the round, or what the grant before it left."""
        if self._before is not None:
            return self._before.left()
        one = self._centre
        expression = f"{one.budget}-{one.spent}-{one.committed}"
        return Fact(self.one.id, ("available", str(one.available)), Sum(expression, one.available), 9, (self._balance(),))

    def _needed(self, wanted: int) -> Fact:
        expression, value = f"{wanted}*{plain(self.rules.share)}", plain_number(_product(wanted, self.rules.share))
        return Fact(self.one.id, ("share", token(value)), Sum(expression, value), 10, (self.record(), *self._grounds()))


def _product(wanted: int, share: float) -> Fraction:
    return wanted * Fraction(str(share))


def _board(rules: Rules) -> Fact:
    tokens = tuple(part for currency in CURRENCIES for part in (currency, str(plain(rules.rate(currency)))))
    return Fact("fx_board", tokens, Single(ToolCall("get_currency_board", {})), 5)
