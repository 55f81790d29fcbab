"""The grid: cells of (model x harness) measured on the same fresh instances, and the paired comparisons between them.

A cell is a name, an agent and items; its measurement is built from committed episodes alone, so it can be computed again from the store
(I12). Owed items are listed, never scored (I3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coevo.evaluate.fit import conduct
from coevo.evaluate.stats import compare, success_rate
from coevo.records import Comparison, Episode, Measurement, UsageRecord
from coevo.rollout import AgentSource, parse_item
from coevo.store.episodes import EpisodeStore

__all__ = ["COMPARISONS", "Cell", "best_rate", "compare_cells", "measure", "measured", "stated_pairs"]

COMPARISONS = (
    ("base/h0", "base/h*"),
    ("expert/h0", "expert/h*"),
    ("base/h*", "expert/h*"),
    ("base/h*", "imitation/h*"),
    ("base/h*", "correction/h*"),
    ("imitation/h*", "correction/h*"),
    ("base/h0", "imitation/h0"),
    ("base/h0", "correction/h0"),
)
"""Pairs (a, b) that the report states, where both cells were measured. Further arms: `stated_pairs`."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One agent to measure. `serving_form` says how its weights are served (base, merged, reference)."""

    name: str
    agent: AgentSource
    serving_form: str
    training_seed: int | None = None


def measure(cell: Cell, items: Sequence[str], store: EpisodeStore) -> Measurement:
    """The measurement of a cell from what is committed; items without a committed episode are owed."""
    ids = {item: cell.agent.spec(item).id for item in items}
    committed = store.committed_ids()
    done = {item: id for item, id in ids.items() if id in committed}
    episodes = dict(zip(done, store.get_all(list(done.values())), strict=True))
    owed = tuple(item for item in items if item not in episodes)
    agent = cell.agent
    made = measured(cell.name, episodes, model_id=agent.model.model_id, harness_hash=agent.bundle.hash, form=cell.serving_form, owed=owed)
    return made.model_copy(update={"training_seed": cell.training_seed})


def measured(
    name: str, episodes: Mapping[str, Episode], *, model_id: str, harness_hash: str, form: str, owed: Sequence[str] = ()
) -> Measurement:
    """The measurement that episodes by item make, under a name.

    Args:
        name: Of the cell.
        episodes: Item -> episode, in the order in which instances are listed.
        model_id: Who played.
        harness_hash: Under which harness.
        form: How the weights are served.
        owed: Items without an episode.
    """
    first = parse_item(next(iter([*episodes, *owed])))[0]
    success: dict[str, list[int]] = {}
    for item, episode in episodes.items():
        success.setdefault(parse_item(item)[0].key, []).append(int(episode.success))
    played = list(episodes.values())
    return Measurement(
        name=name,
        model_id=model_id,
        harness_hash=harness_hash,
        family=first.family,
        size=str(first.size),
        stream=str(first.stream),
        serving_form=form,
        success={key: tuple(values) for key, values in success.items()},
        owed=tuple(owed),
        status_counts=dict(sorted(Counter(str(episode.status) for episode in played).items())),
        component_use=_component_use(played),
        mean_turns=sum(len(episode.turns) for episode in played) / max(1, len(played)),
        conduct=conduct(played),
        usage=_usage(played),
    )


def best_rate(measured: Mapping[float, Measurement]) -> float:
    """The learning rate whose model succeeds most often; of equals the smallest, which moves the model least.

    Args:
        measured: Rate -> measurement, at least one, on the same instances.
    """
    return max(sorted(measured), key=lambda rate: success_rate(measured[rate]))


def stated_pairs(cells: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """`COMPARISONS`, then under h* every other arm of `cells` against base and imitation, and `correction` against that arm."""
    known = {name for pair in COMPARISONS for name in pair}
    others = [name for name in cells if name.endswith("/h*") and name not in known]
    return (*COMPARISONS, *(pair for name in others for pair in (("base/h*", name), ("imitation/h*", name), (name, "correction/h*"))))


def compare_cells(measurements: Mapping[str, Sequence[Measurement]], *, level: float, seed: int) -> list[Comparison]:
    """Every pair of `stated_pairs` that was measured, on the (instance, repeat) items that no cell of the pair owes.

    Several training seeds of a cell are resampled together with the instances.
    """
    return [
        compare(*_common(measurements[a], measurements[b]), level=level, seed=seed).model_copy(update={"a": a, "b": b})
        for a, b in stated_pairs(measurements)
        if a in measurements and b in measurements
    ]


def _common(a: Sequence[Measurement], b: Sequence[Measurement]) -> tuple[list[Measurement], list[Measurement]]:
    """Both sides cut to the instances that every measurement has with the same number of repeats."""
    everyone = [*a, *b]
    shared = [key for key in everyone[0].success if len({len(one.success.get(key, ())) for one in everyone}) == 1]

    def cut(one: Measurement) -> Measurement:
        return one.model_copy(update={"success": {key: one.success[key] for key in shared}})

    return [cut(one) for one in a], [cut(one) for one in b]


def _component_use(episodes: Sequence[Episode]) -> dict[str, float]:
    """Mean firings per episode of each component."""
    total: Counter[str] = Counter()
    for episode in episodes:
        total.update(episode.component_use)
    return {name: count / max(1, len(episodes)) for name, count in sorted(total.items())}


def _usage(episodes: Iterable[Episode]) -> UsageRecord:
    prompt = cached = completion = 0
    for episode in episodes:
        prompt += episode.usage.prompt_tokens
        cached += episode.usage.cached_tokens
        completion += episode.usage.completion_tokens
    return UsageRecord(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)
