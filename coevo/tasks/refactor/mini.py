"""The miniature of refactoring: functions of a module, lines plus calls, and vendor code, which is skipped and never changed."""

from __future__ import annotations

import operator
from types import MappingProxyType

from coevo.tasks.family import TaskInstance
from coevo.tasks.miniature import Miniature, MiniTemplate, MiniWorld, Number, Tool, open_miniature

__all__ = ["CODES", "LARGEST", "SPEC", "TEMPLATES", "WORDS", "RefactorMini", "open_mini"]

CODES = MappingProxyType({"public": "API", "private": "INT"})
"""Review code per kind of function; vendor code has none, because nobody changes it here."""

LARGEST = 88
"""A function whose size is above this is skipped, whatever its kind: it waits for a plan of its own."""

TEMPLATES = MappingProxyType(
    {
        "tidy": MiniTemplate("tidy every function of module {queue} .", (0.70, 0.14, 0.16)),
        "private": MiniTemplate("tidy the private functions of module {queue} .", (0.38, 0.14, 0.48)),
        "vendor": MiniTemplate("review the code of module {queue} .", (0.48, 0.38, 0.14)),
        "names": MiniTemplate("check names in module {queue} .", (0.62, 0.18, 0.20)),
        "week": MiniTemplate("process this week the functions of module {queue} .", (0.66, 0.12, 0.22), (3, 4)),
        "team": MiniTemplate("please tidy the code for the team of module {queue} .", (0.34, 0.33, 0.33), (3, 4)),
        "small": MiniTemplate("settle module {queue} .", (0.55, 0.20, 0.25), (2, 2)),
        "open": MiniTemplate("process open items of module {queue} .", (0.50, 0.25, 0.25)),
        "calls": MiniTemplate("check lines and calls of every function in module {queue} .", (0.58, 0.22, 0.20)),
        "public": MiniTemplate("review each public function of module {queue} .", (0.80, 0.10, 0.10)),
        "pending": MiniTemplate("handle pending review for module {queue} .", (0.52, 0.28, 0.20)),
        "left": MiniTemplate("settle what is left in module {queue} .", (0.45, 0.30, 0.25), (2, 3)),
        "month": MiniTemplate("close the month for module {queue} .", (0.60, 0.15, 0.25)),
        "records": MiniTemplate("check each record of module {queue} and settle it .", (0.56, 0.24, 0.20), (3, 4)),
        "last": MiniTemplate("run the last review of module {queue} .", (0.64, 0.14, 0.22)),
        "people": MiniTemplate("people are waiting for module {queue} .", (0.44, 0.22, 0.34)),
        "again": MiniTemplate("review the names in module {queue} again .", (0.42, 0.38, 0.20)),
        "pair": MiniTemplate("tidy new functions in module {queue} .", (0.36, 0.20, 0.44), (2, 2)),
        "mixed": MiniTemplate("public , private and vendor code is open in module {queue} .", (0.34, 0.32, 0.34), (3, 4)),
        "full": MiniTemplate("tidy and settle every item of module {queue} .", (0.36, 0.31, 0.33), (4, 4)),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""


def _large(size: int) -> bool:
    return size > LARGEST


SPEC = Miniature(
    family="refactor",
    queue="module",
    items="functions",
    item="function",
    letters=("M", "F"),
    kinds=("public", "vendor", "private"),
    codes=CODES,
    decoys=("EXT",),
    numbers=(Number("lines", 20, 89), Number("calls", 2, 9)),
    formula=operator.add,
    listing=Tool("list_functions", "functions of a module"),
    record=Tool("get_function", "record of a function"),
    compute=Tool("get_size", "lines and calls to size"),
    settle=Tool("rename", "rename a function"),
    decline=Tool("skip", "skip a function"),
    declined="note vendor must be skipped .",
    templates=TEMPLATES,
    past="renamed",
    amount="size",
    steps=("functions", "size", "rename"),
    stops=_large,
    stopped="note large size must be skipped .",
)
"""A size has two digits, 22 to 98, and equals neither lines nor calls."""

WORDS = tuple(
    (
        "tidy module function functions code public private vendor names lines calls size rename renamed skip skipped large people waiting "
        "list_functions get_function get_size API EXT M F are in what"
    ).split()
)
"""Words beyond those of the embedded tokenizer."""


class RefactorMini(MiniWorld):
    """The world of `SPEC`."""

    spec = SPEC
    toolbox = SPEC.toolbox()


def open_mini(instance: TaskInstance) -> MiniWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    return open_miniature(RefactorMini, instance)
