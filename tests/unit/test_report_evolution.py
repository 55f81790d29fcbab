"""The report of a managed search: every candidate, edit, restart, component and baseline is on the page and in the twin."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from coevo.config import EvolveConfig
from coevo.evolve.campaign import Campaign, run_campaign
from coevo.evolve.search import SearchTask
from coevo.evolve.simulated import FutileProposer, SimulatedEvaluator
from coevo.harness.bundle import HarnessBundle
from coevo.report.facts import ReportFacts
from coevo.report.page import Report, render
from coevo.store.local import LocalStore
from coevo.tasks import load_family
from coevo.tasks.family import Size

FAMILY = load_family("payroll")
BASE = HarnessBundle.load(FAMILY.base_harness(Size.MINI))
KEPT = Path(__file__).resolve().parents[1] / "data" / "report" / "whole_run.json"
CONFIG = EvolveConfig(
    generations=2,
    proposals=3,
    search_instances=10,
    gate_instances=30,
    restarts=2,
    crossovers=1,
    confirm_instances=30,
    max_lost_share=1.0,
    ablate_instances=20,
    baselines=("best_of_n", "self_refine", "prompt_only"),
    baseline_instances=20,
)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    planted: dict[str, float] = {}
    task, coins = SearchTask(FAMILY, Size.MINI, 1, CONFIG, 5), SimulatedEvaluator(5, effects=planted)
    proposer, store = FutileProposer(planted, effect=0.4), LocalStore(tmp_path_factory.mktemp("store"))
    return run_campaign(BASE, task, paying=coins, evaluator=coins, proposer=proposer, store=store, prefix="run/baselines")


@pytest.fixture(scope="module")
def report(campaign: Campaign) -> Report:
    parts = {"search": campaign.search, "ablation": campaign.ablation, "baselines": campaign.baselines, "base_files": BASE.files()}
    return render(ReportFacts.from_bytes(KEPT.read_bytes()).model_copy(update=parts))


def test_the_twin_has_every_candidate_edit_and_baseline(campaign: Campaign, report: Report) -> None:
    section = report.twin["sections"]["search"]
    assert orjson.loads(orjson.dumps(report.twin)) == report.twin
    assert [node["harness_hash"] for node in section["tree"] if node["best"]] != []
    assert {node["harness_hash"] for node in section["tree"]} == {one.harness_hash for one in campaign.search.archive}
    assert sum(edit["races"] for edit in section["edits"]) == section["edits_raced"]
    assert sum(len(edit["gates"]) for edit in section["edits"]) == section["gates"]
    assert [row["name"] for row in section["baselines"]["rows"]] == ["h0", "h*", "best_of_n", "self_refine", "prompt_only"]
    assert all(row["low"] <= row["rate"] <= row["high"] for row in section["baselines"]["rows"])
    assert all(point["low"] <= point["rate"] <= point["high"] for point in section["score"])
    assert len(section["restarts"]) == 2


def test_the_page_says_it(campaign: Campaign, report: Report) -> None:
    assert campaign.search.accepted > 0
    assert campaign.ablation is not None
    text = re.sub(r"<[^>]+>", " ", report.html)
    for phrase in ("Measured again on 30 fresh instances", "Restarts", "What each component earns", "What the same episodes buy otherwise"):
        assert phrase in text
    for row in campaign.ablation.components:
        assert row.component in text
    assert len(re.findall(r"<svg", report.html)) == 8
    best = HarnessBundle.from_files(campaign.ablation.best)
    assert best == campaign.best
