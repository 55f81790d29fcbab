"""What every node of a cluster says about itself: versions, clock, and whether it reaches the store. Needs an open session."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coevo import __version__
from coevo.ports import StoreSource

__all__ = ["NodeFacts", "driver_versions", "node_facts"]

ANSWER_S = 120.0
"""Seconds for all nodes to answer: a worker process may have to start first."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node's answer.

    Attributes:
        node: First digits of its id.
        host: Address.
        versions: python, ray, coevo; empty without an answer.
        clock_s: Its clock less the driver's, in seconds.
        store_error: Why it can't use the store; empty when it can, or was not asked.
        error: Why there is no answer.
    """

    node: str
    host: str
    versions: Mapping[str, str]
    clock_s: float = 0.0
    store_error: str = ""
    error: str = ""


def driver_versions() -> dict[str, str]:
    """Versions in this process."""
    import ray

    return {"python": platform.python_version(), "ray": ray.__version__, "coevo": __version__}


def node_facts(store: StoreSource | None = None, *, timeout_s: float = ANSWER_S) -> list[NodeFacts]:
    """Ask every node that is alive, all at once.

    Args:
        store: A store that each node is to reach with its own keys.
        timeout_s: For all answers together; a node without one says so.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    listing: Any = ray.nodes
    nodes = [node for node in listing() if node["Alive"]]
    asked = time.time()
    remote: Any = ray.remote(num_cpus=0, max_retries=0)(_probe())
    pending = [
        remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(store) for node in nodes
    ]
    ready, _ = ray.wait(pending, num_returns=len(pending), timeout=timeout_s)
    return [_facts(node, answer if answer in ready else None, asked) for node, answer in zip(nodes, pending, strict=True)]


def _probe() -> Any:
    """The question, as a local function: it travels by value, so a node without our packages can still answer."""

    def probe(store: Any) -> dict[str, Any]:
        import platform
        import time

        import ray

        clock = time.time()
        versions = {"python": platform.python_version(), "ray": ray.__version__}
        error = ""
        try:
            import coevo

            versions["coevo"] = coevo.__version__
            if store is not None:
                store.open().head("doctor/nothing-here")
        except Exception as caught:  # noqa: BLE001 - the answer is the point, whatever is wrong with the node
            error = f"{type(caught).__name__}: {caught}"
        return {"clock": clock, "versions": versions, "error": error}

    return probe


def _facts(node: Mapping[str, Any], answer: Any, asked: float) -> NodeFacts:
    import ray
    from ray.exceptions import RayError

    name, host = str(node["NodeID"])[:8], str(node.get("NodeManagerAddress", ""))
    if answer is None:
        return NodeFacts(name, host, {}, error="no answer in time")
    try:
        told = ray.get(answer)
    except RayError as error:
        lines: Sequence[str] = str(error).strip().splitlines()
        return NodeFacts(name, host, {}, error=lines[-1][:300] if lines else type(error).__name__)
    ahead_s = max(0.0, told["clock"] - time.time()) - max(0.0, asked - told["clock"])
    return NodeFacts(name, host, told["versions"], clock_s=ahead_s, store_error=told["error"])
