"""`coevo evolve`: harness search with the weak model executing."""

from __future__ import annotations

from coevo.evolve.ablate import AblationRecord
from coevo.evolve.baselines import BaselineRecord
from coevo.evolve.campaign import Campaign, run_campaign
from coevo.evolve.rounds import SearchRecord
from coevo.evolve.search import SearchTask
from coevo.harness.bundle import HarnessBundle
from coevo.records import Record
from coevo.report.evolution import evolution_lines
from coevo.store.artifacts import StageManifest
from jobs.context import RunContext, StageResult
from jobs.evaluator import ClusterEvaluator, metered
from jobs.proposer import open_proposer

__all__ = ["evolution", "evolved_harness", "main", "search_task"]

STAGE = "evolve"


def search_task(context: RunContext) -> SearchTask:
    """What this run searches."""
    return SearchTask(context.family, context.size, context.config.diversity, context.config.evolve, context.config.seed)


def _inputs(context: RunContext) -> dict[str, str]:
    family = context.family
    return {
        "harness": context.base_harness.hash,
        "model": context.weak_model_id,
        "family": f"{family.name}/{family.world_version}/{context.size}/{context.config.diversity}",
    }


def _settings(context: RunContext) -> dict[str, object]:
    return {"evolve": context.config.evolve.model_dump(exclude={"harness"}), "sampling": context.sampling, "seed": context.config.seed}


def evolution(context: RunContext) -> Campaign | None:
    """What the stored stage holds, or None before it is done or when evolution is off."""
    manifest = context.finished(STAGE, _inputs(context), _settings(context)) if context.config.evolve.enabled else None
    if manifest is None:
        return None
    ablation, baselines = _part(context, manifest, "ablation"), _part(context, manifest, "baselines")
    return Campaign(
        SearchRecord.from_bytes(context.store.get(manifest.output("search").key)),
        AblationRecord.from_bytes(ablation) if ablation is not None else None,
        BaselineRecord.from_bytes(baselines) if baselines is not None else None,
    )


def _part(context: RunContext, manifest: StageManifest, name: str) -> bytes | None:
    """An output that only some searches have."""
    key = next((one.key for one in manifest.outputs if one.key.rpartition("/")[2].startswith(name)), None)
    return None if key is None else context.store.get(key)


def evolved_harness(context: RunContext) -> HarnessBundle:
    """h*: the search's best harness, pruned where that was shown; searches first when that was not done."""
    if not context.config.evolve.enabled:
        return context.base_harness
    return (evolution(context) or _search(context)).best


def _search(context: RunContext) -> Campaign:
    writer = context.writer(STAGE, _inputs(context), _settings(context), expected=0)
    evaluator, task = ClusterEvaluator(context), search_task(context)
    with metered(context, evaluator, task) as paying:
        proposer, keys = open_proposer(context), f"{context.run}/ledger/{STAGE}-baselines"
        done = run_campaign(
            context.base_harness, task, paying=paying, evaluator=evaluator, proposer=proposer, store=context.store, prefix=keys
        )
    writer.expected = evaluator.played
    writer.wrote(evaluator.played - evaluator.owed)
    if evaluator.owed:
        writer.drop("owed episodes, left out of both sides", evaluator.owed)
    parts: dict[str, Record | None] = {"search": done.search, "ablation": done.ablation, "baselines": done.baselines}
    for name, part in parts.items():
        if part is not None:
            writer.write_bytes(f"{name}.json", part.to_bytes())
    writer.spend(usage=evaluator.usage)
    writer.commit()
    return done


def main(context: RunContext) -> StageResult:
    """Search, or read the finished search."""
    evolved_harness(context)
    done = evolution(context)
    if done is None:
        return StageResult(STAGE, ("evolution is off: h* is the base harness",))
    return StageResult(STAGE, evolution_lines(done.search, done.ablation, done.baselines))
