"""Promises of the operators that a configuration adds to the catalogue, on the shelf family:

1. each fires on the failures it is for and is silent without them; its edit, played, does what it says;
2. none writes a value of an instance: the leakage screen passes all of them;
3. the default operators come first in the table, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from coevo.chat import Message, Role, ToolCall, ToolSpec
from coevo.errors import ToolError
from coevo.evolve.catalogue import OPERATORS, CatalogueProposer
from coevo.evolve.operators import CATALOGUE
from coevo.evolve.propose import Edit, Evidence
from coevo.evolve.screen import LeakageScreen
from coevo.harness.bundle import HarnessBundle
from coevo.harness.context import ContextPolicy
from coevo.harness.sandbox import shared_pool
from coevo.harness.session import Executed, HarnessSession
from coevo.records import Episode
from tests.unit.shelf import FAILURES, FAMILY, Script, Shelf, base, play_script, solution

NAMES = ("survey", "weigh", "price")
Calls = list[tuple[str, dict[str, Any]]]


def edits_of(operator: str, *episodes: Episode, parent: HarnessBundle | None = None) -> list[Edit]:
    """The operator's edits; each must pass the screen."""
    harness, evidence = parent or base(), Evidence(episodes, FAMILY)
    edits = CatalogueProposer(NAMES, operators=[CATALOGUE[operator]]).propose(harness, evidence, Random(0))
    screen = LeakageScreen.of(evidence, harness)
    assert [screen.refusal(harness, edit.bundle) for edit in edits] == [""] * len(edits), "promise 2"
    return edits


def successes(bundle: HarnessBundle | None = None) -> list[Episode]:
    return [play_script(seed, solution(seed), bundle=bundle) for seed in range(8)]


def others(kind: str = "copies wrong", bundle: HarnessBundle | None = None) -> list[Episode]:
    """Failures that no operator here is for."""
    return [play_script(seed, FAILURES[kind](seed), bundle=bundle) for seed in range(20, 23)]


def failing(script: Any, bundle: HarnessBundle | None = None) -> list[Episode]:
    episodes = [play_script(seed, script(seed), bundle=bundle) for seed in range(20, 23)]
    assert not any(episode.success for episode in episodes)
    return episodes


class Strict(Shelf):
    """A shelf whose tools take only what their schema says."""

    def call(self, name: str, arguments: Any) -> Any:
        spec: ToolSpec = next(tool for tool in FAMILY if tool.name == name)
        for key, value in arguments.items():
            kind = spec.parameters["properties"].get(key, {}).get("type")
            if kind is None or (kind == "integer") != isinstance(value, int):
                raise ToolError(f"bad arguments: {key}")
        return super().call(name, arguments)


def run(bundle: HarnessBundle, script: Script, seed: int = 20, world: Shelf | None = None) -> tuple[HarnessSession, list[Executed]]:
    session = HarnessSession(bundle, FAMILY, (world or Shelf(seed)).call, sandboxes=shared_pool())
    session.start("keep shelf S7 .")
    return session, [session.execute(ToolCall(name, arguments), turn) for turn, (name, arguments) in enumerate(script)]


def mistyped(seed: int) -> Calls:
    """Prices as text and under another name, refused; then gives up."""
    book = next(iter(Shelf(seed).books))
    return [("survey", {"shelf": "S7"}), ("shelve", {"book": book, "cost": "1,204"}), ("finish", {})]


def refused(episodes: Sequence[Episode], turn: int, text: str) -> list[Episode]:
    """The same episodes with that turn refused."""
    marked = []
    for episode in episodes:
        turns = list(episode.turns)
        turns[turn] = turns[turn].model_copy(update={"result": text, "result_error": True})
        marked.append(episode.model_copy(update={"turns": tuple(turns)}))
    return marked


def test_repair_types() -> None:
    broken = refused(failing(mistyped), 1, "error= bad arguments")
    (edit,) = edits_of("repair_types", *successes(), *broken)
    assert edit.component == "hook:types"
    assert {turn for _, turn in edit.evidence} == {1}
    world = Strict(20)
    _, outcomes = run(edit.bundle, mistyped(20), world=world)
    assert outcomes[1].error is None
    assert world.done == {next(iter(world.books)): 1204}
    assert not any(outcome.rewritten for outcome in run(edit.bundle, solution(20))[1]), "right calls are left alone"
    assert edits_of("repair_types", *successes(), *others()) == []


def cycling(seed: int) -> Calls:
    """Looks at two books in turn, for ever."""
    first, second, *_ = Shelf(seed).books
    return [("survey", {"shelf": "S7"}), *[("open_book", {"book": book}) for book in (first, second) * 4]]


def test_cycle_breaker() -> None:
    (edit,) = edits_of("cycle_breaker", *successes(), *failing(cycling))
    _, outcomes = run(edit.bundle, cycling(20))
    assert [outcome.error for outcome in outcomes] == [None] * 5 + ["same call again"] * 4
    assert run(edit.bundle, solution(20))[1][-1].error is None
    assert edits_of("cycle_breaker", *successes(), *others()) == []


def unfinished(seed: int) -> Calls:
    """Everything but the end."""
    return [*solution(seed)[:-1], *[("survey", {"shelf": "S7"})] * 3]


def test_finish_reminder() -> None:
    (edit,) = edits_of("finish_reminder", *successes(), *failing(unfinished))
    session, _ = run(edit.bundle, solution(20)[:-1])
    said = [message.content for message in session.before_model(9, [Message(Role.TOOL, "x")])]
    assert said == ["todo none , finish"]
    session, _ = run(edit.bundle, solution(20)[:3])
    assert session.before_model(3, [Message(Role.TOOL, "x")]) == []
    assert edits_of("finish_reminder", *successes(), *others("ends early")) == []


