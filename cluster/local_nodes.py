"""A Ray cluster of several nodes on this machine, from real `ray start` processes.

For trying a deployment before it costs anything, and for the tests that lose nodes: each node has its own raylet, agent and workers, its
own logical CPUs and labels, and can be stopped or killed (SIGKILL of all its processes) by itself. Nothing is found by name or by
`address="auto"`, so other clusters of the machine are neither seen nor touched.

Limits: Linux; the nodes die with the thread that started them; all share this machine's cores and file system; Ray puts the machine's own
address in the place of loopback, so use TOKEN on a machine with other users; the Jobs server listens on loopback.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from cluster.session import QUIET_ENVIRONMENT, AuthMode, package_path
from coevo.errors import InfraError, PrerequisiteError

__all__ = ["LocalNode", "LocalNodes", "NodeSpec"]

log = logging.getLogger(__name__)

_START_TRIES = 3
_POLL_S = 0.2
_STARTED = "Ray runtime started"
_ID_FLAG = "--node_id="
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15, 0, 0, 0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""Linux's PR_SET_PDEATHSIG with SIGTERM, then the real command: an owner that is killed leaves no nodes behind."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What a node offers.

    Attributes:
        num_cpus: Logical CPUs; 0 for a head that runs no work.
        num_gpus: Logical GPUs.
        resources: Custom resources, for example the labels of pools: `{"coevo-pool-weak": 1, "spot": 1}`.
        object_store_bytes: Size of its object store.
    """

    num_cpus: float = 2
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    object_store_bytes: int = 96 << 20


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A started node: its name, id (hex) in the cluster, and the process that holds it."""

    name: str
    id: str
    pid: int

    def processes(self) -> list[psutil.Process]:
        """The node's processes that live: launcher, raylet, agents, workers."""
        try:
            launcher = psutil.Process(self.pid)
            return [launcher, *launcher.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def workers(self, title: str) -> list[psutil.Process]:
        """Worker processes whose title starts with `ray::TITLE`."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if "".join(process.cmdline()[:1]).startswith(f"ray::{title}"):
                    found.append(process)
        return found


class LocalNodes:
    """See the module. A context manager: leaving it ends every node.

    Args:
        head: The head node; it also runs the dashboard with the Jobs server unless `jobs` is False.
        workers: The other nodes.
        jobs: Start the dashboard.
        auth: TOKEN draws a token of its own; see `environment`.
        start_timeout_s: Patience for one node on a busy machine.

    Attributes:
        address: GCS address HOST:PORT, for `SessionConfig.address`.
        jobs_address: URL of the Jobs server; empty without one.
        environment: Variables with which a process of this machine may join.
    """

    def __init__(
        self,
        head: NodeSpec | None = None,
        workers: Sequence[NodeSpec] = (),
        *,
        jobs: bool = True,
        auth: AuthMode = AuthMode.TOKEN,
        start_timeout_s: float = 180.0,
    ) -> None:
        self._head = head or NodeSpec()
        self._workers = tuple(workers)
        self._jobs = jobs
        self._timeout_s = start_timeout_s
        self._temp = Path(tempfile.mkdtemp(prefix="co-"))
        self._launchers: dict[str, subprocess.Popen[bytes]] = {}
        self._number = 0
        self.nodes: list[LocalNode] = []
        self.address = ""
        self.jobs_address = ""
        self.environment = {"RAY_AUTH_MODE": auth.value, "RAY_USAGE_STATS_ENABLED": "0"}
        if auth is AuthMode.TOKEN:
            self.environment["RAY_AUTH_TOKEN"] = secrets.token_hex(32)

    def __enter__(self) -> Self:
        try:
            self._start_head()
            for spec in self._workers:
                self.add(spec)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def head(self) -> LocalNode:
        """The head node."""
        return self.nodes[0]

    def add(self, spec: NodeSpec) -> LocalNode:
        """Start one node more; returns when the cluster knows it.

        Raises:
            InfraError: It did not come up in time.
        """
        for _ in range(_START_TRIES - 1):  # Ray gives a raylet 30 s, fixed; a busy machine may need more
            try:
                return self._start(spec, ["--address", self.address])
            except InfraError as error:
                log.warning("%s", error)
        return self._start(spec, ["--address", self.address])

    def kill(self, node: LocalNode) -> None:
        """SIGKILL of all its processes at once, as when a machine is taken away. Returns when they are gone."""
        processes = node.processes()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(processes, timeout=30.0)
        self._forget(node)

    def stop(self, node: LocalNode) -> None:
        """End a node in order: SIGTERM to its launcher, SIGKILL for what is left after a while."""
        processes = node.processes()
        if processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                processes[0].terminate()
        _, left = psutil.wait_procs(processes, timeout=10.0)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10.0)
        self._forget(node)

    def close(self) -> None:
        """End all nodes, workers first, and remove their files."""
        for node in reversed(list(self.nodes)):
            self.kill(node)
        for launcher in self._launchers.values():  # one that never became a node
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(launcher.pid).children(recursive=True):
                    child.kill()
            launcher.kill()
            launcher.wait(timeout=30.0)
        self._launchers.clear()
        shutil.rmtree(self._temp, ignore_errors=True)

    def _forget(self, node: LocalNode) -> None:
        self.nodes = [one for one in self.nodes if one.name != node.name]
        launcher = self._launchers.pop(node.name, None)
        if launcher is not None:
            launcher.wait(timeout=30.0)

    def _start_head(self) -> None:
        for left in reversed(range(_START_TRIES)):
            port, jobs_port, client_port = free_ports(3)
            self.address = f"127.0.0.1:{port}"
            arguments = ["--head", "--port", str(port), "--ray-client-server-port", str(client_port)]
            arguments += ["--include-dashboard", str(self._jobs).lower()]
            if self._jobs:
                arguments += ["--dashboard-host", "127.0.0.1", "--dashboard-port", str(jobs_port)]
            try:
                self._start(self._head, arguments)
            except InfraError:  # a port was taken between the choice and the start
                if not left:
                    raise
                continue
            if self._jobs:
                self.jobs_address = f"http://127.0.0.1:{jobs_port}"
                self._await_jobs_server(jobs_port)
            return

    def _start(self, spec: NodeSpec, arguments: Sequence[str]) -> LocalNode:
        name, folder = f"node-{self._number}", self._temp / str(self._number)
        self._number += 1
        folder.mkdir()
        output = self._temp / f"{name}.log"
        (agent_port,) = free_ports(1)
        command = [
            sys.executable,
            "-c",
            _DIE_WITH_PARENT,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--disable-usage-stats",
            *arguments,
        ]
        # A folder of its own, as on a machine of its own: a node that sets a job's working folder up again deletes the one that is there.
        command += ["--temp-dir", str(folder)]
        command += ["--node-name", name, "--node-ip-address", "127.0.0.1", "--dashboard-agent-listen-port", str(agent_port)]
        command += ["--num-cpus", f"{spec.num_cpus:g}", "--num-gpus", f"{spec.num_gpus:g}", "--resources", json.dumps(dict(spec.resources))]
        command += ["--object-store-memory", str(spec.object_store_bytes), "--min-worker-port", "0", "--max-worker-port", "0"]
        with output.open("wb") as stream:
            launcher = subprocess.Popen(
                command,
                env=self._node_environment(),
                cwd=self._temp,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self._launchers[name] = launcher
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline and launcher.poll() is None:
            identity = _node_id(launcher.pid) if _STARTED in output.read_text(errors="replace") else ""
            if identity:
                node = LocalNode(name, identity, launcher.pid)
                self.nodes.append(node)
                return node
            time.sleep(_POLL_S)
        tail = output.read_text(errors="replace")[-2000:]
        self.kill(LocalNode(name, "", launcher.pid))
        raise InfraError(
            "a node did not start", seen=tail or f"{name}: nothing in {self._timeout_s:.0f} s", fix="see the lines above; check load"
        )

    def _node_environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        programs = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", "")])  # a job's `python` is ours
        own = {"PATH": programs, "PYTHONPATH": package_path(), "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "3"}
        return inherited | QUIET_ENVIRONMENT | self.environment | own

    def _await_jobs_server(self, port: int) -> None:
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            if _listens(f"127.0.0.1:{port}"):
                return
            time.sleep(_POLL_S)
        raise PrerequisiteError(
            "the Jobs server did not start", seen=self.jobs_address, fix="install ray[default]; see logs/dashboard.log of the head"
        )


def free_ports(count: int) -> list[int]:
    """Ports of loopback that the system considers free now."""
    held: list[Any] = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


def _node_id(launcher: int) -> str:
    """Hex id of the node that `ray start` with this pid holds, from its raylet's arguments; empty while there is no raylet."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(launcher).children():
            found = [part for part in process.cmdline() if part.startswith(_ID_FLAG)]
            if found:
                return str(found[0]).removeprefix(_ID_FLAG)
    return ""


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True
