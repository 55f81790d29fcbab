"""`coevo evolve`: harness search with the weak model executing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coevo.evolve.catalogue import CatalogueProposer
from coevo.evolve.search import SearchRecord, SearchTask, search
from coevo.harness.bundle import HarnessBundle
from coevo.mini.tokenizer import CHAIN_NAMES
from coevo.models.null import NullSource
from coevo.ports import ModelSource
from coevo.records import Episode, UsageRecord
from coevo.rollout import RolloutStage
from jobs.context import RunContext, StageResult

__all__ = ["evolved_harness", "main", "search_record"]

STAGE = "evolve"


@dataclass(slots=True)
class ClusterEvaluator:
    """Plays through the small-batch executor; paid episodes are committed one by one, so nothing is played twice."""

    context: RunContext
    owed: int = 0
    played: int = 0
    usage: list[UsageRecord] = field(default_factory=list)

    def play(self, bundle: HarnessBundle, items: Sequence[str], *, purpose: str) -> Mapping[str, Episode]:
        """Committed episodes by item."""
        return self._play(self.context.weak_source, bundle, items, purpose)

    def play_null(self, bundle: HarnessBundle, items: Sequence[str]) -> Mapping[str, Episode]:
        """The same for the model that knows nothing."""
        return self._play(NullSource(self.context.config.weak.chat_format), bundle, items, "null")

    def _play(self, model: ModelSource, bundle: HarnessBundle, items: Sequence[str], purpose: str) -> Mapping[str, Episode]:
        context = self.context
        agent = context.agent(model, bundle)
        stage = RolloutStage(agent, context.store_source, context.run, f"evolve/{purpose}")
        report = context.fan_out(stage, items, bulk=False)
        self.owed += len(report.owed)
        owed = {outcome.item for outcome in report.owed}
        done = [item for item in items if item not in owed]
        episodes = dict(zip(done, context.episodes.get_all([agent.spec(item).id for item in done]), strict=True))
        self.played += len(items)
        self.usage += [one.usage for one in episodes.values()]
        return episodes


def _inputs(context: RunContext) -> dict[str, str]:
    family = context.family
    return {
        "harness": context.base_harness.hash,
        "model": context.weak_model_id,
        "family": f"{family.name}/{family.world_version}/{context.size}/{context.config.diversity}",
    }


def _settings(context: RunContext) -> dict[str, object]:
    return {"evolve": context.config.evolve.model_dump(exclude={"harness"}), "sampling": context.sampling, "seed": context.config.seed}


def search_record(context: RunContext) -> SearchRecord | None:
    """The stored search, or None before it is done or when evolution is off."""
    manifest = context.finished(STAGE, _inputs(context), _settings(context)) if context.config.evolve.enabled else None
    return SearchRecord.from_bytes(context.store.get(manifest.output("search").key)) if manifest is not None else None


def evolved_harness(context: RunContext) -> HarnessBundle:
    """h*: the search's best harness; searches first when that was not done."""
    if not context.config.evolve.enabled:
        return context.base_harness
    record = search_record(context) or _search(context)
    return HarnessBundle.from_files(record.best)


def _search(context: RunContext) -> SearchRecord:
    writer = context.writer(STAGE, _inputs(context), _settings(context), expected=0)
    evaluator = ClusterEvaluator(context)
    task = SearchTask(context.family, context.size, context.config.diversity, context.config.evolve, context.config.seed)
    record = search(context.base_harness, task, evaluator=evaluator, proposer=CatalogueProposer(names=CHAIN_NAMES))
    writer.expected = evaluator.played
    writer.wrote(evaluator.played - evaluator.owed)
    if evaluator.owed:
        writer.drop("owed episodes, left out of both sides", evaluator.owed)
    writer.write_bytes("search.json", record.to_bytes())
    writer.spend(usage=evaluator.usage)
    writer.commit()
    return record


def main(context: RunContext) -> StageResult:
    """Search, or read the finished search."""
    bundle = evolved_harness(context)
    record = search_record(context)
    if record is None:
        return StageResult(STAGE, ("evolution is off: h* is the base harness",))
    lines = [f"h0 {record.base_hash[:12]} -> h* {bundle.hash[:12]}: {record.accepted} edits accepted; {record.stopped}"]
    lines += [
        f"  generation {one.generation}: incumbent {one.incumbent_rate:.2f} on its search instances; {one.outcome}"
        + (f" ({_edit(record, one.decision.candidate)}: {one.decision.delta:+.3f}, p {one.decision.p_value:.2g})" if one.decision else "")
        for one in record.rounds
    ]
    return StageResult(STAGE, tuple(lines))


def _edit(record: SearchRecord, harness_hash: str) -> str:
    return next((race.mechanism for one in record.rounds for race in one.races if race.harness_hash == harness_hash), harness_hash[:12])
