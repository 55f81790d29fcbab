"""Correction rows held against the world again. Promises:

1. The stored calls of every correction row's episode, applied to a fresh world, give the stored grade and the stored hash over the results.
2. A grade, a log or a world version that is not what the world says is told in words, and the bench ends with exit code 1.
3. Fresh continuations use seeds of their own; records are committed one by one, and the same command continues nothing twice.
4. The share of rows whose gain is still positive is counted with its interval; a rewrite that changes nothing has no gain.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from coevo.config import RunConfig
from coevo.errors import PrerequisiteError
from coevo.evaluate.stats import wilson
from coevo.fanout import FanoutPolicy, LocalExecutor
from coevo.ports import ItemState
from coevo.records import Episode
from coevo.rewrite.recheck import Recheck, RecheckStage, read_recheck, regraded, summarize
from coevo.store import LocalSource
from jobs import dataset
from tests.bench.bench_correction_rows import differences, main, read_rows, recheck
from tests.contract.local_run import FAMILY, LocalServing, local_config, opened

LOCAL = FanoutPolicy(concurrency=8, base_s=0.0, tries=2)


def configured(folder: Path) -> RunConfig:
    return local_config(
        folder,
        localize={"rollouts": 12, "failures": 12, "candidates": 1, "continuations": 4, "alpha": 0.3},
        rewrite={"candidates": 1},
        dataset={"rows": 16, "arms": ["correction"]},
        evaluate={"instances": 2, "transfer_instances": 2},
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run up to its rows."""
    folder = tmp_path_factory.mktemp("recheck")
    with opened(configured(folder), LocalServing()) as context:
        dataset.main(context)
    return folder


def test_every_row_is_graded_as_stored(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Promise 1, by the bench as it is called."""
    with opened(configured(run), LocalServing()) as context:
        read = read_rows(context)
        assert differences(context, read) == []
    sources = {row.source for row in read.rows}
    assert sources == {"rewritten_turn", "self_success"}
    assert {read.episodes[row.episode_id].success for row in read.rows} == {True, False}
    assert main([str(run / "store"), "trial", "--replay-only"]) == 0
    told = capsys.readouterr().out
    assert f"{len(read.rows)} correction rows" in told
    assert "replayed: 0 differ" in told


def altered(episode: Episode, what: str) -> Episode:
    assert episode.grade is not None
    changed = {
        "grade": {"grade": episode.grade.model_copy(update={"success": not episode.success})},
        "log": {"world_log": episode.world_log[:-1]},
        "results": {"log_hash": "0" * 64},
        "version": {"spec": episode.spec.model_copy(update={"world_version": "0"})},
    }
    return episode.model_copy(update=changed[what])


@pytest.mark.parametrize(
    ("what", "said"), [("grade", "stored success"), ("log", ""), ("results", "differ"), ("version", "world version 0")]
)
def test_what_is_not_as_stored_is_told(run: Path, what: str, said: str) -> None:
    """Promise 2."""
    with opened(configured(run), LocalServing()) as context:
        read = read_rows(context)
    for episode in list(read.episodes.values())[:3]:
        assert regraded(episode, FAMILY) == ""
        told = regraded(altered(episode, what), FAMILY)
        assert told
        assert said in told


def test_a_difference_ends_with_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Promise 2, and a run without rows is refused instead of being played."""
    config = configured(tmp_path)
    with opened(config, LocalServing()):
        pass
    with pytest.raises(PrerequisiteError, match="not built"):
        main([str(tmp_path / "store"), "trial", "--replay-only"])
    with opened(config, LocalServing()) as context:
        dataset.main(context)
        read = read_rows(context)
        spoilt = next(iter(read.episodes.values()))
        key = next(info.key for info in context.store.list("trial/episodes/") if spoilt.id in info.key)
        context.store.delete(key)
        context.episodes.commit_first(altered(spoilt, "grade"))
    assert main([str(tmp_path / "store"), "trial", "--replay-only"]) == 1
    told = capsys.readouterr().out
    assert f"{spoilt.id[:16]}@" in told
    assert "stored success" in told


def test_gains_are_measured_again_once(run: Path) -> None:
    """Promise 3, in the run that made the rows."""
    serving = LocalServing()
    with opened(configured(run), serving) as context:
        read = read_rows(context)
        told = recheck(context, read, rows=100, repeats=5, seed=0)
        again = recheck(context, read, rows=100, repeats=5, seed=0)
        assert context.ledger.spent.episodes > 0
    assert told == again
    assert told.rows == len(read.corrections) == told.positive + told.level + told.negative
    assert told.positive > told.negative, "verified gains are mostly still there"
    assert told.rewritten > told.kept
    store = LocalSource(str(run / "store")).open()
    assert sum("/rechecks/" in info.key for info in store.list("trial/recheck/")) == told.rows


def test_a_rewrite_that_changes_nothing_has_no_gain(run: Path) -> None:
    """Promise 4: the weak model's own words in place of the rewrite; the measure can fail."""
    serving = LocalServing()
    with opened(configured(run), serving) as context:
        read, store = read_rows(context), context.store_source
        agent = context.agent(serving.weak, context.base_harness)
    same = {id: (one.turn, one.original) for id, one in read.corrections.items()}
    stage = RecheckStage(agent, store, "trial/recheck/own", "trial", same, 4)
    report = LocalExecutor(LOCAL).map(stage, list(same))
    assert {outcome.state for outcome in report.outcomes} == {ItemState.COMMITTED}
    assert {outcome.state for outcome in LocalExecutor(LOCAL).map(stage, list(same)).outcomes} == {ItemState.SKIPPED}
    records = [read_recheck(stage, id) for id in same]
    rewritten = {id: (one.turn, one.rewritten) for id, one in read.corrections.items()}
    true = RecheckStage(agent, store, "trial/recheck/true", "trial", rewritten, 4)
    assert not LocalExecutor(LOCAL).map(true, list(same)).owed
    assert summarize(records).rewritten < summarize([read_recheck(true, id) for id in same]).rewritten


def test_the_summary_counts_by_hand() -> None:
    """Promise 4."""
    made = [
        Recheck(episode_id=str(n), turn=1, m=4, rewritten=new, kept=old) for n, (new, old) in enumerate([(4, 0), (3, 1), (2, 2), (0, 1)])
    ]
    told = summarize(made)
    assert (told.rows, told.positive, told.level, told.negative, told.share) == (4, 2, 1, 1, 0.5)
    assert (told.low, told.high) == wilson(2, 4)
    assert (told.rewritten, told.kept) == (9 / 16, 4 / 16)
    with pytest.raises(ValueError, match="no row"):
        summarize([])
