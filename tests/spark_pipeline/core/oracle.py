"""What rows must come out of stored batches: told by the formats' own readers, record by record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from bridges.formats import format_of
from bridges.formats.base import APPEND_TIME, records_of
from bridges.formats.kafka import LOG_APPEND_TIME, parse_header
from bridges.formats.records import StoredBatch, told_headers
from spark_pipeline.core.decoding.batches import Aborted, decode
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import TYPES, Columns

EVERYTHING = Columns(tuple(TYPES))
_TIMES = ("timestamp", "written")


def expected(batches: Sequence[StoredBatch], start: int = 0, end: int = 1 << 62) -> list[dict[str, Any]]:
    """The rows of ``[start, end)``, with times in microseconds."""
    found = []
    for batch in batches:
        form = format_of(batch.flags)
        if form.name == "kafka":
            late = parse_header(batch.payload).attributes & LOG_APPEND_TIME
        else:
            late = batch.flags & APPEND_TIME
        for record in records_of(form, batch):
            if record is None or not start <= record.offset < end:
                continue
            found.append(
                {
                    "key": record.key,
                    "value": record.value,
                    "topic": "t",
                    "partition": 3,
                    "offset": record.offset,
                    "timestamp": record.timestamp * 1000,
                    "timestampType": 1 if late else 0,
                    "headers": [{"key": name, "value": value} for name, value in told_headers(record)] or None,
                    "producer": record.producer,
                    "seq": record.sequence if record.sequence >= 0 else None,
                    "writer": form.name,
                    "codec": record.codec,
                    "written": record.written * 1000 if record.written >= 0 else None,
                }
            )
    return found


def decoded(
    batches: Sequence[StoredBatch],
    start: int = 0,
    end: int = 1 << 62,
    columns: Columns = EVERYTHING,
    batch_bytes: int = 1 << 21,
    aborted: Aborted | None = None,
) -> list[dict[str, Any]]:
    """The rows that the pipeline makes; the batches they come in are checked on the way."""
    found: list[pa.RecordBatch] = list(decode(batches, OffsetRange("t", 3, start, end), columns, batch_bytes, aborted))
    for batch in found:
        assert batch.schema == columns.schema
        assert batch.num_rows
        batch.validate(full=True)
    return [row for batch in found for row in _plain(batch).to_pylist()]


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times as microseconds: Python's reach to the year 9999."""
    for name in set(_TIMES) & set(batch.schema.names):
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, name, batch.column(at).cast(pa.int64()))
    return batch
