"""The row: what a record looks like as columns, whatever protocol wrote it.

The first columns are those of Spark's connector for Kafka, with its names and types; ``headers`` comes if it is asked
for. The others say what the writer's protocol says besides (:data:`METADATA`), and are null where it says nothing.
Types are those that PySpark makes of its own schema and takes back (docs/protocols/spark.md, "Row types"): any other
binary, or a field that is not nullable, is refused there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

CREATE_TIME = 0
"""``timestampType``: the timestamp is the writer's."""
LOG_APPEND_TIME = 1
"""``timestampType``: the timestamp is when the log took the batch."""

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER_TYPE)),
    "producer": pa.string(),
    "seq": pa.int64(),
    "writer": pa.string(),
    "codec": pa.string(),
    "written": pa.timestamp("us", tz="UTC"),
}
"""Column -> its type, in the order in which they come if all are asked for.

``timestamp`` is in microseconds, a multiple of 1000; one that nobody told is -1 ms, as Kafka has it. ``headers`` is
null for a record without any. ``producer`` is who wrote the record, by the writer's protocol (Kafka's producer id,
YDB's producer id, the id of Pravega's writer), ``seq`` the number that it gave the record. ``writer`` is the protocol
in which it was written (``kafka``, ``ydb``, ``pravega``, ``sbp-v0.1``, ``raw``). ``codec`` is what the value is still
encoded with, null if it is plain. ``written`` is when the log took the record.
"""

BASIC: tuple[str, ...] = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""What Spark's connector for Kafka gives."""
METADATA: tuple[str, ...] = ("producer", "seq", "writer", "codec", "written")
"""What the writer's protocol says besides."""

_LEAST_KEPT, _MOST_KEPT = 1024, 32 * 1024
"""Rows of columns that are kept because they say the same in each: a worker needs the same again for every batch."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns are wanted, in this order. Raises ValueError for a name that is none, or is there twice."""

    names: tuple[str, ...] = BASIC

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in TYPES]
        if unknown:
            raise ValueError(f"there is no column {unknown[0]!r}: there are {', '.join(TYPES)}")
        if len(set(self.names)) != len(self.names):
            raise ValueError("a column is asked for twice")

    @classmethod
    def of(cls, *, headers: bool = False, metadata: bool = False) -> Columns:
        """The basic columns, with headers and with what the protocol says besides if these are wanted."""
        return cls((*BASIC, *(("headers",) if headers else ()), *(METADATA if metadata else ())))

    @property
    def schema(self) -> pa.Schema:
        """As Arrow has it."""
        return pa.schema([pa.field(name, TYPES[name]) for name in self.names])

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)


def empty(columns: Columns) -> pa.RecordBatch:
    """No rows."""
    return pa.RecordBatch.from_pylist([], schema=columns.schema)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of all their rows; there is at least one, if of none."""
    if len(batches) == 1:
        return batches[0]
    found = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found[0] if found else batches[0]


def constant(value: str | int | None, kind: pa.DataType, count: int) -> pa.Array:
    """An array of ``count`` times ``value``: the beginning of one that may be longer, and is kept."""
    size = max(_LEAST_KEPT, 1 << max(0, count - 1).bit_length())
    if size > _MOST_KEPT:
        return pa.repeat(pa.scalar(value, kind), count)
    return _kept(value, kind, size).slice(0, count)


@lru_cache(maxsize=64)
def _kept(value: str | int | None, kind: pa.DataType, size: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), size)
