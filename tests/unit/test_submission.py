"""Submitting a run. Promises (R17):

1. The same command means the same job: one that waits, runs or succeeded is attached to; a failed or stopped one gives the next attempt.
2. The id depends on what the run computes and where it is stored, not on where and how fast it runs.
3. What is uploaded: packages (unless the image holds them), the resolved config, the folder and harness that are named; nothing ignored.
4. Keys do not travel (I11): names of variables only, checked on the cluster, told by name when they are missing.
5. A store that only this machine reaches is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cluster.submission import JobState, SubmissionPlan, next_submission, require_environment, staged
from coevo.config import RunConfig, parse_config
from coevo.errors import ConfigError, PrerequisiteError

P = "coevo-x-0123-"


def config(**changes: object) -> RunConfig:
    return parse_config({"name": "x", "store": "s3://bucket/runs", **changes})


@pytest.mark.parametrize(
    ("known", "attempt", "attached"),
    [
        ([], 1, False),
        ([(f"{P}1", JobState.RUNNING)], 1, True),
        ([(f"{P}1", JobState.PENDING)], 1, True),
        ([(f"{P}1", JobState.SUCCEEDED)], 1, True),
        ([(f"{P}1", JobState.FAILED)], 2, False),
        ([(f"{P}1", JobState.FAILED), (f"{P}2", JobState.STOPPED)], 3, False),
        ([(f"{P}10", JobState.FAILED), (f"{P}9", JobState.FAILED)], 11, False),
        ([("coevo-x-4567-1", JobState.RUNNING), (f"{P}one", JobState.RUNNING)], 1, False),
    ],
)
def test_which_job_a_command_means(known: list[tuple[str, JobState]], attempt: int, attached: bool) -> None:
    """Promise 1, R17."""
    chosen = next_submission(P, known)
    assert (chosen.attempt, chosen.attached, chosen.id) == (attempt, attached, f"{P}{attempt}")


def test_the_id_is_what_is_computed() -> None:
    """Promise 2."""
    base = SubmissionPlan(config())
    assert base.prefix.startswith("coevo-x-")
    assert SubmissionPlan(config(rollout={"concurrency": 3}, cluster={"cpus": 16})).prefix == base.prefix
    others = [SubmissionPlan(config(seed=1)), SubmissionPlan(config(store="s3://other")), SubmissionPlan(config(), verb="rollout")]
    assert len({one.prefix for one in [base, *others]}) == 4


def test_what_is_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 3."""
    monkeypatch.chdir(tmp_path)
    for name in ("mine/family.py", "mine/.git/config", "mine/big.bin", "h/harness.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    plan = SubmissionPlan(config(evolve={"harness": "h"}), working_dir=tmp_path / "mine", excludes=("*.bin",), baked=True)
    with staged(plan) as folder:
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        held = yaml.safe_load((folder / "coevo-job.yaml").read_text())
    assert files == ["coevo-job.yaml", "family.py", "h/harness.yaml"]
    assert parse_config(held) == plan.job_config
    assert held["cluster"]["address"] == "env"
    assert held["name"] == "x"
    with staged(SubmissionPlan(config())) as folder:
        assert (folder / "jobs" / "cli.py").is_file()
        assert (folder / "coevo" / "mini" / "weights" / "model.safetensors").is_file()
        assert not list(folder.rglob("__pycache__"))
    assert not folder.exists()
    with pytest.raises(ConfigError, match="nowhere"), staged(SubmissionPlan(config(), working_dir=Path("nowhere"))):
        pass


def test_keys_are_named_and_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 4, I11."""
    plan = SubmissionPlan(config(), needs=("EXPERT_KEY", "PATH"))
    assert plan.entrypoint == "python -m cluster.submission EXPERT_KEY PATH && python -m jobs.cli run coevo-job.yaml --display plain"
    with pytest.raises(ConfigError) as refused:
        SubmissionPlan(config(), needs=("KEY=sk-secret",))
    assert "sk-secret" not in str(refused.value)
    monkeypatch.setenv("HELD", "sk-secret")
    require_environment(("HELD",))
    with pytest.raises(PrerequisiteError, match="ABSENT_KEY") as missing:
        require_environment(("HELD", "ABSENT_KEY"))
    assert "sk-secret" not in str(missing.value)


def test_a_store_of_this_machine_is_refused() -> None:
    """Promise 5."""
    with pytest.raises(ConfigError, match="runs"):
        SubmissionPlan(config(store="runs"))
    SubmissionPlan(config(store="/shared/runs"))
