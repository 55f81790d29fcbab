"""The miniature of budget approval: requests of a unit, cost plus fee, and gifts, which are rejected; so are totals above a limit."""

from __future__ import annotations

import operator
from types import MappingProxyType

from coevo.tasks.family import TaskInstance
from coevo.tasks.miniature import Miniature, MiniTemplate, MiniWorld, Number, Tool, open_miniature

__all__ = ["CODES", "LARGEST", "SPEC", "TEMPLATES", "WORDS", "BudgetMini", "open_mini"]

CODES = MappingProxyType({"device": "DEV", "trip": "TRP"})
"""Cost code per kind of request; a gift has none, because a gift is never approved here."""

LARGEST = 500
"""A total above this is rejected, whatever the kind."""

TEMPLATES = MappingProxyType(
    {
        "routine": MiniTemplate("approve requests of unit {queue} .", (0.70, 0.14, 0.16)),
        "trips": MiniTemplate("decide every request of unit {queue} .", (0.38, 0.14, 0.48)),
        "gifts": MiniTemplate("review the budget of unit {queue} .", (0.48, 0.36, 0.16)),
        "costs": MiniTemplate("check cost and fee for unit {queue} .", (0.62, 0.18, 0.20)),
        "month": MiniTemplate("close the month for unit {queue} .", (0.60, 0.15, 0.25)),
        "team": MiniTemplate("please handle requests for the team in unit {queue} .", (0.34, 0.33, 0.33), (3, 4)),
        "small": MiniTemplate("settle unit {queue} .", (0.55, 0.20, 0.25), (2, 2)),
        "week": MiniTemplate("run the budget this week for all people in unit {queue} .", (0.68, 0.12, 0.20), (3, 4)),
        "open": MiniTemplate("process open items of unit {queue} .", (0.50, 0.25, 0.25)),
        "devices": MiniTemplate("approve each device of unit {queue} .", (0.80, 0.10, 0.10)),
        "left": MiniTemplate("settle items left in unit {queue} .", (0.45, 0.30, 0.25), (2, 3)),
        "pending": MiniTemplate("handle pending requests for unit {queue} .", (0.52, 0.28, 0.20)),
        "records": MiniTemplate("check each record of unit {queue} and settle it .", (0.58, 0.22, 0.20), (3, 4)),
        "last": MiniTemplate("run the last budget of the month for unit {queue} .", (0.62, 0.16, 0.22)),
        "people": MiniTemplate("please decide for all people of unit {queue} .", (0.46, 0.20, 0.34)),
        "again": MiniTemplate("review requests in unit {queue} again .", (0.42, 0.38, 0.20)),
        "pair": MiniTemplate("decide new requests in unit {queue} .", (0.35, 0.20, 0.45), (2, 2)),
        "totals": MiniTemplate("check the total of every request in unit {queue} .", (0.56, 0.18, 0.26)),
        "staff": MiniTemplate("check all requests of staff in unit {queue} .", (0.66, 0.20, 0.14)),
        "full": MiniTemplate("review and settle every item of budget for unit {queue} .", (0.36, 0.31, 0.33), (4, 4)),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""


def _too_large(total: int) -> bool:
    return total > LARGEST


SPEC = Miniature(
    family="budget",
    queue="unit",
    items="requests",
    item="request",
    letters=("U", "R"),
    kinds=("device", "gift", "trip"),
    codes=CODES,
    decoys=("GFT",),
    numbers=(Number("cost", 100, 489), Number("fee", 5, 59)),
    formula=operator.add,
    listing=Tool("list_requests", "requests of a unit"),
    record=Tool("get_request", "record of a request"),
    compute=Tool("get_total", "cost and fee to total"),
    settle=Tool("approve", "approve a request"),
    decline=Tool("reject", "reject a request"),
    declined="note gift must be rejected .",
    templates=TEMPLATES,
    past="approved",
    amount="total",
    steps=("records", "total", "approve"),
    stops=_too_large,
    stopped="note total over limit must be rejected .",
)
"""A total has three digits, 105 to 548, and equals neither cost nor fee."""

WORDS = tuple(
    (
        "unit request requests budget approve decide device gift trip cost fee total limit over "
        "reject rejected get_request get_total list_requests DEV TRP GFT U R"
    ).split()
)
"""Words beyond those of the embedded tokenizer."""


class BudgetMini(MiniWorld):
    """The world of `SPEC`."""

    spec = SPEC
    toolbox = SPEC.toolbox()


def open_mini(instance: TaskInstance) -> MiniWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    return open_miniature(BudgetMini, instance)
