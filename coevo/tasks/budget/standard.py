"""The budget round of a unit, for a real LLM: requests in pages of five, balances, vendors and files apart, policies in documents.

The instruction names only the unit. The agent finds the policies in force, checks each request in their order, asks requesters and owners
where they say so, keeps the balances, settles every request once (approve, reject or escalate) and closes the round. The size `long` has
the same rules among forty units and a hundred long documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from coevo.chat import ToolCall
from coevo.errors import ConfigError, ToolError
from coevo.tasks.budget.rulebook import CURRENCIES, Centre, Request, Rules, Vendor, Verdict, judge_round
from coevo.tasks.family import Conduct, TaskInstance, World
from coevo.tasks.inquiry import BATCH
from coevo.tasks.paging import page_of
from coevo.tasks.rounds import SHELF_TOOLS, RoundWorld, Shelf, batch_of, plain, string, strings, tool_spec
from coevo.tasks.world import TERMINAL_TOOL, Toolbox

__all__ = ["CONDUCT", "TOOLS", "BudgetData", "BudgetWorld", "Unit", "closing_call", "facts", "verdicts"]

_UNITS_SHOWN = 10
_REQUEST = string("request id")
_REQUESTS = strings(f"up to {BATCH} request ids")
_NOTE = string("free text for the reader")
_PAGE = {"type": "integer", "minimum": 1, "description": "page number, from 1"}
TOOLS = (
    tool_spec("list_units", "Names of the units, one page at a time.", optional=("page",), page=_PAGE),
    tool_spec(
        "list_requests",
        "Open requests of a unit in the order in which they are served, one page at a time.",
        optional=("page",),
        unit=string("name of the unit"),
        page=_PAGE,
    ),
    tool_spec("get_requests", "Category, sum, cost centre, vendor and requester of requests.", requests=_REQUESTS),
    tool_spec("get_files", "What is on file for requests: number of quotes, contract.", requests=_REQUESTS),
    tool_spec("get_history", "Decisions on the same requests in earlier rounds.", requests=_REQUESTS),
    tool_spec("get_balances", "Cost centres of requests: status, owner and sums at the start of the round.", requests=_REQUESTS),
    tool_spec("get_vendors", "Vendors of requests and their standing.", requests=_REQUESTS),
    tool_spec("get_currency_board", "Rates of currencies."),
    *SHELF_TOOLS.values(),
    tool_spec(
        "approve",
        "Approve a request. Can't be undone.",
        optional=("note",),
        request=_REQUEST,
        amount={"type": "number", "description": "granted sum in EUR"},
        approver=string("contact id of whoever signs"),
        note=_NOTE,
    ),
    tool_spec(
        "reject", "Reject a request. Can't be undone.", optional=("note",), request=_REQUEST, reason=string("reason code"), note=_NOTE
    ),
    tool_spec(
        "escalate",
        "Pass a request on to the board. Can't be undone.",
        optional=("note",),
        request=_REQUEST,
        reason=string("reason code"),
        note=_NOTE,
    ),
    tool_spec(
        "close_round",
        "Close the round of a unit. Can't be undone.",
        unit=string("name of the unit"),
        approved={"type": "integer", "description": "requests approved in this round"},
        total={"type": "number", "description": "sum of what was granted, in EUR"},
    ),
    tool_spec("finish", "End the work when everything is settled and the round is closed."),
)
"""The family tools of this size, in the order in which harnesses show them."""

CONDUCT = Conduct(
    writes=frozenset({"approve", "reject", "escalate", "close_round", TERMINAL_TOOL}),
    free=frozenset({"page", "part", "query", "message", "mode", "note", "approved"}),
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit's open requests."""

    name: str
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BudgetData:
    """What never changes in one instance; `unit` is the one of the round. Compared by identity, for caches."""

    unit: Unit
    units: tuple[Unit, ...]
    centres: tuple[Centre, ...]
    vendors: tuple[Vendor, ...]
    rules: Rules
    shelf: Shelf
    part_chars: int


@lru_cache(maxsize=16)
def verdicts(data: BudgetData) -> tuple[Verdict, ...]:
    """How the round must be settled, in list order."""
    return judge_round(data.rules, data.unit.requests, {one.id: one for one in data.centres}, {one.id: one for one in data.vendors})


def closing_call(data: BudgetData) -> ToolCall:
    """The report that is due."""
    granted = [one.granted for one in verdicts(data) if one.granted is not None]
    return ToolCall("close_round", {"unit": data.unit.name, "approved": len(granted), "total": sum(granted)})


