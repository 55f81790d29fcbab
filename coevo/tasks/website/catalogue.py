"""The templates of the shop: what is asked, at which desks, under which rules."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from coevo.tasks.deskwork import Action, Desk
from coevo.tasks.website.content import CONTENT_ACTIONS, PAGES, REVIEWS
from coevo.tasks.website.goods import COUPONS, GOODS_ACTIONS, PRICES
from coevo.tasks.website.sales import ORDERS, RETURNS, SALES_ACTIONS

__all__ = ["ACTIONS", "DESKS", "TEMPLATES", "Part", "Template"]

DESKS: MappingProxyType[str, Desk] = MappingProxyType({one.name: one for one in (RETURNS, ORDERS, PRICES, COUPONS, REVIEWS, PAGES)})
"""All desks of the shop by name."""

ACTIONS: MappingProxyType[str, Action] = MappingProxyType({**SALES_ACTIONS, **GOODS_ACTIONS, **CONTENT_ACTIONS})
"""All ways to change a record, by tool."""


@dataclass(frozen=True, slots=True)
class Part:
    """One desk of a template: its rules besides the core ones, and the smallest and largest number of cases."""

    desk: str
    atoms: tuple[str, ...]
    count: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Template:
    """A request as a shop's owner would write it. Slots: `{category}`, `{campaign}`. `drafts` puts future versions on the shelf."""

    wording: str
    parts: tuple[Part, ...]
    drafts: bool = False


def _part(desk: str, atoms: str, low: int, high: int) -> Part:
    return Part(desk, tuple(atoms.split()), (low, high))


TEMPLATES: MappingProxyType[str, Template] = MappingProxyType(
    {
        "returns": Template("Please clear the open return requests.", (_part("returns", "final_sale", 4, 6),)),
        "coupons": Template("Clean up the coupons of the {campaign} campaign.", (_part("coupons", "partner", 6, 8),)),
        "prices": Template("Reprice our {category}; purchasing sent new costs.", (_part("prices", "agreement", 5, 7),), drafts=True),
        "release": Template("Work through the orders that are waiting.", (_part("orders", "", 5, 7),)),
        "reviews": Template("There are reviews waiting, please moderate them.", (_part("reviews", "rival", 6, 9),)),
        "help": Template("Bring the live help pages up to date.", (_part("pages", "legal", 6, 9),), drafts=True),
        "worn": Template("Deal with the open returns; the hall has looked at the parcels.", (_part("returns", "worn", 4, 6),)),
        "calls": Template(
            "Please get the waiting orders moving. Customer care was on the phone all day.", (_part("orders", "address first", 6, 7),)
        ),
        "idle": Template("Tidy the {campaign} coupons before the audit.", (_part("coupons", "holderless idle", 7, 9),), drafts=True),
        "shelf": Template(
            "Set new prices for the {category} and tell us which ones look wrong.", (_part("prices", "below_cost low_stock", 5, 7),)
        ),
        "high": Template(
            "Settle every open return request. Some are for a lot of money.", (_part("returns", "limit final_sale", 5, 6),), drafts=True
        ),
        "newcomers": Template(
            "Check the waiting orders for anything odd and release the rest.", (_part("orders", "blocked first express", 7, 8),)
        ),
        "low": Template("Moderate the waiting reviews, the bad ones too.", (_part("reviews", "unverified recent", 7, 9),)),
        "redesign": Template("Our terms changed: correct the live help pages.", (_part("pages", "legal redesign", 7, 9),)),
        "full_returns": Template(
            "Do the complete returns desk for today.", (_part("returns", "final_sale worn limit", 6, 6),), drafts=True
        ),
        "morning": Template(
            "The usual morning round: open returns first, then the waiting reviews.",
            (_part("returns", "", 3, 4), _part("reviews", "", 4, 5)),
        ),
        "sale_end": Template(
            "The {campaign} campaign is over: clean up its coupons and reprice the {category}.",
            (_part("coupons", "", 4, 5), _part("prices", "", 3, 4)),
            drafts=True,
        ),
        "texts": Template(
            "Look after our texts: waiting reviews, then the live help pages.",
            (_part("reviews", "rival", 5, 6), _part("pages", "redesign", 4, 5)),
        ),
        "stockroom": Template(
            "Release the waiting orders, and set the prices of the {category} anew.",
            (_part("orders", "", 5, 5), _part("prices", "low_stock", 4, 5)),
        ),
        "full_orders": Template("All waiting orders, by the book.", (_part("orders", "blocked first address express", 9, 9),), drafts=True),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""
