"""`coevo tune` with real engines and real trainings, in the run's own process: a grid of learning rates is trained, measured, chosen from,
and never done twice.

1. Every arm is trained at every rate and measured on the same selection instances, none of which `transfer` or `evaluate` takes.
2. `train` takes the chosen rate: for the first seed nothing is trained again.
3. The same command again finds everything done, and the report shows the grid.
"""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from coevo.records import Measurement
from coevo.store import LocalSource
from tests.e2e.loop import Loop

pytestmark = [pytest.mark.timeout(1500), pytest.mark.slow]

RATES = (1e-3, 5e-3)
SETTINGS = (
    "evolve.enabled=false",
    "dataset.arms=[correction, imitation]",
    f"train.learning_rates={list(RATES)}",
    "evaluate.tuning_instances=10",
    "evaluate.under_h0=[imitation]",
    "train.workers=1",
    "cluster.train_in_driver=true",
)


def test_a_grid_of_learning_rates(tmp_path: Path) -> None:
    """Promises 1 to 3."""
    loop = Loop(tmp_path / "store")
    done = loop.run("tune", *SETTINGS)
    assert done.returncode == 0, done.stderr[-3000:]
    store, adapters = LocalSource(str(loop.store)).open(), [key for key in loop.keys("train/") if key.endswith("/manifest.json")]
    assert len(adapters) == 4
    manifest = loop.manifests()["tune"]
    cells = [Measurement.model_validate(one) for one in orjson.loads(store.get(manifest.output("grid").key))]
    assert [one.name for one in cells] == [f"{arm}/h* at {rate:g}" for arm in ("correction", "imitation") for rate in RATES]
    assert len({tuple(one.success) for one in cells}) == 1
    assert {one.stream for one in cells} == {"selection"}
    for cell in cells:
        assert sum(len(row) for row in cell.success.values()) == 10
    lines = done.stdout.splitlines()[-2:]
    assert [line.split(":")[0] for line in lines] == ["correction", "imitation"]
    whole = loop.run("run", *SETTINGS)
    assert whole.returncode == 0, whole.stderr[-3000:]
    trained = [key for key in loop.keys("train/") if key.endswith("/manifest.json")]
    assert set(adapters) < set(trained)
    assert len(trained) == len(adapters) + 1, "the stage's own manifest, and no adapter more"
    grid = [Measurement.model_validate(one) for one in orjson.loads(store.get(loop.manifests()["evaluate"].output("grid").key))]
    assert {one.name for one in grid} >= {"imitation/h0", "imitation/h*", "correction/h*"}
    assert "correction/h0" not in {one.name for one in grid}, "it was not asked for under h0"
    assert not {key for one in grid for key in one.success} & set(cells[0].success)
    again = loop.run("run", *SETTINGS)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "engines for" not in again.stderr
    page = Path(next(line.partition("report: ")[2] for line in again.stdout.splitlines() if "report: " in line).strip())
    assert page.read_text(encoding="utf-8").count("<td>chosen</td>") == 2
