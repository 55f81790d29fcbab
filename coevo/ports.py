"""The protocols that `cluster` implements and the method is written against.

Whatever crosses Ray is a *source*: frozen, picklable configuration with an `open()` that builds the connection inside the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from coevo.chat import Completion, ModelRequest
from coevo.records import Adapter

__all__ = [
    "BlobInfo",
    "BlobStore",
    "ChatModel",
    "Executor",
    "ItemOutcome",
    "ItemState",
    "MapReport",
    "ModelSource",
    "Progress",
    "Publisher",
    "PutResult",
    "Scorer",
    "Skipped",
    "Stage",
    "StageWorker",
    "StoreSource",
    "Tokenizer",
    "Trainer",
    "TrainingJob",
]


@runtime_checkable
class ChatModel(Protocol):
    """Anything that takes a turn.

    Contract (`tests/contract/test_chat_models.py`): `complete` is safe to call concurrently; raises `InfraError` for transport and
    capacity trouble, `ModelError` for an unusable answer, nothing else; `model_id` names the weights and never changes.
    """

    @property
    def model_id(self) -> str: ...

    async def complete(self, request: ModelRequest) -> Completion: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Scorer(Protocol):
    """Teacher-forced scoring: natural-log probability of each of `completion` given `prompt` (same length as `completion`)."""

    async def logprobs(self, prompt: Sequence[int], completion: Sequence[int], *, model_id: str = "") -> tuple[float, ...]: ...


class ModelSource(Protocol):
    """Picklable recipe of a ChatModel. `open()` is called in the worker that uses it."""

    @property
    def model_id(self) -> str: ...

    def open(self) -> ChatModel: ...


@runtime_checkable
class Tokenizer(Protocol):
    """Text <-> ids without adding special tokens by itself; special tokens in the text are recognised."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class BlobInfo(NamedTuple):
    """A stored object: key, size in bytes, ETag (opaque, changes with the bytes), Unix time of its last write in whole seconds (None
    where the store does not tell).
    """

    key: str
    size_bytes: int
    etag: str
    modified_s: float | None = None


class PutResult(StrEnum):
    """Outcome of a conditional put."""

    WRITTEN = "written"
    """The object did not exist and now holds these bytes."""
    SAME = "same"
    """It existed with exactly these bytes (a retry of our own put): success."""
    CONFLICT = "conflict"
    """It exists with other bytes; nothing was changed."""


@runtime_checkable
class BlobStore(Protocol):
    """Object storage. Keys are `/`-separated, relative, without `..`; values are bytes.

    Contract (`tests/contract/test_stores.py`): `put_if_absent` is atomic among concurrent writers (exactly one WRITTEN);
    a reader sees all of an object or nothing; `put_if_match(etag=None)` creates, else replaces only that version and returns the
    new ETag or None when it lost; `list` is sorted by key; a missing key raises `StoreError` from `get`, gives None from `head`.
    """

    @property
    def uri(self) -> str: ...

    def get(self, key: str) -> bytes: ...

    def head(self, key: str) -> BlobInfo | None: ...

    def put_if_absent(self, key: str, data: bytes) -> PutResult: ...

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> str | None: ...

    def list(self, prefix: str) -> Iterator[BlobInfo]: ...

    def delete(self, key: str) -> None: ...


class StoreSource(Protocol):
    """Picklable recipe of a BlobStore."""

    @property
    def uri(self) -> str: ...

    def open(self) -> BlobStore: ...


class ItemState(StrEnum):
    """Where an item of a fan-out ended."""

    COMMITTED = "committed"
    """Its record is in the store."""
    SKIPPED = "skipped"
    """Its record was in the store already."""
    OWED = "owed"
    """Tries exhausted or the stage closed: no record, listed in the manifest."""


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """What became of one id. `note` is a small JSON-able index row; `error` the tail of the last root traceback."""

    item: str
    state: ItemState
    attempts: int = 1
    error: str = ""
    note: Any = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """What `StageWorker.run` returns for an item whose record was in the store already; the outcome is then SKIPPED, not COMMITTED."""

    note: Any = None


@runtime_checkable
class StageWorker(Protocol):
    """The opened form of a stage inside a worker: commits each result to the store itself.

    `run` raises `InfraError` for what should be retried; a task failure is a committed record, not an exception. Its value becomes the
    outcome's `note` (`Skipped(note)` marks a record that existed); a mapping with an integer `tokens` feeds the progress count.
    """

    async def run(self, item: str, attempt: int) -> Any: ...

    async def aclose(self) -> None: ...


class Stage(Protocol):
    """Picklable description of a stage. Only `items` (short strings) travel; `open()` builds clients in the worker."""

    @property
    def name(self) -> str: ...

    def open(self) -> StageWorker: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot for displays: counts so far."""

    stage: str
    done: int
    total: int
    owed: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class MapReport:
    """All outcomes of one `map`, in the order of the given items: expected = committed + skipped + owed."""

    outcomes: tuple[ItemOutcome, ...]
    wall_s: float = 0.0

    @property
    def owed(self) -> tuple[ItemOutcome, ...]:
        """The items without a record."""
        return tuple(outcome for outcome in self.outcomes if outcome.state is ItemState.OWED)

    def owed_listing(self, *, shown: int = 8) -> str:
        """What is owed, for people: counts, the first ids with their attempts, and how the last of them ended."""
        owed = self.owed
        ids = ", ".join(f"{one.item} ({one.attempts} attempts)" for one in owed[:shown])
        more = f" and {len(owed) - shown} more" if len(owed) > shown else ""
        lines = [line for line in owed[-1].error.splitlines() if line and not line[0].isspace()] if owed else []
        return f"{len(owed)} of {len(self.outcomes)} owed: {ids}{more}" + (f"; last error: {lines[-1][:300]}" if lines else "")


class Executor(Protocol):
    """Fan-out. No exception of an item leaves `map`; every given item appears exactly once in the report."""

    def map(self, stage: Stage, items: Sequence[str], *, on_progress: Callable[[Progress], None] | None = None) -> MapReport: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One fine-tuning: rows in the store -> adapter in the store.

    Attributes:
        base_model_id: Served id of the base.
        base_path: Hugging Face folder of the base model.
        arm: Data arm.
        rows_key: Parquet of `TrainingRow`s in the store.
        data_hash: Identity of the rows.
        seed: Training seed.
        output_prefix: Store prefix of the adapter folder.
        settings: Dump of `coevo.config.TrainConfig`.
    """

    base_model_id: str
    base_path: str
    arm: str
    rows_key: str
    data_hash: str
    seed: int
    output_prefix: str
    settings: dict[str, Any] = field(default_factory=dict)


class Trainer(Protocol):
    """Fine-tuning with resume: a job whose adapter manifest exists returns it without work."""

    def train(self, job: TrainingJob) -> Adapter: ...


class Publisher(Protocol):
    """Makes an adapter servable under its immutable id and proves it (canary); raises `StoreError` when the id is taken by other
    weights and `ModelError` when the served weights are not the trained ones.
    """

    def publish(self, adapter: Adapter, *, canary_rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> ModelSource: ...
