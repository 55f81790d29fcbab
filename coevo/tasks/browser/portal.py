"""The portal as a web application without a network: addresses in, HTML pages out; only POST changes records.

    GET  /claims?status=open&page=1          a queue
    GET  /claims/K1043                       a record with links to what belongs to it and to its forms
    GET  /claims/K1043/approve?step=2&...    a page of a form; what was entered travels in the address
    POST /claims/K1043/approve               the last page of a form; answers with the address that comes next
    GET  /handbook?words=claims              documents; /handbook/D123?part=2 one of them
    GET  /people?words=security              colleagues; /people/H12?message=... the reply of one of them

Pages are plain HTML; one small script opens and closes dialogs. Every page is a function of its address and of the records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from coevo.errors import ToolError
from coevo.tasks.browser.catalogue import ACTIONS, DESKS, FLOWS
from coevo.tasks.browser.office import OfficeData
from coevo.tasks.browser.paperwork import TODAY
from coevo.tasks.browser.services import CHOICES
from coevo.tasks.contacts import Contacts
from coevo.tasks.deskwork import Action, Record, check_field
from coevo.tasks.library import Library
from coevo.tasks.loopback import Request, Response
from coevo.tasks.paging import page_of

__all__ = ["LABELS", "PAGE_SIZE", "SCRIPT", "Changes", "Portal", "PortalSite", "canonical"]

Changes = dict[str, dict[str, Any]]
PAGE_SIZE = 5
"""Rows per page of a queue."""

INLINE = ("bookings", "tickets")
"""Kinds whose pages show what they link to; the others only link."""

LABELS: Mapping[str, str] = {
    "amount": "Amount",
    "centre": "Cost centre",
    "code": "Code",
    "account": "Account",
    "role": "Role",
    "days": "Days",
    "setup": "Setup",
    "team": "Team",
    "priority": "Priority",
}
"""Field -> what the form calls it."""

SCRIPT = (
    "document.addEventListener('click', event => {"
    " const opener = event.target.closest('[data-dialog]'), closer = event.target.closest('[data-close]');"
    " if (opener) document.getElementById(opener.dataset.dialog).showModal();"
    " if (closer) closer.closest('dialog').close(); });"
)
_HINT = "<p>Search by words, for example the name of a queue with rules or codes.</p>"
_NUMBERS = ("amount", "days")
_COLUMNS = ("id", "name", "category", "supplier", "system", "room", "status")
_PATH = re.compile(r"(?:/[A-Za-z0-9_]{1,40}){0,3}/?")


def canonical(address: str) -> str:
    """An address as the portal writes it: path, then the query in its given order, percent-encoded in one way.

    Raises:
        ToolError: No address of the portal.
    """
    parts = urlsplit(address)
    if parts.scheme or parts.netloc or not _PATH.fullmatch(parts.path) or not address.startswith("/"):
        raise ToolError("bad arguments: address is a path of the portal, for example /handbook?words=travel")
    path = parts.path.rstrip("/") or "/"
    query = urlencode(parse_qsl(parts.query, keep_blank_values=True))
    return f"{path}?{query}" if query else path


class Portal:
    """The application. Without state of its own: what changed is passed in, and changed in place."""

    def __init__(self, data: OfficeData) -> None:
        self.data = data
        self.library = Library(data.shelf, hits=6, part_chars=data.part_chars)
        self.contacts = Contacts(data.staff, size=4)
        self.records = {one.id: one for one in data.records}
        self._owners = {record.id: case.records[0] for brief in data.briefs for case in brief.cases for record in case.records[1:]}

    def owner(self, record: str) -> Record | None:
        """The case that links to a record."""
        return self._owners.get(record)

    def queue(self, kind: str, status: str, changes: Changes) -> list[str]:
        """Ids of a queue in list order; all of a kind without a status."""
        bodies = ((one.id, self.body(one, changes)) for one in self.data.records if one.kind == kind)
        return [one for one, body in bodies if not status or body.get("status") == status]

    def body(self, record: Record, changes: Changes) -> dict[str, Any]:
        """A record's present fields."""
        return {**record.body, **changes.get(record.id, {})}

    def get(self, address: str, changes: Changes, *, base: str = "") -> str:
        """The page at an address. `base` is put before the path of every link."""
        parts = urlsplit(address)
        steps = [step for step in parts.path.split("/") if step]
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        try:
            title, content = self._content(steps, query, changes, base)
        except ToolError as error:
            title, content = "Not found", f'<p role="alert">{escape(error.what)}</p>'
        menu = " ".join(_link(f"{base}/{one}", one) for one in (*DESKS, "handbook", "people"))
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head><body>'
            f"<nav>{menu}</nav><h1>{escape(title)}</h1>{content}<script>{SCRIPT}</script></body></html>"
        )

    def post(self, address: str, fields: Mapping[str, str], changes: Changes) -> str:
        """Submit the last page of a form; returns the address that comes next."""
        steps = [step for step in urlsplit(address).path.split("/") if step]
        action = _action(steps)
        record = self.records.get(steps[1]) if len(steps) == 3 else None
        if action is None or record is None or record.kind != steps[0]:
            return "/"
        flow = FLOWS[action.tool]
        names = [name for page in flow.pages for name in page]
        if _errors(names, fields, tick=bool(flow.tick)):
            kept = {name: fields.get(name, "") for name in names}
            return f"/{'/'.join(steps)}?{urlencode({'step': str(len(flow.pages)), 'checked': 'yes', **kept})}"
        arguments = {action.key: record.id, **{name: _value(name, fields[name]) for name in names}}
        try:
            changes[record.id] = {**changes.get(record.id, {}), **action.changes(self.body(record, changes), arguments)}
        except ToolError:
            return f"/{record.kind}/{record.id}?refused={action.verb}"
        return f"/{record.kind}/{record.id}?done={action.verb}"

    def _content(self, steps: list[str], query: Mapping[str, str], changes: Changes, base: str) -> tuple[str, str]:
        """Title and inner HTML. Raises `ToolError` for an unknown address."""
        match steps:
            case []:
                return "Portal", f"<p>Today is {TODAY.isoformat()}. Choose a queue, the handbook or the people above.</p>"
            case ["handbook"]:
                return "handbook", _HINT + _search(f"{base}/handbook", "words", query) + self._hits(query, base)
            case ["handbook", document]:
                return self._document(document, query, base)
            case ["people"]:
                return "people", _search(f"{base}/people", "words", query) + self._found(query, base)
            case ["people", contact]:
                return self._person(contact, query, base)
            case [kind] if kind in DESKS:
                return kind, self._queue(kind, query, changes, base)
            case [kind, one] if one in self.records and self.records[one].kind == kind:
                return f"{kind} {one}", self._record(self.records[one], query, changes, base)
            case [kind, one, _] if (action := _action(steps)) is not None and one in self.records and self.records[one].kind == kind:
                return f"{action.verb} {one}", _form(action, f"{base}/{kind}/{one}/{action.verb}", query)
        raise ToolError("There is no such page.")

    def _queue(self, kind: str, query: Mapping[str, str], changes: Changes, base: str) -> str:
        status = query.get("status", "open")
        ids = self.queue(kind, "" if status == "all" else status, changes)
        shown = page_of(ids, _number(query.get("page", "1")), size=PAGE_SIZE)
        bodies = [self.body(self.records[one], changes) for one in shown.items]
        columns = [name for name in _COLUMNS if any(name in body for body in bodies)]
        head = "".join(f"<th>{name}</th>" for name in columns)
        rows = "".join(f"<tr>{''.join(_cell(kind, name, body, base) for name in columns)}</tr>" for body in bodies)
        states = sorted({str(one.body.get("status")) for one in self.data.records if one.kind == kind})
        chosen = _select("status", "Status", ("all", *dict.fromkeys(["open", *states])), status)
        filters = f'<form method="get" action="{base}/{kind}" autocomplete="off">{chosen}<button type="submit">Show</button></form>'
        pages = _pages(f"{base}/{kind}", {"status": status}, "page", shown.number, shown.count)
        return f"{filters}<table><tr>{head}</tr>{rows}</table>{pages}"

    def _record(self, record: Record, query: Mapping[str, str], changes: Changes, base: str) -> str:
        body = self.body(record, changes)
        notice = ""
        if "done" in query:
            notice = f'<p role="status">Saved. The status is now {escape(str(body.get("status")))}.</p>'
        elif "refused" in query:
            notice = f'<p role="alert">{record.id} is {escape(str(body.get("status")))}; this form needs another status.</p>'
        rows = "".join(f"<tr><th>{name}</th><td>{self._field(record.id, value, base)}</td></tr>" for name, value in body.items())
        forms = [action for action in ACTIONS.values() if action.kind == record.kind and body.get("status") == action.needs]
        links = " ".join(_link(f"{base}/{record.kind}/{record.id}/{action.verb}", action.verb) for action in forms)
        table = f"{notice}<table>{rows}</table>" + (f"<p>Forms: {links}</p>" if links else "")
        return table + (self._related(body) if record.kind in INLINE else "")

    def _related(self, body: Mapping[str, Any]) -> str:
        """The records that a record links to, on its own page."""
        shown = ""
        for name, value in body.items():
            linked = self.records.get(value) if isinstance(value, str) and value != body["id"] else None
            if linked is not None:
                rows = "".join(f"<tr><th>{key}</th><td>{escape(str(item))}</td></tr>" for key, item in linked.body.items() if key != "id")
                shown += f"<h2>{name} {linked.id}</h2><table>{rows}</table>"
        return shown

    def _field(self, owner: str, value: Any, base: str) -> str:
        linked = self.records.get(value) if isinstance(value, str) and value != owner else None
        return escape(str(value)) if linked is None else _link(f"{base}/{linked.kind}/{linked.id}", linked.id)

    def _hits(self, query: Mapping[str, str], base: str) -> str:
        if not query.get("words"):
            return "<p>Nothing searched yet.</p>"
        found = self.library.search(query["words"], page=_number(query.get("page", "1")))
        items = [_item(f"{base}/handbook", one["document"], one["title"]) for one in found["documents"]]
        pages = _pages(f"{base}/handbook", {"words": query["words"]}, "page", found.get("page", 1), found.get("pages", 1))
        return (f"<ul>{''.join(items)}</ul>" if items else "<p>Nothing found.</p>") + pages

    def _document(self, document: str, query: Mapping[str, str], base: str) -> tuple[str, str]:
        shown = self.library.read(document, part=_number(query.get("part", "1")))
        text = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in shown["text"].split("\n\n"))
        pages = _pages(f"{base}/handbook/{document}", {}, "part", shown.get("part", 1), shown.get("parts", 1))
        return f"{document} {shown['title']}", text + pages + _HINT + _search(f"{base}/handbook", "words", {})

    def _found(self, query: Mapping[str, str], base: str) -> str:
        if not query.get("words"):
            return "<p>Search colleagues by name or role.</p>"
        found = self.contacts.find(query["words"], page=_number(query.get("page", "1")))
        items = [_item(f"{base}/people", one["contact"], f"{one['name']}, {one['role']}") for one in found["contacts"]]
        pages = _pages(f"{base}/people", {"words": query["words"]}, "page", found["page"], found["pages"])
        return (f"<ul>{''.join(items)}</ul>" if items else "<p>Nobody found.</p>") + pages

    def _person(self, contact: str, query: Mapping[str, str], base: str) -> tuple[str, str]:
        one = next((one for one in self.data.staff if one.id == contact), None)
        if one is None:
            raise ToolError("There is no such person.")
        reply = ""
        if query.get("message"):
            try:
                reply = f"<h2>Reply</h2><p>{escape(self.contacts.write(contact, query['message'])['reply'])}</p>"
            except ToolError as error:
                reply = f'<p role="alert">{escape(error.what)}</p>'
        form = (
            f'<form method="get" action="{base}/people/{contact}" autocomplete="off">{_text("message", "Message", "")}'
            '<button type="submit">Send</button></form>'
        )
        return f"{one.name} {contact}", f"<p>{escape(one.role)}</p>{reply}{form}"


