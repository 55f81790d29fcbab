"""A run without arms evolves and measures a harness, and learns nothing. Promises:

1. Its phases, its plan and its stages are evolution, transfer, the test grid and the report; nothing is rolled out to be learned from.
2. The grid has weak model and expert under both harnesses, on the sealed instances.
3. Asking for rows, training or publishing alone is refused in words.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from coevo.config import parse_config
from coevo.errors import ConfigError
from jobs import dataset, publish, run, train
from jobs.phases import LEARNING, RUN_PHASES, phases_of
from jobs.plan_stages import planned_stages
from tests.contract.local_run import LocalServing, local_config, opened

ALONE = {"dataset": {"arms": []}, "evaluate": {"instances": 4, "transfer_instances": 2}}


def test_the_plan_is_evolution_and_measurement() -> None:
    """Promise 1."""
    config = parse_config({"name": "x", **ALONE, "train": {"learning_rates": [1e-4, 1e-3]}})
    assert [one.stage for one in planned_stages(config, "run")] == ["evolve", "transfer", "evaluate"]
    assert [one.stage for one in planned_stages(config, "evaluate")] == ["evolve", "evaluate"]
    assert [one.stage for one in planned_stages(config, "localize")] == ["evolve", "rollout", "localize"], (
        "its own verb needs what it needs"
    )
    assert {one.name for one in RUN_PHASES} - {one.name for one in phases_of(config)} == LEARNING


def test_a_run_measures_the_harness(tmp_path: Path) -> None:
    """Promises 1 and 2."""
    serving = LocalServing()
    with opened(local_config(tmp_path, **ALONE), serving) as context:
        result = run.main(context)
        stages = {info.key.split("/")[1] for info in context.store.list("trial/") if info.key.endswith("/manifest.json")}
    assert stages == {"transfer", "train", "evaluate"}, "training closes with no adapter"
    assert {stage.partition(" ")[0] for stage, _ in serving.played} == {"transfer", "evaluate"}
    assert {len(items) for stage, items in serving.played if stage.startswith("evaluate")} == {4}
    assert any(line.startswith("base/h* - base/h0") for line in result.lines)


@pytest.mark.parametrize("verb", [dataset.main, train.main, publish.main])
def test_learning_stages_are_refused(tmp_path: Path, verb: object) -> None:
    """Promise 3."""
    with opened(local_config(tmp_path, **ALONE), LocalServing()) as context, pytest.raises(ConfigError, match="arms"):
        verb(context)  # type: ignore[operator]
