"""The managed harness search: restarts that propose edits from failures, race them, and let the gate decide on fresh selection instances.

One generation of one restart: parent and incumbent play fresh search instances; the proposer reads the parent's traces and nothing else;
its edits play the same instances; the one that gains most goes to the gate, where incumbent and edit meet on selection instances drawn for
that gate alone. An edit that was not refuted may be raced again, and gated again at a gate of its own: alpha is spent per gate, whatever is
tried, and all gates of all restarts together spend `alpha`. Successive halving moves generations from worse restarts to better ones. The
winner is measured again on fresh instances before it is reported. Everything is a function of the seed and of committed episodes, so a
killed search run again takes the same decisions without playing anything twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from coevo.config import EvolveConfig
from coevo.evolve.archive import Archive, Candidate
from coevo.evolve.budget import BudgetUsed
from coevo.evolve.crossover import crossovers
from coevo.evolve.evaluator import Answer, Ask, Evaluator, Play, Steps, Wish, alone, side_by_side
from coevo.evolve.gate import AlphaSpending, GateConfig, GateDecision
from coevo.evolve.halving import schedule
from coevo.evolve.plan import NULL_EPISODES
from coevo.evolve.propose import Edit, PastEdit, Proposer
from coevo.evolve.race import Entrant, Raced, best_of, race
from coevo.evolve.rounds import Confirmation, Finalist, Race, RestartRecord, Round, SearchRecord
from coevo.evolve.tiers import SearchTier, SelectionTier, Side, task_key
from coevo.harness.bundle import HarnessBundle
from coevo.identity import derive_seed
from coevo.records import Episode, Verdict
from coevo.tasks.family import Size, TaskFamily

__all__ = ["SearchTask", "search"]

Episodes = Mapping[str, Episode]
Result = TypeVar("Result")


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
        """The gate that these settings state: alpha shared equally by the generations of all restarts."""
        return GateConfig(
            alpha_total=self.config.alpha,
            restarts=self.config.restarts,
            gates_planned=self.config.generations,
            instances=self.config.gate_instances,
            max_lost_share=self.config.max_lost_share,
        )


@dataclass(slots=True)
class _Shared:
    """What all restarts of a call draw from; `gates` counts the gates of the call, each of which spends its alpha."""

    task: SearchTask
    search: SearchTier
    selection: SelectionTier
    spending: AlphaSpending
    gates: int = 0

    @classmethod
    def of(cls, task: SearchTask) -> _Shared:
        what = (task.family, task.size, task.diversity)
        config = task.gate_config
        selection = SelectionTier.of(*what, seed=task.seed, config=config)
        return cls(task, SearchTier.of(*what, seed=task.seed), selection, AlphaSpending.of(config))

    def next_alpha(self) -> float:
        """Alpha of the next gate, whichever restart opens it."""
        alpha = self.spending.nth(self.gates)
        self.gates += 1
        return alpha


@dataclass(slots=True)
class _Restart:
    """One independent search: its incumbent, its archive, its history."""

    shared: _Shared
    index: int
    incumbent: HarnessBundle
    archive: Archive = field(init=False)
    bundles: dict[str, HarnessBundle] = field(init=False)
    refuted: set[str] = field(default_factory=set)
    rounds: list[Round] = field(default_factory=list)
    past: list[PastEdit] = field(default_factory=list)
    rung_rates: list[float] = field(default_factory=list)
    idle: int = 0
    episodes: int = 0
    stopped: str = ""

    def __post_init__(self) -> None:
        self.archive = Archive([Candidate(harness_hash=self.incumbent.hash, restart=self.index, accepted=True)])
        self.bundles = {self.incumbent.hash: self.incumbent}

    @property
    def config(self) -> EvolveConfig:
        return self.shared.task.config

    @property
    def accepted(self) -> int:
        return sum(one.accepted for one in self.rounds)

    def run(self, generations: int) -> Steps[None]:
        """So many generations more, fewer when the restart stops by itself."""
        for _ in range(generations):
            yield from self.generation(len(self.rounds))
            if not self.stopped and self.idle >= self.config.patience:
                self.stopped = f"no accepted edit in {self.idle} generations"
            if self.stopped:
                return

    def generation(self, number: int) -> Steps[None]:
        """One generation, from parents to the gate's decision."""
        count, before = self.config.search_instances, self.episodes
        items = self.shared.search.draw(first=number * count, count=count, restart=self.index)
        parents = self._parents(number)
        traces = yield from self._traces([self.incumbent, *parents], items)
        entrants = yield from self._entrants(parents, traces, number)
        incumbent = traces[self.incumbent.hash]
        done = Round(
            generation=number,
            restart=self.index,
            incumbent=self.incumbent.hash,
            incumbent_rate=_rate(incumbent),
            incumbent_instances=len(incumbent),
            outcome="no new edits",
        )
        if not entrants:
            self.rounds.append(done.model_copy(update={"episodes": self.episodes - before}))
            self.stopped = "nothing left to propose"
            return
        raced = yield from race(entrants, items, incumbent, futility_share=self.config.futility_share)
        self.episodes += sum(len(one.played) for one in raced)
        races = tuple(one.record(incumbent) for one in raced)
        self._observe(raced, races, incumbent, number)
        best = best_of(races)
        decision = (yield from self._gate(entrants[best].edit, number)) if best is not None else None
        outcome = self._settle(entrants[best].edit if best is not None else None, decision)
        self.past += [_past(run, one, outcome if at == best else "") for at, (run, one) in enumerate(zip(raced, races, strict=True))]
        made = {"races": races, "decision": decision, "outcome": outcome, "episodes": self.episodes - before}
        self.rounds.append(done.model_copy(update=made))

    def _parents(self, number: int) -> list[HarnessBundle]:
        """One per call of the proposer."""
        if self.config.parents == "incumbent":
            return [self.incumbent] * self.config.proposer_calls
        rng = Random(derive_seed("parents", self.shared.task.seed, number, self.index))
        chosen = [self.archive.choose_parent(rng, barred=self.refuted) for _ in range(self.config.proposer_calls)]
        return [self.bundles[one.harness_hash] for one in chosen]

    def _traces(self, bundles: Sequence[HarnessBundle], items: tuple[str, ...]) -> Steps[dict[str, Episodes]]:
        """Episodes of each bundle on the generation's instances, by hash."""
        distinct = {bundle.hash: bundle for bundle in bundles}
        answer: Answer = yield Wish(plays=tuple(Play(bundle, items, "search") for bundle in distinct.values()))
        self.episodes += sum(len(played) for played in answer.episodes)
        for harness_hash, played in zip(distinct, answer.episodes, strict=True):
            self.archive.observe(harness_hash, _outcomes(played))
        return dict(zip(distinct, answer.episodes, strict=True))

    def _entrants(self, parents: Sequence[HarnessBundle], traces: Mapping[str, Episodes], number: int) -> Steps[list[Entrant]]:
        """The edits to race: the proposer's calls in turn, none twice, none that a gate refuted."""
        evidence = {name: self.shared.search.evidence(played.values(), past=self.past) for name, played in traces.items()}
        asks = tuple(Ask(parent, evidence[parent.hash], self._rng(number, call)) for call, parent in enumerate(parents))
        answer: Answer = yield Wish(asks=asks)
        offered = [[(parent, edit) for edit in edits] for parent, edits in zip(parents, answer.edits, strict=True)]
        chosen: dict[str, Entrant] = {}
        for parent, edit in _in_turn(offered):
            name = edit.bundle.hash
            if name not in self.refuted and name != self.incumbent.hash and len(chosen) < self.config.proposals:
                chosen.setdefault(name, Entrant(edit, parent.hash, traces[parent.hash]))
        for parent, edit in crossovers(self.archive, self.bundles, count=self.config.crossovers, barred={*self.refuted, *chosen}):
            chosen[edit.bundle.hash] = Entrant(edit, parent.hash, traces.get(parent.hash, {}))
        return list(chosen.values())

    def _rng(self, number: int, call: int) -> Random:
        """Seeded by the run's seed one way: it gives nothing else of the run away."""
        more = (self.index, call) if self.index or call else ()
        return Random(derive_seed("proposals", self.shared.task.seed, number, *more))

    def _observe(self, raced: Sequence[Raced], races: Sequence[Race], incumbent: Episodes, number: int) -> None:
        """Put the raced edits, or more outcomes of known ones, into the archive."""
        known = {one.harness_hash for one in self.archive.candidates}
        for run, one in zip(raced, races, strict=True):
            outcomes = _outcomes({item: episode for item, episode in run.played.items() if item in incumbent})
            self.bundles.setdefault(one.harness_hash, run.entrant.edit.bundle)
            if one.harness_hash in known:
                self.archive.observe(one.harness_hash, outcomes)
                continue
            self.archive.add(
                Candidate(
                    harness_hash=one.harness_hash,
                    parent=one.parent,
                    summary=f"{one.component}: {one.mechanism}",
                    restart=self.index,
                    generation=number,
                    outcomes=outcomes,
                )
            )

    def _gate(self, edit: Edit, number: int) -> Steps[GateDecision]:
        selection = self.shared.selection
        name = f"generation-{number}" if self.index == 0 else f"restart-{self.index}/generation-{number}"
        items = selection.draw(name, count=self.config.gate_instances)
        answer: Answer = yield Wish(
            plays=(
                Play(self.incumbent, items, "gate"),
                Play(edit.bundle, items, "gate"),
                Play(edit.bundle, items[:NULL_EPISODES], "null", null=True),
            )
        )
        old, new, null = answer.episodes
        self.episodes += len(old) + len(new)
        sides = Side(self.incumbent.hash, old), Side(edit.bundle.hash, new)
        alpha, empty = self.shared.next_alpha(), Side(edit.bundle.hash, null)
        return selection.verdict(name, alpha=alpha, incumbent=sides[0], candidate=sides[1], null=empty)

    def _settle(self, edit: Edit | None, decision: GateDecision | None) -> str:
        """Act on the decision; the outcome in words."""
        if edit is not None and decision is not None and decision.accepted:
            self.incumbent, self.idle = edit.bundle, 0
            self.archive.accept(edit.bundle.hash)
            return "accepted"
        self.idle += 1
        if decision is None:
            return "no edit gained on the search stream"
        if decision.verdict is Verdict.REFUTED:
            self.refuted.add(decision.candidate)
        return "refused by the gate"

    def record(self) -> RestartRecord:
        """The restart as stored."""
        return RestartRecord(
            restart=self.index,
            best_hash=self.incumbent.hash,
            accepted=self.accepted,
            generations=len(self.rounds),
            stopped=self.stopped or "all generations used",
            rung_rates=tuple(self.rung_rates),
        )


