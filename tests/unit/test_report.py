"""Promises:

1. Stored facts of every kept version load, render, and give the same bytes every time (I4).
2. The page needs nothing else: no script, no link, no address; the twin is JSON.
3. Every section names the artifacts behind its numbers, and numbers without an artifact are refused (I12).
4. What the page says is in the twin: rates, intervals, verdicts.
5. Text from harnesses and models is shown, never interpreted.
6. Inconclusive, owed, refused and not measured are said in words; an unfinished run renders.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest

from coevo.config import LocalizeConfig
from coevo.errors import StoreError
from coevo.evaluate.stats import wilson
from coevo.identity import content_hash
from coevo.localize.waves import MiningRecord, WaveFigures
from coevo.records import Measurement
from coevo.report.facts import ReportFacts, TunedRate
from coevo.report.numbers import SECTIONS, numbers, words
from coevo.report.page import TITLES, Report, render

DATA = Path(__file__).resolve().parents[1] / "data" / "report"
VOID = {"meta", "br", "link", "img", "input", "hr"}


def facts(name: str = "whole_run") -> ReportFacts:
    return ReportFacts.from_bytes((DATA / f"{name}.json").read_bytes())


@lru_cache
def rendered(name: str) -> Report:
    return render(facts(name))


@pytest.fixture
def report() -> Report:
    return rendered("whole_run")


class Reader(HTMLParser):
    """Collects text, tags and unclosed elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.crossed: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.crossed.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_kept_facts_load_and_render_the_same_twice(path: Path) -> None:
    """I4: same facts, same bytes."""
    first, second = rendered(path.stem), render(ReportFacts.from_bytes(path.read_bytes()))
    assert first.html == second.html
    assert orjson.dumps(first.twin) == orjson.dumps(second.twin)


