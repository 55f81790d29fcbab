"""The website family: its sizes, templates, worlds, reference policies and base harnesses behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from coevo.chat import Message
from coevo.tasks.deskwork_policy import DeskworkPolicy
from coevo.tasks.family import Conduct, Move, Size, Style, Unrecoverable, World
from coevo.tasks.miniature_policy import mini_policy
from coevo.tasks.variants import Variant, VariantFamily
from coevo.tasks.website import mini
from coevo.tasks.website.catalogue import ACTIONS, TEMPLATES
from coevo.tasks.website.shop import TOOLS
from coevo.tasks.website.world import HttpWebsiteWorld, WebsiteWorld, facts, open_website
from coevo.tasks.world import TERMINAL_TOOL

__all__ = ["Backend", "WebsiteFamily", "WebsitePolicy", "family", "http_family"]

_CONDUCT = Conduct(
    frozenset({*ACTIONS, TERMINAL_TOOL}), frozenset({"kind", "status", "query", "page", "part", "message", "round_to", "mode"})
)


class Backend(StrEnum):
    """What serves the shop; worlds of both behave alike."""

    MEMORY = "memory"
    """The shop in this process."""
    HTTP = "http"
    """The HTTP application on loopback."""


@dataclass(frozen=True, slots=True)
class WebsitePolicy:
    """The reference policy of the sizes standard and long in one style."""

    style: Style

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        return DeskworkPolicy(self.style).move(facts(world), visible, limited=limited)


class WebsiteFamily(VariantFamily):
    """Run a shop's admin side by the shop's rules: returns, orders, prices, coupons, reviews, help pages.

    Args:
        backend: What serves the shop of the sizes standard and long.
    """

    def __init__(self, backend: Backend = Backend.MEMORY) -> None:
        kind = HttpWebsiteWorld if backend is Backend.HTTP else WebsiteWorld
        desk = Variant(tuple(TEMPLATES), TOOLS, _CONDUCT, partial(open_website, kind=kind), WebsitePolicy)
        small = Variant(tuple(mini.TEMPLATES), mini.SPEC.tools, mini.SPEC.conduct, mini.open_mini, mini_policy)
        super().__init__("website", "1", {Size.MINI: small, Size.STANDARD: desk, Size.LONG: desk})


family = WebsiteFamily()
"""The one instance; stateless."""

http_family = WebsiteFamily(Backend.HTTP)
"""The same family over the HTTP application: `coevo.tasks.website:http_family`."""
