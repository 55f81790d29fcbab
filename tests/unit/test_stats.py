"""Statistics against published values, closed forms and simulation.

1. Exact tests equal the exact binomial; repeats of an instance never inflate n.
2. Interval, p-value and verdict of a comparison never contradict one another (H10).
3. The lower bound of a gain covers at every sample size: checked by complete enumeration.
4. The power arithmetic agrees with simulation, and with the paper-level check of about 490 pairs.
"""

from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as reference

from coevo.errors import ConfigError
from coevo.evaluate import stats
from coevo.evaluate.stats import Interval, compare
from coevo.records import Measurement, Verdict


def measurement(name: str, rows: dict[str, tuple[int, ...]], **extra: object) -> Measurement:
    fields = {"model_id": "m", "harness_hash": "h", "family": "payroll", "size": "mini", "stream": "test", "serving_form": "merged"}
    return Measurement.model_validate({"name": name, "success": rows, **fields, **extra})


def paired(both: int, gains: int, losses: int, neither: int) -> tuple[Measurement, Measurement]:
    outcomes = [(1, 1)] * both + [(0, 1)] * gains + [(1, 0)] * losses + [(0, 0)] * neither
    a = {f"i{n:04d}": (x,) for n, (x, _) in enumerate(outcomes)}
    b = {f"i{n:04d}": (y,) for n, (_, y) in enumerate(outcomes)}
    return measurement("a", a), measurement("b", b)


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (3, 10), (5, 5), (81, 263)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_binomial_intervals_equal_the_reference(successes: int, trials: int, level: float) -> None:
    test = reference.binomtest(successes, trials)
    for ours, method in ((stats.clopper_pearson, "exact"), (stats.wilson, "wilson")):
        theirs = test.proportion_ci(confidence_level=level, method=method)
        assert ours(successes, trials, level=level) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_mcnemar_is_the_exact_binomial() -> None:
    for gains, losses in [(0, 0), (1, 0), (10, 3), (3, 10), (7, 7), (25, 24), (40, 12)]:
        total = gains + losses
        for alternative in ("two-sided", "greater", "less"):
            want = reference.binomtest(gains, total, alternative=alternative).pvalue if total else 1.0
            assert stats.mcnemar(gains, losses, alternative=alternative) == pytest.approx(want, rel=1e-9)


def test_five_tasks_more_can_be_nothing() -> None:
    """H16: a gap of 5 tasks with 27 discordant pairs is p = 0.44."""
    assert stats.mcnemar(16, 11) == pytest.approx(0.4421, abs=1e-3)


@given(st.lists(st.integers(-3, 3), max_size=9))
def test_sign_flip_is_the_complete_enumeration(differences: list[int]) -> None:
    sums = [sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in itertools.product((1, -1), repeat=len(differences))]
    observed = sum(differences)
    upper = sum(s >= observed for s in sums) / len(sums)
    lower = sum(s <= observed for s in sums) / len(sums)
    assert stats.sign_flip(differences, alternative="greater") == pytest.approx(upper)
    assert stats.sign_flip(differences, alternative="less") == pytest.approx(lower)
    assert stats.sign_flip(differences) == pytest.approx(min(1.0, 2 * min(upper, lower)))


def test_sign_flip_with_one_repeat_is_mcnemar() -> None:
    assert stats.sign_flip([1] * 12 + [-1] * 4 + [0] * 50) == pytest.approx(stats.mcnemar(12, 4))


def test_repeats_do_not_inflate_n() -> None:
    """Ten identical repeats carry the evidence of one."""
    a, b = paired(10, 8, 2, 10)
    wide_a = measurement("a", {key: row * 10 for key, row in a.success.items()})
    wide_b = measurement("b", {key: row * 10 for key, row in b.success.items()})
    assert compare(wide_a, wide_b).p_value == pytest.approx(compare(a, b).p_value)


