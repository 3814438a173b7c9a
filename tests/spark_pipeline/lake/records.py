"""Records for tests of archives: batches in the columns of an archive, and files of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.lake.layout import DataFile, FileWriter, schema_of
from spark_pipeline.lake.table import Table

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
FLIGHTS = TopicPartition("flights of a year in New York", 3)
"""A name that is longer than what statistics keep of texts by default."""


def records(
    start: int, end: int, part: TopicPartition = FLIGHTS, *, every: timedelta = timedelta(seconds=1), skip: int = 0
) -> pa.RecordBatch:
    """One record for each offset, ``every`` after the one before; with ``skip``, no offset that it divides."""
    rows = [
        {
            "topic": part.topic,
            "partition": part.partition,
            "offset": offset,
            "timestamp": NOON + every * offset,
            "timestampType": 0,
            "key": b"key-%d" % (offset % 5),
            "value": None if offset % 11 == 10 else b"value of %d" % offset,
            "headers": [{"key": "n", "value": b"%d" % offset}] if offset % 3 == 0 else None,
        }
        for offset in range(start, end)
        if not skip or offset % skip
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema_of())


def written(
    table: Table, batches: list[pa.RecordBatch], part: TopicPartition = FLIGHTS, by: str = "day"
) -> list[DataFile]:
    """Files of ``batches`` that belong to no table yet."""
    writer = FileWriter(table.store, part.topic, part.partition, schema_of(), by)
    for batch in batches:
        writer.write(batch)
    return writer.finish()
