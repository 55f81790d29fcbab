"""One real run for all tests that read one: the tiny config, its model recorded on the way."""

from __future__ import annotations

import pytest

from tests.e2e.loop import Loop


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    """A finished run; what it printed is in `printed`, the override that records (or replays) it in `recording`."""
    loop = Loop(tmp_path_factory.mktemp("loop") / "store")
    done = loop.run("run", loop.recording)
    assert done.returncode == 0, done.stderr[-3000:]
    loop.printed.append(done.stdout)
    return loop
