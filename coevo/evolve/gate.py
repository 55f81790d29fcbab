"""The gate: whether a candidate harness replaces the incumbent, with a stated chance of ever accepting an edit that does nothing.

Incumbent and candidate play the same fresh instances of the selection stream, drawn for this gate by its id and never used again, with the
same repeats in the same window. One exact one-sided paired test at fixed n per candidate; its alpha comes from a sequence that sums to
`alpha_total` over all gates and restarts of one `evolve` call, so by the union bound a whole search of null edits accepts anything with at
most that probability (H7-H9). On top: the candidate must not lose much of what the incumbent solved, must not cost much more, and must
not solve the task by itself (null model). Limits: evidence of refused candidates is not recycled; with repeats the instance stays the unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from coevo.errors import ConfigError, StoreError
from coevo.evaluate.stats import clopper_pearson, paired_power, pairs_needed, sign_flip
from coevo.identity import derive_seed
from coevo.records import Record, Verdict

__all__ = [
    "AlphaSpending",
    "Arm",
    "GateConfig",
    "GateDecision",
    "GatePlan",
    "NullCheck",
    "PairedGate",
    "SelectionStream",
    "plan_gate",
]

_INDEX_BITS = 20  # instances per draw: about a million
_SHOWN = 5


class GateConfig(BaseModel):
    """When a candidate is accepted. The defaults suit edits that gain tens of points on instances of which some are noise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha_total: float = Field(0.10, gt=0, lt=1)
    """Chance that a whole `evolve` call accepts any edit that does nothing."""
    restarts: int = Field(1, ge=1)
    """Independent searches that share `alpha_total`."""
    gates_planned: int | None = Field(None, ge=1)
    """Gates per restart when their number is bounded: each then gets an equal share. None: no bound, and gate k gets 6 / (pi^2 k^2)."""
    instances: int = Field(64, ge=2)
    """Fresh selection instances per gate."""
    repeats: int = Field(1, ge=1)
    """Episodes per instance and arm."""
    max_missing_share: float = Field(0.05, ge=0, lt=1)
    """Share of instances that may be left out of both arms because an episode stayed owed (infrastructure, never outcome)."""
    min_gain: float = Field(0.0, ge=0, lt=1)
    """Least observed gain in success rate, on top of significance."""
    max_lost_share: float = Field(0.25, gt=0, le=1)
    """Non-inferiority: upper bound on the share of instances that the incumbent solved and the candidate lost."""
    max_token_ratio: float = Field(2.0, gt=0)
    """Non-inferiority: upper bound on candidate tokens / incumbent tokens."""
    guard_level: float = Field(0.90, gt=0.5, lt=1)
    """One-sided confidence of the two non-inferiority bounds."""
    max_null_share: float = Field(0.05, ge=0, lt=1)
    """A model that knows nothing may succeed on at most this share of episodes under the candidate harness."""
    null_check: bool = True
    """Whether a decision needs the null model's score."""


@dataclass(frozen=True, slots=True)
class AlphaSpending:
    """How `total` is divided over gates. Picklable.

    With `planned` gates per restart each gets total / (restarts * planned); without a plan gate k = 1, 2, ... of a restart gets
    total / restarts * 6 / (pi^2 k^2), whose infinite sum is total / restarts. Either way the sum never passes `total`.
    """

    total: float = 0.10
    restarts: int = 1
    planned: int | None = None

    @classmethod
    def of(cls, config: GateConfig) -> AlphaSpending:
        """The spending that a gate configuration states."""
        return cls(config.alpha_total, config.restarts, config.gates_planned)

    def alpha(self, *, restart: int, gate: int) -> float:
        """Alpha of gate `gate` (0-based) of restart `restart` (0-based).

        Raises:
            ConfigError: Outside the plan: its alpha would not be covered by `total`.
        """
        if not 0 <= restart < self.restarts or gate < 0 or (self.planned is not None and gate >= self.planned):
            plan = f"{self.restarts} restarts x {self.planned or 'any number of'} gates"
            seen = f"restart {restart}, gate {gate} of {plan}"
            raise ConfigError("a gate outside the plan has no alpha", seen=seen, fix="plan for it: raise gates_planned or restarts")
        share = self.total / self.restarts
        return share / self.planned if self.planned is not None else share * 6 / (math.pi**2 * (gate + 1) ** 2)

    def nth(self, number: int) -> float:
        """Alpha of gate `number` (0-based) of the whole call, whichever restart opens it.

        All planned gates have the same share, so a restart may use the gates that another left over: the sum stays `total`.

        Raises:
            ConfigError: More gates than planned, or no plan: without one a gate's share depends on its restart.
        """
        if self.planned is None:
            raise ConfigError("gates of a call are counted through only under a plan", seen="no bound", fix="set gates_planned")
        restart, gate = divmod(number, self.planned)
        return self.alpha(restart=restart, gate=gate)


