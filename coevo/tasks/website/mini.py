"""The miniature of website management: orders of a shop, price minus rebate, and wholesale orders, which are held and never refunded."""

from __future__ import annotations

import operator
from types import MappingProxyType

from coevo.tasks.family import TaskInstance
from coevo.tasks.miniature import Miniature, MiniTemplate, MiniWorld, Number, Tool, open_miniature

__all__ = ["SPEC", "TEMPLATES", "WORDS", "WebsiteMini", "open_mini"]

TEMPLATES = MappingProxyType(
    {
        "refunds": MiniTemplate("settle refunds of shop {queue} .", (0.62, 0.14, 0.24)),
        "orders": MiniTemplate("check the orders of shop {queue} .", (0.50, 0.20, 0.30)),
        "gifts": MiniTemplate("handle gift orders of shop {queue} .", (0.30, 0.15, 0.55)),
        "bulk": MiniTemplate("review wholesale orders in shop {queue} .", (0.40, 0.40, 0.20)),
        "admin": MiniTemplate("run the admin page of shop {queue} .", (0.60, 0.20, 0.20)),
        "close": MiniTemplate("close open orders of shop {queue} .", (0.55, 0.20, 0.25)),
        "week": MiniTemplate("process this week for shop {queue} .", (0.66, 0.14, 0.20)),
        "pair": MiniTemplate("two orders are left in shop {queue} .", (0.50, 0.25, 0.25), (2, 2)),
        "web": MiniTemplate("refund every web order of shop {queue} .", (0.75, 0.12, 0.13)),
        "team": MiniTemplate("please handle the orders for the team of shop {queue} .", (0.34, 0.33, 0.33), (3, 4)),
        "pending": MiniTemplate("settle what is pending at shop {queue} .", (0.48, 0.27, 0.25)),
        "new": MiniTemplate("check new orders at shop {queue} .", (0.58, 0.18, 0.24), (2, 3)),
        "list": MiniTemplate("process the order list of shop {queue} .", (0.54, 0.24, 0.22)),
        "last": MiniTemplate("settle the last orders of the month in shop {queue} .", (0.60, 0.16, 0.24), (3, 4)),
        "audit": MiniTemplate("audit refunds of shop {queue} .", (0.44, 0.36, 0.20)),
        "people": MiniTemplate("people are waiting for refunds at shop {queue} .", (0.70, 0.10, 0.20)),
        "mixed": MiniTemplate("web , gift and wholesale orders are open in shop {queue} .", (0.34, 0.32, 0.34), (3, 4)),
        "again": MiniTemplate("check shop {queue} again .", (0.46, 0.30, 0.24)),
        "small": MiniTemplate("settle shop {queue} .", (0.56, 0.20, 0.24), (2, 2)),
        "full": MiniTemplate("settle each order of shop {queue} by the rules .", (0.38, 0.31, 0.31), (4, 4)),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""

SPEC = Miniature(
    family="website",
    queue="shop",
    items="orders",
    item="order",
    letters=("W", "O"),
    kinds=("web", "wholesale", "gift"),
    codes=MappingProxyType({"web": "CARD", "gift": "CREDIT"}),
    decoys=("CASH",),
    numbers=(Number("price", 200, 990), Number("rebate", 11, 99)),
    formula=operator.sub,
    listing=Tool("list_orders", "orders of a shop"),
    record=Tool("get_order", "record of an order"),
    compute=Tool("net", "price and rebate to amount"),
    settle=Tool("refund_order", "refund an order"),
    decline=Tool("hold_order", "hold an order"),
    declined="note wholesale must be held .",
    templates=TEMPLATES,
    past="refunded",
    steps=("records", "net", "refund"),
)
"""Amounts have three digits, 101 to 979, and equal neither price nor rebate."""

WORDS = (
    "settle refunds shop orders order gift wholesale admin page two web refund waiting held CARD CREDIT CASH price rebate net "
    "list_orders get_order refund_order hold_order W O at check every each rules refunded hold what"
).split()
"""Words of this miniature; the embedded tokenizer knows some of them."""


class WebsiteMini(MiniWorld):
    """The world of `SPEC`."""

    spec = SPEC
    toolbox = SPEC.toolbox()


def open_mini(instance: TaskInstance) -> MiniWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    return open_miniature(WebsiteMini, instance)
