"""The main job, end to end, with the real parts: Ray, engines, DeepSpeed, the embedded model.

1. `coevo run` goes round once, exits 0, prints the grid and the report's path; every stage closes with every row accounted for.
2. The same command again finds everything done: no episode is played, no model started.
3. SIGKILL of the driver while episodes are played, and again while it trains; the same command ends the job: no committed episode is
   played again, and the grid is complete (R9, I4).
4. A run name used with another configuration is refused with exit code 2, before anything is written.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.loop import Loop

pytestmark = pytest.mark.timeout(1500)

STAGES = {"evolve", "transfer", "rollout", "localize", "rewrite", "dataset", "evaluate"}
CELLS = ("base/h0", "base/h*", "expert/h0", "expert/h*", "correction/h0", "correction/h*", "imitation/h0", "imitation/h*")


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    return Loop(tmp_path_factory.mktemp("loop") / "store")


def complete(loop: Loop, printed: str) -> None:
    """Every stage is closed, every cell measured, the report written."""
    manifests = loop.manifests()
    assert manifests.keys() >= STAGES
    for manifest in manifests.values():
        assert manifest.rows.total + len(manifest.owed) == manifest.expected
    assert all(cell in printed for cell in CELLS)
    page = next(line.partition("report: ")[2] for line in printed.splitlines() if "report: " in line)
    assert Path(page.strip()).read_text(encoding="utf-8").lower().startswith("<!doctype html")


def test_the_loop_goes_round_once(loop: Loop) -> None:
    """Promise 1."""
    done = loop.run("run")
    assert done.returncode == 0, done.stderr[-3000:]
    complete(loop, done.stdout)


def test_the_same_command_again_plays_nothing(loop: Loop) -> None:
    """Promise 2."""
    before = loop.keys("attempts/")
    again = loop.run("run")
    assert again.returncode == 0, again.stderr[-3000:]
    assert loop.keys("attempts/") == before
    assert "engines for" not in again.stderr
    complete(loop, again.stdout)


def test_another_config_under_the_name_is_refused(loop: Loop) -> None:
    """Promise 4."""
    before = loop.keys("")
    refused = loop.run("run", "seed=7")
    assert refused.returncode == 2
    assert "seed" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert loop.keys("") == before


def test_a_killed_driver_loses_nothing(tmp_path: Path) -> None:
    """Promise 3."""
    loop = Loop(tmp_path / "store", name="killed")
    first = loop.kill_when(lambda: len(loop.keys("episodes/")) >= 20)
    committed = set(loop.keys("episodes/"))
    assert first == -9
    second = loop.kill_when(lambda: any((loop.store / loop.name / "scratch" / "train").glob("*")))
    assert second == -9
    assert committed <= set(loop.keys("episodes/"))
    done = loop.run("run")
    assert done.returncode == 0, done.stderr[-3000:]
    complete(loop, done.stdout)
    outcomes = loop.outcomes()
    ids = {key.rpartition("/")[2].removesuffix(".json.zst") for key in committed}
    replayed = sorted(id for id in ids if outcomes[id] > 1)
    print(f"attempts per committed id: {sorted(set(outcomes.values()))}; played again: {replayed}")
    assert not replayed
