"""What decides an instrument's case in an alert round: the parameters of one instance, and the one right way to settle a position.

An instance draws parameters (limits, codes, reasons, people) for the atoms of its template. `judge` is the truth for grader and policies;
`coevo.tasks.stock.documents` writes the same parameters into prose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from fractions import Fraction
from functools import lru_cache
from random import Random
from typing import NamedTuple

from coevo.chat import ToolCall
from coevo.tasks.payroll.arithmetic import Rounding, evaluate, plain_number, round_to
from coevo.tasks.rounds import plain

__all__ = ["CURRENCIES", "HOME", "KINDS", "Atom", "Position", "Rules", "Severity", "Verdict", "draw_rules", "judge"]

KINDS = ("equity", "fund", "bond", "commodity")
HOME = "EUR"
"""Currency of reports."""
CURRENCIES = (HOME, "USD", "GBP", "CHF")

_LIMITS = {"equity": ((4, 9), (5, 10), (3.5, 8)), "fund": ((2, 5), (2.5, 6)), "bond": ((1, 2.5), (1.5, 3)), "commodity": ((3, 7), (6, 12))}


class Atom(StrEnum):
    """A part of the rules that a template may have."""

    HALT = "halt"
    """A halted instrument is muted."""
    STALE = "stale"
    """A quote that is too old is escalated."""
    PRICE_CHECK = "price_check"
    """A quote that is too old is replaced by the price that the market data desk gives. Not beside STALE."""
    DUPLICATE = "duplicate"
    """An alert that was already sent is not repeated."""
    DIVIDEND = "dividend"
    """On an ex-dividend day the move starts from the close less the dividend."""
    SPLIT = "split"
    """On a split day the move starts from the close divided by the ratio."""
    EARNINGS = "earnings"
    """On an earnings day the limits are multiplied."""
    TURNOVER = "turnover"
    """A quiet price with heavy trading gets the lowest severity instead of none."""
    EXPOSURE = "exposure"
    """A large position raises a notice to critical."""
    ORDER = "order"
    """A critical move is muted where the position's manager planned it."""
    ROSTER = "roster"
    """Routing names duties; a duty roster says who has them."""
    CURRENCY = "currency"
    """Positions stand in several currencies; exposures are converted."""


class Severity(IntEnum):
    """How serious a move is."""

    NONE = 0
    """No alert."""
    WATCH = 1
    """For the desk's assistant."""
    NOTICE = 2
    """For the position's manager."""
    CRITICAL = 3
    """For the risk officer."""


@dataclass(frozen=True, slots=True)
class Position:
    """One instrument on a desk's watch list.

    Attributes:
        close, last: Prices in `currency`, at most two decimals.
        minutes: Age of the quote.
        turnover: Today's trading over the 20-day average.
        event: `none`, `dividend`, `split` or `earnings`, and its value (0 where it has none).
        alerts: Earlier alerts, (hours ago, severity), latest first.
        planned: The manager expected the move.
        checked: What the market data desk gives as last price.
    """

    id: str
    name: str
    kind: str
    quantity: int
    currency: str
    manager: str
    close: float
    last: float
    minutes: int
    halted: bool
    turnover: float
    event: tuple[str, float]
    alerts: tuple[tuple[int, Severity], ...]
    planned: bool
    checked: float


@dataclass(frozen=True, slots=True)
class Rules:
    """The parameters of one instance.

    Attributes:
        atoms: Active parts.
        limits: Per kind, in the order of `KINDS`: moves in percent from which on a notice, a critical alert is due.
        codes: Codes of watch, notice and critical.
        step: Rounding step of a move, percent.
        factor: Of the limits on an earnings day.
        heavy: Turnover from which on a quiet price is watched.
        large: Exposure above which a notice becomes critical, in `HOME`.
        fresh_minutes: Age up to which a quote is used.
        repeat_hours: Hours within which an alert is not repeated.
        reasons: Reason codes of the atoms that mute or escalate.
        recipients: Contacts for watch and critical.
        feed: Contact of the market data desk.
        unit: Rounding step of an exposure, in `HOME`.
        rates: Price of one unit of each currency in `HOME`, in the order of `CURRENCIES`.
    """

    atoms: tuple[Atom, ...]
    limits: tuple[tuple[float, float], ...]
    codes: tuple[str, str, str]
    step: float
    factor: float
    heavy: float
    large: int
    fresh_minutes: int
    repeat_hours: int
    reasons: tuple[tuple[Atom, str], ...]
    recipients: tuple[str, str]
    feed: str
    unit: int
    rates: tuple[float, ...]

    def limit(self, kind: str) -> tuple[float, float]:
        """Notice and critical limit of a kind."""
        return self.limits[KINDS.index(kind)]

    def code(self, severity: Severity) -> str:
        """Code of a severity that is alerted."""
        return self.codes[severity - 1]

    def rate(self, currency: str) -> float:
        """Price of one unit in `HOME`."""
        return self.rates[CURRENCIES.index(currency)]


class Verdict(NamedTuple):
    """The judgement of one position.

    Attributes:
        reason: Atom that mutes or escalates; None where a severity decides.
        by_move: Severity of the move alone.
        severity: After all rules that change it.
        price: The last price that counts.
        move: Expression in percent and its rounded value; None where it was not needed.
        exposure: Expression in `HOME` and its rounded value.
        settle: The right call.
    """

    reason: Atom | None
    by_move: Severity
    severity: Severity
    price: float
    move: tuple[str, int | float] | None
    exposure: tuple[str, int | float]
    settle: ToolCall


