"""The part of a configuration that says where a run happens: cluster, pools and notices of spot nodes. It decides no artifact."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coevo.config_section import Config

__all__ = ["FROM_ENVIRONMENT", "ClusterConfig", "PlacementConfig", "PoolsConfig", "SpotConfig"]

FROM_ENVIRONMENT = "env"
"""Address of a submitted job: the cluster that RAY_ADDRESS names."""


class PlacementConfig(Config):
    """What one process of a kind asks of its node, in Ray's terms."""

    num_cpus: float | None = Field(None, ge=0)
    """Logical CPUs; null takes the kind's own default (engine 1, rollout worker 0.5, training worker 1)."""
    num_gpus: float = Field(0.0, ge=0)
    """GPUs."""
    memory_gib: float = Field(0.0, ge=0)
    """Memory reserved, GiB; 0 reserves none."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom resources that the node must offer, such as a pool's label: `{coevo-pool-weak: 0.01}`."""
    spread: bool | None = None
    """One process per node as far as there are nodes, or packed; null spreads engines and rollout workers and packs training workers."""
    instance_type: str | None = None
    """Instance type of the nodes in the price sheet; null: these processes have no known price."""
    market: Literal["on_demand", "spot"] = "on_demand"
    """Market in which the nodes are bought, for their price."""
    on_demand_resources: dict[str, float] | None = None
    """What engines ask instead of `resources` while spot proves bad (`market: spot` under `pool_policy: phased`); null: they keep asking
    for the same, and the priority of the cluster's node groups decides."""
    tokens_per_s: float | None = Field(None, gt=0)
    """Prompt and completion tokens (training: row tokens) per second of one process, measured or assumed; null: hours and dollars are not
    estimated, and a budget in dollars is refused."""
    startup_s: float = Field(300.0, ge=0)
    """Seconds from asking for one until it works, node and image included: how early `pool_policy: phased` asks."""


class PoolsConfig(Config):
    """Where each kind of process runs."""

    weak: PlacementConfig = PlacementConfig()
    """Engines of the weak model."""
    rollout: PlacementConfig = PlacementConfig()
    """Workers of both executors."""
    train: PlacementConfig = PlacementConfig()
    """Training workers."""
    expert: PlacementConfig = PlacementConfig()
    """Engines of an expert of `kind: pool`."""


class SpotConfig(Config):
    """How nodes learn that the cloud takes them back."""

    notice: Literal["none", "aws", "kubernetes", "file"] = "none"
    """`aws`: instance metadata; `kubernetes`: taints of the pod's node; `file`: a file per node in `folder`, for drills."""
    folder: str | None = None
    """Folder of `notice: file`: `<node id>.json` in it is that node's notice."""
    period_s: float = Field(5.0, gt=0)
    """Seconds between two looks; AWS warns two minutes ahead."""
    on_rebalance: bool = False
    """Also drain on AWS's rebalance recommendation, which comes earlier and is often not followed by a loss."""


class ClusterConfig(Config):
    """Where the run happens."""

    address: str | None = None
    """Ray address; null starts a local cluster, `env` is the cluster of the submitted job."""
    cpus: int = Field(8, ge=4)
    """Logical CPUs of a local cluster: they ration placement, not cores (fewer than 4 stall Ray Data and Ray Train)."""
    pools: PoolsConfig = PoolsConfig()
    """Where each kind of process runs."""
    spot: SpotConfig = SpotConfig()
    """Notice of nodes that will be taken back."""
    min_train_workers: int | None = Field(None, ge=1)
    """Fewest training workers to go on with when nodes are lost; null waits for all of `train.workers`."""
    train_in_driver: bool = False
    """Fine-tune in the run's own process instead of Ray workers, without DeepSpeed: saves starting a worker group per fine-tuning, about
    half of a short one on a small machine. Needs `train.workers: 1`; a crash takes the run along, which resumes."""
    pool_policy: Literal["static", "phased"] = "static"
    """`phased`: engines go to zero in phases of `coevo run` that do not use them and are started ahead of the next phase that does."""
    release_engines: bool = False
    """Stop the engines before training: for machines where both do not fit (one GPU, little memory)."""
    bulk: Literal["actors", "ray_data"] = "ray_data"
    """Executor of the bulk stages; small batches always use the long-lived actors."""
    bulk_min_items: int = Field(1000, ge=1)
    """Fewest items for which Ray Data is worth its start: on one machine it took 8 seconds (40 under load) where the actors took one."""
