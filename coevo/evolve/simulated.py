"""A simulated agent for searches: outcomes are coins, so that thousands of whole searches tell how often gate and search err.

Every instance has a success rate of its own, drawn from a beta distribution; a harness moves all of them by one effect; each episode is an
independent coin. So two arms differ on some pairs by chance alone, as two runs of one real agent do. Nothing is played and no token is
counted. Limits: effects are the same on easy and hard instances in the sense of `shifted`, and never interact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coevo.chat import Sampling
from coevo.errors import ConfigError
from coevo.evolve.evaluator import Play
from coevo.evolve.propose import Edit, Evidence
from coevo.evolve.tiers import task_key
from coevo.harness.bundle import HarnessBundle
from coevo.records import Episode, EpisodeSpec, Grade, Status, UsageRecord

__all__ = ["MINI_NOISE", "BetaNoise", "FutileProposer", "SimulatedEvaluator", "futile_edits", "shifted"]

_QUANTILES = 4096
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_WORST, _BEST = -0.30, 0.65  # effects that add up stay where `MINI_NOISE` has room
_SAMPLING = Sampling(0.7, 1.0, 96)


class BetaNoise(NamedTuple):
    """Success rates of instances are Beta(a, b): the mean is the agent's success rate, the spread says how much is luck."""

    a: float
    b: float

    @property
    def mean(self) -> float:
        """Success rate over all instances."""
        return self.a / (self.a + self.b)

    @property
    def flip_rate(self) -> float:
        """Share of instances on which two runs of the same agent differ."""
        total = self.a + self.b
        return 2 * self.a * self.b / (total * (total + 1))

    @classmethod
    def of(cls, *, mean: float, flip_rate: float) -> BetaNoise:
        """The distribution with this mean and flip rate.

        Raises:
            ConfigError: No beta distribution has them: the flip rate lies between 0 and 2 mean (1 - mean).
        """
        most = 2 * mean * (1 - mean)
        if not 0 < flip_rate < most:
            raise ConfigError("no distribution of instances flips so often", seen=f"{flip_rate} at mean {mean}", fix=f"0 to {most:.3f}")
        total = flip_rate / (most - flip_rate)
        return cls(mean * total, (1 - mean) * total)


MINI_NOISE = BetaNoise.of(mean=0.32, flip_rate=0.38)
"""The embedded model under the base harness of payroll: `tests/bench/bench_noise.py`, 800 episodes of 400 instances (EXPERIMENTS.md). The
other families' flip rates are 0.27 to 0.40."""


def shifted(rates: NDArray[np.float64], effect: float, mean: float) -> NDArray[np.float64]:
    """Success rates under an edit that moves their mean by exactly `effect`.

    A gain closes the same share of what every instance lacks, a loss takes the same share of what it has: no rate leaves [0, 1].

    Raises:
        ConfigError: The mean would leave [0, 1].
    """
    if not -mean <= effect <= 1 - mean:
        raise ConfigError("an effect moves the success rate out of [0, 1]", seen=f"{effect:+} at {mean:.3f}", fix="take a smaller one")
    return rates + effect / (1 - mean) * (1 - rates) if effect > 0 else rates * (1 + effect / mean)


def _by_hash(bundle: HarnessBundle) -> str:
    return bundle.hash


@dataclass(slots=True)
class SimulatedEvaluator:
    """An `Evaluator` that tosses coins. An episode's outcome depends on seed, harness and item only.

    Attributes:
        seed: Seed of all coins.
        noise: Success rates of the instances under a harness without effect.
        effects: Harness identity -> what it adds to the mean success rate; absent is 0.
        solve_alone: Identities under which the null model succeeds always.
        identity: What of a bundle names its coins; the hash, unless two bundles shall share their luck.
        played: Episodes asked for, the null model's included.
    """

    seed: int
    noise: BetaNoise = MINI_NOISE
    effects: Mapping[str, float] = field(default_factory=dict)
    solve_alone: frozenset[str] = frozenset()
    identity: Callable[[HarnessBundle], str] = _by_hash
    played: int = 0

    def play(self, plays: Sequence[Play]) -> list[Mapping[str, Episode]]:
        """Episodes by item. Only traces (`purpose` "search") have a spec of their own; others share one per outcome, for speed."""
        return [self._play(play) for play in plays]

    def _play(self, play: Play) -> Mapping[str, Episode]:
        self.played += len(play.items)
        name, either = self.identity(play.bundle), _plain(play.bundle.hash)
        if play.null:
            return dict.fromkeys(play.items, either[name in self.solve_alone])
        wins = self.outcomes(name, play.items)
        if play.purpose == "search":
            return {item: _episode(play.bundle.hash, item, success) for item, success in zip(play.items, wins, strict=True)}
        return {item: either[success] for item, success in zip(play.items, wins, strict=True)}

    def outcomes(self, identity: str, items: Sequence[str]) -> list[bool]:
        """Success per item."""
        words = np.array([_word(task_key(item)) for item in items], dtype=np.uint64)
        repeats = np.array([int(item.rpartition("#")[2]) for item in items], dtype=np.uint64)
        own = np.uint64(_word(f"{self.seed}"))
        places = _mixed(words ^ own) >> np.uint64(52)
        rates = shifted(_quantiles(self.noise)[places], self.effects.get(identity, 0.0), self.noise.mean)
        coins = _mixed(_mixed(words + own) ^ np.uint64(_word(identity)) ^ (repeats * _GOLDEN))
        wins: list[bool] = ((coins >> np.uint64(11)).astype(np.float64) * 2.0**-53 < rates).tolist()
        return wins


