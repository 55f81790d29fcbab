"""The shift check of an area, for a real LLM: devices in pages of five, a day of hourly readings each, the rules in documents.

The instruction names only the area. The agent finds the rules in force among superseded ones, drafts and other sites' rules, takes the
aggregates that they name, allows for calibrations, planned work and known tickets, asks technicians where the rules say so, settles every
device once (ticket, known ticket, silence or accept) and files the shift log. The size `long` has the same rules behind dozens of areas,
days of readings and documents in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from coevo.chat import ToolCall
from coevo.errors import ConfigError, ToolError
from coevo.tasks.anomaly.documents import Setting
from coevo.tasks.anomaly.rulebook import HOURS, Device, Rules, Window, aggregate, judge, readings
from coevo.tasks.family import Conduct, TaskInstance, World
from coevo.tasks.inquiry import BATCH
from coevo.tasks.paging import page_of
from coevo.tasks.rounds import SHELF_TOOLS, RoundWorld, Shelf, batch_of, plain, string, strings, tool_spec
from coevo.tasks.world import TERMINAL_TOOL, Toolbox

__all__ = ["CONDUCT", "MEASURES", "TOOLS", "AnomalyData", "AnomalyWorld", "Area", "closing_call", "facts"]

MEASURES = ("mean", "max", "min", "missing", "distinct")
"""What `get_statistics` gives."""

_AREAS_SHOWN = 10
_HOURS_SHOWN = 12
_TICKETS_SHOWN = 5

_DEVICE = string("device id")
_DEVICES = strings(f"up to {BATCH} device ids")
_PAGE = {"type": "integer", "minimum": 1, "description": "page number, from 1"}
_HOUR = {"type": "integer", "minimum": 0, "maximum": HOURS - 1, "description": "hour, 0 to 23"}
_DAY = {"type": "integer", "minimum": 0, "description": "days before the day of the check; 0 if not given"}
TOOLS = (
    tool_spec("list_areas", "Names of the areas of the site, one page at a time.", optional=("page",), page=_PAGE),
    tool_spec("list_devices", "Devices of an area, one page at a time.", optional=("page",), area=string("name of the area"), page=_PAGE),
    tool_spec("get_devices", "Kind, zone, unit and twin of devices.", devices=_DEVICES),
    tool_spec(
        "get_readings",
        f"Hourly readings, at most {_HOURS_SHOWN} hours at a time.",
        optional=("day",),
        devices=_DEVICES,
        start=_HOUR,
        end=_HOUR,
        day=_DAY,
    ),
    tool_spec(
        "get_statistics",
        "Mean, highest, lowest and numbers of missing and of distinct readings over the hours start to end, both included.",
        optional=("day",),
        devices=_DEVICES,
        start=_HOUR,
        end=_HOUR,
        day=_DAY,
    ),
    tool_spec("get_calibrations", "Calibration offsets of devices.", devices=_DEVICES),
    tool_spec("get_maintenance", "Planned work on the day of the check in the zones of devices.", devices=_DEVICES),
    tool_spec("get_tickets", "Earlier tickets of devices, latest first.", optional=("page",), devices=_DEVICES, page=_PAGE),
    *SHELF_TOOLS.values(),
    tool_spec(
        "open_ticket",
        "Open a ticket about a device. Can't be undone.",
        optional=("note",),
        device=_DEVICE,
        fault=string("code of the fault"),
        priority=string("code of the priority"),
        team=string("team that gets it"),
        value={"type": "number", "description": "what the rules ask for"},
        note=string("free text for the reader"),
    ),
    tool_spec("add_to_ticket", "Add today's finding to an earlier ticket. Can't be undone.", device=_DEVICE, ticket=string("ticket id")),
    tool_spec(
        "silence",
        "Silence a device. Can't be undone.",
        device=_DEVICE,
        reason=string("reason code"),
        hours={"type": "integer", "description": "for how long"},
    ),
    tool_spec("accept", "Accept a device: nothing is wrong. Can't be undone.", device=_DEVICE),
    tool_spec(
        "file_log",
        "File the shift log of an area. Can't be undone.",
        area=string("name of the area"),
        tickets={"type": "integer", "description": "tickets opened in this check"},
        missing={"type": "integer", "description": "missing readings"},
    ),
    tool_spec("finish", "End the check when everything is settled and logged."),
)
"""The family tools of this size, in the order in which harnesses show them."""

CONDUCT = Conduct(
    writes=frozenset({"open_ticket", "add_to_ticket", "silence", "accept", "file_log", TERMINAL_TOOL}),
    free=frozenset({"page", "part", "query", "message", "mode", "note", "tickets"}),
)


@dataclass(frozen=True, slots=True)
class Area:
    """Devices that are checked together."""

    name: str
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AnomalyData:
    """What never changes in one instance. Compared by identity, for caches.

    Attributes:
        area: The one of the check.
        areas: All, in directory order.
        twins: Sensors beside those of the area; they stand in no area.
        technicians: (zone, contact).
    """

    setting: Setting
    area: Area
    areas: tuple[Area, ...]
    twins: tuple[Device, ...]
    technicians: tuple[tuple[str, str], ...]
    rules: Rules
    shelf: Shelf
    part_chars: int

    def twin(self, one: Device) -> Device:
        """The sensor beside a device of the area."""
        return next(twin for twin in self.twins if twin.id == one.twin)


class AnomalyWorld(RoundWorld):
    """See the module docstring and `RoundWorld`."""

    toolbox: ClassVar[Toolbox] = Toolbox(TOOLS)
    _data: AnomalyData

    def __init__(self, instance: TaskInstance, *, instruction: str, data: AnomalyData) -> None:
        super().__init__(instance, instruction=instruction, data=data, shelf=data.shelf, part_chars=data.part_chars)
        self._devices = {one.id: one for area in data.areas for one in area.devices} | {one.id: one for one in data.twins}

    def expected(self) -> Mapping[str, ToolCall]:
        """See `RoundWorld`."""
        return {one.id: judge(self._data.rules, one, self._data.twin(one)).settle for one in self._data.area.devices}

    def closing(self) -> ToolCall:
        """See `RoundWorld`."""
        return closing_call(self._data)

    def items(self) -> Iterable[str]:
        """See `RoundWorld`."""
        return self._devices

    def reveal(self) -> AnomalyData:
        """See `facts`."""
        return self._data

    def tool_list_areas(self, page: int = 1) -> dict[str, Any]:
        """One page of names."""
        shown = page_of([area.name for area in self._data.areas], page, size=_AREAS_SHOWN)
        return {"areas": list(shown.items), "page": shown.number, "pages": shown.count}

    def tool_list_devices(self, area: str, page: int = 1) -> dict[str, Any]:
        """One page of ids and names."""
        shown = page_of(self._area(area).devices, page, size=BATCH)
        return {"devices": [{"device": one.id, "name": one.name} for one in shown.items], "page": shown.number, "pages": shown.count}

    def tool_get_devices(self, devices: list[str]) -> dict[str, Any]:
        """What a device is and where."""
        keys = ("kind", "zone", "unit", "twin")
        return {"devices": [{"device": one.id, **{key: getattr(one, key) for key in keys}} for one in self._batch(devices)]}

    def tool_get_readings(self, devices: list[str], start: int, end: int, day: int = 0) -> dict[str, Any]:
        """Readings in order of the hours; `missing` where there is none."""
        found, window = self._batch(devices), self._window(day, start, end)
        if end - start >= _HOURS_SHOWN:
            raise ToolError(f"bad arguments: at most {_HOURS_SHOWN} hours at a time")
        return {
            "readings": [{"device": one.id, "hours": _shown(readings(one, window))} for one in found],
            "day": day,
            "start": start,
            "end": end,
        }

    def tool_get_statistics(self, devices: list[str], start: int, end: int, day: int = 0) -> dict[str, Any]:
        """Five numbers per device, means rounded to three decimals; `none` where all readings are missing."""
        found, window = self._batch(devices), self._window(day, start, end)
        rows = [{"device": one.id, **{name: _or_none(aggregate(one, name, window)) for name in MEASURES}} for one in found]
        return {"statistics": rows, "day": day, "start": start, "end": end}

    def tool_get_calibrations(self, devices: list[str]) -> dict[str, Any]:
        """Offset and state, or none."""
        return {"calibrations": [{"device": one.id, **_calibration(one)} for one in self._batch(devices)]}

    def tool_get_maintenance(self, devices: list[str]) -> dict[str, Any]:
        """First and last hour of planned work, or none."""
        return {"maintenance": [{"device": one.id, **_work(one)} for one in self._batch(devices)]}

    def tool_get_tickets(self, devices: list[str], page: int = 1) -> dict[str, Any]:
        """Id, fault and state of earlier tickets; `none` where there are none."""
        return {"log": [{"device": one.id, **self._tickets(one, page)} for one in self._batch(devices)]}

    def tool_open_ticket(self, device: str, fault: str, priority: str, team: str, value: float, note: str = "") -> dict[str, Any]:
        """Open; can't be taken back."""
        return self.settle(device, "open_ticket", fault=fault, priority=priority, team=team, value=value, note=note)

    def tool_add_to_ticket(self, device: str, ticket: str) -> dict[str, Any]:
        """Add; can't be taken back."""
        known = self._devices.get(device)
        if known is not None and ticket not in [one.id for one in known.tickets]:
            raise ToolError("unknown ticket; get_tickets gives those of the device")
        return self.settle(device, "add_to_ticket", ticket=ticket)

    def tool_silence(self, device: str, reason: str, hours: int) -> dict[str, Any]:
        """Silence; can't be taken back."""
        return self.settle(device, "silence", reason=reason, hours=hours)

    def tool_accept(self, device: str) -> dict[str, Any]:
        """Accept; can't be taken back."""
        return self.settle(device, "accept")

    def tool_file_log(self, area: str, tickets: int, missing: int) -> dict[str, Any]:
        """Log; once."""
        return self.report(area=self._area(area).name, tickets=tickets, missing=missing)

    def _area(self, name: str) -> Area:
        found = next((one for one in self._data.areas if one.name.casefold() == name.casefold()), None)
        if found is None:
            raise ToolError("unknown area; list_areas gives the names")
        return found

    def _tickets(self, one: Device, page: int) -> dict[str, Any]:
        shown = page_of(one.tickets, page, size=_TICKETS_SHOWN)
        rows = [
            {"ticket": ticket.id, "fault": self._data.rules.code(ticket.fault), "state": "open" if ticket.open else "closed"}
            for ticket in shown.items
        ]
        return {"tickets": rows or "none", "page": shown.number, "pages": shown.count}

    def _window(self, day: int, start: int, end: int) -> Window:
        days = len(self._data.area.devices[0].days)
        if day >= days:
            raise ToolError(f"there are no readings of day {day}, the oldest is {days - 1}")
        if end < start:
            raise ToolError("bad arguments: end lies before start")
        return Window(day, start, end)

    def _batch(self, devices: list[str]) -> list[Device]:
        wanted = batch_of(devices, "devices")
        if any(one not in self._devices for one in wanted):
            raise ToolError("unknown device; list_devices gives ids")
        return [self._devices[one] for one in wanted]


