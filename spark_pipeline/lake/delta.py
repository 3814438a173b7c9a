"""Tables in Delta's format, through delta-rs, without jars.

Progress is stored in Delta's own transaction identifiers, one for each partition, whose version is the next offset.
Delta refuses a commit if another commit since the version that it read has used one of its identifiers: that is the
fence.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.files import sync
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.lake.layout import PARTITION_TYPES, PARTITIONING, Crash, DataFile, micros_of, moment_of, no_crash
from spark_pipeline.lake.store import Store
from spark_pipeline.lake.table import Overtaken, Progress, Vacuumed

REPLACING = "anabranch/replace"
"""The transaction identifier of commits that replace files: of two concurrent ones, one fails."""


def application(part: TopicPartition) -> str:
    """Return the transaction identifier whose version is the progress of ``part``."""
    return f"anabranch/{part.topic}/{part.partition}"


@dataclass(slots=True)
class DeltaRecords:
    """A Delta table of records in ``store``; :meth:`make` creates it if needed."""

    store: Store
    schema: pa.Schema
    partitioning: str = "day"
    crash: Crash = no_crash
    _options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._options = self.store.delta_options()

    @property
    def _columns(self) -> list[str]:
        return list(PARTITIONING[self.partitioning])

    def make(self) -> None:
        """Create the table if it does not exist."""
        if DeltaTable.is_deltatable(self.store.url, self._options):
            return
        self.store.make()
        fields = [*self.schema, *(pa.field(name, PARTITION_TYPES[name]) for name in self._columns)]
        DeltaTable.create(
            self.store.url,
            pa.schema(fields),
            mode="ignore",
            partition_by=self._columns or None,
            storage_options=self._options,
        )

    def _load(self) -> DeltaTable:
        return DeltaTable(self.store.url, storage_options=self._options)

    def progress(self, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._progress(self._load(), parts)

    @staticmethod
    def _progress(table: DeltaTable, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = {part: table.transaction_version(application(part)) for part in parts}
        return {part: version for part, version in found.items() if version is not None}

    def commit(self, files: Sequence[DataFile], before: Progress, after: Progress) -> None:
        table = self._load()
        # Delta itself detects commits between this check and ours.
        if self._progress(table, after) != {part: before[part] for part in after if part in before}:
            raise Overtaken(f"{self.store.url} has been written to by another archiving process")
        self.crash("before-commit")
        self.store.check_there(one.path for one in files)
        moved = [Transaction(application(part), offset) for part, offset in sorted(after.items())]
        self._write(table, [_added(one, new=True) for one in files], moved)
        self.crash("after-commit")

    def _write(self, table: DeltaTable, actions: list[Any], transactions: list[Transaction]) -> None:
        version = table.version()
        told = CommitProperties(app_transactions=transactions)
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), self._columns or None, commit_properties=told
            )
        except CommitFailedError as error:
            raise Overtaken(f"{self.store.url} was written to at the same time: {error}") from error
        sync_log(self.store, version)

    def files(self) -> list[DataFile]:
        table = pa.table(self._load().get_add_actions(flatten=True))
        found = []
        for row in table.to_pylist():
            day, hour = row.get("partition.date"), row.get("partition.hour")
            found.append(
                DataFile(
                    path=row["path"],
                    topic=row["min.topic"],
                    partition=int(row["min.partition"]),
                    first=int(row["min.offset"]),
                    last=int(row["max.offset"]),
                    rows=int(row["num_records"]),
                    size=int(row["size_bytes"]),
                    day=day.isoformat() if isinstance(day, date) else day,
                    hour=None if hour is None else str(hour),
                    earliest=_micros(row["min.timestamp"]),
                    latest=_micros(row["max.timestamp"]),
                )
            )
        return found

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], *, same_records: bool) -> None:
        table = self._load()
        here = set(pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist())
        if any(one.path not in here for one in old):
            raise Overtaken(f"{self.store.url}: files that were to be replaced are gone")
        self.crash("before-replace")
        self.store.check_there(one.path for one in new)
        now = int(time.time() * 1000)
        removed = [RemoveAction(one.path, not same_records, now, one.size, dict(one.partition_values)) for one in old]
        number = table.transaction_version(REPLACING) or 0
        added = [_added(one, new=not same_records) for one in new]
        self._write(table, [*removed, *added], [Transaction(REPLACING, number + 1)])
        self.crash("after-replace")

    def vacuum(self, before: datetime, *, dry_run: bool) -> Vacuumed:
        table = self._load()
        hours = whole_hours(before)
        sizes = {path: info.size for path, info in self.store.files().items()}
        try:
            gone = table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
            if not dry_run:
                table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
        except DeltaError as error:
            raise PipelineError(f"{self.store.url} could not be vacuumed: {error}") from error
        return Vacuumed(len(gone), sum(sizes.get(path, 0) for path in gone))


def whole_hours(before: datetime) -> int:
    """Return how many hours ago a time is, rounded up: younger files must be kept, and Delta counts whole hours."""
    return max(0, -(-int((datetime.now(UTC) - before).total_seconds()) // 3600))


def sync_log(store: Store, version: int) -> None:
    """Flush the commits to a local table after ``version`` to disk: log entries, checkpoints, and the files that they
    name.

    delta-rs leaves that to the operating system.
    """
    if not store.local:
        return
    root = Path(store.path)
    log = root / "_delta_log"
    for entry in log.iterdir():
        number, _, kind = entry.name.partition(".")
        if not (number.isdigit() and int(number) > version) and entry.name != "_last_checkpoint":
            continue
        if kind == "json":
            for line in entry.read_text(encoding="utf-8").splitlines():
                added = json.loads(line).get("add")
                if added is not None:
                    sync(root / unquote(added["path"]))
        sync(entry)
    sync(log)


def _micros(value: Any) -> int:
    """Return a statistic of a timestamp column in microseconds."""
    return micros_of(value if isinstance(value, datetime) else datetime.fromisoformat(str(value)))


def _added(one: DataFile, *, new: bool) -> AddAction:
    # Delta's statistics have times in milliseconds, of which our timestamps are multiples.
    bounds = ((one.first, moment_of(one.earliest)), (one.last, moment_of(one.latest)))
    low, high = (
        {
            "topic": one.topic,
            "partition": one.partition,
            "offset": offset,
            "timestamp": moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z",
        }
        for offset, moment in bounds
    )
    nulls = {"topic": 0, "partition": 0, "offset": 0, "timestamp": 0}
    stats = {"numRecords": one.rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return AddAction(one.path, one.size, one.partition_values, int(time.time() * 1000), new, json.dumps(stats))
