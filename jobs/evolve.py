"""`coevo evolve`: harness search with the weak model executing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from coevo.evolve.budget import MeteredEvaluator
from coevo.evolve.evaluator import Evaluator, Play
from coevo.evolve.plan import closing_episodes, plan_search
from coevo.evolve.rounds import SearchRecord
from coevo.evolve.search import SearchTask, search
from coevo.evolve.stage import BatchStage, distinct, marked
from coevo.harness.bundle import HarnessBundle
from coevo.models.null import NullSource
from coevo.ports import ModelSource
from coevo.records import Episode, UsageRecord
from coevo.report.evolution import search_lines
from coevo.rollout import AgentSource
from coevo.store.harnesses import HarnessStore
from coevo.store.ledger import Budget, Ledger, Spend, check_affordable
from jobs.context import RunContext, StageResult
from jobs.estimates import EPISODES
from jobs.proposer import open_proposer

__all__ = ["ClusterEvaluator", "evolved_harness", "main", "metered", "search_record", "search_task"]

STAGE = "evolve"


@dataclass(slots=True)
class ClusterEvaluator:
    """Plays a batch in one fan-out over the small-batch executor; episodes are committed one by one, so nothing is played twice."""

    context: RunContext
    owed: int = 0
    played: int = 0
    usage: list[UsageRecord] = field(default_factory=list)
    harnesses: HarnessStore = field(init=False)

    def __post_init__(self) -> None:
        self.harnesses = HarnessStore(self.context.store, self.context.run)

    def play(self, plays: Sequence[Play]) -> list[Mapping[str, Episode]]:
        """Committed episodes by item, per play."""
        context, agents = self.context, [self._agent(play) for play in plays]
        for play in plays:
            self.harnesses.put(play.bundle)
        items = [item for play, agent in zip(plays, agents, strict=True) for item in marked(agent, play.items)]
        label = f"{STAGE}/{'+'.join(dict.fromkeys(play.purpose for play in plays))}"
        stage = BatchStage(distinct(agents), context.store_source, context.run, label)
        owed = {outcome.item for outcome in context.fan_out(stage, list(dict.fromkeys(items)), bulk=False).owed}
        self.owed += len(owed)
        self.played += len(set(items))
        return [self._read(play, agent, owed) for play, agent in zip(plays, agents, strict=True)]

    def _agent(self, play: Play) -> AgentSource:
        model: ModelSource = NullSource(self.context.config.weak.chat_format) if play.null else self.context.weak_source
        return self.context.agent(model, play.bundle)

    def _read(self, play: Play, agent: AgentSource, owed: set[str]) -> Mapping[str, Episode]:
        done = [item for item, mark in zip(play.items, marked(agent, play.items), strict=True) if mark not in owed]
        episodes = self.context.episodes.get_all([agent.spec(item).id for item in done])
        self.usage += [one.usage for one in episodes]
        return dict(zip(done, episodes, strict=True))


@contextmanager
def metered(context: RunContext, evaluator: Evaluator, task: SearchTask) -> Iterator[Evaluator]:
    """The evaluator, paid from the search's own budget where it has one."""
    bounds = task.config.budget
    if not bounds.bounded:
        yield evaluator
        return
    tokens = round(EPISODES[task.size].prompt_tokens + EPISODES[task.size].completion_tokens)
    budget = Budget(**bounds.model_dump())
    ledger = Ledger(context.store, budget=budget, prefix=f"{context.run}/ledger/{STAGE}")
    each = Spend(usd=context.billing.estimate_usd(tokens), tokens=tokens, episodes=1)
    closing = closing_episodes(task.config)
    check_affordable(budget, seed=each.times(sum(closing.values())), candidate=each.times(plan_search(task.config).first_candidate))
    paying = MeteredEvaluator(evaluator, ledger, each, closing)
    paying.hold()
    yield paying
    paying.release()


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
    evaluator, task = ClusterEvaluator(context), search_task(context)
    with metered(context, evaluator, task) as paying:
        record = search(context.base_harness, task, evaluator=paying, proposer=open_proposer(context))
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
    evolved_harness(context)
    record = search_record(context)
    if record is None:
        return StageResult(STAGE, ("evolution is off: h* is the base harness",))
    return StageResult(STAGE, search_lines(record))
