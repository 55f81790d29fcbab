"""The stock family's truth, by hand.

1. `judge` gives what a person computes from the rules, atom by atom; the documents in force state each number that it used.
2. In every template every atom decides a case: without it something would be settled or reported in another way.
3. Only the versions in force carry the facts; a long world hides more than 100,000 tokens behind its tools.
4. The miniature's words are in the embedded tokenizer or in its own list.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from coevo.chat import ToolCall
from coevo.mini.tokenizer import WORDS
from coevo.tasks.family import Size
from coevo.tasks.stock import family, mini
from coevo.tasks.stock.generator import TEMPLATES
from coevo.tasks.stock.rulebook import Atom, Position, Rules, Severity, judge
from coevo.tasks.stock.standard import closing_call, facts
from tests.unit.solutions import instance_of

CHARS_PER_TOKEN = 4
WORD = re.compile(r"\d+(?:\.\d+)?|[A-Za-z]+\d*")
RULES = Rules(
    atoms=tuple(atom for atom in Atom if atom is not Atom.STALE),
    limits=((4, 9), (2, 5), (1, 2.5), (3, 7)),
    codes=("W1", "N1", "C1"),
    step=0.1,
    factor=2,
    heavy=3,
    large=500_000,
    fresh_minutes=20,
    repeat_hours=4,
    reasons=((Atom.HALT, "H1"), (Atom.STALE, "S1"), (Atom.DUPLICATE, "D1"), (Atom.ORDER, "O1")),
    recipients=("U1", "U2"),
    feed="U3",
    unit=10,
    rates=(1, 0.9, 1.2, 1.05),
)
QUIET = Position("S1", "A", "equity", 100, "EUR", "U9", 100, 101, 5, False, 1, ("none", 0), (), False, 101)
CASES = {
    "quiet": ({}, ("clear",)),
    "up 5 %": ({"last": 105}, ("send_alert", "N1", 5, "U9")),
    "down 10 %": ({"last": 90}, ("send_alert", "C1", -10, "U2")),
    "at the limit": ({"last": 104}, ("send_alert", "N1", 4, "U9")),
    "rounding": ({"close": 96, "last": 100}, ("send_alert", "N1", 4.2, "U9")),
    "halted": ({"last": 120, "halted": True}, ("mute", "H1")),
    "old quote, checked": ({"last": 120, "minutes": 21, "checked": 101}, ("clear",)),
    "quote at the age limit": ({"last": 105, "minutes": 20, "checked": 101}, ("send_alert", "N1", 5, "U9")),
    "dividend of 6 and nothing else": ({"last": 94, "event": ("dividend", 6)}, ("clear",)),
    "split in two": ({"last": 51, "event": ("split", 2)}, ("clear",)),
    "earnings, 7 %": ({"last": 107, "event": ("earnings", 0)}, ("clear",)),
    "earnings, 9 %": ({"last": 109, "event": ("earnings", 0)}, ("send_alert", "N1", 9, "U9")),
    "heavy trading": ({"turnover": 3}, ("send_alert", "W1", 1, "U1")),
    "large position": ({"last": 105, "quantity": 5000}, ("send_alert", "C1", 5, "U2")),
    "large in dollars only": ({"last": 105, "quantity": 5000, "currency": "USD"}, ("send_alert", "N1", 5, "U9")),
    "sent an hour ago": ({"last": 105, "alerts": ((1, Severity.NOTICE),)}, ("mute", "D1")),
    "a lower one an hour ago": ({"last": 110, "alerts": ((1, Severity.NOTICE),)}, ("send_alert", "C1", 10, "U2")),
    "sent five hours ago": ({"last": 105, "alerts": ((5, Severity.CRITICAL),)}, ("send_alert", "N1", 5, "U9")),
    "planned": ({"last": 110, "planned": True}, ("mute", "O1")),
    "planned, but only a notice": ({"last": 105, "planned": True}, ("send_alert", "N1", 5, "U9")),
    "halted before all else": ({"last": 110, "planned": True, "halted": True, "alerts": ((1, Severity.CRITICAL),)}, ("mute", "H1")),
}


@pytest.mark.parametrize("name", CASES)
def test_cases_by_hand(name: str) -> None:
    changes, expected = CASES[name]
    call = judge(RULES, replace(QUIET, **changes)).settle
    assert (call.name, *list(call.arguments.values())[1:]) == expected


def test_stale_quotes_are_escalated() -> None:
    rules = replace(RULES, atoms=(Atom.STALE,))
    assert judge(rules, replace(QUIET, minutes=21)).settle == ToolCall("escalate", {"instrument": "S1", "reason": "S1"})
    assert judge(rules, replace(QUIET, minutes=20)).settle.name == "clear"


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_atom_decides_a_case(template: str) -> None:
    data = facts(family.open(instance_of(family, Size.STANDARD, template, 5)))
    right = [judge(data.rules, one).settle for one in data.desk.positions]
    assert set(data.rules.atoms) == set(TEMPLATES[template].atoms)
    for atom in set(data.rules.atoms) - {Atom.ROSTER}:
        rules = replace(data.rules, atoms=tuple(one for one in data.rules.atoms if one is not atom))
        other = [judge(rules, one).settle for one in data.desk.positions]
        assert (other, closing_call(replace(data, rules=rules))) != (right, closing_call(data)), atom
    assert {call.name for call in right} >= {"send_alert", "clear"}


def test_only_versions_in_force_carry_the_rules() -> None:
    """The facts stand in one document of the shelf, whole, and a superseded version never has all of them."""
    for template in ("afternoon", "full", "busy"):
        data = facts(family.open(instance_of(family, Size.STANDARD, template)))
        for paper in data.shelf.documents:
            if paper.topic is None or paper.facts == ("roster",):
                continue
            alike = [one for one in data.shelf.documents if one.title == paper.title]
            carrying = [one.id for one in alike if set(paper.facts) <= set(WORD.findall(one.text))]
            assert len(alike) > 1
            assert carrying == [paper.id], paper.title


@pytest.mark.parametrize("template", ["afternoon", "full"])
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
