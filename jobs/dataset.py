"""`coevo dataset`: the rows of every arm, equal in number, checked before anything trains on them."""

from __future__ import annotations

from dataclasses import asdict

import orjson

from coevo.dataset.arms import correction_rows, equalize, imitation_rows
from coevo.dataset.guard import check_rows
from coevo.formats import chat_format
from coevo.harness.bundle import HarnessBundle
from coevo.identity import content_hash
from coevo.models.tokenizer import FolderTokenizer
from coevo.records import Episode, TrainingRow
from coevo.rollout import RolloutStage
from coevo.store.artifacts import StageManifest
from jobs.context import RunContext, StageResult
from jobs.evolve import evolved_harness
from jobs.rewrite import corrections, rewrite_manifest
from jobs.rollout import mined, rollout_items, rollout_manifest

__all__ = ["dataset_facts", "dataset_manifest", "main"]

STAGE = "dataset"
_TURNS_PER_EPISODE = 4
"""Fewest turns an expert episode has: enough episodes are played for the imitation arm's rows."""


def dataset_manifest(context: RunContext) -> StageManifest:
    """Build every arm and close the stage; one Parquet output per arm and `facts.json`."""
    config, bundle = context.config, evolved_harness(context)
    rolled, rewritten = rollout_manifest(context, bundle), rewrite_manifest(context)
    inputs = {"rollout": rolled.input_hash, "rewrite": rewritten.input_hash, "harness": bundle.hash}
    settings = {"dataset": config.dataset.model_dump(), "seed": config.seed, "expert": context.expert_identity}
    done = context.finished(STAGE, inputs, settings)
    if done is not None:
        return done
    arms = equalize(_arms(context, bundle, rolled))
    tokenizer, syntax = FolderTokenizer(context.weak_path), chat_format(config.weak.chat_format)
    facts = {
        arm: asdict(check_rows(rows, tokenizer=tokenizer, chat_format=syntax, max_length=config.train.max_length))
        for arm, rows in arms.items()
    }
    writer = context.writer(STAGE, inputs, settings, expected=sum(len(rows) for rows in arms.values()))
    for arm, rows in arms.items():
        writer.write_records(rows, name=arm)
    writer.write_bytes("facts.json", orjson.dumps(facts, option=orjson.OPT_SORT_KEYS))
    return writer.commit()


def _arms(context: RunContext, bundle: HarnessBundle, rolled: StageManifest) -> dict[str, list[TrainingRow]]:
    config = context.config
    tokenizer, syntax = FolderTokenizer(context.weak_path), chat_format(config.weak.chat_format)
    _, succeeded = mined(context, rolled)
    arms: dict[str, list[TrainingRow]] = {}
    if "correction" in config.dataset.arms:
        records = corrections(context)
        verified = [one.episode_id for one in records if one.verified]
        episodes = dict(zip(verified, context.episodes.get_all(verified), strict=True))
        successes = context.episodes.get_all(succeeded)
        arms["correction"] = correction_rows(
            records, episodes, successes, tokenizer=tokenizer, chat_format=syntax, config=config.dataset, seed=config.seed
        )
    if "imitation" in config.dataset.arms:
        expert = _expert_episodes(context, bundle)
        arms["imitation"] = imitation_rows(expert, tokenizer=tokenizer, chat_format=syntax, config=config.dataset, seed=config.seed)
    return arms


def _expert_episodes(context: RunContext, bundle: HarnessBundle) -> list[Episode]:
    """The expert on the rollout's instances, under the same harness."""
    items = rollout_items(context)[: context.config.dataset.rows // _TURNS_PER_EPISODE]
    agent = context.agent(context.expert_source(bundle), bundle)
    report = context.fan_out(RolloutStage(agent, context.store_source, context.run, "dataset/expert"), items, bulk=False)
    context.check_owed("dataset/expert", report)
    owed = {outcome.item for outcome in report.owed}
    return context.episodes.get_all([agent.spec(item).id for item in items if item not in owed])


def dataset_facts(context: RunContext) -> dict[str, dict[str, object]]:
    """Rows, trained tokens, longest row and sources per arm."""
    facts: dict[str, dict[str, object]] = orjson.loads(context.store.get(dataset_manifest(context).output("facts").key))
    return facts


def data_hash(manifest: StageManifest, arm: str) -> str:
    """Identity of an arm's rows."""
    return content_hash([manifest.input_hash, manifest.output(arm).hash])


def main(context: RunContext) -> StageResult:
    """Build and count."""
    lines = (
        f"{arm}: {fact['rows']} rows, {fact['trained_tokens']} trained tokens, longest {fact['longest']}, from {fact['sources']}"
        for arm, fact in dataset_facts(context).items()
    )
    return StageResult(STAGE, tuple(lines))
