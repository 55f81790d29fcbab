"""Promises:

1. The plan is a pure function of the configuration, and its counts follow from it.
2. A verb's plan holds its own stage and what that stage needs, nothing else.
3. It states the power of the gate, and how many pairs the target power takes.
4. It says where a budget is smaller than the plan, and where a search would be refused, in the search's own figures.
5. The shipped configurations are valid and plan without a warning about the quickstart's gate.
6. What an LLM expert is asked is counted stage by stage, and priced; the reference policy is counted and costs nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from coevo.config import load_config, parse_config
from coevo.errors import ConfigError
from jobs.cli import STAGES
from jobs.estimates import EPISODES
from jobs.expert import call_estimate
from jobs.plan import Plan, make_plan
from jobs.plan_stages import CONTINUED_SHARE, StagePlan

CONFIGS = Path(__file__).resolve().parents[2] / "jobs" / "configs"
SMALL = {
    "name": "small",
    "evolve": {"generations": 2, "proposals": 3, "search_instances": 10, "gate_instances": 40},
    "localize": {"rollouts": 50, "failures": 20, "candidates": 2, "continuations": 4},
    "rewrite": {"candidates": 3},
    "dataset": {"rows": 32},
    "train": {"global_batch": 6, "workers": 2, "epochs": 2, "seeds": [0, 1]},
    "evaluate": {"instances": 30, "repeats": 2, "transfer_instances": 25},
}


def stages(plan: Plan) -> dict[str, StagePlan]:
    return {one.stage: one for one in plan.stages}


def test_counts_follow_from_the_configuration() -> None:
    """Worked by hand from SMALL."""
    plan = stages(make_plan(parse_config(SMALL)))
    assert plan["evolve"].episodes == 2 * (10 * (1 + 3) + 2 * 40 + 20) + 2 * 120
    assert (plan["transfer"].episodes, plan["transfer"].expert_episodes) == (50, 50)
    assert plan["rollout"].episodes == 50
    assert plan["localize"].continuations == 20 * 2 * 3 * 4
    assert plan["rewrite"].continuations == 20 * 3 * 4
    assert (plan["dataset"].rows, plan["dataset"].expert_episodes) == (64, 8)
    assert plan["train"].steps == 4 * 6 * 2
    assert plan["train"].rows == 4 * 32 * 2
    assert (plan["evaluate"].episodes, plan["evaluate"].expert_episodes) == ((2 + 8) * 60, 120)


def test_a_grid_of_learning_rates_is_counted_once() -> None:
    """Two arms at three rates; the chosen one of each arm is not trained again, so `train` has the second seed alone."""
    grid = {**SMALL, "train": {**SMALL["train"], "learning_rates": [1e-4, 3e-4, 1e-3]}, "evaluate": {"tuning_instances": 50}}
    plan = stages(make_plan(parse_config(grid)))
    assert plan["tune"].episodes == 2 * 3 * 50
    assert plan["tune"].steps == 2 * 3 * 6 * 2
    assert plan["train"].steps == 2 * 6 * 2
    assert "tune" not in stages(make_plan(parse_config(SMALL)))


def test_arms_that_are_not_wanted_under_h0_are_not_counted_there() -> None:
    """Base and imitation under both harnesses, correction under h* alone, two seeds each."""
    some = {**SMALL, "evaluate": {"instances": 30, "under_h0": ["imitation"]}}
    assert stages(make_plan(parse_config(some)))["evaluate"].episodes == (2 + 2 * 2 + 2) * 30


def test_tokens_are_counts_times_the_stated_constants() -> None:
    config = parse_config({**SMALL, "size": "standard"})
    plan = make_plan(config)
    one = EPISODES[plan.size]
    episodes = sum(stage.episodes + CONTINUED_SHARE * stage.continuations for stage in plan.stages)
    assert plan.tokens == pytest.approx(episodes * (one.prompt_tokens + one.completion_tokens), rel=1e-6)
    assert plan.tokens > make_plan(parse_config(SMALL)).tokens
    assert f"{one.prompt_tokens:,.0f} prompt" in "\n".join(plan.lines())


@pytest.mark.parametrize("verb", list(STAGES))
def test_a_verb_plans_its_stage_and_its_needs(verb: str) -> None:
    plan = make_plan(parse_config(SMALL), verb=verb)
    names = [one.stage for one in plan.stages]
    if verb == "report":
        assert names == []
        assert "reads the store only" in plan.lines()[0]
    elif verb == "run":
        assert names == [stage for stage in STAGES if stage not in {"run", "tune", "report"}]
    elif verb == "tune":
        assert names[-1] == "dataset", "no grid, nothing to choose from"
    else:
        assert names[-1] == verb
        assert ("transfer" in names) == (verb == "transfer")
    assert plan == make_plan(parse_config(SMALL), verb=verb)


def test_the_gate_states_its_power_and_what_the_target_needs() -> None:
    """H7: the size of a gate is chosen by power, not by habit."""
    small = make_plan(parse_config(SMALL))
    assert small.gate is not None
    assert small.gate.power < 0.5
    assert any("gate_instances" in text for text in small.warnings)
    enough = make_plan(parse_config({**SMALL, "evolve": {"generations": 2, "gate_instances": small.gate.pairs_for_power}}))
    assert enough.gate is not None
    assert enough.gate.power >= 0.8
    assert enough.warnings == ()
    assert f"power {enough.gate.power:.2f}" in "\n".join(enough.lines())


def test_without_evolution_there_is_no_gate() -> None:
    plan = make_plan(parse_config({**SMALL, "evolve": {"enabled": False}}))
    assert plan.gate is None
    assert "evolve" not in stages(plan)


def test_a_budget_below_the_plan_is_named() -> None:
    """I10: the user learns before the start that the run may stop early."""
    plan = make_plan(parse_config({**SMALL, "budget": {"episodes": 100, "tokens": 1000}}))
    assert sum("the budget allows" in text for text in plan.warnings) == 2
    roomy = make_plan(parse_config({**SMALL, "budget": {"episodes": 10**6, "tokens": 10**9}}))
    assert not any("budget" in text for text in roomy.warnings)


def test_a_managed_search_counts_all_of_its_restarts() -> None:
    """H4: what `--dry-run` prints is what the search is held to."""
    managed = {**SMALL["evolve"], "restarts": 3, "parents": "pareto", "confirm_instances": 24}  # type: ignore[dict-item]
    first, closing = 10 * (1 + 1 + 3) + 2 * 40 + 20, 3 * 40 + 2 * 24
    least, most = 3 * first + closing, 6 * first + 3 * 10 + closing
    told = f"search: at least {least:,} episodes (3 x {first:,} to the first verdict of each restart + {closing:,} held back for its end)"
    assert f"{told}, at most {most:,}" in make_plan(parse_config({**SMALL, "evolve": managed})).lines()
    said = {}
    for episodes in (least - 1, least, most):
        config = parse_config({**SMALL, "evolve": {**managed, "budget": {"episodes": episodes}}})
        said[episodes] = [text for text in make_plan(config).warnings if "evolve.budget" in text]
    (refused,), (early,) = said[least - 1], said[least]
    assert f"episodes: needs {least} of {least - 1}" in refused
    assert "will be refused" in refused
    assert f"episodes ({most} of {least})" in early
    assert said[most] == []


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(ConfigError, match="payroll"):
        make_plan(parse_config({**SMALL, "family": "payrol"}))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configurations_are_valid(path: Path) -> None:
    config = load_config(path)
    plan = make_plan(config)
    assert plan.lines()
    if path.stem == "quickstart":
        assert plan.warnings == ()


def test_hours_and_dollars_follow_from_speeds_and_prices() -> None:
    """Tokens / tokens per second x the share of a node; None wherever one of them is not configured."""
    pools = {
        "weak": {"instance_type": "g6.12xlarge", "market": "spot", "num_gpus": 2, "tokens_per_s": 1000.0},
        "train": {"instance_type": "p5.48xlarge", "num_gpus": 8, "tokens_per_s": 4000.0},
    }
    config = parse_config({**SMALL, "cluster": {"pools": pools}, "budget": {"usd": 0.01}})
    plan = make_plan(config)
    costs = {one.stage: one for one in plan.costs}
    rollout = stages(plan)["rollout"].tokens(plan.size) / 1000 / 3600
    assert costs["rollout"].process_h == pytest.approx(rollout)
    assert costs["rollout"].gpu_h == pytest.approx(2 * rollout)
    assert costs["rollout"].usd == pytest.approx(rollout * 2.0 / 2)
    one = EPISODES[plan.size]
    trained = 256 * (one.prompt_tokens + one.completion_tokens) / one.turns / 4000 / 3600
    assert costs["train"].usd == pytest.approx(55 * trained)
    assert plan.cost_usd == pytest.approx(sum(cost.usd for cost in plan.costs if cost.usd is not None))
    text = "\n".join(plan.lines())
    assert "GPU hours" in text
    assert "check yours" in text
    assert "the run may stop early" in text


ASKED = {
    **SMALL,
    "evolve": {**SMALL["evolve"], "proposer": {"kind": "llm", "agents": 2, "max_turns": 9}},  # type: ignore[dict-item]
    "localize": {**SMALL["localize"], "judges": ["structured", "step_by_step"]},  # type: ignore[dict-item]
    "dataset": {"rows": 32, "self_success": "confirmed", "arms": ["correction", "random_turn", "last_turn", "expert_finish", "imitation"]},
    "expert": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "gpt-5-mini", "max_tokens": 500},
}


def test_questions_to_the_expert_are_counted() -> None:
    """Worked by hand: two generations of two agents with 9 turns each; two suspects and 1 + 11 questions of judges a failure, 3 rewrites
    each, a turn for two of the arms, 16 own turns and half as many again; the expert plays 32 / 4 episodes for imitation and finishes 20.
    """
    plan = make_plan(parse_config(ASKED))
    asked = {name: one.asked for name, one in stages(plan).items() if one.asked}
    assert asked == {"evolve": 2 * 2 * 9, "localize": 20 * (2 + 1 + 11), "rewrite": 20 * 3, "dataset": 2 * 20 + 24}
    for choice, own in (("confirmed_random", 24), ("contrast", 0)):
        other = make_plan(parse_config({**ASKED, "dataset": {**ASKED["dataset"], "self_success": choice}}))  # type: ignore[dict-item]
        assert stages(other)["dataset"].asked == 2 * 20 + own
    dataset = stages(plan)["dataset"]
    assert dataset.expert_episodes == 8 + 20
    assert dataset.expert_calls(plan.size) == 2 * 20 + 24 + 11 * 28


def test_questions_to_the_expert_cost_dollars() -> None:
    """By the sheet: 0.25 and 2 dollars a million tokens; each question is taken for 1,382 prompt tokens and the longest answer."""
    free = {**ASKED, "cluster": {"pools": {"weak": {"instance_type": "owned", "tokens_per_s": 1.0}}}}
    plan = make_plan(parse_config(free))
    costs = {one.stage: one for one in plan.costs}
    assert costs["rewrite"].usd == pytest.approx(20 * 3 * (1_382 * 0.25 + 500 * 2.0) / 1e6)
    assert costs["rollout"].usd == 0
    calls = sum(one.expert_calls(plan.size) for one in plan.stages)
    assert f"the expert: at most {calls:,} calls, estimated at 1,882 tokens each" in "\n".join(plan.lines())
    unknown = make_plan(parse_config({**free, "expert": {**ASKED["expert"], "model": "unheard-of"}}))  # type: ignore[dict-item]
    assert {one.stage: one.usd for one in unknown.costs}["rewrite"] is None
    assert "no price known: set expert.price" in "\n".join(unknown.lines())
    reference = make_plan(parse_config({**free, "expert": {"kind": "reference"}, "localize": SMALL["localize"], "evolve": SMALL["evolve"]}))
    assert "the expert: at most" not in "\n".join(reference.lines())
    assert {one.stage: one.usd for one in reference.costs}["rewrite"] == 0


def test_an_expert_of_the_run_s_own_takes_hours_of_its_engines() -> None:
    """Its tokens by its own speed; without one the key is named."""
    own = {"kind": "pool", "model": "mini"}
    placed = {"instance_type": "g6.xlarge", "num_gpus": 1, "tokens_per_s": 100.0}
    free = {"instance_type": "owned", "tokens_per_s": 1e12}
    config = {**ASKED, "expert": own, "cluster": {"pools": {"weak": free, "expert": placed}}}
    plan = make_plan(parse_config(config))
    rewrite = {one.stage: one for one in plan.costs}["rewrite"]
    assert rewrite.process_h == pytest.approx(20 * 3 * call_estimate(parse_config(config)).tokens / 100 / 3600, rel=1e-3)
    assert rewrite.usd == pytest.approx(rewrite.process_h * 0.80, rel=1e-3)
    unset = make_plan(parse_config({**config, "cluster": {"pools": {"weak": free}}}))
    assert "cluster.pools.expert.tokens_per_s" in "\n".join(unset.lines())


def test_without_prices_nothing_is_estimated_and_the_keys_are_named() -> None:
    plan = make_plan(parse_config(SMALL))
    assert plan.cost_usd is None
    assert "set cluster.pools.weak.tokens_per_s" in "\n".join(plan.lines())
