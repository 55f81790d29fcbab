"""What a user sees while a job runs: one protocol, one module per kind of display, looked up by name."""

import sys
from collections.abc import Callable

from coevo.display.bars import RichDisplay
from coevo.display.family import Display, DisplayKind
from coevo.display.json_lines import JsonDisplay
from coevo.display.plain import PlainDisplay

__all__ = ["DISPLAYS", "Display", "DisplayKind", "open_display"]

DISPLAYS: dict[DisplayKind, Callable[[], Display]] = {
    DisplayKind.RICH: RichDisplay,
    DisplayKind.PLAIN: PlainDisplay,
    DisplayKind.JSON: JsonDisplay,
}
"""Values of `--display`."""


def open_display(kind: DisplayKind | None = None) -> Display:
    """The display asked for; without a wish, rich on a terminal and plain elsewhere."""
    if kind is None:
        kind = DisplayKind.RICH if sys.stderr.isatty() else DisplayKind.PLAIN
    return DISPLAYS[kind]()
