"""The rules of the standard world: what decides an employee's case, and the documents that say so, both from one source.

An instance draws parameters (thresholds, codes, reasons) for the atoms of its template. `settling_call` is the truth for grader and
policies; `documents` writes the same parameters into prose, beside superseded and draft versions with other parameters and other texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from random import Random

from coevo.chat import ToolCall
from coevo.tasks.library import Document
from coevo.tasks.payroll.arithmetic import Rounding, evaluate, plain_number, round_to

__all__ = [
    "KINDS",
    "Atom",
    "Person",
    "Rules",
    "Topic",
    "deciding_atom",
    "documents",
    "draw_rules",
    "needs_approval",
    "pay_expression",
    "settling_call",
]

KINDS = ("staff", "temp", "contractor", "intern")


class Atom(StrEnum):
    """A rule that takes a case out of ordinary payment. Declared in the order in which they are checked."""

    GAP = "gap"
    """A week without hours: hold."""
    RATE_CEILING = "rate_ceiling"
    """A rate above the ceiling: escalate."""
    CONTRACTOR_CAP = "contractor_cap"
    """A contractor with too many hours in the month: escalate."""
    INTERN_CAP = "intern_cap"
    """An intern with a week that is too long: escalate."""
    APPROVAL = "approval"
    """Overtime that nobody approved: hold."""


_HOLDS = (Atom.GAP, Atom.APPROVAL)


class Topic(StrEnum):
    """What a policy document is about; also the query that finds it."""

    TIME = "overtime"
    CODES = "pay codes"
    ESCALATION = "escalation"


@dataclass(frozen=True, slots=True)
class Person:
    """One employee. `rate` per hour with at most two decimals; `weeks` in quarter hours, None for a missing entry."""

    id: str
    name: str
    kind: str
    rate: float
    weeks: tuple[float | None, ...]
    approval: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The parameters of one instance.

    Attributes:
        threshold: Hours per week beyond which overtime starts, for the kinds in `overtime_kinds`.
        multiplier: Of the rate, for overtime hours.
        step: Rounding step of a sum.
        mode: `Rounding`.
        codes: Pay code per kind, in the order of `KINDS`.
        atoms: Active atoms in checking order, each with its reason code.
        rate_ceiling, contractor_cap, intern_cap: Limits; hours per month and per week.
    """

    threshold: float
    multiplier: float
    overtime_kinds: tuple[str, ...]
    step: float
    mode: Rounding
    codes: tuple[str, ...]
    atoms: tuple[tuple[Atom, str], ...]
    rate_ceiling: int
    contractor_cap: int
    intern_cap: int

    def code(self, kind: str) -> str:
        """The pay code of a kind."""
        return self.codes[KINDS.index(kind)]


def overtime_weeks(rules: Rules, person: Person) -> tuple[float, ...]:
    """The weeks beyond the threshold; none for kinds without overtime."""
    if person.kind not in rules.overtime_kinds:
        return ()
    return tuple(hours for hours in person.weeks if hours is not None and hours > rules.threshold)


def _applies(atom: Atom, rules: Rules, person: Person) -> bool:
    hours = [one for one in person.weeks if one is not None]
    match atom:
        case Atom.GAP:
            return None in person.weeks
        case Atom.RATE_CEILING:
            return person.rate > rules.rate_ceiling
        case Atom.CONTRACTOR_CAP:
            return person.kind == "contractor" and sum(hours) > rules.contractor_cap
        case Atom.INTERN_CAP:
            return person.kind == "intern" and max(hours, default=0) > rules.intern_cap
        case Atom.APPROVAL:
            return bool(overtime_weeks(rules, person)) and person.approval != "approved"


def deciding_atom(rules: Rules, person: Person) -> Atom | None:
    """The first active atom that applies; None for a case that is paid."""
    return next((atom for atom, _ in rules.atoms if _applies(atom, rules, person)), None)


