"""The three tiers of evidence as objects: what each may be asked for is what it can do (I8).

`SearchTier` gives instances and packs full traces for proposers. `SelectionTier` gives instances to the evaluator and, of what was played
there, one verdict. `SealedTier` gives the test instances once, for named artifacts, and the store keeps the opening. Each draws from a
seed of its own that leads to no other tier's: who holds a `SearchTier` can't compute a selection instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coevo.chat import ToolSpec
from coevo.errors import StoreError
from coevo.evolve.gate import Arm, GateConfig, GateDecision, NullCheck, PairedGate, SelectionStream
from coevo.evolve.propose import Evidence, PastEdit
from coevo.identity import derive_seed
from coevo.ports import BlobStore, PutResult
from coevo.records import Episode, Record
from coevo.rollout import draw_items
from coevo.tasks.family import Size, Stream, TaskFamily

__all__ = ["Opening", "SealedTier", "SearchTier", "SelectionTier", "Side", "task_key"]

_BLOCK = 2**40


def task_key(item: str) -> str:
    """The task key of an item, without reading it."""
    return item.rpartition("#")[0]


@dataclass(frozen=True, slots=True)
class SearchTier:
    """Instances whose full traces proposers and training may see. Picklable; holds nothing of the other tiers.

    Attributes:
        family, size, diversity: What instances are drawn.
        root: Seed of this tier alone.
    """

    family: TaskFamily
    size: Size
    diversity: int
    root: int

    @classmethod
    def of(cls, family: TaskFamily, size: Size, diversity: int, *, seed: int) -> SearchTier:
        """The search tier of a run's seed, which can't be found again from it."""
        return cls(family, size, diversity, derive_seed("search", seed))

    def draw(self, *, first: int, count: int, restart: int = 0) -> tuple[str, ...]:
        """`count` items of a restart's own sequence, from number `first` on."""
        start = self.root if restart == 0 else derive_seed(self.root, "restart", restart)
        return self._items(start % _BLOCK + first, count)

    def draw_shared(self, name: str, *, count: int) -> tuple[str, ...]:
        """`count` items under a name, for all restarts alike."""
        return self._items(derive_seed(self.root, "shared", name) % _BLOCK, count)

    def evidence(self, traces: Iterable[Episode], *, past: Sequence[PastEdit] = ()) -> Evidence:
        """What a proposer gets. Raises `ConfigError` for a trace of another tier."""
        return Evidence(tuple(traces), self.tools, tuple(past))

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The family's tools."""
        return self.family.tools(self.size)

    def _items(self, first: int, count: int) -> tuple[str, ...]:
        return draw_items(self.family, Stream.SEARCH, self.size, range(first, first + count), diversity=self.diversity)


@dataclass(frozen=True, slots=True)
class Side:
    """What one harness did at a gate; read by `SelectionTier` alone."""

    harness_hash: str
    episodes: Mapping[str, Episode]


@dataclass(frozen=True, slots=True)
class SelectionTier:
    """Fresh instances per decision, and of each decision one aggregate verdict; no trace leaves it.

    Attributes:
        family, size, diversity: What instances are drawn.
        stream: Hands out seeds per draw.
        gate: Decides.
    """

    family: TaskFamily
    size: Size
    diversity: int
    stream: SelectionStream
    gate: PairedGate

    @classmethod
    def of(cls, family: TaskFamily, size: Size, diversity: int, *, seed: int, config: GateConfig) -> SelectionTier:
        """The selection tier of a run's seed."""
        return cls(family, size, diversity, SelectionStream(seed), PairedGate(config))

    def draw(self, name: str, *, count: int) -> tuple[str, ...]:
        """Items of a draw, the same on every call, shared with no other draw."""
        seeds = self.stream.draw(name, count=count)
        return draw_items(self.family, Stream.SELECTION, self.size, seeds, diversity=self.diversity)

    def verdict(self, name: str, *, alpha: float, incumbent: Side, candidate: Side, null: Side) -> GateDecision:
        """The gate's decision on what both sides played. Owed episodes are left out of both (I3)."""
        items = [item for item in incumbent.episodes if item in candidate.episodes]
        arms = [_arm(side, items) for side in (incumbent, candidate)]
        check = NullCheck(sum(episode.success for episode in null.episodes.values()), len(null.episodes))
        return self.gate.decide(gate_id=name, alpha=alpha, incumbent=arms[0], candidate=arms[1], null=check)


def _arm(side: Side, items: Sequence[str]) -> Arm:
    keys = {item: task_key(item) for item in items}
    tokens = {keys[item]: (float(_tokens(side.episodes[item])),) for item in items}
    return Arm(side.harness_hash, {keys[item]: (int(side.episodes[item].success),) for item in items}, tokens)


def _tokens(episode: Episode) -> int:
    return episode.usage.prompt_tokens + episode.usage.completion_tokens


class Opening(Record):
    """That the test tier was opened, for what, and how many instances."""

    artifacts: tuple[str, ...]
    instances: int


@dataclass(frozen=True, slots=True)
class SealedTier:
    """The test instances: given out once, for artifacts that exist by then.

    Attributes:
        family, size, diversity: What instances are drawn.
        root: Seed of this tier alone.
    """

    family: TaskFamily
    size: Size
    diversity: int
    root: int

    @classmethod
    def of(cls, family: TaskFamily, size: Size, diversity: int, *, seed: int) -> SealedTier:
        """The test tier of a run's seed."""
        return cls(family, size, diversity, derive_seed("test", seed))

    def items(self, instances: int, *, repeats: int = 1) -> tuple[str, ...]:
        """The items by name, to keep other stages off them: naming opens none."""
        first = self.root % _BLOCK
        return draw_items(self.family, Stream.TEST, self.size, range(first, first + instances), diversity=self.diversity, repeats=repeats)

    def open(self, store: BlobStore, key: str, *, artifacts: Sequence[str], instances: int, repeats: int = 1) -> tuple[str, ...]:
        """The items, after the opening is in the store.

        Args:
            store: Keeps the opening.
            key: Where.
            artifacts: Hashes of all that will be measured. The same list may come again: a resumed measurement.
            instances: How many.
            repeats: Episodes per instance.

        Raises:
            StoreError: It was opened before for something else: a decision after an opening may have used what it showed.
        """
        opening = Opening(artifacts=tuple(sorted(artifacts)), instances=instances)
        if store.put_if_absent(key, opening.to_bytes()) is PutResult.CONFLICT:
            before = Opening.from_bytes(store.get(key))
            seen = (
                f"opened for {len(before.artifacts)} artifacts on {before.instances} instances, now {len(opening.artifacts)} on {instances}"
            )
            raise StoreError("the test stream was opened before, for something else", seen=seen, fix="take another run name for a new test")
        return self.items(instances, repeats=repeats)
