"""What a stage leaves behind: content-named parts, then one manifest that closes it.

A stage is done if and only if its manifest exists, and a manifest exists only when everything it names does (I5). The manifest accounts
for every expected row: written + dropped + failed + owed, each with its reason (R2). Parts carry their content hash in the key, so a killed
writer's leftovers never collide with the next try; what no manifest names is garbage.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from coevo.chat import Usage
from coevo.errors import StoreError
from coevo.identity import content_hash, short
from coevo.ports import BlobStore, PutResult
from coevo.records import Record, UsageRecord
from coevo.store.keys import check_key, join
from coevo.store.run_directory import RunDirectory
from coevo.store.tables import decode_records, encode_records, encode_rows, read_parquet, table_of

__all__ = [
    "Held",
    "OutputRecord",
    "OwedRecord",
    "RowCounts",
    "RunDirectory",
    "StageKey",
    "StageManifest",
    "StageWriter",
    "input_hash",
    "is_done",
    "read_manifest",
    "read_records",
    "read_rows",
]

R = TypeVar("R", bound=Record)

_PART = re.compile(r"-\d{5}-[0-9a-f]+(\.[a-z0-9.]+)?\Z")
"""What `StageWriter` puts behind the name of an output."""


class OutputRecord(BaseModel):
    """One object that a stage wrote: key in the store, SHA-256 of its bytes, rows in it (None where it holds no rows)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    hash: str
    rows: int | None = None


class OwedRecord(BaseModel):
    """An id without a record after `attempts` tries."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    attempts: int


class RowCounts(BaseModel):
    """What became of the expected rows; `dropped` and `failed` count by reason."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    written: int = 0
    dropped: dict[str, int] = Field(default_factory=dict)
    failed: dict[str, int] = Field(default_factory=dict)

    @property
    def total(self) -> int:
        """Rows accounted for, owed ones excluded."""
        return self.written + sum(self.dropped.values()) + sum(self.failed.values())


class Held(NamedTuple):
    """Seconds for which a run's processes held what they reserved, and what that cost.

    Reserved, not busy: an idle replica is paid too. Engines count from the moment their process exists until it ends, so a node that boots
    or lingers is not in it; the cloud's own bill is.

    Attributes:
        gpu_s: GPU-seconds.
        cpu_s: Logical-CPU-seconds of the same processes.
        usd: Dollars at the configured prices; None without a price.
        expert_usd: Dollars paid to experts meanwhile; None without a price, or without an expert that is paid.
    """

    gpu_s: float = 0.0
    cpu_s: float = 0.0
    usd: float | None = None
    expert_usd: float | None = None

    def since(self, before: Held) -> Held:
        """What was added after `before`; a price may have become known in between."""
        usd = self.usd - (before.usd or 0.0) if self.usd is not None else None
        expert_usd = self.expert_usd - (before.expert_usd or 0.0) if self.expert_usd is not None else None
        return Held(self.gpu_s - before.gpu_s, self.cpu_s - before.cpu_s, usd, expert_usd)


class StageManifest(Record):
    """The closing record of a stage.

    `inputs` maps name -> content hash. `tokens` are prompt and completion tokens of our own engines and of experts; the three counts
    below say how many of which kind where that was counted. `gpu_s` and `cpu_s` are held seconds (`Held`) of the process that closed the
    stage, from the manifest before it on: a resumed stage counts from its resumption. `cost_usd` = `compute_usd` + `expert_usd`, as far
    as prices are known. None = not measured, or no price.
    """

    stage: str
    input_hash: str
    inputs: dict[str, str]
    code_version: str
    config_hash: str
    expected: int
    rows: RowCounts
    owed: tuple[OwedRecord, ...] = ()
    tokens: int = 0
    cost_usd: float | None = None
    wall_s: float = 0.0
    outputs: tuple[OutputRecord, ...] = ()
    gpu_s: float | None = None
    cpu_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    compute_usd: float | None = None
    expert_usd: float | None = None

    def output(self, name: str) -> OutputRecord:
        """The output that was written as `name`, else the only one whose file name starts with it.

        Raises:
            StoreError: None, or more than one.
        """
        files = {output.key.rpartition("/")[2]: output for output in self.outputs}
        written = [output for file, output in files.items() if _PART.sub("", file) == name]
        found = written or [output for file, output in files.items() if file.startswith(name)]
        if len(found) != 1:
            seen = ", ".join(output.key for output in self.outputs) or "(none)"
            raise StoreError(f"the stage {self.stage} has {len(found)} outputs named {name!r}", seen=seen, fix="use one of these names")
        return found[0]


class StageKey(NamedTuple):
    """Where a stage lives: `<run>/<stage>/<input hash>`."""

    run: str
    stage: str
    input_hash: str

    @property
    def prefix(self) -> str:
        """Common start of all its keys, without the last `/`."""
        return check_key(join(self.run, self.stage, self.input_hash))

    @property
    def manifest(self) -> str:
        """Key of the manifest."""
        return f"{self.prefix}/manifest.json"


