"""A study for the simulator, as data: pools, phases, volumes and their reasons, read from YAML.

Token volumes become node-seconds by the stated throughputs, so a measured throughput replaces an assumed one by changing one figure. Every
figure that is an assumption stands beside a `why`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cluster.pool_policy import PhasedPolicy, PolicySettings, PoolPolicy, StaticPolicy
from cluster.simulator import Outcome, SimulatedPhase, SimulatedPool, plan_of, shapes_of, simulate
from coevo.chat import Usage
from coevo.errors import ConfigError, nearest
from coevo.prices import Market, PriceSheet, load_prices
from coevo.yamltext import read_yaml

__all__ = ["POLICIES", "Study", "StudyResult", "load_study", "play"]

_HOUR_S = 3600.0


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Nodes(_Part):
    instance: str
    count: int = Field(ge=1)
    why: str


class _StudyPool(_Part):
    instance: str
    nodes: int = Field(ge=1)
    why: str
    prefill_tokens_per_s: float | None = Field(None, gt=0)
    decode_tokens_per_s: float | None = Field(None, gt=0)
    throughput_why: str = ""
    startup_s: float = Field(ge=0)
    startup_why: str
    commit_s: float = Field(ge=0)
    commit_why: str
    losses_per_hour: float = Field(ge=0)
    losses_why: str
    drought_every_h: float = Field(gt=0)
    drought_h: float = Field(ge=0)
    drought_factor: float = Field(1.0, ge=1)
    drought_why: str
    gang: bool = False


class _EpisodeVolume(_Part):
    fresh_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    why: str
    continued_share: float = Field(gt=0, le=1)
    continued_why: str


class _StudyPhase(_Part):
    name: str
    pool: str = ""
    episodes: int = Field(0, ge=0)
    continuations: int = Field(0, ge=0)
    node_hours: float = Field(0.0, ge=0)
    seconds: float = Field(0.0, ge=0)
    tail_s: float = Field(0.0, ge=0)
    why: str


class _Tokens(_Part):
    prompt: int = Field(ge=0)
    cached: int = Field(0, ge=0)
    completion: int = Field(ge=0)

    def usage(self, times: int) -> Usage:
        return Usage(self.prompt * times, self.cached * times, self.completion * times)


class _StudyExpert(_Part):
    model: str
    why: str
    rewrites: int = Field(ge=0)
    rewrite_tokens: _Tokens
    rewrites_why: str
    episodes: int = Field(ge=0)
    episode_tokens: _Tokens
    episodes_why: str


class _Yield(_Part):
    attempts: int = Field(ge=1)
    accepted_share: float = Field(gt=0, le=1)
    why: str


class _Targets(_Part):
    cost_share: float = Field(gt=0)
    hours_factor: float = Field(gt=0)


class _Sensitivity(_Part):
    seeds: int = Field(ge=2)
    losses_per_hour: tuple[float, ...] = Field(min_length=2)
    startup_minutes: tuple[float, ...] = Field(min_length=2)


class Study(_Part):
    """See `jobs/studies/gpu_study.yaml`, where every key is shown with its reason."""

    name: str
    prices: str | None = None
    repeat: int = Field(ge=1)
    seeds: int = Field(ge=2)
    nodes: tuple[_Nodes, ...] = ()
    pools: dict[str, _StudyPool]
    episode: _EpisodeVolume
    phases: tuple[_StudyPhase, ...] = Field(min_length=1)
    expert: _StudyExpert
    yield_: _Yield = Field(alias="yield")
    policy: PolicySettings = PolicySettings()
    targets: _Targets
    sensitivity: _Sensitivity

    @model_validator(mode="after")
    def _phases_fit(self) -> Self:
        for one in self.phases:
            if one.pool and one.pool not in self.pools:
                raise ValueError(f"phase {one.name}: unknown pool {one.pool!r}; {nearest(one.pool, self.pools)}")
            counted = one.episodes or one.continuations
            if counted and (not one.pool or self.pools[one.pool].decode_tokens_per_s is None):
                raise ValueError(f"phase {one.name}: episodes need a pool with prefill_tokens_per_s and decode_tokens_per_s")
            if bool(one.pool) == bool(one.seconds):
                raise ValueError(f"phase {one.name}: give a pool with work, or seconds without a pool")
        return self

    def sheet(self) -> PriceSheet:
        """The prices."""
        return load_prices(self.prices)

    def simulated_pools(
        self, sheet: PriceSheet, *, losses_per_hour: float | None = None, startup_s: float | None = None
    ) -> dict[str, SimulatedPool]:
        """The pools for the simulator; the two arguments replace the figure of every pool."""
        out = {}
        for name, pool in self.pools.items():
            price = sheet.instance(pool.instance)
            out[name] = SimulatedPool(
                nodes=pool.nodes,
                usd_per_hour={market: price.usd_per_hour(market) for market in Market},
                startup_s=pool.startup_s if startup_s is None else startup_s,
                commit_s=pool.commit_s,
                losses_per_hour=pool.losses_per_hour if losses_per_hour is None else losses_per_hour,
                drought_every_h=pool.drought_every_h,
                drought_h=pool.drought_h,
                drought_factor=pool.drought_factor,
                gang=pool.gang,
            )
        return out

    def simulated_phases(self) -> tuple[SimulatedPhase, ...]:
        """All phases, repeated, with their work in node-seconds."""
        once = [SimulatedPhase(one.name, one.pool, self._node_s(one), one.tail_s + one.seconds) for one in self.phases]
        return tuple(once * self.repeat)

    def _node_s(self, phase: _StudyPhase) -> float:
        work = phase.node_hours * _HOUR_S
        pool = self.pools.get(phase.pool)
        if pool is not None and pool.prefill_tokens_per_s and pool.decode_tokens_per_s:
            one = self.episode.fresh_tokens / pool.prefill_tokens_per_s + self.episode.completion_tokens / pool.decode_tokens_per_s
            work += one * (phase.episodes + self.episode.continued_share * phase.continuations)
        return work

    def always_usd_per_hour(self, sheet: PriceSheet) -> float:
        """Dollars per hour of the nodes that run under every policy."""
        return sum(one.count * sheet.instance(one.instance).on_demand for one in self.nodes)

    def expert_usd(self, sheet: PriceSheet) -> float:
        """Dollars for the expert's tokens, the same under every policy."""
        price, expert = sheet.token_price(self.expert.model), self.expert
        usage = expert.rewrite_tokens.usage(expert.rewrites) + expert.episode_tokens.usage(expert.episodes)
        return price.cost_usd(usage) * self.repeat

    def accepted(self, seed: int) -> int:
        """Accepted training turns of one simulated run: the same under every policy of the same seed, at least one."""
        draws = np.random.default_rng([seed, 1])
        return max(1, int(draws.binomial(self.yield_.attempts * self.repeat, self.yield_.accepted_share)))


