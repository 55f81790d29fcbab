"""The worlds of the portal, sizes standard and long: one with the fast browser of this process, one with a real Chromium."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar, Self

from coevo.chat import ToolSpec
from coevo.errors import ConfigError, ToolError
from coevo.records import Grade
from coevo.tasks.browser.catalogue import ACTIONS
from coevo.tasks.browser.chromium import ChromiumTab
from coevo.tasks.browser.dom import describe, find
from coevo.tasks.browser.hands import PortalHands
from coevo.tasks.browser.office import OfficeData, draw_office
from coevo.tasks.browser.portal import Portal, canonical
from coevo.tasks.browser.tab import MemoryTab, Tab
from coevo.tasks.calculator import CALCULATE, calculate
from coevo.tasks.deskwork import Changes, grade_cases
from coevo.tasks.deskwork_policy import Truth
from coevo.tasks.family import TaskInstance, World
from coevo.tasks.world import TERMINAL_TOOL, PlainWorld, Toolbox

__all__ = ["TOOLS", "BrowserWorld", "ChromiumWorld", "facts", "open_browser"]

MAX_CHARS = 400
"""Longest text of any argument but an address."""

MAX_ADDRESS_CHARS = 2000


def _tool(name: str, description: str, **properties: str) -> ToolSpec:
    schema = {one: {"type": "string", "description": text} for one, text in properties.items()}
    return ToolSpec(name, description, {"type": "object", "properties": schema, "required": list(schema), "additionalProperties": False})


TOOLS = (
    _tool("open", "Open an address of the portal.", address="path, for example /handbook"),
    _tool("click", "Click a link or button, or tick a box.", element="its text"),
    _tool("type", "Fill a text field; what stood there is replaced.", field="label of the field", text="what to enter"),
    _tool("select", "Choose an option of a list.", list="label of the list", option="one of its options"),
    _tool("back", "Go back to the page before."),
    _tool("read", "Show the page as it is now."),
    CALCULATE,
    _tool(TERMINAL_TOOL, "End the work when everything is settled."),
)
"""The family tools of the sizes standard and long, in the order in which harnesses show them."""


class BrowserWorld(PlainWorld):
    """See the module docstring. `state` is `{"changes", "history", "tab"}`."""

    toolbox: ClassVar[Toolbox] = Toolbox(TOOLS)
    _data: OfficeData

    def __init__(self, instance: TaskInstance, *, instruction: str, data: OfficeData) -> None:
        state = {"changes": {}, "history": [], "tab": {"address": "/", "values": {}, "dialog": ""}}
        super().__init__(instance, instruction=instruction, data=data, state=state)
        self._portal = Portal(data)
        self._truth: list[Truth] = []

    def tool_open(self, address: str) -> dict[str, Any]:
        """Load a page."""
        if len(address) > MAX_ADDRESS_CHARS or not address.isprintable():
            raise ToolError(f"bad arguments: address must have at most {MAX_ADDRESS_CHARS} printable characters")
        target = canonical(address)
        self._leave_page(self.tab().address())
        self.tab().open(target)
        return self.tool_read()

    def tool_click(self, element: str) -> dict[str, Any]:
        """Use a link, button or box."""
        tab = self.tab()
        found = find(tab.tree(), tab.live(), _checked("element", element), ("link", "button", "box"))
        before = tab.address()
        tab.click(found)
        if tab.address() != before:
            self._leave_page(before)
        return self.tool_read()

    def tool_type(self, field: str, text: str) -> dict[str, Any]:
        """Fill a text field."""
        tab = self.tab()
        found = find(tab.tree(), tab.live(), _checked("field", field), ("field",))
        tab.enter(found, _checked("text", text))
        return self.tool_read()

    def tool_select(self, list: str, option: str) -> dict[str, Any]:  # noqa: A002 - the argument that the agent sees
        """Choose an option."""
        tab = self.tab()
        found = find(tab.tree(), tab.live(), _checked("list", list), ("list",))
        options = [one.attrs["value"] for one in found.node.children if not isinstance(one, str) and one.tag == "option"]
        if option not in options or not option:
            raise ToolError(f"the list has no such option; it has {', '.join(one for one in options if one)}")
        tab.choose(found, option)
        return self.tool_read()

    def tool_back(self) -> dict[str, Any]:
        """Load the page before."""
        history = self._state["history"]
        if not history:
            raise ToolError("there is no page before this one")
        self.tab().open(history.pop())
        return self.tool_read()

    def tool_read(self) -> dict[str, Any]:
        """Address and text of the page."""
        tab = self.tab()
        return {"address": tab.address(), "page": describe(tab.tree(), tab.live())}

    def tool_calculate(self, expressions: list[str], round_to: float | None = None, mode: str = "half_up") -> dict[str, Any]:
        """Exact arithmetic."""
        return calculate(expressions, round_to, mode)

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

    def tab(self) -> Tab:
        """The browser tab."""
        return MemoryTab(self._portal, self._state["tab"], self._state["changes"])

    def hands(self) -> PortalHands:
        """How goals are reached from the page that is open."""
        changes = {one: dict(fields) for one, fields in self.changes().items()}
        return PortalHands(self._portal, self.tab(), changes, self.log)

    def _leave_page(self, address: str) -> None:
        self._state["history"] = [*self._state["history"], address][-20:]


class ChromiumWorld(BrowserWorld):
    """The same world in a real browser. It can't be copied: a fork is a replay of the log in a new tab."""

    def __init__(self, instance: TaskInstance, *, instruction: str, data: OfficeData) -> None:
        super().__init__(instance, instruction=instruction, data=data)
        self._open_tab = ChromiumTab(self._portal, self._state["changes"])
        weakref.finalize(self, self._open_tab.close).atexit = False

    def tab(self) -> Tab:
        """The browser tab."""
        return self._open_tab

    def fork(self) -> Self:
        """A fresh world in a tab of its own, with the log applied again."""
        twin = type(self)(self.instance, instruction=self._instruction, data=self._data)
        for call in self._log:
            try:
                twin.call(call.name, call.arguments)
            except ToolError:
                continue
        return twin

    def snapshot(self) -> bytes:
        """As of the fast browser, with the tab's state read from the page."""
        tree, live = self.tab().tree(), self.tab().live()
        self._state["tab"] = {"address": self.tab().address(), "page": describe(tree, live)}
        return super().snapshot()


def _checked(name: str, text: str) -> str:
    """The text of an argument. Raises `ToolError` for what no field takes."""
    if not (1 <= len(text) <= MAX_CHARS and text.isprintable()):
        raise ToolError(f"bad arguments: {name} must have 1 to {MAX_CHARS} printable characters")
    return text


def facts(world: World) -> BrowserWorld:
    """The world as its reference policy may see it. Raises `ConfigError` for a world of another kind."""
    if not isinstance(world, BrowserWorld):
        raise ConfigError("only a browser world has these facts", seen=type(world).__name__, fix="open it with the browser family")
    return world


def open_browser(instance: TaskInstance, *, kind: type[BrowserWorld] = BrowserWorld) -> BrowserWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    instruction, data = draw_office(instance)
    return kind(instance, instruction=instruction, data=data)
