"""The rules of the standard world: what decides an employee's case, and the documents that say so, both from one source.

An instance draws parameters (thresholds, codes, reasons) for the atoms of its template. `settling_call` is the truth for grader and
policies; `documents` writes the same parameters into prose, beside superseded and draft versions with other parameters and other texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from fractions import Fraction
from random import Random

from coevo.chat import ToolCall
from coevo.tasks.library import Document
from coevo.tasks.payroll.arithmetic import Rounding, evaluate, plain_number, round_to

__all__ = [
    "FIRST_ATOMS",
    "KINDS",
    "Addition",
    "Atom",
    "Person",
    "Rules",
    "Topic",
    "WidePerson",
    "WideRules",
    "amount_due",
    "approval",
    "deciding_atom",
    "documents",
    "draw_rules",
    "draw_wide_rules",
    "needs_approval",
    "needs_sum",
    "pay_expression",
    "redraw",
    "settling_call",
    "topics_of",
    "version",
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
    LEFT = "left"
    """An employee who has left the company: escalate."""
    BANK = "bank"
    """Bank details that changed and are not confirmed: hold."""
    FEW_HOURS = "few_hours"
    """Staff with fewer hours in the month than agreed: hold."""
    LARGE_SUM = "large_sum"
    """A sum above the limit: escalate. The only rule that needs the sum."""


FIRST_ATOMS = (Atom.GAP, Atom.RATE_CEILING, Atom.CONTRACTOR_CAP, Atom.INTERN_CAP, Atom.APPROVAL)
"""The rules of `Rules`; the others need `WideRules`."""

_HOLDS = (Atom.GAP, Atom.APPROVAL, Atom.BANK, Atom.FEW_HOURS)


_BEFORE_APPROVAL = FIRST_ATOMS[:-1]


class Addition(StrEnum):
    """What changes a sum beside hours and overtime."""

    NIGHT = "night"
    """An allowance per hour for the night shift."""
    ADVANCE = "advance"
    """An advance that was paid already and is deducted."""


class Topic(StrEnum):
    """What a policy document is about; also the query that finds it."""

    TIME = "overtime"
    CODES = "pay codes"
    ESCALATION = "escalation"
    ALLOWANCES = "allowances"


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
class WidePerson(Person):
    """With the fields that later rules read.

    Attributes:
        status: `active` or `left`.
        bank: `confirmed` or `changed`.
        shift: `day` or `night`.
        advance: Sum paid already; 0 for none.
        lead: Contact who can answer for a pending approval; empty where there is no such person.
        reply: What the lead answers: `approved` or `refused`; empty where the system's entry counts.
    """

    status: str = "active"
    bank: str = "confirmed"
    shift: str = "day"
    advance: int = 0
    lead: str = ""
    reply: str = ""


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


@dataclass(frozen=True, slots=True)
class WideRules(Rules):
    """With later rules.

    Attributes:
        additions: Active additions.
        minimum_hours: Hours per month below which staff is held.
        sum_limit: Largest sum that is paid without a second look.
        night_rate: Allowance per hour.
        advance_share: Share of an advance that is deducted.
        ask_lead: A pending approval is decided by the lead's answer.
    """

    additions: tuple[Addition, ...] = ()
    minimum_hours: int = 0
    sum_limit: int = 0
    night_rate: float = 0.0
    advance_share: float = 1.0
    ask_lead: bool = False


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
            return bool(overtime_weeks(rules, person)) and approval(person) != "approved"
        case _:
            return isinstance(rules, WideRules) and isinstance(person, WidePerson) and _applies_wide(atom, rules, person)


def _applies_wide(atom: Atom, rules: WideRules, person: WidePerson) -> bool:
    match atom:
        case Atom.LEFT:
            return person.status == "left"
        case Atom.BANK:
            return person.bank == "changed"
        case Atom.FEW_HOURS:
            return person.kind == "staff" and sum(one for one in person.weeks if one is not None) < rules.minimum_hours
        case _:
            return amount_due(rules, person) > rules.sum_limit


def approval(person: Person) -> str:
    """The approval that counts: the lead's answer to a pending one, else the system's entry."""
    return (person.reply if isinstance(person, WidePerson) else "") or person.approval


def deciding_atom(rules: Rules, person: Person) -> Atom | None:
    """The first active atom that applies; None for a case that is paid."""
    return next((atom for atom, _ in rules.atoms if _applies(atom, rules, person)), None)


def needs_approval(rules: Rules, person: Person) -> bool:
    """The case turns on the approval: overtime, an active approval rule, and no earlier rule that decides."""
    return (
        Atom.APPROVAL in dict(rules.atoms) and bool(overtime_weeks(rules, person)) and deciding_atom(rules, person) not in _BEFORE_APPROVAL
    )


def pay_expression(rules: Rules, person: Person) -> str:
    """The sum before rounding, written with literals of the time sheet, the record and the rules only."""
    over = overtime_weeks(rules, person)
    threshold, rate = _text(rules.threshold), _text(person.rate)
    plain = "+".join(threshold if hours in over else _text(hours) for hours in person.weeks if hours is not None)
    extra = "+".join(f"({_text(hours)}-{threshold})" for hours in over)
    extra = extra if len(over) == 1 else f"({extra})"
    total = f"({plain})*{rate}" + (f"+{extra}*{rate}*{_text(rules.multiplier)}" if over else "")
    if isinstance(rules, WideRules) and isinstance(person, WidePerson):
        if Addition.NIGHT in rules.additions and person.shift == "night":
            hours = "+".join(_text(hours) for hours in person.weeks if hours is not None)
            total += f"+({hours})*{_text(rules.night_rate)}"
        if Addition.ADVANCE in rules.additions and person.advance:
            total += f"-{person.advance}*{_text(rules.advance_share)}"
    return total


def amount_due(rules: Rules, person: Person) -> Fraction:
    """The rounded sum, whether it is paid or not."""
    return round_to(evaluate(pay_expression(rules, person)), Fraction(str(rules.step)), rules.mode)


def needs_sum(rules: Rules, person: Person) -> bool:
    """The sum must be known to settle the case: it is paid, or only the limit stops it."""
    return deciding_atom(rules, person) in (None, Atom.LARGE_SUM)


def settling_call(rules: Rules, person: Person) -> ToolCall:
    """The one right way to settle a case: for the grader, for policies and for demonstrations; no tool calls it."""
    atom = deciding_atom(rules, person)
    if atom is not None:
        return ToolCall("hold" if atom in _HOLDS else "escalate", {"employee": person.id, "reason": dict(rules.atoms)[atom]})
    amount = plain_number(amount_due(rules, person))
    return ToolCall("submit_pay", {"employee": person.id, "amount": amount, "code": rules.code(person.kind)})


def draw_wide_rules(random: Random, atoms: Sequence[Atom], additions: Sequence[Addition]) -> WideRules:
    """Parameters for the given atoms and additions."""
    base = draw_rules(random, [atom for atom in atoms if atom in FIRST_ATOMS])
    later = [atom for atom in Atom if atom in atoms and atom not in FIRST_ATOMS]
    reasons = random.sample([f"{letter}{number}" for letter in "NVWXY" for number in range(10, 60)], len(later))
    first = {field.name: getattr(base, field.name) for field in fields(base)}
    return WideRules(
        **{**first, "atoms": (*base.atoms, *zip(later, reasons, strict=True))},
        additions=tuple(one for one in Addition if one in additions),
        minimum_hours=random.choice((90, 100, 110)),
        sum_limit=random.choice((5000, 6000, 7000)),
        night_rate=random.choice((1.5, 2, 2.5, 3.25)),
        advance_share=random.choice((0.2, 0.5, 0.75, 0.9)),
    )


def draw_rules(random: Random, atoms: Sequence[Atom]) -> Rules:
    """Parameters for the given atoms, all of `FIRST_ATOMS`."""
    codes = random.sample([f"{letter}{number}" for letter in "ABCGH" for number in range(10, 60)], len(KINDS))
    reasons = random.sample([f"{letter}{number}" for letter in "KLMRT" for number in range(10, 60)], len(FIRST_ATOMS))
    return Rules(
        threshold=random.choice((36, 37.5, 38, 40)),
        multiplier=random.choice((1.25, 1.5, 1.75, 2)),
        overtime_kinds=random.choice((("staff",), ("staff", "temp"))),
        step=random.choice((0.01, 0.05, 0.1, 1)),
        mode=random.choice(tuple(Rounding)),
        codes=tuple(codes),
        atoms=tuple((atom, reason) for atom, reason in zip(FIRST_ATOMS, reasons, strict=True) if atom in atoms),
        rate_ceiling=random.choice((95, 100, 110)),
        contractor_cap=random.choice((120, 130, 140)),
        intern_cap=random.choice((20, 24, 25)),
    )


def topics_of(rules: Rules) -> tuple[Topic, ...]:
    """What documents rule on, in reading order."""
    return tuple(topic for topic in Topic if topic is not Topic.ALLOWANCES or (isinstance(rules, WideRules) and rules.additions))


def documents(random: Random, rules: Rules, month: str, *, draft: bool) -> tuple[Document, ...]:
    """The library of one instance, shuffled: each topic in force, its superseded version, a draft of the time rule, and distractors."""
    numbers = iter(random.sample(range(10, 100), 16))
    shelf: list[Document] = []
    for topic in topics_of(rules):
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
        other = redraw(random, rules)
        same_time = other.threshold == rules.threshold or other.multiplier == rules.multiplier
        if not same_time and not set(other.codes) & set(rules.codes) and not set(other.atoms) & set(rules.atoms):
            return other


def redraw(random: Random, rules: Rules) -> Rules:
    """Rules with the same atoms and additions and other parameters."""
    atoms = [atom for atom, _ in rules.atoms]
    if not isinstance(rules, WideRules):
        return draw_rules(random, atoms)
    while True:
        other = draw_wide_rules(random, atoms, rules.additions)
        differs = other.night_rate != rules.night_rate and other.advance_share != rules.advance_share
        if differs and other.sum_limit != rules.sum_limit and other.minimum_hours != rules.minimum_hours:
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
    Topic.ALLOWANCES: (
        "Allowances and advances",
        ("allowances", "allowance", "advances", "advance", "night", "shift", "payroll", "rule", "rules", "policy", "pay"),
    ),
}


def _policy(topic: Topic, number: str, rules: Rules, closing: str) -> Document:
    text, facts = _WRITERS[topic](rules)
    title, keywords = _TITLES[topic]
    return Document(number, title, f"{text} {closing}", keywords, facts, topic)


def _outdated(topic: Topic, number: str, rules: Rules, closing: str) -> Document:
    return replace(_policy(topic, number, rules, closing), facts=(), topic=None)


def version(topic: Topic, number: str, rules: Rules, closing: str, *, title: str) -> Document:
    """A policy that is not in force here; `title` is what its title adds."""
    one = _outdated(topic, number, rules, closing)
    return replace(one, title=f"{one.title} {title}")


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
        Atom.LEFT: ("the employee has left the company: escalate", ()),
        Atom.BANK: ("the bank details have changed and are not confirmed: hold", ()),
    }
    if isinstance(rules, WideRules):
        wording[Atom.FEW_HOURS] = (
            f"a member of staff has fewer than {rules.minimum_hours} hours in the month: hold",
            (str(rules.minimum_hours),),
        )
        wording[Atom.LARGE_SUM] = (f"the rounded sum is above {rules.sum_limit}: escalate", (str(rules.sum_limit),))
    lines = [f"({place}) {wording[atom][0]} with reason {reason}" for place, (atom, reason) in enumerate(rules.atoms, start=1)]
    facts = [fact for atom, reason in rules.atoms for fact in (*wording[atom][1], reason)]
    return (
        f"Check in this order; the first case that applies decides, and then nothing is paid: {'; '.join(lines)}.{_asking(rules)}",
        tuple(facts),
    )


def _asking(rules: Rules) -> str:
    if not isinstance(rules, WideRules) or not rules.ask_lead or Atom.APPROVAL not in dict(rules.atoms):
        return ""
    return " Where the system shows an approval as pending, the answer of the lead whom the record names counts instead."


def _write_allowances(rules: Rules) -> tuple[str, tuple[str, ...]]:
    lines, facts = list[str](), list[str]()
    if isinstance(rules, WideRules) and Addition.NIGHT in rules.additions:
        lines.append(f"Employees of the night shift get {_text(rules.night_rate)} for each hour of the month, overtime hours included.")
        facts.append(_text(rules.night_rate))
    if isinstance(rules, WideRules) and Addition.ADVANCE in rules.additions:
        lines.append(f"Of an advance that the record shows, the share {_text(rules.advance_share)} is deducted; the rest follows later.")
        facts.append(_text(rules.advance_share))
    lines.append("Both enter the sum before it is rounded." if len(lines) > 1 else "This enters the sum before it is rounded.")
    return " ".join(lines), tuple(facts)


_WRITERS = {Topic.ALLOWANCES: _write_allowances, Topic.TIME: _write_time, Topic.CODES: _write_codes, Topic.ESCALATION: _write_escalation}

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
