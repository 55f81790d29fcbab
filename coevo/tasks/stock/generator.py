"""Seeded alert rounds: twenty templates built from atoms, a desk on which each of them decides a case, and all that lies around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

from coevo.errors import ConfigError, nearest
from coevo.identity import derive_seed
from coevo.tasks.contacts import Answer, Contact
from coevo.tasks.family import Size, TaskInstance
from coevo.tasks.rounds import Scale, Shelf
from coevo.tasks.stock.documents import Setting, documents
from coevo.tasks.stock.rulebook import CURRENCIES, HOME, KINDS, Atom, Position, Rules, Severity, draw_rules, judge
from coevo.tasks.stock.standard import Desk, StockData, StockWorld

__all__ = ["SCALES", "TEMPLATES", "Template", "open_stock"]

SCALES = MappingProxyType(
    {
        Size.STANDARD: Scale((6, 9), groups=2, distractors=6, paragraphs=(1, 2), part_chars=3000, history=0, people=6),
        Size.LONG: Scale((7, 10), groups=44, distractors=60, paragraphs=(10, 18), part_chars=3000, history=56, people=60),
    }
)
"""Sizes of this world."""


@dataclass(frozen=True, slots=True)
class Template:
    """One wording with the rules that apply. `draft` puts a draft of the move rule on the shelf."""

    wording: str
    atoms: tuple[Atom, ...]
    draft: bool = False


_A = Atom
TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {
        "afternoon": Template("Please run the alert round for the {desk} desk ({day}).", (_A.HALT, _A.DUPLICATE)),
        "halts": Template("Do the {desk} alert round of {day}. A few names may be halted.", (_A.HALT, _A.EXPOSURE)),
        "dividends": Template("{desk} needs its alert round for {day}; there are ex-dividend names.", (_A.HALT, _A.DIVIDEND), draft=True),
        "orders": Template("Run the round of alerts on {desk} for {day} and keep our own trades in mind.", (_A.DUPLICATE, _A.ORDER)),
        "stale": Template("Alert round for {desk}, {day}. Some quotes look old.", (_A.STALE, _A.DUPLICATE)),
        "earnings": Template("It is earnings season. Do the {desk} alert round for {day}.", (_A.HALT, _A.EARNINGS, _A.DUPLICATE)),
        "duty": Template("Go through {desk}'s watch list ({day}) and alert whoever must know.", (_A.HALT, _A.ROSTER)),
        "currencies": Template("Alert round for {desk} on {day}, with the report as usual.", (_A.DUPLICATE, _A.CURRENCY)),
        "splits": Template(
            "Please do {desk} on {day}. The screen shows absurd moves after the splits.", (_A.SPLIT, _A.DUPLICATE), draft=True
        ),
        "turnover": Template("Run the alert round for {desk} ({day}); trading is heavy today.", (_A.TURNOVER, _A.HALT)),
        "feed": Template("The feed had a hiccup. Do the alert round for {desk}, {day}.", (_A.PRICE_CHECK, _A.HALT)),
        "large": Template(
            "{desk}, {day}: alert round please, large positions first come to mind.", (_A.EXPOSURE, _A.CURRENCY, _A.DUPLICATE)
        ),
        "planned": Template("Settle the alerts of {desk} for {day}.", (_A.ORDER, _A.HALT, _A.ROSTER), draft=True),
        "actions": Template(
            "Corporate actions hit {desk} today ({day}). Do the alert round.", (_A.DIVIDEND, _A.SPLIT, _A.EARNINGS, _A.DUPLICATE)
        ),
        "checked": Template("Alert round {desk}, {day}. Check prices before anybody is woken up.", (_A.PRICE_CHECK, _A.ORDER)),
        "quiet": Template(
            "It was a quiet day for {desk} ({day}). Do the round anyway.", (_A.TURNOVER, _A.DUPLICATE, _A.ROSTER), draft=True
        ),
        "old": Template("Please close the alert round of {desk} for {day}.", (_A.STALE, _A.EXPOSURE, _A.ORDER)),
        "income": Template("Round of alerts for {desk}, {day}; income events are in.", (_A.DIVIDEND, _A.TURNOVER, _A.CURRENCY, _A.HALT)),
        "busy": Template(
            "Busy day on {desk} ({day}): do the whole alert round.",
            (_A.HALT, _A.DUPLICATE, _A.EARNINGS, _A.EXPOSURE, _A.ROSTER),
            draft=True,
        ),
        "full": Template(
            "Do the complete alert round for the {desk} desk, {day}.",
            (_A.HALT, _A.PRICE_CHECK, _A.DUPLICATE, _A.DIVIDEND, _A.TURNOVER, _A.EXPOSURE, _A.ORDER, _A.CURRENCY),
            draft=True,
        ),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""

_REGIONS = ("Nordic", "Iberian", "Alpine", "Baltic", "Atlantic", "Pacific", "Danube", "Benelux", "Gulf", "Andean")
_BOOKS = ("Equities", "Income", "Growth", "Balanced", "Pensions", "Endowment", "Treasury")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")
_FIRMS = (
    "Aldgate",
    "Brightwater",
    "Corvin",
    "Delmar",
    "Estuary",
    "Fenwick",
    "Granite",
    "Halden",
    "Inverness",
    "Juniper",
    "Kestrel",
    "Larkhill",
)
_TRADES = ("Foods", "Energy", "Rail", "Pharma", "Steel", "Software", "Shipping", "Timber", "Water", "Optics", "Cement", "Insurance")
_FIRST = ("Ana", "Bo", "Chidi", "Dana", "Emre", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kira", "Lars", "Mina", "Noor", "Olga", "Piotr")
_LAST = ("Adler", "Brandt", "Costa", "Diaz", "Evans", "Fischer", "Grant", "Horvat", "Ito", "Jensen", "Kaya", "Lopez", "Moreau", "Novak")
_ROLES = (
    "client adviser",
    "compliance officer",
    "settlement clerk",
    "research analyst",
    "tax adviser",
    "auditor",
    "trader",
    "office manager",
)


def open_stock(instance: TaskInstance) -> StockWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    template = TEMPLATES.get(instance.template)
    if template is None:
        raise ConfigError("unknown stock template", seen=instance.template, fix=nearest(instance.template, TEMPLATES))
    random = Random(derive_seed(instance.family, instance.size, instance.template, instance.stream, instance.seed))
    scale = SCALES[instance.size]
    names = random.sample([f"{region} {book}" for region in _REGIONS for book in _BOOKS], scale.groups + 1)
    setting = Setting(names[0], f"{random.randint(1, 28)} {random.choice(_MONTHS)} 2026", tuple(names[1:]))
    ids = [f"U{number}" for number in random.sample(range(100, 1000), 10 + scale.people)]
    managers, officers, crowd = ids[:4], ids[4:10], ids[10:]
    rules = draw_rules(random, template.atoms, officers)
    draft = _Draft(random, rules, tuple(managers))
    desk = Desk(setting.desk, tuple(draft.round(random.randint(*scale.cases), scale.history)))
    others = [Desk(name, tuple(draft.elsewhere(random.randint(4, 12), scale.history))) for name in setting.others]
    desks = tuple(sorted([desk, *others], key=lambda one: one.name))
    papers = documents(random, rules, setting, scale, people=tuple(officers), draft=template.draft)
    people = _people(random, rules, desk, managers=managers, officers=officers, crowd=crowd)
    data = StockData(setting, desk, desks, rules, Shelf(papers, people), scale.part_chars or 0)
    return StockWorld(instance, instruction=template.wording.format(desk=setting.desk, day=setting.day), data=data)


def _people(random: Random, rules: Rules, desk: Desk, *, managers: list[str], officers: list[str], crowd: list[str]) -> tuple[Contact, ...]:
    names = iter(random.sample([f"{first} {last}" for first in _FIRST for last in _LAST], len(managers) + len(officers) + len(crowd)))
    people = [_manager(one, next(names), desk) for one in managers]
    others = iter(random.sample(_ROLES, len(_ROLES)))
    for one in officers:
        role = {rules.recipients[0]: "desk assistant", rules.recipients[1]: "risk officer"}.get(one)
        people.append(_feed(one, next(names), desk) if one == rules.feed else _bystander(one, next(names), role or next(others)))
    people += [_bystander(one, next(names), random.choice(_ROLES)) for one in crowd]
    random.shuffle(people)
    return tuple(people)


def _manager(contact: str, name: str, desk: Desk) -> Contact:
    answers = [
        Answer((), f"{one.id}: planned, these are our own orders." if one.planned else f"{one.id}: unplanned, we did nothing.", one.id)
        for one in desk.positions
        if one.manager == contact
    ]
    return Contact(contact, name, "portfolio manager", tuple(answers), "That is not one of mine. The position's record names its manager.")


def _feed(contact: str, name: str, desk: Desk) -> Contact:
    answers = [Answer((), f"{one.id}: our feed shows {_price(one.checked)} as the last price.", one.id) for one in desk.positions]
    return Contact(contact, name, "market data desk", tuple(answers), "Tell me the identifier of an instrument on a round that is open.")


def _bystander(contact: str, name: str, role: str) -> Contact:
    return Contact(contact, name, role, (), "I can't help with that. Please see the documents, or ask who is responsible.")


def _price(price: float) -> str:
    return str(int(price) if price == int(price) else price)


_DRAWS = 200


class _Draft:
    """Draws positions that fit the rules of one instance."""

    def __init__(self, random: Random, rules: Rules, managers: tuple[str, ...]) -> None:
        self._random, self._rules, self._managers = random, rules, managers
        self._ids = iter(random.sample(range(1000, 10000), 1200))
        self._makers: dict[Atom, Callable[[Position], Position]] = {
            Atom.HALT: self._halted,
            Atom.STALE: self._old,
            Atom.PRICE_CHECK: self._old,
            Atom.DUPLICATE: self._repeated,
            Atom.DIVIDEND: self._dividend,
            Atom.SPLIT: self._split,
            Atom.EARNINGS: self._earnings,
            Atom.TURNOVER: self._heavy,
            Atom.EXPOSURE: self._large,
            Atom.ORDER: self._planned,
            Atom.CURRENCY: self._alerted,
        }

    def round(self, count: int, history: int) -> Iterator[Position]:
        """A desk in which each active atom decides at least one case and one alert at least is sent; `history` as in `elsewhere`."""
        random = self._random
        made = [self._deciding(atom) for atom in self._rules.atoms if atom in self._makers]
        made += [self._alerted(self._blank()), self._quiet(self._blank())]
        if Atom.ROSTER in self._rules.atoms:
            made.append(self._at(self._blank(), Severity.CRITICAL))
        pool = (self._quiet, self._alerted, *(self._makers[atom] for atom in self._rules.atoms if atom in self._makers))
        made += [random.choice((self._quiet, self._alerted, *pool))(self._blank()) for _ in range(count - len(made))]
        random.shuffle(made)
        for one in made:
            first = 1 + max((self._rules.repeat_hours, *(hours for hours, _ in one.alerts)))
            yield replace(one, alerts=(*one.alerts, *self._history(random.randint(0, history), first=first)))

    def _deciding(self, atom: Atom) -> Position:
        """A position that is settled in another way, or reported with another exposure, where the atom is left out."""
        without = replace(self._rules, atoms=tuple(one for one in self._rules.atoms if one is not atom))
        for _ in range(_DRAWS):
            one = self._makers[atom](self._blank())
            verdict, other = judge(self._rules, one), judge(without, one)
            exposed = verdict.settle.name == "send_alert" and verdict.exposure[1] != other.exposure[1]
            if exposed or verdict.settle != other.settle:
                return one
        raise ConfigError("no position turns on a rule", seen=str(atom), fix="report this as a bug of the stock family")

    def elsewhere(self, count: int, history: int) -> Iterator[Position]:
        """Positions of another desk, with `history` earlier alerts at most."""
        for _ in range(count):
            one = self._random.choice((self._quiet, self._alerted))(self._blank())
            yield replace(one, alerts=self._history(self._random.randint(0, history), first=2))

    def _blank(self) -> Position:
        """A position that nothing stops, its price still where it closed."""
        random, rules = self._random, self._rules
        close = random.randint(1000, 40000) / 100
        position = Position(
            id=f"S{next(self._ids)}",
            name=f"{random.choice(_FIRMS)} {random.choice(_TRADES)}",
            kind=random.choice(KINDS),
            quantity=0,
            currency=random.choice(CURRENCIES) if Atom.CURRENCY in rules.atoms else HOME,
            manager=random.choice(self._managers),
            close=close,
            last=close,
            minutes=random.randint(0, rules.fresh_minutes - 5),
            halted=False,
            turnover=random.randint(5, int(rules.heavy * 8)) / 10,
            event=("none", 0),
            alerts=(),
            planned=False,
            checked=close,
        )
        return self._sized(position, random.uniform(0.05, 0.75))

    def _sized(self, one: Position, share: float) -> Position:
        """With an exposure of about `share` times the large one."""
        price = one.close * (self._rules.rate(one.currency) if Atom.CURRENCY in self._rules.atoms else 1)
        return replace(one, quantity=max(1, round(share * self._rules.large / price / 10)) * 10)

    def _moved(self, one: Position, low: float, high: float, *, base: float | None = None) -> Position:
        """Last price `low` to `high` percent away from the base, up or down."""
        start = one.close if base is None else base
        move = self._random.choice((1, -1)) * self._random.uniform(low, high)
        last = round(start * (1 + move / 100), 2)
        return replace(one, last=last, checked=last)

    def _at(self, one: Position, severity: Severity, *, base: float | None = None, factor: float = 1) -> Position:
        """Moved well inside the band of a severity."""
        notice, critical = (limit * factor for limit in self._rules.limit(one.kind))
        low, high = {
            Severity.NONE: (0.05 * notice, 0.85 * notice),
            Severity.NOTICE: (1.1 * notice, notice + 0.85 * (critical - notice)),
            Severity.CRITICAL: (1.1 * critical, 1.7 * critical),
        }[severity]
        return self._moved(one, low, high, base=base)

    def _quiet(self, one: Position) -> Position:
        return replace(self._at(one, Severity.NONE), alerts=self._history(self._random.choice((0, 0, 1)), first=1))

    def _alerted(self, one: Position) -> Position:
        """A notice or a critical move; an earlier alert, if any, is too old or too low to stand for it."""
        severity = self._random.choice((Severity.NOTICE, Severity.NOTICE, Severity.CRITICAL))
        older = self._history(self._random.choice((0, 1)), first=self._rules.repeat_hours + 1)
        lower = ((self._random.randint(1, self._rules.repeat_hours - 1), Severity(severity - 1)),) if self._random.random() < 0.5 else ()
        return replace(self._at(one, severity), alerts=(*lower, *older))

    def _halted(self, one: Position) -> Position:
        return replace(self._at(one, self._random.choice((Severity.NONE, Severity.NOTICE))), halted=True)

    def _old(self, one: Position) -> Position:
        """An old quote whose price moved since, so that the checked price gives another severity."""
        severities = self._random.sample((Severity.NONE, Severity.NOTICE, Severity.CRITICAL), 2)
        stale, now = (self._at(one, severity) for severity in severities)
        return replace(stale, checked=now.last, minutes=self._rules.fresh_minutes + self._random.randint(3, 200))

    def _repeated(self, one: Position) -> Position:
        severity = self._random.choice((Severity.NOTICE, Severity.CRITICAL))
        hours = self._random.randint(1, self._rules.repeat_hours - 1)
        return replace(self._at(self._sized(one, 0.4), severity), alerts=((hours, severity), *self._history(1, first=hours + 1)))

    def _dividend(self, one: Position) -> Position:
        dividend = round(one.close * self._random.uniform(0.02, 0.06), 2)
        severity = self._random.choice((Severity.NONE, Severity.NOTICE))
        return replace(self._at(one, severity, base=one.close - dividend), event=("dividend", dividend))

    def _split(self, one: Position) -> Position:
        ratio = self._random.choice((2, 4, 5))
        severity = self._random.choice((Severity.NONE, Severity.NOTICE))
        return replace(self._at(one, severity, base=one.close / ratio), event=("split", ratio))

    def _earnings(self, one: Position) -> Position:
        """Beyond the ordinary limit and short of the multiplied one, or beyond both."""
        notice, factor = self._rules.limit(one.kind)[0], self._rules.factor
        moved = (
            self._moved(one, 1.1 * notice, 0.9 * factor * notice)
            if self._random.random() < 0.6
            else self._at(one, Severity.NOTICE, factor=factor)
        )
        return replace(moved, event=("earnings", 0))

    def _heavy(self, one: Position) -> Position:
        return replace(self._at(one, Severity.NONE), turnover=round(self._rules.heavy + self._random.randint(1, 40) / 10, 1))

    def _large(self, one: Position) -> Position:
        return self._at(self._sized(one, self._random.uniform(1.3, 3)), Severity.NOTICE)

    def _planned(self, one: Position) -> Position:
        return replace(self._at(one, Severity.CRITICAL), planned=True)

    def _history(self, count: int, *, first: int) -> tuple[tuple[int, Severity], ...]:
        """Alerts from `first` hours ago backwards, latest first."""
        hours = sorted(self._random.sample(range(first, first + 24 + 20 * count), count))
        return tuple((hour, self._random.choice((Severity.WATCH, Severity.NOTICE, Severity.CRITICAL))) for hour in hours)
