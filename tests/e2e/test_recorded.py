"""With a recorded model a run is a function of its config: killed twice and resumed, its artifacts are those of an undisturbed run (I4).

The recording is made by a real run (`recorded` in conftest); both replays start no engine, but they train for real, so equal adapters
also show that training, killed and resumed, ends in the same weights.
"""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.e2e.artifacts import differing, made_without_engines
from tests.e2e.loop import Loop

pytestmark = pytest.mark.timeout(1200)


def test_a_replay_killed_twice_ends_byte_identical(recorded: Loop, tmp_path: Path) -> None:
    """Replay undisturbed; replay with a SIGKILL among the episodes, one in training, and the same command again."""
    replay = ("weak.engine=recorded", recorded.recording)
    whole = Loop(tmp_path / "whole")
    done = whole.run("run", *replay)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "engines for" not in done.stderr
    cut = Loop(tmp_path / "cut")
    codes = [
        cut.kill_when(lambda: len(cut.keys("episodes/")) >= 30, overrides=replay),
        cut.kill_when(lambda: any((cut.store / cut.name / "scratch" / "train").glob("*/*")), overrides=replay),
    ]
    again = cut.run("run", *replay)
    assert again.returncode == 0, again.stderr[-3000:]
    left, right = whole.artifacts(), cut.artifacts()
    print(f"driver ended with {codes}; {len(left)} artifacts compared")
    assert codes == [-9, -9]
    assert len(left) > 100
    assert differing(left, right) == []
    assert differing(made_without_engines(left), made_without_engines(recorded.artifacts())) == []


def test_a_search_killed_twice_decides_the_same_and_pays_once(recorded: Loop, tmp_path: Path) -> None:
    """`coevo evolve` with a SIGKILL in its race and one near its end: the recorded run's search, and one outcome per episode (I4, I10)."""
    searched = {key: data for key, data in recorded.artifacts().items() if "/evolve/" in key}
    (record,) = (orjson.loads(data) for key, data in searched.items() if "/search-" in key)
    cut = Loop(tmp_path / "store")
    replay = ("weak.engine=recorded", recorded.recording, "rollout.concurrency=1")
    safe: list[set[str]] = []
    for episodes in (record["episodes"] // 4, 3 * record["episodes"] // 4):
        code = cut.kill_when(lambda wanted=episodes: len(cut.keys("episodes/")) >= wanted, verb="evolve", overrides=replay)  # type: ignore[misc]
        assert code == -9
        safe.append({key.rpartition("/")[2].removesuffix(".json.zst") for key in cut.keys("episodes/")})
    assert "evolve" not in cut.manifests(), "both kills were among the episodes"
    again = cut.run("evolve", *replay)
    assert again.returncode == 0, again.stderr[-3000:]
    outcomes = cut.outcomes()
    print(f"killed at {[len(ids) for ids in safe]} of {len(cut.keys('episodes/'))} episodes; attempts: {sorted(set(outcomes.values()))}")
    assert set(outcomes.values()) == {1}
    assert all(outcomes[id] <= 1 for ids in safe for id in ids)
    assert record["rounds"]
    assert differing(searched, {key: data for key, data in cut.artifacts().items() if "/evolve/" in key}) == []
