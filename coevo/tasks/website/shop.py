"""The shop itself: its records, shelf and staff as plain data, and the one implementation of every tool.

`Shop.perform` serves the in-process world directly and the HTTP application behind its routes. The records never change; what happened to
them is kept as changes, record id -> changed fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from coevo.chat import ToolSpec
from coevo.errors import ConfigError, ToolError, nearest
from coevo.tasks.calculator import CALCULATE, calculate
from coevo.tasks.contacts import Contacts
from coevo.tasks.deskwork import Action, Desk, Record
from coevo.tasks.deskwork_data import DeskData, Setting, draw_data
from coevo.tasks.family import TaskInstance
from coevo.tasks.library import Library
from coevo.tasks.paging import page_of
from coevo.tasks.website.catalogue import ACTIONS, DESKS, TEMPLATES
from coevo.tasks.website.sales import TODAY

__all__ = ["KINDS", "TOOLS", "Shop", "ShopData", "draw_shop"]

_Changes = dict[str, dict[str, Any]]
KINDS = ("returns", "orders", "customers", "products", "coupons", "reviews", "pages")
"""Collections of records."""

PAGE_SIZE = 6
"""Records per page of a list."""

_SUMMARY = ("status", "category", "campaign", "title", "stars", "name")
_ASIDE: Mapping[str, Callable[[Random], dict[str, Any]]] = {
    "returns": lambda random: {"status": random.choice(("refunded", "rejected"))},
    "orders": lambda random: {"status": random.choice(("released", "delivered", "cancelled"))},
    "prices": lambda random: {"category": random.choice(("vases", "frames", "hooks", "trays")), "name": "discontinued line"},
    "coupons": lambda random: {"campaign": random.choice(("evergreen", "loyalty", "press"))},
    "reviews": lambda random: {"status": random.choice(("published", "hidden"))},
    "pages": lambda random: {"status": random.choice(("draft", "archived"))},
}
"""What takes a record out of a desk's queue."""

_SETTING = Setting(
    company="shop",
    roles={
        "returns": "returns hall",
        "care": "customer care",
        "accounts": "accounts",
        "photo": "photo studio",
        "purchasing": "purchasing",
        "desk": "front desk",
    },
    people=("Ines", "Jorma", "Katya", "Luis", "Maren", "Nils", "Oona", "Pavel", "Quirin", "Rosa"),
    asides=lambda random, desk: _ASIDE[desk](random),
    long_per_desk=200,
)


def _tool(name: str, description: str, optional: tuple[str, ...] = (), **properties: dict[str, Any]) -> ToolSpec:
    required = [one for one in properties if one not in optional]
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": required, "additionalProperties": False})


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


_PAGE = {"type": "integer", "minimum": 1, "description": "page number, from 1"}
_CODE = _string("reason code from the list of codes")
_FIELDS: Mapping[str, dict[str, Any]] = {
    "amount": {"type": "number", "description": "sum to refund"},
    "price": {"type": "number", "description": "new price"},
    "code": _CODE,
    "carrier": _string("name of the carrier"),
    "percent": {"type": "integer", "description": "new discount in percent"},
    "uses": {"type": "integer", "description": "new number of uses"},
    "section": _string("name of the section, for example section_1"),
    "old": _string("what stands there now"),
    "new": _string("what takes its place"),
}
_ABOUT = {
    "refund_return": "Refund a return request. Can't be undone.",
    "reject_return": "Reject a return request. Can't be undone.",
    "escalate_return": "Pass a return request on to the manager. Can't be undone.",
    "release_order": "Release a waiting order to a carrier. Can't be undone.",
    "hold_order": "Hold a waiting order. Can't be undone.",
    "cancel_order": "Cancel a waiting order. Can't be undone.",
    "set_price": "Set the price of a product.",
    "flag_product": "Flag a product for purchasing. Can't be undone.",
    "update_coupon": "Change the discount or the uses of a coupon.",
    "archive_coupon": "Archive a coupon. Can't be undone.",
    "publish_review": "Publish a review. Can't be undone.",
    "hide_review": "Hide a review. Can't be undone.",
    "forward_review": "Forward a review to customer care. Can't be undone.",
    "edit_page": "Replace words in one section of a page.",
    "flag_page": "Flag a page for its owner. Can't be undone.",
}


def _action_tool(action: Action) -> ToolSpec:
    optional = action.fields if action.tool == "update_coupon" else ()
    fields = {name: _FIELDS[name] for name in action.fields}
    return _tool(action.tool, _ABOUT[action.tool], optional, **{action.key: _string(f"{action.key} id")}, **fields)