def search(base: HarnessBundle, task: SearchTask, *, evaluator: Evaluator, proposer: Proposer) -> SearchRecord:
    """Run the search to its end: generations used up, patience lost, nothing left to propose, or its budget used."""
    shared = _Shared.of(task)
    restarts = [_Restart(shared, index, base) for index in range(task.config.restarts)]
    try:
        _rungs(shared, restarts, evaluator, proposer)
    except BudgetUsed:
        for restart in restarts:
            restart.stopped = restart.stopped or "the search's budget is used"
    played = sum(restart.episodes for restart in restarts)
    winner, finalists, spent = _affordable(_final(shared, base, restarts), evaluator, proposer) or (_leader(restarts), (), 0)
    confirmation = _affordable(_confirm(shared, base, winner), evaluator, proposer) if winner.hash != base.hash else None
    again = 0 if confirmation is None else len(confirmation.base.success) + len(confirmation.best.success)
    return SearchRecord(
        base_hash=base.hash,
        best_hash=winner.hash,
        best=winner.files(),
        rounds=tuple(one for restart in restarts for one in restart.rounds),
        stopped=_stopped([restart.record().stopped for restart in restarts]),
        episodes=played + spent + again,
        archive=tuple(one for restart in restarts for one in restart.archive.candidates),
        restarts=tuple(restart.record() for restart in restarts),
        finalists=finalists,
        confirmation=confirmation,
        draws=shared.selection.stream.draws,
    )


