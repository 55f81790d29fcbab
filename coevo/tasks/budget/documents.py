"""The shelf of a budget round: policies in force, superseded versions, drafts, other units' policies, and what rules nothing here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from random import Random

from coevo.tasks.boilerplate import chapter
from coevo.tasks.budget.rulebook import ESCALATED, HOME, REASONS, Atom, Rules
from coevo.tasks.library import Document
from coevo.tasks.rounds import Scale, plain

__all__ = ["QUERIES", "Topic", "shelf_of", "topics_of"]


class Topic(StrEnum):
    """What a policy is about, in reading order."""

    CHECKS = "spending checks"
    MONEY = "funding"
    AUTHORITY = "delegation of authority"
    CODES = "reason codes"
    ABSENCES = "absences"


QUERIES = {
    Topic.CHECKS: "spending checks",
    Topic.MONEY: "funding of requests",
    Topic.AUTHORITY: "delegation of authority",
    Topic.CODES: "reason codes",
    Topic.ABSENCES: "absences and deputies",
}
"""Queries that find each topic."""

_TITLES = {
    Topic.CHECKS: ("Checks of spending requests", ("spending", "checks", "check", "requests", "budget", "approval", "policy", "rules")),
    Topic.MONEY: ("Funding of requests", ("funding", "money", "balance", "conversion", "caps", "requests", "budget", "policy", "rules")),
    Topic.AUTHORITY: ("Delegation of authority", ("delegation", "authority", "limits", "approver", "sign", "budget", "policy", "rules")),
    Topic.CODES: ("Reason codes of budget rounds", ("reason", "codes", "code", "reject", "escalate", "budget", "policy", "rules")),
    Topic.ABSENCES: ("Absences and deputies", ("absences", "absence", "deputies", "deputy", "away", "leave", "budget")),
}


def topics_of(rules: Rules) -> tuple[Topic, ...]:
    """Topics that an instance has documents on."""
    return tuple(topic for topic in Topic if topic is not Topic.ABSENCES or rules.has(Atom.DEPUTY))


def shelf_of(
    random: Random, rules: Rules, redraw: Callable[[], Rules], scale: Scale, *, units: tuple[str, ...], drafts: bool
) -> tuple[Document, ...]:
    """The shuffled shelf.

    Args:
        random: Of the instance.
        rules: In force.
        redraw: Gives rules of another version, every parameter that decides differing.
        scale: How much lies beside them.
        units: Other units with policies of their own.
        drafts: A future version lies beside the checks and the funding rules.
    """
    numbers = (f"P{number}" for number in random.sample(range(100, 1000), 400))
    shelf = [one for topic in topics_of(rules) for one in _versions(random, rules, redraw(), scale, topic, numbers)]
    if drafts:
        shelf += [
            _document(random, redraw(), scale, topic, next(numbers), "Status: draft for comment, planned for 2028.")
            for topic in (Topic.CHECKS, Topic.MONEY)
        ]
    for unit in units:
        other = redraw()
        status = f"Status: holds for the {unit} subsidiary only."
        shelf += [
            _document(random, other, scale, topic, next(numbers), status, place=f", {unit}") for topic in (Topic.CHECKS, Topic.AUTHORITY)
        ]
    shelf += [_distractor(random, next(numbers), place, scale) for place in range(scale.distractors)]
    random.shuffle(shelf)
    return tuple(shelf)


def _versions(random: Random, rules: Rules, other: Rules, scale: Scale, topic: Topic, numbers: Iterator[str]) -> Iterator[Document]:
    current, old = next(numbers), next(numbers)
    yield _document(random, rules, scale, topic, current, f"Status: valid since 1 January 2026, replaces {old}.", keep=True)
    yield _document(random, other, scale, topic, old, f"Status: superseded, see {current}.")


def _document(
    random: Random, rules: Rules, scale: Scale, topic: Topic, number: str, status: str, *, keep: bool = False, place: str = ""
) -> Document:
    body, facts = _WRITERS[topic](rules)
    title, keywords = _TITLES[topic]
    text = chapter(random, f"{status} {body}", count=random.randint(*scale.paragraphs))
    return Document(
        number, f"{title}{place}", text, keywords, ("valid", *dict.fromkeys(facts)) if keep else (), str(topic) if keep else None
    )


_LABELS = {
    Atom.DUPLICATE: "approved before",
    Atom.CLOSED: "closed cost centre",
    Atom.BLOCKED: "blocked vendor",
    Atom.FREEZE: "frozen category",
    Atom.CONTRACT: "contract missing",
    Atom.QUOTES: "quote missing",
    Atom.CONSENT: "owner declines",
    Atom.AUTHORITY: "beyond authority",
    Atom.BALANCE: "no money left",
}


def _write_checks(rules: Rules) -> tuple[str, list[str]]:
    second = "has no second one; with a second quote the request goes on with the lower of the two sums"
    wording = {
        Atom.DUPLICATE: ("the same request was approved in an earlier round", []),
        Atom.CLOSED: ("its cost centre is closed", []),
        Atom.BLOCKED: ("its vendor is blocked", []),
        Atom.FREEZE: (f"its category is {rules.frozen}, for which there is no money this year", [rules.frozen]),
        Atom.CONTRACT: ("it is about services and no contract is on file", []),
        Atom.QUOTES: (
            f"it is worth more than {rules.quote_limit}, fewer than two quotes are on file and the requester, who must be asked, {second}",
            [str(rules.quote_limit)],
        ),
        Atom.CONSENT: (
            f"it is worth more than {rules.consent_limit} and the owner of the cost centre, who must be asked, declines it",
            [str(rules.consent_limit)],
        ),
    }
    active = [atom for atom in REASONS if atom in wording and rules.has(atom)]
    lines = [f"({place}) {wording[atom][0]}: {_action(atom)} ({_LABELS[atom]})" for place, atom in enumerate(active, start=1)]
    opening = f"Sums are compared in {HOME}, after conversion. A request is checked in this order, and the first point that holds decides: "
    closing = (
        "What passes is capped, signed for and funded as the other policies say. Everything else about a request is a matter of taste."
    )
    listed = f"{opening}{'; '.join(lines)}. " if lines else f"Sums are compared in {HOME}. There are no checks beyond authority and money. "
    return listed + closing, [fact for atom in active for fact in wording[atom][1]]


def _action(atom: Atom) -> str:
    return "escalate" if atom in ESCALATED else "reject"


def _write_money(rules: Rules) -> tuple[str, list[str]]:
    lines = [
        "The balance of a cost centre is its budget less what is spent and committed.",
        "Requests are served in the order of the list, and what is granted in the round is no longer there for the next one.",
        f"When the balance is smaller than the sum, the request is rejected ({_LABELS[Atom.BALANCE]}).",
    ]
    facts: list[str] = []
    if rules.has(Atom.PARTIAL):
        share = str(plain(rules.share))
        lines[-1] = (
            f"When the balance is smaller than the sum but at least {share} times the sum, the whole balance is granted; when it "
            f"is smaller than that, the request is rejected ({_LABELS[Atom.BALANCE]})."
        )
        facts.append(share)
    if rules.has(Atom.CAP):
        caps = [f"{category} {cap}" for category, cap in rules.caps]
        lines.append(f"Per request no more is granted than {' and '.join(caps)}; the cap comes before authority and balance.")
        facts += [part for category, cap in rules.caps for part in (category, str(cap))]
    if rules.has(Atom.CURRENCY):
        lines.append(
            f"Sums in other currencies are converted to {HOME} with the rate of the board and rounded to the nearest multiple of "
            f"{rules.step}."
        )
        facts.append(str(rules.step))
    return " ".join(lines), facts


def _write_authority(rules: Rules) -> tuple[str, list[str]]:
    roles = ("team lead", "head of unit", "director")
    bands = [f"up to {limit} the {role} (contact {one})" for limit, role, one in zip(rules.limits, roles, rules.approvers, strict=True)]
    text = (
        f"A grant is entered under the name of whoever may sign for the granted sum, and the lowest one is to be chosen: "
        f"{', '.join(bands)}. A sum above that is escalated ({_LABELS[Atom.AUTHORITY]}), whatever the balance. "
        "A signature above one's own authority is void."
    )
    return text, [*map(str, rules.limits), *rules.approvers]


def _write_codes(rules: Rules) -> tuple[str, list[str]]:
    listed = "; ".join(f"{_LABELS[atom]} {rules.code(atom)}" for atom in REASONS)
    return f"Whoever rejects or escalates enters one code: {listed}.", [rules.code(atom) for atom in REASONS if rules.has(atom)]


def _write_absences(rules: Rules) -> tuple[str, list[str]]:
    text = f"During this round contact {rules.away} is away; contact {rules.deputy} signs in that place, with the same authority."
    return text, [rules.away, rules.deputy]


_WRITERS: dict[Topic, Callable[[Rules], tuple[str, list[str]]]] = {
    Topic.CHECKS: _write_checks,
    Topic.MONEY: _write_money,
    Topic.AUTHORITY: _write_authority,
    Topic.CODES: _write_codes,
    Topic.ABSENCES: _write_absences,
}

_DISTRACTORS = (
    ("Travel bookings", "Trains are booked in second class. A trip is approved with its request and needs no second form."),
    ("Budget planning calendar", "Plans for the next year are due in September. Requests of this year are not touched by them."),
    ("Vendor onboarding", "A new vendor is entered after a check of its register entry. The check takes about a week."),
    ("Corporate cards", "Cards are for small things. What is paid by card never becomes a request."),
    ("Spending review of 2021", "In 2021 every request went to the director. That was given up, because nobody waited that long."),
    ("Inventory of hardware", "Devices get a sticker. Stolen ones are reported to the service desk."),
    ("Training catalogue", "Courses of the catalogue are cheaper than others. Certificates are paid once."),
    ("Contract archive", "Contracts are kept by purchasing. A copy is put on file with each request about services."),
    ("Approval of leave", "Leave is approved by the team lead. It has nothing to do with money."),
    ("Budget glossary", "A commitment is money that was promised and not yet paid. A balance is what remains."),
    ("Gifts and invitations", "Gifts are declined. Invitations are reported."),
    ("Furniture standard", "Desks are height-adjustable. Chairs come in two sizes."),
)
_TEAMS = ("purchasing", "treasury", "audit", "people", "tax", "facilities", "data", "security", "brand", "quality")
_SITES = ("Basel", "Dublin", "Ghent", "Leeds", "Lyon", "Malmo", "Porto", "Turin")


def _distractor(random: Random, number: str, place: int, scale: Scale) -> Document:
    title, text = _DISTRACTORS[place % len(_DISTRACTORS)]
    team, site = random.choice(_TEAMS), random.choice(_SITES)
    keywords = (*title.lower().split(), team, "policy")
    return Document(number, f"{title}, {team} {site}", chapter(random, text, count=random.randint(*scale.paragraphs)), keywords)
