"""SIGKILL of the driver while episodes are played, then, under the same command, of a model server.

The pool recovers, every wanted id is committed or owed, and no committed episode is played again (R8, R9, I4). `test_recorded` kills the
training as well.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.e2e.loop import Loop

pytestmark = pytest.mark.timeout(1500)


def model_servers() -> list[int]:
    """Processes of model servers on this machine that descend from this one."""
    mine = psutil.Process().children(recursive=True)
    return [one.pid for one in mine if one.is_running() and "ModelServer" in " ".join(one.cmdline())]


def test_killed_driver_and_killed_server_lose_nothing(tmp_path: Path) -> None:
    """Without evolution, so that the verb is the rollouts alone."""
    loop = Loop(tmp_path / "store", name="killed")
    settings = ("evolve.enabled=false", "localize.rollouts=240")
    assert loop.kill_when(lambda: len(loop.keys("episodes/")) >= 20, verb="rollout", overrides=settings) == -9
    committed = {key.rpartition("/")[2].removesuffix(".json.zst") for key in loop.keys("episodes/")}
    killed: list[int] = []

    def server_killed() -> bool:
        if not killed and len(loop.keys("episodes/")) >= len(committed) + 20:
            killed.extend(model_servers()[:1])
            os.kill(killed[0], signal.SIGKILL)
        return False

    assert loop.kill_when(server_killed, verb="rollout", overrides=settings) == 0
    assert len(killed) == 1
    manifest = loop.manifests()["rollout"]
    assert manifest.rows.written + len(manifest.owed) == manifest.expected == 240
    outcomes = loop.outcomes()
    print(f"{len(outcomes)} episodes, attempts with an outcome per id: {sorted(set(outcomes.values()))}; owed {len(manifest.owed)}")
    assert committed <= outcomes.keys()
    assert {outcomes[id] for id in committed} == {1}