def _affordable(part: Steps[Result], evaluator: Evaluator, proposer: Proposer) -> Result | None:
    """The part's result; None when episodes cost more than estimated and the budget can't pay for it."""
    try:
        return alone(part, evaluator=evaluator, proposer=proposer)
    except BudgetUsed:
        return None


def _leader(restarts: Sequence[_Restart]) -> HarnessBundle:
    """The incumbent with most accepted edits: where there is nothing left to compare them with."""
    return max(restarts, key=lambda one: (one.accepted, -one.index)).incumbent


def _rungs(shared: _Shared, restarts: Sequence[_Restart], evaluator: Evaluator, proposer: Proposer) -> None:
    """Successive halving: generations that a stopped restart leaves over go to the next rung."""
    config = shared.task.config
    rungs = schedule(restarts=config.restarts, generations=config.generations, factor=config.halving)
    alive, left = list(restarts), 0
    for number, rung in enumerate(rungs):
        left += rung.generations
        each, before = left // max(1, len(alive)), sum(len(one.rounds) for one in restarts)
        side_by_side([one.run(each) for one in alive], evaluator=evaluator, proposer=proposer)
        left -= sum(len(one.rounds) for one in restarts) - before
        if number + 1 < len(rungs):
            alive = alone(_halve(shared, restarts, alive, rungs[number + 1].restarts, number), evaluator=evaluator, proposer=proposer)