def _shown(taken: Iterable[float | None]) -> list[int | float | str]:
    return ["missing" if one is None else plain(one) for one in taken]


def _or_none(value: float | None) -> int | float | str:
    return "none" if value is None else plain(value)


def _calibration(one: Device) -> dict[str, Any]:
    if not one.offset:
        return {"offset": "none"}
    return {"offset": plain(one.offset), "state": "pending" if one.pending else "applied"}


def _work(one: Device) -> dict[str, Any]:
    return {"work": "none"} if one.work is None else {"work": "planned", "from": one.work[0], "to": one.work[1]}


def closing_call(data: AnomalyData) -> ToolCall:
    """The shift log that is due."""
    calls = [judge(data.rules, one, data.twin(one)).settle for one in data.area.devices]
    missing = sum(int(aggregate(one, "missing", data.rules.check) or 0) for one in data.area.devices)
    return ToolCall("file_log", {"area": data.area.name, "tickets": sum(call.name == "open_ticket" for call in calls), "missing": missing})


def facts(world: World) -> AnomalyData:
    """Look behind the tools. Raises `ConfigError` for a world of another kind."""
    if not isinstance(world, AnomalyWorld):
        raise ConfigError("only a shift check has these facts", seen=type(world).__name__, fix="open it with the anomaly family")
    return world.reveal()
