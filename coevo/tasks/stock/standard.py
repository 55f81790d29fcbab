"""The alert round of a desk, for a real LLM: a watch list in pages of five, quotes, events and earlier alerts apart, rules in documents.

The instruction names only the desk. The agent finds the rules in force among superseded ones, drafts and other desks' rules, computes moves
and exposures, asks people where the rules say so, settles every instrument once (alert, mute, escalate or clear) and files the report. The
size `long` has the same rules behind dozens of desks, months of alerts and documents in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from coevo.chat import ToolCall
from coevo.errors import ConfigError, ToolError
from coevo.tasks.family import Conduct, TaskInstance, World
from coevo.tasks.inquiry import BATCH
from coevo.tasks.paging import page_of
from coevo.tasks.rounds import SHELF_TOOLS, RoundWorld, Shelf, batch_of, plain, string, strings, tool_spec
from coevo.tasks.stock.documents import Setting
from coevo.tasks.stock.rulebook import CURRENCIES, Position, Rules, judge
from coevo.tasks.world import TERMINAL_TOOL, Toolbox

__all__ = ["ALERTS_SHOWN", "CONDUCT", "TOOLS", "Desk", "StockData", "StockWorld", "facts"]

ALERTS_SHOWN = 6
"""Earlier alerts of an instrument on one page."""

_DESKS_SHOWN = 10

_INSTRUMENT = string("instrument id")
_INSTRUMENTS = strings(f"up to {BATCH} instrument ids")
_NOTE = string("free text for the reader")
_PAGE = {"type": "integer", "minimum": 1, "description": "page number, from 1"}
TOOLS = (
    tool_spec("list_desks", "Names of the desks, one page at a time.", optional=("page",), page=_PAGE),
    tool_spec(
        "list_watch",
        "Instruments on a desk's watch list, one page at a time.",
        optional=("page",),
        desk=string("name of the desk"),
        page=_PAGE,
    ),
    tool_spec("get_positions", "Kind, quantity, currency and manager of instruments.", instruments=_INSTRUMENTS),
    tool_spec("get_quotes", "Previous close, last price, age in minutes, status and turnover of instruments.", instruments=_INSTRUMENTS),
    tool_spec("get_events", "Corporate events of instruments today.", instruments=_INSTRUMENTS),
    tool_spec(
        "get_alert_log",
        "Alerts that were sent about instruments before this round, latest first.",
        optional=("page",),
        instruments=_INSTRUMENTS,
        page=_PAGE,
    ),
    tool_spec("get_currency_board", "Rates of currencies."),
    *SHELF_TOOLS.values(),
    tool_spec(
        "send_alert",
        "Alert one person about an instrument. Can't be undone.",
        optional=("note",),
        instrument=_INSTRUMENT,
        severity=string("code of the severity"),
        move={"type": "number", "description": "move in percent, with its sign"},
        recipient=string("contact id"),
        note=_NOTE,
    ),
    tool_spec(
        "mute",
        "Mute an instrument for this round. Can't be undone.",
        optional=("note",),
        instrument=_INSTRUMENT,
        reason=string("reason code"),
        note=_NOTE,
    ),
    tool_spec(
        "escalate",
        "Escalate an instrument to the data team. Can't be undone.",
        optional=("note",),
        instrument=_INSTRUMENT,
        reason=string("reason code"),
        note=_NOTE,
    ),
    tool_spec("clear", "Clear an instrument: no alert is due. Can't be undone.", instrument=_INSTRUMENT),
    tool_spec(
        "file_report",
        "File the report of the round. Can't be undone.",
        desk=string("name of the desk"),
        alerts={"type": "integer", "description": "alerts sent in this round"},
        exposure={"type": "number", "description": "sum of exposures"},
    ),
    tool_spec("finish", "End the round when everything is settled and reported."),
)
"""The family tools of this size, in the order in which harnesses show them."""

CONDUCT = Conduct(
    writes=frozenset({"send_alert", "mute", "escalate", "clear", "file_report", TERMINAL_TOOL}),
    free=frozenset({"page", "part", "query", "message", "mode", "note", "alerts"}),
)


@dataclass(frozen=True, slots=True)
class Desk:
    """A watch list."""

    name: str
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StockData:
    """What never changes in one instance; `desks` in directory order, `desk` is the one of the round. Compared by identity, for caches."""

    setting: Setting
    desk: Desk
    desks: tuple[Desk, ...]
    rules: Rules
    shelf: Shelf
    part_chars: int


class StockWorld(RoundWorld):
    """See the module docstring and `RoundWorld`."""

    toolbox: ClassVar[Toolbox] = Toolbox(TOOLS)
    _data: StockData

    def __init__(self, instance: TaskInstance, *, instruction: str, data: StockData) -> None:
        super().__init__(instance, instruction=instruction, data=data, shelf=data.shelf, part_chars=data.part_chars)
        self._positions = {one.id: one for desk in data.desks for one in desk.positions}

    def expected(self) -> Mapping[str, ToolCall]:
        """See `RoundWorld`."""
        return {one.id: judge(self._data.rules, one).settle for one in self._data.desk.positions}

    def closing(self) -> ToolCall:
        """See `RoundWorld`."""
        return closing_call(self._data)

    def items(self) -> Iterable[str]:
        """See `RoundWorld`."""
        return self._positions

    def reveal(self) -> StockData:
        """See `facts`."""
        return self._data

    def tool_list_desks(self, page: int = 1) -> dict[str, Any]:
        """One page of names."""
        shown = page_of([desk.name for desk in self._data.desks], page, size=_DESKS_SHOWN)
        return {"desks": list(shown.items), "page": shown.number, "pages": shown.count}

    def tool_list_watch(self, desk: str, page: int = 1) -> dict[str, Any]:
        """One page of ids and names."""
        shown = page_of(self._desk(desk).positions, page, size=BATCH)
        return {
            "instruments": [{"instrument": one.id, "name": one.name} for one in shown.items],
            "page": shown.number,
            "pages": shown.count,
        }

    def tool_get_positions(self, instruments: list[str]) -> dict[str, Any]:
        """What the desk holds."""
        keys = ("kind", "quantity", "currency", "manager")
        return {"positions": [{"instrument": one.id, **{key: getattr(one, key) for key in keys}} for one in self._batch(instruments)]}

    def tool_get_quotes(self, instruments: list[str]) -> dict[str, Any]:
        """Prices of now."""
        return {"quotes": [{"instrument": one.id, **_quote(one)} for one in self._batch(instruments)]}

    def tool_get_events(self, instruments: list[str]) -> dict[str, Any]:
        """Dividend (amount per share), split (ratio), earnings, or none."""
        return {"events": [{"instrument": one.id, **_event(one)} for one in self._batch(instruments)]}

    def tool_get_alert_log(self, instruments: list[str], page: int = 1) -> dict[str, Any]:
        """Hours ago and severity code of earlier alerts; `none` where there are none."""
        return {"log": [{"instrument": one.id, **self._alerts(one, page)} for one in self._batch(instruments)]}

    def tool_get_currency_board(self) -> dict[str, Any]:
        """Price of one unit in the home currency."""
        return {"fx_board": {currency: plain(self._data.rules.rate(currency)) for currency in CURRENCIES}}

    def tool_send_alert(self, instrument: str, severity: str, move: float, recipient: str, note: str = "") -> dict[str, Any]:
        """Alert; can't be taken back."""
        return self.settle(instrument, "send_alert", severity=severity, move=move, recipient=recipient, note=note)

    def tool_mute(self, instrument: str, reason: str, note: str = "") -> dict[str, Any]:
        """Mute; can't be taken back."""
        return self.settle(instrument, "mute", reason=reason, note=note)

    def tool_escalate(self, instrument: str, reason: str, note: str = "") -> dict[str, Any]:
        """Escalate; can't be taken back."""
        return self.settle(instrument, "escalate", reason=reason, note=note)

    def tool_clear(self, instrument: str) -> dict[str, Any]:
        """Clear; can't be taken back."""
        return self.settle(instrument, "clear")

    def tool_file_report(self, desk: str, alerts: int, exposure: float) -> dict[str, Any]:
        """Report; once."""
        return self.report(desk=self._desk(desk).name, alerts=alerts, exposure=exposure)

    def _desk(self, name: str) -> Desk:
        found = next((one for one in self._data.desks if one.name.casefold() == name.casefold()), None)
        if found is None:
            raise ToolError("unknown desk; list_desks gives the names")
        return found

    def _alerts(self, one: Position, page: int) -> dict[str, Any]:
        shown = page_of(one.alerts, page, size=ALERTS_SHOWN)
        entries = [{"hours": hours, "severity": self._data.rules.code(severity)} for hours, severity in shown.items]
        return {"alerts": entries or "none", "page": shown.number, "pages": shown.count}

    def _batch(self, instruments: list[str]) -> list[Position]:
        unknown = next((one for one in batch_of(instruments, "instruments") if one not in self._positions), None)
        if unknown is not None:
            raise ToolError("unknown instrument; list_watch gives ids")
        return [self._positions[one] for one in batch_of(instruments, "instruments")]


def _quote(one: Position) -> dict[str, Any]:
    status = "halted" if one.halted else "trading"
    return {"close": plain(one.close), "last": plain(one.last), "minutes": one.minutes, "status": status, "turnover": plain(one.turnover)}


def _event(one: Position) -> dict[str, Any]:
    kind, value = one.event
    return {"event": kind, "value": plain(value)} if kind in ("dividend", "split") else {"event": kind}


def closing_call(data: StockData) -> ToolCall:
    """The report that is due."""
    verdicts = [judge(data.rules, one) for one in data.desk.positions]
    alerted = [verdict.exposure[1] for verdict in verdicts if verdict.settle.name == "send_alert"]
    return ToolCall("file_report", {"desk": data.desk.name, "alerts": len(alerted), "exposure": sum(alerted)})


def facts(world: World) -> StockData:
    """Look behind the tools. Raises `ConfigError` for a world of another kind."""
    if not isinstance(world, StockWorld):
        raise ConfigError("only an alert round has these facts", seen=type(world).__name__, fix="open it with the stock family")
    return world.reveal()
