"""The data behind the portal: records, handbook and directory of one instance, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from coevo.errors import ConfigError, nearest
from coevo.identity import derive_seed
from coevo.tasks.browser.catalogue import DESKS, TEMPLATES
from coevo.tasks.browser.paperwork import PEOPLE, TODAY
from coevo.tasks.contacts import Contact
from coevo.tasks.deskwork import Brief, Desk, Ids, Record, answers_for, draw_brief
from coevo.tasks.deskwork_papers import draw_codes, papers
from coevo.tasks.family import Size, TaskInstance
from coevo.tasks.library import Document

__all__ = ["OfficeData", "draw_office"]

_STAFF = (
    ("security", "security officer"),
    ("travel", "travel desk"),
    ("facilities", "facilities"),
    ("accounts", "accounts payable"),
    ("training", "training office"),
)
_DONE = ("approved", "returned", "settled", "withdrawn")


@dataclass(frozen=True, slots=True)
class OfficeData:
    """What never changes in one instance: plain data.

    Attributes:
        briefs: The queues that the task is about.
        records: All records, cases included, in list order.
        shelf: The handbook.
        staff: The directory.
        roles: Role of an `Ask` -> id of the colleague who knows.
        part_chars: Where long texts are cut; None: nowhere.
    """

    briefs: tuple[Brief, ...]
    records: tuple[Record, ...]
    shelf: tuple[Document, ...]
    staff: tuple[Contact, ...]
    roles: dict[str, str]
    part_chars: int | None

    def desks(self) -> Iterator[tuple[Desk, Brief]]:
        """The queues with their rules."""
        return ((DESKS[brief.desk], brief) for brief in self.briefs)


def draw_office(instance: TaskInstance) -> tuple[str, OfficeData]:
    """Instruction and data of one instance. Raises `ConfigError` for an unknown template."""
    template = TEMPLATES.get(instance.template)
    if template is None:
        raise ConfigError("unknown browser template", seen=instance.template, fix=nearest(instance.template, TEMPLATES))
    random = Random(derive_seed(instance.family, instance.size, instance.template, instance.stream, instance.seed))
    long, ids = instance.size is Size.LONG, Ids(random)
    codes = draw_codes(random, 24)
    briefs = [
        draw_brief(
            random, DESKS[part.desk], part.atoms, count=random.randint(*part.count), ids=ids, codes=codes[12 * place : 12 * place + 12]
        )
        for place, part in enumerate(template.parts)
    ]
    pairs = [(DESKS[brief.desk], brief) for brief in briefs]
    staff, roles = _staff(random, pairs)
    records = _records(random, briefs, ids, per_desk=300 if long else 6)
    place_of = {one.id: place for place, one in enumerate(records)}
    data = OfficeData(
        briefs=tuple(replace(one, cases=tuple(sorted(one.cases, key=lambda case: place_of[case.id]))) for one in briefs),
        records=records,
        shelf=papers(random, pairs, company="portal", drafts=template.drafts, extra=24 if long else 5, wrapped=long),
        staff=staff,
        roles=roles,
        part_chars=1500 if long else None,
    )
    return f"{template.wording} Today is {TODAY.day} October {TODAY.year}.", data


def _records(random: Random, briefs: list[Brief], ids: Ids, *, per_desk: int) -> tuple[Record, ...]:
    """The cases with all that belongs to them, between settled records of all desks."""
    records = [record for brief in briefs for case in brief.cases for record in case.records]
    for desk in DESKS.values():
        terms = {**desk.terms(random), "codes": {}}
        for _ in range(per_desk):
            facts = {**desk.facts(random, terms), "id": ids.take(desk.prefix)}
            own, *linked = desk.records(random, facts, ids)
            records += [Record(own.kind, own.id, {**own.body, "status": random.choice(_DONE)}), *linked]
    random.shuffle(records)
    return tuple(records)


def _staff(random: Random, pairs: list[tuple[Desk, Brief]]) -> tuple[tuple[Contact, ...], dict[str, str]]:
    """Everybody in the directory. A deputy knows nothing and names the one who does."""
    numbers = random.sample(range(10, 100), len(_STAFF) + 1)
    names = random.sample(PEOPLE, len(_STAFF) + 1)
    staff, roles = [], {}
    for number, name, (role, title) in zip(numbers, names, _STAFF, strict=False):
        answers = tuple(answer for desk, brief in pairs for answer in answers_for(desk, brief, role))
        staff.append(Contact(f"H{number}", name, title, answers, "I have nothing on that. Which id do you mean?"))
        roles[role] = staff[-1].id
    knowing = staff[0]
    otherwise = f"I only stand in for holidays. Ask {knowing.name}, contact {knowing.id}."
    staff.append(Contact(f"H{numbers[-1]}", names[-1], f"{knowing.role} (deputy)", (), otherwise))
    random.shuffle(staff)
    return tuple(staff), roles
