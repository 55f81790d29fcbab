"""With a recorded model a run is a function of its config: killed twice and resumed, its artifacts are those of an undisturbed run (I4).

The recording is made by a real run (`recorded` in conftest); both replays start no engine, but they train for real, so equal adapters
also show that training, killed and resumed, ends in the same weights. Attempts carry times and manifests the seconds of their stage: these
are compared without them, and the report without the place of the store.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.loop import Loop

pytestmark = pytest.mark.timeout(1200)

ENGINES_ONLY = ("/publish.json", "/references-")
"""What publishing leaves when something is really served."""

CLOCKS = {"wall_s", "gpu_s", "cpu_s", "training_s", "seconds", "cost_usd", "compute_usd", "usd", "attempts"}
"""Fields that hold times, or what follows from them."""

PLACE = "store"
"""Where a run lies; the report repeats its configuration."""


def timeless(value: Any) -> Any:
    """JSON without clocks and place, and without the hashes of objects that hold clocks."""
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if key not in {*CLOCKS, PLACE} and not key.endswith("manifest.json")}
        return {key: timeless(one) for key, one in kept.items()}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def artifact(key: str, read: Callable[[], bytes]) -> tuple[str, Any] | None:
    """Name and content of an object to compare: bytes, or JSON without its clock; None for what holds times or scratch.

    The page is its JSON twin drawn, under the hash of both.
    """
    if "/attempts/" in key or "/scratch/" in key or key.endswith(("config.json", "report.html")):
        return None
    named = f"{key.partition('/')[0]}/report.json" if key.endswith("/report.json") else key
    return named, timeless(orjson.loads(read())) if named.endswith(("manifest.json", "report.json")) else read()


def artifacts(loop: Loop) -> dict[str, Any]:
    """The objects of the run to compare, by key."""
    files = [path for path in sorted((loop.store / loop.name).rglob("*")) if path.is_file()]
    found = (artifact(str(path.relative_to(loop.store)), path.read_bytes) for path in files)
    return dict(one for one in found if one is not None)


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
    left, right = artifacts(whole), artifacts(cut)
    print(f"driver ended with {codes}; {len(left)} artifacts compared")
    assert codes == [-9, -9]
    assert left.keys() == right.keys()
    assert [key for key in left if left[key] != right[key]] == []
    made = {key: data for key, data in artifacts(recorded).items() if not any(mark in key for mark in ENGINES_ONLY)}
    different = [key for key in left.keys() | made.keys() if left.get(key) != made.get(key)]
    assert [key for key in different if not key.endswith("/report.json")] == [], "the report also tells what was served"
