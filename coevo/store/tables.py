"""Records as Parquet tables: explicit Arrow schemas, columns to query by, and the whole record without loss.

Every table has a `record` column with the record's canonical JSON, which alone is read back; the other columns are copies for scans
(DuckDB, Ray Data, Inspect Scout). Episode columns carry the names of the Inspect Scout transcript schema where it has one
(https://meridianlabs-ai.github.io/inspect_scout/db_schema.html), so that tool opens a compacted folder as a transcript database;
`total_time` is not among them, because wall clock is a fact of attempts and not of outcomes.
pyarrow is imported on first use: importing this module stays quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import Any, Generic, TypeVar

import orjson

from coevo.errors import ConfigError, StoreError, nearest
from coevo.records import CallRecord, Correction, Episode, Localization, MessageRecord, Record, Status, TrainingRow
from coevo.tasks.family import TaskInstance

__all__ = ["TABLES", "RecordTable", "decode_records", "encode_records", "encode_rows", "read_parquet", "table_of"]

R = TypeVar("R", bound=Record)

_ROW_GROUP = 256  # episodes are tens of kB each: a few MB per row group
_TYPES = {"str": "string", "int": "int64", "float": "float64", "bool": "bool_", "bytes": "large_binary"}
_LIMITS = {
    Status.MAX_TURNS: "turns",
    Status.MAX_TOKENS: "tokens",
    Status.CONTEXT_OVERFLOW: "context",
    Status.PARSE_FAILURES: "parse_failures",
}


@dataclass(frozen=True, slots=True)
class RecordTable(Generic[R]):
    """How one kind of record becomes a table.

    Attributes:
        kind: The record class.
        columns: Column name -> type: `str`, `int`, `float`, `bool`, `bytes` or `ints` (list of int64).
        row: The query columns of one record, `record` and `schema_version` excluded.
    """

    kind: type[R]
    columns: Mapping[str, str]
    row: Callable[[R], Mapping[str, Any]]

    def schema(self) -> Any:
        """The `pyarrow.Schema`: `schema_version`, the query columns, `record`."""
        return arrow_schema({"schema_version": "int", **self.columns, "record": "str"})


def arrow_schema(columns: Mapping[str, str]) -> Any:
    """A `pyarrow.Schema` from column name -> type name (see `RecordTable.columns`).

    Raises:
        ConfigError: Unknown type name.
    """
    import pyarrow as pa

    fields = []
    for name, type_name in columns.items():
        if type_name == "ints":
            fields.append(pa.field(name, pa.list_(pa.int64())))
        elif type_name in _TYPES:
            fields.append(pa.field(name, getattr(pa, _TYPES[type_name])()))
        else:
            raise ConfigError("unknown column type", seen=f"{name}: {type_name}", fix=nearest(type_name, [*_TYPES, "ints"]))
    return pa.schema(fields)


def encode_rows(rows: Iterable[Mapping[str, Any]], schema: Any) -> bytes:
    """Rows as a zstd Parquet file with exactly `schema`; equal rows give equal bytes.

    Raises:
        StoreError: A row has a column that the schema lacks, or a value of another type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink, source = BytesIO(), iter(rows)
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        while batch := list(islice(source, _ROW_GROUP)):
            foreign = sorted({name for row in batch for name in row} - set(schema.names))
            if foreign:
                raise StoreError(
                    "a row has columns that its schema lacks", seen=", ".join(foreign), fix=f"columns: {', '.join(schema.names)}"
                )
            try:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise StoreError("a row does not fit its schema", seen=str(error), fix="give every column the declared type") from error
    return sink.getvalue()


def encode_records(records: Iterable[R], table: RecordTable[R]) -> bytes:
    """Records as a zstd Parquet file."""
    return encode_rows((_with_record(record, table) for record in records), table.schema())