def test_another_process_gives_the_same_bytes(report: Report) -> None:
    """Neither hash seed nor import order decides anything."""
    code = (
        "import hashlib, pathlib, sys; from coevo.report.page import render; from coevo.report.facts import ReportFacts;"
        "print(hashlib.sha256(render(ReportFacts.from_bytes(pathlib.Path(sys.argv[1]).read_bytes())).html.encode()).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(DATA / "whole_run.json")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert result.stdout.split()[-1] == content_hash(report.html.encode())


def test_the_page_stands_alone_and_is_well_formed(report: Report) -> None:
    reader = Reader(report.html)
    assert reader.tags & {"script", "link", "img", "iframe", "object"} == set()
    addresses = [value for name, value in reader.attributes if name in {"src", "href", "xlink:href"} and not str(value).startswith("#")]
    assert addresses == []
    assert "url(http" not in report.html
    assert (reader.open, reader.crossed) == ([], [])
    assert "prefers-color-scheme: dark" in report.html


def test_plots_are_valid_svg_without_clock_or_shared_ids(report: Report) -> None:
    drawings = re.findall(r"<svg.*?</svg>", report.html, flags=re.DOTALL)
    assert len(drawings) == 7
    ids: list[str] = []
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        ids += [node.attrib["id"] for node in root.iter() if "id" in node.attrib and "clip" in node.tag.lower()]
        assert "dc:date" not in drawing
        assert not re.search(r"#(0[1-7]|1[1-4])0[1-7]0[1-7]\b", drawing), "a stand-in colour was left"
    assert ids
    assert len(set(ids)) == len(ids)


def refusal(report: ReportFacts) -> str:
    with pytest.raises(StoreError) as caught:
        render(report)
    return str(caught.value)


def test_every_section_names_its_artifacts(report: Report) -> None:
    """I12: a number in a report names the artifacts it was computed from."""
    assert list(SECTIONS) == list(TITLES)
    assert list(report.twin["sections"]) == [name for name in SECTIONS if name not in ("tuning", "fit")], (
        "no grid of rates, conduct not counted"
    )
    keys = {output.key for manifest in facts().manifests for output in manifest.outputs}
    for name, section in report.twin["sections"].items():
        assert section["sources"], name
        assert all(len(hash) == 64 for hash in section["sources"].values()), name
        for key in section["sources"]:
            assert key.startswith("trial/"), name
            assert key in report.html
    assert set(report.twin["sections"]["cost"]["sources"]) >= keys


def test_a_grid_of_learning_rates_is_shown_with_its_choice() -> None:
    """Every rate of every arm with its interval; the chosen one is told apart, and the section rests on the stage's artifacts."""
    whole = facts()
    closed = next(one for one in whole.manifests if one.stage == "evaluate")
    won = whole.transfer[0]
    lost = won.model_copy(update={"success": dict.fromkeys(won.success, (0,))})
    tried = tuple(
        TunedRate(arm="correction", learning_rate=rate, chosen=rate == 1e-3, measurement=one) for rate, one in ((1e-4, lost), (1e-3, won))
    )
    tuned = whole.model_copy(update={"tuning": tried, "manifests": (*whole.manifests, closed.model_copy(update={"stage": "tune"}))})
    report = render(tuned)
    rates = report.twin["sections"]["tuning"]["rates"]
    assert [(one["learning_rate"], one["chosen"]) for one in rates] == [(1e-4, False), (1e-3, True)]
    assert rates[0]["rate"] == 0.0 < rates[1]["rate"]
    assert report.html.count("<td>chosen</td>") == 1
    assert "without an artifact" in refusal(whole.model_copy(update={"tuning": tried}))


@pytest.mark.parametrize("stage", ["evolve", "evaluate", "localize rewrite", "dataset"])
def test_numbers_without_an_artifact_are_refused(stage: str) -> None:
    """I12: the check can fail."""
    whole = facts()
    left = tuple(one for one in whole.manifests if one.stage not in stage.split())
    with pytest.raises(StoreError, match="numbers without an artifact"):
        render(whole.model_copy(update={"manifests": left}))


def test_the_twin_holds_what_the_records_say(report: Report) -> None:
    """Rates and intervals are those of the measurements, computed independently here."""
    grid = report.twin["sections"]["grid"]
    for cell, one in zip(grid["cells"], facts().grid, strict=True):
        outcomes = [row[0] for row in one.success.values()]
        interval = wilson(sum(outcomes), len(outcomes))
        assert (cell["successes"], cell["episodes"], cell["owed"]) == (sum(outcomes), len(outcomes), len(one.owed))
        assert cell["rate"] == pytest.approx(sum(outcomes) / len(outcomes))
        assert (cell["low"], cell["high"]) == pytest.approx(tuple(interval))
        assert f"{100 * cell['rate']:.1f} %" in report.html
    assert orjson.loads(orjson.dumps(report.twin)) == report.twin


def test_verdicts_are_said_in_words_and_inconclusive_is_one(report: Report) -> None:
    text = Reader(report.html).text
    shown = {str(one.verdict) for one in facts().comparisons}
    assert shown == {"supported", "refuted", "inconclusive"}
    for one in facts().comparisons:
        assert words(one) in text
        assert f"{one.discordant} of {one.pairs}" in text
    assert "inconclusive: the interval contains 0" in text


def test_owed_and_refused_are_shown(report: Report) -> None:
    """I3: owed ids stand beside the number that lacks them; a refusal gives its reason."""
    text = Reader(report.html).text
    assert "owed 1" in text
    refusals = [reason for one in facts().search.rounds if one.decision for reason in one.decision.refusals]  # type: ignore[union-attr]
    assert refusals
    assert all(reason in text for reason in refusals)


def test_text_from_outside_is_escaped(report: Report) -> None:
    """I9: a harness file or an edit's hypothesis can't put markup into the page."""
    assert "open work: <b>" not in report.html
    assert "open work: &lt;b&gt;" in report.html
    hostile = "<script>alert(1)</script>{{ 7 * 7 }}"
    whole = facts()
    assert whole.search is not None
    first = whole.search.rounds[0]
    race = first.races[0].model_copy(update={"hypothesis": hostile, "mechanism": hostile})
    rounds = (first.model_copy(update={"races": (race, *first.races[1:])}), *whole.search.rounds[1:])
    search = whole.search.model_copy(update={"rounds": rounds, "best": {**whole.search.best, "x.md": hostile}})
    reader = Reader(render(whole.model_copy(update={"search": search, "run": hostile, "manifests": whole.manifests})).html)
    assert "script" not in reader.tags
    assert hostile in reader.text
    assert "49" not in reader.text.split(hostile)[0]


def test_every_replica_of_every_canary_has_its_row(report: Report) -> None:
    """I6: served weights are proven on each replica, and the page shows each proof."""
    rows = report.twin["sections"]["publish"]["canaries"]
    assert [(row["adapter"], row["replica"], row["rows"]) for row in rows] == [
        (f"{arm}, seed 0", f"replica-{place}", 32) for arm in ("correction", "imitation") for place in (0, 1)
    ]
    assert rows[0]["weights_hash"] == facts().adapters[0].weights_hash


def test_the_funnel_counts_from_failure_to_verified() -> None:
    whole = facts()
    repair = numbers(whole)["sections"]["repair"]
    counts = [step["count"] for step in repair["funnel"]]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == len(whole.localizations)
    assert counts[-1] == sum(one.verified for one in whole.corrections)
    tried = sum(len(one.candidates) for one in whole.corrections)
    assert repair["verified_per_100_rewrites"] == pytest.approx(100 * counts[-1] / tried)
    assert len(repair["gains"]) == counts[-1]
    assert repair["student_nll"]["call, all rewrites"]["n"] < tried, "unmeasured likelihoods are left out, not counted as 0"


def test_an_unfinished_run_says_what_it_has_not_reached() -> None:
    made = rendered("nothing_accepted")
    assert list(made.twin["sections"]) == ["search", "harness", "cost"]
    text = Reader(made.html).text
    assert "Nothing was accepted: h* is h0." in text
    assert "Not reached in this run: the grid" in text
    empty = render(ReportFacts(run="new", family="payroll", size="mini"))
    assert empty.twin["sections"] == {}
    assert "Not reached in this run" in Reader(empty.html).text


def _grid_cells(update: dict[str, Any]) -> list[dict[str, Any]]:
    whole = facts()
    cells: list[dict[str, Any]] = numbers(whole.model_copy(update=update))["sections"]["grid"]["cells"]
    return cells


def test_a_cell_without_episodes_is_not_measured_rather_than_zero() -> None:
    """`None` = not measured, `0.0` = measured zero."""
    whole = facts()
    none = whole.grid[0].model_copy(update={"success": {}, "owed": ("a#0", "b#0")})
    zero = whole.grid[1].model_copy(update={"success": dict.fromkeys(whole.grid[1].success, (0,))})
    cells = _grid_cells({"grid": (none, zero)})
    assert (cells[0]["rate"], cells[0]["low"], cells[0]["owed"]) == (None, None, 2)
    assert (cells[1]["rate"], cells[1]["low"]) == (0.0, 0.0)
    assert render(whole.model_copy(update={"grid": (none, zero), "comparisons": ()})).html


def test_repeats_of_an_instance_do_not_narrow_the_interval() -> None:
    """The instance is the unit: playing each one twice with equal outcomes is no new information."""
    one: Measurement = facts().grid[0]
    twice = one.model_copy(update={"success": {key: row * 2 for key, row in one.success.items()}})
    single, double = _grid_cells({"grid": (one, twice)})
    assert double["interval"] == "bootstrap over instances"
    assert double["rate"] == pytest.approx(single["rate"])
    assert double["high"] - double["low"] > 0.85 * (single["high"] - single["low"])


def test_waves_are_told_where_rows_were_wanted(report: Report) -> None:
    """Wave by wave in page and twin; a run that wanted no number of rows says nothing of waves."""
    one = WaveFigures(rollouts=40, owed=1, failures=21, examined=20, localized=7, verified=6)
    config = LocalizeConfig(rollouts=41, rows=13, max_rollouts=82)
    record = MiningRecord.of(config, [one, one])
    made = render(facts().model_copy(update={"mining": record}))
    told = made.twin["sections"]["repair"]["waves"]
    assert (told["wanted"], told["ceiling"], told["met"], len(told["waves"]), told["total"]["verified"]) == (13, 82, False, 2, 12)
    words = "2 waves: 80 episodes, 42 failures, 14 localized, 12 of 13 wanted rows verified: target missed at the ceiling of 82 rollouts"
    assert words in Reader(made.html).text
    assert MiningRecord.of(config, [one, one, one]).words.endswith("18 of 13 wanted rows verified: target met")
    assert "waves" not in report.twin["sections"]["repair"]
    assert "wave" not in Reader(report.html).text
