"""The shelf of a deskwork instance: policies in force, superseded versions, drafts, code lists and other companies' paper, from one source.

A policy in force renders the active rules of a desk with the instance's terms; its superseded version and its draft render other terms and
other codes under the same title, so only their text tells them apart. In the long size every document is wrapped in ordinary prose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from coevo.tasks.boilerplate import PARAGRAPHS
from coevo.tasks.deskwork import Brief, Desk, Terms, active_rules, literals, plain, slots
from coevo.tasks.library import Document

__all__ = ["CODES", "RULES", "draw_codes", "papers"]

RULES, CODES = "rules", "codes"
"""The two topics of a desk: `returns rules`, `returns codes`. Also the queries that find them."""

_LETTERS = "BCDFGHJKLMNPRTX"


def draw_codes(random: Random, count: int) -> list[str]:
    """Distinct reason codes: a letter and two digits."""
    return random.sample([f"{letter}{number}" for letter in _LETTERS for number in range(10, 100)], count)


def papers(
    random: Random, desks: Sequence[tuple[Desk, Brief]], *, company: str, drafts: bool, extra: int, wrapped: bool
) -> tuple[Document, ...]:
    """The shuffled shelf of one instance.

    Args:
        random: Of the instance.
        desks: The queues whose rules are on it.
        company: Name that titles carry.
        drafts: A future version of each policy lies beside it.
        extra: Documents about other things.
        wrapped: Policies stand between paragraphs of prose, for the long size.
    """
    numbers = (f"D{number}" for number in random.sample(range(100, 1000), 6 * len(desks) + extra))
    shelf: list[Document] = []
    for desk, brief in desks:
        other = _others(random, desk, brief)
        current, old = next(numbers), next(numbers)
        in_force = f"Status: in force since 1 April 2026. It replaces {old}."
        shelf.append(_rules(current, desk, brief, in_force))
        shelf.append(_outdated(_rules(old, desk, next(other), f"Status: superseded. Since 1 April 2026 {current} is in force.")))
        if drafts:
            draft = "Status: draft for discussion, to be in force from 1 January 2028."
            shelf.append(_outdated(_rules(next(numbers), desk, next(other), draft)))
        if brief.terms["codes"]:
            current, old = next(numbers), next(numbers)
            shelf.append(_codes(current, desk, brief, f"Status: in force since 1 May 2026. It replaces {old}."))
            shelf.append(_outdated(_codes(old, desk, next(other), f"Status: superseded. Since 1 May 2026 {current} is in force.")))
    if wrapped:
        shelf = [replace(one, text=_wrap(random, one.text)) for one in shelf]
    titles = random.sample(sorted(_PROSE), min(extra, len(_PROSE)))
    shelf += [_prose(random, next(numbers), title, company, wrapped=wrapped) for title in titles]
    random.shuffle(shelf)
    return tuple(shelf)


def _others(random: Random, desk: Desk, brief: Brief) -> Iterator[Brief]:
    """Briefs with other terms: no common code, and most shown terms differ."""
    shown = {name for rule in active_rules(desk, brief.atoms) for name in slots(rule.text)} | set(slots(desk.intro))
    while True:
        terms = desk.terms(random)
        labels = list(brief.terms["codes"])
        codes = draw_codes(random, len(labels))
        differing = [name for name in shown if terms[name] != brief.terms[name]]
        if 2 * len(differing) >= len(shown) and not set(codes) & set(brief.terms["codes"].values()):
            yield replace(brief, terms={**terms, "codes": dict(zip(labels, codes, strict=True))}, cases=())


def _outdated(document: Document) -> Document:
    return replace(document, facts=(), topic=None)


def _rules(number: str, desk: Desk, brief: Brief, status: str) -> Document:
    rules = active_rules(desk, brief.atoms)
    shown = _shown(brief.terms)
    clauses = [f"({place}) {rule.text.format(**shown)}" for place, rule in enumerate(rules, start=1)]
    reasons = " Reasons are written as codes; the list of codes is a document of its own." if brief.terms["codes"] else ""
    content = (
        f"{status}\n\n{desk.intro.format(**shown)} Check every case in this order; the first point that applies decides. "
        f"{' '.join(clauses)}{reasons}"
    )
    texts = (desk.intro, *(rule.text for rule in rules))
    asked = [token for rule in rules if rule.ask is not None for token in literals(rule.ask.role)]
    facts = tuple(dict.fromkeys([*(token for text in texts for name in slots(text) for token in literals(shown[name])), *asked]))
    return Document(
        number, desk.title, content, (desk.name, RULES, "policy", "rule", "guideline", *desk.words), facts, f"{desk.name} {RULES}"
    )


def _codes(number: str, desk: Desk, brief: Brief, status: str) -> Document:
    codes = brief.terms["codes"]
    listed = "; ".join(f"{label}: {code}" for label, code in codes.items())
    used = [rule.label for rule in active_rules(desk, brief.atoms) if rule.label]
    facts = tuple(dict.fromkeys(codes[label] for label in used))
    text = f"{status}\n\nReasons and their codes, to be entered with every decision that needs one. {listed}."
    keywords = (desk.name, CODES, "code", "reason", "reasons", "list")
    return Document(number, f"Codes: {desk.title.lower()}", text, keywords, facts, f"{desk.name} {CODES}")


def _shown(terms: Terms) -> dict[str, Any]:
    """Terms as the text shows them: lists in words, whole numbers without a point."""
    return {name: _words(value) if isinstance(value, (list, tuple)) else plain(value) for name, value in terms.items()}


def _words(items: Sequence[Any]) -> str:
    shown = [str(plain(item)) for item in items]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _wrap(random: Random, text: str) -> str:
    """Four to eight paragraphs around a policy's own two; the status stays on top."""
    status, _, body = text.partition("\n\n")
    prose = random.sample(PARAGRAPHS, random.randint(4, 8))
    place = random.randint(0, len(prose))
    return "\n\n".join([status, *prose[:place], body, *prose[place:]])


