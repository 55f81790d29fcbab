"""How the portal's reference reaches a goal from the page that is open: the next clicks and entries, as a person would make them."""

from __future__ import annotations

from collections.abc import Sequence

from coevo.chat import ToolCall
from coevo.tasks.browser.catalogue import ACTIONS, DESKS, FLOWS
from coevo.tasks.browser.dom import Element, elements
from coevo.tasks.browser.portal import LABELS, PAGE_SIZE, Changes, Portal
from coevo.tasks.browser.services import CHOICES
from coevo.tasks.browser.tab import Tab
from coevo.tasks.deskwork import Desk, Record, plain
from coevo.tasks.library import Document

__all__ = ["PortalHands"]


class PortalHands:
    """See `coevo.tasks.deskwork_policy.Hands`."""

    def __init__(self, portal: Portal, tab: Tab, changes: Changes, log: Sequence[ToolCall]) -> None:
        self._portal, self._changes, self._log = portal, changes, log
        self._address, self._live = tab.address(), tab.live()
        self._elements = elements(tab.tree(), self._live)
        self._all = elements(tab.tree(), self._live, behind=True)
        self._names = {(one.kind, one.name) for one in self._elements}

    def list_queue(self, desk: Desk, case: str) -> tuple[ToolCall, ...]:
        """The queue from the menu, then page after page."""
        ids = self._portal.queue(desk.name, "open", self._changes)
        page = ids.index(case) // PAGE_SIZE + 1
        if page > 1 and self._address in _queue_pages(desk.name, page - 1) and ("link", "Next") in self._names:
            return (_click("Next"),)
        return self._cancel() or self._menu(desk.name)

    def open_record(self, record: Record) -> tuple[ToolCall, ...]:
        """Its link where it stands on the page, else its address, or that of the case which links to it."""
        if ("link", record.id) in self._names:
            return (_click(record.id),)
        owner = self._portal.owner(record.id) or record
        return self._cancel() or (_open(f"/{owner.kind}/{owner.id}"),)

    def find_document(self, query: str, document: str) -> tuple[ToolCall, ...]:
        """Words into the search field of the handbook."""
        return self._search("handbook", query, document)

    def read_document(self, document: Document) -> tuple[ToolCall, ...]:
        """The next part that was not read, up to the one that matters; later that one."""
        last = self._portal.library.part_with(document.id, *document.facts) or 1
        here = self._address.split("?")[0] == f"/handbook/{document.id}"
        part = int(self._address.rpartition("part=")[2]) if here and "part=" in self._address else 1
        if here and part < last:
            return (_click("Next"),)
        if here and part > last:
            return (_click("Previous"),)
        if here:
            return (ToolCall("read", {}),)
        if ("link", document.id) in self._names:
            return (_click(document.id),)
        return self._cancel() or (_open(f"/handbook/{document.id}"),)

    def find_contact(self, role: str, contact: str) -> tuple[ToolCall, ...]:
        """Words into the search field of the directory."""
        return self._search("people", role, contact)

    def ask(self, contact: str, case: str, role: str) -> tuple[ToolCall, ...]:
        """A message that names the case, on the person's page."""
        if self._address.split("?")[0] == f"/people/{contact}":
            if self._value("Message") != case:
                return (_type("Message", case), _click("Send"))
            return (_click("Send"),)
        if ("link", contact) in self._names:
            return (_click(contact),)
        return self._cancel() or (_open(f"/people/{contact}"),)

    def settle(self, call: ToolCall) -> tuple[ToolCall, ...]:
        """The form, page by page."""
        action = ACTIONS[call.name]
        record = str(call.arguments[action.key])
        home = f"/{action.kind}/{record}"
        path = self._address.split("?")[0]
        if path != f"{home}/{action.verb}":
            if path == home and ("link", action.verb) in self._names:
                return (_click(action.verb),)
            return self._cancel() or (_open(home),)
        steps = self._entries(call)
        if steps:
            return self._cancel() or steps
        if ("button", "Yes, submit") in self._names:
            return (_click("Yes, submit"),)
        return (_click("Continue" if ("button", "Continue") in self._names else "Submit"),)

    def _wrong_before(self, call: ToolCall) -> bool:
        """Something else was entered on an earlier page: it stands in the address."""
        given = {one.node.attrs.get("name") for one in self._all}
        entered = dict(pair.split("=", 1) for pair in self._address.partition("?")[2].split("&") if "=" in pair)
        names = [name for page in FLOWS[call.name].pages for name in page if name not in given and name in entered]
        return any(entered[name] != str(plain(call.arguments[name])) for name in names)

    def _entries(self, call: ToolCall) -> tuple[ToolCall, ...]:
        """What must still be entered on this page."""
        flow, steps = FLOWS[call.name], []
        if self._wrong_before(call):
            action = ACTIONS[call.name]
            return (_open(f"/{action.kind}/{call.arguments[action.key]}/{action.verb}"),)
        for name in (name for page in flow.pages for name in page):
            label, wanted = LABELS[name], str(plain(call.arguments[name]))
            if self._find(label) is not None and self._value(label) != wanted:
                steps.append(_select(label, wanted) if name in CHOICES else _type(label, wanted))
        box = self._find(flow.tick) if flow.tick else None
        if box is not None and not self._live.ticked(box.node):
            steps.append(_click(flow.tick))
        return tuple(steps)

    def _search(self, place: str, words: str, wanted: str) -> tuple[ToolCall, ...]:
        if not self._address.startswith(f"/{place}") or self._find("Words") is None:
            return self._cancel() or self._menu(place)
        if self._value("Words") != words:
            return (_type("Words", words), _click("Search"))
        shown = ("link", wanted) in self._names
        return (_click("Next"),) if not shown and ("link", "Next") in self._names else (_click("Search"),)

    def _menu(self, name: str) -> tuple[ToolCall, ...]:
        return (_click(name),) if name in (*DESKS, "handbook", "people") else (_open("/"),)

    def _cancel(self) -> tuple[ToolCall, ...]:
        """Close an open dialog first."""
        return (_click("Cancel"),) if ("button", "Cancel") in self._names else ()

    def _find(self, name: str) -> Element | None:
        return next((one for one in self._all if one.name == name and one.kind in ("field", "list", "box")), None)

    def _value(self, name: str) -> str | None:
        one = self._find(name)
        return None if one is None else self._live.value(one.node)


def _queue_pages(kind: str, page: int) -> tuple[str, ...]:
    """The addresses of one page of an open queue."""
    return (f"/{kind}", f"/{kind}?status=open") if page == 1 else (f"/{kind}?status=open&page={page}",)


def _open(address: str) -> ToolCall:
    return ToolCall("open", {"address": address})


def _click(name: str) -> ToolCall:
    return ToolCall("click", {"element": name})


def _type(label: str, text: str) -> ToolCall:
    return ToolCall("type", {"field": label, "text": text})


def _select(label: str, option: str) -> ToolCall:
    return ToolCall("select", {"list": label, "option": option})
