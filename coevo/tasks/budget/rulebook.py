"""What decides a spending request: checks in a fixed order, then authority, then money; the truth for grader, policies and demonstrations.

Requests are served in list order, and each approval leaves less on its cost centre, so a round is judged as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from coevo.chat import ToolCall
from coevo.tasks.payroll.arithmetic import Rounding, round_to

__all__ = [
    "CATEGORIES",
    "CURRENCIES",
    "ESCALATED",
    "HOME",
    "REASONS",
    "Atom",
    "Centre",
    "Request",
    "Rules",
    "Vendor",
    "Verdict",
    "judge_round",
]

HOME = "EUR"
CURRENCIES = ("EUR", "USD", "GBP", "CHF")
CATEGORIES = ("hardware", "software", "travel", "training", "services", "furniture")


class Atom(StrEnum):
    """A rule. Those with a reason code are declared in the order in which they are checked."""

    DUPLICATE = "duplicate"
    """The same request was approved before: reject."""
    CLOSED = "closed"
    """The cost centre is closed: reject."""
    BLOCKED = "blocked"
    """The vendor is blocked: reject."""
    FREEZE = "freeze"
    """No money for this category: reject."""
    CONTRACT = "contract"
    """Services without a contract: escalate."""
    QUOTES = "quotes"
    """A second quote is missing and the requester has none: reject. With one, the lower price counts."""
    CONSENT = "consent"
    """The owner of the cost centre does not support a large request: reject."""
    AUTHORITY = "authority"
    """Beyond everybody's authority: escalate. Always active."""
    BALANCE = "balance"
    """Not enough money left: reject. Always active."""
    CAP = "cap"
    """No reason: a category has a largest sum per request, and no more is granted."""
    PARTIAL = "partial"
    """No reason: what is left is granted, when it is a large enough share."""
    CURRENCY = "currency"
    """No reason: requests in other currencies are converted."""
    DEPUTY = "deputy"
    """No reason: somebody is away and another signs."""


REASONS = tuple(Atom)[:9]
"""Atoms with a reason code."""

ESCALATED = frozenset({Atom.CONTRACT, Atom.AUTHORITY})
"""Escalated rather than rejected."""


@dataclass(frozen=True, slots=True)
class Request:
    """One line of the round.

    Attributes:
        id, title, category: What is asked for.
        amount, currency: Whole units.
        centre, vendor, requester: Ids.
        quotes: On file.
        contract: On file.
        earlier: Decision on the same request in an earlier round: `none`, `approved` or `rejected`.
        offer: Second quote that the requester can supply, in the request's currency; None where there is none.
        consent: What the owner of the cost centre says: `supported` or `declined`.
    """

    id: str
    title: str
    category: str
    amount: int
    currency: str
    centre: str
    vendor: str
    requester: str
    quotes: int
    contract: bool
    earlier: str
    offer: int | None
    consent: str


@dataclass(frozen=True, slots=True)
class Centre:
    """A cost centre; sums in the home currency at the start of the round."""

    id: str
    name: str
    owner: str
    status: str
    budget: int
    spent: int
    committed: int

    @property
    def available(self) -> int:
        """What can still be granted at the start of the round."""
        return self.budget - self.spent - self.committed


