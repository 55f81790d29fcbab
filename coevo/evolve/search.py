"""The harness search: propose edits from failures, race them on the search stream, let the gate decide on fresh selection instances.

One generation: the incumbent plays fresh search instances; the proposer reads those traces and nothing else; its best edits play the same
instances; the one that gains most goes to the gate, where incumbent and edit meet on selection instances drawn for that gate alone. An edit
that was not refuted may be raced again, and gated again at a gate of its own: alpha is spent per gate, whatever is tried. Everything is a
function of the seed and of committed episodes, so a killed search run again takes the same decisions without playing anything twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from coevo.config import EvolveConfig
from coevo.evolve.archive import Archive, Candidate
from coevo.evolve.gate import AlphaSpending, Arm, GateConfig, GateDecision, NullCheck, PairedGate, SelectionStream
from coevo.evolve.propose import Edit, Evidence, Proposer
from coevo.harness.bundle import HarnessBundle
from coevo.identity import derive_seed
from coevo.records import Episode, Record, Verdict
from coevo.rollout import draw_items, parse_item
from coevo.tasks.family import Size, Stream, TaskFamily

__all__ = ["Evaluator", "Race", "Round", "SearchRecord", "SearchTask", "search"]

NULL_EPISODES = 20
"""Episodes of the model that knows nothing, per gate."""


class Evaluator(Protocol):
    """Plays a harness on items and returns the committed episodes by item; owed items are absent."""

    def play(self, bundle: HarnessBundle, items: Sequence[str], *, purpose: str) -> Mapping[str, Episode]: ...

    def play_null(self, bundle: HarnessBundle, items: Sequence[str]) -> Mapping[str, Episode]: ...


class Race(BaseModel):
    """One edit's try on the search stream. `delta` is candidate minus incumbent on the same instances."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    harness_hash: str
    component: str
    mechanism: str
    hypothesis: str
    delta: float
    instances: int


class Round(BaseModel):
    """One generation: the races, and the gate's decision where an edit got that far."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    generation: int
    incumbent: str
    incumbent_rate: float
    races: tuple[Race, ...] = ()
    decision: GateDecision | None = None
    outcome: str


class SearchRecord(Record):
    """What a search found and how. `best` holds the files of the last accepted harness (the base when nothing was accepted)."""

    base_hash: str
    best_hash: str
    best: dict[str, str]
    rounds: tuple[Round, ...]
    stopped: str
    episodes: int
    archive: tuple[Candidate, ...] = ()

    @property
    def accepted(self) -> int:
        """Edits that passed a gate."""
        return sum(one.decision is not None and one.decision.accepted for one in self.rounds)


@dataclass(frozen=True, slots=True)
class SearchTask:
    """What to search.

    Attributes:
        family: The task family.
        size: Instance size.
        diversity: Templates drawn from.
        config: The search's settings.
        seed: Seed of every draw.
    """

    family: TaskFamily
    size: Size
    diversity: int
    config: EvolveConfig
    seed: int

    @property
    def gate_config(self) -> GateConfig:
        """The gate that these settings state: alpha shared equally by the generations."""
        return GateConfig(
            alpha_total=self.config.alpha,
            gates_planned=self.config.generations,
            instances=self.config.gate_instances,
            max_lost_share=self.config.max_lost_share,
        )


@dataclass(slots=True)
class _State:
    incumbent: HarnessBundle
    archive: Archive
    refuted: set[str] = field(default_factory=set)
    rounds: list[Round] = field(default_factory=list)
    idle: int = 0
    gates: int = 0
    episodes: int = 0


def search(base: HarnessBundle, task: SearchTask, *, evaluator: Evaluator, proposer: Proposer) -> SearchRecord:
    """Run the search to its end: generations used up, patience lost, or nothing left to propose."""
    state = _State(base, Archive([Candidate(harness_hash=base.hash, accepted=True)]))
    selection = SelectionStream(task.seed)
    stopped = "all generations used"
    for generation in range(task.config.generations):
        done = _generation(state, task, generation, selection, evaluator, proposer)
        if not done:
            stopped = "nothing left to propose"
            break
        if state.idle >= task.config.patience:
            stopped = f"no accepted edit in {state.idle} generations"
            break
    return SearchRecord(
        base_hash=base.hash,
        best_hash=state.incumbent.hash,
        best=state.incumbent.files(),
        rounds=tuple(state.rounds),
        stopped=stopped,
        episodes=state.episodes,
        archive=state.archive.candidates,
    )


def _generation(
    state: _State, task: SearchTask, generation: int, selection: SelectionStream, evaluator: Evaluator, proposer: Proposer
) -> bool:
    """One generation; False when the proposer has nothing new."""
    incumbent = state.incumbent
    first = generation * task.config.search_instances
    seeds = [derive_seed("search", task.seed) % 2**40 + first + index for index in range(task.config.search_instances)]
    items = draw_items(task.family, Stream.SEARCH, task.size, seeds, diversity=task.diversity)
    traces = _play(state, evaluator, incumbent, items, "search")
    evidence = Evidence(tuple(traces.values()), task.family.tools(task.size))
    random = Random(derive_seed("proposals", task.seed, generation))
    edits = [edit for edit in proposer.propose(incumbent, evidence, random) if edit.bundle.hash not in state.refuted]
    rate = _rate(traces)
    if not edits:
        state.rounds.append(Round(generation=generation, incumbent=incumbent.hash, incumbent_rate=rate, outcome="no new edits"))
        return False
    races, best = _race(state, evaluator, edits[: task.config.proposals], items, traces, generation)
    decision = _gate(state, task, generation, selection, evaluator, best) if best is not None else None
    accepted = decision is not None and decision.accepted
    if accepted and best is not None:
        state.incumbent = best.bundle
        state.archive.accept(best.bundle.hash)
    elif decision is not None and decision.verdict is Verdict.REFUTED:
        state.refuted.add(decision.candidate)
    state.idle = 0 if accepted else state.idle + 1
    outcome = "accepted" if accepted else ("refused by the gate" if decision is not None else "no edit gained on the search stream")
    state.rounds.append(
        Round(generation=generation, incumbent=incumbent.hash, incumbent_rate=rate, races=races, decision=decision, outcome=outcome)
    )
    return True


def _race(
    state: _State, evaluator: Evaluator, edits: Sequence[Edit], items: Sequence[str], traces: Mapping[str, Episode], generation: int
) -> tuple[tuple[Race, ...], Edit | None]:
    """Play every edit on the incumbent's instances; the one that gains most, when any gains."""
    races: list[Race] = []
    for edit in edits:
        played = _play(state, evaluator, edit.bundle, items, "race")
        shared = [item for item in items if item in played and item in traces]
        delta = sum(played[item].success - traces[item].success for item in shared) / max(1, len(shared))
        races.append(
            Race(
                harness_hash=edit.bundle.hash,
                component=edit.component,
                mechanism=edit.mechanism,
                hypothesis=edit.hypothesis,
                delta=delta,
                instances=len(shared),
            )
        )
        outcomes = {parse_item(item)[0].key: (int(played[item].success),) for item in shared}
        _observe(state, edit, generation, outcomes)
    best = max(range(len(races)), key=lambda index: (races[index].delta, -index))
    return tuple(races), (edits[best] if races[best].delta > 0 else None)


