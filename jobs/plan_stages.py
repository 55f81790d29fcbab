"""How much work each stage of a run is at most: counts that follow from the configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coevo.config import Arm, RunConfig
from coevo.evolve.plan import plan_search
from coevo.localize.waves import wave_ranges
from coevo.tasks.family import Size
from jobs.estimates import CANARY_ROWS, EPISODES
from jobs.expert_calls import asked_arms, calls_per_failure, imitated_episodes, proposer_calls, turns_to_confirm
from jobs.phases import LEARNING, phases_of

__all__ = ["CONTINUED_SHARE", "StagePlan", "planned_stages"]

CONTINUED_SHARE = 0.5
"""Part of an episode that a continuation plays: it starts in the middle, its forced turns cost no model call."""
VARIANTS = 3
"""Replayed variants per suspect: turn kept, resampled, rewritten."""

_LOOP = ("evolve", "rollout", "localize", "rewrite", "dataset", "tune", "train", "publish", "evaluate")
"""Every stage of the loop needs those before it."""
NEEDS = {
    **{stage: _LOOP[: number + 1] for number, stage in enumerate(_LOOP)},
    "transfer": ("evolve", "transfer"),
    "run": ("evolve", "transfer", *_LOOP[1:]),
    "report": (),
}
"""Verb -> its stage and what that stage needs, in order."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """At most this much work in one stage. `expert_episodes`, and the turns that the expert is asked for one by one (`asked`), cost no
    tokens of the weak model.
    """

    stage: str
    episodes: int = 0
    expert_episodes: int = 0
    asked: int = 0
    continuations: int = 0
    rows: int = 0
    steps: int = 0
    note: str = ""

    def calls(self, size: Size) -> int:
        """Model calls of the weak model."""
        return round(EPISODES[size].turns * (self.episodes + CONTINUED_SHARE * self.continuations))

    def expert_calls(self, size: Size) -> int:
        """Calls of an LLM expert, one per turn of its episodes included."""
        return self.asked + round(EPISODES[size].turns * self.expert_episodes)

    def tokens(self, size: Size) -> int:
        """Prompt and completion tokens of the weak model."""
        return round(EPISODES[size].tokens * (self.episodes + CONTINUED_SHARE * self.continuations))


def planned_stages(config: RunConfig, verb: str) -> tuple[StagePlan, ...]:
    """The stages of a verb: its own and what that needs, in order; none for a verb that only reads."""
    known = {one.stage: one for one in (*_mining(config), *_learning(config))}
    had = {phase.name for phase in phases_of(config)}
    return tuple(known[stage] for stage in NEEDS[verb] if stage in known and (stage in had or verb in LEARNING))


def _mining(config: RunConfig) -> list[StagePlan]:
    """Stages up to the verified rewrites."""
    evolve, localize = config.evolve, config.localize
    out = []
    if evolve.enabled:
        search = plan_search(evolve)
        out.append(StagePlan("evolve", episodes=search.episodes, asked=proposer_calls(config), note=search.words))
    both = 2 * config.evaluate.transfer_instances
    out.append(StagePlan("transfer", episodes=both, expert_episodes=both, note="h0 and h*, weak model and expert"))
    rollouts, failures = _mined_at_most(config)
    count = len(wave_ranges(localize))
    waves = f"; at most {count} waves of {localize.rollouts}, fewer once {localize.rows} rows are verified" if localize.rows else ""
    out.append(StagePlan("rollout", episodes=rollouts, note=f"h*, search stream{waves}"))
    tried = failures * localize.candidates * localize.continuations * VARIANTS
    note = f"{failures} failures x {localize.candidates} suspects x {VARIANTS} variants x {localize.continuations}"
    out.append(StagePlan("localize", asked=failures * calls_per_failure(config), continuations=tried, note=note))
    verified = failures * config.rewrite.candidates * localize.continuations
    note = f"{failures} turns x {config.rewrite.candidates} rewrites x {localize.continuations}"
    out.append(StagePlan("rewrite", asked=failures * config.rewrite.candidates, continuations=verified, note=note))
    return out


def _mined_at_most(config: RunConfig) -> tuple[int, int]:
    """Rollouts and failures of all waves up to the ceiling."""
    waves = wave_ranges(config.localize)
    rollouts = sum(len(one) for one in waves)
    return rollouts, config.localize.failures if len(waves) == 1 else sum(min(config.localize.failures, len(one)) for one in waves)


def _learning(config: RunConfig) -> list[StagePlan]:
    """Stages from the rows to the grid."""
    arms, train, evaluate = config.dataset.arms, config.train, config.evaluate
    adapters, tried = len(arms) * len(train.seeds), len(arms) * len(train.learning_rates)
    fresh = adapters - (len(arms) if tried else 0)  # the first seed at the chosen rate was trained by `tune`
    steps = math.ceil(config.dataset.rows / train.global_batch) * train.epochs
    rollouts, failures = _mined_at_most(config)
    expert = min(rollouts, imitated_episodes(config)) + (failures if Arm.EXPERT_FINISH in arms else 0)
    asked = failures * len(asked_arms(config)) + turns_to_confirm(config)
    under_h0 = arms if evaluate.under_h0 is None else [arm for arm in arms if arm in evaluate.under_h0]
    cells = 2 + adapters + len(under_h0) * len(train.seeds)
    played = evaluate.instances * evaluate.repeats
    return [
        StagePlan("dataset", expert_episodes=expert, asked=asked, rows=len(arms) * config.dataset.rows, note=f"arms {', '.join(arms)}"),
        *([_tuning(config, tried, steps)] if tried else []),
        StagePlan(
            "train",
            rows=fresh * config.dataset.rows * train.epochs,
            steps=fresh * steps,
            note=f"{fresh} adapters x {steps} steps of {train.global_batch} rows",
        ),
        StagePlan("publish", rows=adapters * CANARY_ROWS, note="canary: rows scored by the served weights"),
        StagePlan(
            "evaluate",
            episodes=cells * played,
            expert_episodes=2 * played,
            note=f"{cells} cells + 2 of the expert x {evaluate.instances} test instances x {evaluate.repeats}",
        ),
    ]


def _tuning(config: RunConfig, tried: int, steps: int) -> StagePlan:
    instances = config.evaluate.tuning_instances
    return StagePlan(
        "tune",
        episodes=tried * instances,
        rows=tried * (config.dataset.rows * config.train.epochs + CANARY_ROWS),
        steps=tried * steps,
        note=f"{len(config.dataset.arms)} arms x {len(config.train.learning_rates)} learning rates x {instances} selection instances",
    )
