"""Where Ray puts our processes: what they ask of a node, whether they spread, and what stays beside the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from coevo.config import PlacementConfig

__all__ = ["actor_placement", "beside_driver", "on_node", "process_needs", "worker_bundle"]


def actor_placement(
    num_cpus: float, num_gpus: float = 0.0, resources: Mapping[str, float] | None = None, memory_bytes: int = 0, *, spread: bool = True
) -> dict[str, Any]:
    """Options of an actor that does work."""
    options: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "scheduling_strategy": "SPREAD" if spread else "DEFAULT"}
    if resources:
        options["resources"] = dict(resources)
    if memory_bytes:
        options["memory"] = memory_bytes
    return options


def beside_driver() -> dict[str, Any]:
    """Options of a small actor that holds a map's state: on the driver's node if it can, because workers' nodes may be taken back."""
    context: Any = ray.get_runtime_context()
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(context.get_node_id(), soft=True)}


def on_node(node_id: str) -> dict[str, Any]:
    """Options of a small actor that belongs to one node and dies with it."""
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}


def process_needs(placement: PlacementConfig, num_cpus: float) -> dict[str, Any]:
    """What a pool or executor passes on to Ray for each of its processes."""
    return {
        "num_cpus": num_cpus if placement.num_cpus is None else placement.num_cpus,
        "num_gpus": placement.num_gpus,
        "memory_bytes": int(placement.memory_gib * (1 << 30)),
        "resources": dict(placement.resources),
        "spread": placement.spread is not False,
    }


def worker_bundle(placement: PlacementConfig) -> dict[str, float]:
    """What one Ray Train worker asks for."""
    bundle = {"CPU": 1.0 if placement.num_cpus is None else placement.num_cpus} | dict(placement.resources)
    if placement.num_gpus:
        bundle["GPU"] = placement.num_gpus
    if placement.memory_gib:
        bundle["memory"] = placement.memory_gib * (1 << 30)
    return bundle
