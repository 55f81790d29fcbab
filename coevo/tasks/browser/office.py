"""The data behind the portal: records, handbook and directory of one instance, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from coevo.errors import ConfigError, nearest
from coevo.tasks.browser.catalogue import DESKS, TEMPLATES
from coevo.tasks.browser.paperwork import PEOPLE, TODAY
from coevo.tasks.deskwork import Desk
from coevo.tasks.deskwork_data import DeskData, Setting, draw_data
from coevo.tasks.family import TaskInstance

__all__ = ["OfficeData", "draw_office"]

_SETTING = Setting(
    company="portal",
    roles={
        "security": "security officer",
        "travel": "travel desk",
        "facilities": "facilities",
        "accounts": "accounts payable",
        "training": "training office",
    },
    people=PEOPLE,
    asides=lambda random, desk: {"status": random.choice(("approved", "returned", "settled", "withdrawn"))},
    long_per_desk=300,
)


@dataclass(frozen=True)
class OfficeData(DeskData):
    """What never changes in one instance of the portal."""

    table: ClassVar[Mapping[str, Desk]] = DESKS


def draw_office(instance: TaskInstance) -> tuple[str, OfficeData]:
    """Instruction and data of one instance. Raises `ConfigError` for an unknown template."""
    template = TEMPLATES.get(instance.template)
    if template is None:
        raise ConfigError("unknown browser template", seen=instance.template, fix=nearest(instance.template, TEMPLATES))
    request, data = draw_data(OfficeData, instance, template, _SETTING)
    return f"{request} Today is {TODAY.day} October {TODAY.year}.", data