class PortalSite:
    """One session of the portal on loopback."""

    def __init__(self, portal: Portal, changes: Changes) -> None:
        self._portal, self.changes = portal, changes

    def answer(self, request: Request, base: str) -> Response:
        """See `coevo.tasks.loopback.Site`."""
        if request.method == "POST":
            fields = dict(parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True))
            target = self._portal.post(request.path, fields, self.changes)
            return Response(303, b"", "text/html", {"Location": base + target})
        address = f"{quote(request.path)}?{urlencode(dict(request.query))}"
        page = self._portal.get(address, self.changes, base=base)
        return Response(200, page.encode(), "text/html", {"Cache-Control": "no-store"})


def _action(steps: list[str]) -> Action | None:
    if len(steps) != 3:
        return None
    return next((one for one in ACTIONS.values() if one.kind == steps[0] and one.verb == steps[2]), None)


def _form(action: Action, address: str, query: Mapping[str, str]) -> str:
    """One page of a form: hidden fields for what was entered before, then the page's own fields."""
    flow = FLOWS[action.tool]
    asked = min(max(_number(query.get("step", "1")), 1), len(flow.pages))
    before = [name for page in flow.pages[: asked - 1] for name in page]
    wrong = _errors(before, query, tick=False)
    step = next((place for place, page in enumerate(flow.pages, start=1) if set(page) & set(wrong)), asked)
    last = step == len(flow.pages)
    if query.get("checked") and step == asked:
        wrong = _errors(list(flow.pages[step - 1]), query, tick=bool(flow.tick) and last)
    hidden = {name: query.get(name, "") for page in flow.pages[: step - 1] for name in page}
    if not last:
        hidden["step"] = str(step + 1)
    parts = [f'<p role="alert">{escape(text)}</p>' for text in wrong.values()]
    parts.append(f'<form method="{"post" if last else "get"}" action="{address}" autocomplete="off">')
    parts += [f'<input type="hidden" name="{name}" value="{escape(value)}">' for name, value in hidden.items()]
    parts += [_widget(name, query.get(name, "")) for name in flow.pages[step - 1]]
    if last and flow.tick:
        parts.append(f'<p><label>{flow.tick}<input type="checkbox" name="tick" value="yes"></label></p>')
    parts.append(_ending(flow.dialog, last=last))
    return f"<p>Page {step} of {len(flow.pages)}</p>{''.join(parts)}</form>"


