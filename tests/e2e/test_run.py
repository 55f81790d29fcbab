"""The main job, end to end, with the real parts: Ray, engines, DeepSpeed, the embedded model.

1. `coevo run` goes round once, exits 0, prints the grid and the report's path; every stage closes with every row accounted for.
2. The same command again finds everything done: no episode is played, no model started.
3. A run name used with another configuration is refused with exit code 2, before anything is written.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.loop import Loop

pytestmark = pytest.mark.timeout(1500)

STAGES = {"evolve", "transfer", "rollout", "localize", "rewrite", "dataset", "evaluate"}
EPISODES = 12
"""Test instances of the tiny config."""
CELLS = ("base/h0", "base/h*", "expert/h0", "expert/h*", "correction/h0", "correction/h*", "imitation/h0", "imitation/h*")


def complete(loop: Loop, printed: str) -> None:
    """Every stage is closed, every cell measured, the report written."""
    manifests = loop.manifests()
    assert manifests.keys() >= STAGES
    for manifest in manifests.values():
        assert manifest.rows.total + len(manifest.owed) == manifest.expected
    assert all(cell in printed for cell in CELLS)
    assert f"the test stream was opened by evaluate: {EPISODES} instances x 1, for 4 models under " in printed
    page = next(line.partition("report: ")[2] for line in printed.splitlines() if "report: " in line)
    assert Path(page.strip()).read_text(encoding="utf-8").lower().startswith("<!doctype html")


def test_the_loop_goes_round_once(recorded: Loop) -> None:
    """Promise 1."""
    complete(recorded, recorded.printed[0])


def test_the_same_command_again_plays_nothing(recorded: Loop) -> None:
    """Promise 2."""
    before = recorded.keys("attempts/")
    again = recorded.run("run", recorded.recording)
    assert again.returncode == 0, again.stderr[-3000:]
    assert recorded.keys("attempts/") == before
    assert "engines for" not in again.stderr
    complete(recorded, again.stdout)


def test_another_config_under_the_name_is_refused(recorded: Loop) -> None:
    """Promise 3."""
    before = recorded.keys("")
    refused = recorded.run("run", "seed=7")
    assert refused.returncode == 2
    assert "seed" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert recorded.keys("") == before
