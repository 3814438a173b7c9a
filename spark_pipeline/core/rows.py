"""The row: a record as columns, whatever protocol wrote it.

The first columns are those of Spark's connector for Kafka, with its names and types; ``headers`` comes on request. The
other columns have what the writer's protocol adds (:data:`METADATA`), and are null where it adds nothing. Types are
those that PySpark derives from its own schema and accepts back (docs/protocols/spark.md, "Row types"): it refuses any
other binary type and fields that are not nullable.
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
"""Column -> its type, in the order of a request for all columns.

``timestamp`` is in microseconds, a multiple of 1000; -1 ms if the writer gave none, as in Kafka. ``headers`` is null
for a record without headers. ``producer`` is the record's producer by the writer's protocol (Kafka's producer id,
YDB's producer id, the id of Pravega's writer), ``seq`` the producer's sequence for the record. ``writer`` is the
protocol in which it was written (``kafka``, ``ydb``, ``pravega``, ``sbp-v0.1``, ``raw``). ``codec`` is the codec with
which the value is still encoded, null if it is plain. ``written`` is the time at which the log took the record.
"""

BASIC: tuple[str, ...] = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of Spark's connector for Kafka."""
METADATA: tuple[str, ...] = ("producer", "seq", "writer", "codec", "written")
"""The columns that the writer's protocol adds."""

_LEAST_KEPT, _MOST_KEPT = 1024, 32 * 1024
"""Fewest and most rows of a cached constant column: a worker needs the same constants for every batch."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The requested columns, in this order. Raises ValueError for an unknown name or a duplicate."""

    names: tuple[str, ...] = BASIC

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in TYPES]
        if unknown:
            raise ValueError(f"there is no column {unknown[0]!r}: there are {', '.join(TYPES)}")
        if len(set(self.names)) != len(self.names):
            raise ValueError("a column is asked for twice")

    @classmethod
    def select(cls, *, headers: bool = False, metadata: bool = False) -> Columns:
        """Return the basic columns, plus headers and the protocol's metadata on request."""
        return cls((*BASIC, *(("headers",) if headers else ()), *(METADATA if metadata else ())))

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, TYPES[name]) for name in self.names])

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)


def empty(columns: Columns) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_pylist([], schema=columns.schema)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return one batch with the rows of all ``batches``, of which there is at least one."""
    if len(batches) == 1:
        return batches[0]
    found = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found[0] if found else batches[0]


def constant(value: str | int | None, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array of ``count`` times ``value``, as a slice of a cached, longer one where it is short enough."""
    size = max(_LEAST_KEPT, 1 << max(0, count - 1).bit_length())
    if size > _MOST_KEPT:
        return pa.repeat(pa.scalar(value, kind), count)
    return _cached_constant(value, kind, size).slice(0, count)


@lru_cache(maxsize=64)
def _cached_constant(value: str | int | None, kind: pa.DataType, size: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), size)
