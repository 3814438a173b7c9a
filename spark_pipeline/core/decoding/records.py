"""Stored batches of any format as columns, record by record: for formats and batches that the array decoders refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from bridges.errors import BatchInvalid
from bridges.formats import FormatId, StoredFormat, format_of
from bridges.formats.base import APPEND_TIME, records_of
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.columns.varints import Int64s
from bridges.formats.kafka import LOG_APPEND_TIME, parse_header
from bridges.formats.records import Record, StoredBatch, told_headers
from spark_pipeline.core import rows
from spark_pipeline.core.decoding.columns import assemble, times, times_or_null
from spark_pipeline.core.errors import UnreadableBatch
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import TYPES, Columns


def decode(
    batches: Sequence[StoredBatch], within: OffsetRange, columns: Columns, limit: int = DEFAULT_LIMIT
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ``batches`` in a range of offsets, up to the first that cannot be read.

    Then raises UnreadableBatch if there was one.
    """
    found: list[Record] = []
    wrong: UnreadableBatch | None = None
    kinds: list[int] = []
    writers: list[str] = []
    for batch in batches:
        at = max(within.start, batch.base_offset)
        try:
            form = format_of(batch.flags)
            if form.id == FormatId.KAFKA:
                late = parse_header(batch.payload).attributes & LOG_APPEND_TIME
            else:
                late = batch.flags & APPEND_TIME
            for record in _of_batch(batch, form, within.start, within.end, limit):
                found.append(record)
                kinds.append(rows.LOG_APPEND_TIME if late else rows.CREATE_TIME)
                writers.append(form.name)
                at = record.offset + 1
        except BatchInvalid as error:
            wrong = UnreadableBatch(within.topic, within.partition, at, str(error), batch.end_offset)
            wrong.__cause__ = error
            break

    def numbers(values: list[int]) -> Int64s:
        # Damaged or hostile batches may claim numbers beyond 64 bits.
        return np.array([min(max(value, -(1 << 63)), (1 << 63) - 1) for value in values], np.int64)

    def sequence() -> pa.Array:
        given = numbers([one.sequence for one in found])
        return pa.array(given, mask=given < 0)

    def headers() -> pa.Array:
        told = (told_headers(one) for one in found)
        return pa.array(
            [[{"key": name, "value": value} for name, value in some] or None for some in told], TYPES["headers"]
        )

    made = {
        "key": lambda: pa.array([one.key for one in found], TYPES["key"]),
        "value": lambda: pa.array([one.value for one in found], TYPES["value"]),
        "offset": lambda: pa.array([one.offset for one in found], TYPES["offset"]),
        "timestamp": lambda: times(numbers([one.timestamp for one in found])),
        "timestampType": lambda: pa.array(kinds, TYPES["timestampType"]),
        "headers": headers,
        "producer": lambda: pa.array([one.producer for one in found], TYPES["producer"]),
        "seq": sequence,
        "writer": lambda: pa.array(writers, TYPES["writer"]),
        "codec": lambda: pa.array([one.codec for one in found], TYPES["codec"]),
        "written": lambda: times_or_null(numbers([one.written for one in found])),
    }
    yield assemble(within, columns, len(found), made)
    if wrong is not None:
        raise wrong


def _of_batch(batch: StoredBatch, form: StoredFormat, start: int, end: int, limit: int) -> Iterator[Record]:
    for record in records_of(form, batch, limit, start):
        if record is None:
            continue
        if start <= record.offset < end:
            yield record
        if record.offset >= end - 1:
            return  # the rest of the batch is outside the range, so damage there is no error here