TOOLS = (
    _tool(
        "list_records",
        "Records of one kind, one page at a time; status and query narrow the list.",
        ("status", "query", "page"),
        kind={"type": "string", "enum": list(KINDS), "description": "what to list"},
        status=_string("only records with this status"),
        query=_string("only records whose line in the list has this word"),
        page=_PAGE,
    ),
    _tool("get_record", "All fields of one record.", kind={"type": "string", "enum": list(KINDS)}, record=_string("record id")),
    _tool("search_documents", "Find documents of the company by words.", ("page",), query=_string("words to look for"), page=_PAGE),
    _tool("read_document", "Text of one document; long ones come in parts.", ("part",), document=_string("document id"), part=_PAGE),
    _tool("find_contacts", "Find colleagues by name or role.", ("page",), query=_string("words to look for"), page=_PAGE),
    _tool(
        "ask_contact",
        "Write to a colleague and read the reply.",
        contact=_string("contact id"),
        message=_string("what to ask; name the ids"),
    ),
    CALCULATE,
    *(_action_tool(action) for action in ACTIONS.values()),
    _tool("finish", "End the work when everything is settled."),
)
"""The family tools of the sizes standard and long, in the order in which harnesses show them."""


@dataclass(frozen=True)
class ShopData(DeskData):
    """What never changes in one instance of the shop."""

    table: ClassVar[Mapping[str, Desk]] = DESKS


class Shop:
    """The application: every tool but `finish`. Without state of its own: what changed is passed in, and changed in place."""

    def __init__(self, data: ShopData) -> None:
        self.data = data
        self.library = Library(data.shelf, part_chars=data.part_chars)
        self.contacts = Contacts(data.staff, size=5)
        self._records = {one.id: one for one in data.records}
        self._lists: dict[str, Callable[..., dict[str, Any]]] = {"list_records": self._list_records, "get_record": self._get_record}
        self._reads: dict[str, Callable[..., dict[str, Any]]] = {
            "search_documents": self._search_documents,
            "read_document": self._read_document,
            "find_contacts": self.contacts.find,
            "ask_contact": self.contacts.write,
            "calculate": calculate,
        }

    def perform(self, tool: str, arguments: Mapping[str, Any], changes: _Changes) -> dict[str, Any]:
        """One tool on checked arguments. Raises `ToolError` before it changes anything."""
        if tool in ACTIONS:
            return self._change(ACTIONS[tool], arguments, changes)
        if tool in self._lists:
            return self._lists[tool](changes, **arguments)
        return self._reads[tool](**arguments)

    def listed(self, changes: _Changes, kind: str, status: str = "", query: str = "") -> list[dict[str, Any]]:
        """The lines of a list, before paging."""
        lines = [_line(one, changes) for one in self.data.records if one.kind == kind]
        words = query.casefold().split()
        kept = [line for line in lines if not status or str(line.get("status")) == status]
        return [line for line in kept if all(_has(line, word) for word in words)]

    def _list_records(self, changes: _Changes, kind: str, status: str = "", query: str = "", page: int = 1) -> dict[str, Any]:
        shown = page_of(self.listed(changes, kind, status, query), page, size=PAGE_SIZE)
        return {"records": list(shown.items), "page": shown.number, "pages": shown.count}

    def _get_record(self, changes: _Changes, kind: str, record: str) -> dict[str, Any]:
        return {"kind": kind, **_body(self._find(kind, record), changes)}

    def _search_documents(self, query: str, page: int = 1) -> dict[str, Any]:
        if self.data.part_chars is None and page > 1:
            raise ToolError(f"there is no page {page}, the last is 1")
        return self.library.search(query, page=page)

    def _read_document(self, document: str, part: int = 1) -> dict[str, Any]:
        if self.data.part_chars is None and part > 1:
            raise ToolError(f"there is no part {part}, the last is 1")
        return self.library.read(document, part=part)

    def _change(self, action: Action, arguments: Mapping[str, Any], changes: _Changes) -> dict[str, Any]:
        record = self._find(action.kind, arguments[action.key])
        changed = {**changes.get(record.id, {}), **action.changes(_body(record, changes), arguments)}
        kept = {name: value for name, value in changed.items() if record.body.get(name) != value}
        changes.pop(record.id, None)
        if kept:
            changes[record.id] = kept
        return {"ok": True, "record": record.id}

    def _find(self, kind: str, record: str) -> Record:
        one = self._records.get(record)
        if one is None or one.kind != kind:
            raise ToolError(f"unknown record of kind {kind}; list_records gives ids")
        return one


def _body(record: Record, changes: _Changes) -> dict[str, Any]:
    return {**record.body, **changes.get(record.id, {})}


def _line(record: Record, changes: _Changes) -> dict[str, Any]:
    body = _body(record, changes)
    return {"id": record.id, **{name: body[name] for name in _SUMMARY if name in body}}


def _has(line: Mapping[str, Any], word: str) -> bool:
    return any(word in str(value).casefold().split() for value in line.values())


def draw_shop(instance: TaskInstance) -> tuple[str, ShopData]:
    """Instruction and data of one instance. Raises `ConfigError` for an unknown template."""
    template = TEMPLATES.get(instance.template)
    if template is None:
        raise ConfigError("unknown website template", seen=instance.template, fix=nearest(instance.template, TEMPLATES))
    request, data = draw_data(ShopData, instance, template, _SETTING)
    return f"{request} Today is {TODAY.day} November {TODAY.year}.", data
