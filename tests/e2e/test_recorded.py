"""With a recorded model a run is a function of its config: killed and resumed, its artifacts are those of an undisturbed run (I4).

The recording is made by a real run of the tiny config up to the training rows; both replays start no engine. Attempts carry
times and manifests the seconds of their stage, so these two kinds are compared without them.
"""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.e2e.loop import Loop

pytestmark = pytest.mark.timeout(1200)


def artifacts(loop: Loop) -> dict[str, bytes]:
    """Every object of the run by key, attempts left out, manifests without their clock."""
    found = {}
    for path in sorted((loop.store / loop.name).rglob("*")):
        key = str(path.relative_to(loop.store))
        if not path.is_file() or "/attempts/" in key or "/scratch/" in key or key.endswith("config.json"):
            continue
        data = path.read_bytes()
        if key.endswith("/manifest.json"):
            data = orjson.dumps({name: value for name, value in orjson.loads(data).items() if name != "wall_s"})
        found[key] = data
    return found


def test_a_killed_replay_ends_byte_identical(tmp_path: Path) -> None:
    """Record, replay undisturbed, replay with a SIGKILL in the rollouts and the same command again."""
    recording = f"weak.recording={tmp_path / 'recording'}"
    made = Loop(tmp_path / "made").run("dataset", recording)
    assert made.returncode == 0, made.stderr[-3000:]
    replay = ("weak.engine=recorded", recording)
    whole = Loop(tmp_path / "whole")
    done = whole.run("dataset", *replay)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "engines for" not in done.stderr
    cut = Loop(tmp_path / "cut")
    code = cut.kill_when(lambda: len(cut.keys("episodes/")) >= 30, verb="dataset", overrides=replay)
    again = cut.run("dataset", *replay)
    assert again.returncode == 0, again.stderr[-3000:]
    left, right = artifacts(whole), artifacts(cut)
    print(f"driver ended with {code}; {len(left)} artifacts compared")
    assert left.keys() == right.keys()
    assert [key for key in left if left[key] != right[key]] == []
    assert artifacts(Loop(tmp_path / "made")) == left