def _prose(random: Random, number: str, title: str, company: str, *, wrapped: bool) -> Document:
    lines = [_fill(random, _PROSE[title])]
    if wrapped:
        lines += random.sample(PARAGRAPHS, random.randint(14, 22))
    return Document(number, f"{title} ({company})", "\n\n".join(lines), tuple(dict.fromkeys((*title.lower().split(), "policy", "rules"))))


def _fill(random: Random, text: str) -> str:
    """Numbers for the slots of a paragraph."""
    return text.format(a=random.randint(2, 30), b=random.randint(31, 99), c=random.randint(2, 12), d=random.randint(100, 900))


_PROSE = {
    "Travel expenses": "Trips are refunded within {a} days. Meals up to {b} a day need no receipt; trains are booked in second class.",
    "Parking": "Parking places are drawn by lot every {c} months. Visitors use the {a} places at the gate.",
    "Holiday calendar": "The office is closed on {a} days a year. Service runs with a team of {c} on these days.",
    "Laptop policy": "Laptops are replaced after {c} years. A lost one is reported within {a} hours.",
    "Pay day": "Salaries arrive on day {a} of the month, or on the last working day before it.",
    "Onboarding": "New colleagues get a mentor for {a} weeks and a plan for every week. {c} of the first days are spent in the warehouse.",
    "Canteen": "Lunch costs {c} for staff and {a} for guests. The card can be charged with up to {d}.",
    "Passwords": "A password has at least {a} characters. After {c} wrong tries the account is locked for {b} minutes.",
    "Fire drill": "The alarm is tested every {c} months. Meet at point {a}; the wardens count.",
    "Company bikes": "There are {a} bikes. One may be kept for {c} days; repairs up to {b} are paid.",
    "Press contacts": "Questions of the press go to the press office. It answers within {c} hours.",
    "Supplier audits": "{a} suppliers are audited each year. Those with fewer than {b} points are visited again.",
    "Energy": "Heating is set to {a} degrees. {b} percent of the power comes from the roof.",
    "Meeting rooms": "Rooms are booked for at most {c} hours. A room that stays empty for {a} minutes is free again.",
    "Archive of 2019": "In 2019 everything was on paper: {d} folders. Limits and codes of that year no longer count.",
    "Data retention": "Letters are kept for {c} years, invoices for {a}. Then they are shredded.",
    "Sick leave": "A note is due after {c} days. It is sent to the people team, not to the manager.",
    "Newsletter": "The newsletter goes out every {a} days to {d} readers. Texts are due {c} days before.",
    "Gifts": "Gifts up to {b} may be accepted. Anything above is raffled in December.",
    "Warehouse safety": "Forklifts drive at {c} kilometres per hour. Shelves carry {d} kilograms.",
    "Phone system": "Calls are answered after {c} rings. Extension {d} reaches the front desk.",
    "Printing": "Each team prints up to {d} pages a month. Colour counts {c} times.",
    "Team events": "Each team has {b} per head and year. Events are announced {a} days ahead.",
    "Visitor badges": "Badges are valid for {c} hours. {a} of them lie at the front desk.",
}
"""Title -> text of documents that have nothing to do with a task."""
