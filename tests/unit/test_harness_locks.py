"""Regression locks. What is stored under these names must never move:

1. the identity of every shipped harness (a hash names episodes, archives and gates of runs that are stored);
2. the default catalogue: same operators, same order, and for the same evidence the same edits (the quickstart replays them).
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import coevo.harness
from coevo.evolve.catalogue import OPERATORS, CatalogueProposer
from coevo.evolve.propose import Evidence
from coevo.harness.bundle import HarnessBundle
from tests.unit.shelf import FAMILY, base, mixed_episodes

SEEDS = Path(coevo.harness.__file__).parent / "seeds"
SHIPPED = {
    "anomaly-long": "7c4ccb6b5f5ced2f",
    "anomaly-mini": "668f79dbe7ea6fb2",
    "anomaly-standard": "c65b7a67a788e22e",
    "bfcl-standard": "7a97523858700ce5",
    "browser-long": "dc6287c47e5b5130",
    "browser-mini": "883a4205295c9167",
    "browser-standard": "2a3227a3e599b106",
    "budget-long": "6315f46c40eb5b01",
    "budget-mini": "952f12dd26f6fa60",
    "budget-standard": "4fc814d3dbd4d8f3",
    "payroll-long": "0d0193e6a1b7b064",
    "payroll-mini": "23d92b27aca748a2",
    "payroll-standard": "c7479ab731fe357c",
    "refactor-long": "41bc10f064a4f7ef",
    "refactor-mini": "6a81963fc853609f",
    "refactor-standard": "18daa14d57535a29",
    "stock-long": "9c044b20384e99f1",
    "stock-mini": "bc90275640634c68",
    "stock-standard": "587bc89f0fa65a8b",
    "tau2-standard": "a05bea2dc1da7b02",
    "website-long": "6c08c68e0be6650d",
    "website-mini": "ffdf67f0249ea80f",
    "website-standard": "5eefeb4a8b43e04d",
}
DEFAULT_ORDER = [
    "recipe_tool",
    "finish_guard",
    "todo_note",
    "playbook",
    "repair_value",
    "repair_ids",
    "loop_breaker",
    "hide_covered",
    "hide_unused",
    "trim_context",
]
DEFAULT_EDITS = [
    ("prompt", "playbook", 18, "b17a2ce0f8b44006"),
    ("hook:todo", "todo note", 12, "87805885cb17979f"),
    ("tool:weigh", "recipe tool, parts hidden", 9, "b2bd4609f2e72a96"),
    ("tool:weigh", "recipe tool", 9, "142f74a45ac34cda"),
    ("hook:guard", "finish guard", 9, "0ca541f7b7b320e5"),
    ("hook:value", "repair value", 3, "33d40d65f8efa292"),
    ("hook:ids", "repair ids", 3, "d7dc4c23a7b325d0"),
    ("hook:loop", "loop breaker", 3, "8e725c31d5f7ac12"),
    ("tools", "hide unused", 3, "e35ef9e976768308"),
]


def test_identities_of_shipped_harnesses() -> None:
    found = {folder.name: HarnessBundle.load(folder).hash[:16] for folder in SEEDS.iterdir() if (folder / "harness.yaml").exists()}
    assert {name: found.get(name) for name in SHIPPED} == SHIPPED


def test_the_default_catalogue() -> None:
    assert [operator.__name__ for operator in OPERATORS] == DEFAULT_ORDER
    edits = CatalogueProposer(("weigh", "price", "rank")).propose(base(), Evidence(mixed_episodes(), FAMILY), Random(0))
    assert [(edit.component, edit.mechanism, len(edit.predicted_fixes), edit.bundle.hash[:16]) for edit in edits] == DEFAULT_EDITS
