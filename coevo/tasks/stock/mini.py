"""The miniature of stock alerting: instruments of a book, the rise from close to last, and frozen ones, which are never alerted."""

from __future__ import annotations

import operator
from types import MappingProxyType

from coevo.tasks.family import TaskInstance
from coevo.tasks.miniature import Miniature, MiniTemplate, MiniWorld, Number, Tool, open_miniature

__all__ = ["CODES", "SMALLEST", "SPEC", "TEMPLATES", "WORDS", "StockMini", "open_mini"]

CODES = MappingProxyType({"share": "EQ", "bond": "FI"})
"""Alert code per kind of instrument; a frozen one has none, because nobody is alerted about it here."""

SMALLEST = 100
"""A rise below this is muted, whatever the kind."""

TEMPLATES = MappingProxyType(
    {
        "routine": MiniTemplate("watch every stock of book {queue} .", (0.70, 0.14, 0.16)),
        "bonds": MiniTemplate("send alerts for book {queue} .", (0.38, 0.14, 0.48)),
        "freeze": MiniTemplate("review alerts of book {queue} .", (0.48, 0.38, 0.14)),
        "close": MiniTemplate("check last and close of book {queue} .", (0.62, 0.18, 0.20)),
        "week": MiniTemplate("run the alert watch this week for book {queue} .", (0.66, 0.12, 0.22), (3, 4)),
        "desk": MiniTemplate("please handle alerts for the desk in book {queue} .", (0.34, 0.33, 0.33), (3, 4)),
        "small": MiniTemplate("settle book {queue} .", (0.55, 0.20, 0.25), (2, 2)),
        "open": MiniTemplate("process open items of book {queue} .", (0.50, 0.25, 0.25)),
        "market": MiniTemplate("check the market for all stock in book {queue} .", (0.58, 0.22, 0.20)),
        "rise": MiniTemplate("alert on each rise in book {queue} .", (0.60, 0.16, 0.24)),
        "shares": MiniTemplate("review each share of book {queue} .", (0.80, 0.10, 0.10)),
        "pending": MiniTemplate("handle pending alerts for book {queue} .", (0.52, 0.28, 0.20)),
        "left": MiniTemplate("settle what is left in book {queue} .", (0.45, 0.30, 0.25), (2, 3)),
        "month": MiniTemplate("close the month for book {queue} .", (0.60, 0.15, 0.25)),
        "records": MiniTemplate("check each record of book {queue} and settle it .", (0.56, 0.24, 0.20), (3, 4)),
        "last": MiniTemplate("run the last watch of the month for book {queue} .", (0.64, 0.14, 0.22)),
        "team": MiniTemplate("please watch all stock for the team of book {queue} .", (0.44, 0.22, 0.34)),
        "again": MiniTemplate("review the market in book {queue} again .", (0.42, 0.38, 0.20)),
        "pair": MiniTemplate("send alerts on new items in book {queue} .", (0.36, 0.20, 0.44), (2, 2)),
        "full": MiniTemplate("watch and settle every item of book {queue} .", (0.36, 0.31, 0.33), (4, 4)),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""


def _small(rise: int) -> bool:
    return rise < SMALLEST


SPEC = Miniature(
    family="stock",
    queue="book",
    items="stocks",
    item="stock",
    letters=("B", "S"),
    kinds=("share", "frozen", "bond"),
    codes=CODES,
    decoys=("FX",),
    numbers=(Number("last", 300, 699), Number("close", 100, 299)),
    formula=operator.sub,
    listing=Tool("list_stocks", "stocks of a book"),
    record=Tool("get_quote", "quote of a stock"),
    compute=Tool("get_rise", "last and close to rise"),
    settle=Tool("send_alert", "alert on a stock"),
    decline=Tool("mute", "mute a stock"),
    declined="note frozen must be muted .",
    templates=TEMPLATES,
    past="alerted",
    amount="rise",
    steps=("quotes", "rise", "alert"),
    stops=_small,
    stopped="note small rise must be muted .",
)
"""A rise has one to three digits, 1 to 599, and equals neither price."""

WORDS = tuple(
    (
        "watch stock stocks book alert alerts send share shares bond frozen quote quotes rise market desk mute muted small what "
        "get_quote get_rise list_stocks send_alert EQ FI FX B S"
    ).split()
)
"""Words beyond those of the embedded tokenizer."""


class StockMini(MiniWorld):
    """The world of `SPEC`."""

    spec = SPEC
    toolbox = SPEC.toolbox()


def open_mini(instance: TaskInstance) -> MiniWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    return open_miniature(StockMini, instance)
