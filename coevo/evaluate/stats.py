"""The statistics behind every number in a report: exact tests, intervals, power. Nothing here knows agents.

Axis suffixes: `_I` instance, `_R` repeat, `_S` training seed, `_B` bootstrap resample.
Choices, and their limits:
- Paired tests are exact sign-flip tests over *instances*; with one repeat that is the exact McNemar test. Repeats of an instance are one
  unit, so they never inflate n.
- Intervals of paired differences are percentile bootstraps that resample instances and, where there are several, training seeds. They are
  widened to touch 0 when the exact test does not reject, so that interval, p-value and verdict never contradict one another.
- Bounds on a gain between two small independent samples invert the exact unconditional test (Chan and Zhang 1999), so their coverage holds
  at every sample size.
"""

# ruff: noqa: N803, N806 - the axis suffixes of the house style are capitals

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coevo.errors import ConfigError
from coevo.records import Comparison, Measurement, Verdict

__all__ = [
    "Alternative",
    "Interval",
    "Missing",
    "clopper_pearson",
    "common",
    "compare",
    "flip_rate",
    "gain_lower_bound",
    "gain_over_best",
    "mcnemar",
    "paired_bootstrap",
    "paired_power",
    "pairs_needed",
    "pass_hat_k",
    "sem",
    "sign_flip",
    "success_rate",
    "wilson",
]

Floats = NDArray[np.float64]
Alternative = Literal["two-sided", "greater", "less"]
"""What a test looks for: any difference, b better, b worse."""

_NUISANCE_GRID = 401
_BISECTIONS = 20
_SHOWN = 5


class Interval(NamedTuple):
    """Closed interval."""

    low: float
    high: float


class Missing(NamedTuple):
    """Task keys that only one of two measurements covers, or covers with fewer repeats."""

    only_a: tuple[str, ...]
    only_b: tuple[str, ...]


