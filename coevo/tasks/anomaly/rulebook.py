"""What decides a device's case in a shift check: the parameters of one instance, and the one right way to settle a device.

An instance draws parameters (windows, limits, codes, teams) for the atoms of its template. `judge` is the truth for grader and policies;
`coevo.tasks.anomaly.documents` writes the same parameters into prose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from fractions import Fraction
from functools import lru_cache
from random import Random
from typing import NamedTuple

from coevo.chat import ToolCall
from coevo.tasks.payroll.arithmetic import Rounding, evaluate, plain_number, round_to
from coevo.tasks.rounds import plain

__all__ = [
    "DOWNWARD",
    "HOURS",
    "KINDS",
    "Atom",
    "Device",
    "Fault",
    "Level",
    "Rules",
    "Ticket",
    "Verdict",
    "Window",
    "aggregate",
    "draw_rules",
    "extreme",
    "judge",
    "readings",
]

HOURS = 24
"""Readings a day, one an hour."""

KINDS = ("temperature", "pressure", "vibration", "humidity")
DOWNWARD = "humidity"
"""The kind that is watched for low readings; all others for high ones."""

_LIMITS = {
    "temperature": ((3, 6), (4, 7), (2.5, 5)),
    "pressure": ((0.6, 1.2), (0.8, 1.5)),
    "vibration": ((1.5, 3), (2, 3.5)),
    "humidity": ((8, 15), (10, 18)),
}


class Atom(StrEnum):
    """A part of the rules that a template may have."""

    MAINTENANCE = "maintenance"
    """Devices under planned work are silenced."""
    DROPOUT = "dropout"
    """Too many missing readings are a fault of their own."""
    STUCK = "stuck"
    """So is a reading that does not move."""
    DRIFT = "drift"
    """So is a mean that has moved without a peak."""
    CALIBRATION = "calibration"
    """Pending offsets are taken off the readings of the check."""
    IMPERIAL = "imperial"
    """Some temperatures are read in Fahrenheit."""
    ZONES = "zones"
    """In some zones every excursion is an alarm."""
    TWIN = "twin"
    """An alarm that the twin sensor does not share is a fault of the sensor."""
    KNOWN = "known"
    """A fault with an open ticket gets no second one."""
    TECHNICIAN = "technician"
    """An alarm that the technician of the zone can explain is silenced."""
    DUTY = "duty"
    """Tickets go to the team on duty, which a plan names."""


class Fault(StrEnum):
    """What is wrong with a device."""

    EXCURSION = "excursion"
    """A reading beyond a limit."""
    DRIFT = "drift"
    """A mean that has moved."""
    DROPOUT = "dropout"
    """Missing readings."""
    STUCK = "stuck"
    """Always the same reading."""
    SENSOR = "sensor"
    """An alarm that only this sensor saw."""


class Level(IntEnum):
    """How serious an excursion is."""

    NONE = 0
    """Within limits."""
    WARNING = 1
    """Beyond the first limit."""
    ALARM = 2
    """Beyond the second limit."""


@dataclass(frozen=True, slots=True)
class Window:
    """Hours `start` to `end`, both included, of a day counted backwards from the day of the check."""

    day: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """An earlier ticket."""

    id: str
    fault: Fault
    open: bool


@dataclass(frozen=True, slots=True)
class Device:
    """One sensor of an area.

    Attributes:
        unit: `C`, `F`, `bar`, `mm` (per second) or `percent`.
        days: Readings per hour, the day of the check first; None for a missing one.
        offset: Calibration offset, 0 where there is none; `pending` tells whether it is still in the readings.
        work: Planned work in its zone, (start hour, end hour) of the day of the check; None where there is none.
        twin: Id of the sensor beside it.
        tickets: Earlier ones, latest first.
        explained: The technician knows why it alarmed.
    """

    id: str
    name: str
    kind: str
    zone: str
    unit: str
    days: tuple[tuple[float | None, ...], ...]
    offset: float
    pending: bool
    work: tuple[int, int] | None
    twin: str
    tickets: tuple[Ticket, ...]
    explained: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """The parameters of one instance.

    Attributes:
        atoms: Active parts.
        baseline, check: Windows of the mean and of the readings that are judged.
        limits: Per kind, in the order of `KINDS`: deviations from which on there is a warning, an alarm.
        drifts: Per kind: difference of means from which on there is a drift.
        step: Rounding step of a deviation.
        gaps: Missing readings from which on there is a dropout.
        faults: Codes in the order of `Fault`.
        priorities: Codes of ordinary and of urgent tickets.
        teams: Per kind, then the team for sensors.
        zones: Zones in which an excursion is always an alarm.
        reasons: Reason codes and hours of silence, for maintenance and for explained alarms.
    """

    atoms: tuple[Atom, ...]
    baseline: Window
    check: Window
    limits: tuple[tuple[float, float], ...]
    drifts: tuple[float, ...]
    step: float
    gaps: int
    faults: tuple[str, ...]
    priorities: tuple[str, str]
    teams: tuple[str, ...]
    zones: tuple[str, ...]
    reasons: tuple[tuple[str, int], tuple[str, int]]

    def limit(self, kind: str) -> tuple[float, float]:
        """First and second limit of a kind."""
        return self.limits[KINDS.index(kind)]

    def drift(self, kind: str) -> float:
        """Drift limit of a kind."""
        return self.drifts[KINDS.index(kind)]

    def code(self, fault: Fault) -> str:
        """Code of a fault."""
        return self.faults[tuple(Fault).index(fault)]

    def team(self, kind: str, fault: Fault) -> str:
        """Who gets a ticket: the team of the kind for what happens in the plant, the sensor team for what happens in the sensor."""
        return self.teams[KINDS.index(kind)] if fault in (Fault.EXCURSION, Fault.DRIFT) else self.teams[-1]


class Verdict(NamedTuple):
    """The judgement of one device.

    Attributes:
        fault: None for a device that is accepted or silenced.
        level: Of the excursion, after all rules that change it.
        deviation, drift, twin: Expressions and their rounded values; None where they were not needed.
        asked: The case turned on the technician.
        settle: The right call.
    """

    fault: Fault | None
    level: Level
    deviation: tuple[str, int | float] | None
    drift: tuple[str, int | float] | None
    twin: tuple[str, int | float] | None
    asked: bool
    settle: ToolCall


def readings(device: Device, window: Window) -> tuple[float | None, ...]:
    """The readings of a window."""
    return device.days[window.day][window.start : window.end + 1]


@lru_cache(maxsize=8192)
def aggregate(device: Device, measure: str, window: Window) -> int | float | None:
    """Mean (three decimals), max, min, number of missing and of distinct readings; None where all are missing."""
    taken = readings(device, window)
    present = [one for one in taken if one is not None]
    if measure == "missing":
        return len(taken) - len(present)
    if measure == "distinct":
        return len(set(present))
    if not present:
        return None
    value = {"mean": lambda: sum(present) / len(present), "max": lambda: max(present), "min": lambda: min(present)}[measure]()
    return plain(round(value, 3))


def extreme(kind: str) -> str:
    """The measure that is compared with the limits."""
    return "min" if kind == DOWNWARD else "max"


@lru_cache(maxsize=4096)
def judge(rules: Rules, one: Device, twin: Device) -> Verdict:
    """The one right way to settle a device: for the grader, for policies and for demonstrations; no tool calls it."""
    if Atom.MAINTENANCE in rules.atoms and _overlaps(rules, one):
        return _plain_verdict(_silence(rules, one, 0))
    missing = aggregate(one, "missing", rules.check)
    if Atom.DROPOUT in rules.atoms and missing is not None and missing >= rules.gaps:
        return _sensor_verdict(rules, one, Fault.DROPOUT, missing)
    if Atom.STUCK in rules.atoms and aggregate(one, "distinct", rules.check) == 1:
        return _sensor_verdict(rules, one, Fault.STUCK, aggregate(one, "max", rules.check) or 0)
    deviation = _difference(rules, one, extreme(one.kind))
    level = _level(rules, one, evaluate(deviation[0]))
    if level is Level.NONE:
        return _without_excursion(rules, one, deviation)
    raised = Level.ALARM if Atom.ZONES in rules.atoms and one.zone in rules.zones else level
    return _excursion(rules, one, twin, deviation, raised)


def _plain_verdict(settle: ToolCall) -> Verdict:
    return Verdict(None, Level.NONE, None, None, None, asked=False, settle=settle)


def _sensor_verdict(rules: Rules, one: Device, fault: Fault, value: float) -> Verdict:
    return Verdict(fault, Level.NONE, None, None, None, asked=False, settle=_ticket(rules, one, fault, value, urgent=False))


def _without_excursion(rules: Rules, one: Device, deviation: tuple[str, int | float]) -> Verdict:
    accept = ToolCall("accept", {"device": one.id})
    if Atom.DRIFT not in rules.atoms:
        return Verdict(None, Level.NONE, deviation, None, None, asked=False, settle=accept)
    drift = _difference(rules, one, "mean")
    if evaluate(drift[0]) < Fraction(str(rules.drift(one.kind))):
        return Verdict(None, Level.NONE, deviation, drift, None, asked=False, settle=accept)
    settle = _ticket(rules, one, Fault.DRIFT, drift[1], urgent=False)
    return Verdict(Fault.DRIFT, Level.NONE, deviation, drift, None, asked=False, settle=settle)


def _excursion(rules: Rules, one: Device, twin: Device, deviation: tuple[str, int | float], level: Level) -> Verdict:
    urgent, beside = level is Level.ALARM, None
    if urgent and Atom.TWIN in rules.atoms:
        beside = _difference(rules, twin, extreme(twin.kind))
        if _level(rules, twin, evaluate(beside[0])) is Level.NONE:
            settle = _ticket(rules, one, Fault.SENSOR, deviation[1], urgent=False)
            return Verdict(Fault.SENSOR, level, deviation, None, beside, asked=False, settle=settle)
    settle = _ticket(rules, one, Fault.EXCURSION, deviation[1], urgent=urgent)
    asked = urgent and Atom.TECHNICIAN in rules.atoms and settle.name == "open_ticket"
    if asked and one.explained:
        return Verdict(None, level, deviation, None, beside, asked=True, settle=_silence(rules, one, 1))
    return Verdict(Fault.EXCURSION, level, deviation, None, beside, asked=asked, settle=settle)


def _overlaps(rules: Rules, one: Device) -> bool:
    return one.work is not None and one.work[0] <= rules.check.end and one.work[1] >= rules.check.start


def _difference(rules: Rules, one: Device, measure: str) -> tuple[str, int | float]:
    """How far a measure of the check is from the mean of the baseline, against the watched direction negative; literals of reads only."""
    value, mean = _text(aggregate(one, measure, rules.check) or 0), _text(aggregate(one, "mean", rules.baseline) or 0)
    if Atom.CALIBRATION in rules.atoms and one.pending:
        offset = _text(one.offset) if one.offset >= 0 else f"({_text(one.offset)})"
        value = f"({value}-{offset})"
    expression = f"{mean}-{value}" if one.kind == DOWNWARD else f"{value}-{mean}"
    if Atom.IMPERIAL in rules.atoms and one.unit == "F":
        expression = f"({expression})*5/9"
    return expression, plain_number(round_to(evaluate(expression), Fraction(str(rules.step)), Rounding.HALF_UP))


def _level(rules: Rules, one: Device, deviation: Fraction) -> Level:
    first, second = (Fraction(str(limit)) for limit in rules.limit(one.kind))
    return Level.ALARM if deviation >= second else Level.WARNING if deviation >= first else Level.NONE


def _silence(rules: Rules, one: Device, place: int) -> ToolCall:
    reason, hours = rules.reasons[place]
    return ToolCall("silence", {"device": one.id, "reason": reason, "hours": hours})


def _ticket(rules: Rules, one: Device, fault: Fault, value: float, *, urgent: bool) -> ToolCall:
    known = next((ticket for ticket in one.tickets if ticket.open and ticket.fault is fault), None)
    if Atom.KNOWN in rules.atoms and known is not None:
        return ToolCall("add_to_ticket", {"device": one.id, "ticket": known.id})
    arguments = {"fault": rules.code(fault), "priority": rules.priorities[urgent], "team": rules.team(one.kind, fault), "value": value}
    return ToolCall("open_ticket", {"device": one.id, **arguments})


def draw_rules(random: Random, atoms: Sequence[Atom], zones: Sequence[str]) -> Rules:
    """Parameters for the given atoms; `zones` are those of the site."""
    codes = _codes(random)
    start = random.choice((10, 12, 14, 16))
    limits = tuple(random.choice(_LIMITS[kind]) for kind in KINDS)
    hours = random.sample((4, 8, 12, 24, 36, 48), 2)
    return Rules(
        atoms=tuple(atom for atom in Atom if atom in atoms),
        baseline=random.choice((Window(0, 0, 7), Window(0, 0, 9), Window(1, 0, 23), Window(1, 6, 23))),
        check=Window(0, start, 23),
        limits=limits,
        drifts=tuple(plain(round(first * random.choice((0.5, 0.55)), 2)) for first, _ in limits),
        step=random.choice((0.01, 0.05, 0.1)),
        gaps=random.choice((3, 4, 5)),
        faults=tuple(next(codes) for _ in Fault),
        priorities=(next(codes), next(codes)),
        teams=tuple(f"G{number}" for number in random.sample(range(10, 100), len(KINDS) + 1)),
        zones=tuple(sorted(random.sample(list(zones), 2))),
        reasons=((next(codes), hours[0]), (next(codes), hours[1])),
    )


def _codes(random: Random) -> Iterator[str]:
    return iter(random.sample([f"{letter}{number}" for letter in "ABFHKLMNR" for number in range(10, 60)], 12))


def _text(number: float) -> str:
    return str(plain(number))