class BudgetWorld(RoundWorld):
    """See the module docstring and `RoundWorld`."""

    toolbox: ClassVar[Toolbox] = Toolbox(TOOLS)
    _data: BudgetData

    def __init__(self, instance: TaskInstance, *, instruction: str, data: BudgetData) -> None:
        super().__init__(instance, instruction=instruction, data=data, shelf=data.shelf, part_chars=data.part_chars)
        self._requests = {one.id: one for unit in data.units for one in unit.requests}
        self._centres = {one.id: one for one in data.centres}
        self._vendors = {one.id: one for one in data.vendors}

    def expected(self) -> Mapping[str, ToolCall]:
        """See `RoundWorld`."""
        return {one.id: verdict.settle for one, verdict in zip(self._data.unit.requests, verdicts(self._data), strict=True)}

    def closing(self) -> ToolCall:
        """See `RoundWorld`."""
        return closing_call(self._data)

    def items(self) -> Iterable[str]:
        """See `RoundWorld`."""
        return self._requests

    def reveal(self) -> BudgetData:
        """See `facts`."""
        return self._data

    def tool_list_units(self, page: int = 1) -> dict[str, Any]:
        """One page of names."""
        shown = page_of([unit.name for unit in self._data.units], page, size=_UNITS_SHOWN)
        return {"units": list(shown.items), "page": shown.number, "pages": shown.count}

    def tool_list_requests(self, unit: str, page: int = 1) -> dict[str, Any]:
        """One page of ids and titles."""
        found = next((one for one in self._data.units if one.name.casefold() == unit.casefold()), None)
        if found is None:
            raise ToolError("unknown unit; list_units gives the names")
        shown = page_of(found.requests, page, size=BATCH)
        listed = [{"request": one.id, "title": one.title} for one in shown.items]
        return {"requests": listed, "page": shown.number, "pages": shown.count}

    def tool_get_requests(self, requests: list[str]) -> dict[str, Any]:
        """What is asked for."""
        keys = ("category", "amount", "currency", "centre", "vendor", "requester")
        return {"requests": [{"request": one.id, **{key: getattr(one, key) for key in keys}} for one in self._batch(requests)]}

    def tool_get_files(self, requests: list[str]) -> dict[str, Any]:
        """What is on file."""
        return {
            "files": [
                {"request": one.id, "quotes": one.quotes, "contract": "signed" if one.contract else "none"} for one in self._batch(requests)
            ]
        }

    def tool_get_history(self, requests: list[str]) -> dict[str, Any]:
        """Earlier decisions."""
        return {"history": [{"request": one.id, "earlier": one.earlier} for one in self._batch(requests)]}

    def tool_get_balances(self, requests: list[str]) -> dict[str, Any]:
        """Sums in the home currency."""
        keys = ("name", "status", "owner", "budget", "spent", "committed")
        pairs = [(one, self._centres[one.centre]) for one in self._batch(requests)]
        return {"balances": [{"request": one.id, "centre": it.id, **{key: getattr(it, key) for key in keys}} for one, it in pairs]}

    def tool_get_vendors(self, requests: list[str]) -> dict[str, Any]:
        """Listed or blocked."""
        pairs = [(one, self._vendors[one.vendor]) for one in self._batch(requests)]
        return {"vendors": [{"request": one.id, "vendor": it.id, "name": it.name, "standing": it.standing} for one, it in pairs]}

    def tool_get_currency_board(self) -> dict[str, Any]:
        """Price of one unit in the home currency."""
        return {"fx_board": {currency: plain(self._data.rules.rate(currency)) for currency in CURRENCIES}}

    def tool_approve(self, request: str, amount: float, approver: str, note: str = "") -> dict[str, Any]:
        """Approve; can't be taken back."""
        return self.settle(request, "approve", amount=amount, approver=approver, note=note)

    def tool_reject(self, request: str, reason: str, note: str = "") -> dict[str, Any]:
        """Reject; can't be taken back."""
        return self.settle(request, "reject", reason=reason, note=note)

    def tool_escalate(self, request: str, reason: str, note: str = "") -> dict[str, Any]:
        """Escalate; can't be taken back."""
        return self.settle(request, "escalate", reason=reason, note=note)

    def tool_close_round(self, unit: str, approved: int, total: float) -> dict[str, Any]:
        """Close; once."""
        return self.report(unit=unit, approved=approved, total=total)

    def _batch(self, requests: list[str]) -> list[Request]:
        if any(one not in self._requests for one in batch_of(requests, "requests")):
            raise ToolError("unknown request; list_requests gives ids")
        return [self._requests[one] for one in batch_of(requests, "requests")]


def facts(world: World) -> BudgetData:
    """Look behind the tools. Raises `ConfigError` for a world of another kind."""
    if not isinstance(world, BudgetWorld):
        raise ConfigError("only a budget round has these facts", seen=type(world).__name__, fix="open it with the budget family")
    return world.reveal()
