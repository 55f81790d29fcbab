"""The templates of the shop: what is asked, at which desks, under which rules."""

from __future__ import annotations

from types import MappingProxyType

from coevo.tasks.deskwork import Action, Desk
from coevo.tasks.deskwork_data import DeskTemplate, part
from coevo.tasks.website.content import CONTENT_ACTIONS, PAGES, REVIEWS
from coevo.tasks.website.goods import COUPONS, GOODS_ACTIONS, PRICES
from coevo.tasks.website.sales import ORDERS, RETURNS, SALES_ACTIONS

__all__ = ["ACTIONS", "DESKS", "TEMPLATES"]

DESKS: MappingProxyType[str, Desk] = MappingProxyType({one.name: one for one in (RETURNS, ORDERS, PRICES, COUPONS, REVIEWS, PAGES)})
"""All desks of the shop by name."""

ACTIONS: MappingProxyType[str, Action] = MappingProxyType({**SALES_ACTIONS, **GOODS_ACTIONS, **CONTENT_ACTIONS})
"""All ways to change a record, by tool."""


TEMPLATES: MappingProxyType[str, DeskTemplate] = MappingProxyType(
    {
        "returns": DeskTemplate("Please clear the open return requests.", (part("returns", "final_sale", 4, 6),)),
        "coupons": DeskTemplate("Clean up the coupons of the {campaign} campaign.", (part("coupons", "partner", 6, 8),)),
        "prices": DeskTemplate("Reprice our {category}; purchasing sent new costs.", (part("prices", "agreement", 5, 7),), drafts=True),
        "release": DeskTemplate("Work through the orders that are waiting.", (part("orders", "", 5, 7),)),
        "reviews": DeskTemplate("There are reviews waiting, please moderate them.", (part("reviews", "rival", 6, 9),)),
        "help": DeskTemplate("Bring the live help pages up to date.", (part("pages", "legal", 6, 9),), drafts=True),
        "worn": DeskTemplate("Deal with the open returns; the hall has looked at the parcels.", (part("returns", "worn", 4, 6),)),
        "calls": DeskTemplate(
            "Please get the waiting orders moving. Customer care was on the phone all day.", (part("orders", "address first", 6, 7),)
        ),
        "idle": DeskTemplate("Tidy the {campaign} coupons before the audit.", (part("coupons", "holderless idle", 7, 9),), drafts=True),
        "shelf": DeskTemplate(
            "Set new prices for the {category} and tell us which ones look wrong.", (part("prices", "below_cost low_stock", 5, 7),)
        ),
        "high": DeskTemplate(
            "Settle every open return request. Some are for a lot of money.", (part("returns", "limit final_sale", 5, 6),), drafts=True
        ),
        "newcomers": DeskTemplate(
            "Check the waiting orders for anything odd and release the rest.", (part("orders", "blocked first express", 7, 8),)
        ),
        "low": DeskTemplate("Moderate the waiting reviews, the bad ones too.", (part("reviews", "unverified recent", 7, 9),)),
        "redesign": DeskTemplate("Our terms changed: correct the live help pages.", (part("pages", "legal redesign", 7, 9),)),
        "full_returns": DeskTemplate(
            "Do the complete returns desk for today.", (part("returns", "final_sale worn limit", 6, 6),), drafts=True
        ),
        "morning": DeskTemplate(
            "The usual morning round: open returns first, then the waiting reviews.",
            (part("returns", "", 3, 4), part("reviews", "", 4, 5)),
        ),
        "sale_end": DeskTemplate(
            "The {campaign} campaign is over: clean up its coupons and reprice the {category}.",
            (part("coupons", "", 4, 5), part("prices", "", 3, 4)),
            drafts=True,
        ),
        "texts": DeskTemplate(
            "Look after our texts: waiting reviews, then the live help pages.",
            (part("reviews", "rival", 5, 6), part("pages", "redesign", 4, 5)),
        ),
        "stockroom": DeskTemplate(
            "Release the waiting orders, and set the prices of the {category} anew.",
            (part("orders", "", 5, 5), part("prices", "low_stock", 4, 5)),
        ),
        "full_orders": DeskTemplate(
            "All waiting orders, by the book.", (part("orders", "blocked first address express", 9, 9),), drafts=True
        ),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""