def read_parquet(data: bytes, *, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a Parquet file, all columns or the named ones."""
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(BytesIO(data), columns=None if columns is None else list(columns)).to_pylist()
    return rows


def decode_records(data: bytes, kind: type[R]) -> Iterator[R]:
    """The records of a file that `encode_records` wrote."""
    return (kind.from_bytes(row["record"].encode()) for row in read_parquet(data, columns=["record"]))


def table_of(kind: type[R]) -> RecordTable[R]:
    """The table of a record class. Raises `ConfigError` when it has none."""
    for table in TABLES:
        if table.kind is kind:
            return table
    raise ConfigError("this record has no table", seen=kind.__name__, fix=f"known: {', '.join(table.kind.__name__ for table in TABLES)}")


def _with_record(record: R, table: RecordTable[R]) -> dict[str, Any]:
    return {"schema_version": record.schema_version, **table.row(record), "record": record.to_bytes().decode()}


def _scout_calls(calls: Sequence[CallRecord], index: int) -> list[dict[str, Any]]:
    return [
        {"id": f"call-{index}-{number}", "function": call.name, "arguments": call.arguments, "type": "function"}
        for number, call in enumerate(calls)
    ]


def _scout_messages(messages: Sequence[MessageRecord]) -> str:
    """JSON of Inspect `ChatMessage`s; a tool message answers the latest call before it."""
    out: list[dict[str, Any]] = []
    answered: dict[str, str] = {}
    for index, message in enumerate(messages):
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.calls:
            entry["tool_calls"] = _scout_calls(message.calls, index)
            last = entry["tool_calls"][-1]
            answered = {"tool_call_id": last["id"], "function": last["function"]}
        elif message.role == "tool":
            entry |= answered
        out.append(entry)
    return orjson.dumps(out).decode()


def _episode_row(episode: Episode) -> dict[str, Any]:
    spec, grade, usage = episode.spec, episode.grade, episode.usage
    return {
        "transcript_id": episode.id,
        "source_type": "coevo",
        "source_id": spec.harness_hash,
        "task_set": TaskInstance.parse(spec.task_key).family,
        "task_id": spec.task_key,
        "task_repeat": spec.repeat,
        "agent": spec.harness_hash,
        "model": spec.model_id,
        "model_options": orjson.dumps(spec.sampling).decode(),
        "score": None if grade is None else grade.score,
        "success": None if grade is None else grade.success,
        "message_count": len(episode.messages),
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "error": episode.error or None,
        "limit": _LIMITS.get(episode.status),
        "messages": _scout_messages(episode.messages),
        "status": episode.status.value,
        "turns": len(episode.turns),
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost_usd": episode.cost_usd,
        "log_hash": episode.log_hash,
        "branch": spec.branch,
    }


def _row_row(row: TrainingRow) -> dict[str, Any]:
    return {
        "arm": row.arm,
        "episode_id": row.episode_id,
        "turn": row.turn,
        "task_key": row.task_key,
        "source": row.source,
        "prompt_origin": row.prompt_origin.value,
        "prompt_token_ids": list(row.prompt_token_ids),
        "completion_token_ids": list(row.completion_token_ids),
        "loss_start": row.loss_span.start,
        "loss_stop": row.loss_span.stop,
    }


def _localization_row(record: Localization) -> dict[str, Any]:
    return {
        "episode_id": record.episode_id,
        "turn": record.turn,
        "method": record.method,
        "continuations": record.continuations,
        "alpha": record.alpha,
        "cost_usd": record.cost.usd,
    }


def _correction_row(record: Correction) -> dict[str, Any]:
    return {
        "episode_id": record.episode_id,
        "turn": record.turn,
        "original": record.original,
        "rewritten": record.rewritten,
        "verified": record.verified,
        "gain_lower": record.gain_lower,
        "student_nll": record.student_nll,
        "chosen_by": record.chosen_by,
        "expert_model_id": record.expert_model_id,
    }


_EPISODES = RecordTable(
    Episode,
    {
        "transcript_id": "str",
        "source_type": "str",
        "source_id": "str",
        "task_set": "str",
        "task_id": "str",
        "task_repeat": "int",
        "agent": "str",
        "model": "str",
        "model_options": "str",
        "score": "float",
        "success": "bool",
        "message_count": "int",
        "total_tokens": "int",
        "error": "str",
        "limit": "str",
        "messages": "str",
        "status": "str",
        "turns": "int",
        "prompt_tokens": "int",
        "cached_tokens": "int",
        "completion_tokens": "int",
        "cost_usd": "float",
        "log_hash": "str",
        "branch": "str",
    },
    _episode_row,
)
_TRAINING_ROWS = RecordTable(
    TrainingRow,
    {
        "arm": "str",
        "episode_id": "str",
        "turn": "int",
        "task_key": "str",
        "source": "str",
        "prompt_origin": "str",
        "prompt_token_ids": "ints",
        "completion_token_ids": "ints",
        "loss_start": "int",
        "loss_stop": "int",
    },
    _row_row,
)
_LOCALIZATIONS = RecordTable(
    Localization,
    {"episode_id": "str", "turn": "int", "method": "str", "continuations": "int", "alpha": "float", "cost_usd": "float"},
    _localization_row,
)
_CORRECTIONS = RecordTable(
    Correction,
    {
        "episode_id": "str",
        "turn": "int",
        "original": "str",
        "rewritten": "str",
        "verified": "bool",
        "gain_lower": "float",
        "student_nll": "float",
        "chosen_by": "str",
        "expert_model_id": "str",
    },
    _correction_row,
)

TABLES: tuple[RecordTable[Any], ...] = (_EPISODES, _TRAINING_ROWS, _LOCALIZATIONS, _CORRECTIONS)
"""Every record kind that is stored in bulk."""