def _ending(dialog: bool, *, last: bool) -> str:
    if not last:
        return '<button type="submit">Continue</button>'
    if not dialog:
        return '<button type="submit">Submit</button>'
    return (
        '<button type="button" data-dialog="sure">Submit</button><dialog id="sure"><p>This can not be undone. Submit?</p>'
        '<button type="submit">Yes, submit</button><button type="button" data-close="yes">Cancel</button></dialog>'
    )


def _widget(name: str, value: str) -> str:
    return _select(name, LABELS[name], ("", *CHOICES[name]), value) if name in CHOICES else _text(name, LABELS[name], value)


def _text(name: str, label: str, value: str) -> str:
    return f'<p><label>{label}<input type="text" name="{name}" value="{escape(value)}"></label></p>'


def _select(name: str, label: str, options: tuple[str, ...], chosen: str) -> str:
    listed = "".join(f'<option value="{one}"{" selected" if one == chosen else ""}>{one}</option>' for one in options)
    return f'<p><label>{label}<select name="{name}">{listed}</select></label></p>'


def _search(address: str, name: str, query: Mapping[str, str]) -> str:
    field = _text(name, "Words", query.get(name, ""))
    return f'<form method="get" action="{address}" autocomplete="off">{field}<button type="submit">Search</button></form>'