def needs_approval(rules: Rules, person: Person) -> bool:
    """The case turns on the approval: overtime, an active approval rule, and no earlier rule that decides."""
    return (
        Atom.APPROVAL in dict(rules.atoms) and bool(overtime_weeks(rules, person)) and deciding_atom(rules, person) in (None, Atom.APPROVAL)
    )


def pay_expression(rules: Rules, person: Person) -> str:
    """The sum before rounding, written with literals of the time sheet, the record and the rules only."""
    over = overtime_weeks(rules, person)
    threshold, rate = _text(rules.threshold), _text(person.rate)
    plain = "+".join(threshold if hours in over else _text(hours) for hours in person.weeks if hours is not None)
    extra = "+".join(f"({_text(hours)}-{threshold})" for hours in over)
    extra = extra if len(over) == 1 else f"({extra})"
    return f"({plain})*{rate}" + (f"+{extra}*{rate}*{_text(rules.multiplier)}" if over else "")


def settling_call(rules: Rules, person: Person) -> ToolCall:
    """The one right way to settle a case: for the grader, for policies and for demonstrations; no tool calls it."""
    atom = deciding_atom(rules, person)
    if atom is not None:
        return ToolCall("hold" if atom in _HOLDS else "escalate", {"employee": person.id, "reason": dict(rules.atoms)[atom]})
    amount = round_to(evaluate(pay_expression(rules, person)), Fraction(str(rules.step)), rules.mode)
    return ToolCall("submit_pay", {"employee": person.id, "amount": plain_number(amount), "code": rules.code(person.kind)})


def draw_rules(random: Random, atoms: Sequence[Atom]) -> Rules:
    """Parameters for the given atoms."""
    codes = random.sample([f"{letter}{number}" for letter in "ABCGH" for number in range(10, 60)], len(KINDS))
    reasons = random.sample([f"{letter}{number}" for letter in "KLMRT" for number in range(10, 60)], len(Atom))
    return Rules(
        threshold=random.choice((36, 37.5, 38, 40)),
        multiplier=random.choice((1.25, 1.5, 1.75, 2)),
        overtime_kinds=random.choice((("staff",), ("staff", "temp"))),
        step=random.choice((0.01, 0.05, 0.1, 1)),
        mode=random.choice(tuple(Rounding)),
        codes=tuple(codes),
        atoms=tuple((atom, reason) for atom, reason in zip(Atom, reasons, strict=True) if atom in atoms),
        rate_ceiling=random.choice((95, 100, 110)),
        contractor_cap=random.choice((120, 130, 140)),
        intern_cap=random.choice((20, 24, 25)),
    )


def documents(random: Random, rules: Rules, month: str, *, draft: bool) -> tuple[Document, ...]:
    """The library of one instance, shuffled: each topic in force, its superseded version, a draft of the time rule, and distractors."""
    numbers = iter(random.sample(range(10, 100), 16))
    shelf: list[Document] = []
    for topic in Topic:
        current, old = f"P{next(numbers)}", f"P{next(numbers)}"
        shelf.append(_policy(topic, current, rules, f"In force since 1 January 2026, also for {month}. It replaces {old}."))
        shelf.append(
            _outdated(topic, old, _other(random, rules), f"In force from 1 January 2023. Since 1 January 2026 it is replaced by {current}.")
        )
    if draft:
        shelf.append(_outdated(Topic.TIME, f"P{next(numbers)}", _other(random, rules), "Draft, to be in force from 1 January 2028."))
    shelf += [Document(f"P{next(numbers)}", title, text, tuple(title.lower().split())) for title, text in random.sample(_DISTRACTORS, 4)]
    random.shuffle(shelf)
    return tuple(shelf)


def _other(random: Random, rules: Rules) -> Rules:
    """Rules of another version: threshold, multiplier, codes and reasons all differ."""
    while True:
        other = draw_rules(random, [atom for atom, _ in rules.atoms])
        same_time = other.threshold == rules.threshold or other.multiplier == rules.multiplier
        if not same_time and not set(other.codes) & set(rules.codes) and not set(other.atoms) & set(rules.atoms):
            return other


