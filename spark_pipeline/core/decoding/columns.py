"""Columns built from positions in a buffer, and batches of rows assembled from columns.

Fields that lie in one buffer in order become an array without a Python step for each: all bytes between the first and
the last field become one array whose elements alternate between a field and the gap behind it. Taking every second
element copies the fields once (docs/protocols/spark.md, "Sizes").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_pipeline.core.decoding.varints import Bools, Int64s, Unusual
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import CREATE_TIME, HEADER_TYPE, LOG_APPEND_TIME, TYPES, Columns, constant

_US_PER_MS = 1000
_LATEST_MS = ((1 << 63) - 1) // _US_PER_MS
"""The last millisecond that 64 bits of microseconds can express."""


@dataclass(slots=True)
class Fields:
    """Byte strings in a buffer: field ``i`` is ``[starts[i], ends[i])``, in order and without overlap.

    ``missing`` marks the fields that are null.
    """

    data: bytes
    starts: Int64s
    ends: Int64s
    missing: Bools | None = None

    def array(self, chosen: Int64s | None = None, kind: pa.DataType | None = None) -> pa.Array:
        """Return all fields, or those at ``chosen``, as Arrow's binary or another of its variable-length types.

        Strings are not checked here.
        """
        count = len(self.starts)
        bounds = np.empty(2 * count, np.int32)
        bounds[0::2] = self.starts
        bounds[1::2] = self.ends
        wanted = np.arange(count, dtype=np.int32) if chosen is None else chosen.astype(np.int32)
        missing = self.missing
        if missing is not None and chosen is not None:
            missing = missing[chosen]
        every = pa.Array.from_buffers(
            kind or pa.binary(), max(0, 2 * count - 1), [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        )
        return every.take(pa.array(wanted * 2, mask=missing))


def strings(fields: Fields) -> pa.Array:
    """Return ``fields`` as text. Raises Unusual if a field is not UTF-8."""
    found = fields.array(kind=pa.string())
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        raise Unusual from None
    return found


def times(milliseconds: Int64s) -> pa.Array:
    """Return timestamps of Spark's type; a time outside Spark's range becomes the nearest one inside."""
    clipped = np.clip(milliseconds, -_LATEST_MS, _LATEST_MS)
    return pa.array(clipped * _US_PER_MS).view(TYPES["timestamp"])


def times_or_null(milliseconds: Int64s) -> pa.Array:
    """Return timestamps as :func:`times` does, with null for negative times, which mean "unknown"."""
    known: npt.NDArray[np.int64] = np.clip(milliseconds, -1, _LATEST_MS)
    return pa.array(known * _US_PER_MS, mask=known < 0).view(TYPES["timestamp"])


Make = Callable[[], pa.Array]


class Wanted:
    """Selection of the records at offsets of the range ``within`` from the records of several batches.

    ``chosen`` are the indices of the selected records, None for all; ``counts`` is the number of records of each batch.
    """

    __slots__ = ("_counts", "_offsets", "chosen", "count")

    def __init__(self, offsets: Int64s, counts: Int64s, within: OffsetRange) -> None:
        self._offsets = offsets
        self._counts = counts
        chosen: Int64s = np.flatnonzero((offsets >= within.start) & (offsets < within.end))
        self.count = len(chosen)
        self.chosen = None if len(chosen) == len(offsets) else chosen

    def choose(self, values: Int64s) -> Int64s:
        """Return the elements of ``values``, one per record, that belong to the selected records."""
        return values if self.chosen is None else values[self.chosen]

    def of_batches(self, values: Sequence[int]) -> Int64s:
        """Repeat each batch's number for each of its selected records."""
        return self.choose(np.repeat(np.array(values, np.int64), self._counts))

    def repeated(self, values: Sequence[str | None]) -> pa.Array:
        """Repeat each batch's string for each of its selected records."""
        index = self.choose(np.repeat(np.arange(len(values)), self._counts)).astype(np.int32)
        return pa.array(values, pa.string()).take(pa.array(index))

    def constant(self, value: str | int, name: str) -> pa.Array:
        """Return a column with the same value in each record."""
        return constant(value, TYPES[name], self.count)

    def time_types(self, late: Sequence[bool]) -> pa.Array:
        """Return the ``timestampType`` column: the log's time for batches whose ``late`` is true, else the writer's."""
        kinds = set(late)
        if len(kinds) == 1:
            return self.constant(LOG_APPEND_TIME if kinds.pop() else CREATE_TIME, "timestampType")
        return pa.array(self.of_batches([LOG_APPEND_TIME if one else CREATE_TIME for one in late]).astype(np.int32))

    def columns(
        self, writer: str, written: Sequence[int], producers: Sequence[str | None], late: Sequence[bool] = (False,)
    ) -> dict[str, Make]:
        """Return the columns that all formats share.

        ``writer`` is the protocol's name. ``written``, ``producers`` and ``late`` have one element per batch; ``late``
        says that the records carry the log's time.
        """
        return {
            "offset": lambda: pa.array(self.choose(self._offsets)),
            "timestampType": lambda: self.time_types(late),
            "producer": lambda: self.repeated(producers),
            "writer": lambda: self.constant(writer, "writer"),
            "written": lambda: times_or_null(self.of_batches(written)),
        }


def assemble(of: OffsetRange, columns: Columns, count: int, made: Mapping[str, Make]) -> pa.RecordBatch:
    """Return a batch of ``count`` records of a partition, and make its columns only if they are requested.

    Columns that a format does not know are null: ``made`` need not name them.
    """
    arrays: list[pa.Array] = []
    for name in columns:
        if name in made:
            arrays.append(made[name]())
        elif name in ("topic", "partition"):
            arrays.append(constant(of.topic if name == "topic" else of.partition, TYPES[name], count))
        else:
            arrays.append(pa.nulls(count, TYPES[name]))
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema)


def list_of(first: Int64s, names: pa.Array, values: pa.Array) -> pa.Array:
    """Return the column of headers: record ``i`` has those from ``first[i]`` to ``first[i + 1]``; null for none."""
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE))
    bounds = pa.array(first.astype(np.int32), mask=np.append(first[1:] == first[:-1], False))
    return pa.ListArray.from_arrays(bounds, pairs, type=TYPES["headers"])
