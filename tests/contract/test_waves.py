"""Mining in waves until there are enough verified rewrites. Promises:

1. A run that wants no rows has one wave, and its stages keep the ids that they had before there were waves.
2. Waves end with the first that has the rows, or at the ceiling; manifest and report say which, with counts of every wave.
3. What waves record is what one rollout of their sum records, byte for byte: episodes, localizations, corrections.
4. A wave's stages have the same ids whatever number of rows is wanted.
5. A wave is a unit of resumption: cut in the second wave, the same command plays nothing of the first again and ends with the same objects.
6. The rows of all waves reach the dataset.
7. Settings that contradict each other are refused in words.
8. The plan counts the ceiling and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coevo.config import LocalizeConfig, RunConfig, load_config, parse_config
from coevo.errors import ConfigError
from coevo.localize.waves import MiningRecord, WaveFigures, wave_ranges
from coevo.store import LocalSource
from coevo.store.artifacts import StageManifest
from jobs import dataset, rewrite
from jobs.plan import make_plan
from jobs.rewrite import mining_manifest, waves
from tests.contract.local_run import LocalServing, local_config, opened

CONFIGS = Path(__file__).resolve().parents[2] / "jobs" / "configs"
MINED = {"rollouts": 8, "failures": 8, "candidates": 1, "continuations": 4, "alpha": 0.3}
OTHERS = {
    "rewrite": {"candidates": 1},
    "dataset": {"rows": 32, "arms": ["correction"]},
    "evaluate": {"instances": 2, "transfer_instances": 2},
}


def configured(folder: Path, **localize: Any) -> RunConfig:
    return local_config(folder, localize=MINED | localize, **OTHERS)


def records(folder: Path) -> dict[str, bytes]:
    """Committed records by kind and id: the stage that they lie under left out."""
    store = LocalSource(str(folder / "store")).open()
    kinds = ("/episodes/", "/localizations/", "/corrections/")
    keys = [info.key for info in store.list("trial/") if any(kind in f"/{info.key}" for kind in kinds)]
    return {"/".join(key.split("/")[-2:]): store.get(key) for key in keys}


def manifests(folder: Path) -> list[StageManifest]:
    store = LocalSource(str(folder / "store")).open()
    return [StageManifest.from_bytes(store.get(info.key)) for info in store.list("trial/") if info.key.endswith("/manifest.json")]


def ids(folder: Path) -> set[tuple[str, str]]:
    return {(one.stage, one.input_hash) for one in manifests(folder)}


@pytest.fixture(scope="module")
def mined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three waves of eight: all that the ceiling allows."""
    folder = tmp_path_factory.mktemp("waves")
    with opened(configured(folder, rows=24, max_rollouts=24), LocalServing()) as context:
        lines = rewrite.main(context).lines
        dataset.dataset_manifest(context)
    assert "of 24 wanted rows verified: target missed at the ceiling of 24 rollouts" in lines[-1]
    return folder


def test_a_run_that_wants_no_rows_is_as_it_always_was(tmp_path: Path) -> None:
    """Promise 1: the first wave of a run with a target is that run's only one."""
    serving = LocalServing()
    with opened(configured(tmp_path), serving) as context:
        result = rewrite.main(context)
        dataset.dataset_manifest(context)
    assert [stage for stage, _ in serving.played] == ["rollout", "localize", "rewrite"]
    assert len(result.lines) == 1
    found = {one.stage: one for one in manifests(tmp_path)}
    assert set(found) == {"rollout", "localize", "rewrite", "dataset"}
    assert set(found["dataset"].inputs) == {"rollout", "rewrite", "harness"}
    assert LocalizeConfig().wave_settings() == LocalizeConfig().settings()
    assert not {"rows", "max_rollouts"} & set(LocalizeConfig().settings())
    assert {"rows", "max_rollouts"} <= set(LocalizeConfig(rows=8, max_rollouts=400).settings())


def test_waves_hold_what_one_rollout_holds(mined: Path, tmp_path: Path) -> None:
    """Promise 3."""
    with opened(configured(tmp_path, rollouts=24, failures=24), LocalServing()) as context:
        rewrite.main(context)
    whole, parts = records(tmp_path), records(mined)
    assert {name.partition("/")[0] for name in whole} == {"episodes", "localizations", "corrections"}
    assert sum(name.startswith("episodes/") for name in whole) == 24
    assert whole == parts


