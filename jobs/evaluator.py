"""Who plays for a search: the weak model's pool, batch by batch, paid from the run's ledger and from the search's own budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from coevo.evolve.budget import MeteredEvaluator, check_search_budget
from coevo.evolve.evaluator import Evaluator, Play
from coevo.evolve.plan import closing_episodes
from coevo.evolve.search import SearchTask
from coevo.evolve.stage import BatchStage, distinct, marked
from coevo.models.null import NullSource
from coevo.ports import ModelSource
from coevo.records import Episode, UsageRecord
from coevo.rollout import AgentSource
from coevo.store.harnesses import HarnessStore
from coevo.store.ledger import Ledger
from jobs.context import RunContext
from jobs.fanout import fan_out

__all__ = ["ClusterEvaluator", "metered"]

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
        owed = {outcome.item for outcome in fan_out(context, stage, list(dict.fromkeys(items)), bulk=False).owed}
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
    if not task.config.budget.bounded:
        yield evaluator
        return
    each = context.billing.episode()
    budget = check_search_budget(task.config, each=each)
    ledger = Ledger(context.store, budget=budget, prefix=f"{context.run}/ledger/{STAGE}")
    paying = MeteredEvaluator(evaluator, ledger, each, closing_episodes(task.config))
    paying.hold()
    yield paying
    paying.release()
