"""The payroll family: its sizes, templates, worlds, reference policies and base harnesses behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coevo.chat import Message, ToolSpec
from coevo.errors import ConfigError
from coevo.identity import derive_seed
from coevo.tasks.family import Move, Policy, Size, Stream, Style, TaskInstance, Unrecoverable, World
from coevo.tasks.payroll import mini, standard
from coevo.tasks.payroll.mini_policy import MiniPlanFirst, MiniReactive
from coevo.tasks.payroll.standard_policy import StandardPolicy

__all__ = ["PayrollFamily", "PayrollPolicy", "family"]

_SEEDS = Path(__file__).resolve().parents[2] / "harness" / "seeds"


@dataclass(frozen=True, slots=True)
class PayrollPolicy:
    """The reference policy in one style, for worlds of every size."""

    style: Style

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        return self._of(world.instance.size).move(world, visible, limited=limited)

    def _of(self, size: Size) -> Policy:
        if size is Size.STANDARD:
            return StandardPolicy(self.style)
        return MiniReactive() if self.style is Style.REACTIVE else MiniPlanFirst()


class PayrollFamily:
    """Audit a department's payroll: pay what is due under the right code, escalate what must not be paid."""

    name = "payroll"
    world_version = "1"

    def templates(self, size: Size) -> tuple[str, ...]:
        """Template names in the order in which `diversity` takes them."""
        return tuple(mini.TEMPLATES if size is Size.MINI else standard.TEMPLATES)

    def tools(self, size: Size) -> tuple[ToolSpec, ...]:
        """The tools of a size."""
        return mini.TOOLS if size is Size.MINI else standard.TOOLS

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
        return mini.open_mini(instance) if instance.size is Size.MINI else standard.open_standard(instance)

    def policy(self, style: Style) -> Policy:
        """The reference policy in a style."""
        return PayrollPolicy(Style(style))

    def base_harness(self, size: Size) -> Path:
        """Folder of the harness that evolution starts from."""
        return _SEEDS / f"{self.name}-{size}"


family = PayrollFamily()
"""The one instance; stateless."""
