"""One instance of deskwork as plain data: queues, records, shelf and staff, drawn from a template.

An application is a kind of `DeskData` that names its desks. Cases stand in list order, as an agent meets them; between them lie records of
all desks that stand in no queue, and a directory in which one deputy knows nothing and names the one who does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar, TypeVar

from coevo.identity import derive_seed
from coevo.tasks.contacts import Contact
from coevo.tasks.deskwork import Brief, Desk, Ids, Record, answers_for, draw_brief
from coevo.tasks.deskwork_papers import draw_codes, papers
from coevo.tasks.family import Size, TaskInstance
from coevo.tasks.library import Document

__all__ = ["DeskData", "DeskTemplate", "Part", "Setting", "draw_data", "part"]

PART_CHARS = 1500
"""Where documents of the long size are cut."""

_CODES_PER_DESK = 12
_STANDARD_PER_DESK = 6


@dataclass(frozen=True, slots=True)
class Part:
    """One desk of a template: its rules besides the core ones, and the smallest and largest number of cases."""

    desk: str
    atoms: tuple[str, ...]
    count: tuple[int, int]


def part(desk: str, atoms: str, low: int, high: int) -> Part:
    """A part with its atoms in one string."""
    return Part(desk, tuple(atoms.split()), (low, high))


@dataclass(frozen=True, slots=True)
class DeskTemplate:
    """A request as somebody in the company would write it, with slots named as terms. `drafts` puts future versions on the shelf."""

    wording: str
    parts: tuple[Part, ...]
    drafts: bool = False


@dataclass(frozen=True)
class DeskData:
    """What never changes in one instance.

    Attributes:
        briefs: The queues that the task is about.
        records: All records, cases included, in list order.
        shelf: All documents.
        staff: The directory.
        roles: Role of an `Ask` -> id of the colleague who knows.
        part_chars: Where long documents are cut; None: nowhere.
    """

    table: ClassVar[Mapping[str, Desk]] = {}

    briefs: tuple[Brief, ...]
    records: tuple[Record, ...]
    shelf: tuple[Document, ...]
    staff: tuple[Contact, ...]
    roles: dict[str, str]
    part_chars: int | None

    def desks(self) -> Iterator[tuple[Desk, Brief]]:
        """The queues with their rules."""
        return ((self.table[brief.desk], brief) for brief in self.briefs)

    def word(self, name: str) -> str:
        """A term that the request names, for example the category; empty where no queue has it."""
        return next((str(brief.terms[name]) for brief in self.briefs if name in brief.terms), "")


@dataclass(frozen=True, slots=True)
class Setting:
    """What surrounds the queues of an application.

    Attributes:
        company: Name that titles of documents carry.
        roles: Role of an `Ask` -> title in the directory; the first ones are those that a task may need.
        people: Names.
        asides: Desk -> fields that take a record out of its queue.
        long_per_desk: Records per desk outside the queues in the long size.
    """

    company: str
    roles: Mapping[str, str]
    people: Sequence[str]
    asides: Callable[[Random, str], dict[str, Any]]
    long_per_desk: int


Data = TypeVar("Data", bound=DeskData)


def draw_data(kind: type[Data], instance: TaskInstance, template: DeskTemplate, setting: Setting) -> tuple[str, Data]:
    """The request and the data of one instance."""
    random = Random(derive_seed(instance.family, instance.size, instance.template, instance.stream, instance.seed))
    long, ids = instance.size is Size.LONG, Ids(random)
    codes, briefs = draw_codes(random, _CODES_PER_DESK * len(template.parts)), []
    for place, one in enumerate(template.parts):
        own = codes[_CODES_PER_DESK * place : _CODES_PER_DESK * (place + 1)]
        briefs.append(draw_brief(random, kind.table[one.desk], one.atoms, count=random.randint(*one.count), ids=ids, codes=own))
    pairs = [(kind.table[brief.desk], brief) for brief in briefs]
    staff, roles = _staff(random, pairs, setting)
    records = _records(random, kind.table, briefs, ids, setting, per_desk=setting.long_per_desk if long else _STANDARD_PER_DESK)
    place_of = {one.id: place for place, one in enumerate(records)}
    data = kind(
        briefs=tuple(replace(one, cases=tuple(sorted(one.cases, key=lambda case: place_of[case.id]))) for one in briefs),
        records=records,
        shelf=papers(random, pairs, company=setting.company, drafts=template.drafts, extra=24 if long else 5, wrapped=long),
        staff=staff,
        roles=roles,
        part_chars=PART_CHARS if long else None,
    )
    return template.wording.format(category=data.word("category"), campaign=data.word("campaign")), data


def _records(
    random: Random, table: Mapping[str, Desk], briefs: Sequence[Brief], ids: Ids, setting: Setting, *, per_desk: int
) -> tuple[Record, ...]:
    """The cases with all that belongs to them, between records that stand in no queue."""
    records = [record for brief in briefs for case in brief.cases for record in case.records]
    for desk in table.values():
        terms = {**desk.terms(random), "codes": {}}
        for _ in range(per_desk):
            facts = {**desk.facts(random, terms), "id": ids.take(desk.prefix)}
            own, *linked = desk.records(random, facts, ids)
            records += [Record(own.kind, own.id, {**own.body, **setting.asides(random, desk.name)}), *linked]
    random.shuffle(records)
    return tuple(records)


def _staff(random: Random, pairs: Sequence[tuple[Desk, Brief]], setting: Setting) -> tuple[tuple[Contact, ...], dict[str, str]]:
    """Everybody in the directory, and who knows what."""
    numbers = random.sample(range(10, 100), len(setting.roles) + 1)
    names = random.sample(setting.people, len(setting.roles) + 1)
    staff, roles = [], {}
    for number, name, (role, title) in zip(numbers, names, setting.roles.items(), strict=False):
        answers = tuple(answer for desk, brief in pairs for answer in answers_for(desk, brief, role))
        staff.append(Contact(f"H{number}", name, title, answers, "I have nothing on that. Which id do you mean?"))
        roles[role] = staff[-1].id
    asked = {rule.ask.role for desk, _ in pairs for rule in desk.rules if rule.ask is not None}
    knowing = next((one for role, one in zip(setting.roles, staff, strict=False) if role in asked), staff[0])
    otherwise = f"I only stand in for holidays. Ask {knowing.name}, contact {knowing.id}."
    staff.append(Contact(f"H{numbers[-1]}", names[-1], f"{knowing.role} (deputy)", (), otherwise))
    random.shuffle(staff)
    return tuple(staff), roles