def test_compare_counts_and_is_deterministic() -> None:
    a, b = paired(40, 30, 6, 24)
    result = compare(a, b)
    assert (result.a, result.b, result.pairs, result.discordant) == ("a", "b", 100, 36)
    assert result.delta == pytest.approx(0.24)
    assert result.p_value == pytest.approx(stats.mcnemar(30, 6))
    assert 0.1 < result.low < 0.24 < result.high < 0.38
    assert result.verdict is Verdict.SUPPORTED
    assert compare(a, b) == result
    mirrored = compare(b, a)
    assert mirrored.verdict is Verdict.REFUTED
    assert mirrored.delta == pytest.approx(-0.24)


def test_compare_agrees_with_the_normal_interval() -> None:
    a, b = paired(100, 60, 30, 110)
    result = compare(a, b)
    differences = np.array([1] * 60 + [-1] * 30 + [0] * 210)
    half = 1.96 * differences.std(ddof=1) / np.sqrt(300)
    assert (result.low, result.high) == pytest.approx((0.1 - half, 0.1 + half), abs=0.006)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(1, 12))
def test_interval_p_value_and_verdict_agree(both: int, gains: int, losses: int, neither: int) -> None:
    """H10: 5 gains and no loss have a bootstrap interval above 0 and p = 0.06; nothing of that may reach a table as a success."""
    result = compare(*paired(both, gains, losses, neither), resamples=1000)
    assert result.low <= result.delta <= result.high
    inside = result.low <= 0 <= result.high
    assert inside == (result.verdict is Verdict.INCONCLUSIVE)
    if result.p_value > 0.05:
        assert inside


def test_no_discordant_pair_is_not_certainty() -> None:
    result = compare(*paired(10, 0, 0, 10))
    assert (result.delta, result.p_value, result.verdict) == (0.0, 1.0, Verdict.INCONCLUSIVE)
    assert result.high == pytest.approx(stats.clopper_pearson(0, 20).high)
    assert result.low == -result.high


def test_coverage_of_the_paired_interval() -> None:
    """95 % intervals of 100 pairs with a true difference of 10 points cover it in about 95 % of 400 simulated comparisons."""
    rng, covered = np.random.default_rng(7), 0
    for _ in range(400):
        gains, losses, _ = rng.multinomial(100, [0.2, 0.1, 0.7])
        values = [[1.0] * gains + [-1.0] * losses + [0.0] * (100 - gains - losses)]
        interval = stats.paired_bootstrap(values, resamples=1000, seed=rng)
        covered += interval.low <= 0.1 <= interval.high
    assert 0.91 <= covered / 400 <= 0.98


def test_training_seeds_widen_the_interval() -> None:
    """Intervals resample instances and training seeds: seeds that disagree leave more doubt than one seed does."""
    base = measurement("base", {f"i{n}": (0,) for n in range(60)})
    good = measurement("s0", {f"i{n}": (int(n < 40),) for n in range(60)}, training_seed=0)
    bad = measurement("s1", {f"i{n}": (int(n < 2),) for n in range(60)}, training_seed=1)
    one, two = compare(base, good), compare(base, [good, bad])
    assert two.pairs == 120
    assert two.delta == pytest.approx((40 + 2) / 120)
    assert two.high - two.low > 2 * (one.high - one.low)
    same = compare(base, [good, good.model_copy(update={"training_seed": 1})])
    assert same.delta == pytest.approx(one.delta)
    assert same.high - same.low == pytest.approx(one.high - one.low, abs=0.02)


def test_seed_variance_covers_like_a_t_interval_would_want() -> None:
    """With 5 training seeds whose effects scatter, 95 % intervals cover the mean effect in most of 200 simulations (few seeds: not all)."""
    rng, covered = np.random.default_rng(3), 0
    for _ in range(200):
        effects = rng.normal(0.1, 0.05, size=5)
        values = [rng.choice([1.0, 0.0, -1.0], size=80, p=[0.15 + e / 2, 0.7, 0.15 - e / 2]).tolist() for e in effects]
        interval = stats.paired_bootstrap(values, resamples=800, seed=rng)
        covered += interval.low <= 0.1 <= interval.high
    assert covered / 200 >= 0.9


