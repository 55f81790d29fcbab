"""Promises of the catalogue proposer, on a family that shares no name with any in the package:

1. each operator fires on the failures it is for and is silent without them; its edit, played, turns them;
2. a recipe never contains a tool that settles, lists or finishes;
3. edits of an already present component update it, and what changes nothing is not offered.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from coevo.chat import ToolCall
from coevo.errors import ConfigError
from coevo.evolve.catalogue import CatalogueProposer, rename_tool
from coevo.evolve.propose import Edit, Evidence
from coevo.evolve.traces import find_recipes, find_worklist, read_trace, says, transitions
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import shared_pool
from coevo.harness.session import Executed, HarnessSession
from coevo.harness.tools import ToolEntry
from coevo.records import Episode
from tests.unit.shelf import FAILURES, FAMILY, Script, Shelf, base, mixed_episodes, play_script, solution

NAMES = ("survey", "weigh", "price")


def edits_of(*episodes: Episode, parent: HarnessBundle | None = None) -> dict[str, Edit]:
    edits = CatalogueProposer(NAMES).propose(parent or base(), Evidence(episodes, FAMILY), Random(0))
    return {edit.mechanism: edit for edit in edits}


def successes(bundle: HarnessBundle | None = None) -> list[Episode]:
    return [play_script(seed, solution(seed), bundle=bundle) for seed in range(8)]


def failures(kind: str, bundle: HarnessBundle | None = None) -> list[Episode]:
    return [play_script(seed, FAILURES[kind](seed), bundle=bundle) for seed in range(20, 23)]


def run(bundle: HarnessBundle, script: Script, seed: int = 20) -> tuple[Shelf, list[Executed]]:
    world = Shelf(seed)
    session = HarnessSession(bundle, FAMILY, world.call, sandboxes=shared_pool())
    session.start("keep shelf S7 .")
    return world, [session.execute(ToolCall(name, arguments), turn) for turn, (name, arguments) in enumerate(script)]


def test_the_scripts_do_what_they_say() -> None:
    assert all(episode.success for episode in successes())
    assert not any(episode.success for kind in FAILURES for episode in failures(kind))


@pytest.mark.parametrize("syntax", ["mini", "json"])
def test_worklist(syntax: str) -> None:
    traces = [read_trace(episode) for episode in mixed_episodes(syntax=syntax)]
    work = find_worklist(traces)
    assert work is not None
    assert (work.listing, work.settling, work.item) == ("survey", ("discard", "shelve"), "book")
    assert work.listed(traces[0]) == tuple(Shelf(0).books)
    assert work.open_items(traces[0]) == ()


def test_no_worklist_without_successes() -> None:
    assert find_worklist([read_trace(episode) for kind in FAILURES for episode in failures(kind)]) is None


def test_todo_note() -> None:
    edit = edits_of(*successes(), *failures("ends early"))["todo note"]
    first, second, *_ = books = list(Shelf(20).books)
    _, outcomes = run(edit.bundle, [("open_book", {"book": first}), ("survey", {"shelf": "S7"}), ("discard", {"book": second})])
    assert [outcome.notes for outcome in outcomes] == [
        (),
        (f"todo {' '.join(books)}",),
        (f"todo {' '.join(book for book in books if book != second)}",),
    ]
    world, outcomes = run(edit.bundle, solution(20))
    assert outcomes[-1].notes == ("todo none",)
    assert world.success


def test_finish_guard() -> None:
    edit = edits_of(*successes(), *failures("ends early"))["finish guard"]
    world, outcomes = run(edit.bundle, [("finish", {}), ("survey", {"shelf": "S7"}), ("finish", {})])
    assert not world.finished
    assert outcomes[-1].error == f"blocked todo {' '.join(world.books)}"
    assert run(edit.bundle, solution(20))[0].success


def test_loop_breaker() -> None:
    edit = edits_of(*successes(), *failures("loops"))["loop breaker"]
    _, outcomes = run(edit.bundle, [("survey", {"shelf": "S7"})] * 2)
    assert [outcome.error for outcome in outcomes] == [None, "repeat"]
    assert "loop breaker" not in edits_of(*successes(), *failures("ends early"))


def test_recipe_tool() -> None:
    found = edits_of(*successes(), *failures("skips"))
    hidden, kept = found["recipe tool, parts hidden"], found["recipe tool"]
    assert [entry.name for entry in hidden.bundle.tools] == ["survey", "weigh", "shelve", "discard", "sweep", "finish"]
    assert [entry.name for entry in kept.bundle.tools][:4] == ["survey", "weigh", "open_book", "multiply"]
    assert hidden.component == "tool:weigh", "a name that the family uses is not taken"
    assert "after survey do weigh ." in hidden.bundle.system_prompt
    assert "after weigh do shelve ." in hidden.bundle.system_prompt
    book, (pages, rate) = next(iter(Shelf(20).books.items()))
    _, (outcome,) = run(hidden.bundle, [("weigh", {"book": book})])
    assert outcome.value == {"book": book, "pages": pages, "rate": rate, "product": pages * rate}


def test_recipes_never_settle() -> None:
    """A harness must not do the task by itself: `open_book` then `discard(book)` recurs in successes and is not a recipe."""
    traces = [read_trace(episode) for episode in successes()]
    work = find_worklist(traces)
    assert work is not None
    unbarred = {(recipe.read, recipe.then) for recipe in find_recipes(traces, exclude=())}
    assert ("open_book", "discard") in unbarred
    barred = {(recipe.read, recipe.then) for recipe in find_recipes(traces, exclude=(work.listing, *work.settling))}
    assert barred == {("open_book", "multiply")}


def test_playbook() -> None:
    edit = edits_of(*successes(), *failures("skips"))["playbook"]
    prompt = edit.bundle.system_prompt
    assert prompt.startswith("you keep books . rules after survey do open_book . after open_book do multiply .")
    assert "after multiply do shelve ." in prompt
    assert "after shelve do open_book ." in prompt
    assert "finish" not in prompt
    again = edits_of(*successes(edit.bundle), *failures("skips", edit.bundle), parent=edit.bundle)
    assert "playbook" not in again, "the same playbook is no edit"


def test_repair_ids() -> None:
    edit = edits_of(*successes(), *failures("miscopies"))["repair ids"]
    script = FAILURES["miscopies"](20)
    book = next(iter(Shelf(20).books))
    _, outcomes = run(edit.bundle, script)
    assert outcomes[1].error is None
    assert outcomes[1].notes == (f"rewritten open_book(book={book})",)
    assert run(edit.bundle, solution(20))[0].success
    _, outcomes = run(edit.bundle, [("survey", {"shelf": "S7"}), ("open_book", {"book": "bk-xx"}), ("open_book", {"book": "nothing"})])
    assert [outcome.rewritten for outcome in outcomes] == [False] * 3, "what is far from every id is left alone"


def test_repair_value() -> None:
    edit = edits_of(*successes(), *failures("copies wrong"))["repair value"]
    world, outcomes = run(edit.bundle, FAILURES["copies wrong"](20))
    assert world.success
    assert any(outcome.rewritten for outcome in outcomes)
    assert not any(outcome.rewritten for outcome in run(edit.bundle, solution(20))[1])
    assert "repair value" not in edits_of(*successes(), *failures("ends early"))


def test_hide_unused() -> None:
    edit = edits_of(*successes(), *failures("sweeps"))["hide unused"]
    assert [entry.name for entry in edit.bundle.tools] == ["survey", "open_book", "multiply", "shelve", "discard", "finish"]
    assert "hide unused" not in edits_of(*successes()[:4], *failures("sweeps")), "four successes are too few to call a tool useless"


def test_hide_covered() -> None:
    kept = edits_of(*successes(), *failures("skips"))["recipe tool"].bundle
    found = edits_of(*successes(kept), *failures("skips", kept), parent=kept)
    assert [entry.name for entry in found["hide covered tools"].bundle.tools] == ["survey", "weigh", "shelve", "discard", "sweep", "finish"]
    assert "recipe tool" not in found, "the recipe is there already"


def test_context_is_trimmed_only_beside_a_todo_note() -> None:
    assert not any("turns" in mechanism for mechanism in edits_of(*mixed_episodes()))
    parent = edits_of(*mixed_episodes())["todo note"].bundle
    found = edits_of(*successes(parent), *failures("ends early", parent), parent=parent)
    assert {edit.bundle.context.keep_last_turns for edit in found.values() if edit.component == "context"} == {3, 4, 6}
    assert "todo note" not in found


def test_components_are_updated() -> None:
    old = base().replace(hooks={"todo": "def after_tool(event, state):\n    return None\n"})
    edit = edits_of(*successes(old), *failures("ends early", old), parent=old)["todo note"]
    assert list(edit.bundle.hooks) == ["todo"]
    assert "LISTING = 'survey'" in edit.bundle.hooks["todo"]


def test_renamed_tools() -> None:
    """Sources name family tools, prompts name shown ones."""
    tools = tuple(ToolEntry(entry.name, shown="" if entry.name == "finish" else f"do_{entry.name}") for entry in base().tools)
    renamed = base().replace(tools=tools)

    def shown(script: Script) -> Script:
        return [(name if name == "finish" else f"do_{name}", arguments) for name, arguments in script]

    episodes = [play_script(seed, shown(solution(seed)), bundle=renamed) for seed in range(8)]
    episodes += [play_script(seed, shown(FAILURES["skips"](seed)), bundle=renamed) for seed in range(20, 23)]
    edit = edits_of(*episodes, parent=renamed)["recipe tool, parts hidden"]
    assert "after do_survey do weigh ." in edit.bundle.system_prompt
    assert "open_book(" in edit.bundle.composites["weigh"]


def test_a_sanity_edit_changes_a_name_only() -> None:
    (edit,) = CatalogueProposer(NAMES, operators=(rename_tool,)).propose(base(), Evidence(mixed_episodes(), FAMILY), Random(0))
    assert [entry.shown_name for entry in edit.bundle.tools][:2] == ["weigh", "open_book"]
    assert run(edit.bundle, [("weigh", {"shelf": "S7"})])[1][0].value == {"books": list(Shelf(20).books)}
    assert edit.predicted_fixes == ()


def test_ranking_follows_the_failures() -> None:
    edits = CatalogueProposer(NAMES).propose(base(), Evidence(mixed_episodes(), FAMILY), Random(0))
    counts = [len(edit.predicted_fixes) for edit in edits]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_episodes_of_other_harnesses_do_not_count() -> None:
    other = base().replace(system_prompt="something else .")
    assert edits_of(*successes(other), *failures("skips", other)) == {}


def test_the_catalogue_needs_names() -> None:
    with pytest.raises(ConfigError):
        CatalogueProposer(())


SAYS: list[tuple[str, str, Any, bool]] = [
    ("hours=31 rate=7", "hours", 31, True),
    ("kind= staff hours=31", "kind", "staff", True),
    ('{"hours": 31}', "hours", 31, True),
    ('{"hours":"31"}', "hours", "31", True),
    ("hours=310", "hours", 31, False),
    ("my_hours=31", "hours", 31, False),
    ("hours=31.5", "hours", 31, False),
    ("hours=31.5", "hours", 31.5, True),
    ("hours=3", "rate", 3, False),
]


@pytest.mark.parametrize(("text", "name", "value", "expected"), SAYS)
def test_says(text: str, name: str, value: Any, expected: bool) -> None:
    assert says(text, name, value) is expected


def test_transitions() -> None:
    sequences = [["a", "b", "c", "finish"], ["a", "b", "a", "c", "finish"], ["a", "b", "a", "b"]]
    assert transitions(sequences) == [("a", "b"), ("b", "a")]
    assert transitions([["a", "finish"]] * 9) == []
