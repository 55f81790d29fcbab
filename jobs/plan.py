"""The arithmetic of a run before it starts: a pure function of the configuration, printed at every start and by `--dry-run`.

Counts of episodes, continuations, rows and steps are upper bounds that follow from the configuration. Tokens are estimates: counts times
the constants of `EPISODES`. What is stored already is not subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coevo.config import Arm, RunConfig
from coevo.display.pace import quantity
from coevo.errors import ConfigError
from coevo.evolve.budget import check_search_budget
from coevo.evolve.gate import GatePlan, plan_gate
from coevo.evolve.plan import SearchPlan, plan_search
from coevo.evolve.search import SearchTask
from coevo.localize.waves import wave_ranges
from coevo.tasks import load_family
from coevo.tasks.family import Size
from jobs.billing import Billing
from jobs.estimates import EPISODES, EpisodeEstimate
from jobs.plan_cost import StageCost, StageWork, cost_lines, plan_cost

__all__ = ["DISCORDANT_SHARE", "EPISODES", "TARGET_GAIN", "EpisodeEstimate", "Plan", "StagePlan", "make_plan"]

TARGET_GAIN = 0.15
"""Gain in success rate for which the power of a gate is stated."""
DISCORDANT_SHARE = 0.40
"""Share of pairs in which two arms of a gate differ: the flip rate of an agent that succeeds on about a third of its instances."""
CONTINUED_SHARE = 0.5
"""Part of an episode that a continuation plays: it starts in the middle, its forced turns cost no model call."""
VARIANTS = 3
"""Replayed variants per suspect: turn kept, resampled, rewritten."""
CANARY_ROWS = 32
"""Rows scored per adapter before it is published (ARCHITECTURE 8)."""

EXPERT_TURNS = 4
"""Fewest turns of an expert episode; enough are played for the imitation arm's rows."""

_NEEDS = {
    "evolve": ("evolve",),
    "transfer": ("evolve", "transfer"),
    "rollout": ("evolve", "rollout"),
    "localize": ("evolve", "rollout", "localize"),
    "rewrite": ("evolve", "rollout", "localize", "rewrite"),
    "dataset": ("evolve", "rollout", "localize", "rewrite", "dataset"),
    "tune": ("evolve", "rollout", "localize", "rewrite", "dataset", "tune"),
    "train": ("evolve", "rollout", "localize", "rewrite", "dataset", "tune", "train"),
    "publish": ("evolve", "rollout", "localize", "rewrite", "dataset", "tune", "train", "publish"),
    "evaluate": ("evolve", "rollout", "localize", "rewrite", "dataset", "tune", "train", "publish", "evaluate"),
    "run": ("evolve", "transfer", "rollout", "localize", "rewrite", "dataset", "tune", "train", "publish", "evaluate"),
    "report": (),
}