def test_mismatches_name_what_is_missing() -> None:
    a = measurement("left", {"x": (1,), "y": (0, 1), "z": (1,)})
    b = measurement("right", {"x": (1,), "y": (0,), "w": (1,)})
    with pytest.raises(ConfigError) as caught:
        compare(a, b)
    assert "only left has y, z" in str(caught.value)
    assert "only right has w" in str(caught.value)
    whole, part = measurement("whole", {"x": (1,), "y": (0, 1)}), measurement("part", {"x": (1,), "y": (0,)})
    for pair in ((whole, part), (part, whole)):
        with pytest.raises(ConfigError, match="only whole has y"):
            compare(*pair)
    left, right, missing = stats.common(a, b)
    assert missing == (("y", "z"), ("w",))
    assert left.success == {"x": (1,), "y": (0,)}
    assert compare(left, right).pairs == 2
    with pytest.raises(ConfigError, match="different tasks"):
        compare(a, a.model_copy(update={"stream": "selection"}))
    with pytest.raises(ConfigError, match="training seed"):
        compare([a, a], [a, a, a])
    first, second = (a.model_copy(update={"training_seed": seed}) for seed in (0, 1))
    with pytest.raises(ConfigError, match="different training seeds"):
        compare([first, second], [second, first])
    with pytest.raises(ConfigError, match="nothing was measured"):
        compare(measurement("a", {}), measurement("b", {}))


def test_pass_hat_k_is_unbiased() -> None:
    success = {"a": (1, 1, 1, 0), "b": (0, 0, 0, 0), "c": (1, 1, 1, 1)}
    assert stats.pass_hat_k(success, 1) == pytest.approx((0.75 + 0 + 1) / 3)
    assert stats.pass_hat_k(success, 2) == pytest.approx((0.5 + 0 + 1) / 3)
    assert stats.pass_hat_k(success, 4) == pytest.approx(1 / 3)
    with pytest.raises(ConfigError, match="pass\\^5"):
        stats.pass_hat_k(success, 5)
    n, p, k = 6, 0.7, 3
    mean = sum(comb(n, s) * p**s * (1 - p) ** (n - s) * stats.pass_hat_k({"a": (1,) * s + (0,) * (n - s)}, k) for s in range(n + 1))
    assert mean == pytest.approx(p**k)


def test_sem_and_flip_rate() -> None:
    assert stats.sem([0.2, 0.4, 0.6]) == pytest.approx(0.2 / np.sqrt(3))
    assert stats.sem([0.5]) is None
    assert stats.flip_rate({"a": (1, 0), "b": (1, 1), "c": (0, 0), "d": (0, 1)}) == pytest.approx(0.5)
    assert stats.flip_rate({"a": (1,)}) is None
    n, p = 5, 0.3
    mean = sum(comb(n, s) * p**s * (1 - p) ** (n - s) * (stats.flip_rate({"a": (1,) * s + (0,) * (n - s)}) or 0) for s in range(n + 1))
    assert mean == pytest.approx(2 * p * (1 - p))


def test_success_rate() -> None:
    assert stats.success_rate(measurement("a", {"x": (1, 0), "y": (1,)})) == pytest.approx(0.75)
    with pytest.raises(ConfigError):
        stats.success_rate(measurement("a", {}))


def test_a_five_point_gain_needs_hundreds_of_pairs() -> None:
    """The paper-level check: +5 points at 20 % discordant pairs needs about 490 pairs (normal approximation, one-sided 5 %, power 80 %)."""
    exact = stats.pairs_needed(0.05, discordant_share=0.2)
    assert exact == 527
    assert stats.paired_power(493, delta=0.05, discordant_share=0.2, alpha=0.05) == pytest.approx(0.775, abs=0.01)
    assert stats.pairs_needed(0.05, discordant_share=0.2, two_sided=True) == 658


@pytest.mark.parametrize(("delta", "share", "alpha"), [(0.3, 0.5, 0.05), (0.1, 0.1, 0.05), (0.2, 0.3, 0.0083), (0.5, 0.6, 0.2)])
def test_pairs_needed_is_the_last_tooth(delta: float, share: float, alpha: float) -> None:
    needed = stats.pairs_needed(delta, discordant_share=share, alpha=alpha)
    power = [stats.paired_power(n, delta=delta, discordant_share=share, alpha=alpha) for n in range(1, 3 * needed)]
    assert power[needed - 2] < 0.8
    assert min(power[needed - 1 :]) >= 0.8