def input_hash(stage: str, inputs: Mapping[str, str], *, config_hash: str = "") -> str:
    """Identity of a stage's work: its name, its inputs by hash and the configuration it reads.

    The code version is recorded but not part of it: a patch must not throw paid work away.
    """
    return content_hash({"stage": stage, "inputs": dict(inputs), "config": config_hash})


def read_manifest(store: BlobStore, key: StageKey) -> StageManifest | None:
    """The manifest, or None while the stage is not done."""
    if store.head(key.manifest) is None:
        return None
    return StageManifest.from_bytes(store.get(key.manifest))


def is_done(store: BlobStore, key: StageKey) -> bool:
    """True if and only if the manifest exists."""
    return store.head(key.manifest) is not None


def read_rows(store: BlobStore, outputs: Sequence[OutputRecord], *, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of Parquet outputs in order. Raises `StoreError` when an object is not what its manifest says."""
    for output in outputs:
        yield from read_parquet(_verified(store, output), columns=columns)


def read_records(store: BlobStore, outputs: Sequence[OutputRecord], kind: type[R]) -> Iterator[R]:
    """Records of Parquet outputs in order. Raises `StoreError` when an object is not what its manifest says."""
    for output in outputs:
        yield from decode_records(_verified(store, output), kind)


def _verified(store: BlobStore, output: OutputRecord) -> bytes:
    data = store.get(output.key)
    if content_hash(data) != output.hash:
        raise StoreError(
            "an object is not the one its manifest names", seen=f"{output.key}: {content_hash(data)}", fix="delete the stage and run again"
        )
    return data


def _add(one: Held, other: Held) -> Held:
    usd, expert_usd = _sum(one.usd, other.usd), _sum(one.expert_usd, other.expert_usd)
    return Held(one.gpu_s + other.gpu_s, one.cpu_s + other.cpu_s, usd, expert_usd)


def _sum(*amounts: float | None) -> float | None:
    """Of what is known; None when nothing is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


@dataclass(slots=True)
class StageWriter:
    """Writes one stage: `begin`, then parts and counts in any order, then `commit`. Nothing counts before `commit`.

    Not safe among threads; one stage has one writer. Two processes that write the same stage both succeed: the first manifest stands.
    """

    store: BlobStore
    key: StageKey
    inputs: dict[str, str]
    expected: int
    code_version: str
    config_hash: str
    clock: Callable[[], float] = time.monotonic
    meter: Callable[[], Held] | None = None
    _outputs: list[OutputRecord] = field(default_factory=list)
    _written: int = 0
    _dropped: dict[str, int] = field(default_factory=dict)
    _failed: dict[str, int] = field(default_factory=dict)
    _owed: dict[str, int] = field(default_factory=dict)
    _tokens: int = 0
    _usage: Usage | None = None
    _held: Held = field(default_factory=Held)
    _started: float = 0.0

    @classmethod
    def begin(
        cls,
        store: BlobStore,
        *,
        run: str,
        stage: str,
        inputs: Mapping[str, str],
        expected: int,
        code_version: str,
        config_hash: str = "",
        clock: Callable[[], float] = time.monotonic,
        meter: Callable[[], Held] | None = None,
    ) -> StageWriter:
        """A writer for the stage that these inputs define.

        Args:
            store: Where to write.
            run: Run name.
            stage: Stage name.
            inputs: Name -> content hash of everything that is read.
            expected: Rows that must be accounted for.
            code_version: Version of the code, recorded.
            config_hash: Hash of the configuration that the stage reads.
            clock: Monotonic seconds.
            meter: What the stage's processes have held, read once, by `commit`; None measures nothing.
        """
        key = StageKey(run, stage, input_hash(stage, inputs, config_hash=config_hash))
        writer = cls(store, key, dict(inputs), expected, code_version, config_hash, clock, meter)
        writer._started = clock()
        return writer

    def write_rows(self, rows: Iterable[Mapping[str, Any]], schema: Any, *, name: str = "part", counted: bool = True) -> OutputRecord:
        """Write one Parquet part with an explicit `pyarrow.Schema`; `counted` rows enter the completeness sum."""
        listed = list(rows)
        return self._put(name, "parquet", encode_rows(listed, schema), rows=len(listed), counted=counted)

    def write_records(self, records: Sequence[Record], *, name: str = "part", counted: bool = True) -> OutputRecord:
        """Write records of one kind as a Parquet part.

        Raises:
            StoreError: No records, or of several kinds.
        """
        kinds = {type(record) for record in records}
        if len(kinds) != 1:
            seen = ", ".join(sorted(kind.__name__ for kind in kinds)) or "(none)"
            raise StoreError("a part holds records of exactly one kind", seen=seen, fix="write one part per kind, none for no records")
        return self._put(name, "parquet", encode_records(records, table_of(kinds.pop())), rows=len(records), counted=counted)

    def write_bytes(self, name: str, data: bytes) -> OutputRecord:
        """Write one object that holds no rows. `name` may carry an extension, kept at the end of the key."""
        stem, _, extension = name.partition(".")
        return self._put(stem, extension, data, rows=None, counted=False)

    def name_output(self, key: str, *, hash: str, rows: int | None = None) -> OutputRecord:
        """Name an object that is in the store already; its rows are not counted."""
        output = OutputRecord(key=check_key(key), hash=hash, rows=rows)
        self._outputs.append(output)
        return output

    def wrote(self, rows: int) -> None:
        """Count rows that committed themselves (episodes)."""
        self._written += rows

    def drop(self, reason: str, rows: int = 1) -> None:
        """Count rows left out on purpose."""
        self._dropped[reason] = self._dropped.get(reason, 0) + rows

    def fail(self, reason: str, rows: int = 1) -> None:
        """Count rows that could not be made."""
        self._failed[reason] = self._failed.get(reason, 0) + rows

    def owe(self, id: str, *, attempts: int) -> None:
        """List an id whose tries are exhausted; twice the same id counts once."""
        self._owed[id] = max(attempts, self._owed.get(id, 0))

    def spend(self, *, tokens: int = 0, usage: Iterable[UsageRecord] | None = None, held: Held | None = None) -> None:
        """Add what was used; dollars stay None until a price is known.

        Args:
            tokens: Prompt and completion tokens whose kinds were not counted.
            usage: Tokens by kind; they are added to `tokens` too.
            held: Held seconds and dollars that the meter does not see, such as those of training workers.
        """
        self._tokens += tokens
        if usage is not None:
            total = self._usage or Usage()
            for one in usage:
                total += Usage(one.prompt_tokens, one.cached_tokens, one.completion_tokens)
                self._tokens += one.prompt_tokens + one.completion_tokens
            self._usage = total
        if held is not None:
            self._held = _add(self._held, held)

    def commit(self) -> StageManifest:
        """Write the manifest and return the one that stands (another writer's, when it was first).

        Raises:
            StoreError: The counts do not add up to `expected`, or a named output is missing. Nothing is written then.
        """
        manifest = self._manifest()
        accounted = manifest.rows.total + len(manifest.owed)
        if accounted != self.expected:
            counts = f"expected {self.expected}, accounted {accounted}: {manifest.rows.model_dump()} and {len(manifest.owed)} owed"
            raise StoreError(
                f"the stage {self.key.stage} lost or invented rows", seen=counts, fix="count every row as written, dropped, failed or owed"
            )
        missing = [output.key for output in self._outputs if self.store.head(output.key) is None]
        if missing:
            raise StoreError(
                f"the stage {self.key.stage} names objects that are not there", seen=", ".join(missing), fix="write outputs before commit"
            )
        if self.store.put_if_absent(self.key.manifest, manifest.to_bytes()) is PutResult.CONFLICT:
            return StageManifest.from_bytes(self.store.get(self.key.manifest))
        return manifest

    def _manifest(self) -> StageManifest:
        measured = self.meter is not None or self._held != Held()
        held, usage = _add(self._held, self.meter() if self.meter is not None else Held()), self._usage
        return StageManifest(
            stage=self.key.stage,
            input_hash=self.key.input_hash,
            inputs=self.inputs,
            code_version=self.code_version,
            config_hash=self.config_hash,
            expected=self.expected,
            rows=RowCounts(written=self._written, dropped=self._dropped, failed=self._failed),
            owed=tuple(OwedRecord(id=id, attempts=attempts) for id, attempts in sorted(self._owed.items())),
            tokens=self._tokens,
            cost_usd=_sum(held.usd, held.expert_usd),
            wall_s=self.clock() - self._started,
            outputs=tuple(self._outputs),
            gpu_s=held.gpu_s if measured else None,
            cpu_s=held.cpu_s if measured else None,
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            cached_tokens=usage.cached_tokens if usage is not None else None,
            completion_tokens=usage.completion_tokens if usage is not None else None,
            compute_usd=held.usd,
            expert_usd=held.expert_usd,
        )

    def _put(self, name: str, extension: str, data: bytes, *, rows: int | None, counted: bool) -> OutputRecord:
        digest = content_hash(data)
        file = f"{name}-{len(self._outputs):05d}-{short(digest)}" + (f".{extension}" if extension else "")
        output = OutputRecord(key=check_key(f"{self.key.prefix}/{file}"), hash=digest, rows=rows)
        if self.store.put_if_absent(output.key, data) is PutResult.CONFLICT:
            raise StoreError(
                "a part with this content hash holds other bytes", seen=output.key, fix="delete the damaged object and run again"
            )
        self._outputs.append(output)
        if counted and rows:
            self._written += rows
        return output