def test_trim_observations() -> None:
    flooded = [
        episode.model_copy(update={"turns": (episode.turns[0].model_copy(update={"result": "book " * 500}), *episode.turns[1:])})
        for episode in others()
    ]
    (edit,) = edits_of("trim_observations", *successes(), *flooded)
    limit = edit.bundle.context.max_observation_chars
    assert limit is not None
    assert 50 <= limit <= 150
    assert {turn for _, turn in edit.evidence} == {0}
    assert edits_of("trim_observations", *successes(), *others()) == []


def test_elide_repeats() -> None:
    long = [play_script(seed, [*[("survey", {"shelf": "S7"})] * 30]) for seed in range(20, 23)]
    (edit,) = edits_of("elide_repeats", *successes(), *long)
    assert edit.bundle.context == ContextPolicy(elide_repeats=True)
    assert edits_of("elide_repeats", *successes(), *others()) == []
    again = edit.bundle
    longer = [play_script(seed, [("survey", {"shelf": "S7"})] * 30, bundle=again) for seed in range(20, 23)]
    assert edits_of("elide_repeats", *successes(again), *longer, parent=again) == []


def test_pin_listing() -> None:
    def forgets(seed: int) -> Calls:
        first = next(iter(Shelf(seed).books))
        return [("survey", {"shelf": "S7"}), *[("open_book", {"book": first})] * 6, ("finish", {})]

    trimmed = base().replace(context=ContextPolicy(keep_last_turns=3))
    (edit,) = edits_of("pin_listing", *successes(trimmed), *failing(forgets, trimmed), parent=trimmed)
    assert edit.bundle.context == ContextPolicy(keep_last_turns=3, pins=("survey",))
    assert {turn for _, turn in edit.evidence} == {4}
    assert edits_of("pin_listing", *successes(), *failing(forgets)) == [], "nothing is lost from a whole context"


def test_playbook_lines_and_skills() -> None:
    def hasty(seed: int) -> Calls:
        book = next(iter(Shelf(seed).books))
        return [("survey", {"shelf": "S7"}), ("multiply", {"pages": 1, "rate": 1}), ("discard", {"book": book}), ("finish", {})]

    broken = refused(failing(hasty), 1, "error= this book was not opened , open bk-4711 first")
    line, skill = edits_of("playbook_lines", *successes(), *broken)
    assert line.bundle.system_prompt == "you keep books . before multiply do open_book .\n"
    shown = skill.bundle.skills["after_multiply"]
    assert (shown.trigger, shown.text) == ("error= this book was not opened , open", "before multiply do open_book .")
    session, _ = run(skill.bundle, [])
    messages = [Message(Role.TOOL, "error= this book was not opened , open bk-9 first")]
    assert [message.content for message in session.before_model(1, messages)] == [shown.text]
    assert session.component_use == {"skill:after_multiply": 1}
    assert edits_of("playbook_lines", *successes(), *others()) == []


def test_few_shot() -> None:
    (edit,) = edits_of("few_shot", *successes(), *others("skips"))
    prompt = edit.bundle.system_prompt
    assert prompt.startswith("you keep books . example survey shelf , open_book book ,")
    assert prompt.endswith("finish .\n")
    again = edit.bundle
    assert edits_of("few_shot", *successes(again), *others("skips", again), parent=again) == [], "the same example is no edit"
    assert edits_of("few_shot", *successes(), *others()) == []


@pytest.mark.parametrize("source", ["harness", "format"])
def test_rename_confused(source: str) -> None:
    def wrong(seed: int) -> Calls:
        return [("survey", {"shelf": "S7"}), ("open_books", {"book": next(iter(Shelf(seed).books))}), ("finish", {})]

    episodes = failing(wrong)
    if source == "format":
        said = {"call": None, "parse_failure": "unknown tool open_books; the tools are survey", "result": "x"}
        episodes = [
            one.model_copy(update={"turns": (one.turns[0], one.turns[1].model_copy(update=said), one.turns[2])}) for one in episodes
        ]
    (edit,) = edits_of("rename_confused", *successes(), *episodes)
    assert edit.component == "entry:open_book"
    assert [entry.shown_name for entry in edit.bundle.tools][:3] == ["survey", "open_books", "multiply"]
    assert run(edit.bundle, wrong(20))[1][1].error is None
    assert edits_of("rename_confused", *successes(), *episodes[:1]) == [], "one episode is no habit"


def test_renaming_follows_into_the_prompt() -> None:
    parent = base().replace(system_prompt="you keep books . after survey do open_book . open_bookish .")
    script: Calls = [("survey", {"shelf": "S7"}), ("open_books", {"book": "x"}), ("finish", {})]
    episodes = [play_script(seed, script, bundle=parent) for seed in range(20, 23)]
    (edit,) = edits_of("rename_confused", *successes(parent), *episodes, parent=parent)
    assert edit.bundle.system_prompt == "you keep books . after survey do open_books . open_bookish .\n"


def test_the_table_starts_with_the_default() -> None:
    assert tuple(CATALOGUE.values())[: len(OPERATORS)] == OPERATORS
    assert len(CATALOGUE) == 20


def test_all_together_are_ranked_by_failures() -> None:
    episodes = [*successes(), *failing(cycling), *failing(unfinished), *others("skips")]
    edits = CatalogueProposer(NAMES, operators=list(CATALOGUE.values())).propose(base(), Evidence(tuple(episodes), FAMILY), Random(0))
    counts = [len(edit.predicted_fixes) for edit in edits]
    assert counts == sorted(counts, reverse=True)
    assert {"cycle breaker", "finish reminder", "few-shot", "playbook"} <= {edit.mechanism for edit in edits}
