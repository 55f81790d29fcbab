"""The browser family: its sizes, templates, worlds, reference policies and base harnesses behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from coevo.chat import Message
from coevo.tasks.browser import mini
from coevo.tasks.browser.catalogue import TEMPLATES
from coevo.tasks.browser.world import TOOLS, BrowserWorld, ChromiumWorld, facts, open_browser
from coevo.tasks.deskwork_policy import DeskworkPolicy
from coevo.tasks.family import Conduct, Move, Size, Style, Unrecoverable, World
from coevo.tasks.miniature_policy import mini_policy
from coevo.tasks.variants import Variant, VariantFamily
from coevo.tasks.world import TERMINAL_TOOL

__all__ = ["Backend", "BrowserFamily", "BrowserPolicy", "chromium_family", "family"]

_CONDUCT = Conduct(frozenset({"click", TERMINAL_TOOL}), frozenset({"round_to", "mode"}))


class Backend(StrEnum):
    """What shows the portal; worlds of both behave alike."""

    MEMORY = "memory"
    """The fast browser of this process."""
    CHROMIUM = "chromium"
    """Headless Chromium on the portal served on loopback; needs the extra `browser` and a Chromium."""


@dataclass(frozen=True, slots=True)
class BrowserPolicy:
    """The reference policy of the sizes standard and long in one style."""

    style: Style

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        return DeskworkPolicy(self.style).move(facts(world), visible, limited=limited)


class BrowserFamily(VariantFamily):
    """Work through a company's portal by the handbook: claims, invoices, access requests, room bookings, tickets.

    Args:
        backend: What shows the portal of the sizes standard and long.
    """

    def __init__(self, backend: Backend = Backend.MEMORY) -> None:
        kind = ChromiumWorld if backend is Backend.CHROMIUM else BrowserWorld
        desk = Variant(tuple(TEMPLATES), TOOLS, _CONDUCT, partial(open_browser, kind=kind), BrowserPolicy)
        small = Variant(tuple(mini.TEMPLATES), mini.SPEC.tools, mini.SPEC.conduct, mini.open_mini, mini_policy)
        super().__init__("browser", "1", {Size.MINI: small, Size.STANDARD: desk, Size.LONG: desk})


family = BrowserFamily()
"""The one instance; stateless."""

chromium_family = BrowserFamily(Backend.CHROMIUM)
"""The same family in a real browser: `coevo.tasks.browser:chromium_family`."""
