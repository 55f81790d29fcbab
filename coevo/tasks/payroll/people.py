"""Employees of a department: ordinary ones, and for each active rule at least one whose case it decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import MappingProxyType

from coevo.tasks.payroll.rulebook import KINDS, Addition, Atom, Person, Rules, WidePerson, WideRules

__all__ = ["NAMES", "draw_people"]

_FIRST = ("Ana", "Bo", "Chidi", "Dana", "Emre", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kira", "Lars", "Mina", "Noor", "Olga", "Piotr")
_LAST = ("Adler", "Brandt", "Costa", "Diaz", "Evans", "Fischer", "Grant", "Horvat", "Ito", "Jensen", "Kaya", "Lopez", "Moreau", "Novak")
_RATES = MappingProxyType({"staff": (18, 45), "temp": (14, 28), "contractor": (30, 80), "intern": (10, 16)})
NAMES = tuple(f"{first} {last}" for first in _FIRST for last in _LAST)
"""Full names, in a fixed order."""


def draw_people(random: Random, rules: Rules) -> tuple[Person, ...]:
    """A department in which each active rule decides at least one case, and overtime is paid at least once."""
    count = random.randint(max(6, len(rules.atoms) + 2), 14)
    makers: list[Callable[[Random, Rules, Person], Person]] = [_overtime, *(_CASES[atom] for atom, _ in rules.atoms)]
    makers += [random.choice((_ordinary, _ordinary, _overtime, *makers)) for _ in range(count - len(makers))]
    random.shuffle(makers)
    ids = random.sample(range(1000, 10000), count)
    names = random.sample(NAMES, count)
    return tuple(
        make(random, rules, _blank(random, rules, f"E{number}", name)) for make, number, name in zip(makers, ids, names, strict=True)
    )


def _blank(random: Random, rules: Rules, employee: str, name: str) -> Person:
    """An employee whom no rule stops: of any kind, within all limits."""
    kind = random.choices(KINDS, (5, 2, 2, 2))[0]
    person = Person(employee, name, kind, 0.0, (), random.choice(("approved", "pending", "none")))
    if isinstance(rules, WideRules):
        person = _wide(random, rules, person)
    return _of_kind(random, rules, kind, person)


def _wide(random: Random, rules: WideRules, person: Person) -> WidePerson:
    shift = random.choice(("day", "day", "night")) if Addition.NIGHT in rules.additions else "day"
    advance = random.choice((0, 0, *range(60, 241, 20))) if Addition.ADVANCE in rules.additions else 0
    return WidePerson(person.id, person.name, person.kind, person.rate, person.weeks, person.approval, shift=shift, advance=advance)


def _of_kind(random: Random, rules: Rules, kind: str, person: Person) -> Person:
    low, high = _RATES[kind]
    weekly = {"intern": rules.intern_cap, "contractor": rules.contractor_cap / 4}.get(kind, min(rules.threshold, 40))
    weeks = tuple(weekly - random.randint(0, 24) / 4 for _ in range(4))
    return replace(person, kind=kind, rate=random.randint(low * 20, high * 20) / 20, weeks=weeks)


def _ordinary(random: Random, rules: Rules, person: Person) -> Person:
    return person


def _overtime(random: Random, rules: Rules, person: Person) -> Person:
    base = _of_kind(random, rules, random.choice(rules.overtime_kinds), person)
    if isinstance(rules, WideRules):
        # At most 4,900 with overtime and allowance, so that no limit of sums stops it.
        base = replace(base, rate=min(base.rate, 20))
    return replace(base, weeks=_longer(random, base.weeks, rules.threshold), approval="approved")


def _gap(random: Random, rules: Rules, person: Person) -> Person:
    place = random.randrange(4)
    return replace(person, weeks=tuple(None if index == place else hours for index, hours in enumerate(person.weeks)))


def _ceiling(random: Random, rules: Rules, person: Person) -> Person:
    return replace(person, rate=rules.rate_ceiling + random.randint(1, 800) / 4)


def _contractor(random: Random, rules: Rules, person: Person) -> Person:
    base = _of_kind(random, rules, "contractor", person)
    extra = random.randint(1, 12) / 4
    return replace(base, weeks=tuple(rules.contractor_cap / 4 + extra * sign for sign in (1, -1, 1, 0)))


def _intern(random: Random, rules: Rules, person: Person) -> Person:
    base = _of_kind(random, rules, "intern", person)
    return replace(base, weeks=_longer(random, base.weeks, rules.intern_cap))


def _unapproved(random: Random, rules: Rules, person: Person) -> Person:
    return replace(_overtime(random, rules, person), approval=random.choice(("pending", "none")))


def _left(random: Random, rules: Rules, person: Person) -> Person:
    return replace(person, status="left") if isinstance(person, WidePerson) else person


def _bank(random: Random, rules: Rules, person: Person) -> Person:
    return replace(person, bank="changed") if isinstance(person, WidePerson) else person


def _few_hours(random: Random, rules: Rules, person: Person) -> Person:
    base = _of_kind(random, rules, "staff", person)
    return replace(base, weeks=tuple(random.randint(48, 88) / 4 for _ in range(4)))


def _large(random: Random, rules: Rules, person: Person) -> Person:
    """A contractor within all other limits: at least 7,400 at 76 an hour."""
    base = _of_kind(random, rules, "contractor", person)
    hours = rules.contractor_cap / 4
    return replace(base, rate=random.randint(76 * 4, 80 * 4) / 4, weeks=tuple(hours - random.randint(0, 8) / 4 for _ in range(4)))


_CASES: dict[Atom, Callable[[Random, Rules, Person], Person]] = {
    Atom.GAP: _gap,
    Atom.RATE_CEILING: _ceiling,
    Atom.CONTRACTOR_CAP: _contractor,
    Atom.INTERN_CAP: _intern,
    Atom.APPROVAL: _unapproved,
    Atom.LEFT: _left,
    Atom.BANK: _bank,
    Atom.FEW_HOURS: _few_hours,
    Atom.LARGE_SUM: _large,
}


def _longer(random: Random, weeks: tuple[float | None, ...], limit: float) -> tuple[float | None, ...]:
    """One or two weeks beyond the limit by 0.25 to 8 hours."""
    places = random.sample(range(4), random.randint(1, 2))
    return tuple(limit + random.randint(1, 32) / 4 if index in places else hours for index, hours in enumerate(weeks))
