"""The layout of an archive's files: the columns, the time partition of each record, and a writer of Parquet files.

A file has records of one partition of one topic, in the order of their offsets, and of one day (or hour, or all) by
their timestamps, so that a reader knows from its statistics whether to open it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_pipeline.core.files import make_directory, sync
from spark_pipeline.core.rows import TYPES
from spark_pipeline.lake.store import Store

RAW: tuple[str, ...] = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
"""The columns of an archive, in this order."""

PARTITIONING: dict[str, tuple[str, ...]] = {"none": (), "day": ("date",), "hour": ("date", "hour")}
"""Option -> the partition columns, computed from a record's timestamp in UTC."""
PARTITION_TYPES: dict[str, pa.DataType] = {"date": pa.date32(), "hour": pa.int32()}

FILE_BYTES = 128 * 1024 * 1024
OPEN_FILES = 16
"""Most open files of a writer: each holds a row group in memory. The least recently used one is closed."""
ROW_GROUP_BYTES = 16 * 1024 * 1024
ROW_GROUP_ROWS = 512 * 1024
_MICROSECOND = timedelta(microseconds=1)
_HOUR = 3_600_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
LATEST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The ends of the calendar, whose years have four digits, in microseconds. Records outside count as of its first or
last day: writers choose timestamps freely, and nonsense must not keep the other records from the archive."""


def moment_of(micros: int) -> datetime:
    """Return a time in UTC, or the nearest end of the calendar."""
    return _EPOCH + timedelta(microseconds=min(max(micros, EARLIEST), LATEST))


def micros_of(moment: datetime) -> int:
    """Return a time in microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def schema_of() -> pa.Schema:
    """Return the schema of a table of records."""
    return pa.schema([pa.field(name, TYPES[name]) for name in RAW])


@dataclass(frozen=True, slots=True)
class DataFile:
    """A written file, before or after a commit adds it to a table. Picklable, and JSON by ``asdict``.

    ``path`` is relative to the table's directory; ``day`` and ``hour`` are of the time partition, as text, None without
    one; times are in microseconds.
    """

    path: str
    topic: str
    partition: int
    first: int
    last: int
    rows: int
    size: int
    day: str | None
    hour: str | None
    earliest: int
    latest: int

    @property
    def partition_values(self) -> dict[str, str]:
        """Return partition column -> value, as in Hive's directories and Delta's log."""
        named = {"date": self.day, "hour": self.hour}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(slots=True)
class _Open:
    writer: Any
    sink: Any
    path: str
    first: int
    last: int = -1
    rows: int = 0
    earliest: int = 0
    latest: int = 0
    used: int = 0
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_rows: int = 0
    pending_bytes: int = 0

    def flush(self) -> None:
        """Write the pending batches as one row group."""
        if self.pending:
            self.writer.write_table(pa.Table.from_batches(self.pending), row_group_size=ROW_GROUP_ROWS)
        self.pending, self.pending_rows, self.pending_bytes = [], 0, 0


@dataclass(slots=True)
class FileWriter:
    """A writer of one partition's records, in order, into files below ``store``.

    A commit adds its files to a table later. Files of a local directory are on disk when ``finish`` returns.
    ``file_bytes`` is about the size at which a file ends; ``partitioning`` is a key of :data:`PARTITIONING`; with
    "none" all records are of the time partition ``period``. ``within_calendar``: times outside become the calendar's
    first or last millisecond.
    """

    store: Store
    topic: str
    partition: int
    schema: pa.Schema
    partitioning: str = "day"
    file_bytes: int = FILE_BYTES
    compression: str = "zstd"
    period: tuple[str | None, str | None] = (None, None)
    within_calendar: bool = False
    _files: list[DataFile] = field(default_factory=list)
    _open: dict[tuple[str | None, str | None], _Open] = field(default_factory=dict)
    _turn: int = 0
    _filesystem: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the next records. Raises OSError when a file cannot be written."""
        if not batch.num_rows:
            return
        if self.within_calendar:
            batch = _within_calendar(batch)
        if self.partitioning == "none":
            self._into(self.period, batch)
            return
        micros = np.asarray(batch.column("timestamp").cast(pa.int64()))
        hours = np.clip(micros, EARLIEST, LATEST) // _HOUR
        periods = hours // 24 if self.partitioning == "day" else hours
        for period in np.unique(periods):
            part = (
                batch
                if periods[0] == periods[-1] and (periods == period).all()
                else batch.filter(pa.array(periods == period))
            )
            moment = moment_of(int(period) * (24 if self.partitioning == "day" else 1) * _HOUR)
            self._into((moment.date().isoformat(), str(moment.hour) if self.partitioning == "hour" else None), part)

    def _into(self, period: tuple[str | None, str | None], batch: pa.RecordBatch) -> None:
        one = self._open.get(period)
        if one is None:
            if len(self._open) >= OPEN_FILES:
                self._close(min(self._open, key=lambda key: self._open[key].used))
            one = self._open[period] = self._begin(period, batch)
        self._turn += 1
        one.used = self._turn
        one.pending.append(batch)
        one.pending_rows += batch.num_rows
        one.pending_bytes += batch.nbytes
        if one.pending_bytes >= ROW_GROUP_BYTES or one.pending_rows >= ROW_GROUP_ROWS:
            one.flush()
        times = pc.min_max(batch.column("timestamp").cast(pa.int64())).as_py()
        one.earliest = min(one.earliest, times["min"]) if one.rows else times["min"]
        one.latest = max(one.latest, times["max"]) if one.rows else times["max"]
        one.last = batch.column("offset")[-1].as_py()
        one.rows += batch.num_rows
        if one.sink.tell() >= self.file_bytes:
            self._close(period)

    def _begin(self, period: tuple[str | None, str | None], batch: pa.RecordBatch) -> _Open:
        day, hour = period
        directory = "".join(f"{name}={value}/" for name, value in (("date", day), ("hour", hour)) if value is not None)
        path = f"{directory}part-{uuid.uuid4().hex}.parquet"
        if self._filesystem is None:
            self._filesystem = self.store.filesystem()
        if self.store.local:
            make_directory((Path(self.store.path) / path).parent)
        sink = self._filesystem.open_output_stream(f"{self.store.path}/{path}")
        writer = pq.ParquetWriter(sink, self.schema, compression=self.compression)
        return _Open(writer, sink, path, batch.column("offset")[0].as_py())

    def _close(self, period: tuple[str | None, str | None]) -> None:
        one = self._open.pop(period)
        one.flush()
        one.writer.close()
        one.sink.close()
        day, hour = period
        if self.store.local:
            target = Path(self.store.path) / one.path
            sync(target)
            sync(target.parent)
        size = self._filesystem.get_file_info(f"{self.store.path}/{one.path}").size
        self._files.append(
            DataFile(
                one.path, self.topic, self.partition, one.first, one.last, one.rows, size, day, hour,
                one.earliest, one.latest,
            )
        )  # fmt: skip

    def finish(self) -> list[DataFile]:
        """Close all files and return them."""
        for period in list(self._open):
            self._close(period)
        return self._files


def _within_calendar(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("timestamp")
    micros = np.asarray(batch.column(at).cast(pa.int64()))
    clipped = np.clip(micros, EARLIEST, LATEST // 1000 * 1000)
    if (clipped == micros).all():
        return batch
    return batch.set_column(at, batch.schema.field(at), pa.array(clipped).view(batch.schema.field(at).type))


Crash = Callable[[str], None]
"""A hook that is called with the name of each durable step before and after it; tests end the process in it."""


def no_crash(_: str) -> None:
    """Do nothing: the hook of everything but tests."""
