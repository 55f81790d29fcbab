"""One `evolve` call, whole: the search, the ablation of what it found, and the baselines that its episodes are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from coevo.evolve.ablate import AblationRecord, ablate
from coevo.evolve.baselines import BaselineRecord, measure_baselines
from coevo.evolve.evaluator import Evaluator
from coevo.evolve.propose import Proposer
from coevo.evolve.rounds import SearchRecord
from coevo.evolve.search import SearchTask, search
from coevo.harness.bundle import HarnessBundle
from coevo.ports import BlobStore

__all__ = ["Campaign", "run_campaign"]


@dataclass(frozen=True, slots=True)
class Campaign:
    """What an `evolve` call leaves; None for what the settings did not ask for."""

    search: SearchRecord
    ablation: AblationRecord | None = None
    baselines: BaselineRecord | None = None

    @property
    def best(self) -> HarnessBundle:
        """h*: the search's winner, without what earns nothing where that was shown."""
        return HarnessBundle.from_files(self.search.best if self.ablation is None else self.ablation.best)


def run_campaign(
    base: HarnessBundle, task: SearchTask, *, paying: Evaluator, evaluator: Evaluator, proposer: Proposer, store: BlobStore, prefix: str
) -> Campaign:
    """Search, ablate, measure baselines.

    Args:
        base: h0.
        task: What to search.
        paying: Plays the search, from its own budget where it has one.
        evaluator: Plays the rest.
        proposer: Proposes.
        store: Keeps the ledgers of baselines.
        prefix: Below which key.
    """
    found = search(base, task, evaluator=paying, proposer=proposer)
    done = Campaign(found)
    if task.config.ablate_instances and found.best_hash != base.hash:
        done = Campaign(found, ablate(base, done.best, task, evaluator=evaluator))
    if not task.config.baselines:
        return done
    measured = measure_baselines(base, done.best, found, task, evaluator=evaluator, proposer=proposer, store=store, prefix=prefix)
    return Campaign(found, done.ablation, measured)