def test_power_agrees_with_simulation() -> None:
    rng = np.random.default_rng(1)
    draws = rng.multinomial(80, [0.25, 0.1, 0.65], size=4000)
    table = {(g, s): stats.mcnemar(g, s, alternative="greater") for g, s in {(int(g), int(s)) for g, s, _ in draws}}
    share = np.mean([table[int(g), int(s)] <= 0.05 for g, s, _ in draws])
    assert share == pytest.approx(stats.paired_power(80, delta=0.15, discordant_share=0.35, alpha=0.05), abs=0.025)


def test_impossible_effects_are_refused() -> None:
    for delta, share in [(0.0, 0.2), (0.3, 0.2), (0.1, 1.5)]:
        with pytest.raises(ConfigError, match="impossible effect"):
            stats.pairs_needed(delta, discordant_share=share)


@pytest.mark.parametrize(("trials_new", "trials_base"), [(3, 3), (4, 4), (6, 6), (4, 9), (9, 4)])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_gain_lower_bound_covers(trials_new: int, trials_base: int, alpha: float) -> None:
    """Complete enumeration: at 441 pairs of true rates the bound is above the true gain with probability at most alpha."""
    shape = [
        [stats.gain_lower_bound(x, trials_new, y, trials_base, alpha=alpha) for y in range(trials_base + 1)] for x in range(trials_new + 1)
    ]
    bound = np.array(shape)
    for new, base in itertools.product(np.linspace(0, 1, 21), repeat=2):
        mass = np.outer(
            reference.binom.pmf(range(trials_new + 1), trials_new, new), reference.binom.pmf(range(trials_base + 1), trials_base, base)
        )
        assert mass[bound > new - base + 1e-9].sum() <= alpha + 1e-4
    assert np.all(np.diff(bound, axis=0) >= -1e-6), "more successes of the new arm never lower the bound"
    assert np.all(np.diff(bound, axis=1) <= 1e-6), "more successes of the base never raise it"


def test_gain_lower_bound_examples() -> None:
    assert stats.gain_lower_bound(4, 4, 0, 4) > 0.3
    assert stats.gain_lower_bound(3, 4, 0, 4) > 0
    assert stats.gain_lower_bound(2, 4, 0, 4) < 0
    assert stats.gain_lower_bound(4, 4, 4, 4) < 0
    assert stats.gain_lower_bound(0, 4, 4, 4) == -1.0
    assert stats.gain_lower_bound(6, 6, 1, 6, alpha=0.01) < stats.gain_lower_bound(6, 6, 1, 6, alpha=0.1)
    with pytest.raises(ConfigError, match="impossible counts"):
        stats.gain_lower_bound(5, 4, 0, 4)


def test_gain_over_the_larger_base_covers_without_correction() -> None:
    """The gain over max(kept, resampled): simulated, the bound passes the true gain in at most alpha of the cases."""
    rng, alpha, m = np.random.default_rng(5), 0.1, 6
    for new, kept, resampled in [(0.5, 0.5, 0.5), (0.6, 0.5, 0.1), (0.3, 0.0, 0.3), (0.9, 0.6, 0.6)]:
        draws = rng.binomial(m, [new, kept, resampled], size=(2000, 3))
        bounds = [stats.gain_over_best((int(x), m), [(int(y), m), (int(z), m)], alpha=alpha) for x, y, z in draws]
        over = np.mean(np.array(bounds) > new - max(kept, resampled))
        assert over <= alpha + 0.02
    with pytest.raises(ConfigError, match="baseline"):
        stats.gain_over_best((1, 1), [])


def test_bootstrap_refuses_nothing() -> None:
    for empty in ([], [[]]):
        with pytest.raises(ConfigError, match="at least one"):
            stats.paired_bootstrap(empty)
    assert stats.paired_bootstrap([[1.0] * 20]) == Interval(pytest.approx(1 - 2 * stats.clopper_pearson(0, 20).high), 1.0)
