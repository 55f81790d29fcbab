"""The worlds of the shop's admin side, sizes standard and long: one over a shop in this process, one over the HTTP application."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from coevo.chat import ToolCall
from coevo.errors import ConfigError, ToolError
from coevo.records import Grade
from coevo.tasks.deskwork import Changes, Desk, Record, grade_cases
from coevo.tasks.deskwork_policy import Truth
from coevo.tasks.family import TaskInstance, World
from coevo.tasks.library import Document
from coevo.tasks.loopback import Loopback, loopback
from coevo.tasks.website.catalogue import ACTIONS
from coevo.tasks.website.client import ShopClient
from coevo.tasks.website.shop import PAGE_SIZE, TOOLS, Shop, ShopData, draw_shop
from coevo.tasks.website.site import ShopSite
from coevo.tasks.world import TERMINAL_TOOL, PlainWorld, Toolbox

__all__ = ["HttpWebsiteWorld", "ShopHands", "WebsiteWorld", "facts", "open_website"]

MAX_CHARS = 2000
"""Longest text of any argument."""

_QUEUES: Mapping[str, tuple[str, dict[str, str]]] = {
    "returns": ("returns", {"status": "open"}),
    "orders": ("orders", {"status": "waiting"}),
    "prices": ("products", {}),
    "coupons": ("coupons", {}),
    "reviews": ("reviews", {"status": "waiting"}),
    "pages": ("pages", {"status": "live"}),
}
"""Desk -> how its queue is listed; prices and coupons are listed by the word that the instruction names."""


class WebsiteWorld(PlainWorld):
    """See the module docstring. `state["changes"]` maps record id -> changed fields."""

    toolbox: ClassVar[Toolbox] = Toolbox(TOOLS)
    _data: ShopData

    def __init__(self, instance: TaskInstance, *, instruction: str, data: ShopData) -> None:
        super().__init__(instance, instruction=instruction, data=data, state={"changes": {}})
        self._shop = Shop(data)
        self._truth: list[Truth] = []

    def apply(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Run one tool on bound arguments."""
        if name == TERMINAL_TOOL:
            return super().apply(name, arguments)
        for argument, value in arguments.items():
            if isinstance(value, str) and len(value) > MAX_CHARS:
                raise ToolError(f"bad arguments: {argument} is longer than {MAX_CHARS} characters")
        return self._perform(name, arguments)

    def grade(self) -> Grade:
        """See `coevo.tasks.deskwork.grade_cases`."""
        return grade_cases(self._data.desks(), self.changes(), actions=ACTIONS, finished=self.finished)

    def changes(self) -> Changes:
        """What happened to the records."""
        changes: Changes = self._state["changes"]
        return changes

    def truth(self) -> Truth:
        """See `coevo.tasks.deskwork_policy.Truth`; computed once for a world and its forks."""
        if not self._truth:
            self._truth.append(Truth.of(self._data.desks(), self._data.shelf, self._data.roles, ACTIONS))
        return self._truth[0]

    def hands(self) -> ShopHands:
        """How goals are reached with the tools."""
        return ShopHands(self._shop, self.changes(), self.log)

    def _perform(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return self._shop.perform(name, arguments, self._state["changes"])


class HttpWebsiteWorld(WebsiteWorld):
    """The same world over HTTP: every call is a request to the application, which a server on loopback answers."""

    def __init__(self, instance: TaskInstance, *, instruction: str, data: ShopData) -> None:
        super().__init__(instance, instruction=instruction, data=data)
        self.connect({})

    def fork(self) -> Self:
        """A second session with the same changes."""
        twin = super().fork()
        twin.connect(twin.changes())
        return twin

    def connect(self, changes: Changes) -> None:
        """Open a session of its own; it ends with the world."""
        server = loopback()
        site = ShopSite(self._data, changes)
        session = server.open(site)
        self._client, self._state = ShopClient(session, server.port), {"changes": site.changes}
        weakref.finalize(self, _leave, server, session, self._client).atexit = False

    def _perform(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return self._client.perform(name, arguments)


def _leave(server: Loopback, session: str, client: ShopClient) -> None:
    client.close()
    server.close(session)


class ShopHands:
    """See `coevo.tasks.deskwork_policy.Hands`: every goal is one call."""

    def __init__(self, shop: Shop, changes: Changes, log: Sequence[ToolCall]) -> None:
        self._shop, self._log = shop, log
        self._changes = {one: dict(fields) for one, fields in changes.items()}

    def list_queue(self, desk: Desk, case: str) -> tuple[ToolCall, ...]:
        """The page of the queue on which the case stands."""
        kind, narrowed = _QUEUES[desk.name]
        query = narrowed or {"query": self._shop.data.word("category" if desk.name == "prices" else "campaign")}
        ids = [line["id"] for line in self._shop.listed(self._changes, kind, **query)]
        return (ToolCall("list_records", {"kind": kind, **query, "page": ids.index(case) // PAGE_SIZE + 1}),)

    def open_record(self, record: Record) -> tuple[ToolCall, ...]:
        """Read it."""
        return (ToolCall("get_record", {"kind": record.kind, "record": record.id}),)

    def find_document(self, query: str, document: str) -> tuple[ToolCall, ...]:
        """The page of hits that shows it."""
        page = self._shop.library.page_with(query, document) or 1
        return (ToolCall("search_documents", {"query": query} if page == 1 else {"query": query, "page": page}),)

    def read_document(self, document: Document) -> tuple[ToolCall, ...]:
        """The next part that was not read, up to the one that matters; later that one."""
        last = self._shop.library.part_with(document.id, *document.facts) or 1
        calls = [call for call in self._log if call.name == "read_document" and call.arguments.get("document") == document.id]
        read = {call.arguments.get("part", 1) for call in calls}
        part = next((one for one in range(1, last) if one not in read), last)
        return (ToolCall("read_document", {"document": document.id} if part == 1 else {"document": document.id, "part": part}),)

    def find_contact(self, role: str, contact: str) -> tuple[ToolCall, ...]:
        """The page of the directory that shows the colleague."""
        page = self._shop.contacts.page_with(role, contact) or 1
        return (ToolCall("find_contacts", {"query": role} if page == 1 else {"query": role, "page": page}),)

    def ask(self, contact: str, case: str, role: str) -> tuple[ToolCall, ...]:
        """A message that names the case."""
        return (ToolCall("ask_contact", {"contact": contact, "message": f"What do you know about {case}?"}),)

    def settle(self, call: ToolCall) -> tuple[ToolCall, ...]:
        """The call itself."""
        return (call,)


def facts(world: World) -> WebsiteWorld:
    """The world as its reference policy may see it. Raises `ConfigError` for a world of another kind."""
    if not isinstance(world, WebsiteWorld):
        raise ConfigError("only a website world has these facts", seen=type(world).__name__, fix="open it with the website family")
    return world


def open_website(instance: TaskInstance, *, kind: type[WebsiteWorld] = WebsiteWorld) -> WebsiteWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    instruction, data = draw_shop(instance)
    return kind(instance, instruction=instruction, data=data)
