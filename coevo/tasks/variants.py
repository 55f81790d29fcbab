"""Families as tables: one variant per size, and the parts of the family protocol that are the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from coevo.chat import Message, ToolSpec
from coevo.errors import ConfigError
from coevo.identity import derive_seed
from coevo.tasks.family import Conduct, Move, Policy, Size, Stream, Style, TaskInstance, Unrecoverable, World

__all__ = ["SEEDS", "Variant", "VariantFamily", "VariantPolicy"]

SEEDS = Path(__file__).resolve().parents[1] / "harness" / "seeds"
"""Folder of the base harnesses that ship: `FAMILY-SIZE` each."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A family in one size.

    Attributes:
        templates: Names in the order in which `diversity` takes them.
        tools: In the order in which harnesses show them.
        conduct: See `Conduct`.
        open: Generates and opens one instance; raises `ConfigError` for an unknown template.
        policy: The reference policy in a style.
    """

    templates: tuple[str, ...]
    tools: tuple[ToolSpec, ...]
    conduct: Conduct
    open: Callable[[TaskInstance], World]
    policy: Callable[[Style], Policy]


@dataclass(frozen=True, slots=True)
class VariantPolicy:
    """The reference policy in one style, for worlds of every size."""

    style: Style
    variants: Mapping[Size, Variant]

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        return self.variants[world.instance.size].policy(self.style).move(world, visible, limited=limited)


class VariantFamily:
    """A `TaskFamily` over a table of variants; stateless.

    Args:
        name, world_version: See `TaskFamily`.
        variants: One per size that the family has.
        seeds: Folder of its base harnesses `NAME-SIZE`.
    """

    def __init__(self, name: str, world_version: str, variants: Mapping[Size, Variant], *, seeds: Path = SEEDS) -> None:
        self.name, self.world_version = name, world_version
        self._variants, self._seeds = MappingProxyType(dict(variants)), seeds

    def templates(self, size: Size) -> tuple[str, ...]:
        """Template names in the order in which `diversity` takes them; empty for a size that the family does not have."""
        variant = self._variants.get(Size(size))
        return () if variant is None else variant.templates

    def tools(self, size: Size) -> tuple[ToolSpec, ...]:
        """The tools of a size."""
        return self._variant(size).tools

    def conduct(self, size: Size) -> Conduct:
        """What changes grades and what is free to choose."""
        return self._variant(size).conduct

    def instance(self, stream: Stream, seed: int, size: Size, *, diversity: int = 1) -> TaskInstance:
        """The instance `seed` of a stream, its template drawn from the first `diversity`. Raises `ConfigError` out of range."""
        names = self._variant(size).templates
        if not 1 <= diversity <= len(names):
            raise ConfigError("diversity is out of range", seen=diversity, fix=f"use 1 to {len(names)} for {self.name} {size}")
        index = derive_seed(self.name, size, stream, seed, "template") % diversity
        return TaskInstance(self.name, names[index], Stream(stream), seed, Size(size))

    def open(self, instance: TaskInstance) -> World:
        """A fresh world. Raises `ConfigError` for another family's instance or an unknown template."""
        if instance.family != self.name:
            raise ConfigError("an instance belongs to another family", seen=instance.key, fix=f"open it with {instance.family!r}")
        return self._variant(instance.size).open(instance)

    def policy(self, style: Style) -> Policy:
        """The reference policy in a style."""
        return VariantPolicy(Style(style), self._variants)

    def base_harness(self, size: Size) -> Path:
        """Folder of the harness that evolution starts from."""
        return self._seeds / f"{self.name}-{Size(size)}"

    def _variant(self, size: Size) -> Variant:
        variant = self._variants.get(Size(size))
        if variant is None:
            raise ConfigError(f"the family {self.name} has no such size", seen=str(size), fix=f"use {', '.join(self._variants)}")
        return variant
