"""`coevo dataset`: the rows of every arm, equal in number, checked before anything trains on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import orjson

from coevo.config import Arm, RunConfig
from coevo.dataset.arms import Material, arm_rows
from coevo.dataset.balance import equalize, token_ratios
from coevo.dataset.export import PREFERENCES, SUPERVISED, preference_rows, supervised_rows
from coevo.dataset.guard import FittedRows, check_rows, fit_rows, require_disjoint
from coevo.errors import ConfigError
from coevo.identity import content_hash
from coevo.records import TrainingRow
from coevo.rollout import parse_item
from coevo.store.artifacts import StageManifest, StageWriter
from coevo.store.tables import arrow_schema
from jobs.context import RunContext, StageResult
from jobs.evolve import evolved_harness
from jobs.material import dataset_material
from jobs.rewrite import Wave, mining_manifest, waves
from jobs.streams import evaluation_tasks

__all__ = ["data_hash", "dataset_facts", "dataset_manifest", "main", "require_arms"]

STAGE = "dataset"


def dataset_manifest(context: RunContext) -> StageManifest:
    """Build every arm and close the stage.

    Outputs: the records of each arm (`<arm>`), the same rows as TRL and `datasets` read them (`<arm>-sft`), preference pairs where they are
    wanted (`preferences`), and `facts.json`.
    """
    require_arms(context.config)
    config, bundle, mined = context.config, evolved_harness(context), waves(context)
    inputs = _inputs(context, mined) | {"harness": bundle.hash}
    settings = {
        "dataset": config.dataset.model_dump(mode="json"),
        "max_length": config.train.max_length,
        "seed": config.seed,
        "expert": context.expert_identity,
    }
    done = context.finished(STAGE, inputs, settings)
    if done is not None:
        return done
    material = dataset_material(context, bundle, mined, context.key(STAGE, inputs, settings).prefix)
    fitted = _fitted(context, material)
    arms = equalize({arm: one.rows for arm, one in fitted.items()}, token_tolerance=config.dataset.token_tolerance)
    facts = _checked(context, arms, {arm: one.cut for arm, one in fitted.items()}, [item for one in mined for item in one.items])
    cut = sum(one.cut for one in fitted.values())
    writer = context.writer(STAGE, inputs, settings, expected=cut + sum(len(rows) for rows in arms.values()))
    if cut:
        writer.drop("longer than train.max_length", cut)
    _write(writer, context, arms, material)
    writer.write_bytes("facts.json", orjson.dumps(facts, option=orjson.OPT_SORT_KEYS))
    return writer.commit()


def _inputs(context: RunContext, mined: tuple[Wave, ...]) -> dict[str, str]:
    if context.config.localize.rows:
        return {"mining": mining_manifest(context, mined).input_hash}
    rolled, _, rewritten = mined[0].manifests
    return {"rollout": rolled.input_hash, "rewrite": rewritten.input_hash}


def _fitted(context: RunContext, material: Material) -> dict[Arm, FittedRows]:
    config = context.config
    tokenizer, syntax = context.tokenizer, context.syntax
    fitted = {}
    for arm in config.dataset.arms:
        rows = arm_rows(arm, material, tokenizer=tokenizer, chat_format=syntax, config=config.dataset, seed=config.seed)
        fitted[arm] = fit_rows(rows, arm=arm, max_length=config.train.max_length)
    return fitted


def _checked(
    context: RunContext, arms: Mapping[str, list[TrainingRow]], cut: Mapping[Arm, int], mined: Sequence[str]
) -> dict[str, dict[str, object]]:
    """Facts of every arm; raises for a row that must not be trained on."""
    config, evaluated = context.config, evaluation_tasks(context)
    require_disjoint([parse_item(item)[0].key for item in mined], evaluated)
    tokenizer, syntax = context.tokenizer, context.syntax
    ratios, facts = token_ratios(arms), {}
    for arm, rows in arms.items():
        checked = check_rows(rows, tokenizer=tokenizer, chat_format=syntax, max_length=config.train.max_length, forbidden_tasks=evaluated)
        facts[str(arm)] = asdict(checked.beside(cut=cut[Arm(arm)], token_ratio=ratios[arm]))
    return facts


def _write(writer: StageWriter, context: RunContext, arms: Mapping[str, list[TrainingRow]], material: Material) -> None:
    for arm, rows in arms.items():
        writer.write_records(rows, name=str(arm))
        writer.write_rows(supervised_rows(rows), arrow_schema(SUPERVISED), name=f"{arm}-sft", counted=False)
    if context.config.dataset.preference_pairs:
        pairs = preference_rows(
            material.corrections,
            material.failed,
            tokenizer=context.tokenizer,
            chat_format=context.syntax,
            selection=context.config.dataset.selection,
        )
        writer.write_rows(pairs, arrow_schema(PREFERENCES), name="preferences", counted=False)


def require_arms(config: RunConfig) -> None:
    """Raises `ConfigError` where a run without arms is asked to learn."""
    if not config.dataset.arms:
        fix = "name an arm; without one coevo run and coevo evaluate measure the harness alone"
        raise ConfigError("no arms to learn from", seen="dataset.arms: []", fix=fix)


def dataset_facts(context: RunContext) -> dict[str, dict[str, object]]:
    """Rows, trained tokens, longest row and sources per arm."""
    facts: dict[str, dict[str, object]] = orjson.loads(context.store.get(dataset_manifest(context).output("facts").key))
    return facts


def data_hash(manifest: StageManifest, arm: str) -> str:
    """Identity of an arm's rows."""
    return content_hash([manifest.input_hash, manifest.output(arm).hash])


def main(context: RunContext) -> StageResult:
    """Build and count."""
    return StageResult(STAGE, tuple(_line(context, arm, fact) for arm, fact in dataset_facts(context).items()))


def _line(context: RunContext, arm: str, fact: Mapping[str, object]) -> str:
    ratio, tolerance = fact["token_ratio"], context.config.dataset.token_tolerance
    outside = isinstance(ratio, float) and abs(ratio - 1) > tolerance
    told = f" ({ratio:.2f} of the first arm's: outside dataset.token_tolerance={tolerance:g})" if outside else ""
    cut = f", {fact['cut']} left out as too long" if fact["cut"] else ""
    return (
        f"{arm}: {fact['rows']} rows, {fact['trained_tokens']} trained tokens{told}, longest {fact['longest']}{cut}, from {fact['sources']}"
    )
