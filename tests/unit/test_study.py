"""The GPU study and its door.

1. The shipped study loads, every assumption in it has a reason, and token volumes become node-seconds as stated.
2. Equal seeds give equal figures and equal plots; all policies of a seed share the accepted turns and the expert's bill.
3. What is wrong with a study is said by name.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer import Typer
from typer.testing import CliRunner

from cluster.study import POLICIES, Study, load_study, play
from coevo.errors import ConfigError
from jobs.simulate import command, figures, lines, sensitivity
from jobs.simulate_plot import draw

STUDY = Path(__file__).resolve().parents[2] / "jobs" / "studies" / "gpu_study.yaml"


@pytest.fixture(scope="module")
def study() -> Study:
    return load_study(STUDY)


def data() -> dict[str, Any]:
    return yaml.safe_load(STUDY.read_text("utf-8"))  # type: ignore[no-any-return]


def write(tmp_path: Path, content: object) -> Path:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(content), "utf-8")
    return file


def test_every_reason_is_given() -> None:
    def reasons(node: object) -> list[str]:
        if isinstance(node, dict):
            own = [str(value) for key, value in node.items() if key == "why" or key.endswith("_why")]
            return own + [text for value in node.values() for text in reasons(value)]
        return [text for value in node for text in reasons(value)] if isinstance(node, list) else []

    found = reasons(data())
    assert len(found) >= len(data()["phases"]) + 6 * len(data()["pools"])
    assert all(len(text) >= 8 for text in found)


def test_volumes_become_node_seconds(study: Study) -> None:
    phases = {one.name: one for one in study.simulated_phases()}
    one_episode = 22_000 / 12_000 + 8_000 / 1_500
    assert phases["rollout"].node_s == pytest.approx(1200 * one_episode)
    assert phases["localize"].node_s == pytest.approx(17_280 * 0.5 * one_episode)
    assert phases["train"].node_s == pytest.approx(9 * 3600)
    assert phases["dataset"].tail_s == 600
    assert len(study.simulated_phases()) == 7 * len(study.phases)


def test_policies_share_turns_and_expert_bill(study: Study) -> None:
    sheet = study.sheet()
    runs = {name: play(study, name, sheet=sheet, seed=3) for name in POLICIES}
    assert len({run.accepted for run in runs.values()}) == 1
    for run in runs.values():
        rest = run.usd - run.outcome.total_usd - run.outcome.hours * study.always_usd_per_hour(sheet)
        assert rest == pytest.approx(study.expert_usd(sheet))
    assert runs["ours"].usd < runs["phased on-demand"].usd < runs["static on-demand"].usd
    assert play(study, "ours", sheet=sheet, seed=3) == runs["ours"]


def test_a_missed_target_is_said(study: Study) -> None:
    sheet = study.sheet()
    found = figures(study, sheet, seeds=2)
    assert "target" in lines(study, sheet, found, seeds=2)[-1]
    strict = study.model_copy(update={"targets": study.targets.model_copy(update={"cost_share": 0.01})})
    assert "MISSED" in lines(strict, sheet, found, seeds=2)[-1]


def test_the_plot_is_one_svg_of_equal_bytes(study: Study) -> None:
    small = study.sensitivity.model_copy(update={"seeds": 2, "losses_per_hour": (0.0, 0.2), "startup_minutes": (5.0, 20.0)})
    panels = sensitivity(study.model_copy(update={"sensitivity": small}), study.sheet())
    first = draw(panels)
    assert first == draw(panels)
    assert ElementTree.fromstring(first).tag.endswith("svg")
    assert "dollars per accepted turn" in first


def test_the_door(tmp_path: Path) -> None:
    app = Typer()
    app.command()(command)
    done = CliRunner().invoke(app, [str(STUDY), "--seeds", "2", "--json", str(tmp_path / "numbers.json")])
    assert done.exit_code == 0, done.output
    assert "ours" in done.output
    assert (tmp_path / "numbers.json").stat().st_size > 1000
    assert CliRunner().invoke(app, [str(tmp_path / "no.yaml")]).exit_code == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["phases"].append({"name": "x", "pool": "weka", "node_hours": 1, "why": "none at all"}), "did you mean 'weak'"),
        (lambda d: d["phases"].append({"name": "x", "why": "none at all"}), "seconds without a pool"),
        (lambda d: d["phases"].append({"name": "x", "pool": "train", "episodes": 3, "why": "none at all"}), "decode_tokens_per_s"),
        (lambda d: d["pools"]["weak"].pop("losses_why"), "losses_why"),
        (lambda d: d.update(sedes=3), "sedes"),
    ],
)
def test_bad_studies_are_refused_by_name(tmp_path: Path, change: Any, message: str) -> None:
    content = data()
    change(content)
    with pytest.raises(ConfigError, match=message):
        load_study(write(tmp_path, content))
