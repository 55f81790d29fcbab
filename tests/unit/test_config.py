"""The configuration of a run.

1. Unknown keys are refused with the nearest known one, at every depth.
2. `--set a.b=c` reaches any depth, its value is YAML, and a malformed override says how to write one.
3. Values out of range, files that are no YAML, no mapping or not there are refused with a three-part error.
4. The run's identity leaves out where it runs and where it is stored, and nothing that decides results.
5. The resolved configuration loads again to the same run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from coevo.config import RunConfig, load_config, parse_config
from coevo.errors import ConfigError

NAME = {"name": "trial"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(NAME))
    return file


def refused(data: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(data)
    assert caught.value.what
    assert caught.value.seen
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize(
    ("data", "key", "hint"),
    [
        ({"familly": "payroll"}, "familly", "did you mean 'family'"),
        ({"evolve": {"genrations": 3}}, "evolve.genrations", "did you mean 'generations'"),
        ({"weak": {"sampling": {"temprature": 0.1}}}, "weak.sampling.temprature", "did you mean 'temperature'"),
        ({"train": {"zzz": 1}}, "train.zzz", "known: "),
    ],
)
def test_an_unknown_key_names_the_nearest(data: dict[str, Any], key: str, hint: str) -> None:
    """Promise 1."""
    seen = str(refused(NAME | data))
    assert key in seen
    assert hint in seen


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("seed=7", lambda config: config.seed == 7),
        ("evolve.generations=2", lambda config: config.evolve.generations == 2),
        ("weak.sampling.temperature=0", lambda config: config.weak.sampling.temperature == 0.0),
        ("train.seeds=[0, 1]", lambda config: config.train.seeds == (0, 1)),
        ("budget.usd=null", lambda config: config.budget.usd is None),
        ("evolve.enabled=false", lambda config: config.evolve.enabled is False),
        ("train={rank: 4}", lambda config: config.train.rank == 4),
        ("store=s3://bucket/a=b", lambda config: config.store == "s3://bucket/a=b"),
    ],
)
def test_overrides_reach_any_depth(path: Path, override: str, read: Any) -> None:
    """Promise 2."""
    assert read(load_config(path, [override]))


def test_the_last_override_wins(path: Path) -> None:
    """Promise 2."""
    assert load_config(path, ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize("override", ["seed", "=3", "", "name.first=1", "evolve.generations.more=1"])
def test_a_malformed_override_says_how(path: Path, override: str) -> None:
    """Promise 2."""
    overrides = [override] if "more" not in override else ["evolve.generations=2", override]
    with pytest.raises(ConfigError, match="override") as caught:
        load_config(path, overrides)
    assert caught.value.seen == override
    assert caught.value.fix


def test_a_section_set_to_a_plain_value_is_refused(path: Path) -> None:
    """Promise 3: a section needs a mapping, whatever a file says."""
    with pytest.raises(ConfigError, match="evolve"):
        load_config(path, ["evolve=3"])


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"evolve": {"generations": 0}}, "evolve.generations"),
        ({"evolve": {"alpha": 1.0}}, "evolve.alpha"),
        ({"weak": {"sampling": {"top_p": 1.5}}}, "weak.sampling.top_p"),
        ({"train": {"zero_stage": 1}}, "train.zero_stage"),
        ({"dataset": {"arms": ["mending"]}}, "dataset.arms"),
        ({"size": "huge"}, "size"),
        ({"seed": -1}, "seed"),
        ({"seed": "many"}, "seed"),
        ({"cluster": {"cpus": 2}}, "cluster.cpus"),
        ({"name": "No Capitals"}, "name"),
        ({"name": "../up"}, "name"),
    ],
)
def test_a_value_out_of_range_is_named_with_the_value(data: dict[str, Any], named: str) -> None:
    """Promise 3."""
    error = refused(NAME | data)
    assert named in str(error.seen)
    assert "got " in str(error.seen)


def test_every_problem_is_told_at_once() -> None:
    """Promise 3: one round of mending."""
    seen = str(refused({"seed": -1, "evolve": {"generations": 0, "genrations": 1}}).seen)
    assert all(part in seen for part in ("name", "seed", "evolve.generations", "evolve.genrations"))


def test_a_batch_must_divide_over_the_workers() -> None:
    """Promise 3."""
    error = refused(NAME | {"train": {"global_batch": 8, "workers": 3}})
    assert "train.global_batch=8" in str(error.seen)
    assert "train.workers=3" in str(error.seen)
    assert parse_config(NAME | {"train": {"global_batch": 9, "workers": 3}}).train.global_batch == 9
    error = refused(NAME | {"train": {"workers": 2}, "cluster": {"train_in_driver": True}})
    assert "train.workers=1" in str(error.seen)
    assert parse_config(NAME | {"train": {"workers": 1}, "cluster": {"train_in_driver": True}}).cluster.train_in_driver


@pytest.mark.parametrize("rates", [[1e-3], [1e-3, 1e-3], [1e-3, 0.0]])
def test_a_grid_of_learning_rates_has_two_different_ones(rates: list[float]) -> None:
    """Promise 3: one rate leaves nothing to choose, and zero trains nothing."""
    assert "train.learning_rates" in str(refused(NAME | {"train": {"learning_rates": rates}}).seen)
    assert parse_config(NAME | {"train": {"learning_rates": [1e-4, 1e-3]}}).train.learning_rates == (1e-4, 1e-3)


@pytest.mark.parametrize(
    ("text", "what"), [("a: [", "not YAML"), ("[1, 2]", "no mapping"), ("", "no mapping"), ("just words", "no mapping")]
)
def test_a_file_that_holds_no_config_is_refused(path: Path, text: str, what: str) -> None:
    """Promise 3."""
    path.write_text(text)
    with pytest.raises(ConfigError, match=what) as caught:
        load_config(path)
    assert str(path) in str(caught.value.seen)
    assert caught.value.fix


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Promise 3."""
    with pytest.raises(ConfigError, match="can't be read") as caught:
        load_config(tmp_path / "absent.yaml")
    assert "absent.yaml" in str(caught.value.seen)
    with pytest.raises(ConfigError, match="can't be read"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        {"store": "s3://elsewhere"},
        {"prices": "mine.yaml"},
        {"cluster": {"cpus": 64, "address": "auto"}},
        {"rollout": {"concurrency": 3, "workers": 4, "tries": 1}},
    ],
)
def test_where_it_runs_is_no_part_of_the_identity(data: dict[str, Any]) -> None:
    """Promise 4 (I4)."""
    assert parse_config(NAME | data).hash == parse_config(NAME).hash


@pytest.mark.parametrize(
    "data",
    [
        {"seed": 1},
        {"family": "budget"},
        {"diversity": 4},
        {"weak": {"sampling": {"temperature": 0.0}}},
        {"weak": {"model": "elsewhere"}},
        {"evolve": {"gate_instances": 60}},
        {"localize": {"continuations": 2}},
        {"dataset": {"rows": 16}},
        {"train": {"rank": 4}},
        {"evaluate": {"instances": 10}},
    ],
)
def test_what_decides_results_is_part_of_the_identity(data: dict[str, Any]) -> None:
    """Promise 4 (I4)."""
    assert parse_config(NAME | data).hash != parse_config(NAME).hash


def test_the_resolved_config_loads_again(path: Path, tmp_path: Path) -> None:
    """Promise 5."""
    config = load_config(path, ["seed=3", "train.seeds=[1, 2]", "evolve.harness=some/folder"])
    saved = tmp_path / "resolved.yaml"
    saved.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    again = load_config(saved)
    assert again == config
    assert again.hash == config.hash
    assert isinstance(again, RunConfig)