def test_waves_end_with_the_rows_or_at_the_ceiling(mined: Path, tmp_path: Path) -> None:
    """Promises 2 and 4."""
    counts = [one.rows.written for one in manifests(mined) if one.stage == "mining"]
    assert len(counts) == 1
    with opened(configured(mined, rows=24, max_rollouts=24), LocalServing()) as context:
        done = waves(context)
        record = rewrite.mining(context, done)
    assert record is not None
    figures = [one.figures for one in done]
    assert record == MiningRecord(wanted=24, ceiling=24, waves=tuple(figures), met=False)
    assert [one.rollouts for one in figures] == [8, 8, 8]
    assert sum(one.verified for one in figures) == counts[0] > figures[0].verified > 0
    serving, enough = LocalServing(), figures[0].verified + 1
    with opened(configured(tmp_path, rows=enough, max_rollouts=24), serving) as context:
        words = rewrite.main(context).lines[-1]
        assert [one.figures for one in waves(context)] == figures[:2]
        closed = mining_manifest(context, waves(context))
    assert [len(items) for stage, items in serving.played if stage == "rollout"] == [8, 8]
    assert f"{figures[0].verified + figures[1].verified} of {enough} wanted rows verified: target met" in words
    assert closed.expected == sum(one.failures for one in figures[:2])
    assert closed.rows.written == figures[0].verified + figures[1].verified
    differ = {"mining", "dataset"}
    assert {one for one in ids(tmp_path) if one[0] not in differ} < {one for one in ids(mined) if one[0] not in differ}


def test_a_cut_wave_is_resumed(mined: Path, tmp_path: Path) -> None:
    """Promise 5."""

    def cut(stage: str, items: Sequence[str]) -> None:
        if stage == "localize" and sum(name == "localize" for name, _ in first.played) == 1:
            raise KeyboardInterrupt

    first, second = LocalServing(cut), LocalServing()
    config = configured(tmp_path, rows=24, max_rollouts=24)
    with pytest.raises(KeyboardInterrupt), opened(config, first) as context:
        rewrite.main(context)
    assert [stage for stage, _ in first.played] == ["rollout", "localize", "rewrite", "rollout"]
    with opened(config, second) as context:
        rewrite.main(context)
        dataset.dataset_manifest(context)
    assert [stage for stage, _ in second.played] == ["localize", "rewrite", "rollout", "localize", "rewrite"]
    assert ids(tmp_path) == ids(mined)
    assert records(tmp_path) == records(mined)
    third = LocalServing()
    with opened(config, third) as context:
        dataset.main(context)
    assert third.played == []


def test_all_waves_reach_the_dataset(mined: Path) -> None:
    """Promise 6."""
    with opened(configured(mined, rows=24, max_rollouts=24), LocalServing()) as context:
        done, facts = waves(context), dataset.dataset_facts(context)
        manifest = dataset.dataset_manifest(context)
    verified = sum(one.figures.verified for one in done)
    sources = facts["correction"]["sources"]
    assert isinstance(sources, dict)
    assert sources["rewritten_turn"] == min(16, verified) > done[0].figures.verified
    assert set(manifest.inputs) == {"mining", "harness"}


REFUSED = {
    "no ceiling": ({"rows": 8}, "rows=8 needs max_rollouts"),
    "no rows": ({"max_rollouts": 500}, "set rows, or leave it out"),
    "less than a wave": ({"rows": 8, "max_rollouts": 399}, "less than one wave, rollouts=400"),
    "negative": ({"rows": -1}, "greater than or equal to 0"),
    "no rollouts": ({"rows": 8, "max_rollouts": 0}, "greater than or equal to 1"),
    "misspelt": ({"row": 8, "max_rollouts": 500}, "did you mean 'rows'"),
}


@pytest.mark.parametrize(("localize", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_contradictions_are_refused(localize: dict[str, int], said: str) -> None:
    """Promise 7."""
    with pytest.raises(ConfigError, match=said):
        parse_config({"name": "x", "localize": localize})


def test_the_last_wave_is_cut_at_the_ceiling() -> None:
    config = LocalizeConfig(rollouts=10, rows=1, max_rollouts=25)
    assert wave_ranges(config) == (range(10), range(10, 20), range(20, 25))
    assert wave_ranges(LocalizeConfig(rollouts=7)) == (range(7),)
    one = WaveFigures(rollouts=10, owed=0, failures=4, examined=4, localized=2, verified=1)
    assert MiningRecord.of(config, [one]).met
    assert MiningRecord.from_bytes(MiningRecord.of(config, [one, one]).to_bytes()).total.verified == 2


def test_the_plan_counts_the_ceiling() -> None:
    """Promise 8; a target above what the rows of an arm can hold is warned of."""
    shipped = load_config(CONFIGS / "quickstart.yaml")
    rows = ["localize.rows=120", "localize.max_rollouts=1000"]
    plan, before = make_plan(load_config(CONFIGS / "quickstart.yaml", rows)), make_plan(shipped)
    stages = {one.stage: one for one in plan.stages}
    assert (stages["rollout"].episodes, {one.stage: one for one in before.stages}["rollout"].episodes) == (1000, 320)
    failures = 3 * 120 + 40
    assert stages["localize"].continuations == failures * 2 * 3 * 6
    assert stages["rewrite"].continuations == failures * 2 * 6
    assert "at most 4 waves of 320, fewer once 120 rows are verified" in "\n".join(plan.lines())
    assert plan.warnings == ()
    assert not any("waves" in line for line in before.lines())
    over = make_plan(load_config(CONFIGS / "quickstart.yaml", ["localize.rows=121", rows[1]]))
    assert any("dataset.rows=240 takes 120 of them" in text for text in over.warnings)
