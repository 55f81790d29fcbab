"""What the arms of a run are made from: read from its stages, and asked of the expert where a control arm needs more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from coevo.config import Arm
from coevo.dataset.arms import Material, Takeover, own_turns
from coevo.dataset.controls import AskStage, TakeoverStage, at_last, at_random, at_suspect, at_turns, read_asked, takeover_spec
from coevo.harness.bundle import HarnessBundle
from coevo.harness.tools import resolve_tools
from coevo.ports import MapReport
from coevo.records import Correction, Episode
from coevo.rollout import RolloutStage
from jobs.context import RunContext
from jobs.expert_calls import imitated_episodes, turns_to_confirm
from jobs.fanout import check_owed, fan_out
from jobs.rewrite import Wave

__all__ = ["dataset_material"]

_CORRECTED = frozenset(Arm) - {Arm.IMITATION, Arm.IMITATION_FULL}
"""Arms that need the corrections: for their rows, or to know which turns of its own the weak model should see beside them."""


def dataset_material(context: RunContext, bundle: HarnessBundle, mined: Sequence[Wave], prefix: str) -> Material:
    """Everything that `dataset.arms` need, and no more.

    Args:
        context: The run.
        bundle: The evolved harness.
        mined: The waves that failures, successes and corrections come from.
        prefix: Where answers of the expert go.
    """
    arms, config = set(context.config.dataset.arms), context.config
    succeeded = [id for wave in mined for id in wave.succeeded]
    wanted = arms & _CORRECTED or config.dataset.preference_pairs
    records = [one for wave in mined for one in wave.corrections] if wanted else []
    verified = [one for one in records if one.verified]
    examined = [id for wave in mined for id in wave.failed[: config.localize.failures]]
    suspected = examined if Arm.CORRECTION_UNVERIFIED in arms else []
    needed = list(dict.fromkeys([*(one.episode_id for one in verified), *suspected]))
    failed = dict(zip(needed, context.episodes.get_all(needed), strict=True))
    corrected = [failed[one.episode_id] for one in verified]

    def asked(arm: Arm, items: Callable[[], Sequence[str]]) -> list[Correction]:
        return _asked(context, bundle, prefix, arm.value, items()) if arm in arms else []

    material = Material(
        corrections=records,
        failed=failed,
        successes=context.episodes.get_all(succeeded) if arms - {Arm.IMITATION} else (),
        experts=_expert_episodes(context, bundle, [item for wave in mined for item in wave.items])
        if arms & {Arm.IMITATION, Arm.IMITATION_FULL}
        else (),
        unverified=asked(Arm.CORRECTION_UNVERIFIED, lambda: at_suspect(failed[id] for id in suspected)),
        at_random=asked(Arm.RANDOM_TURN, lambda: at_random(corrected, seed=config.seed)),
        at_last=asked(Arm.LAST_TURN, lambda: at_last(corrected)),
        takeovers=_takeovers(context, bundle, verified, failed) if Arm.EXPERT_FINISH in arms else (),
        tools=resolve_tools(bundle.tools, bundle.composites, context.family.tools(context.size)).specs,
    )
    confirmed = turns_to_confirm(config)
    if not confirmed:
        return material
    own = own_turns(material, confirmed, tokenizer=context.tokenizer, chat_format=context.syntax, config=config.dataset, seed=config.seed)
    return replace(material, answered=_asked(context, bundle, prefix, "confirmed", at_turns(own)))


def _asked(context: RunContext, bundle: HarnessBundle, prefix: str, label: str, items: Sequence[str]) -> list[Correction]:
    agent = context.agent(context.weak_source, bundle)
    stage = AskStage(agent, context.store_source, prefix, context.run, label, context.rewriter)
    report = fan_out(context, stage, items, bulk=False, expert_calls_per_item=1)
    return [read_asked(context.store, prefix, item) for item in _settled(context, stage.name, report)]


def _takeovers(
    context: RunContext, bundle: HarnessBundle, verified: Sequence[Correction], failed: dict[str, Episode]
) -> tuple[Takeover, ...]:
    agent = context.agent(context.expert_source(bundle), bundle)
    stage = TakeoverStage(agent, context.store_source, context.run)
    turns = {f"{one.episode_id}@{one.turn}": one for one in verified}
    settled = [turns[item] for item in _settled(context, stage.name, fan_out(context, stage, list(turns), bulk=False))]
    played = context.episodes.get_all([takeover_spec(agent, failed[one.episode_id], one.turn).id for one in settled])
    return tuple(Takeover(episode, one.turn) for episode, one in zip(played, settled, strict=True))


def _expert_episodes(context: RunContext, bundle: HarnessBundle, mined: Sequence[str]) -> list[Episode]:
    """The expert on the rollout's instances, under the same harness."""
    items = mined[: imitated_episodes(context.config)]
    agent = context.agent(context.expert_source(bundle), bundle)
    report = fan_out(context, RolloutStage(agent, context.store_source, context.run, "dataset/expert"), items, bulk=False)
    return context.episodes.get_all([agent.spec(item).id for item in _settled(context, "dataset/expert", report)])


def _settled(context: RunContext, name: str, report: MapReport) -> list[str]:
    """Items with a record; raises when too many have none."""
    check_owed(context, name, report)
    owed = {outcome.item for outcome in report.owed}
    return [outcome.item for outcome in report.outcomes if outcome.item not in owed]