@dataclass(frozen=True, slots=True)
class StagePlan:
    """At most this much work in one stage. `expert_episodes` cost no tokens of the weak model."""

    stage: str
    episodes: int = 0
    expert_episodes: int = 0
    continuations: int = 0
    rows: int = 0
    steps: int = 0
    note: str = ""

    def calls(self, size: Size) -> int:
        """Model calls of the weak model."""
        return round(EPISODES[size].turns * (self.episodes + CONTINUED_SHARE * self.continuations))

    def tokens(self, size: Size) -> int:
        """Prompt and completion tokens of the weak model."""
        one = EPISODES[size]
        return round((one.prompt_tokens + one.completion_tokens) * (self.episodes + CONTINUED_SHARE * self.continuations))


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one command."""

    run: str
    verb: str
    size: Size
    stages: tuple[StagePlan, ...]
    gate: GatePlan | None
    search: SearchPlan | None
    facts: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    costs: tuple[StageCost, ...] = ()
    cost_lines: tuple[str, ...] = ()

    @property
    def cost_usd(self) -> float | None:
        """Estimated dollars; None where a price or a speed is not configured."""
        known = [one.usd for one in self.costs if one.usd is not None]
        return sum(known) if known and len(known) == len(self.costs) else None

    @property
    def episodes(self) -> int:
        """Whole episodes of weak model and expert."""
        return sum(one.episodes + one.expert_episodes for one in self.stages)

    @property
    def tokens(self) -> int:
        """Tokens of the weak model."""
        return sum(one.tokens(self.size) for one in self.stages)

    def lines(self) -> list[str]:
        """The plan as text."""
        if not self.stages:
            return [f"coevo {self.verb}, run {self.run!r}: reads the store only; no episodes, no tokens"]
        head = f"coevo {self.verb}, run {self.run!r}: at most this much; what is stored already is not done again"
        one = EPISODES[self.size]
        shares = f"{one.prompt_tokens:,.0f} prompt and {one.completion_tokens:,.0f} completion tokens"
        basis = f"{one.turns:g} turns, {shares} per {self.size} episode"
        dollars = "no price known" if self.cost_usd is None else f"${self.cost_usd:,.2f}"
        lines = [head, *_table(self.stages, self.size), f"tokens are estimates: {basis}; dollars: {dollars}"]
        if self.gate is not None and self.search is not None:
            lines += [_gate_line(self.gate, self.search), self.search.least_words]
        return [*lines, *self.cost_lines, *self.facts, *(f"warning: {text}" for text in self.warnings)]


def make_plan(config: RunConfig, *, verb: str = "run") -> Plan:
    """The plan of a verb: its stage and what that stage needs.

    Raises:
        ConfigError: The task family is unknown.
    """
    size, wanted = Size(config.size), _NEEDS[verb]
    known = {one.stage: one for one in (*_mining(config), *_learning(config))}
    stages = tuple(known[stage] for stage in wanted if stage in known)
    searches = "evolve" in wanted and config.evolve.enabled
    gate, search = (_gate(config, size), plan_search(config.evolve)) if searches else (None, None)
    costs = plan_cost(config, [StageWork(one.stage, one.tokens(size), one.rows if one.steps else 0) for one in stages])
    lines = tuple(cost_lines(config, costs)) if stages else ()
    plan = Plan(config.name, verb, size, stages, gate, search, _facts(config) if stages else (), costs=costs, cost_lines=lines)
    return replace(plan, warnings=_warnings(plan, config))


def _mining(config: RunConfig) -> list[StagePlan]:
    """Stages up to the verified rewrites."""
    evolve, localize = config.evolve, config.localize
    out = []
    if evolve.enabled:
        search = plan_search(evolve)
        out.append(StagePlan("evolve", episodes=search.episodes, note=search.words))
    both = 2 * config.evaluate.transfer_instances
    out.append(StagePlan("transfer", episodes=both, expert_episodes=both, note="h0 and h*, weak model and expert"))
    rollouts, failures = _mined_at_most(config)
    count = len(wave_ranges(localize))
    waves = f"; at most {count} waves of {localize.rollouts}, fewer once {localize.rows} rows are verified" if localize.rows else ""
    out.append(StagePlan("rollout", episodes=rollouts, note=f"h*, search stream{waves}"))
    tried = failures * localize.candidates * localize.continuations * VARIANTS
    note = f"{failures} failures x {localize.candidates} suspects x {VARIANTS} variants x {localize.continuations}"
    out.append(StagePlan("localize", continuations=tried, note=note))
    verified = failures * config.rewrite.candidates * localize.continuations
    note = f"{failures} turns x {config.rewrite.candidates} rewrites x {localize.continuations}"
    out.append(StagePlan("rewrite", continuations=verified, note=note))
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
    imitated = Arm.IMITATION in arms or Arm.IMITATION_FULL in arms
    rollouts, failures = _mined_at_most(config)
    expert = min(rollouts, config.dataset.rows // EXPERT_TURNS) if imitated else 0
    expert += failures if Arm.EXPERT_FINISH in arms else 0
    under_h0 = arms if evaluate.under_h0 is None else [arm for arm in arms if arm in evaluate.under_h0]
    cells = 2 + adapters + len(under_h0) * len(train.seeds)
    played = evaluate.instances * evaluate.repeats
    return [
        StagePlan("dataset", expert_episodes=expert, rows=len(arms) * config.dataset.rows, note=f"arms {', '.join(arms)}"),
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


def _gate(config: RunConfig, size: Size) -> GatePlan:
    task = SearchTask(load_family(config.family), size, config.diversity, config.evolve, config.seed)
    return plan_gate(task.gate_config, target_gain=TARGET_GAIN, discordant_share=DISCORDANT_SHARE)


def _gate_line(gate: GatePlan, search: SearchPlan) -> str:
    needed = search.with_gates_of(gate.pairs_for_power, gate_instances=gate.episodes_per_gate // 2)
    return (
        f"gate: alpha {gate.alpha:.4f} each, {gate.episodes_per_gate} episodes; sees a gain of {100 * TARGET_GAIN:.0f} points with power "
        f"{gate.power:.2f} (0.80 needs {gate.pairs_for_power} pairs, {needed.search_episodes:,} episodes for the whole search; assumes "
        f"{DISCORDANT_SHARE:.2f} of pairs differ)"
    )


def _facts(config: RunConfig) -> tuple[str, ...]:
    load_family(config.family)
    weak, train, cluster = config.weak, config.train, config.cluster
    where = f"joins {cluster.address}" if cluster.address else f"local cluster of {cluster.cpus} logical CPUs"
    form = f"{weak.dtype}, context {weak.max_model_len}, KV cache {weak.kv_cache_mib} MiB each"
    tuned = f"LoRA rank {train.rank}" if train.method == "lora" else "all weights"
    trainers = f"{train.workers} workers, ZeRO-{train.zero_stage}, {tuned}"
    return (
        f"engines: {weak.replicas} x {weak.engine} for {weak.model} ({form}); training: {trainers}",
        f"{where}; store {config.store}; expert: {_expert(config)}",
    )


def _expert(config: RunConfig) -> str:
    expert = config.expert
    if expert.kind == "reference":
        return f"reference policy, {expert.style}"
    if expert.kind == "pool":
        return f"{expert.model} on {expert.pool.replicas} x {expert.pool.engine} of the run's own"
    return f"{expert.model} {f'at {expert.base_url}' if expert.kind == 'openai' else f'from the recording {expert.recording}'}"


def _warnings(plan: Plan, config: RunConfig) -> tuple[str, ...]:
    out = [] if plan.search is None else _search_warnings(plan.search, config)
    if plan.gate is not None and plan.gate.power < 0.5:
        need = plan.gate.pairs_for_power
        out.append(f"a gate of {config.evolve.gate_instances} instances misses most gains of this size; --set evolve.gate_instances={need}")
    room = round(config.dataset.rows * (1 - (config.dataset.self_success_share if config.dataset.self_success != "none" else 0.0)))
    if config.localize.rows > room:
        out.append(f"localize.rows={config.localize.rows}, but dataset.rows={config.dataset.rows} takes {room} of them; raise dataset.rows")
    if config.budget.episodes is not None and plan.episodes > config.budget.episodes:
        out.append(f"up to {plan.episodes:,} episodes, the budget allows {config.budget.episodes:,}: the run may stop early")
    if config.budget.tokens is not None and plan.tokens > config.budget.tokens:
        out.append(f"about {quantity(plan.tokens)} tokens, the budget allows {quantity(config.budget.tokens)}: the run may stop early")
    if config.budget.usd is not None and plan.cost_usd is not None and plan.cost_usd > config.budget.usd:
        out.append(f"about ${plan.cost_usd:,.2f}, the budget allows ${config.budget.usd:,.2f}: the run may stop early")
    return tuple(out)


def _search_warnings(search: SearchPlan, config: RunConfig) -> list[str]:
    """What the search's own budget does not cover, by the arithmetic that the search itself is refused by."""
    each = Billing(config).episode()
    try:
        budget = check_search_budget(config.evolve, each=each)
    except ConfigError as error:
        return [f"evolve.budget: {error.what} ({error.seen}); the search will be refused"]
    over = budget.overdrawn(each.times(search.search_episodes))
    return [f"evolve.budget: the whole search may take more {unit} ({amount}), it may stop early" for unit, amount in over.items()]


def _table(stages: Sequence[StagePlan], size: Size) -> list[str]:
    header = ("stage", "episodes", "expert", "continued", "calls", "tokens", "rows", "steps")
    rows = [
        (one.stage, one.episodes, one.expert_episodes, one.continuations, one.calls(size), one.tokens(size), one.rows, one.steps)
        for one in stages
    ]
    sums = tuple(sum(int(row[column]) for row in rows) for column in range(1, 6))
    cells = [header, *(_cells(row) for row in rows), _cells(("sum", *sums, 0, 0))]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    notes = ["", *(one.note for one in stages), ""]
    return [
        "  ".join((row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)), note)).rstrip()
        for row, note in zip(cells, notes, strict=True)
    ]


def _cells(row: tuple[str | int, ...]) -> tuple[str, ...]:
    """Counts as text: exact, tokens shortened, zeros as a dot."""
    stage, *counts = row
    shown = ["·" if not count else (quantity(int(count)) if column == 4 else f"{count:,}") for column, count in enumerate(counts)]
    return (str(stage), *shown)
