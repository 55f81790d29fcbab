"""The fast browser: one tab over the portal in this process, without HTTP, script engine or rendering.

It knows what the portal's pages do: links, forms with GET and POST, a redirect after POST, boxes, lists, and dialogs that the page's own
script opens (`data-dialog`) and closes (`data-close`). State is plain data, so a world with it can be copied.
"""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import urlencode

from coevo.tasks.browser.dom import Element, Live, Node, form_of, parse
from coevo.tasks.browser.portal import Changes, Portal, canonical

__all__ = ["MemoryTab", "Tab", "submitted"]


class Tab(Protocol):
    """One browser tab on the portal. Elements come from the tree that the tab gave last."""

    def address(self) -> str:
        """Where it is, as `canonical` writes it."""
        ...

    def tree(self) -> Node: ...

    def live(self) -> Live: ...

    def open(self, address: str) -> None: ...

    def click(self, element: Element) -> None: ...

    def enter(self, element: Element, text: str) -> None: ...

    def choose(self, element: Element, option: str) -> None: ...


def submitted(form: Node, live: Live) -> list[tuple[str, str]]:
    """What a form sends: its named controls in document order, boxes only when ticked."""
    sent: list[tuple[str, str]] = []

    def visit(node: Node) -> None:
        name = node.attrs.get("name")
        if node.tag in ("input", "select") and name:
            box = node.attrs.get("type") == "checkbox"
            if not box or live.ticked(node):
                sent.append((name, node.attrs.get("value", "on") if box else live.value(node)))
        for child in node.children:
            if isinstance(child, Node):
                visit(child)

    visit(form)
    return sent


class MemoryTab:
    """See the module docstring. `state` is `{"address", "values", "dialog"}` and is changed in place."""

    def __init__(self, portal: Portal, state: dict[str, Any], changes: Changes) -> None:
        self._portal, self._state, self._changes = portal, state, changes

    def address(self) -> str:
        """Where it is."""
        return str(self._state["address"])

    def tree(self) -> Node:
        """The page, as it was loaded."""
        return parse(self._portal.get(self.address(), self._changes))

    def live(self) -> Live:
        """What was done to the page since."""
        return Live(self._state["values"], self._state["dialog"])

    def open(self, address: str) -> None:
        """Load a page."""
        self._state.update(address=canonical(address), values={}, dialog="")

    def click(self, element: Element) -> None:
        """Follow a link, press a button, tick or untick a box."""
        node = element.node
        if element.kind == "link":
            self.open(node.attrs["href"])
        elif element.kind == "box":
            self._state["values"][str(node.index)] = "no" if self.live().ticked(node) else "yes"
        elif "data-dialog" in node.attrs:
            self._state["dialog"] = node.attrs["data-dialog"]
        elif "data-close" in node.attrs:
            self._state["dialog"] = ""
        else:
            self._submit(node)

    def enter(self, element: Element, text: str) -> None:
        """Fill a text field."""
        self._state["values"][str(element.node.index)] = text

    def choose(self, element: Element, option: str) -> None:
        """Choose an option of a list."""
        self._state["values"][str(element.node.index)] = option

    def _submit(self, button: Node) -> None:
        form = form_of(self.tree(), button)
        if form is None:
            return
        fields = submitted(form, self.live())
        if form.attrs.get("method") == "post":
            self.open(self._portal.post(form.attrs["action"], dict(fields), self._changes))
        else:
            self.open(f"{form.attrs['action']}?{urlencode(fields)}")
