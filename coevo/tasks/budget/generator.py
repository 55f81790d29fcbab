"""Budget rounds: the rules of a template, requests of which each rule decides one, and balances that run out where a rule says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

from coevo.errors import ConfigError, nearest
from coevo.identity import derive_seed
from coevo.tasks.budget.documents import shelf_of
from coevo.tasks.budget.rulebook import CATEGORIES, CURRENCIES, HOME, REASONS, Atom, Centre, Request, Rules, Vendor, Verdict, judge_round
from coevo.tasks.budget.standard import BudgetData, BudgetWorld, Unit
from coevo.tasks.contacts import Answer, Contact
from coevo.tasks.family import Size, TaskInstance
from coevo.tasks.payroll.people import NAMES
from coevo.tasks.rounds import Scale, Shelf

__all__ = ["SCALES", "TEMPLATES", "Template", "draw_rules", "open_budget"]

SCALES = MappingProxyType(
    {
        Size.STANDARD: Scale(cases=(6, 9), groups=2, distractors=9, paragraphs=(1, 2), part_chars=4000, history=0, people=8),
        Size.LONG: Scale(cases=(6, 9), groups=39, distractors=116, paragraphs=(7, 12), part_chars=2400, history=0, people=120),
    }
)


@dataclass(frozen=True, slots=True)
class Template:
    """One wording (slot `{unit}`) with its rules; `drafts` puts future versions on the shelf."""

    wording: str
    atoms: tuple[Atom, ...]
    drafts: bool = False


TEMPLATES = MappingProxyType(
    {
        "routine": Template("Please decide the open spending requests of {unit}.", (Atom.QUOTES,)),
        "vendors": Template("Go through {unit}'s budget round and settle every request.", (Atom.QUOTES, Atom.BLOCKED)),
        "currency": Template("{unit} is waiting for its budget decisions. Can you make them?", (Atom.CURRENCY,)),
        "caps": Template("Do the budget round for {unit}, please.", (Atom.CAP,)),
        "tight": Template("Money is tight in {unit}. Decide its requests.", (Atom.PARTIAL,)),
        "freeze": Template("Settle the requests of {unit} before the month ends.", (Atom.FREEZE, Atom.CAP), drafts=True),
        "services": Template("{unit} wants to buy a few things. Decide what it gets.", (Atom.BLOCKED, Atom.CONTRACT)),
        "owners": Template("Run the approval round of {unit}.", (Atom.CONSENT,)),
        "year_end": Template("The year ends soon: close the budget round of {unit}.", (Atom.CLOSED, Atom.FREEZE)),
        "again": Template("{unit} sent its requests, some of them not for the first time. Decide them.", (Atom.DUPLICATE,)),
        "absences": Template("Please take care of the budget requests of {unit} this week.", (Atom.DEPUTY, Atom.QUOTES), drafts=True),
        "abroad": Template("{unit} buys abroad. Decide its open requests.", (Atom.CURRENCY, Atom.CAP)),
        "projects": Template("Decide {unit}'s project spending and close the round.", (Atom.PARTIAL, Atom.CONSENT)),
        "sourcing": Template("Purchasing needs the decisions on {unit}'s requests.", (Atom.CONTRACT, Atom.QUOTES, Atom.CAP)),
        "moved": Template(
            "{unit} was reorganised. Decide its requests all the same.", (Atom.CLOSED, Atom.DEPUTY, Atom.CURRENCY), drafts=True
        ),
        "strict": Template("Audit asked for a careful round in {unit}.", (Atom.QUOTES, Atom.BLOCKED, Atom.DUPLICATE)),
        "growth": Template("{unit} is growing. Work through its requests.", (Atom.CONSENT, Atom.PARTIAL, Atom.CURRENCY)),
        "handover": Template("I took over {unit}; its requests are open. Please decide them.", (Atom.DEPUTY, Atom.FREEZE, Atom.BLOCKED)),
        "review": Template("Review and settle every request of {unit}.", (Atom.QUOTES, Atom.CONSENT, Atom.CAP, Atom.PARTIAL), drafts=True),
        "full": Template(
            "Do the whole budget round of {unit}; nothing may be granted wrongly.",
            (Atom.CLOSED, Atom.QUOTES, Atom.CAP, Atom.PARTIAL, Atom.CURRENCY, Atom.DEPUTY),
            drafts=True,
        ),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""

_UNITS = tuple(
    f"{area} {place}"
    for area in ("Logistics", "Support", "Research", "Marketing", "Sales", "Operations", "Legal", "Engineering", "Facilities", "Design")
    for place in ("North", "South", "Harbour", "City")
)
_SUBSIDIARIES = ("Aarhus", "Bilbao", "Cork", "Graz")
_TITLES = {
    "hardware": ("Laptops for the team", "Label printer", "Scanner set", "Test phones", "Screens"),
    "software": ("Drawing licences", "Planning tool", "Monitoring plan", "Password vault"),
    "travel": ("Trip to a fair", "Visit to a client", "Team meeting abroad", "Audit trip"),
    "training": ("First aid course", "Language course", "Safety training", "Data course"),
    "services": ("Cleaning contract", "Translation work", "Outside advice", "Repair of the gate"),
    "furniture": ("Desks", "Chairs", "Shelves", "Meeting booth"),
}
_VENDORS = ("Adria", "Brightline", "Corvo", "Delta", "Elbe", "Fjord", "Granit", "Helix", "Ivory", "Juno", "Kobalt", "Lumen", "Mistral")
_CODES = tuple(f"{letter}{number}" for letter in "ADGHLMNST" for number in range(10, 100))
_TRIES = 400


def open_budget(instance: TaskInstance) -> BudgetWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    template = TEMPLATES.get(instance.template)
    if template is None:
        raise ConfigError("unknown budget template", seen=instance.template, fix=nearest(instance.template, TEMPLATES))
    random = Random(derive_seed(instance.family, instance.size, instance.template, instance.stream, instance.seed))
    scale, names = SCALES[instance.size], random.sample(_UNITS, len(_UNITS))
    people = _Ids(random, "C")
    rules = draw_rules(random, template.atoms, [people.take() for _ in range(4)])
    books = _Books(random, rules, scale, people)
    own, units = books.round(names[0]), [books.other(name) for name in names[1 : scale.groups]]
    units.insert(random.randint(0, len(units)), own)
    redraw = _redrawing(random, rules)
    documents = shelf_of(
        random, rules, redraw, scale, units=_SUBSIDIARIES if instance.size is Size.LONG else _SUBSIDIARIES[:1], drafts=template.drafts
    )
    shelf = Shelf(documents, tuple(_directory(random, rules, books, scale, people)))
    data = BudgetData(own, tuple(units), tuple(books.centres.values()), tuple(books.vendors.values()), rules, shelf, scale.part_chars or 0)
    return BudgetWorld(instance, instruction=template.wording.format(unit=own.name), data=data)


def draw_rules(random: Random, atoms: Sequence[Atom], people: Sequence[str]) -> Rules:
    """Parameters for the given atoms; `people` are the contacts of three approvers and a deputy."""
    codes = random.sample(_CODES, len(REASONS))
    capped = random.sample([one for one in CATEGORIES if one != "services"], 3)
    return Rules(
        atoms=tuple(atom for atom in Atom if atom in {*atoms, Atom.AUTHORITY, Atom.BALANCE}),
        codes=tuple(zip(REASONS, codes, strict=True)),
        quote_limit=random.choice((2400, 2800, 3200, 3600)),
        consent_limit=random.choice((7000, 7500, 8200, 9100)),
        frozen=capped[2],
        caps=tuple((one, random.choice((1100, 1300, 1600, 1900))) for one in capped[:2]),
        share=random.choice((0.4, 0.5, 0.6, 0.7)),
        step=random.choice((2, 5, 10, 20)),
        rates=tuple((one, 1.0 if one == HOME else random.randint(80, 125) / 100) for one in CURRENCIES),
        limits=(random.choice((900, 1200, 1500)), random.choice((5200, 5600, 6400)), random.choice((14500, 16500, 19500))),
        approvers=(people[0], people[1], people[2]),
        away=people[random.choice((0, 1))],
        deputy=people[3],
    )


def _redrawing(random: Random, rules: Rules) -> Callable[[], Rules]:
    """Draws rules of other versions: no parameter that decides is the same."""
    fields = ("quote_limit", "consent_limit", "frozen", "share", "step")

    def redraw() -> Rules:
        while True:
            other = draw_rules(random, rules.atoms, [f"C{number}" for number in random.sample(range(100, 1000), 4)])
            same = any(getattr(other, name) == getattr(rules, name) for name in fields)
            overlap = set(other.codes) & set(rules.codes) or set(other.caps) & set(rules.caps) or set(other.limits) & set(rules.limits)
            if not same and not overlap and not {*other.approvers, other.deputy} & {*rules.approvers, rules.deputy}:
                return other

    return redraw


class _Ids:
    """Ids of one kind, each once: letters and three digits."""

    def __init__(self, random: Random, letters: str) -> None:
        self._ids = iter(random.sample([f"{letters}{number}" for number in range(100, 1000)], 900))

    def take(self) -> str:
        return next(self._ids)


class _Books:
    """Draws requests and keeps what they refer to."""

    def __init__(self, random: Random, rules: Rules, scale: Scale, people: _Ids) -> None:
        self._random, self._rules, self._scale, self._people = random, rules, scale, people
        self._requests, self._centre_ids, vendor_ids = _Ids(random, "R"), _Ids(random, "K"), _Ids(random, "V")
        names = [f"{one} {kind}" for one in _VENDORS for kind in ("Ltd", "GmbH", "SA")]
        blocked = set(random.sample(range(len(names)), 8))
        self.vendors = {
            one.id: one
            for one in (Vendor(vendor_ids.take(), name, "blocked" if place in blocked else "listed") for place, name in enumerate(names))
        }
        self.centres: dict[str, Centre] = {}
        self.asked: list[Request] = []
        self._colleagues = [people.take() for _ in range(4)]

    def round(self, name: str) -> Unit:
        """The unit of the round, to be drawn first. Raises `ConfigError` when no draw shows every rule."""
        taken = [self._centre(name, place) for place in range(3)]
        closed = self._centre(name, 3, status="closed")
        for _ in range(_TRIES):
            requests = self._draw([one.id for one in taken], closed.id)
            centres = self._fund({one.id: one for one in (*taken, closed)}, requests)
            if _complete(self._rules, judge_round(self._rules, requests, centres, self.vendors), requests):
                self.centres.update(centres)
                named = tuple(replace(one, id=self._requests.take()) for one in requests)
                self.asked = list(named)
                return Unit(name, named)
        raise ConfigError("no budget round shows every rule of its template", seen=self._rules.atoms, fix="use fewer rules")

    def other(self, name: str) -> Unit:
        """A unit beside it."""
        centres = [self._centre(name, place) for place in range(2)]
        self._colleagues = [self._people.take() for _ in range(3)]
        self.centres.update({one.id: one for one in centres})
        count = self._random.randint(6, 12)
        return Unit(name, tuple(replace(self._ordinary(centres[0].id), id=self._requests.take()) for _ in range(count)))

    def _centre(self, name: str, place: int, *, status: str = "open") -> Centre:
        budget, spent, committed = (self._random.randint(low, 4 * low) for low in (9000, 2000, 700))
        title = f"{name} {('running costs', 'projects', 'equipment', 'old site')[place]}"
        return Centre(self._centre_ids.take(), title, self._people.take(), status, budget, spent, committed)

    def _draw(self, centres: Sequence[str], closed: str) -> list[Request]:
        rules, random = self._rules, self._random
        makers = [_MAKERS[atom] for atom in (*rules.atoms, Atom.QUOTES) if rules.has(atom) and atom in _MAKERS]
        low, high = self._scale.cases
        count = max(random.randint(low, high), len(makers) + 3)
        requests = [self._ordinary(random.choice(centres)) for _ in range(count - len(makers))]
        requests += [make(random, rules, self._ordinary(random.choice(centres))) for make in makers]
        requests = [replace(one, centre=closed) if one.centre == _CLOSED else self._vendor_of(one) for one in requests]
        random.shuffle(requests)
        return requests

    def _vendor_of(self, one: Request) -> Request:
        if one.vendor != _BLOCKED:
            return one
        return replace(one, vendor=self._random.choice([vendor.id for vendor in self.vendors.values() if vendor.standing == "blocked"]))

    def _ordinary(self, centre: str) -> Request:
        """A request that no check stops."""
        random, rules = self._random, self._rules
        category = random.choice([one for one in CATEGORIES if one != rules.frozen or not rules.has(Atom.FREEZE)])
        currency = random.choice((HOME, HOME, *CURRENCIES)) if rules.has(Atom.CURRENCY) else HOME
        vendor = random.choice([one.id for one in self.vendors.values() if one.standing == "listed"])
        return Request(
            id="",
            title=random.choice(_TITLES[category]),
            category=category,
            amount=random.randint(410, 4990),
            currency=currency,
            centre=centre,
            vendor=vendor,
            requester=random.choice(self._colleagues),
            quotes=random.randint(2, 3),
            contract=category == "services" or random.random() < 0.4,
            earlier=random.choice(("none", "none", "rejected")),
            offer=None,
            consent="supported",
        )

    def _fund(self, centres: Mapping[str, Centre], requests: Sequence[Request]) -> dict[str, Centre]:
        """Balances: one cost centre can't pay its last request, and where parts are granted another can pay a part of it."""
        rich = {one.id: replace(one, budget=10**9) for one in centres.values()}
        grants: dict[str, list[int]] = {one: [] for one in centres}
        for one, verdict in zip(requests, judge_round(self._rules, requests, rich, self.vendors), strict=True):
            grants[one.centre] += [verdict.granted] if verdict.granted is not None else []
        order = sorted(grants, key=lambda one: -len(grants[one]))
        return {one.id: self._balance(one, grants[one.id], order.index(one.id)) for one in centres.values()}

    def _balance(self, centre: Centre, grants: Sequence[int], rank: int) -> Centre:
        random, partial = self._random, self._rules.has(Atom.PARTIAL)
        if not grants or rank > 1 or (rank == 1 and not partial):
            available = sum(grants) + random.randint(300, 4000)
        else:
            least = int(grants[-1] * self._rules.share) + 1
            short = random.randint(least, grants[-1] - 1) if partial and rank == 0 else random.randint(5, least - 2)
            available = sum(grants[:-1]) + short
        return replace(centre, budget=available + centre.spent + centre.committed)


