"""Arrow's columns from those of the formats (:mod:`bridges.formats.columns`), and batches of rows assembled from them.

Fields that lie in one buffer in order become an array without a Python step for each: all bytes between the first and
the last field become one array whose elements alternate between a field and the gap behind it. Taking every second
element copies the fields once (docs/protocols/spark.md, "Sizes").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bridges.formats.columns import Unusual
from bridges.formats.columns.rows import Arrays, Body, Fields, spread, take_headers
from bridges.formats.columns.rows import decode as decode_rows
from bridges.formats.columns.varints import Int64s
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import CREATE_TIME, HEADER_TYPE, LOG_APPEND_TIME, TYPES, Columns, constant

_US_PER_MS = 1000
_LATEST_MS = ((1 << 63) - 1) // _US_PER_MS
"""The last millisecond that 64 bits of microseconds can express."""


def array(fields: Fields, chosen: Int64s | None = None, kind: pa.DataType | None = None) -> pa.Array:
    """Return all fields, or those at ``chosen``, as Arrow's binary or another of its variable-length types.

    Strings are not checked here.
    """
    count = len(fields.starts)
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = fields.starts
    bounds[1::2] = fields.ends
    wanted = np.arange(count, dtype=np.int32) if chosen is None else chosen.astype(np.int32)
    missing = fields.missing
    if missing is not None and chosen is not None:
        missing = missing[chosen]
    every = pa.Array.from_buffers(
        kind or pa.binary(), max(0, 2 * count - 1), [None, pa.py_buffer(bounds), pa.py_buffer(fields.data)]
    )
    return every.take(pa.array(wanted * 2, mask=missing))


def strings(fields: Fields) -> pa.Array:
    """Return ``fields`` as text. Raises Unusual if a field is not UTF-8."""
    found = array(fields, kind=pa.string())
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


def decode(
    arrays: Arrays, writer: str, bodies: Sequence[Body], within: OffsetRange, columns: Columns
) -> pa.RecordBatch:
    """Return the records of ``bodies``, at least one, in a range of offsets. ``writer``: their protocol's name. Raises
    Unusual."""
    rows = decode_rows(arrays, bodies)
    inside = np.flatnonzero((rows.offsets >= within.start) & (rows.offsets < within.end))
    count = len(inside)
    chosen = None if count == len(rows) else inside

    def choose(values: Int64s) -> Int64s:
        return values if chosen is None else values[chosen]

    def repeated(values: Sequence[str | None]) -> pa.Array:
        index = choose(spread(bodies, range(len(values)), len(rows))).astype(np.int32)
        return pa.array(values, pa.string()).take(pa.array(index))

    def time_types() -> pa.Array:
        kinds = [LOG_APPEND_TIME if body.late else CREATE_TIME for body in bodies]
        if len(set(kinds)) == 1:
            return constant(kinds[0], TYPES["timestampType"], count)
        return pa.array(choose(spread(bodies, kinds, len(rows))).astype(np.int32))

    def sequences() -> pa.Array:
        told = choose(rows.sequences)
        return pa.array(told, mask=told < 0)

    made: dict[str, Make] = {
        "offset": lambda: pa.array(choose(rows.offsets)),
        "timestamp": lambda: times(choose(rows.timestamps)),
        "timestampType": time_types,
        "producer": lambda: repeated([body.producer for body in bodies]),
        "seq": sequences,
        "writer": lambda: constant(writer, TYPES["writer"], count),
        "written": lambda: times_or_null(choose(spread(bodies, [body.written for body in bodies], len(rows)))),
        "value": lambda: array(rows.values, chosen),
    }
    if (keys := rows.keys) is not None:
        made["key"] = lambda: array(keys, chosen)
    if (headers := rows.headers) is not None:
        made["headers"] = lambda: _headers(*(headers() if chosen is None else take_headers(headers(), chosen)))
    return assemble(within, columns, count, made)


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


def _headers(first: Int64s, names: Fields, values: Fields) -> pa.Array:
    """Return the column of headers: record ``i`` has those from ``first[i]`` to ``first[i + 1]``; null for none."""
    pairs = pa.StructArray.from_arrays([strings(names), array(values)], fields=list(HEADER_TYPE))
    bounds = pa.array(first.astype(np.int32), mask=np.append(first[1:] == first[:-1], False))
    return pa.ListArray.from_arrays(bounds, pairs, type=TYPES["headers"])
