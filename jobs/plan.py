"""The arithmetic of a run before it starts: a pure function of the configuration, printed at every start and by `--dry-run`.

Counts of episodes, continuations, rows and steps are upper bounds that follow from the configuration. Tokens are estimates: counts times
the constants of `jobs.estimates`. What is stored already is not subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coevo.config import RunConfig
from coevo.display.pace import quantity
from coevo.errors import ConfigError
from coevo.evolve.budget import check_search_budget
from coevo.evolve.gate import GatePlan, plan_gate
from coevo.evolve.plan import SearchPlan, plan_search
from coevo.evolve.search import SearchTask
from coevo.tasks import load_family
from coevo.tasks.family import Size
from jobs.billing import Billing
from jobs.estimates import EPISODES
from jobs.plan_cost import StageCost, StageWork, cost_lines, expert_lines, plan_cost
from jobs.plan_stages import StagePlan, planned_stages

__all__ = ["DISCORDANT_SHARE", "TARGET_GAIN", "Plan", "make_plan"]

TARGET_GAIN = 0.15
"""Gain in success rate for which the power of a gate is stated."""
DISCORDANT_SHARE = 0.40
"""Share of pairs in which two arms of a gate differ: the flip rate of an agent that succeeds on about a third of its instances."""


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
    size, stages = Size(config.size), planned_stages(config, verb)
    searches = any(one.stage == "evolve" for one in stages)
    gate, search = (_gate(config, size), plan_search(config.evolve)) if searches else (None, None)
    work = [StageWork(one.stage, one.tokens(size), one.rows if one.steps else 0, one.expert_calls(size)) for one in stages]
    costs = plan_cost(config, work)
    lines = (*expert_lines(config, work), *cost_lines(config, costs)) if stages else ()
    plan = Plan(config.name, verb, size, stages, gate, search, _facts(config) if stages else (), costs=costs, cost_lines=lines)
    return replace(plan, warnings=_warnings(plan, config))


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
    header = ("stage", "episodes", "expert", "asked", "continued", "calls", "tokens", "rows", "steps")
    rows = [
        (one.stage, one.episodes, one.expert_episodes, one.asked, one.continuations, one.calls(size), one.tokens(size), one.rows, one.steps)
        for one in stages
    ]
    sums = tuple(sum(int(row[column]) for row in rows) for column in range(1, 7))
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
    shown = ["·" if not count else (quantity(int(count)) if column == 5 else f"{count:,}") for column, count in enumerate(counts)]
    return (str(stage), *shown)
