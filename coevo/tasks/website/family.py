"""The website family: its sizes, templates, worlds, reference policies and base harnesses behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from coevo.chat import Message, ToolSpec
from coevo.errors import ConfigError
from coevo.identity import derive_seed
from coevo.tasks.deskwork_policy import DeskworkPolicy
from coevo.tasks.family import Conduct, Move, Policy, Size, Stream, Style, TaskInstance, Unrecoverable, World
from coevo.tasks.miniature_policy import mini_policy
from coevo.tasks.website import mini
from coevo.tasks.website.catalogue import ACTIONS, TEMPLATES
from coevo.tasks.website.shop import TOOLS
from coevo.tasks.website.world import HttpWebsiteWorld, WebsiteWorld, facts, open_website
from coevo.tasks.world import TERMINAL_TOOL

__all__ = ["Backend", "WebsiteFamily", "WebsitePolicy", "family", "http_family"]

_SEEDS = Path(__file__).resolve().parents[2] / "harness" / "seeds"


class Backend(StrEnum):
    """What serves the shop; worlds of both behave alike."""

    MEMORY = "memory"
    """The shop in this process."""
    HTTP = "http"
    """The HTTP application on loopback."""


@dataclass(frozen=True, slots=True)
class WebsitePolicy:
    """The reference policy in one style, for worlds of every size."""

    style: Style

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        if world.instance.size is Size.MINI:
            return mini_policy(self.style).move(world, visible, limited=limited)
        return DeskworkPolicy(self.style).move(facts(world), visible, limited=limited)


class WebsiteFamily:
    """Run a shop's admin side by the shop's rules: returns, orders, prices, coupons, reviews, help pages.

    Args:
        backend: What serves the shop of the sizes standard and long.
    """

    name = "website"
    world_version = "1"

    def __init__(self, backend: Backend = Backend.MEMORY) -> None:
        self._world = HttpWebsiteWorld if backend is Backend.HTTP else WebsiteWorld

    def templates(self, size: Size) -> tuple[str, ...]:
        """Template names in the order in which `diversity` takes them."""
        return tuple(mini.TEMPLATES if size is Size.MINI else TEMPLATES)

    def tools(self, size: Size) -> tuple[ToolSpec, ...]:
        """The tools of a size."""
        return mini.SPEC.tools if size is Size.MINI else TOOLS

    def conduct(self, size: Size) -> Conduct:
        """Which tools change what is graded, which arguments are free."""
        if size is Size.MINI:
            return mini.SPEC.conduct
        free = {"kind", "status", "query", "page", "part", "message", "round_to", "mode"}
        return Conduct(frozenset({*ACTIONS, TERMINAL_TOOL}), frozenset(free))

    def instance(self, stream: Stream, seed: int, size: Size, *, diversity: int = 1) -> TaskInstance:
        """The instance `seed` of a stream, its template drawn from the first `diversity`. Raises `ConfigError` out of range."""
        names = self.templates(size)
        if not 1 <= diversity <= len(names):
            raise ConfigError("diversity is out of range", seen=diversity, fix=f"use 1 to {len(names)} for {self.name} {size}")
        index = derive_seed(self.name, size, stream, seed, "template") % diversity
        return TaskInstance(self.name, names[index], Stream(stream), seed, Size(size))

    def open(self, instance: TaskInstance) -> World:
        """A fresh world. Raises `ConfigError` for another family's instance or an unknown template."""
        if instance.family != self.name:
            raise ConfigError("an instance belongs to another family", seen=instance.key, fix=f"open it with {instance.family!r}")
        return mini.open_mini(instance) if instance.size is Size.MINI else open_website(instance, kind=self._world)

    def policy(self, style: Style) -> Policy:
        """The reference policy in a style."""
        return WebsitePolicy(Style(style))

    def base_harness(self, size: Size) -> Path:
        """Folder of the harness that evolution starts from."""
        return _SEEDS / f"{self.name}-{size}"


family = WebsiteFamily()
"""The one instance; stateless."""

http_family = WebsiteFamily(Backend.HTTP)
"""The same family over the HTTP application: `coevo.tasks.website:http_family`."""