_TITLES = {
    Topic.TIME: (
        "Overtime and rounding",
        ("overtime", "hours", "rounding", "threshold", "payroll", "rule", "rules", "policy", "pay", "rate"),
    ),
    Topic.CODES: ("Pay codes", ("pay", "codes", "code", "payroll", "kind", "policy")),
    Topic.ESCALATION: (
        "Escalation and holds",
        ("escalation", "escalate", "hold", "holds", "reason", "reasons", "approval", "payroll", "rule", "rules", "policy"),
    ),
}


def _policy(topic: Topic, number: str, rules: Rules, closing: str) -> Document:
    text, facts = _WRITERS[topic](rules)
    title, keywords = _TITLES[topic]
    return Document(number, title, f"{text} {closing}", keywords, facts, topic)


def _outdated(topic: Topic, number: str, rules: Rules, closing: str) -> Document:
    return replace(_policy(topic, number, rules, closing), facts=(), topic=None)


def _write_time(rules: Rules) -> tuple[str, tuple[str, ...]]:
    kinds = " and ".join(rules.overtime_kinds)
    facts = (_text(rules.threshold), _text(rules.multiplier), *rules.overtime_kinds, _text(rules.step), str(rules.mode))
    text = (
        f"For {kinds}, hours beyond {facts[0]} in one week are overtime, paid at {facts[1]} times the rate. "
        f"All other hours are paid at the rate. "
        f"The sum of an employee's month is rounded once, at the end, to a multiple of {facts[-2]} (mode {rules.mode})."
    )
    return text, facts


def _write_codes(rules: Rules) -> tuple[str, tuple[str, ...]]:
    pairs = ", ".join(f"{kind} {rules.code(kind)}" for kind in KINDS)
    return f"Payments carry the code of the employment kind: {pairs}.", rules.codes


def _write_escalation(rules: Rules) -> tuple[str, tuple[str, ...]]:
    wording = {
        Atom.GAP: ("a week of the time sheet is missing: hold", ()),
        Atom.RATE_CEILING: (f"the rate is above {rules.rate_ceiling}: escalate", (str(rules.rate_ceiling),)),
        Atom.CONTRACTOR_CAP: (
            f"a contractor has more than {rules.contractor_cap} hours in the month: escalate",
            (str(rules.contractor_cap),),
        ),
        Atom.INTERN_CAP: (f"an intern has more than {rules.intern_cap} hours in one week: escalate", (str(rules.intern_cap),)),
        Atom.APPROVAL: ("there is overtime and its approval is not approved: hold", ()),
    }
    lines = [f"({place}) {wording[atom][0]} with reason {reason}" for place, (atom, reason) in enumerate(rules.atoms, start=1)]
    facts = [fact for atom, reason in rules.atoms for fact in (*wording[atom][1], reason)]
    return f"Check in this order; the first case that applies decides, and then nothing is paid: {'; '.join(lines)}.", tuple(facts)


_WRITERS = {Topic.TIME: _write_time, Topic.CODES: _write_codes, Topic.ESCALATION: _write_escalation}

_DISTRACTORS = (
    ("Travel expenses", "Trips are refunded within 30 days. Meals up to 45 a day need no receipt. Travel time is not overtime."),
    ("Parking", "Parking places are drawn by lot every 6 months. Contractors take part."),
    ("Holiday calendar", "The office is closed on 12 days a year. Hours on these days are entered like all others."),
    ("Laptop policy", "Laptops are replaced after 4 years. Interns return theirs on the last day."),
    ("Payroll archive of 2019", "In 2019 the payroll ran on paper. Overtime beyond 35 hours was paid at 3 times the rate."),
    ("Approval of purchases", "Purchases above 500 need the approval of two people. Reason codes of purchases start with Z."),
    ("Pay day", "Salaries arrive on the 25th. If that is a Sunday, they arrive on the 23rd."),
    ("Onboarding of interns", "Interns get a mentor for 6 weeks and a plan for every week."),
)


def _text(number: float) -> str:
    return str(int(number) if number == int(number) else number)