_CLOSED, _BLOCKED = "closed", "blocked"


def _complete(rules: Rules, verdicts: Sequence[Verdict], requests: Sequence[Request]) -> bool:
    """Every active rule decides something, and at least two requests are approved."""
    pairs = list(zip(requests, verdicts, strict=True))
    approved = [(one, verdict) for one, verdict in pairs if verdict.granted is not None]
    shown = {verdict.stopped for verdict in verdicts}
    seen = {
        Atom.CAP: any(verdict.wanted != verdict.worth for _, verdict in approved),
        Atom.PARTIAL: any(verdict.granted != verdict.wanted for _, verdict in approved),
        Atom.CURRENCY: any(one.currency != HOME for one, _ in approved),
        Atom.DEPUTY: any(verdict.settle.arguments["approver"] == rules.deputy for _, verdict in approved),
        Atom.QUOTES: Atom.QUOTES in shown and any(verdict.asked_quote for _, verdict in approved),
    }
    return len(approved) >= 2 and all(seen.get(atom, atom in shown) for atom in rules.atoms)


def _over(random: Random, limit: int, most: int) -> int:
    return random.randint(limit + 30, max(limit + 31, min(int(limit * 1.6), most)))


def _uncapped(random: Random, rules: Rules) -> str:
    return random.choice([one for one in CATEGORIES if one not in {*dict(rules.caps), rules.frozen, "services"}])


