"""The templates of the portal, and how its forms are laid out."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from coevo.tasks.browser.paperwork import CLAIMS, INVOICES, PAPER_ACTIONS
from coevo.tasks.browser.services import ACCESS, BOOKINGS, SERVICE_ACTIONS, TICKETS
from coevo.tasks.deskwork import Action, Desk
from coevo.tasks.deskwork_data import DeskTemplate, part

__all__ = ["ACTIONS", "DESKS", "FLOWS", "TEMPLATES", "Flow"]

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


TEMPLATES: MappingProxyType[str, DeskTemplate] = MappingProxyType(
    {
        "claims": DeskTemplate("Please settle the open expense claims in the portal.", (part("claims", "receipt", 3, 3),)),
        "invoices": DeskTemplate("Go through the open invoices in the portal.", (part("invoices", "partial", 3, 3),)),
        "access": DeskTemplate("There are open access requests, please work on them.", (part("access", "training", 3, 4),)),
        "bookings": DeskTemplate("Answer the open room bookings.", (part("bookings", "long", 3, 5),)),
        "tickets": DeskTemplate("Please sort the open helpdesk tickets.", (part("tickets", "password", 3, 5),)),
        "hotels": DeskTemplate("Settle the open claims from the trade fair.", (part("claims", "hotel", 3, 3),), drafts=True),
        "discount": DeskTemplate("Book what can be booked of the open invoices.", (part("invoices", "early", 3, 3),), drafts=True),
        "watched": DeskTemplate("Decide on the open access requests; security has looked at them.", (part("access", "watched", 3, 3),)),
        "crowd": DeskTemplate("Room bookings are piling up, please answer all open ones.", (part("bookings", "crowd video", 4, 5),)),
        "late": DeskTemplate("Get the open tickets to the right people.", (part("tickets", "waiting", 3, 5),), drafts=True),
        "meals": DeskTemplate("Close the open expense claims of this month.", (part("claims", "meal", 3, 3),)),
        "blocked": DeskTemplate("Do the open invoices, please. Careful with the suppliers.", (part("invoices", "blocked", 3, 3),)),
        "twins": DeskTemplate("Clear the queue of tickets.", (part("tickets", "duplicate", 3, 5),)),
        "closed": DeskTemplate("Some rooms are closed; settle the open bookings.", (part("bookings", "closed", 3, 5),), drafts=True),
        "taxis": DeskTemplate("Check and settle all open expense claims.", (part("claims", "taxi", 3, 3),)),
        "vendor": DeskTemplate("Assign the open tickets.", (part("tickets", "warranty", 3, 5),)),
        "desk_round": DeskTemplate(
            "Two queues are waiting in the portal: bookings and tickets. Settle what is open.",
            (part("bookings", "", 2, 2), part("tickets", "", 2, 2)),
        ),
        "claims_round": DeskTemplate(
            "Settle the open claims, and sort the open tickets.",
            (part("claims", "", 2, 2), part("tickets", "", 2, 2)),
        ),
        "rights_round": DeskTemplate(
            "Open access requests first, then the open room bookings.",
            (part("access", "", 2, 2), part("bookings", "", 2, 2)),
            drafts=True,
        ),
        "full_invoices": DeskTemplate("All open invoices, by the handbook.", (part("invoices", "partial blocked", 4, 4),), drafts=True),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""