def _halve(shared: _Shared, restarts: Sequence[_Restart], alive: Sequence[_Restart], keep: int, number: int) -> Steps[list[_Restart]]:
    """Rank the restarts on search instances that all share, and keep the best of those that can go on."""
    items = shared.search.draw_shared(f"rung-{number}", count=shared.task.config.search_instances)
    answer: Answer = yield Wish(plays=tuple(Play(one.incumbent, items, "rung") for one in alive))
    for one, played in zip(alive, answer.episodes, strict=True):
        one.episodes += len(played)
        one.rung_rates.append(_rate(played))
    ranked = sorted(
        (one for one in alive if not one.stopped), key=lambda one: (-one.rung_rates[-1], -one.accepted, -_promise(one), one.index)
    )
    for one in ranked[keep:]:
        one.stopped = f"halved away after {len(one.rounds)} generations"
    return ranked[:keep]


def _promise(restart: _Restart) -> float:
    """Largest gain in a race of the last generation: tells restarts with the same incumbent apart."""
    return max((one.delta for one in restart.rounds[-1].races), default=0.0) if restart.rounds else 0.0


def _final(shared: _Shared, base: HarnessBundle, restarts: Sequence[_Restart]) -> Steps[tuple[HarnessBundle, tuple[Finalist, ...], int]]:
    """The best of the restarts' harnesses, by fresh selection instances that all of them play; with what was played."""
    found = {one.incumbent.hash: one.incumbent for one in restarts if one.incumbent.hash != base.hash}
    if len(found) < 2:
        return next(iter(found.values()), base), (), 0
    items = shared.selection.draw("final", count=shared.task.config.gate_instances)
    answer: Answer = yield Wish(plays=tuple(Play(bundle, items, "final") for bundle in found.values()))
    shown = [
        Finalist(harness_hash=name, successes=sum(episode.success for episode in played.values()), instances=len(played))
        for name, played in zip(found, answer.episodes, strict=True)
    ]
    best = max(shown, key=lambda one: one.successes / max(1, one.instances))
    return found[best.harness_hash], tuple(shown), sum(one.instances for one in shown)


def _confirm(shared: _Shared, base: HarnessBundle, winner: HarnessBundle) -> Steps[Confirmation | None]:
    """Base and winner on instances that served no decision: a winner chosen for its figures flatters itself."""
    count = shared.task.config.confirm_instances
    if not count:
        return None
    items = shared.selection.draw("confirm", count=count)
    answer: Answer = yield Wish(plays=(Play(base, items, "confirm"), Play(winner, items, "confirm")))
    return Confirmation.of(("h0", "h*"), (base, winner), answer.episodes, seed=shared.task.seed)


def _past(run: Raced, one: Race, outcome: str) -> PastEdit:
    """A race for proposers to read, against the edit's own parent; of the gate nothing but its outcome."""
    outcome = outcome or ("stopped early, being behind" if one.futile else "raced, another edit gained more")
    before = run.entrant.parent_traces
    pairs = [(before[item].success, episode.success) for item, episode in run.played.items() if item in before]
    delta = sum(now - then for then, now in pairs) / len(pairs) if pairs else None
    return PastEdit(one.component, one.mechanism, one.hypothesis, outcome, delta, len(pairs), one.forecast)


def _stopped(reasons: Sequence[str]) -> str:
    """Why the restarts ended, in words; one restart's own reason as it is."""
    if len(reasons) == 1:
        return reasons[0]
    return "; ".join(f"{count} of {len(reasons)} restarts: {reason}" for reason, count in Counter(reasons).items())


def _in_turn(offered: Sequence[Sequence[tuple[HarnessBundle, Edit]]]) -> Iterable[tuple[HarnessBundle, Edit]]:
    """First edits of all calls, then the second ones, and so on."""
    for place in range(max((len(edits) for edits in offered), default=0)):
        yield from (edits[place] for edits in offered if place < len(edits))


def _outcomes(played: Episodes) -> dict[str, tuple[int, ...]]:
    return {task_key(item): (int(episode.success),) for item, episode in played.items()}


def _rate(episodes: Episodes) -> float:
    return sum(episode.success for episode in episodes.values()) / max(1, len(episodes))
