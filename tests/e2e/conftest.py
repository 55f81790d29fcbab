"""One real run for all tests that read one: the tiny config, its model recorded on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.loop import Loop

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with a test that reads the recorded run stay in one process, so that it is made once."""
    readers = {item.path for item in items if item.path.parent == HERE and "recorded" in getattr(item, "fixturenames", ())}
    for item in items:
        if item.path in readers:
            item.add_marker(pytest.mark.xdist_group("recorded"))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    """A finished run; what it printed is in `printed`, the override that records (or replays) it in `recording`."""
    loop = Loop(tmp_path_factory.mktemp("loop") / "store")
    done = loop.run("run", loop.recording)
    assert done.returncode == 0, done.stderr[-3000:]
    loop.printed.append(done.stdout)
    return loop
