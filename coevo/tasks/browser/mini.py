"""The miniature of browser automation: forms of a portal, base plus fee, and locked forms, which are left and never filled in."""

from __future__ import annotations

import operator
from types import MappingProxyType

from coevo.tasks.family import TaskInstance
from coevo.tasks.miniature import Miniature, MiniTemplate, MiniWorld, Number, Tool, open_miniature

__all__ = ["SPEC", "TEMPLATES", "WORDS", "BrowserMini", "open_mini"]

TEMPLATES = MappingProxyType(
    {
        "forms": MiniTemplate("fill in the forms of portal {queue} .", (0.64, 0.14, 0.22)),
        "links": MiniTemplate("check every link of portal {queue} .", (0.50, 0.20, 0.30)),
        "pages": MiniTemplate("work on the open pages of portal {queue} .", (0.34, 0.16, 0.50)),
        "locked": MiniTemplate("some pages are locked in portal {queue} .", (0.40, 0.40, 0.20)),
        "week": MiniTemplate("process this week on portal {queue} .", (0.66, 0.14, 0.20)),
        "send": MiniTemplate("send what is open on portal {queue} .", (0.58, 0.20, 0.22)),
        "team": MiniTemplate("please handle the pages for the team on portal {queue} .", (0.34, 0.33, 0.33), (3, 4)),
        "pair": MiniTemplate("two pages are left on portal {queue} .", (0.50, 0.25, 0.25), (2, 2)),
        "public": MiniTemplate("fill in every public form of portal {queue} .", (0.75, 0.12, 0.13)),
        "staff": MiniTemplate("the staff pages of portal {queue} are open .", (0.28, 0.17, 0.55)),
        "pending": MiniTemplate("settle what is pending on portal {queue} .", (0.48, 0.27, 0.25)),
        "new": MiniTemplate("check new pages on portal {queue} .", (0.58, 0.18, 0.24), (2, 3)),
        "list": MiniTemplate("process the page list of portal {queue} .", (0.54, 0.24, 0.22)),
        "last": MiniTemplate("send the last forms of the month on portal {queue} .", (0.60, 0.16, 0.24), (3, 4)),
        "audit": MiniTemplate("audit the pages of portal {queue} .", (0.44, 0.36, 0.20)),
        "people": MiniTemplate("people are waiting for portal {queue} .", (0.70, 0.10, 0.20)),
        "mixed": MiniTemplate("public , staff and locked pages are open on portal {queue} .", (0.34, 0.32, 0.34), (3, 4)),
        "again": MiniTemplate("check portal {queue} again .", (0.46, 0.30, 0.24)),
        "small": MiniTemplate("settle portal {queue} .", (0.56, 0.20, 0.24), (2, 2)),
        "full": MiniTemplate("work on each page of portal {queue} by the rules .", (0.38, 0.31, 0.31), (4, 4)),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""

SPEC = Miniature(
    family="browser",
    queue="portal",
    items="pages",
    item="page",
    letters=("B", "P"),
    kinds=("public", "locked", "staff"),
    codes=MappingProxyType({"public": "SEND", "staff": "SIGN"}),
    decoys=("SAVE",),
    numbers=(Number("base", 100, 480), Number("fee", 11, 480)),
    formula=operator.add,
    listing=Tool("open_portal", "pages of a portal"),
    record=Tool("open_page", "fields of a page"),
    compute=Tool("add", "base and fee to amount"),
    settle=Tool("fill_form", "fill in a page"),
    decline=Tool("close_page", "close a page"),
    declined="note locked must be closed .",
    templates=TEMPLATES,
    past="filled in",
    code="button",
    steps=("pages", "add", "fill"),
)
"""Amounts have three digits, 111 to 960, and equal neither number."""

WORDS = (
    "fill forms form portal link links pages page locked public staff work send two SEND SIGN SAVE base fee button fields closed "
    "close filled open_portal open_page add fill_form close_page B P some waiting every each rules what"
).split()
"""Words of this miniature; the embedded tokenizer knows some of them."""


class BrowserMini(MiniWorld):
    """The world of `SPEC`."""

    spec = SPEC
    toolbox = SPEC.toolbox()


def open_mini(instance: TaskInstance) -> MiniWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    return open_miniature(BrowserMini, instance)