@lru_cache(maxsize=4096)
def judge(rules: Rules, one: Position) -> Verdict:
    """The one right way to settle a position: for the grader, for policies and for demonstrations; no tool calls it."""
    price = one.checked if Atom.PRICE_CHECK in rules.atoms and one.minutes > rules.fresh_minutes else one.last
    exposure = _exposure(rules, one, price)
    if Atom.HALT in rules.atoms and one.halted:
        return Verdict(Atom.HALT, Severity.NONE, Severity.NONE, price, None, exposure, _by_reason(rules, one, Atom.HALT))
    if Atom.STALE in rules.atoms and one.minutes > rules.fresh_minutes:
        return Verdict(Atom.STALE, Severity.NONE, Severity.NONE, price, None, exposure, _by_reason(rules, one, Atom.STALE))
    move = _move(rules, one, price)
    by_move = _severity(rules, one, abs(evaluate(move[0])))
    severity = by_move
    if Atom.TURNOVER in rules.atoms and by_move is Severity.NONE and one.turnover >= rules.heavy:
        severity = Severity.WATCH
    if Atom.EXPOSURE in rules.atoms and by_move is Severity.NOTICE and exposure[1] > rules.large:
        severity = Severity.CRITICAL
    reason = _mute(rules, one, severity)
    settle = _by_severity(rules, one, severity, move[1]) if reason is None else _by_reason(rules, one, reason)
    return Verdict(reason, by_move, severity, price, move, exposure, settle)


def _mute(rules: Rules, one: Position, severity: Severity) -> Atom | None:
    repeated = any(hours <= rules.repeat_hours and earlier >= severity for hours, earlier in one.alerts)
    if Atom.DUPLICATE in rules.atoms and severity is not Severity.NONE and repeated:
        return Atom.DUPLICATE
    return Atom.ORDER if Atom.ORDER in rules.atoms and severity is Severity.CRITICAL and one.planned else None


def _severity(rules: Rules, one: Position, size: Fraction) -> Severity:
    factor = Fraction(str(rules.factor)) if Atom.EARNINGS in rules.atoms and one.event[0] == "earnings" else 1
    notice, critical = (Fraction(str(limit)) * factor for limit in rules.limit(one.kind))
    return Severity.CRITICAL if size >= critical else Severity.NOTICE if size >= notice else Severity.NONE


def _move(rules: Rules, one: Position, price: float) -> tuple[str, int | float]:
    """Percent from the close, adjusted for what happened to the instrument, written with literals of the records only."""
    base, (event, value) = _text(one.close), one.event
    if event == "dividend" and Atom.DIVIDEND in rules.atoms:
        base = f"({base}-{_text(value)})"
    if event == "split" and Atom.SPLIT in rules.atoms:
        base = f"({base}/{_text(value)})"
    expression = f"({_text(price)}-{base})/{base}*100"
    return expression, plain_number(round_to(evaluate(expression), Fraction(str(rules.step)), Rounding.HALF_UP))


def _exposure(rules: Rules, one: Position, price: float) -> tuple[str, int | float]:
    converted = Atom.CURRENCY in rules.atoms and one.currency != HOME
    expression = f"{one.quantity}*{_text(price)}" + (f"*{_text(rules.rate(one.currency))}" if converted else "")
    return expression, plain_number(round_to(evaluate(expression), Fraction(rules.unit), Rounding.HALF_UP))


def _by_reason(rules: Rules, one: Position, reason: Atom) -> ToolCall:
    return ToolCall("escalate" if reason is Atom.STALE else "mute", {"instrument": one.id, "reason": dict(rules.reasons)[reason]})


def _by_severity(rules: Rules, one: Position, severity: Severity, move: int | float) -> ToolCall:
    if severity is Severity.NONE:
        return ToolCall("clear", {"instrument": one.id})
    watch, critical = rules.recipients
    recipient = {Severity.WATCH: watch, Severity.NOTICE: one.manager, Severity.CRITICAL: critical}[severity]
    return ToolCall("send_alert", {"instrument": one.id, "severity": rules.code(severity), "move": move, "recipient": recipient})


def draw_rules(random: Random, atoms: Sequence[Atom], people: Sequence[str]) -> Rules:
    """Parameters for the given atoms; `people` are at least three contacts for watch, critical and market data."""
    codes = random.sample([f"{letter}{number}" for letter in "ABCV" for number in range(10, 60)], 3)
    with_reason = (Atom.HALT, Atom.STALE, Atom.DUPLICATE, Atom.ORDER)
    reasons = random.sample([f"{letter}{number}" for letter in "KLMR" for number in range(10, 60)], len(with_reason))
    watch, critical, feed = random.sample(list(people), 3)
    return Rules(
        atoms=tuple(atom for atom in Atom if atom in atoms),
        limits=tuple(random.choice(_LIMITS[kind]) for kind in KINDS),
        codes=(codes[0], codes[1], codes[2]),
        step=random.choice((0.01, 0.1, 0.5)),
        factor=random.choice((1.5, 2, 2.5)),
        heavy=random.choice((2.5, 3, 4)),
        large=random.choice((400_000, 500_000, 750_000)),
        fresh_minutes=random.choice((15, 20, 30)),
        repeat_hours=random.choice((2, 4, 6)),
        reasons=tuple(zip(with_reason, reasons, strict=True)),
        recipients=(watch, critical),
        feed=feed,
        unit=random.choice((10, 50, 100)),
        rates=(1, *(round(random.uniform(low, high), 3) for low, high in ((0.84, 0.97), (1.12, 1.22), (1.01, 1.09)))),
    )


def _text(number: float) -> str:
    return str(plain(number))
