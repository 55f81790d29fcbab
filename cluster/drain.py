"""Nodes that are being drained, as the cluster knows them: asked for, and looked up at most once a second.

Ray places nothing new on a draining node, and its trainer answers the same signal; what is ours is to give no new work to the processes
that run there already. The request and the list are not part of Ray's stable interface (2.60): they are used here only.

Ray 2.60 aborts the whole process when it is shut down while a query for the list is in flight, so whoever ends a session does it inside
`no_query`.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from coevo.errors import CoevoError, InfraError, boundary

__all__ = ["DrainWatch", "draining_nodes", "no_query", "request_drain"]

log = logging.getLogger(__name__)

LOOK_S = 1.0

QUERY_S = 90.0
"""Longest that a query was seen to take, with a margin: about a minute while the cluster's head is lost."""

_asking = threading.Lock()


def draining_nodes() -> dict[str, float | None]:
    """Node id (hex) -> Unix time at which it will be gone, None where no time was given. Raises `InfraError` while the head is away."""
    import ray

    held: Any = importlib.import_module("ray._private.state").state
    with _asking:
        if not ray.is_initialized():
            raise InfraError("no session to ask for draining nodes", fix="ask while a session is open")
        with boundary(InfraError, "the cluster's head does not tell which nodes are being drained"):
            found: dict[str, int] = held.get_draining_nodes()
    return {node: deadline_ms / 1000 if deadline_ms else None for node, deadline_ms in found.items()}


@contextmanager
def no_query() -> Iterator[None]:
    """Let a query in flight end, and begin none inside the block: for ending a session."""
    alone = _asking.acquire(timeout=QUERY_S)
    try:
        yield
    finally:
        if alone:
            _asking.release()


def request_drain(node_id: str, *, reason: str, deadline: float | None) -> None:
    """Tell the cluster that a node will be taken away.

    Args:
        node_id: Hex id.
        reason: For Ray's logs.
        deadline: Unix time when it will be gone; None when unknown.

    Raises:
        InfraError: The cluster did not accept it.
    """
    import ray

    messages: Any = importlib.import_module("ray.core.generated.autoscaler_pb2")
    raylet: Any = importlib.import_module("ray._raylet")
    context: Any = ray.get_runtime_context()
    client = raylet.GcsClient(address=context.gcs_address)
    preemption = messages.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    try:
        accepted, refusal = client.drain_node(node_id, preemption, reason, int(deadline * 1000) if deadline is not None else 0)
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise InfraError("the drain request did not reach the cluster", seen=f"{node_id}: {error}", fix="it is tried again") from error
    if not accepted:
        raise InfraError("the cluster refused to drain a node", seen=f"{node_id}: {refusal}", fix="check that the node is alive")


class DrainWatch:
    """The draining nodes, looked up again when the last look is older than `every_s`.

    Args:
        look: Gives the ids.
        every_s: Seconds between two looks.
        clock: Monotonic seconds.
    """

    def __init__(
        self, look: Callable[[], Iterable[str]] = draining_nodes, *, every_s: float = LOOK_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look = look
        self._every_s = every_s
        self._clock = clock
        self._looked_at = float("-inf")
        self._nodes: frozenset[str] = frozenset()

    def nodes(self) -> frozenset[str]:
        """Ids of the draining nodes; those of the last look while the cluster's head does not answer."""
        now = self._clock()
        if now - self._looked_at >= self._every_s:
            self._looked_at = now
            try:
                self._nodes = frozenset(self._look())
            except CoevoError as error:
                log.info("%s", error)
        return self._nodes
