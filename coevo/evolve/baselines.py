"""What the episodes of a search would have bought otherwise: three baselines, each with the search's episodes to spend.

- `best_of_n`: the base harness plays every instance N times and keeps one try without looking at a grade: the one whose changes to the
  world most tries agree on. The share of instances that any try solved is given too, as the ceiling of every such choice.
- `self_refine`: the model plays again with the record of its own last try in the prompt, until it stands by its answer (two tries in a row
  go through without a refused call and change the world alike) or the episodes are used; the last try counts.
- `prompt_only`: the same search, its proposer held to the system prompt, under the same bound on episodes.

h0, h* and the baselines are compared on the same fresh selection instances. Limit: the first two spend at test time what a search spends
once, so on more instances their share of the budget per instance, and with it N, is smaller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from pydantic import BaseModel, ConfigDict

from coevo.evaluate.grid import measured
from coevo.evaluate.stats import compare
from coevo.evolve.budget import MeteredEvaluator
from coevo.evolve.evaluator import Evaluator, Play
from coevo.evolve.plan import closing_episodes
from coevo.evolve.propose import Edit, Evidence, Proposer
from coevo.evolve.rounds import SearchRecord
from coevo.evolve.search import SearchTask, search
from coevo.evolve.tiers import SelectionTier
from coevo.harness.bundle import HarnessBundle
from coevo.identity import canonical_json, derive_seed
from coevo.ports import BlobStore
from coevo.records import Comparison, Episode, Measurement, Record, Status
from coevo.rollout import item_of, parse_item
from coevo.store.ledger import Budget, Ledger, Spend

__all__ = ["BaselineRecord", "BaselineRow", "PromptOnly", "best_of_n", "chosen_try", "measure_baselines", "refine_note", "self_refine"]

_MOST_TRIES = 64
_NOTE_CALLS = 6
_NOTE_CHARS = 80

Episodes = Mapping[str, Episode]


class BaselineRow(BaseModel):
    """One way to spend the episodes.

    Attributes:
        name: h0, h*, or the baseline's.
        measurement: On the shared instances.
        against_best: h* - this one; None for h* itself and where nothing was shared.
        episodes: Spent in all, the measurement included.
        tries: Tries per instance at most, where it has several.
        any_try: Share of instances that any try solved, where it has several.
        note: What else there is to know.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    measurement: Measurement
    against_best: Comparison | None = None
    episodes: int
    tries: int | None = None
    any_try: float | None = None
    note: str = ""


class BaselineRecord(Record):
    """All of them; `budget` is what the search spent, in episodes."""

    budget: int
    instances: int
    rows: tuple[BaselineRow, ...]


@dataclass(slots=True)
class PromptOnly:
    """A proposer of whose edits only those of the system prompt come through."""

    inner: Proposer
    name: str = "prompt only"

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]:
        """The inner proposer's edits that change nothing but the prompt."""
        edits = self.inner.propose(parent, evidence, rng)
        return [edit for edit in edits if all(change.component == "prompt" for change in edit.changes(parent))]


@dataclass(frozen=True, slots=True)
class _Tried:
    """The tries that count, by the item of the instance; how many were played; whether any try solved an instance."""

    counted: dict[str, Episode]
    played: int
    solved: int
    tries: int