@dataclass(frozen=True, slots=True)
class Vendor:
    """A supplier; `standing` is `listed` or `blocked`."""

    id: str
    name: str
    standing: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The parameters of one instance.

    Attributes:
        atoms: Active atoms, AUTHORITY and BALANCE included.
        codes: Reason code per atom of `REASONS`.
        quote_limit, consent_limit: Sums above which a second quote or a consent is needed.
        frozen: Category without money.
        caps: Category -> largest sum per request.
        share: Smallest share of a request that is worth granting.
        step: Converted sums are rounded to a multiple of this.
        rates: Currency -> price of one unit in the home currency.
        limits: Authority of team lead, head and director.
        approvers: Their contact ids.
        away, deputy: Who is away and who signs instead; contact ids.
    """

    atoms: tuple[Atom, ...]
    codes: tuple[tuple[Atom, str], ...]
    quote_limit: int
    consent_limit: int
    frozen: str
    caps: tuple[tuple[str, int], ...]
    share: float
    step: int
    rates: tuple[tuple[str, float], ...]
    limits: tuple[int, int, int]
    approvers: tuple[str, str, str]
    away: str
    deputy: str

    def has(self, atom: Atom) -> bool:
        """The rule is active."""
        return atom in self.atoms

    def code(self, atom: Atom) -> str:
        """The reason code of a check."""
        return dict(self.codes)[atom]

    def rate(self, currency: str) -> float:
        """Price of one unit in the home currency."""
        return dict(self.rates)[currency]

    def worth(self, amount: int, currency: str) -> int:
        """A sum in the home currency."""
        if currency == HOME:
            return amount
        return int(round_to(amount * Fraction(str(self.rate(currency))), Fraction(self.step), Rounding.HALF_UP))

    def approver(self, amount: int) -> str | None:
        """Who signs for a sum; None beyond everybody's authority."""
        found = next((one for limit, one in zip(self.limits, self.approvers, strict=True) if amount <= limit), None)
        return self.deputy if found == self.away and self.has(Atom.DEPUTY) else found


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a request must be settled, and what had to be looked at on the way.

    Attributes:
        settle: The one right call.
        stopped: The check that decided; None for approvals.
        first_worth: The asked sum in the home currency; None where a check before it decided.
        asked_quote, asked_consent: Somebody had to be asked.
        worth: The sum after a second quote; None where a check before it decided.
        wanted: After the cap; None where a check before it decided.
        available: What its cost centre had left; None where that did not matter.
        granted: The approved sum, or None.
    """

    settle: ToolCall
    stopped: Atom | None
    first_worth: int | None = None
    asked_quote: bool = False
    asked_consent: bool = False
    worth: int | None = None
    wanted: int | None = None
    available: int | None = None
    granted: int | None = None


def judge_round(
    rules: Rules, requests: Sequence[Request], centres: Mapping[str, Centre], vendors: Mapping[str, Vendor]
) -> tuple[Verdict, ...]:
    """The verdicts of a round, in list order."""
    left = {one.id: one.available for one in centres.values()}
    verdicts = []
    for one in requests:
        verdict = _judge(rules, one, centres[one.centre], vendors[one.vendor], left[one.centre])
        left[one.centre] -= verdict.granted or 0
        verdicts.append(verdict)
    return tuple(verdicts)


def _judge(rules: Rules, one: Request, centre: Centre, vendor: Vendor, available: int) -> Verdict:
    facts = {
        Atom.DUPLICATE: one.earlier == "approved",
        Atom.CLOSED: centre.status == "closed",
        Atom.BLOCKED: vendor.standing == "blocked",
        Atom.FREEZE: one.category == rules.frozen,
        Atom.CONTRACT: one.category == "services" and not one.contract,
    }
    early = next((atom for atom, applies in facts.items() if applies and rules.has(atom)), None)
    if early is not None:
        return Verdict(_stop(rules, one, early), early)
    worth = rules.worth(one.amount, one.currency)
    asked = rules.has(Atom.QUOTES) and worth > rules.quote_limit and one.quotes < 2
    if asked and one.offer is None:
        return Verdict(_stop(rules, one, Atom.QUOTES), Atom.QUOTES, worth, asked_quote=True)
    lower = min(one.amount, one.offer) if asked and one.offer is not None else one.amount
    return _judge_sum(rules, one, worth, rules.worth(lower, one.currency), available, asked_quote=asked)


def _judge_sum(rules: Rules, one: Request, first: int, worth: int, available: int, *, asked_quote: bool) -> Verdict:
    consent = rules.has(Atom.CONSENT) and worth > rules.consent_limit
    if consent and one.consent == "declined":
        return Verdict(_stop(rules, one, Atom.CONSENT), Atom.CONSENT, first, asked_quote, True, worth)
    cap = dict(rules.caps).get(one.category) if rules.has(Atom.CAP) else None
    wanted = worth if cap is None else min(worth, cap)
    if rules.approver(wanted) is None:
        return Verdict(_stop(rules, one, Atom.AUTHORITY), Atom.AUTHORITY, first, asked_quote, consent, worth, wanted)
    granted = wanted
    if wanted > available:
        enough = rules.has(Atom.PARTIAL) and available >= Fraction(str(rules.share)) * wanted
        if not enough:
            return Verdict(_stop(rules, one, Atom.BALANCE), Atom.BALANCE, first, asked_quote, consent, worth, wanted, available)
        granted = available
    call = ToolCall("approve", {"request": one.id, "amount": granted, "approver": rules.approver(granted)})
    return Verdict(call, None, first, asked_quote, consent, worth, wanted, available, granted)


def _stop(rules: Rules, one: Request, atom: Atom) -> ToolCall:
    return ToolCall("escalate" if atom in ESCALATED else "reject", {"request": one.id, "reason": rules.code(atom)})