@dataclass(frozen=True, slots=True)
class StudyResult:
    """One policy under one seed."""

    outcome: Outcome
    usd: float
    accepted: int

    @property
    def usd_per_turn(self) -> float:
        """Dollars per accepted training turn."""
        return self.usd / self.accepted


PolicyMaker = Callable[[Study, Mapping[str, SimulatedPool]], PoolPolicy]


def _static(market: Market) -> PolicyMaker:
    return lambda study, pools: StaticPolicy(shapes_of(pools), market)


def _phased(*, spot: bool) -> PolicyMaker:
    def make(study: Study, pools: Mapping[str, SimulatedPool]) -> PoolPolicy:
        settings = replace(study.policy, use_spot=spot)
        return PhasedPolicy(plan_of(study.simulated_phases(), pools), shapes_of(pools), settings)

    return make


POLICIES: Mapping[str, PolicyMaker] = {
    "static on-demand": _static(Market.ON_DEMAND),
    "static spot": _static(Market.SPOT),
    "phased on-demand": _phased(spot=False),
    "ours": _phased(spot=True),
}
"""Name -> policy. `phased on-demand` is ours without spot: it tells how much of the saving comes from the phases alone."""


def play(
    study: Study,
    policy: str,
    *,
    sheet: PriceSheet,
    seed: int,
    losses_per_hour: float | None = None,
    startup_s: float | None = None,
) -> StudyResult:
    """Simulate the study once under a policy of `POLICIES`."""
    pools = study.simulated_pools(sheet, losses_per_hour=losses_per_hour, startup_s=startup_s)
    outcome = simulate(study.simulated_phases(), pools, POLICIES[policy](study, pools), seed=seed)
    usd = outcome.total_usd + outcome.hours * study.always_usd_per_hour(sheet) + study.expert_usd(sheet)
    return StudyResult(outcome, usd, study.accepted(seed))


def load_study(path: Path) -> Study:
    """Read a study.

    Raises:
        ConfigError: Unreadable file, unknown key, value out of range, a phase without its pool.
    """
    try:
        data = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("the study can't be read", seen=f"{path}: {error.strerror}", fix="give the path of a YAML file") from error
    except yaml.YAMLError as error:
        raise ConfigError("the study is not YAML", seen=f"{path}: {error}", fix="mend the line named above") from error
    try:
        return Study.model_validate(data)
    except ValidationError as error:
        lines = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
        fix = "compare with jobs/studies/gpu_study.yaml"
        raise ConfigError("the study is not valid", seen=f"{path}: " + "\n    ".join(lines), fix=fix) from error