@dataclass(slots=True)
class SelectionStream:
    """Hands out instance seeds of the selection stream; every draw id has its own, disjoint from all others.

    A seed is 43 bits of the hash of (run seed, draw id) and 20 bits of index: within a draw seeds differ by construction, among draws the
    object checks it. It keeps no state between runs, so a resumed run repeats the same gate; a longer draw of an id extends a shorter one.

    Attributes:
        seed: Seed of the run.
    """

    seed: int
    _owner: dict[int, str] = field(default_factory=dict)

    def draw(self, gate_id: str, *, count: int) -> tuple[int, ...]:
        """`count` instance seeds for `gate_id`, the same on every call.

        Raises:
            ConfigError: More than 2^20 instances, or none.
            StoreError: Two ids hash alike (chance about 1e-13 per pair).
        """
        if not 0 < count <= 1 << _INDEX_BITS:
            raise ConfigError("a draw of this size is not possible", seen=count, fix=f"draw 1 to {1 << _INDEX_BITS} instances")
        block = derive_seed("selection", self.seed, gate_id) >> _INDEX_BITS
        if self._owner.setdefault(block, gate_id) != gate_id:
            raise StoreError("two draws would share instances", seen=f"{self._owner[block]} and {gate_id}", fix="rename one of them")
        return tuple((block << _INDEX_BITS) + index for index in range(count))

    @property
    def draws(self) -> tuple[str, ...]:
        """Ids drawn so far, in order: for the record of what was opened."""
        return tuple(self._owner.values())