@lru_cache(maxsize=65_536)
def _word(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea and Flood 2014): every bit of the input moves every bit of the output."""
    out: NDArray[np.uint64] = words + _GOLDEN
    out = (out ^ (out >> np.uint64(30))) * _MIX_1
    out = (out ^ (out >> np.uint64(27))) * _MIX_2
    return out ^ (out >> np.uint64(31))


@lru_cache(maxsize=16)
def _quantiles(noise: BetaNoise) -> NDArray[np.float64]:
    middles = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    quantiles: NDArray[np.float64] = special.betaincinv(noise.a, noise.b, middles)
    return quantiles


def _episode(harness_hash: str, item: str, success: bool) -> Episode:
    key, _, repeat = item.rpartition("#")
    spec = EpisodeSpec.model_construct(
        task_key=key, world_version="simulated", harness_hash=harness_hash, model_id="simulated", sampling=_SAMPLING, repeat=int(repeat)
    )
    return _graded(spec, success)


def _graded(spec: EpisodeSpec, success: bool) -> Episode:
    grade = Grade(success=success, score=float(success))
    return Episode(id=spec.id, spec=spec, status=Status.COMPLETED, grade=grade, messages=(), turns=(), usage=UsageRecord())


@lru_cache(maxsize=4096)
def _plain(harness_hash: str) -> tuple[Episode, Episode]:
    """A failure and a success of this harness, on no instance in particular."""
    spec = EpisodeSpec(
        task_key="", world_version="simulated", harness_hash=harness_hash, model_id="simulated", sampling=_SAMPLING, branch="shared"
    )
    return _graded(spec, False), _graded(spec, True)


_NUMBERS = 64
"""Different calls of `futile_edits`: writing a bundle out takes longer than racing it, so a process makes each once."""
_INERT = "def on_start(event, state):\n    {body}\n    return None\n"


@lru_cache(maxsize=4096)
def futile_edits(parent: HarnessBundle, number: int) -> tuple[tuple[str, HarnessBundle], ...]:
    """Four edits that change a bundle's hash and nothing that an episode could show: kind and child.

    Args:
        parent: The harness.
        number: Makes them differ from those of another call.
    """
    hooks, name = dict(parent.hooks), f"inert_{number % 7}"
    prompt = parent.system_prompt
    blanks = prompt.replace(" ", " " * (2 + number % 5), 1) if " " in prompt else f" {prompt}"
    return (
        ("comment", parent.replace(hooks={**hooks, name: _INERT.format(body=f"# remark {number}\n    kept = 1")})),
        ("whitespace", parent.replace(system_prompt=blanks)),
        ("renamed variable", parent.replace(hooks={**hooks, name: _INERT.format(body=f"value_{number} = 1")})),
        ("inert hook", parent.replace(hooks={**hooks, f"idle_{number}": _INERT.format(body="unused = state")})),
    )


@dataclass(slots=True)
class FutileProposer:
    """Proposes edits that do nothing, for null tests; with `planted`, one effect among them.

    Attributes:
        planted: Hash of a bundle -> effect, filled as edits are proposed, on top of the parent's: give the same mapping to a
            `SimulatedEvaluator`.
        effect: Effect of every proposed edit (0: none), or of the first of each call with `first_only`.
        first_only: Whether only the first edit of a call carries `effect`.
        alone: Whether a call proposes its first edit only.
    """

    planted: dict[str, float] = field(default_factory=dict)
    effect: float = 0.0
    first_only: bool = False
    alone: bool = False
    name: str = "futile"

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]:
        """Four edits: comment, whitespace, renamed variable, inert hook."""
        edits = []
        inherited = self.planted.get(parent.hash, 0.0)
        offered = futile_edits(parent, rng.randrange(_NUMBERS))
        for place, (kind, bundle) in enumerate(offered[:1] if self.alone else offered):
            effect = self.effect if place == 0 or not self.first_only else 0.0
            self.planted.setdefault(bundle.hash, max(_WORST, min(_BEST, inherited + effect)))
            component = "prompt" if kind == "whitespace" else "hook:inert"
            edits.append(Edit(component, kind, "none: it changes nothing", (), (), (), bundle))
        return edits
