"""`coevo rewrite`: the expert rewrites the localized turn; a rewrite counts when replay verifies its gain."""

from __future__ import annotations

from coevo.records import Correction
from coevo.rewrite.stage import RewriteStage, read_correction
from coevo.store.artifacts import StageManifest, read_records
from jobs.context import RunContext, StageResult
from jobs.evolve import evolved_harness
from jobs.localize import localizations, localize_manifest, singles_prefix

__all__ = ["corrections", "main", "rewrite_manifest"]

STAGE = "rewrite"


def rewrite_manifest(context: RunContext) -> StageManifest:
    """Rewrite what is owed and close the stage."""
    config, localized = context.config, localize_manifest(context)
    inputs = {"localize": localized.input_hash}
    settings = {"rewrite": config.rewrite.settings(), "localize": config.localize.settings()}
    done = context.finished(STAGE, inputs, settings)
    if done is not None:
        return done
    ids = [one.episode_id for one in localizations(context) if one.turn is not None]
    writer = context.writer(STAGE, inputs, settings, expected=len(ids))
    stage = RewriteStage(
        agent=context.agent(context.weak_source, evolved_harness(context)),
        store=context.store_source,
        prefix=context.key(STAGE, inputs, settings).prefix,
        localize_prefix=singles_prefix(context),
        episodes_prefix=context.run,
        candidates=config.rewrite.candidates,
        continuations=config.localize.continuations,
        alpha=config.localize.alpha,
        expert=context.rewriter,
    )
    each = config.rewrite.candidates * config.localize.continuations
    report = context.fan_out(stage, ids, bulk=True, episodes_per_item=each, expert_calls_per_item=config.rewrite.candidates)
    return context.close_records(writer, report, lambda id: read_correction(context.store, stage.prefix, id), name="corrections")


def corrections(context: RunContext) -> list[Correction]:
    """All corrections, verified or not."""
    return list(read_records(context.store, rewrite_manifest(context).outputs, Correction))


def main(context: RunContext) -> StageResult:
    """Rewrite and count."""
    records = corrections(context)
    verified = sum(one.verified for one in records)
    offered = sum(len(one.candidates) for one in records)
    return StageResult(STAGE, (f"{verified} of {len(records)} localized turns have a verified rewrite, {offered} rewrites tried",))
