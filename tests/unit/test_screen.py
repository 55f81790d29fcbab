"""Promises of the leakage screen (I8):

1. an identifier, a name or a passage that an instance alone holds, put into any component, is found and named; the refusal says why;
2. what the family shares passes: tool names, fields, codes and sentences of many instances, words of the parent and of the tools;
3. no edit of the default catalogue is refused, and removing is never leaking.
"""

from __future__ import annotations

from random import Random

import pytest

from coevo.chat import Sampling
from coevo.evolve.catalogue import CatalogueProposer
from coevo.evolve.propose import Evidence
from coevo.evolve.screen import LeakageScreen, instance_texts
from coevo.harness.bundle import Skill
from coevo.harness.context import ContextPolicy
from coevo.harness.tools import ToolEntry
from coevo.records import CallRecord, Episode, EpisodeSpec, Grade, MessageRecord, Status, Turn
from tests.unit.shelf import FAMILY, Shelf, base, mixed_episodes

POLICY = "invoices above the limit of 5000 need a second signature from the head of the department ."
NAMES = ("Alice Berger", "Bruno Falk", "Clara Winter", "Dora Lind", "Emil Roth", "Frida Holm", "Gustav Beck", "Hanna Voss")


def episode(number: int) -> Episode:
    """One look at an instance with an id, a name, an address, a sentence of its own, and the policy of all."""
    spec = EpisodeSpec(
        task_key=f"shelf/mini/one/search/{number}", world_version="1", harness_hash=base().hash, model_id="m", sampling=Sampling()
    )
    own = f"the reader of copy bk-{number}31 left a yellow note about page {number} on Tuesday"
    turn = Turn(
        message_index=(0,),
        prompt_shared=0,
        prompt_suffix=(),
        completion_text="",
        call=CallRecord(name="open_book", arguments={"book": f"bk-{number}31", "owner": NAMES[number]}),
        result=f"{POLICY} {own} ; mail reader{number}@shelf.example ; code ST4 ; shelf S7",
    )
    messages = (MessageRecord(role="system", content="s"), MessageRecord(role="user", content=f"keep shelf S7 of case 20260{number} ."))
    grade = Grade(success=False, score=0.0)
    return Episode(id=spec.id, spec=spec, status=Status.COMPLETED, grade=grade, messages=messages, turns=(turn,))


EVIDENCE = Evidence(tuple(episode(number) for number in range(8)), FAMILY)
SCREEN = LeakageScreen.of(EVIDENCE, base())


def refusal(**changes: object) -> str:
    return SCREEN.refusal(base(), base().replace(**changes))


LEAKS = {
    "id in the prompt": ({"system_prompt": "you keep books . discard bk-331 ."}, "identifier 'bk-331'"),
    "id in capitals": ({"system_prompt": "you keep books . discard BK-331 ."}, "identifier 'BK-331'"),
    "id in a hook": ({"hooks": {"h": "def after_tool(event, state):\n    return {'note': 'bk-231'}\n"}}, "identifier 'bk-231'"),
    "id in a comment": ({"hooks": {"h": "def after_tool(event, state):\n    return None  # bk-231\n"}}, "identifier 'bk-231'"),
    "id in a table": ({"hooks": {"h": "def after_tool(event, state):\n    return {'note': {'bk-131':'x'}.get('a')}\n"}}, "'bk-131'"),
    "id as a trigger": ({"skills": {"s": Skill("bk-531", "discard it")}}, "identifier 'bk-531'"),
    "id as a pin": ({"context": ContextPolicy(pins=("bk-431",))}, "identifier 'bk-431'"),
    "id in a description": ({"tools": (*base().tools[:-1], ToolEntry("finish", description="after bk-731"))}, "identifier 'bk-731'"),
    "id as a component's name": ({"skills": {"bk_131": Skill("x", "y bk-131")}}, "identifier 'bk-131'"),
    "number": ({"system_prompt": "you keep books . case 202603 is special ."}, "identifier '202603'"),
    "address": ({"system_prompt": "you keep books . ask reader3@shelf.example ."}, "identifier 'reader3@shelf.example'"),
    "name": ({"system_prompt": "you keep books . trust Clara Winter ."}, "name 'Clara Winter'"),
    "passage": (
        {"system_prompt": "you keep books . Left a yellow note about page 3 on Tuesday, beware"},
        "passage 'left a yellow note about page 3 on'",
    ),
}


