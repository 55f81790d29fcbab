"""The three tiers of evidence as objects: what each may be asked for is what it can do (I8).

`SearchTier` gives instances and packs full traces for proposers. `SelectionTier` gives instances to the evaluator and, of what was played
there, one verdict. `SealedTier` gives the test instances once, for named artifacts, and the store keeps the opening; unopened it says no
more than whether a task key is one of its own. Each draws from a seed of its own that leads to no other tier's: who holds a `SearchTier`
can't compute a selection instance. A `Play` of a search refuses test instances, wherever they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coevo.chat import ToolSpec
from coevo.errors import StoreError
from coevo.evolve.gate import Arm, GateConfig, GateDecision, NullCheck, PairedGate, SelectionStream
from coevo.evolve.propose import Evidence, PastEdit
from coevo.identity import content_hash, derive_seed
from coevo.ports import BlobStore, PutResult
from coevo.records import Episode, Record
from coevo.rollout import draw_items
from coevo.store.keys import join
from coevo.store.threads import fetch_all
from coevo.tasks.family import Size, Stream, TaskFamily

__all__ = ["Opening", "SealedTier", "SearchTier", "SelectionTier", "Side", "TaskMarks", "read_openings", "task_key"]

_BLOCK = 2**40
_OPENINGS = "openings"


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


@dataclass(frozen=True, slots=True)
class TaskMarks:
    """Task keys that can be recognized and not read: a guard asks `key in marks`, and learns of no key that it does not have.

    Attributes:
        hashes: SHA-256 of each key.
    """

    hashes: frozenset[str] = field(repr=False)

    @classmethod
    def of(cls, keys: Iterable[str]) -> TaskMarks:
        """The marks of these keys."""
        return cls(frozenset(content_hash(key.encode()) for key in keys))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and content_hash(key.encode()) in self.hashes

    def __or__(self, other: TaskMarks) -> TaskMarks:
        return TaskMarks(self.hashes | other.hashes)


class Opening(Record):
    """That the test tier was opened, by whom, and for what.

    Attributes:
        stage: The stage that opened it.
        harnesses, models: Hashes and ids of all that is measured there.
        instances, repeats: How many instances, and episodes of each.
        items_hash: SHA-256 of the list of items that were given out.
    """

    stage: str
    harnesses: tuple[str, ...]
    models: tuple[str, ...]
    instances: int
    repeats: int = 1
    items_hash: str

    @property
    def words(self) -> str:
        """The opening for people."""
        what = f"{len(self.models)} models under {len(self.harnesses)} harness{'' if len(self.harnesses) == 1 else 'es'}"
        return f"{self.stage}: {self.instances} instances x {self.repeats}, for {what}"


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

    def digest(self, instances: int, *, repeats: int = 1) -> str:
        """SHA-256 of the list of items: tells what a measurement would be made on, and gives nothing out."""
        return content_hash(list(self._items(instances, repeats)))

    def marks(self, instances: int) -> TaskMarks:
        """What keeps other stages off these instances."""
        return TaskMarks.of(task_key(item) for item in self._items(instances, 1))

    def open(
        self, store: BlobStore, run: str, *, stage: str, harnesses: Iterable[str], models: Iterable[str], instances: int, repeats: int = 1
    ) -> tuple[str, ...]:
        """The items, after the opening is in the store.

        Args:
            store: Keeps the opening.
            run: Run name: openings lie below it.
            stage: Who asks; a stage opens once.
            harnesses: Hashes of all that will be measured. The same ones may come again: a resumed measurement.
            models: Their models' ids.
            instances: How many.
            repeats: Episodes per instance.

        Raises:
            StoreError: The stage opened it before for something else: a decision after an opening may have used what it showed.
        """
        items = self._items(instances, repeats)
        opening = Opening(
            stage=stage,
            harnesses=tuple(sorted(set(harnesses))),
            models=tuple(sorted(set(models))),
            instances=instances,
            repeats=repeats,
            items_hash=content_hash(list(items)),
        )
        key = join(run, _OPENINGS, f"{stage}.json")
        if store.put_if_absent(key, opening.to_bytes()) is PutResult.CONFLICT:
            before = Opening.from_bytes(store.get(key))
            if before != opening:
                fix = "take another run name and another seed for a new test"
                raise StoreError(
                    "the test stream was opened before, for something else", seen=f"{before.words}; now {opening.words}", fix=fix
                )
        return items

    def _items(self, instances: int, repeats: int) -> tuple[str, ...]:
        first = self.root % _BLOCK
        return draw_items(self.family, Stream.TEST, self.size, range(first, first + instances), diversity=self.diversity, repeats=repeats)


def read_openings(store: BlobStore, run: str) -> tuple[Opening, ...]:
    """Every opening of a run, by stage."""
    keys = sorted(info.key for info in store.list(join(run, _OPENINGS) + "/"))
    return tuple(map(Opening.from_bytes, fetch_all(store, keys)))
