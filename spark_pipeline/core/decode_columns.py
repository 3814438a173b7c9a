"""Columns out of places in a buffer, and the row of one record put together from them.

Fields that lie in one buffer in order are made an array without a look at each: all bytes between the first and the
last become one array, whose elements are in turn a field and what lies between it and the next, and the fields are
taken out of that, which copies them once (docs/protocols/spark.md, "Sizes").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_pipeline.core.decode_varints import Bools, Int64s, Unusual
from spark_pipeline.core.rows import CREATE_TIME, HEADER_TYPE, LOG_APPEND_TIME, TYPES, Columns, constant

_US_PER_MS = 1000
_LATEST_MS = ((1 << 63) - 1) // _US_PER_MS
"""The last millisecond that microseconds in 64 bits can tell."""


@dataclass(slots=True)
class Fields:
    """Byte strings in a buffer: field ``i`` is ``[starts[i], ends[i])``, in the order of their places, none reaching
    into the next. ``missing``: those that are null."""

    data: bytes
    starts: Int64s
    ends: Int64s
    missing: Bools | None = None

    def array(self, chosen: Int64s | None = None, kind: pa.DataType | None = None) -> pa.Array:
        """All, or those at ``chosen``, as Arrow's binary or another of its variable-length types.

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


def strings(fields: Fields, chosen: Int64s | None = None) -> pa.Array:
    """``fields`` as text. Raises Unusual if one is not UTF-8."""
    found = fields.array(chosen, pa.string())
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        raise Unusual from None
    return found


def times(milliseconds: Int64s) -> pa.Array:
    """Timestamps as Spark has them; those that it cannot have become the nearest that it can."""
    clipped = np.clip(milliseconds, -_LATEST_MS, _LATEST_MS)
    return pa.array(clipped * _US_PER_MS).view(TYPES["timestamp"])


def times_or_null(milliseconds: Int64s) -> pa.Array:
    """The same with null for negative ones, which stand for what nobody knows."""
    known: npt.NDArray[np.int64] = np.clip(milliseconds, -1, _LATEST_MS)
    return pa.array(known * _US_PER_MS, mask=known < 0).view(TYPES["timestamp"])


Make = Callable[[], pa.Array]


class Wanted:
    """Of the records of several batches those at offsets in ``[start, end)``: ``chosen`` are their places, None for all
    records. ``counts``: how many records each batch has."""

    __slots__ = ("_counts", "_offsets", "chosen", "count")

    def __init__(self, offsets: Int64s, counts: Int64s, start: int, end: int) -> None:
        self._offsets = offsets
        self._counts = counts
        chosen: Int64s = np.flatnonzero((offsets >= start) & (offsets < end))
        self.count = len(chosen)
        self.chosen = None if len(chosen) == len(offsets) else chosen

    def some(self, values: Int64s) -> Int64s:
        """Those of the wanted records, of numbers of all."""
        return values if self.chosen is None else values[self.chosen]

    def of_batches(self, values: Sequence[int]) -> Int64s:
        """Numbers that hold for all records of a batch, one for each."""
        return self.some(np.repeat(np.array(values, np.int64), self._counts))

    def repeated(self, values: Sequence[str | None]) -> pa.Array:
        """The same for strings."""
        index = self.some(np.repeat(np.arange(len(values)), self._counts)).astype(np.int32)
        return pa.array(values, pa.string()).take(pa.array(index))

    def constant(self, value: str | int, name: str) -> pa.Array:
        """A column that says the same in each record."""
        return constant(value, TYPES[name], self.count)

    def time_types(self, late: Sequence[bool]) -> pa.Array:
        """Whose time it is that records tell, the log's if ``late`` says so of their batch."""
        kinds = set(late)
        if len(kinds) == 1:
            return self.constant(LOG_APPEND_TIME if kinds.pop() else CREATE_TIME, "timestampType")
        return pa.array(self.of_batches([LOG_APPEND_TIME if one else CREATE_TIME for one in late]).astype(np.int32))

    def columns(
        self, writer: str, written: Sequence[int], producers: Sequence[str | None], late: Sequence[bool] = (False,)
    ) -> dict[str, Make]:
        """What formats have alike: ``writer`` is their name, ``written``, ``producers`` and ``late``, which says that
        the log's time is that of the records, are of batches."""
        return {
            "offset": lambda: pa.array(self.some(self._offsets)),
            "timestampType": lambda: self.time_types(late),
            "producer": lambda: self.repeated(producers),
            "writer": lambda: self.constant(writer, "writer"),
            "written": lambda: times_or_null(self.of_batches(written)),
        }


@dataclass(slots=True)
class Assembly:
    """Makes a batch of ``count`` records out of columns that are made only if they are asked for.

    What a format does not know is null: it need not be named in ``made``.
    """

    topic: str
    partition: int
    columns: Columns
    count: int
    made: Mapping[str, Make]

    def batch(self) -> pa.RecordBatch:
        """The rows."""
        arrays: list[pa.Array] = []
        for name in self.columns:
            make = self.made.get(name)
            if make is not None:
                arrays.append(make())
            elif name == "topic":
                arrays.append(constant(self.topic, TYPES[name], self.count))
            elif name == "partition":
                arrays.append(constant(self.partition, TYPES[name], self.count))
            else:
                arrays.append(pa.nulls(self.count, TYPES[name]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns.schema)


def list_of(first: Int64s, names: pa.Array, values: pa.Array) -> pa.Array:
    """The column of headers: record ``i`` has those from ``first[i]`` to ``first[i + 1]``, null if these are none."""
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE))
    bounds = pa.array(first.astype(np.int32), mask=np.append(first[1:] == first[:-1], False))
    return pa.ListArray.from_arrays(bounds, pairs, type=TYPES["headers"])
