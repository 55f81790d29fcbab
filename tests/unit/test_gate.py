"""The gate.

1. A whole search of null edits accepts anything with probability at most 0.10, over all gates and restarts (H7, H8, H9).
2. A real gain is accepted with the power that theory says.
3. Selection instances are fresh for every gate, and the same again for the same gate.
4. A significant candidate is still refused when it loses what was solved, costs too much, or solves the task by itself.
5. Verdicts have three values and keep every number.
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo.errors import ConfigError
from coevo.evaluate.stats import mcnemar, paired_power
from coevo.evolve.gate import AlphaSpending, Arm, GateConfig, GateDecision, NullCheck, PairedGate, SelectionStream, plan_gate
from coevo.records import Verdict

CLEAN = NullCheck(0, 20)


def arm(name: str, outcomes: Sequence[int], *, tokens: float | None = None) -> Arm:
    success = {f"i{n:04d}": (int(x),) for n, x in enumerate(outcomes)}
    return Arm(name, success, {} if tokens is None else dict.fromkeys(success, (tokens,)))


def arms(both: int, gains: int, losses: int, neither: int) -> tuple[Arm, Arm]:
    old = [1] * both + [0] * gains + [1] * losses + [0] * neither
    new = [1] * both + [1] * gains + [0] * losses + [0] * neither
    return arm("old", old), arm("new", new)


def decide(counts: tuple[int, int, int, int], *, alpha: float = 0.05, null: NullCheck | None = CLEAN, **changes: object) -> GateDecision:
    config = GateConfig.model_validate({"instances": sum(counts), **changes})
    old, new = arms(*counts)
    return PairedGate(config).decide(gate_id="r0/g0", alpha=alpha, incumbent=old, candidate=new, null=null)


@given(st.floats(0.01, 0.5), st.integers(1, 6), st.one_of(st.none(), st.integers(1, 30)))
def test_alphas_sum_to_the_total(total: float, restarts: int, planned: int | None) -> None:
    spending = AlphaSpending(total, restarts, planned)
    gates = planned if planned is not None else 500
    spent = math.fsum(spending.alpha(restart=r, gate=g) for r in range(restarts) for g in range(gates))
    assert spent <= total * (1 + 1e-12)
    assert spent >= total * (0.998 if planned is None else 1 - 1e-12)


def test_gates_outside_the_plan_have_no_alpha() -> None:
    spending = AlphaSpending(0.1, restarts=2, planned=3)
    for restart, gate in [(2, 0), (-1, 0), (0, 3), (0, -1)]:
        with pytest.raises(ConfigError, match="outside the plan"):
            spending.alpha(restart=restart, gate=gate)
    assert AlphaSpending.of(GateConfig(restarts=2, gates_planned=3)) == spending


@pytest.mark.parametrize("planned", [4, None])
def test_null_searches_accept_nothing_in_nine_of_ten(planned: int | None) -> None:
    """H7-H9: 2,000 simulated searches of 3 restarts x 4 null edits on instances of unequal difficulty."""
    searches, restarts, gates, instances = 2000, 3, 4, 60
    spending = AlphaSpending(0.10, restarts, planned)
    rng = np.random.default_rng(11)
    rate = rng.beta(0.6, 0.9, size=(searches, restarts, gates, instances))
    old, new = rng.random(rate.shape) < rate, rng.random(rate.shape) < rate
    gains, losses = (new & ~old).sum(axis=-1), (old & ~new).sum(axis=-1)
    p_value = {(g, s): mcnemar(g, s, alternative="greater") for g in range(instances + 1) for s in range(instances + 1 - g)}
    accepted = np.zeros(searches, dtype=bool)
    for restart, gate in itertools.product(range(restarts), range(gates)):
        alpha = spending.alpha(restart=restart, gate=gate)
        pairs = zip(gains[:, restart, gate], losses[:, restart, gate], strict=True)
        accepted |= np.array([p_value[int(g), int(s)] <= alpha for g, s in pairs])
    assert accepted.mean() <= 0.10 + 3 * math.sqrt(0.10 * 0.90 / searches)
    for index in range(40):  # the simulation above decides as the gate does
        position = (index, index % restarts, index % gates)
        config = GateConfig(instances=instances, max_lost_share=1.0)
        alpha = spending.alpha(restart=position[1], gate=position[2])
        pair = (arm("old", old[position]), arm("new", new[position]))
        decision = PairedGate(config).decide(gate_id="g", alpha=alpha, incumbent=pair[0], candidate=pair[1], null=CLEAN)
        assert decision.accepted == (p_value[int(gains[position]), int(losses[position])] <= alpha)


def test_an_uncorrected_gate_would_fail_the_null_simulation() -> None:
    """The simulation can fail: 12 null edits at 0.10 each accept something in more than a third of the searches."""
    rng = np.random.default_rng(12)
    rate = rng.beta(0.6, 0.9, size=(500, 12, 60))
    old, new = rng.random(rate.shape) < rate, rng.random(rate.shape) < rate
    gains, losses = (new & ~old).sum(axis=-1), (old & ~new).sum(axis=-1)
    hits = [
        any(mcnemar(int(g), int(s), alternative="greater") <= 0.10 for g, s in zip(*row, strict=True))
        for row in zip(gains, losses, strict=True)
    ]
    assert np.mean(hits) > 0.35


def test_a_real_gain_is_accepted_with_the_power_of_theory() -> None:
    """+10 points at 24 % discordant pairs, 240 instances, alpha 0.0083 (12 gates)."""
    alpha = AlphaSpending(0.10, 3, 4).alpha(restart=0, gate=0)
    gate = PairedGate(GateConfig(instances=240, null_check=False))
    rng, accepted, runs = np.random.default_rng(2), 0, 400
    for _ in range(runs):
        gains, losses, both, neither = rng.multinomial(240, [0.17, 0.07, 0.4, 0.36])
        old, new = arms(int(both), int(gains), int(losses), int(neither))
        accepted += gate.decide(gate_id="g", alpha=alpha, incumbent=old, candidate=new).accepted
    power = paired_power(240, delta=0.10, discordant_share=0.24, alpha=alpha)
    assert 0.5 < power < 0.99
    assert accepted / runs == pytest.approx(power, abs=3 * math.sqrt(power * (1 - power) / runs))


def test_three_verdicts_and_all_numbers() -> None:
    """H9: inconclusive is an answer."""
    won = decide((20, 15, 2, 27), alpha=0.01)
    assert (won.accepted, won.verdict, won.refusals) == (True, Verdict.SUPPORTED, ())
    assert (won.gains, won.losses, won.ties, won.instances, won.repeats) == (15, 2, 47, 64, 1)
    assert won.p_value == pytest.approx(mcnemar(15, 2, alternative="greater"))
    assert won.p_worse == pytest.approx(mcnemar(15, 2, alternative="less"))
    assert won.delta == pytest.approx(13 / 64)
    assert won.candidate_rate - won.incumbent_rate == pytest.approx(won.delta)
    assert (won.null_successes, won.null_episodes, won.alpha) == (0, 20, 0.01)
    lost = decide((20, 2, 15, 27), alpha=0.01)
    assert (lost.accepted, lost.verdict) == (False, Verdict.REFUTED)
    unclear = decide((20, 8, 5, 31), alpha=0.01)
    assert (unclear.accepted, unclear.verdict) == (False, Verdict.INCONCLUSIVE)
    assert "not shown to be better" in unclear.refusals[0]
    assert GateDecision.from_bytes(won.to_bytes()) == won


def test_what_was_solved_must_stay_solved() -> None:
    decision = decide((10, 45, 20, 25))
    assert decision.verdict is Verdict.SUPPORTED
    assert not decision.accepted
    assert decision.lost_share == 0.2
    assert 0.25 < decision.lost_upper < 0.3
    assert "may lose" in decision.refusals[0]
    assert decide((10, 45, 20, 25), max_lost_share=0.3).accepted


def test_cost_must_stay_in_bounds() -> None:
    gate = PairedGate(GateConfig(instances=40, max_token_ratio=1.5))
    old = arm("old", [0] * 40, tokens=100)
    cheap, dear = arm("new", [1] * 20 + [0] * 20, tokens=140), arm("new", [1] * 20 + [0] * 20, tokens=160)
    good = gate.decide(gate_id="g", alpha=0.05, incumbent=old, candidate=cheap, null=CLEAN)
    assert good.accepted
    assert (good.token_ratio, good.token_ratio_upper) == (pytest.approx(1.4), pytest.approx(1.4))
    bad = gate.decide(gate_id="g", alpha=0.05, incumbent=old, candidate=dear, null=CLEAN)
    assert (bad.accepted, bad.verdict) == (False, Verdict.SUPPORTED)
    assert "tokens" in bad.refusals[0]


def test_a_harness_that_solves_the_task_by_itself_is_refused() -> None:
    """A null model under any accepted harness scores about 0."""
    assert decide((0, 40, 0, 24), null=NullCheck(1, 20)).accepted
    decision = decide((0, 40, 0, 24), null=NullCheck(9, 20))
    assert not decision.accepted
    assert "by itself" in decision.refusals[0]
    with pytest.raises(ConfigError, match="null model"):
        decide((0, 40, 0, 24), null=None)
    assert decide((0, 40, 0, 24), null=None, null_check=False).accepted


def test_minimum_gain() -> None:
    assert not decide((100, 30, 10, 260), min_gain=0.1).accepted
    assert decide((100, 30, 10, 260), min_gain=0.04).accepted


def test_decisions_repeat_exactly() -> None:
    """A resumed run repeats the same decision, bootstrap included."""
    gate = pickle.loads(pickle.dumps(PairedGate(GateConfig(instances=30, null_check=False))))
    rng = np.random.default_rng(0)
    tokens = [{f"i{n:04d}": (float(t),) for n, t in enumerate(rng.integers(50, 500, 30))} for _ in range(2)]
    old, new = Arm("old", arm("", [0] * 30).success, tokens[0]), Arm("new", arm("", [1] * 15 + [0] * 15).success, tokens[1])
    first = gate.decide(gate_id="g", alpha=0.05, incumbent=old, candidate=new)
    assert gate.decide(gate_id="g", alpha=0.05, incumbent=old, candidate=new) == first
    assert first.token_ratio_upper is not None
    assert first.token_ratio is not None
    assert first.token_ratio_upper > first.token_ratio


def test_unequal_arms_are_refused() -> None:
    gate = PairedGate(GateConfig(instances=20, null_check=False))

    def run(old: Arm, new: Arm) -> GateDecision:
        return gate.decide(gate_id="g", alpha=0.05, incumbent=old, candidate=new)

    with pytest.raises(ConfigError, match="same instances") as caught:
        run(arm("old", [1] * 20), arm("new", [1] * 19))
    assert "i0019" in str(caught.value)
    with pytest.raises(ConfigError, match="fixed n"):
        run(arm("old", [1] * 18), arm("new", [1] * 18))
    assert run(arm("old", [1] * 19), arm("new", [1] * 19)).instances == 19
    with pytest.raises(ConfigError, match="fixed n"):
        run(Arm("old", {f"i{n}": (1, 0) for n in range(20)}), Arm("new", {f"i{n}": (1, 0) for n in range(20)}))
    with pytest.raises(ConfigError, match="tokens"):
        run(arm("old", [1] * 20, tokens=1), arm("new", [1] * 20))


def test_repeats_keep_the_instance_as_unit() -> None:
    gate = PairedGate(GateConfig(instances=6, repeats=4, null_check=False))
    old, new = Arm("old", {f"i{n}": (0, 0, 0, 0) for n in range(6)}), Arm("new", {f"i{n}": (1, 1, 1, 1) for n in range(6)})
    decision = gate.decide(gate_id="g", alpha=0.05, incumbent=old, candidate=new)
    assert decision.p_value == pytest.approx(0.5**6)
    assert decision.gains == 24


def test_draws_are_fresh_and_repeatable() -> None:
    """H7, I8: no selection instance serves two gates; the same gate sees the same ones after a restart."""
    stream = SelectionStream(seed=0)
    ids = [f"r{r}/g{g}" for r in range(5) for g in range(40)]
    draws = {gate: stream.draw(gate, count=64) for gate in ids}
    assert len(set(itertools.chain.from_iterable(draws.values()))) == 64 * len(ids)
    assert SelectionStream(seed=0).draw("r3/g7", count=64) == draws["r3/g7"]
    assert stream.draw("r3/g7", count=64) == draws["r3/g7"]
    assert stream.draw("r3/g7", count=100)[:64] == draws["r3/g7"]
    assert set(SelectionStream(seed=1).draw("r3/g7", count=64)).isdisjoint(draws["r3/g7"])
    assert stream.draws == tuple(ids)
    assert all(0 <= seed < 2**63 for seed in draws["r0/g0"])
    for count in (0, 2**20 + 1):
        with pytest.raises(ConfigError, match="draw"):
            stream.draw("r0/g0", count=count)


def test_plan_prints_the_arithmetic() -> None:
    plan = plan_gate(GateConfig(instances=64, restarts=3, gates_planned=4), target_gain=0.3, discordant_share=0.4)
    assert (plan.gates, plan.episodes_per_gate, plan.episodes_total) == (12, 128, 1536)
    assert plan.alpha == pytest.approx(0.1 / 12)
    assert plan.power > 0.8
    assert plan.pairs_for_power < 64
    small = plan_gate(GateConfig(instances=64), target_gain=0.05, discordant_share=0.2)
    assert (small.gates, small.episodes_total) == (None, None)
    assert small.power < 0.2
    assert small.pairs_for_power > 400