def measure_baselines(
    base: HarnessBundle,
    best: HarnessBundle,
    record: SearchRecord,
    task: SearchTask,
    *,
    evaluator: Evaluator,
    proposer: Proposer,
    store: BlobStore,
    prefix: str,
) -> BaselineRecord:
    """Play what the configuration names, beside h0 and h*.

    Args:
        base: h0.
        best: h*.
        record: The search that found it; its episodes are the budget.
        task: The search's task.
        evaluator: Plays.
        proposer: The search's proposer, for `prompt_only`.
        store: Keeps the ledger of `prompt_only`.
        prefix: Where.
    """
    tier = SelectionTier.of(task.family, task.size, task.diversity, seed=task.seed, config=task.gate_config)
    items = tier.draw("baselines", count=task.config.baseline_instances)
    old, new = evaluator.play([Play(base, items, "baselines"), Play(best, items, "baselines")])
    tries = min(_MOST_TRIES, 1 + record.episodes // len(items))
    made = [_row("h0", base, items, old, len(old)), _row("h*", best, items, new, record.episodes + len(new))]
    writes = task.family.conduct(task.size).writes
    for name in task.config.baselines:
        if name == "best_of_n":
            made.append(_tried_row(name, base, items, best_of_n(base, items, old, tries, evaluator=evaluator, writes=writes)))
        elif name == "self_refine":
            made.append(_tried_row(name, base, items, self_refine(base, items, old, tries, evaluator=evaluator, writes=writes)))
        else:
            made.append(_prompt_only(base, record, task, items, _Means(evaluator, proposer, store, prefix)))
    star = made[1].measurement
    for place, row in enumerate(made):
        if row.name != "h*":
            made[place] = row.model_copy(update={"against_best": _against(row.measurement, star, task.seed)})
    return BaselineRecord(budget=record.episodes, instances=len(items), rows=tuple(made))


def best_of_n(
    base: HarnessBundle, items: Sequence[str], first: Episodes, tries: int, *, evaluator: Evaluator, writes: frozenset[str]
) -> _Tried:
    """Play `tries - 1` more tries of every instance and choose one of each."""
    more = tuple(_again(item, number) for item in items for number in range(1, tries))
    played = {**first, **(evaluator.play([Play(base, more, "best_of_n")])[0] if more else {})}
    own = {item: [played[key] for number in range(tries) if (key := _again(item, number)) in played] for item in items}
    counted = {item: chosen_try(shown, writes) for item, shown in own.items() if shown}
    return _Tried(counted, len(played), sum(any(one.success for one in shown) for shown in own.values()), tries)


def chosen_try(tries: Sequence[Episode], writes: frozenset[str]) -> Episode:
    """The first try of the largest group that changed the world alike; completed tries come before others. No grade is read."""
    done = [one for one in tries if one.status is Status.COMPLETED] or list(tries)
    votes = Counter(_changes(one, writes) for one in done)
    most = max(votes.values())
    return next(one for one in done if votes[_changes(one, writes)] == most)


def _changes(episode: Episode, writes: frozenset[str]) -> bytes:
    """What a try did to the world, whatever the order."""
    return b"\n".join(sorted({canonical_json([call.name, call.arguments]) for call in episode.world_log if call.name in writes}))


def self_refine(
    base: HarnessBundle, items: Sequence[str], first: Episodes, tries: int, *, evaluator: Evaluator, writes: frozenset[str]
) -> _Tried:
    """Try again with one's own record until the answer stands. No grade is read."""
    counted, before, played = dict(first), dict[str, Episode](), len(first)
    solved = {item for item, episode in first.items() if episode.success}
    for number in range(1, tries):
        doubtful = [item for item in items if item in counted and not _stands(counted[item], before.get(item), writes)]
        if not doubtful:
            break
        plays = [Play(_refined(base, counted[item]), (_again(item, number),), "self_refine") for item in doubtful]
        for item, episodes in zip(doubtful, evaluator.play(plays), strict=True):
            for episode in episodes.values():
                before[item], counted[item] = counted[item], episode
                played += 1
                solved |= {item} if episode.success else set()
    return _Tried(counted, played, len(solved), tries)


def _stands(last: Episode, before: Episode | None, writes: frozenset[str]) -> bool:
    """Whether the player has no reason to doubt its last try: nothing went wrong that it could see, and the try before did the same."""
    return before is not None and not _rough(last) and _changes(last, writes) == _changes(before, writes)


def _refined(base: HarnessBundle, episode: Episode) -> HarnessBundle:
    """The base harness with the record of a try in its prompt."""
    return base.replace(system_prompt=f"{base.system_prompt.rstrip()}\n{refine_note(episode)}\n")


def refine_note(episode: Episode) -> str:
    """A try as its player saw it: how it ended and which calls were refused, the last few; never its grade."""
    refused = [f"{turn.call.name}: {turn.result}"[:_NOTE_CHARS] for turn in episode.turns if turn.result_error and turn.call is not None]
    lines = [f"last try ended: {episode.status}", *(f"refused {line}" for line in refused[-_NOTE_CALLS:])]
    return " . ".join(lines).replace("{", "(").replace("}", ")").replace("\n", " ")


def _rough(episode: Episode) -> bool:
    """Whether its player could see that something went wrong."""
    return episode.status is not Status.COMPLETED or any(turn.result_error for turn in episode.turns)


@dataclass(frozen=True, slots=True)
class _Means:
    """What a search of its own needs."""

    evaluator: Evaluator
    proposer: Proposer
    store: BlobStore
    prefix: str


def _prompt_only(base: HarnessBundle, record: SearchRecord, task: SearchTask, items: Sequence[str], means: _Means) -> BaselineRow:
    """A search of its own seed under the episodes of the first; its winner on the shared instances."""
    config = task.config.model_copy(update={"confirm_instances": 0})
    own = replace(task, config=config, seed=derive_seed("prompt only", task.seed))
    ledger = Ledger(means.store, budget=Budget(episodes=max(record.episodes, 1)), prefix=means.prefix)
    paying = MeteredEvaluator(means.evaluator, ledger, Spend(episodes=1), closing_episodes(config))
    paying.hold()
    found = search(base, own, evaluator=paying, proposer=PromptOnly(means.proposer))
    paying.release()
    bundle = HarnessBundle.from_files(found.best)
    played = means.evaluator.play([Play(bundle, tuple(items), "prompt_only")])[0]
    row = _row("prompt_only", bundle, items, played, ledger.spent.episodes + len(played))
    return row.model_copy(update={"note": f"{found.accepted} edits accepted; {found.stopped}"})


def _row(name: str, bundle: HarnessBundle, items: Sequence[str], played: Episodes, episodes: int) -> BaselineRow:
    model_id = next((one.spec.model_id for one in played.values()), "")
    owed = tuple(item for item in items if item not in played)
    made = measured(name, played, model_id=model_id, harness_hash=bundle.hash, form="base", owed=owed)
    return BaselineRow(name=name, measurement=made, episodes=episodes)


def _tried_row(name: str, base: HarnessBundle, items: Sequence[str], tried: _Tried) -> BaselineRow:
    made = _row(name, base, items, tried.counted, tried.played)
    return made.model_copy(update={"tries": tried.tries, "any_try": tried.solved / max(1, len(tried.counted))})


def _against(row: Measurement, best: Measurement, seed: int) -> Comparison | None:
    """On the instances that both have."""
    shared = [key for key in row.success if key in best.success]
    if not shared:
        return None
    left, right = (one.model_copy(update={"success": {key: one.success[key] for key in shared}}) for one in (row, best))
    return compare(left, right, seed=seed)


def _again(item: str, number: int) -> str:
    return item_of(parse_item(item)[0], number)