def _errors(names: list[str], fields: Mapping[str, str], *, tick: bool) -> dict[str, str]:
    """Field -> what is wrong with it."""
    wrong = {name: text for name in names if (text := _wrong(name, fields.get(name, "")))}
    return {**wrong, **({"tick": "Please tick the box."} if tick and fields.get("tick") != "yes" else {})}


def _wrong(name: str, text: str) -> str:
    if not text.strip():
        return f"{LABELS[name]}: please fill in this field."
    if name in CHOICES:
        return "" if text in CHOICES[name] else f"{LABELS[name]}: choose one of the list."
    if name in _NUMBERS and not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,2})?", text.strip()):
        return f"{LABELS[name]}: write a number, for example 12.50."
    try:
        check_field(name, _value(name, text))
    except ToolError as error:
        return f"{LABELS[name]}: {error.what.partition(': ')[2]}."
    return ""


def _value(name: str, text: str) -> Any:
    if name not in _NUMBERS:
        return text.strip()
    number = float(text.strip())
    return int(number) if number == int(number) else number


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise ToolError("There is no such page.")
    return int(text)


def _link(address: str, text: str) -> str:
    return f'<a href="{escape(address)}">{escape(text)}</a>'


def _item(address: str, one: str, text: str) -> str:
    return f"<li>{_link(f'{address}/{one}', one)} {escape(text)}</li>"


def _cell(kind: str, name: str, body: Mapping[str, Any], base: str) -> str:
    value = body.get(name, "")
    return f"<td>{_link(f'{base}/{kind}/{value}', value) if name == 'id' else escape(str(value))}</td>"


def _pages(address: str, query: Mapping[str, str], name: str, number: int, count: int) -> str:
    """Where one is in a list or text of several pages, with links to the neighbours; nothing for a single page."""
    if count == 1:
        return ""
    near: list[tuple[str, int]] = [("Previous", number - 1)] if number > 1 else []
    near += [("Next", number + 1)] if number < count else []
    links = " ".join(_link(f"{address}?{urlencode({**query, name: str(place)})}", label) for label, place in near)
    return f"<p>{name} {number} of {count} {links}</p>"
