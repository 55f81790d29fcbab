"""Promises:

1. The status comes from the store alone and shows closed and begun stages, owed ids, tokens and time.
2. Attempts are counted per id: retried after infrastructure trouble, or played to an outcome twice, which must never be.
3. A run that never started, or belongs to another configuration, is said in words; nothing is written.
4. A running job is told by name and store alone: its stage, how far it is, whether it still gives signs, what it paid and holds (R17).
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from coevo.chat import Sampling
from coevo.config import RunConfig
from coevo.display.plain import PlainDisplay
from coevo.ports import Progress
from coevo.records import Adapter, Attempt, Episode, EpisodeSpec, Grade, Status
from coevo.store.artifacts import StageWriter
from coevo.store.episodes import EpisodeStore
from coevo.store.ledger import Budget, Ledger, Spend
from coevo.store.local import LocalStore
from coevo.store.run_directory import RunDirectory
from jobs.beacon import BeaconDisplay, read_beacon
from jobs.status import read_status, show_run, show_status


def spec(seed: int) -> EpisodeSpec:
    key = f"payroll/mini/t/search/{seed}"
    return EpisodeSpec(task_key=key, world_version="1", harness_hash="h", model_id="m", sampling=Sampling())


def episode(seed: int) -> Episode:
    one = spec(seed)
    grade = Grade(success=False, score=0.0)
    return Episode(id=one.id, spec=one, status=Status.MAX_TURNS, grade=grade, messages=(), turns=())


def attempt(store: EpisodeStore, seed: int, outcome: Status, *, number: int = 1) -> None:
    store.record_attempt(Attempt(id=spec(seed).id, number=number, outcome=outcome))


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig(name="trial", store=str(tmp_path / "store"))


@pytest.fixture
def store(config: RunConfig) -> LocalStore:
    return LocalStore(config.store)


def fill(store: LocalStore, config: RunConfig) -> None:
    """One closed stage with an owed id, one begun stage, an adapter, and five episodes in different states."""
    RunDirectory.open(store, name="trial", config=config.model_dump(mode="json"))
    writer = StageWriter.begin(store, run="trial", stage="rollout", inputs={"a": "b"}, expected=3, code_version="0")
    writer.wrote(2)
    writer.owe(spec(2).id, attempts=5)
    writer.spend(tokens=1234)
    writer.commit()
    store.put_if_absent("trial/localize/abcdef123456/localizations/x.json", b"{}")
    store.put_if_absent("trial/scratch/train/checkpoint.json", b"{}")
    adapter = Adapter(
        model_id="m@1", base_model_id="m", arm="correction", seed=0, weights_hash="w", data_hash="d", rows=1, trained_tokens=1, steps=1,
        config={}, metrics={}, checks={}, key="trial/train/k",
    )  # fmt: skip
    store.put_if_absent("trial/train/k/manifest.json", adapter.to_bytes())
    episodes = EpisodeStore(store, "trial")
    for seed in (0, 1):
        episodes.commit(episode(seed))
    attempt(episodes, 0, Status.MAX_TURNS)
    for number, outcome in enumerate((Status.INFRA_ERROR, Status.INFRA_ERROR, Status.MAX_TURNS), 1):
        attempt(episodes, 1, outcome, number=number)
    attempt(episodes, 2, Status.INFRA_ERROR)


def test_stages_and_attempts_are_read_from_the_store(store: LocalStore, config: RunConfig) -> None:
    """I4 and R9: what was played again, and why, can be seen."""
    fill(store, config)
    status = read_status(store, "trial")
    assert [(one.stage, one.done, one.manifest is not None) for one in status.stages] == [
        ("rollout", True, True),
        ("localize", False, False),
        ("train", True, False),
    ]
    assert status.episodes == 2
    tries = status.attempts
    assert (tries.ids, tries.tries, tries.most, tries.open, tries.retried, tries.replayed) == (3, 5, 3, 1, 1, 0)
    assert tries.examples == ((spec(1).id, 3),)


def test_an_outcome_played_twice_is_reported(store: LocalStore, config: RunConfig) -> None:
    """I4: work done twice does not hide among the retries."""
    fill(store, config)
    attempt(EpisodeStore(store, "trial"), 0, Status.MAX_TURNS, number=2)
    assert read_status(store, "trial").attempts.replayed == 1


def test_the_status_is_told_and_exits_0(store: LocalStore, config: RunConfig) -> None:
    fill(store, config)
    out = io.StringIO()
    other = config.model_copy(update={"seed": 9, "cluster": config.cluster.model_copy(update={"cpus": 8})})
    assert show_status(other, PlainDisplay(out=out, err=out)) == 0
    text = out.getvalue()
    assert "rollout" in text
    assert "1,234" in text
    assert "at most 3 per id" in text
    assert "seed: 0 -> 9" in text
    assert "cpus" not in text


def test_a_run_that_never_started_leaves_no_trace(config: RunConfig) -> None:
    out = io.StringIO()
    assert show_status(config, PlainDisplay(out=out, err=out)) == 0
    assert "nothing stored" in out.getvalue()
    assert not Path(config.store).exists()


def test_a_running_job_is_told_by_name_and_store(store: LocalStore, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 4."""
    fill(store, config)
    ledger = Ledger(store, budget=Budget(), prefix="trial/ledger")
    paid = ledger.reserve("rollout/1", estimate=Spend(usd=None, tokens=9_000, episodes=9))
    ledger.settle(paid, Spend(usd=None, tokens=7_654, episodes=8))
    ledger.reserve("rollout/2", estimate=Spend(usd=None, tokens=4_321, episodes=4))
    monkeypatch.setenv("COEVO_SUBMISSION_ID", "coevo-trial-0123-2")
    moment = [1000.0]
    display = BeaconDisplay(PlainDisplay(out=io.StringIO(), err=io.StringIO()), store, "trial", clock=lambda: moment[0])
    display.stage("rollout", 400)
    display.progress(Progress("rollout", 25, 400, owed=1, tokens=99))
    display.close()
    found = read_beacon(store, "trial")
    assert found is not None
    assert (found.stage, found.done, found.total, found.job, found.open) == ("rollout", 25, 400, "coevo-trial-0123-2", False)
    assert "ended" in found.line(1001.0)
    working = replace(found, open=True)
    assert working.line(1003.0) == "rollout: 25 of 400, 1 owed, 99 tokens (job coevo-trial-0123-2, running)"
    assert "silent for 500 s" in working.line(1500.0)
    out = io.StringIO()
    assert show_run("trial", config.store, PlainDisplay(out=out, err=out)) == 0
    for text in ("25 of 400", "7,654", "4,321", "coevo-trial-0123-2"):
        assert text in out.getvalue()
    store.put_if_match("trial/scratch/progress.json", b'{"v": 2}', etag=store.head("trial/scratch/progress.json").etag)  # type: ignore[union-attr]
    assert read_beacon(store, "trial") is None
