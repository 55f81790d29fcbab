"""The phases of `coevo run` as the pool policy sees them: which pool each uses."""

from __future__ import annotations

from cluster.pool_policy import Phase, PhasedPolicy, PolicySettings, PoolShape
from coevo.config import RunConfig

__all__ = ["LEARNING", "RUN_PHASES", "phase_policy", "phases_of"]

WEAK = "weak"

RUN_PHASES = (
    Phase("evolve", (WEAK,)),
    Phase("transfer", (WEAK,)),
    Phase("rollout", (WEAK,)),
    Phase("localize", (WEAK,)),
    Phase("rewrite", (WEAK,)),
    Phase("dataset"),
    Phase("tune", (WEAK,)),
    Phase("train"),
    Phase("publish", (WEAK,)),
    Phase("evaluate", (WEAK,)),
    Phase("report"),
)
"""In the order of `jobs.run.PHASES`. Their lengths are not known ahead: the driver's progress gives the remainder of the current one."""


LEARNING = frozenset({"rollout", "localize", "rewrite", "dataset", "tune", "train", "publish"})
"""Phases that serve the arms; asked for by its own verb, one runs what it needs whatever the arms."""


def phases_of(config: RunConfig) -> tuple[Phase, ...]:
    """Those that a configuration has: without arms the harness alone is evolved and measured, and `tune` needs a grid of learning rates."""
    left_out = set() if config.dataset.arms else set(LEARNING)
    left_out |= set() if config.train.learning_rates else {"tune"}
    return tuple(one for one in RUN_PHASES if one.name not in left_out)


def phase_policy(config: RunConfig) -> PhasedPolicy:
    """The policy of a run: the engines of the weak model, in the market of their placement."""
    placement = config.cluster.pools.weak
    shape = PoolShape(config.weak.replicas, placement.startup_s)
    return PhasedPolicy(phases_of(config), {WEAK: shape}, PolicySettings(use_spot=placement.market == "spot"))
