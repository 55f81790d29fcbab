"""`coevo localize`: which turn of each failed episode is to blame, proven by replay."""

from __future__ import annotations

from typing import Any

from coevo.localize.evidence import Depth
from coevo.localize.judge import JudgeSource, JudgeStyle
from coevo.localize.stage import LocalizeStage, read_localization
from coevo.records import Localization
from coevo.store.artifacts import StageManifest, read_records
from jobs.context import RunContext, StageResult
from jobs.evolve import evolved_harness
from jobs.expert_calls import calls_per_failure
from jobs.fanout import close_records, fan_out
from jobs.rollout import mined, rollout_manifest

__all__ = ["localizations", "localize_manifest", "main", "singles_prefix"]

STAGE = "localize"


def _inputs(context: RunContext, wave: int) -> dict[str, str]:
    bundle = evolved_harness(context)
    return {"rollout": rollout_manifest(context, bundle, wave).input_hash, "harness": bundle.hash}


def _settings(context: RunContext) -> dict[str, Any]:
    """With the expert where it is an LLM: its turns are what is tried at a suspect."""
    settings = context.config.localize.wave_settings()
    return settings if context.recipe is None else settings | {"expert": context.expert_identity}


def _judges(context: RunContext) -> tuple[JudgeSource, ...]:
    recipe = context.recipe
    return () if recipe is None else tuple(JudgeSource(recipe, JudgeStyle(style)) for style in context.config.localize.judges)


def singles_prefix(context: RunContext, wave: int = 0) -> str:
    """Where a wave's localizations lie one by one, before compaction."""
    return context.key(STAGE, _inputs(context, wave), _settings(context)).prefix


def localize_manifest(context: RunContext, wave: int = 0) -> StageManifest:
    """Localize what is owed of a wave and close its stage."""
    config, inputs = context.config.localize, _inputs(context, wave)
    done = context.finished(STAGE, inputs, _settings(context))
    if done is not None:
        return done
    bundle = evolved_harness(context)
    failed, _ = mined(context, rollout_manifest(context, bundle, wave))
    failed = failed[: config.failures]
    writer = context.writer(STAGE, inputs, _settings(context), expected=len(failed))
    stage = LocalizeStage(
        agent=context.agent(context.weak_source, bundle),
        store=context.store_source,
        prefix=singles_prefix(context, wave),
        episodes_prefix=context.run,
        candidates=config.candidates,
        continuations=config.continuations,
        alpha=config.alpha,
        expert=context.rewriter,
        depth=None if config.evidence == "none" else Depth(config.evidence),
        judges=_judges(context),
        first_look=config.first_look,
        skip_same_call=config.skip_same_call,
    )
    each = 3 * config.candidates * config.continuations
    report = fan_out(context, stage, failed, bulk=True, episodes_per_item=each, expert_calls_per_item=calls_per_failure(context.config))
    return close_records(context, writer, report, lambda id: read_localization(context.store, stage.prefix, id), name="localizations")


def localizations(context: RunContext, wave: int = 0) -> list[Localization]:
    """A wave's localizations, in the order of its failed episodes."""
    return list(read_records(context.store, localize_manifest(context, wave).outputs, Localization))


def main(context: RunContext) -> StageResult:
    """Localize and count."""
    records = localizations(context)
    found = sum(one.turn is not None for one in records)
    replays = sum(one.continuations for one in records)
    return StageResult(STAGE, (f"{found} of {len(records)} failed episodes localized, {replays} continuations played",))