def wilson(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """Wilson score interval of a binomial share: for display; its coverage is about `level`, not at least."""
    _check_binomial(successes, trials, level)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return Interval(0.0 if successes == 0 else max(0.0, centre - half), 1.0 if successes == trials else min(1.0, centre + half))


def clopper_pearson(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """Exact interval of a binomial share: covers with at least `level`; each end errs with at most (1 - level) / 2."""
    _check_binomial(successes, trials, level)
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(special.betaincinv(successes, trials - successes + 1, tail))
    high = 1.0 if successes == trials else float(special.betaincinv(successes + 1, trials - successes, 1 - tail))
    return Interval(low, high)


def mcnemar(gains: int, losses: int, *, alternative: Alternative = "two-sided") -> float:
    """Exact McNemar p-value from the discordant pairs; 1.0 when there are none.

    Args:
        gains: Pairs that only b solved.
        losses: Pairs that only a solved.
        alternative: `greater` tests that b is better.
    """
    if gains < 0 or losses < 0:
        raise ConfigError("counts of pairs can't be negative", seen=f"gains {gains}, losses {losses}", fix="count pairs")
    total = gains + losses
    upper = float(special.bdtrc(gains - 1, total, 0.5)) if gains else 1.0  # P(X >= gains)
    lower = float(special.bdtr(gains, total, 0.5))  # P(X <= gains)
    return _sided(upper, lower, alternative)


def sign_flip(differences_I: Sequence[int], *, alternative: Alternative = "two-sided") -> float:
    """Exact p-value of the sum of per-instance differences under random sign flips; with differences in {-1, 0, 1} this is `mcnemar`.

    Args:
        differences_I: Per instance, successes of b minus successes of a over its repeats (and seeds).
        alternative: `greater` tests that b is better.
    """
    sizes = sorted(abs(int(d)) for d in differences_I if d)
    observed, span = int(sum(differences_I)), sum(sizes)
    mass: Floats = np.zeros(2 * span + 1)
    mass[span] = 1.0
    for size in sizes:
        mass = 0.5 * (np.roll(mass, size) + np.roll(mass, -size))  # the support never reaches the ends before the last step
    upper, lower = float(mass[span + observed :].sum()), float(mass[: span + observed + 1].sum())
    return _sided(min(1.0, upper), min(1.0, lower), alternative)


def paired_bootstrap(
    differences_SI: Sequence[Sequence[float]], *, level: float = 0.95, resamples: int = 10_000, seed: int | np.random.Generator = 0
) -> Interval:
    """Percentile interval of the mean paired difference, resampling instances and training seeds.

    Args:
        differences_SI: Per training seed and instance, the mean difference b - a over repeats. Every seed covers the same instances, which
            are resampled together (crossed design). One row means one seed: only instances are resampled.
        level: Coverage.
        resamples: Bootstrap resamples.
        seed: Seed or generator.

    Returns:
        The interval. When every difference is equal the bootstrap would give a point: the interval then is what (1 - level) / 2 leaves open
        for instances that were not drawn.
    """
    values: Floats = np.asarray(differences_SI, dtype=np.float64)
    if values.ndim != 2 or 0 in values.shape:
        raise ConfigError("a bootstrap needs at least one seed and one instance", seen=str(values.shape), fix="measure before comparing")
    if np.all(values == values.flat[0]):
        return _constant_interval(float(values.flat[0]), values.shape[1], level)
    means_B = _resampled_means(values, resamples, np.random.default_rng(seed))
    low, high = np.quantile(means_B, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def common(a: Measurement, b: Measurement) -> tuple[Measurement, Measurement, Missing]:
    """Both measurements cut to the instances and repeats that both have, and what was left out (which the caller must report)."""
    missing = _missing(a, b)
    keys = [key for key in a.success if key in b.success]
    cut = {key: min(len(a.success[key]), len(b.success[key])) for key in keys}
    cut = {key: repeats for key, repeats in cut.items() if repeats}
    left = a.model_copy(update={"success": {key: a.success[key][:repeats] for key, repeats in cut.items()}})
    right = b.model_copy(update={"success": {key: b.success[key][:repeats] for key, repeats in cut.items()}})
    return left, right, missing


def compare(
    a: Measurement | Sequence[Measurement],
    b: Measurement | Sequence[Measurement],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Paired difference b - a in success rate, over instances and training seeds.

    Args:
        a: One measurement, or one per training seed.
        b: The same. With several on both sides seeds are paired in order; a single measurement is compared with each.
        level: Coverage of the interval; the verdict uses the same error.
        resamples: Bootstrap resamples.
        seed: Seed of the bootstrap.

    Returns:
        The comparison. `pairs` counts (seed, instance, repeat), `discordant` those with different outcomes. `p_value` is the two-sided
        exact sign-flip test over instances (exact McNemar for one repeat and one seed); with several seeds the larger of it and the
        bootstrap's.

    Raises:
        ConfigError: The measurements do not cover the same instances and repeats (names what is missing), or differ in family, size or
            stream, or in the number of seeds.
    """
    pairs_S = _paired_seeds(a, b)
    sums_SI, repeats_I, discordant, pairs = _differences(pairs_S)
    means_SI = sums_SI / repeats_I
    interval = paired_bootstrap(means_SI.tolist(), level=level, resamples=resamples, seed=seed)
    p_value = sign_flip([int(d) for d in sums_SI.sum(axis=0)])
    if len(pairs_S) > 1:
        p_value = max(p_value, _bootstrap_p(means_SI, resamples, seed))
    delta = float(means_SI.mean())
    if p_value > 1 - level:
        interval = Interval(min(interval.low, 0.0), max(interval.high, 0.0))
    return Comparison(
        a=_name(pairs_S[0][0], a),
        b=_name(pairs_S[0][1], b),
        pairs=pairs,
        discordant=discordant,
        delta=delta,
        low=interval.low,
        high=interval.high,
        p_value=p_value,
        level=level,
        verdict=_verdict(interval),
    )


def success_rate(measurement: Measurement) -> float:
    """Mean over instances of the mean over repeats; owed ids are not in it. Raises `ConfigError` when nothing was measured."""
    rows = [row for row in measurement.success.values() if row]
    if not rows:
        raise ConfigError("nothing was measured", seen=measurement.name, fix="play its owed episodes first")
    return sum(sum(row) / len(row) for row in rows) / len(rows)


def pass_hat_k(success: Mapping[str, Sequence[int]], k: int) -> float:
    """pass^k: the chance that k independent tries at an instance *all* succeed, unbiased, averaged over instances.

    Per instance C(successes, k) / C(repeats, k) (Yao et al. 2024, tau-bench).

    Raises:
        ConfigError: An instance has fewer than k repeats, or there is none.
    """
    few = [key for key, row in success.items() if len(row) < k]
    if few or not success or k < 1:
        raise ConfigError(
            f"pass^{k} needs {k} repeats of every instance", seen=_named(few) or f"{len(success)} instances", fix="raise repeats"
        )
    return sum(math.comb(sum(row), k) / math.comb(len(row), k) for row in success.values()) / len(success)


def sem(values: Sequence[float]) -> float | None:
    """Standard error of the mean over independent runs (n - 1 in the variance); None for fewer than two."""
    if len(values) < 2:
        return None
    return float(np.std(np.asarray(values, dtype=np.float64), ddof=1) / math.sqrt(len(values)))


def flip_rate(success: Mapping[str, Sequence[int]]) -> float | None:
    """Share of instances whose outcome differs between two runs of the same agent (H16): per instance 2 s (n - s) / (n (n - 1)).

    None when no instance has two repeats.
    """
    shares = [2 * sum(row) * (len(row) - sum(row)) / (len(row) * (len(row) - 1)) for row in success.values() if len(row) > 1]
    return sum(shares) / len(shares) if shares else None


def paired_power(pairs: int, *, delta: float, discordant_share: float, alpha: float, two_sided: bool = False) -> float:
    """Power of the exact McNemar test: the chance to reject when b is `delta` better and `discordant_share` of the pairs differ."""
    _check_power(delta, discordant_share, alpha)
    level = alpha / 2 if two_sided else alpha
    discordant = np.arange(pairs + 1)
    share = special.bdtr(discordant, pairs, discordant_share)
    chance: Floats = np.diff(share, prepend=0.0)
    critical = _critical_gains(pairs, level)
    gain_share = (discordant_share + delta) / (2 * discordant_share)
    reject = np.where(critical <= discordant, special.bdtrc(critical - 1.0, discordant, gain_share), 0.0)
    return float(min(1.0, np.sum(chance * reject)))


def pairs_needed(delta: float, *, discordant_share: float, alpha: float = 0.05, power: float = 0.8, two_sided: bool = False) -> int:
    """Pairs at which the exact McNemar test has `power` from there on.

    The power of a discrete test is a saw-tooth; the answer is past its last tooth below the target. For +5 points at 20 % discordant pairs,
    alpha 0.05 and power 0.8 the normal approximation (Miettinen 1968) says 493 one-sided and 626 two-sided, the exact test 527 and 658.
    """
    _check_power(delta, discordant_share, alpha)

    def reaches(pairs: int) -> bool:
        return paired_power(pairs, delta=delta, discordant_share=discordant_share, alpha=alpha, two_sided=two_sided) >= power

    high = max(8, int(0.8 * _approximate_pairs(delta, discordant_share, alpha, power, two_sided)))
    while not all(reaches(n) for n in range(high, high + 4)):
        high = int(high * 1.1) + 1
    low = int(high / 1.1) - 2
    while low > 1 and any(reaches(n) for n in range(max(1, low - 4), low)):
        low -= max(4, low // 20)
    return next(n + 1 for n in range(high, max(0, low) - 1, -1) if n == 0 or not reaches(n))


@lru_cache(maxsize=65_536)
def gain_lower_bound(successes_new: int, trials_new: int, successes_base: int, trials_base: int, *, alpha: float = 0.05) -> float:
    """One-sided lower bound on p_new - p_base from two independent samples; it is too high with probability at most `alpha`.

    Method: the exact unconditional test inverted (Chan and Zhang 1999). Outcomes are ordered by the Agresti-Caffo z statistic; the bound is
    the largest gain under which an outcome at least this good has, at the worst nuisance rate (on a grid of 401), a chance of at most
    `alpha`. Conservative, most of all for few trials: 3 of 4 against 0 of 4 is above 0 at 0.05, 2 of 4 is not.

    Raises:
        ConfigError: Impossible counts or alpha.
    """
    _check_binomial(successes_new, trials_new, 1 - alpha)
    _check_binomial(successes_base, trials_base, 1 - alpha)
    at_least = _at_least_as_good(successes_new, trials_new, successes_base, trials_base)
    if _worst_chance(at_least, -1.0) > alpha:
        return -1.0
    low, high = -1.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _worst_chance(at_least, middle) <= alpha:
            low = middle
        else:
            high = middle
    return low


def gain_over_best(new: tuple[int, int], bases: Sequence[tuple[int, int]], *, alpha: float = 0.05) -> float:
    """Lower bound on the gain of `new` over the *largest* base rate; all pairs are (successes, trials).

    The gain over the maximum is the least of the gains, so the least of the bounds is a bound at the same alpha (intersection-union: no
    correction for the number of bases). Trials of several rewrites or turns do need one: divide alpha by their number.
    """
    if not bases:
        raise ConfigError("a gain needs a baseline", seen="no bases", fix="continue from the kept or a resampled turn")
    return min(gain_lower_bound(new[0], new[1], successes, trials, alpha=alpha) for successes, trials in bases)


def _sided(upper: float, lower: float, alternative: Alternative) -> float:
    sided: dict[Alternative, float] = {"greater": upper, "less": lower, "two-sided": min(1.0, 2 * min(upper, lower))}
    return sided[alternative]


def _constant_interval(value: float, instances: int, level: float) -> Interval:
    unseen = 1 - ((1 - level) / 2) ** (1 / instances)  # Clopper-Pearson bound on the share of instances that would differ
    return Interval((1 - unseen) * value - unseen, (1 - unseen) * value + unseen)


def _resampled_means(values_SI: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Means under multinomial weights of instances and seeds; the few seeds' deviations are scaled to the unbiased variance."""
    seeds, instances = values_SI.shape
    kinds_SI, counts_I = np.unique(values_SI, axis=1, return_counts=True)  # equal instances are drawn as one kind: same law, far cheaper
    weights_BI = rng.multinomial(instances, counts_I / instances, size=resamples) / instances
    per_seed_BS: Floats = weights_BI @ kinds_SI.T
    centre_B: Floats = per_seed_BS.mean(axis=1)
    if seeds == 1:
        return centre_B
    weights_BS = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds
    deviation_B: Floats = (per_seed_BS * weights_BS).sum(axis=1) - centre_B
    return centre_B + math.sqrt(seeds / (seeds - 1)) * deviation_B


def _bootstrap_p(values_SI: Floats, resamples: int, seed: int) -> float:
    means_B = _resampled_means(values_SI, resamples, np.random.default_rng(seed))
    below, above = float(np.mean(means_B <= 0)), float(np.mean(means_B >= 0))
    return min(1.0, 2 * max(min(below, above), 1 / resamples))


def _missing(a: Measurement, b: Measurement) -> Missing:
    only_a = tuple(sorted(key for key, row in a.success.items() if len(row) > len(b.success.get(key, ()))))
    only_b = tuple(sorted(key for key, row in b.success.items() if len(row) > len(a.success.get(key, ()))))
    return Missing(only_a, only_b)


def _paired_seeds(a: Measurement | Sequence[Measurement], b: Measurement | Sequence[Measurement]) -> list[tuple[Measurement, Measurement]]:
    left = [a] if isinstance(a, Measurement) else list(a)
    right = [b] if isinstance(b, Measurement) else list(b)
    if not left or not right or (len(left) != len(right) and 1 not in (len(left), len(right))):
        seen = f"{len(left)} and {len(right)} training seeds"
        raise ConfigError("measurements can't be paired by training seed", seen=seen, fix="give equally many, or one on one side")
    seeds = [(m.training_seed, n.training_seed) for m, n in zip(left, right, strict=False) if len(left) == len(right) > 1]
    if any(None not in pair and len(set(pair)) > 1 for pair in seeds):
        raise ConfigError("paired measurements come from different training seeds", seen=str(seeds), fix="give both in the same seed order")
    number = max(len(left), len(right))
    pairs = list(zip(left * (number // len(left)), right * (number // len(right)), strict=True))
    for first, second in [*pairs, (left[0], left[-1])]:
        _check_alike(first, second)
    return pairs


def _check_alike(a: Measurement, b: Measurement) -> None:
    for name in ("family", "size", "stream"):
        if getattr(a, name) != getattr(b, name):
            seen = f"{name}: {getattr(a, name)} and {getattr(b, name)}"
            raise ConfigError("measurements of different tasks can't be compared", seen=seen, fix="measure both on the same instances")
    missing = _missing(a, b)
    if missing.only_a or missing.only_b:
        parts = [f"only {m.name} has {_named(keys)}" for m, keys in ((a, missing.only_a), (b, missing.only_b)) if keys]
        raise ConfigError(
            "measurements cover different instances or repeats", seen="; ".join(parts), fix="play the missing, or cut both: common(a, b)"
        )
    if not a.success or not all(a.success.values()):
        raise ConfigError("nothing was measured", seen=f"{a.name}: {len(a.success)} instances", fix="play its owed episodes first")


def _differences(pairs_S: Sequence[tuple[Measurement, Measurement]]) -> tuple[Floats, Floats, int, int]:
    keys = sorted(pairs_S[0][0].success)
    sums_SI = np.array([[sum(b.success[key]) - sum(a.success[key]) for key in keys] for a, b in pairs_S], dtype=np.float64)
    repeats_I = np.array([len(pairs_S[0][0].success[key]) for key in keys], dtype=np.float64)
    outcomes = [(x, y) for a, b in pairs_S for key in keys for x, y in zip(a.success[key], b.success[key], strict=True)]
    return sums_SI, repeats_I, sum(x != y for x, y in outcomes), len(outcomes)


def _name(first: Measurement, given: Measurement | Sequence[Measurement]) -> str:
    return first.name if isinstance(given, Measurement) or len(given) == 1 else f"{first.name} and {len(given) - 1} more seeds"


def _verdict(interval: Interval) -> Verdict:
    if interval.low > 0:
        return Verdict.SUPPORTED
    return Verdict.REFUTED if interval.high < 0 else Verdict.INCONCLUSIVE


def _named(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more


def _critical_gains(pairs: int, level: float) -> NDArray[np.int64]:
    """Per number of discordant pairs, the fewest gains that the one-sided test rejects at; larger than it when none does."""
    discordant = np.arange(pairs + 1)
    guess = discordant / 2 + NormalDist().inv_cdf(1 - level) * np.sqrt(discordant) / 2
    critical = np.clip(np.ceil(guess), 1, discordant + 1)
    while np.any(lower := (critical > 1) & (special.bdtrc(critical - 2, discordant, 0.5) <= level)):
        critical = np.where(lower, critical - 1, critical)
    while np.any(higher := (critical <= discordant) & (special.bdtrc(critical - 1, discordant, 0.5) > level)):
        critical = np.where(higher, critical + 1, critical)
    gains: NDArray[np.int64] = critical.astype(np.int64)
    return gains


def _approximate_pairs(delta: float, share: float, alpha: float, power: float, two_sided: bool) -> float:
    z_alpha = NormalDist().inv_cdf(1 - (alpha / 2 if two_sided else alpha))
    z_power = NormalDist().inv_cdf(power)
    return (z_alpha * math.sqrt(share) + z_power * math.sqrt(max(0.0, share - delta * delta))) ** 2 / (delta * delta)


def _at_least_as_good(successes_new: int, trials_new: int, successes_base: int, trials_base: int) -> NDArray[np.bool_]:
    """Outcomes (new, base) whose Agresti-Caffo z is at least the observed one; closed under "more new, fewer base"."""
    new, base = (np.arange(n + 1)[:, None] for n in (trials_new, trials_base))
    p_new, p_base = (new + 1) / (trials_new + 2), (base.T + 1) / (trials_base + 2)
    z = (p_new - p_base) / np.sqrt(p_new * (1 - p_new) / (trials_new + 2) + p_base * (1 - p_base) / (trials_base + 2))
    at_least: NDArray[np.bool_] = z >= z[successes_new, successes_base] - 1e-9
    return at_least


def _worst_chance(at_least: NDArray[np.bool_], gain: float) -> float:
    """Largest chance of `at_least` over all base rates when the new rate is `gain` higher."""
    trials_new, trials_base = at_least.shape[0] - 1, at_least.shape[1] - 1
    base = np.linspace(max(0.0, -gain), min(1.0, 1.0 - gain), _NUISANCE_GRID)
    chance_new = _binomial_mass(trials_new, base + gain)
    chance_base = _binomial_mass(trials_base, base)
    return float(np.einsum("ng,nb,bg->g", chance_new, at_least, chance_base, optimize=True).max())


def _binomial_mass(trials: int, share: Floats) -> Floats:
    """Probability of 0..trials successes, shape (trials + 1, len(share))."""
    counts = np.arange(trials + 1)[:, None]
    share = np.clip(share, 0.0, 1.0)
    mass: Floats = special.binom(trials, counts) * share**counts * (1 - share) ** (trials - counts)
    return mass


def _check_binomial(successes: int, trials: int, level: float) -> None:
    if not (0 <= successes <= trials and trials > 0 and 0 < level < 1):
        seen = f"{successes} of {trials}, level {level:g}"
        raise ConfigError(
            "impossible counts or level", seen=seen, fix="need 0 <= successes <= trials, trials > 0 and a level between 0 and 1"
        )


def _check_power(delta: float, discordant_share: float, alpha: float) -> None:
    if not (0 < delta <= discordant_share <= 1 and 0 < alpha < 1):
        seen = f"delta {delta:g}, discordant share {discordant_share:g}, alpha {alpha:g}"
        raise ConfigError("impossible effect", seen=seen, fix="need 0 < delta <= discordant share <= 1 and 0 < alpha < 1")