def _observe(state: _State, edit: Edit, generation: int, outcomes: Mapping[str, tuple[int, ...]]) -> None:
    """Put a raced edit, or more outcomes of a known one, into the archive."""
    if edit.bundle.hash in {one.harness_hash for one in state.archive.candidates}:
        state.archive.observe(edit.bundle.hash, outcomes)
        return
    summary = f"{edit.component}: {edit.mechanism}"
    state.archive.add(
        Candidate(
            harness_hash=edit.bundle.hash, parent=state.incumbent.hash, summary=summary, generation=generation, outcomes=dict(outcomes)
        )
    )


def _gate(state: _State, task: SearchTask, generation: int, selection: SelectionStream, evaluator: Evaluator, edit: Edit) -> GateDecision:
    gate_id = f"generation-{generation}"
    config = task.gate_config
    seeds = selection.draw(gate_id, count=config.instances)
    items = draw_items(task.family, Stream.SELECTION, task.size, seeds, diversity=task.diversity)
    sides = [_play(state, evaluator, bundle, items, "gate") for bundle in (state.incumbent, edit.bundle)]
    null = evaluator.play_null(edit.bundle, items[:NULL_EPISODES])
    shared = [item for item in items if item in sides[0] and item in sides[1]]
    arms = [_arm(bundle, side, shared) for bundle, side in zip((state.incumbent, edit.bundle), sides, strict=True)]
    alpha = AlphaSpending.of(config).alpha(restart=0, gate=state.gates)
    state.gates += 1
    check = NullCheck(sum(episode.success for episode in null.values()), len(null))
    return PairedGate(config).decide(gate_id=gate_id, alpha=alpha, incumbent=arms[0], candidate=arms[1], null=check)


def _arm(bundle: HarnessBundle, episodes: Mapping[str, Episode], items: Sequence[str]) -> Arm:
    keys = {item: parse_item(item)[0].key for item in items}
    tokens = {keys[item]: (float(_tokens(episodes[item])),) for item in items}
    return Arm(bundle.hash, {keys[item]: (int(episodes[item].success),) for item in items}, tokens)


def _tokens(episode: Episode) -> int:
    return episode.usage.prompt_tokens + episode.usage.completion_tokens


def _play(state: _State, evaluator: Evaluator, bundle: HarnessBundle, items: Sequence[str], purpose: str) -> Mapping[str, Episode]:
    episodes = evaluator.play(bundle, items, purpose=purpose)
    state.episodes += len(episodes)
    return episodes


def _rate(episodes: Mapping[str, Episode]) -> float:
    return sum(episode.success for episode in episodes.values()) / max(1, len(episodes))
