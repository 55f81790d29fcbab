"""Starting, joining and leaving Ray.

Promises:
 1. A local session is private, needs no files of the user, and finds our packages from any working folder.
 2. It leaves no process behind: after its block, an exception, SIGTERM or SIGKILL of the driver; and the next one starts.
 3. The driver keeps its own environment.
 4. Impossible settings and unreachable clusters are errors that name the value.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.session import AuthMode, SessionConfig, open_session
from coevo.errors import ConfigError, PrerequisiteError

ROOT = Path(__file__).resolve().parents[2]

DRIVER = """
import os, sys, time
sys.path.insert(0, {root!r})
from cluster.session import QUIET_ENVIRONMENT, SessionConfig, open_session
import ray

def look():
    import cluster, coevo, jobs, os
    return [os.path.dirname(os.path.dirname(m.__file__)) for m in (cluster, coevo, jobs)] + [os.environ["OMP_NUM_THREADS"]]

before = dict(os.environ)
with open_session(SessionConfig(temp_dir={temp!r})) as session:
    print("SEEN", *ray.get(ray.remote(look).remote()), flush=True)
    changed = sorted(name for name in QUIET_ENVIRONMENT if os.environ.get(name) != before.get(name))
    print("CHANGED", *changed, flush=True)
    print("READY", flush=True)
    {end}
print("LEFT", flush=True)
"""


def driver(tmp_path: Path, temp: Path, end: str) -> subprocess.Popen[str]:
    """A driver in another working folder, with a home of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_") and name != "PYTHONPATH"}
    environment |= {"HOME": str(tmp_path), "OMP_NUM_THREADS": "7", "RAY_ADDRESS": "127.0.0.1:1"}
    code = DRIVER.format(root=str(ROOT), temp=str(temp), end=end)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)


def read_until(process: subprocess.Popen[str], word: str) -> dict[str, list[str]]:
    """Lines of the driver by their first word, up to and including `word`."""
    assert process.stdout is not None
    found: dict[str, list[str]] = {}
    for line in process.stdout:
        parts = line.split()
        if parts:
            found[parts[0]] = parts[1:]
            if parts[0] == word:
                break
    return found


def processes_of(temp: Path, driver_pid: int) -> list[str]:
    """Command lines, other than the driver's, that name the session's folder."""
    listing = subprocess.run(["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if str(temp) in line and line.split()[0] != str(driver_pid)]


def wait_gone(temp: Path, driver_pid: int) -> None:
    """All processes of the session end."""
    deadline = time.monotonic() + 60
    while left := processes_of(temp, driver_pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


@pytest.fixture
def temp() -> Iterator[Path]:
    """A short folder: socket paths end at 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="cs", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("end", "number", "code"),
    [
        ("pass", None, 0),
        ("raise ValueError('boom')", None, 1),
        ("time.sleep(120)", signal.SIGTERM, 143),
        ("time.sleep(120)", signal.SIGKILL, -signal.SIGKILL),
    ],
    ids=["end", "exception", "sigterm", "sigkill"],
)
def test_nothing_is_left_behind(tmp_path: Path, temp: Path, end: str, number: signal.Signals | None, code: int) -> None:
    """Promises 1 to 3. Each driver starts after its predecessor's end, whatever that was; none finds the cluster of RAY_ADDRESS."""
    process = driver(tmp_path, temp, end)
    try:
        seen = read_until(process, "READY")
        assert seen["SEEN"] == [str(ROOT)] * 3 + ["1"]
        assert seen["CHANGED"] == []
        if number is not None:
            assert len(processes_of(temp, process.pid)) >= 2
            process.send_signal(number)
        process.wait(90)
    finally:
        process.kill()
    assert process.returncode == code
    wait_gone(temp, process.pid)
    assert not (tmp_path / ".ray").exists()


def test_impossible_settings_are_named() -> None:
    """Promise 4."""
    with pytest.raises(ConfigError, match="2"), open_session(SessionConfig(num_cpus=2)):
        pass
    with pytest.raises(ConfigError, match="auto"), open_session(SessionConfig(address="auto")):
        pass


def test_a_cluster_that_is_not_there() -> None:
    """Promise 4: joining a dead address is a `PrerequisiteError` that names it, at once."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        with pytest.raises(PrerequisiteError, match=address), open_session(SessionConfig(address=address, auth=AuthMode.DISABLED)):
            pass
    with pytest.raises(ConfigError, match="HOST:PORT"), open_session(SessionConfig(address="head", auth=AuthMode.DISABLED)):
        pass