@pytest.mark.parametrize(("changes", "reason"), LEAKS.values(), ids=LEAKS.keys())
def test_what_is_of_an_instance_is_refused(changes: dict[str, object], reason: str) -> None:
    """Promise 1."""
    assert reason in refusal(**changes)
    assert "holds for any instance" in refusal(**changes)


SHARED = {
    "tool names": {"system_prompt": "you keep books . after open_book do multiply ."},
    "policy of all instances": {"system_prompt": f"you keep books . {POLICY}"},
    "codes of all instances": {"system_prompt": "you keep books . on shelf S7 use code ST4 ."},
    "small numbers": {"system_prompt": "you keep books . read 3 books , then 217 more ."},
    "words of one's own": {"system_prompt": "you keep books . Check twice what a reader wrote, and write down each price before the next."},
    "seven words in a row": {"system_prompt": "you keep books . left a yellow note about page 3"},
    "source": {"hooks": {"h": "MOST = 5000\ndef after_tool(event, state):\n    return {'note': 'todo ' + str(MOST)}\n"}},
}


@pytest.mark.parametrize("changes", SHARED.values(), ids=SHARED.keys())
def test_what_is_of_the_family_passes(changes: dict[str, object]) -> None:
    """Promise 2."""
    assert refusal(**changes) == ""


def test_what_the_parent_holds_is_no_leak() -> None:
    """Promise 2: nobody is refused for what was there."""
    parent = base().replace(system_prompt="you keep books . discard bk-331 .")
    screen = LeakageScreen.of(EVIDENCE, parent)
    assert screen.refusal(parent, parent.replace(system_prompt="you keep books . discard bk-331 . slowly .")) == ""
    assert screen.refusal(parent, base()) == "", "removing is never leaking"


def test_few_instances_share_nothing() -> None:
    """One instance can't show what is the family's: its ids are its own, whatever they are."""
    screen = LeakageScreen.of(Evidence((episode(3),), FAMILY), base())
    assert "S7" in screen.refusal(base(), base().replace(system_prompt="you keep books . shelf S7 ."))


def test_default_edits_pass() -> None:
    """Promise 3."""
    episodes = mixed_episodes()
    evidence = Evidence(episodes, FAMILY)
    edits = CatalogueProposer(("weigh", "price", "rank")).propose(base(), evidence, Random(0))
    screen = LeakageScreen.of(evidence, base())
    assert len(edits) == 9
    assert [screen.refusal(base(), edit.bundle) for edit in edits] == [""] * len(edits)
    book = next(iter(Shelf(20).books))
    assert book in screen.refusal(base(), base().replace(system_prompt=f"you keep books . start with {book} ."))


def test_texts_of_an_instance() -> None:
    texts = instance_texts([episode(1)])
    assert list(texts) == ["shelf/mini/one/search/1"]
    assert {"bk-131", "Bruno Falk", "keep shelf S7 of case 202601 ."} <= set(texts["shelf/mini/one/search/1"])


def test_all_leaks_are_counted() -> None:
    child = base().replace(system_prompt="you keep books . " + " ".join(f"bk-{number}31" for number in range(8)))
    leaks = SCREEN.leaks(base(), child)
    assert len(leaks) == 8
    assert all(leak.instances == 1 for leak in leaks)
    assert "and 3 more" in SCREEN.refusal(base(), child)
