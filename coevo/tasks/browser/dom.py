"""Pages as trees: parsed from HTML here or taken from a real browser, described and searched by the same code.

What an agent reads of a page, and what a name on it stands for, is computed from a `Node` tree alone, so both browsers show the same.
Limits: the parser takes the HTML that the portal writes (no tag left open, nothing that a browser would repair), not HTML at large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html.parser import HTMLParser
from typing import Any

from coevo.errors import ToolError

__all__ = ["CONTROLS", "Element", "Live", "Node", "describe", "elements", "find", "form_of", "from_tree", "parse"]

CONTROLS = ("a", "button", "input", "select")
"""Tags that are numbered in document order, in both browsers."""

_VOID = frozenset({"meta", "input", "br"})
_FIELDS = frozenset({"button", "input", "select"})
_SILENT = frozenset({"script", "head", "title", "option"})


@dataclass(frozen=True, slots=True)
class Node:
    """One element. `index` numbers the controls of a page from 0; -1 for all others. `holds`: a field or button stands in it."""

    tag: str
    attrs: Mapping[str, str]
    children: tuple[Node | str, ...]
    index: int = -1
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Live:
    """What was done to a page since it was loaded, where the tree does not carry it: values by control, the open dialog."""

    values: Mapping[str, str] = field(default_factory=dict)
    dialog: str = ""

    def value(self, node: Node) -> str:
        """Present value of a text field or list."""
        if str(node.index) in self.values:
            return self.values[str(node.index)]
        if node.tag == "select" and "value" not in node.attrs:
            options = [one for one in node.children if isinstance(one, Node) and one.tag == "option"]
            return next((one.attrs["value"] for one in options if "selected" in one.attrs), options[0].attrs["value"] if options else "")
        return node.attrs.get("value", "")

    def ticked(self, node: Node) -> bool:
        """Present state of a box."""
        return self.values.get(str(node.index), "yes" if "checked" in node.attrs else "no") == "yes"

    def shows(self, dialog: Node) -> bool:
        """Whether a dialog is open."""
        return "open" in dialog.attrs or (bool(self.dialog) and dialog.attrs.get("id") == self.dialog)


@dataclass(frozen=True, slots=True)
class Element:
    """Something on a page that has a name: kind is link, button, field, list or box."""

    kind: str
    name: str
    node: Node


class _Parser(HTMLParser):
    """Builds nested lists; `from_tree` makes them nodes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root: list[Any] = ["html", {}, []]
        self._open: list[list[Any]] = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = [tag, {name: value or "" for name, value in attrs}, []]
        self._open[-1][2].append(node)
        if tag not in _VOID:
            self._open.append(node)

    def handle_endtag(self, tag: str) -> None:
        if len(self._open) > 1 and self._open[-1][0] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1][2].append(data)


@lru_cache(maxsize=512)
def parse(html: str) -> Node:
    """The tree of a page of the portal."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    return from_tree(parser.root)


def from_tree(tree: Sequence[Any]) -> Node:
    """Nodes from nested `[tag, attributes, children]`, controls numbered in document order."""
    count = iter(range(1 << 30))

    def build(one: Sequence[Any]) -> Node:
        tag, attrs, children = one
        index = next(count) if tag in CONTROLS else -1
        inner = tuple(child if isinstance(child, str) else build(child) for child in children)
        holds = tag in _FIELDS or any(child.holds for child in inner if isinstance(child, Node))
        return Node(tag, attrs, inner, index, holds)

    return build(tree)


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        if isinstance(child, Node):
            yield from _walk(child)


def _text(node: Node) -> str:
    """All text, with the words of links and labels, without that of lists' options."""
    if node.tag in _SILENT:
        return ""
    return " ".join(" ".join(child if isinstance(child, str) else _text(child) for child in node.children).split())


def _scope(tree: Node, live: Live) -> Node:
    """The open dialog, which makes everything else unreachable, or the whole page."""
    return next((one for one in _walk(tree) if one.tag == "dialog" and live.shows(one)), tree)


