"""How much the stages ask of the expert: counts that follow from the configuration, for the plan, the reservations and the work itself."""

from __future__ import annotations

from math import ceil, log2

from coevo.config import Arm, ProposerConfig, RunConfig
from coevo.evolve.plan import plan_search
from coevo.tasks.family import Size
from jobs.estimates import EPISODES

__all__ = ["asked_arms", "calls_per_failure", "calls_per_proposal", "imitated_episodes", "proposer_calls", "turns_to_confirm"]

_TURNS = 4
"""Fewest turns of an expert episode."""
_SPARE = 1.5
"""Own turns that the expert is asked about, per one that is wanted: it would act otherwise at some."""
_ASKED = frozenset({Arm.CORRECTION_UNVERIFIED, Arm.RANDOM_TURN, Arm.LAST_TURN})
_IMITATED = frozenset({Arm.IMITATION, Arm.IMITATION_FULL})


def calls_per_proposal(proposer: ProposerConfig) -> int:
    """Turns that the agents of an LLM proposer may take when they are asked once."""
    return proposer.agents * proposer.max_turns


def proposer_calls(config: RunConfig) -> int:
    """Of `evolve`, where the expert is the proposer: over all generations, and again in the prompt-only baseline."""
    evolve = config.evolve
    if evolve.proposer.kind != "llm" or evolve.proposer.model != "expert":
        return 0
    searches = 1 + ("prompt_only" in evolve.baselines)
    return searches * plan_search(evolve).generations * evolve.proposer_calls * calls_per_proposal(evolve.proposer)


def calls_per_failure(config: RunConfig) -> int:
    """Of `localize`, per failed episode: a rewrite per suspect, and the judges' questions."""
    turns = EPISODES[Size(config.size)].turns
    asks = {"step_by_step": round(turns), "binary_search": ceil(log2(max(2.0, turns)))}
    return config.localize.candidates + sum(asks.get(style, 1) for style in config.localize.judges)


def asked_arms(config: RunConfig) -> frozenset[Arm]:
    """Arms for which the expert is asked for a turn of each episode they take, beside the corrections."""
    return _ASKED.intersection(config.dataset.arms)


def turns_to_confirm(config: RunConfig) -> int:
    """The weak model's own turns at which the expert is asked what it would do."""
    dataset = config.dataset
    if not dataset.confirms or set(dataset.arms) <= _IMITATED:
        return 0
    share = 1.0 if Arm.SELF_SUCCESS in dataset.arms else dataset.self_success_share
    return ceil(dataset.rows * share * _SPARE)


def imitated_episodes(config: RunConfig) -> int:
    """Whole episodes that the expert plays for the imitation arms: enough for their rows."""
    return config.dataset.rows // _TURNS if _IMITATED.intersection(config.dataset.arms) else 0
