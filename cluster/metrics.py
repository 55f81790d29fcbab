"""What a run shows to Prometheus, through Ray's metrics: pools, stages, the bill.

All are gauges, set by the driver's process alone, so a scrape shows the run as its driver sees it; Ray exports them as `ray_<name>` on each
node's metrics port. A process without a Ray session shows nothing. Names, labels and meaning are the table `METRICS`, which the dashboard
of `infra/monitoring` is checked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coevo.ports import Progress
from coevo.store.artifacts import Held

if TYPE_CHECKING:
    from cluster.servers import PoolStats

__all__ = ["METRICS", "MetricSpec", "RunMetrics"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One gauge: its labels besides `run`, and what it says."""

    labels: tuple[str, ...]
    text: str


METRICS: Mapping[str, MetricSpec] = {
    "coevo_pool_replicas": MetricSpec(("pool", "state"), "Replicas of a pool by state (down, starting, ready, retired)."),
    "coevo_pool_requests": MetricSpec(("pool",), "Requests held by the replicas at their last heartbeat."),
    "coevo_pool_failures": MetricSpec(("pool",), "Recent replacements of replicas, at most the 32 that a pool keeps."),
    "coevo_stage_items": MetricSpec(("stage", "state"), "Items of the stage in progress by state (done, owed, wanted)."),
    "coevo_stage_tokens": MetricSpec(("stage",), "Prompt and completion tokens of the stage in progress."),
    "coevo_training_adapters": MetricSpec(("state",), "Adapters by state (trained, wanted)."),
    "coevo_run_phase": MetricSpec((), "Phase of the loop, counted from 0."),
    "coevo_run_gpu_seconds": MetricSpec((), "GPU-seconds that engines held since the driver started."),
    "coevo_run_cpu_seconds": MetricSpec((), "Logical-CPU-seconds that engines held since the driver started."),
    "coevo_run_usd": MetricSpec(("kind",), "Dollars since the driver started, by kind (compute, expert); absent without a price."),
    "coevo_run_budget_usd": MetricSpec((), "Dollars that the run may spend in all; absent without such a bound."),
}
"""Name -> labels and meaning."""


@dataclass
class RunMetrics:
    """The gauges of one run, made when first set. `set_gauge` names a gauge of `METRICS`."""

    run: str
    _gauges: dict[str, Any] = field(default_factory=dict)

    def set_gauge(self, name: str, value: float, **labels: str) -> None:
        """Show a value; nothing where there is no Ray session."""
        import ray

        if not ray.is_initialized():
            return
        if name not in self._gauges:
            from ray.util.metrics import Gauge

            spec = METRICS[name]
            self._gauges[name] = Gauge(name, description=spec.text, tag_keys=("run", *spec.labels))
        self._gauges[name].set(value, tags={"run": self.run, **labels})

    def pool(self, name: str, stats: PoolStats) -> None:
        """A pool now."""
        states = [str(one.state) for one in stats.replicas]
        for state in ("down", "starting", "ready", "retired"):
            self.set_gauge("coevo_pool_replicas", states.count(state), pool=name, state=state)
        self.set_gauge("coevo_pool_requests", stats.depth, pool=name)
        self.set_gauge("coevo_pool_failures", len(stats.failures), pool=name)

    def stage(self, seen: Progress) -> None:
        """A stage in progress."""
        for state, count in (("done", seen.done), ("owed", seen.owed), ("wanted", seen.total)):
            self.set_gauge("coevo_stage_items", count, stage=seen.stage, state=state)
        self.set_gauge("coevo_stage_tokens", seen.tokens, stage=seen.stage)

    def training(self, trained: int, wanted: int) -> None:
        """Fine-tuning."""
        self.set_gauge("coevo_training_adapters", trained, state="trained")
        self.set_gauge("coevo_training_adapters", wanted, state="wanted")

    def bill(self, held: Held, *, phase: int | None, budget_usd: float | None) -> None:
        """The run's bill so far, and where it is in the loop."""
        self.set_gauge("coevo_run_gpu_seconds", held.gpu_s)
        self.set_gauge("coevo_run_cpu_seconds", held.cpu_s)
        for kind, usd in (("compute", held.usd), ("expert", held.expert_usd)):
            if usd is not None:
                self.set_gauge("coevo_run_usd", usd, kind=kind)
        if phase is not None:
            self.set_gauge("coevo_run_phase", phase)
        if budget_usd is not None:
            self.set_gauge("coevo_run_budget_usd", budget_usd)
