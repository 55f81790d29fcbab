"""The long payroll world: the rules of the standard one in a company with forty departments and a library of a hundred long documents.

What is audited stays one department, so a careful run is hardly longer. The state behind the tools is: documents come in parts, searches in
pages, policies of other sites lie beside those in force, everybody's records can be read (and settled, which is a mistake), and a pending
approval is decided by asking the department's lead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar

from coevo.chat import ToolSpec
from coevo.errors import ToolError
from coevo.identity import derive_seed
from coevo.tasks.boilerplate import chapter, paragraphs
from coevo.tasks.contacts import Answer, Contact, Contacts
from coevo.tasks.family import Conduct, TaskInstance
from coevo.tasks.library import Document
from coevo.tasks.paging import page_of
from coevo.tasks.payroll.people import NAMES, draw_people
from coevo.tasks.payroll.rulebook import Atom, Person, WidePerson, WideRules, documents, draw_wide_rules, redraw, topics_of, version
from coevo.tasks.payroll.standard import BATCH, CONDUCT, TOOLS, StandardData, StandardWorld, find_template
from coevo.tasks.world import Toolbox

__all__ = ["LONG_CONDUCT", "LONG_TOOLS", "LongData", "LongWorld", "open_long"]

PART_CHARS = 2400
"""Length of one part of a document, in characters."""

_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")
_AREAS = ("Finance", "Operations", "Support", "Logistics", "Sales", "Engineering", "Legal", "Marketing", "Research", "Facilities")
_SITES = ("North", "South", "Harbour", "City")
_PLACES = ("Basel", "Dublin", "Ghent", "Leeds", "Lyon", "Malmo", "Porto", "Turin")
_HEADCOUNT = 12
_DISTRACTORS = 100
_SUBJECTS = (
    "Travel expenses",
    "Parking",
    "Holiday calendar",
    "Laptop policy",
    "Approval of purchases",
    "Pay day",
    "Onboarding of interns",
    "Company cars",
    "Canteen",
    "Pay slips",
    "Working from home",
    "Shift plans",
    "Pension scheme",
    "Sick leave",
    "Training budget",
    "Rate cards of agencies",
)


def _with(tool: ToolSpec, name: str, description: str) -> ToolSpec:
    """The tool with one more optional integer."""
    properties = {**tool.parameters["properties"], name: {"type": "integer", "minimum": 1, "description": description}}
    return ToolSpec(tool.name, tool.description, {**tool.parameters, "properties": properties})


def _tool(name: str, description: str, required: dict[str, str], optional: dict[str, Any]) -> ToolSpec:
    properties = {**{one: {"type": "string", "description": text} for one, text in required.items()}, **optional}
    return ToolSpec(
        name, description, {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    )


_PAGE = {"page": {"type": "integer", "minimum": 1, "description": "page number, from 1"}}
_MORE = (
    _tool("find_contacts", "People by words of name or role; no words: all.", {"query": "words to look for"}, _PAGE),
    _tool("write_message", "Write to a person and get the reply.", {"contact": "contact id", "message": "what to ask"}, {}),
)
LONG_TOOLS = tuple(
    one
    for tool in TOOLS
    for one in {
        "search_documents": (_with(tool, "page", "page of the hits, from 1"),),
        "read_document": (_with(tool, "part", "part of a long text, from 1"), *_MORE),
    }.get(tool.name, (tool,))
)
"""The family tools of this size, in the order in which harnesses show them."""

LONG_CONDUCT = Conduct(CONDUCT.writes, CONDUCT.free | {"part", "message"})


@dataclass(frozen=True, slots=True)
class LongData(StandardData):
    """With the other departments (name -> people) and the directory."""

    others: tuple[tuple[str, tuple[Person, ...]], ...] = ()
    contacts: tuple[Contact, ...] = ()

    @property
    def everybody(self) -> tuple[Person, ...]:
        """Everyone whose record can be read."""
        return (*self.people, *(one for _, people in self.others for one in people))


class LongWorld(StandardWorld):
    """See the module docstring; the state is that of the standard world."""

    toolbox: ClassVar[Toolbox] = Toolbox(LONG_TOOLS)
    _data: LongData

    def __init__(self, instance: TaskInstance, *, instruction: str, data: LongData) -> None:
        super().__init__(instance, instruction=instruction, data=data, part_chars=PART_CHARS)
        self._contacts = Contacts(data.contacts)
        self._departments = {name.casefold(): people for name, people in ((data.department, data.people), *data.others)}

    def tool_list_employees(self, department: str, page: int = 1) -> dict[str, Any]:
        """One page of ids and names of any department."""
        people = self._departments.get(department.casefold())
        if people is None:
            raise ToolError("unknown department; use the name as in the task")
        shown = page_of(people, page, size=BATCH)
        return {
            "employees": [{"employee": one.id, "name": one.name} for one in shown.items],
            "page": shown.number,
            "pages": shown.count,
        }

    def tool_search_documents(self, query: str, page: int = 1) -> dict[str, Any]:
        """A page of hits, those with most of the words first."""
        return self._library.search(query, page=page)

    def tool_read_document(self, document: str, part: int = 1) -> dict[str, Any]:
        """Title and one part of the text."""
        return self._library.read(document, part=part)

    def tool_find_contacts(self, query: str, page: int = 1) -> dict[str, Any]:
        """A page of the directory."""
        return self._contacts.find(query, page=page)

    def tool_write_message(self, contact: str, message: str) -> dict[str, Any]:
        """The reply."""
        return self._contacts.write(contact, message)


def open_long(instance: TaskInstance) -> LongWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    template = find_template(instance)
    random = Random(derive_seed(instance.family, instance.size, instance.template, instance.stream, instance.seed))
    names = [f"{area} {site}" for area in _AREAS for site in _SITES]
    random.shuffle(names)
    month, rules = random.choice(_MONTHS), replace(draw_wide_rules(random, template.atoms, template.additions), ask_lead=True)
    leads = dict(zip(names, (f"C{number}" for number in random.sample(range(100, 1000), len(names))), strict=True))
    people = tuple(_asked(random, one, leads[names[0]]) for one in draw_people(random, rules))
    others = _others(random, names[1:], leads, {one.id for one in people})
    shelf = _shelf(random, rules, f"{month} 2026", draft=template.draft)
    data = LongData(names[0], month, people, rules, shelf, others, tuple(_directory(random, names, leads, people, rules)))
    return LongWorld(instance, instruction=template.wording.format(month=month, department=names[0]), data=data)


def _asked(random: Random, person: Person, lead: str) -> Person:
    """With the lead, and what the lead answers where the system says pending."""
    if not isinstance(person, WidePerson):
        return person
    return replace(person, lead=lead, reply=random.choice(("approved", "refused")) if person.approval == "pending" else "")


def _others(random: Random, names: list[str], leads: dict[str, str], taken: set[str]) -> tuple[tuple[str, tuple[Person, ...]], ...]:
    """The rest of the company: people with records like everybody's."""
    free = [number for number in range(1000, 10000) if f"E{number}" not in taken]
    ids = iter(random.sample(free, len(names) * _HEADCOUNT))
    return tuple((name, tuple(_colleague(random, f"E{next(ids)}", leads[name]) for _ in range(_HEADCOUNT))) for name in names)


