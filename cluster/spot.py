"""Nodes that the cloud takes back: one watcher on each, and the drain of a node that got its notice.

The driver keeps a watcher actor on every node. It asks the node's own notice source (`cluster.notices`); on a notice it asks Ray to drain
the node, with the deadline, and ends. Ray then places nothing new there; `Dispatch`, the bulk workers and `ModelPool` give the node no new
work (`cluster.drain`), and training writes a checkpoint (`cluster.lora_trainer`). What is in flight finishes, or is lost with the node and
stays owed until it is played elsewhere.

Limits: a node that joins is watched a few seconds later; Ray ends a drained node's raylet as soon as nothing runs on it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from types import TracebackType
from typing import Any, Self

import ray

from cluster.drain import request_drain
from cluster.notices import Notice, WatchPlan, watch_node
from cluster.placement import on_node
from coevo.errors import CoevoError, InfraError, boundary

__all__ = ["NodeWatcher", "SpotWatch"]

log = logging.getLogger(__name__)

_ROUND_S = 2.0  # the driver looks for nodes without a watcher this often


class NodeWatcher:
    """The actor of one node."""

    def __init__(self, plan: WatchPlan, node_id: str) -> None:
        self._plan = plan
        self._node_id = node_id
        self._stop = threading.Event()

    def watch(self) -> Notice | None:
        """Returns the notice once the node is being drained."""
        return watch_node(self._plan, self._node_id, drain=_drain, stopped=self._stop.wait)


def _drain(node_id: str, notice: Notice) -> None:
    request_drain(node_id, reason=notice.detail, deadline=notice.deadline)


class SpotWatch:
    """Keeps a watcher on every node while the block lasts; without a source it does nothing.

    Attributes:
        notices: Node id -> notice that was acted on.
    """

    def __init__(self, plan: WatchPlan | None) -> None:
        self._plan = plan
        self._stop = threading.Event()
        self._watchers: dict[str, tuple[Any, Any]] = {}
        self._thread: threading.Thread | None = None
        self.notices: dict[str, Notice] = {}

    def __enter__(self) -> Self:
        if self._plan is not None:
            self._thread = threading.Thread(target=self._loop, name="spot-watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30.0)
        for actor, _ in self._watchers.values():
            with contextlib.suppress(Exception):
                ray.kill(actor, no_restart=True)

    def wait_ready(self, nodes: int, *, timeout_s: float = 60.0) -> None:
        """Block until so many nodes are watched. Raises `InfraError` when they are not in time."""
        deadline = time.monotonic() + timeout_s
        while len(self._watchers) < nodes:
            if time.monotonic() > deadline:
                raise InfraError("not every node is watched in time", seen=f"{len(self._watchers)} of {nodes}", fix="see Ray's log")
            time.sleep(0.1)

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                with boundary(InfraError, "the spot watch met an error"):
                    self._round()
            except CoevoError as error:
                log.warning("%s", error)
            self._stop.wait(_ROUND_S)

    def _round(self) -> None:
        nodes: Any = ray.nodes
        alive = {str(node["NodeID"]) for node in nodes() if node["Alive"]}
        for node_id in alive - self._watchers.keys() - self.notices.keys():
            remote: Any = ray.remote(NodeWatcher)
            actor = remote.options(**on_node(node_id), max_restarts=0).remote(self._plan, node_id)
            self._watchers[node_id] = (actor, actor.watch.remote())
        for node_id, (actor, ref) in list(self._watchers.items()):
            if node_id not in alive or ray.wait([ref], timeout=0)[0]:
                self._take(node_id, actor, ref)

    def _take(self, node_id: str, actor: Any, ref: Any) -> None:
        """A watcher ended: with its notice, or with its node; a lost one is started again at the next round."""
        del self._watchers[node_id]
        try:
            notice = ray.get(ref, timeout=1.0)
        except ray.exceptions.RayError as error:
            log.info("the watcher of node %s was lost: %s", node_id[:8], str(error)[:200])
            return
        if notice is not None:
            self.notices[node_id] = notice
        ray.kill(actor, no_restart=True)
