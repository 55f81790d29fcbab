"""How agents play. Promises:

1. Conduct counts what its fields say; agents that took no turn have none.
2. Divergence is 0 for equal use of tools, 1 for use without a common tool, symmetric and between the two otherwise.
3. The report shows one row per cell, training seeds together, and how far it is from base and expert under the same harness.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo.evaluate.fit import LOOP_CALLS, conduct, tool_divergence
from coevo.records import Conduct, Episode, Status
from coevo.report.facts import ReportFacts
from coevo.report.page import render
from tests.unit.rows import an_episode

FACTS = ReportFacts.from_bytes((Path(__file__).parents[1] / "data/report/whole_run.json").read_bytes())
SHARES = st.dictionaries(st.sampled_from("abcde"), st.floats(0.01, 1), min_size=1)


def looping(episode: Episode, times: int) -> Episode:
    """The episode with its first turn repeated, ended by the turn limit."""
    return episode.model_copy(update={"turns": episode.turns[:1] * times, "status": Status.MAX_TURNS})


def test_conduct_counts_what_it_says() -> None:
    """Promise 1."""
    plain, spoken = (
        an_episode(1, success=True, calls=["look", "pay"]),
        an_episode(2, success=True, calls=["look", "finish"], strategy="step"),
    )
    refused = plain.model_copy(update={"turns": (plain.turns[0].model_copy(update={"result_error": True}), plain.turns[1])})
    unread = plain.model_copy(update={"turns": (plain.turns[0].model_copy(update={"call": None}), plain.turns[1])})
    made = conduct([plain, spoken, refused, unread])
    assert made is not None
    assert (made.spoken, made.refused, made.looping, made.unfinished) == (2 / 8, 2 / 8, 0, 0)
    assert made.tools == pytest.approx({"look": 3 / 7, "pay": 3 / 7, "finish": 1 / 7})
    stuck = conduct([plain, looping(plain, LOOP_CALLS - 1), looping(plain, LOOP_CALLS), looping(plain, LOOP_CALLS + 5)])
    assert stuck is not None
    assert (stuck.looping, stuck.unfinished) == (2 / 4, 3 / 4)
    assert conduct([]) is None
    assert conduct([looping(plain, 0)]) is None


@given(SHARES, SHARES)
def test_divergence_is_a_measure_of_difference(a: dict[str, float], b: dict[str, float]) -> None:
    """Promise 2."""
    one, other = normal(a), normal(b)
    assert tool_divergence(one, one) == pytest.approx(0, abs=1e-6)
    assert tool_divergence(one, other) == pytest.approx(tool_divergence(other, one))
    assert -1e-9 <= tool_divergence(one, other) <= 1 + 1e-9
    assert tool_divergence(one, {f"{name}'": share for name, share in one.items()}) == pytest.approx(1)


def normal(shares: Mapping[str, float]) -> dict[str, float]:
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()}


def test_nothing_used_is_no_difference() -> None:
    assert tool_divergence({}, {}) == 0


def test_the_report_shows_how_each_cell_plays() -> None:
    """Promise 3."""
    base = next(one for one in FACTS.grid if one.name == "base/h*")
    ways = {
        "base/h*": [Conduct(spoken=0.1, refused=0.2, looping=0.3, unfinished=0.4, tools={"look": 0.5, "pay": 0.5})],
        "expert/h*": [Conduct(spoken=1.0, refused=0.0, looping=0.0, unfinished=0.0, tools={"plan": 1.0})],
        "imitation/h*": [
            Conduct(spoken=0.8, refused=0.0, looping=0.0, unfinished=0.0, tools={"plan": 1.0}),
            Conduct(spoken=0.6, refused=0.0, looping=0.0, unfinished=0.5, tools={"plan": 0.5, "look": 0.5}),
        ],
        "base/h0": [None],
        "correction/h0": [Conduct(spoken=0.0, refused=0.0, looping=0.0, unfinished=0.0)],
    }
    cells = [
        base.model_copy(update={"name": name, "conduct": one, "training_seed": seed})
        for name, several in ways.items()
        for seed, one in enumerate(several)
    ]
    made = render(FACTS.model_copy(update={"grid": tuple(cells), "comparisons": ()}))
    rows = {row["cell"]: row for row in made.twin["sections"]["fit"]["cells"]}
    assert set(rows) == {"base/h*", "expert/h*", "imitation/h*", "correction/h0"}
    assert rows["correction/h0"]["from_base"] is None
    assert rows["imitation/h*"]["seeds"] == 2
    assert rows["imitation/h*"]["spoken"] == pytest.approx(0.7)
    assert rows["imitation/h*"]["tools"] == {"look": 0.25, "plan": 0.75}
    assert rows["base/h*"]["from_base"] == 0
    assert rows["base/h*"]["from_expert"] == pytest.approx(1)
    assert 0 < rows["imitation/h*"]["from_expert"] < rows["imitation/h*"]["from_base"] < 1
    assert "turns with a sentence" in made.html
    assert "fit" not in render(FACTS).twin["sections"], "runs that did not count it show nothing"