def _without_quote(random: Random, rules: Rules, one: Request) -> Request:
    amount = _over(random, rules.quote_limit, 5200)
    offer = random.choice((None, random.randint(amount * 8 // 10, amount * 11 // 10)))
    return replace(one, category=_uncapped(random, rules), amount=amount, currency=HOME, quotes=random.randint(0, 1), offer=offer)


def _large(random: Random, rules: Rules, one: Request) -> Request:
    return replace(one, category=_uncapped(random, rules), amount=_over(random, rules.limits[2], 40000), currency=HOME)


def _unwanted(random: Random, rules: Rules, one: Request) -> Request:
    amount = _over(random, rules.consent_limit, rules.limits[2] - 500)
    return replace(one, category=_uncapped(random, rules), amount=amount, currency=HOME, consent="declined")


def _capped(random: Random, rules: Rules, one: Request) -> Request:
    category, cap = random.choice(rules.caps)
    return replace(one, category=category, amount=_over(random, cap, 4000), currency=HOME, title=random.choice(_TITLES[category]))


def _foreign(random: Random, rules: Rules, one: Request) -> Request:
    return replace(one, category=_uncapped(random, rules), amount=random.randint(610, 2400), currency=random.choice(CURRENCIES[1:]))


def _absent(random: Random, rules: Rules, one: Request) -> Request:
    place = rules.approvers.index(rules.away)
    low = 300 if place == 0 else rules.limits[0] + 10
    return replace(one, category=_uncapped(random, rules), amount=random.randint(low, min(rules.limits[place], 2400)), currency=HOME)


def _service(random: Random, rules: Rules, one: Request) -> Request:
    return replace(one, category="services", title=random.choice(_TITLES["services"]), contract=False)


_MAKERS: dict[Atom, Callable[[Random, Rules, Request], Request]] = {
    Atom.DUPLICATE: lambda random, rules, one: replace(one, earlier="approved"),
    Atom.CLOSED: lambda random, rules, one: replace(one, centre=_CLOSED),
    Atom.BLOCKED: lambda random, rules, one: replace(one, vendor=_BLOCKED),
    Atom.FREEZE: lambda random, rules, one: replace(one, category=rules.frozen, title=random.choice(_TITLES[rules.frozen])),
    Atom.CONTRACT: _service,
    Atom.QUOTES: _without_quote,
    Atom.CONSENT: _unwanted,
    Atom.AUTHORITY: _large,
    Atom.CAP: _capped,
    Atom.CURRENCY: _foreign,
    Atom.DEPUTY: _absent,
}


def _directory(random: Random, rules: Rules, books: _Books, scale: Scale, people: _Ids) -> Iterator[Contact]:
    """Everybody that a record names, with what they know, and others."""
    known: dict[str, tuple[str, list[Answer]]] = {}
    roles = zip((*rules.approvers, rules.deputy), ("team lead", "head of unit", "director", "deputy"), strict=True)
    known |= {one: (role, []) for one, role in roles}
    for centre in books.centres.values():
        known[centre.owner] = (f"owner of {centre.name}", [])
    for one in books.asked:
        known.setdefault(one.requester, ("colleague", []))[1].append(_about_quotes(one))
        known[books.centres[one.centre].owner][1].append(_about_consent(one))
    known |= {people.take(): (random.choice(("colleague", "assistant", "buyer", "controller")), []) for _ in range(scale.people)}
    for contact in random.sample(sorted(known), len(known)):
        role, answers = known[contact]
        yield Contact(contact, random.choice(NAMES), role, tuple(answers), "I can only speak about requests of mine; please name one.")


def _about_quotes(one: Request) -> Answer:
    said = "there are enough on file." if one.quotes >= 2 else "there is no second quote."
    said = f"the second quote is {one.offer} {one.currency}." if one.offer is not None else said
    return Answer(("quote", "quotes", "offer", "offers"), f"{one.id}: {said}", one.id)


def _about_consent(one: Request) -> Answer:
    said = "supported, please go ahead." if one.consent == "supported" else "declined, it can wait until next year."
    return Answer(("support", "supported", "consent", "agree", "decline", "declined"), f"{one.id}: {said}", one.id)