class NullCheck(NamedTuple):
    """Successes of a model that knows nothing, under the candidate harness."""

    successes: int
    episodes: int


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a gate.

    Attributes:
        harness_hash: Which harness.
        success: Task key -> one 0/1 per repeat.
        tokens: Task key -> tokens per repeat; empty when not measured.
    """

    harness_hash: str
    success: Mapping[str, Sequence[int]]
    tokens: Mapping[str, Sequence[float]] = field(default_factory=dict)


class GateDecision(Record):
    """One gate's verdict with every number behind it.

    Attributes:
        gate_id: Id of the draw.
        incumbent, candidate: Harness hashes.
        accepted: The candidate replaces the incumbent.
        verdict: What the paired test says of the effect alone; a supported candidate can still be refused by a guard.
        refusals: Why it was not accepted, one sentence each; empty when accepted.
        instances, repeats: Size of the test.
        incumbent_rate, candidate_rate, delta: Success rates and their difference.
        gains, losses, ties: (instance, repeat) pairs that only the candidate solved, only the incumbent solved, and the rest.
        p_value: Exact one-sided sign-flip test over instances (McNemar at one repeat).
        p_worse: The same in the other direction.
        alpha: What this gate may spend.
        lost_share, lost_upper: Losses over pairs, and its upper bound.
        token_ratio, token_ratio_upper: Candidate tokens over incumbent tokens and its upper bound; None = not measured.
        null_successes, null_episodes: The null model's score; None = not measured.
    """

    gate_id: str
    incumbent: str
    candidate: str
    accepted: bool
    verdict: Verdict
    refusals: tuple[str, ...]
    instances: int
    repeats: int
    incumbent_rate: float
    candidate_rate: float
    delta: float
    gains: int
    losses: int
    ties: int
    p_value: float
    p_worse: float
    alpha: float
    lost_share: float
    lost_upper: float
    token_ratio: float | None = None
    token_ratio_upper: float | None = None
    null_successes: int | None = None
    null_episodes: int | None = None


@dataclass(frozen=True, slots=True)
class PairedGate:
    """Decides one candidate at a time. Stateless and picklable: the caller counts gates, so a resumed run repeats decisions exactly."""

    config: GateConfig

    def decide(self, *, gate_id: str, alpha: float, incumbent: Arm, candidate: Arm, null: NullCheck | None = None) -> GateDecision:
        """Compare candidate and incumbent on this gate's draw.

        Args:
            gate_id: Id of the draw, kept in the decision.
            alpha: This gate's share (`AlphaSpending.alpha`).
            incumbent: The harness to beat, measured again on this draw.
            candidate: The challenger, on the same instances and repeats.
            null: The null model under the candidate; required unless `null_check` is off.

        Raises:
            ConfigError: The arms do not cover the same `instances` x `repeats` (less `max_missing_share`, left out of both), tokens are not
                measured alike, or the null check is missing.
        """
        self._check(incumbent, candidate, null)
        keys = sorted(incumbent.success)
        sums = [sum(candidate.success[key]) - sum(incumbent.success[key]) for key in keys]
        pairs = [(x, y) for key in keys for x, y in zip(incumbent.success[key], candidate.success[key], strict=True)]
        gains, losses = sum(x < y for x, y in pairs), sum(x > y for x, y in pairs)
        p_value, p_worse = sign_flip(sums, alternative="greater"), sign_flip(sums, alternative="less")
        lost_upper = self._lost_upper(losses, len(pairs))
        ratio, ratio_upper = self._token_ratio(gate_id, incumbent, candidate)
        delta = sum(sums) / len(pairs)
        verdict = Verdict.SUPPORTED if p_value <= alpha else Verdict.REFUTED if p_worse <= alpha else Verdict.INCONCLUSIVE
        refusals = self._refusals(p_value, alpha, delta, lost_upper, ratio_upper, null)
        return GateDecision(
            gate_id=gate_id,
            incumbent=incumbent.harness_hash,
            candidate=candidate.harness_hash,
            accepted=not refusals,
            verdict=verdict,
            refusals=refusals,
            instances=len(keys),
            repeats=self.config.repeats,
            incumbent_rate=sum(x for x, _ in pairs) / len(pairs),
            candidate_rate=sum(y for _, y in pairs) / len(pairs),
            delta=delta,
            gains=gains,
            losses=losses,
            ties=len(pairs) - gains - losses,
            p_value=p_value,
            p_worse=p_worse,
            alpha=alpha,
            lost_share=losses / len(pairs),
            lost_upper=lost_upper,
            token_ratio=ratio,
            token_ratio_upper=ratio_upper,
            null_successes=None if null is None else null.successes,
            null_episodes=None if null is None else null.episodes,
        )

    def _check(self, incumbent: Arm, candidate: Arm, null: NullCheck | None) -> None:
        lacking = sorted(incumbent.success.keys() ^ candidate.success.keys())
        if lacking:
            seen = f"{len(lacking)} keys on one side only: {', '.join(lacking[:_SHOWN])}"
            raise ConfigError("incumbent and candidate must play the same instances", seen=seen, fix="play what is owed, then decide")
        uneven = [key for arm in (incumbent, candidate) for key, row in arm.success.items() if len(row) != self.config.repeats]
        least = math.ceil(self.config.instances * (1 - self.config.max_missing_share))
        if not least <= len(incumbent.success) <= self.config.instances or uneven:
            seen = f"{len(incumbent.success)} instances; other repeats at: {', '.join(uneven[:_SHOWN]) or '(none)'}"
            plan = f"play {self.config.instances} instances x {self.config.repeats} repeats; at least {least} may count"
            raise ConfigError("a gate tests at a fixed n", seen=seen, fix=plan)
        for arm in (incumbent, candidate):
            if (arm.tokens and arm.tokens.keys() != arm.success.keys()) or bool(incumbent.tokens) != bool(candidate.tokens):
                raise ConfigError(
                    "tokens must be measured for every instance of both arms, or not at all", seen=arm.harness_hash, fix="pass both"
                )
        if self.config.null_check and (null is None or null.episodes < 1):
            raise ConfigError(
                "the gate needs the null model's score under the candidate", seen=null, fix="play it, or set null_check: false"
            )

    def _lost_upper(self, losses: int, pairs: int) -> float:
        return clopper_pearson(losses, pairs, level=2 * self.config.guard_level - 1).high

    def _token_ratio(self, gate_id: str, incumbent: Arm, candidate: Arm) -> tuple[float | None, float | None]:
        """Ratio of token sums, and its upper bound from a paired bootstrap over instances seeded by the gate's id."""
        if not incumbent.tokens:
            return None, None
        keys = sorted(incumbent.tokens)
        sums = np.array([[sum(arm.tokens[key]) for key in keys] for arm in (incumbent, candidate)], dtype=np.float64)
        if sums[0].sum() <= 0:
            return None, None
        rng = np.random.default_rng(derive_seed("gate tokens", gate_id))
        weights = rng.multinomial(len(keys), np.full(len(keys), 1 / len(keys)), size=2000)
        below, above = weights @ sums[0], weights @ sums[1]
        ratios = above[below > 0] / below[below > 0]
        return float(sums[1].sum() / sums[0].sum()), float(np.quantile(ratios, self.config.guard_level))

    def _refusals(
        self, p_value: float, alpha: float, delta: float, lost_upper: float, ratio_upper: float | None, null: NullCheck | None
    ) -> tuple[str, ...]:
        config = self.config
        out = []
        if p_value > alpha:
            out.append(f"not shown to be better: p {p_value:.4g} > alpha {alpha:.4g}")
        if delta < config.min_gain:
            out.append(f"gain {delta:+.3f} below {config.min_gain:+.3f}")
        if lost_upper > config.max_lost_share:
            out.append(f"may lose {lost_upper:.3f} of the instances, allowed {config.max_lost_share:.3f}")
        if ratio_upper is not None and ratio_upper > config.max_token_ratio:
            out.append(f"may cost {ratio_upper:.2f} times the tokens, allowed {config.max_token_ratio:.2f}")
        if null is not None and null.successes > config.max_null_share * null.episodes:
            out.append(f"the harness solves the task by itself: null model {null.successes} of {null.episodes}")
        return tuple(out)


