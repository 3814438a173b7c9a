"""Tables in Iceberg's format, through pyiceberg, with a catalog in a SQLite file or one that pyiceberg is configured
for.

Progress is stored in the table's properties, which change in the same commit as its snapshot. That commit asserts that
the table's snapshot has not changed since it was read. pyiceberg would retry it on the new snapshot, so retries are
switched off for the table; the code here reads the progress again before each retry.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import DayTransform, HourTransform

from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.lake.layout import Crash, DataFile, moment_of, no_crash
from spark_pipeline.lake.store import Store
from spark_pipeline.lake.table import Overtaken, Progress, Vacuumed

PROGRESS = "anabranch.progress."
"""Prefix of the table properties, by topic/partition, with the next offset to be archived."""
_TRIES = 10
_TRANSFORMS = {"day": DayTransform, "hour": HourTransform}
_PROPERTIES = {
    "commit.retry.num-retries": "0",
    "write.metadata.metrics.column.topic": "full",  # by default bounds are cut to 16 characters
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


@dataclass(slots=True)
class IcebergRecords:
    """A table ``name`` ("namespace.table") whose files are below ``place``.

    ``catalog`` is the URI of a SQL catalog, such as ``sqlite:////path/catalog.db``, or the name of one in pyiceberg's
    own configuration.
    """

    place: Store
    name: str
    catalog: str
    schema: pa.Schema
    partitioning: str = "day"
    crash: Crash = no_crash
    store: Store = field(init=False)
    _catalog: Catalog | None = None

    def __post_init__(self) -> None:
        self.store = self.place.below("data")

    def _open(self) -> Catalog:
        if self._catalog is None:
            properties = self.place.iceberg_properties()
            if "://" in self.catalog:
                self._catalog = load_catalog(
                    "anabranch", type="sql", uri=self.catalog, warehouse=self.place.url, **properties
                )
            else:
                self._catalog = load_catalog(self.catalog, **properties)
        return self._catalog

    def make(self) -> None:
        """Create the table if it does not exist."""
        catalog = self._open()
        try:
            catalog.load_table(self.name)
        except NoSuchTableError:
            self._make(catalog)

    def _make(self, catalog: Catalog) -> None:
        self.place.make()
        namespace = self.name.rpartition(".")[0]
        with contextlib.suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(namespace)
        try:
            with catalog.create_table_transaction(
                self.name, self.schema, location=self.place.url, properties=_PROPERTIES
            ) as made:
                if self.partitioning != "none":
                    with made.update_spec() as spec:
                        spec.add_field("timestamp", _TRANSFORMS[self.partitioning](), f"timestamp_{self.partitioning}")
        except (TableAlreadyExistsError, CommitFailedException):
            catalog.load_table(self.name)  # another process has created it

    def _load(self) -> IcebergTable:
        return self._open().load_table(self.name)

    def progress(self, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return _progress(self._load(), parts)

    def commit(self, files: Sequence[DataFile], before: Progress, after: Progress) -> None:
        expected = {part: before[part] for part in after if part in before}
        moved = {f"{PROGRESS}{part.topic}/{part.partition}": str(offset) for part, offset in after.items()}
        told = {"anabranch.progress": json.dumps({f"{part}": offset for part, offset in sorted(after.items())})}

        def step(table: IcebergTable) -> None:
            if _progress(table, after) != expected:
                raise Overtaken(f"{self.name} has been written to by another archiving process")
            self.crash("before-commit")
            self._change(table, [], files, moved, told)

        self._until_committed(step)
        self.crash("after-commit")

    def _until_committed(self, step: Callable[[IcebergTable], None]) -> None:
        """Run ``step`` on the current table, and again if another commit came first. Raises Overtaken.

        That commit may be a compaction, which does not matter to an archive, or another archive run, which ``step``
        must detect.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                step(self._load())
            except CommitFailedException as error:
                if attempt == _TRIES:
                    raise Overtaken(f"{self.name} is written to all the time: {error}") from error
            else:
                return

    def _change(
        self,
        table: IcebergTable,
        old: Sequence[DataFile],
        new: Sequence[DataFile],
        properties: dict[str, str],
        told: dict[str, str],
    ) -> None:
        """Make one commit. Raises CommitFailedException if the table's snapshot has changed since."""
        with table.transaction() as change:
            properties = dict(properties)
            if table.metadata.name_mapping() is None:
                properties["schema.name-mapping.default"] = table.schema().name_mapping.model_dump_json()
            if properties:
                change.set_properties(properties)
            update = change.update_snapshot(snapshot_properties=told)
            if old:
                gone = {f"{self.store.url}/{one.path}" for one in old}
                entries = [task.file for task in table.scan().plan_files() if task.file.file_path in gone]
                if len(entries) != len(gone):
                    raise Overtaken(f"{self.name}: files that were to be replaced are gone")
                producer: Any = update.overwrite()
                for entry in entries:
                    producer.delete_data_file(entry)
            else:
                producer = update.fast_append()
            with producer:
                for one in new:
                    path = f"{self.store.url}/{one.path}"
                    producer.append_data_file(parquet_file_to_data_file(table.io, change.table_metadata, path))

    def files(self) -> list[DataFile]:
        table = self._load()
        kinds: dict[str, Any] = {
            name: table.schema().find_field(name) for name in ("topic", "partition", "offset", "timestamp")
        }
        found = []
        for task in table.scan().plan_files():
            file = task.file
            low = _bounds(kinds, file.lower_bounds)
            high = _bounds(kinds, file.upper_bounds)
            day = hour = None
            begins = moment_of(low["timestamp"])
            if self.partitioning != "none":
                day = begins.date().isoformat()
                hour = str(begins.hour) if self.partitioning == "hour" else None
            found.append(
                DataFile(
                    path=file.file_path.removeprefix(self.store.url + "/"),
                    topic=low["topic"],
                    partition=low["partition"],
                    first=low["offset"],
                    last=high["offset"],
                    rows=file.record_count,
                    size=file.file_size_in_bytes,
                    day=day,
                    hour=hour,
                    earliest=low["timestamp"],
                    latest=high["timestamp"],
                )
            )
        return found

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], *, same_records: bool) -> None:
        def step(table: IcebergTable) -> None:
            self.crash("before-replace")
            self._change(table, old, new, {}, {"anabranch.replaced": "compacted" if same_records else "expired"})

        self._until_committed(step)
        self.crash("after-replace")

    def vacuum(self, before: datetime, *, dry_run: bool) -> Vacuumed:
        table = self._load()
        if not dry_run:
            table.maintenance.expire_snapshots().older_than(before).commit()
            table = self._load()
        used = set()
        if table.current_snapshot() is not None:
            used = set(table.inspect.all_files().column("file_path").to_pylist())
        filesystem = self.store.filesystem()
        files = size = 0
        for path, info in self.store.files().items():
            if f"{self.store.url}/{path}" in used or (info.mtime or datetime.now(UTC)) >= before:
                continue
            if info.type == pafs.FileType.File:
                files, size = files + 1, size + (info.size or 0)
                if not dry_run:
                    filesystem.delete_file(f"{self.store.path}/{path}")
        return Vacuumed(files, size)


def _progress(table: IcebergTable, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    told = table.properties
    named = {part: told.get(f"{PROGRESS}{part.topic}/{part.partition}") for part in parts}
    return {part: int(offset) for part, offset in named.items() if offset is not None}


def _bounds(kinds: dict[str, Any], told: dict[int, bytes]) -> dict[str, Any]:
    """Return the lowest or highest values of a file's columns, by their names."""
    return {name: from_bytes(kind.field_type, told[kind.field_id]) for name, kind in kinds.items()}