def elements(tree: Node, live: Live, *, behind: bool = False) -> list[Element]:
    """Everything that can be used now, in document order; `behind` counts in what an open dialog makes unreachable."""
    found: list[Element] = []

    def visit(node: Node, label: str) -> None:
        if node.tag == "dialog" and not live.shows(node):
            return
        kind = _kind(node)
        if kind:
            found.append(Element(kind, label if kind in ("field", "list", "box") else _text(node), node))
        inner = _text(node) if node.tag == "label" else label
        for child in node.children:
            if isinstance(child, Node):
                visit(child, inner)

    visit(tree if behind else _scope(tree, live), "")
    return found


def _kind(node: Node) -> str:
    if node.tag == "input":
        return {"hidden": "", "checkbox": "box"}.get(node.attrs.get("type", ""), "field")
    return {"a": "link", "button": "button", "select": "list"}.get(node.tag, "")


def find(tree: Node, live: Live, name: str, kinds: tuple[str, ...]) -> Element:
    """The one element of these kinds with a name; case and spaces do not count.

    Raises:
        ToolError: None, or more than one, and what there is.
    """
    wanted = " ".join(name.casefold().split())
    usable = [one for one in elements(tree, live) if one.kind in kinds]
    fitting = [one for one in usable if one.name.casefold() == wanted]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(one.name for one in usable)[:300] or "none"
    kind = " or ".join(kinds)
    raise ToolError(f"{'no' if not fitting else 'more than one'} {kind} here has this name; there are: {there}")


def form_of(tree: Node, control: Node) -> Node | None:
    """The form around a control."""
    forms = [one for one in _walk(tree) if one.tag == "form"]
    return next((one for one in forms if any(inner.index == control.index for inner in _walk(one) if inner.index >= 0)), None)


def describe(tree: Node, live: Live) -> str:
    """The page as lines of text: headings, links in brackets, tables with bars, forms field by field."""
    lines: list[str] = []
    scope = _scope(tree, live)
    if scope.tag == "dialog":
        lines.append("dialog:")
    _describe(scope, "", live, lines, top=scope)
    return "\n".join(line for line in lines if line)


def _describe(node: Node, label: str, live: Live, lines: list[str], *, top: Node) -> None:
    if node.tag in _SILENT or (node.tag == "dialog" and node is not top):
        return
    line = _LINE.get(node.tag)
    if line is not None and not node.holds:
        lines.append(line(node))
        return
    if _kind(node) in ("button", "field", "list", "box"):
        lines.append(_control(node, label, live))
        return
    inner = _text(node) if node.tag == "label" else label
    for child in node.children:
        if isinstance(child, Node):
            _describe(child, inner, live, lines, top=top)


def _inline(node: Node) -> str:
    """Text with links in brackets."""
    parts = (child if isinstance(child, str) else f"[{_text(child)}]" if child.tag == "a" else _inline(child) for child in node.children)
    return " ".join(" ".join(parts).split())


def _row(node: Node) -> str:
    return " | ".join(_inline(one) for one in node.children if isinstance(one, Node))


def _paragraph(node: Node) -> str:
    role = node.attrs.get("role")
    return f"{role}: {_inline(node)}" if role else _inline(node)


_LINE: Mapping[str, Callable[[Node], str]] = {
    "nav": lambda node: f"menu: {_inline(node)}",
    "h1": lambda node: f"# {_inline(node)}",
    "h2": lambda node: f"## {_inline(node)}",
    "p": _paragraph,
    "li": lambda node: f"- {_inline(node)}",
    "tr": _row,
}


def _control(node: Node, label: str, live: Live) -> str:
    kind = _kind(node)
    if kind == "button":
        return f'button "{_text(node)}"'
    if kind == "box":
        return f'box "{label}": {"on" if live.ticked(node) else "off"}'
    if kind == "list":
        options = [one.attrs["value"] for one in node.children if isinstance(one, Node) and one.tag == "option"]
        return f'list "{label}": {live.value(node) or "nothing"} (of {", ".join(one for one in options if one)})'
    return f'field "{label}": {live.value(node) or "empty"}'
