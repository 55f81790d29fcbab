"""The browser family: its sizes, templates, worlds, reference policies and base harnesses behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from coevo.chat import Message, ToolSpec
from coevo.errors import ConfigError
from coevo.identity import derive_seed
from coevo.tasks.browser import mini
from coevo.tasks.browser.catalogue import TEMPLATES
from coevo.tasks.browser.world import TOOLS, BrowserWorld, ChromiumWorld, facts, open_browser
from coevo.tasks.deskwork_policy import DeskworkPolicy
from coevo.tasks.family import Conduct, Move, Policy, Size, Stream, Style, TaskInstance, Unrecoverable, World
from coevo.tasks.miniature_policy import mini_policy
from coevo.tasks.world import TERMINAL_TOOL

__all__ = ["Backend", "BrowserFamily", "BrowserPolicy", "chromium_family", "family"]

_SEEDS = Path(__file__).resolve().parents[2] / "harness" / "seeds"


class Backend(StrEnum):
    """What shows the portal; worlds of both behave alike."""

    MEMORY = "memory"
    """The fast browser of this process."""
    CHROMIUM = "chromium"
    """Headless Chromium on the portal served on loopback; needs the extra `browser` and a Chromium."""


@dataclass(frozen=True, slots=True)
class BrowserPolicy:
    """The reference policy in one style, for worlds of every size."""

    style: Style

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        if world.instance.size is Size.MINI:
            return mini_policy(self.style).move(world, visible, limited=limited)
        return DeskworkPolicy(self.style).move(facts(world), visible, limited=limited)


class BrowserFamily:
    """Work through a company's portal by the handbook: claims, invoices, access requests, room bookings, tickets.

    Args:
        backend: What shows the portal of the sizes standard and long.
    """

    name = "browser"
    world_version = "1"

    def __init__(self, backend: Backend = Backend.MEMORY) -> None:
        self._world = ChromiumWorld if backend is Backend.CHROMIUM else BrowserWorld

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
        writes = {"click", TERMINAL_TOOL}
        return Conduct(frozenset(writes), frozenset({"round_to", "mode"}))

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
        return mini.open_mini(instance) if instance.size is Size.MINI else open_browser(instance, kind=self._world)

    def policy(self, style: Style) -> Policy:
        """The reference policy in a style."""
        return BrowserPolicy(Style(style))

    def base_harness(self, size: Size) -> Path:
        """Folder of the harness that evolution starts from."""
        return _SEEDS / f"{self.name}-{size}"


family = BrowserFamily()
"""The one instance; stateless."""

chromium_family = BrowserFamily(Backend.CHROMIUM)
"""The same family in a real browser: `coevo.tasks.browser:chromium_family`."""
