"""The anomaly family's truth, by hand.

1. `judge` gives what a person computes from the rules, atom by atom.
2. In every template every atom decides a case: without it something would be settled in another way.
3. Only the versions in force carry the facts; a long world hides more than 100,000 tokens behind its tools.
4. The miniature's words are in the embedded tokenizer or in its own list.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from coevo.mini.tokenizer import WORDS
from coevo.tasks.anomaly import family, mini
from coevo.tasks.anomaly.generator import TEMPLATES
from coevo.tasks.anomaly.rulebook import Atom, Device, Fault, Rules, Ticket, Window, judge
from coevo.tasks.anomaly.standard import facts
from coevo.tasks.family import Size
from tests.unit.solutions import instance_of

CHARS_PER_TOKEN = 4
WORD = re.compile(r"\d+(?:\.\d+)?|[A-Za-z]+\d*")
RULES = Rules(
    atoms=tuple(Atom),
    baseline=Window(1, 0, 23),
    check=Window(0, 12, 23),
    limits=((3, 6), (0.6, 1.2), (1.5, 3), (8, 15)),
    drifts=(1.5, 0.3, 0.75, 4),
    step=0.1,
    gaps=3,
    faults=("E1", "D1", "O1", "S1", "N1"),
    priorities=("P2", "P1"),
    teams=("G1", "G2", "G3", "G4", "G5"),
    zones=("Z8", "Z9"),
    reasons=(("M1", 8), ("T1", 24)),
)


def day(*check: float | None, rest: float = 20) -> tuple[tuple[float | None, ...], ...]:
    """A calm morning, the given last readings of the check, and a calm day before; the rest alternates around its level."""
    calm = [rest - 0.1, rest + 0.1] * 12
    today: list[float | None] = [*calm[: 24 - len(check)], *check]
    return tuple(today), tuple(calm)


CALM = Device("T1", "a", "temperature", "Z1", "C", day(), 0, False, None, "T2", (), False)
LOUD = replace(CALM, id="T2", twin="T1", days=day(30))
ALONE = replace(LOUD, days=day())
OPEN, CLOSED, OTHER = Ticket("K1", Fault.EXCURSION, True), Ticket("K2", Fault.EXCURSION, False), Ticket("K3", Fault.STUCK, True)
CASES: dict[str, tuple[dict[str, Any], Device, tuple[object, ...]]] = {
    "calm": ({}, LOUD, ("accept",)),
    "warning": ({"days": day(24)}, LOUD, ("open_ticket", "E1", "P2", "G1", 4)),
    "at the limit": ({"days": day(23)}, LOUD, ("open_ticket", "E1", "P2", "G1", 3)),
    "alarm": ({"days": day(26.5)}, LOUD, ("open_ticket", "E1", "P1", "G1", 6.5)),
    "a peak before the check": ({"days": ((*day()[0][:5], 40, *day()[0][6:]), day()[1])}, LOUD, ("accept",)),
    "cold is no matter": ({"days": day(10)}, LOUD, ("accept",)),
    "dry is": ({"kind": "humidity", "unit": "percent", "days": day(11)}, LOUD, ("open_ticket", "E1", "P2", "G4", 9)),
    "work": ({"days": day(30), "work": (10, 12)}, LOUD, ("silence", "M1", 8)),
    "work in the morning": ({"days": day(24), "work": (8, 11)}, LOUD, ("open_ticket", "E1", "P2", "G1", 4)),
    "dropout": ({"days": day(30, None, None, None)}, LOUD, ("open_ticket", "O1", "P2", "G5", 3)),
    "two missing": ({"days": day(None, None, 24)}, LOUD, ("open_ticket", "E1", "P2", "G1", 4)),
    "stuck": ({"days": day(*[21.5] * 12)}, LOUD, ("open_ticket", "S1", "P2", "G5", 21.5)),
    "drift": ({"days": day(*[22, 22.2] * 6)}, LOUD, ("open_ticket", "D1", "P2", "G1", 2.1)),
    "pending offset": ({"days": day(24), "offset": 2, "pending": True}, LOUD, ("accept",)),
    "applied offset": ({"days": day(24), "offset": 2}, LOUD, ("open_ticket", "E1", "P2", "G1", 4)),
    "negative offset": ({"days": day(22), "offset": -2, "pending": True}, LOUD, ("open_ticket", "E1", "P2", "G1", 4)),
    "Fahrenheit": ({"unit": "F", "days": day(24)}, LOUD, ("accept",)),
    "sensitive zone": ({"days": day(24), "zone": "Z9"}, LOUD, ("open_ticket", "E1", "P1", "G1", 4)),
    "only this sensor": ({"days": day(26.5)}, ALONE, ("open_ticket", "N1", "P2", "G5", 6.5)),
    "a warning needs no twin": ({"days": day(24)}, ALONE, ("open_ticket", "E1", "P2", "G1", 4)),
    "known": ({"days": day(24), "tickets": (CLOSED, OPEN)}, LOUD, ("add_to_ticket", "K1")),
    "closed or other tickets": ({"days": day(24), "tickets": (CLOSED, OTHER)}, LOUD, ("open_ticket", "E1", "P2", "G1", 4)),
    "explained": ({"days": day(26.5), "explained": True}, LOUD, ("silence", "T1", 24)),
    "explained, but only a warning": ({"days": day(24), "explained": True}, LOUD, ("open_ticket", "E1", "P2", "G1", 4)),
    "known before asked": ({"days": day(26.5), "explained": True, "tickets": (OPEN,)}, LOUD, ("add_to_ticket", "K1")),
}


@pytest.mark.parametrize("name", CASES)
def test_cases_by_hand(name: str) -> None:
    changes, twin, expected = CASES[name]
    call = judge(RULES, replace(CALM, **changes), twin).settle
    assert (call.name, *list(call.arguments.values())[1:]) == expected


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_atom_decides_a_case(template: str) -> None:
    data = facts(family.open(instance_of(family, Size.STANDARD, template, 5)))
    right = [judge(data.rules, one, data.twin(one)).settle for one in data.area.devices]
    assert set(data.rules.atoms) == set(TEMPLATES[template].atoms)
    for atom in set(data.rules.atoms) - {Atom.DUTY}:
        rules = replace(data.rules, atoms=tuple(one for one in data.rules.atoms if one is not atom))
        assert [judge(rules, one, data.twin(one)).settle for one in data.area.devices] != right, atom
    assert {call.name for call in right} >= {"open_ticket", "accept"}


def test_only_versions_in_force_carry_the_rules() -> None:
    """The facts stand in one document of the shelf, whole, and a superseded version never has all of them."""
    for template in ("night", "full", "handover"):
        data = facts(family.open(instance_of(family, Size.STANDARD, template)))
        for paper in data.shelf.documents:
            if paper.topic is None or not any(fact[-1].isdigit() for fact in paper.facts):
                continue
            alike = [one for one in data.shelf.documents if one.title == paper.title]
            carrying = [one.id for one in alike if set(paper.facts) <= set(WORD.findall(one.text))]
            assert len(alike) > 1
            assert carrying == [paper.id], paper.title


@pytest.mark.parametrize("template", ["night", "full"])
def test_long_worlds_are_long(template: str) -> None:
    """Issue 4: 100,000 tokens and more of state, at four characters a token."""
    world = family.open(instance_of(family, Size.LONG, template))
    assert len(world.snapshot()) > 100_000 * CHARS_PER_TOKEN


def test_the_miniature_has_a_closed_vocabulary() -> None:
    known = {*WORDS, *mini.WORDS}
    spec = mini.SPEC
    texts = [template.wording for template in spec.templates.values()] + [spec.declined, spec.stopped, *spec.steps, *spec.kinds]
    texts += [word for tool in spec.tools for word in (tool.name, *tool.argument_names)] + [
        *spec.codes.values(),
        *spec.decoys,
        *spec.letters,
    ]
    words = {word for text in texts for word in re.findall(r"[A-Za-z_]+", text.replace("{queue}", ""))}
    assert words <= known, words - known