def _colleague(random: Random, employee: str, lead: str) -> WidePerson:
    kind, base = random.choice(("staff", "staff", "temp", "contractor", "intern")), random.randint(80, 150)
    weeks = tuple((base + random.randrange(20)) / 4 for _ in range(4))
    return WidePerson(
        employee,
        random.choice(NAMES),
        kind,
        random.randint(280, 900) / 20,
        weeks,
        random.choice(("approved", "pending", "none")),
        lead=lead,
    )


def _directory(random: Random, names: list[str], leads: dict[str, str], people: tuple[Person, ...], rules: WideRules) -> Iterator[Contact]:
    """The lead of each department, in shuffled order; the audited one's can answer for pending approvals."""
    own = tuple(_answer(one) for one in people if isinstance(one, WidePerson) and one.reply and Atom.APPROVAL in dict(rules.atoms))
    for name in random.sample(names, len(names)):
        answers = own if name == names[0] else ()
        away = "Thank you for the message. I can say something about the hours of my own people only; please name the employee."
        yield Contact(leads[name], random.choice(NAMES), f"lead of {name}", answers, away)


def _answer(person: WidePerson) -> Answer:
    said = "the overtime is approved, it was agreed before." if person.reply == "approved" else "the overtime is refused, nobody asked me."
    return Answer(("overtime", "approved", "approval", "approve", "hours", "confirm"), f"{person.id}: {said}", person.id)


def _shelf(random: Random, rules: WideRules, month: str, *, draft: bool) -> tuple[Document, ...]:
    """Everything that search finds: versions in force, older ones, those of other sites, and what has nothing to do with payroll."""
    numbers = (f"P{number}" for number in random.sample(range(100, 1000), len(_PLACES) * 4 + _DISTRACTORS))
    shelf = [
        replace(one, text=chapter(random, one.text, count=random.randint(6, 12))) for one in documents(random, rules, month, draft=draft)
    ]
    for place in _PLACES:
        other = redraw(random, rules)
        for topic in topics_of(rules):
            closing = f"It holds for the {place} site only, which runs its payroll by itself."
            one = version(topic, next(numbers), other, closing, title=f"({place})")
            shelf.append(replace(one, text=chapter(random, one.text, count=random.randint(6, 12))))
    for _ in range(_DISTRACTORS):
        title = f"{random.choice(_SUBJECTS)}, {random.choice(_PLACES)}"
        text = "\n\n".join(paragraphs(random, random.randint(8, 14)))
        keywords = tuple(dict.fromkeys([*title.lower().replace(",", "").split(), "policy", "rules"]))
        shelf.append(Document(next(numbers), title, text, keywords))
    random.shuffle(shelf)
    return tuple(shelf)