class GatePlan(NamedTuple):
    """The arithmetic of a search before it starts.

    Attributes:
        gates: Gates planned over all restarts (None: unbounded).
        alpha: Alpha of the first gate of a restart.
        episodes_per_gate: Both arms; the null model's episodes come on top.
        episodes_total: For all planned gates (None: unbounded).
        power: Chance that the first gate accepts an edit of the target gain (guards aside).
        pairs_for_power: Pairs that would give the target power.
    """

    gates: int | None
    alpha: float
    episodes_per_gate: int
    episodes_total: int | None
    power: float
    pairs_for_power: int


def plan_gate(config: GateConfig, *, target_gain: float, discordant_share: float, power: float = 0.8) -> GatePlan:
    """What gates of this size cost and can see, for `--dry-run`.

    Args:
        config: The gate.
        target_gain: Smallest gain in success rate worth finding.
        discordant_share: Share of pairs in which the two arms differ (about the flip rate of one agent, plus the gain).
        power: Wanted power.

    Returns:
        The plan; power and pairs are for one repeat (repeats of an instance are correlated, so they help less than instances do).
    """
    gates = None if config.gates_planned is None else config.gates_planned * config.restarts
    alpha = AlphaSpending.of(config).alpha(restart=0, gate=0)
    episodes = 2 * config.instances * config.repeats
    reached = paired_power(config.instances, delta=target_gain, discordant_share=discordant_share, alpha=alpha)
    needed = pairs_needed(target_gain, discordant_share=discordant_share, alpha=alpha, power=power)
    return GatePlan(gates, alpha, episodes, None if gates is None else gates * episodes, reached, needed)
