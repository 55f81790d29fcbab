"""The templates of the portal, and how its forms are laid out."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from coevo.tasks.browser.paperwork import CLAIMS, INVOICES, PAPER_ACTIONS
from coevo.tasks.browser.services import ACCESS, BOOKINGS, SERVICE_ACTIONS, TICKETS
from coevo.tasks.deskwork import Action, Desk

__all__ = ["ACTIONS", "DESKS", "FLOWS", "TEMPLATES", "Flow", "Part", "Template"]

DESKS: MappingProxyType[str, Desk] = MappingProxyType({one.name: one for one in (CLAIMS, INVOICES, ACCESS, BOOKINGS, TICKETS)})
"""All desks of the portal by name; a desk's name is the kind of its records and the word in the menu."""

ACTIONS: MappingProxyType[str, Action] = MappingProxyType({**PAPER_ACTIONS, **SERVICE_ACTIONS})
"""All forms by name."""


@dataclass(frozen=True, slots=True)
class Flow:
    """How a form is laid out.

    Attributes:
        pages: Fields per page, in order.
        dialog: The last page asks for confirmation in a dialog.
        tick: Label of a box that must be ticked on the last page; empty: none.
    """

    pages: tuple[tuple[str, ...], ...]
    dialog: bool = False
    tick: str = ""


FLOWS: MappingProxyType[str, Flow] = MappingProxyType(
    {
        "approve_claim": Flow((("amount", "centre"), ("code",))),
        "return_claim": Flow((("code",),), dialog=True),
        "book_invoice": Flow((("amount", "account"),), dialog=True),
        "dispute_invoice": Flow((("amount",), ("code",))),
        "park_invoice": Flow((("code",),), tick="I have looked at the purchase"),
        "grant_access": Flow((("role", "days"),)),
        "deny_access": Flow((("code",),), dialog=True),
        "confirm_booking": Flow((("setup",),)),
        "decline_booking": Flow((("code",),), tick="The guest was told"),
        "assign_ticket": Flow((("team", "priority"),)),
        "close_ticket": Flow((("code",),), dialog=True),
    }
)


@dataclass(frozen=True, slots=True)
class Part:
    """One desk of a template: its rules besides the core ones, and the smallest and largest number of cases."""

    desk: str
    atoms: tuple[str, ...]
    count: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Template:
    """A request as a colleague would write it. `drafts` puts future versions of the rules into the handbook."""

    wording: str
    parts: tuple[Part, ...]
    drafts: bool = False


def _part(desk: str, atoms: str, low: int, high: int) -> Part:
    return Part(desk, tuple(atoms.split()), (low, high))


TEMPLATES: MappingProxyType[str, Template] = MappingProxyType(
    {
        "claims": Template("Please settle the open expense claims in the portal.", (_part("claims", "receipt", 3, 3),)),
        "invoices": Template("Go through the open invoices in the portal.", (_part("invoices", "partial", 3, 3),)),
        "access": Template("There are open access requests, please work on them.", (_part("access", "training", 3, 4),)),
        "bookings": Template("Answer the open room bookings.", (_part("bookings", "long", 3, 5),)),
        "tickets": Template("Please sort the open helpdesk tickets.", (_part("tickets", "password", 3, 5),)),
        "hotels": Template("Settle the open claims from the trade fair.", (_part("claims", "hotel", 3, 3),), drafts=True),
        "discount": Template("Book what can be booked of the open invoices.", (_part("invoices", "early", 3, 3),), drafts=True),
        "watched": Template("Decide on the open access requests; security has looked at them.", (_part("access", "watched", 3, 3),)),
        "crowd": Template("Room bookings are piling up, please answer all open ones.", (_part("bookings", "crowd video", 4, 5),)),
        "late": Template("Get the open tickets to the right people.", (_part("tickets", "waiting", 3, 5),), drafts=True),
        "meals": Template("Close the open expense claims of this month.", (_part("claims", "meal", 3, 3),)),
        "blocked": Template("Do the open invoices, please. Careful with the suppliers.", (_part("invoices", "blocked", 3, 3),)),
        "twins": Template("Clear the queue of tickets.", (_part("tickets", "duplicate", 3, 5),)),
        "closed": Template("Some rooms are closed; settle the open bookings.", (_part("bookings", "closed", 3, 5),), drafts=True),
        "taxis": Template("Check and settle all open expense claims.", (_part("claims", "taxi", 3, 3),)),
        "vendor": Template("Assign the open tickets.", (_part("tickets", "warranty", 3, 5),)),
        "desk_round": Template(
            "Two queues are waiting in the portal: bookings and tickets. Settle what is open.",
            (_part("bookings", "", 2, 2), _part("tickets", "", 2, 2)),
        ),
        "claims_round": Template(
            "Settle the open claims, and sort the open tickets.",
            (_part("claims", "", 2, 2), _part("tickets", "", 2, 2)),
        ),
        "rights_round": Template(
            "Open access requests first, then the open room bookings.",
            (_part("access", "", 2, 2), _part("bookings", "", 2, 2)),
            drafts=True,
        ),
        "full_invoices": Template("All open invoices, by the handbook.", (_part("invoices", "partial blocked", 4, 4),), drafts=True),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""
