"""What the reference of the alert round needs to know, fact by fact, and where each is read; see `coevo.tasks.inquiry`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import MappingProxyType

from coevo.chat import ToolCall
from coevo.tasks.family import Style
from coevo.tasks.inquiry import BATCH, Agenda, Case, Fact, Inquiry, Lookup, Single, Sum, rule_of, token
from coevo.tasks.library import Library
from coevo.tasks.rounds import plain, progress_of
from coevo.tasks.stock.documents import FEED_QUERY, QUERIES, Topic
from coevo.tasks.stock.rulebook import CURRENCIES, HOME, Atom, Position, Rules, Severity, Verdict, judge
from coevo.tasks.stock.standard import StockData, closing_call, facts

__all__ = ["agenda", "stock_policy"]

_SENTENCES = MappingProxyType(
    {
        "list_watch": "I look at a page of the watch list.",
        "get_positions": "I look up the positions.",
        "get_quotes": "I read the quotes.",
        "get_events": "The move depends on corporate events, so I check them.",
        "get_alert_log": "An alert is due, so I check which were sent before.",
        "get_currency_board": "Exposures stand in several currencies, so I read the board.",
        "read_document": "I read on.",
        "find_contacts": "I look for the market data desk.",
        "write_message": "The rules say that I must ask before I go on.",
        "calculate": "I calculate what the rules compare.",
        "send_alert": "The move is beyond a limit, so I send the alert.",
        "mute": "A rule says that this one is muted.",
        "escalate": "A rule says that this quote is escalated.",
        "clear": "No alert is due here, so I clear it.",
        "file_report": "Everything is settled, so I file the report.",
        "finish": "The report is filed, so I finish.",
    }
)


def stock_policy(style: Style) -> Inquiry:
    """The reference policy in a style."""
    return Inquiry(style, agenda=lambda world: agenda(facts(world)), progress=progress_of)


@lru_cache(maxsize=16)
def agenda(data: StockData) -> Agenda:
    """The agenda of one instance."""
    rules, library = data.rules, Library(data.shelf.documents, part_chars=data.part_chars)
    in_force = {one.topic: one for one in data.shelf.documents if one.topic is not None}
    topics = [topic for topic in Topic if topic in in_force]
    sources = [_Sources(rules, one) for one in data.desk.positions]
    pages = -(-len(sources) // BATCH)
    return Agenda(
        cases=tuple(
            Case(source.one.id, place // BATCH + 1, tuple(source.goals()), source.verdict.settle) for place, source in enumerate(sources)
        ),
        closing=Case("file_report", 0, tuple(_closing_goals(sources)), closing_call(data)),
        rules=tuple(rule_of(library, in_force[topic], topic=str(topic), query=QUERIES[topic]) for topic in topics),
        listings=tuple(ToolCall("list_watch", {"desk": data.desk.name, "page": page}) for page in range(1, pages + 1)),
        announcement="Plan: list the instruments, read the rules, read positions and quotes, compute, ask, settle all, then report.",
        sentences=_SENTENCES,
    )


def _closing_goals(sources: list[_Sources]) -> Iterator[Fact]:
    alerted = [source.exposure() for source in sources if source.verdict.settle.name == "send_alert"]
    yield from alerted
    values = [fact.source.value for fact in alerted if isinstance(fact.source, Sum)]
    if len(values) > 1:
        expression = "+".join(map(str, values))
        yield Fact("", (token(sum(values)),), Sum(expression, sum(values)), 10, tuple(alerted))


class _Sources:
    """The facts about one position."""

    def __init__(self, rules: Rules, one: Position) -> None:
        self.rules, self.one = rules, one
        self.verdict: Verdict = judge(rules, one)

    def goals(self) -> Iterator[Fact]:
        """What decides the case, in the order in which it is looked at."""
        rules, verdict = self.rules, self.verdict
        yield self.quote()
        if verdict.move is None:
            return
        yield self.position()
        yield self.move(*verdict.move)
        if Atom.EXPOSURE in rules.atoms and verdict.by_move is Severity.NOTICE:
            yield self.exposure()
        if Atom.DUPLICATE in rules.atoms and verdict.severity is not Severity.NONE:
            yield self.log()
        if Atom.ORDER in rules.atoms and verdict.severity is Severity.CRITICAL and verdict.reason is not Atom.DUPLICATE:
            yield self.reply()

    def position(self) -> Fact:
        one = self.one
        tokens = ("kind", one.kind, "quantity", str(one.quantity), "currency", one.currency, "manager", one.manager)
        return Fact(one.id, tokens, Lookup("get_positions", "instruments"), 1)

    def quote(self) -> Fact:
        one = self.one
        prices = ("close", token(one.close), "last", token(one.last), "minutes", str(one.minutes))
        status = "halted" if one.halted else "trading"
        return Fact(one.id, (*prices, "status", status, "turnover", token(one.turnover)), Lookup("get_quotes", "instruments"), 2)

    def event(self) -> Fact:
        kind, value = self.one.event
        tokens = ("event", kind, "value", token(value)) if kind in ("dividend", "split") else ("event", kind)
        return Fact(self.one.id, tokens, Lookup("get_events", "instruments"), 3)

    def price(self) -> Fact:
        """The market data desk's price."""
        desk = Fact(self.rules.feed, ("market", "data"), Single(ToolCall("find_contacts", {"query": FEED_QUERY})), 4)
        message = f"What is the last price of {self.one.id}, please?"
        call = ToolCall("write_message", {"contact": self.rules.feed, "message": message})
        return Fact(self.one.id, ("shows", token(self.one.checked)), Single(call), 5, (self.quote(), desk))

    def move(self, expression: str, value: int | float) -> Fact:
        basis = [self.quote(), *self._price_basis()]
        if {Atom.DIVIDEND, Atom.SPLIT, Atom.EARNINGS} & set(self.rules.atoms):
            basis.append(self.event())
        return Fact(self.one.id, ("move", token(value)), Sum(expression, value, self.rules.step), 6, tuple(basis))

    def exposure(self) -> Fact:
        expression, value = self.verdict.exposure
        basis = [self.position(), self.quote(), *self._price_basis()]
        if Atom.CURRENCY in self.rules.atoms and self.one.currency != HOME:
            basis.append(_board(self.rules))
        return Fact(self.one.id, ("exposure", token(value)), Sum(expression, value, self.rules.unit), 7, tuple(basis))

    def log(self) -> Fact:
        """The alert that decides, the latest one, or that there is none."""
        rules = self.rules
        deciding = [entry for entry in self.one.alerts if entry[0] <= rules.repeat_hours and entry[1] >= self.verdict.severity]
        shown = [*deciding, *self.one.alerts][:1]
        tokens = [part for hours, severity in shown for part in ("hours", str(hours), rules.code(severity))] or ["none"]
        return Fact(self.one.id, ("alerts", *tokens), Lookup("get_alert_log", "instruments"), 8)

    def reply(self) -> Fact:
        """The manager's answer."""
        message = f"Was the move of {self.one.id} planned on your side?"
        call = ToolCall("write_message", {"contact": self.one.manager, "message": message})
        return Fact(self.one.id, ("planned" if self.one.planned else "unplanned",), Single(call), 9, (self.position(),))

    def _price_basis(self) -> Iterator[Fact]:
        if Atom.PRICE_CHECK in self.rules.atoms and self.one.minutes > self.rules.fresh_minutes:
            yield self.price()


def _board(rules: Rules) -> Fact:
    tokens = tuple(part for currency in CURRENCIES for part in (currency, str(plain(rules.rate(currency)))))
    return Fact("fx_board", tokens, Single(ToolCall("get_currency_board", {})), 6)
