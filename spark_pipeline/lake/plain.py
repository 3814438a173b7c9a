"""Tables of plain Parquet files, for readers that know nothing but directories.

Which files belong to it, and how far each partition has been archived, is told by a small Delta table beside them, the
manifest, whose commits are the table's. Files are written in a directory that nobody reads; after the commit they are
renamed into place. A process that dies in between has decided, and the next one carries it out (:meth:`settle`). So who
lists the directory finds a file late, but never one that was not committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.lake.delta import REPLACING, application, sync_log, whole_hours
from spark_pipeline.lake.layout import Crash, DataFile, no_crash
from spark_pipeline.lake.store import Store, make_directory, sync
from spark_pipeline.lake.table import Overtaken, Progress, Vacuumed

MANIFEST = pa.schema(
    [
        pa.field("added", pa.bool_()),
        pa.field("path", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("day", pa.string()),
        pa.field("hour", pa.string()),
        pa.field("earliest", pa.int64()),
        pa.field("latest", pa.int64()),
    ]
)
"""A row says that a file was added, or taken out again; nothing is ever changed."""


@dataclass(slots=True)
class PlainRecords:
    """Parquet files below ``place``; ``state`` is where the manifest and files in the making are."""

    place: Store
    state: Store
    schema: pa.Schema
    partitioning: str = "day"
    crash: Crash = no_crash
    store: Store = field(init=False)
    _manifest: Store = field(init=False)

    def __post_init__(self) -> None:
        self.store = self.state.below("staged")
        self._manifest = self.state.below("manifest")

    def make(self) -> None:
        """Make the table if it is not there."""
        options = self._manifest.delta_options()
        if not DeltaTable.is_deltatable(self._manifest.url, options):
            self._manifest.make()
            DeltaTable.create(self._manifest.url, MANIFEST, mode="ignore", storage_options=options)
        self.place.make()

    def _load(self) -> DeltaTable:
        return DeltaTable(self._manifest.url, storage_options=self._manifest.delta_options())

    def progress(self, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See Table."""
        return _progress(self._load(), parts)

    def commit(self, files: Sequence[DataFile], before: Progress, after: Progress) -> None:
        """See Table."""
        table = self._load()
        if _progress(table, after) != {part: before[part] for part in after if part in before}:
            raise Overtaken(f"{self.place.url} has been written to by another archiving process")
        self.store.check_there(one.path for one in files)
        moved = [Transaction(application(part), offset) for part, offset in sorted(after.items())]
        self._decide(table, [], files, moved)
        self._place(files)

    def _decide(
        self, table: DeltaTable, old: Sequence[DataFile], new: Sequence[DataFile], transactions: list[Transaction]
    ) -> None:
        rows = [{"added": False, **asdict(one)} for one in old] + [{"added": True, **asdict(one)} for one in new]
        self.crash("before-commit")
        version = table.version()
        try:
            write_deltalake(
                table,
                pa.Table.from_pylist(rows, schema=MANIFEST),
                mode="append",
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        except CommitFailedError as error:
            raise Overtaken(f"{self.place.url} was written to at the same time: {error}") from error
        # A file must not be in place whose commit a loss of power takes back: its records would be archived again.
        sync_log(self._manifest, version)
        self.crash("after-commit")

    def _place(self, files: Iterable[DataFile]) -> int:
        """Rename what is staged into place; returns how many files were not there yet."""
        filesystem = self.store.filesystem()
        moved = 0
        for one in files:
            source, target = f"{self.store.path}/{one.path}", f"{self.place.path}/{one.path}"
            if filesystem.get_file_info(source).type == pafs.FileType.NotFound:
                continue
            try:
                self._move(filesystem, source, target)
            except FileNotFoundError:
                continue  # what was decided is carried out by whoever comes first: another process did in between
            moved += 1
            self.crash("between-moves")
        return moved

    def _move(self, filesystem: Any, source: str, target: str) -> None:
        """Raises FileNotFoundError."""
        if self.place.local:
            make_directory(Path(target).parent)
            Path(source).replace(target)
            sync(Path(target).parent)
        else:
            filesystem.move(source, target)

    def settle(self) -> int:
        """See Table."""
        present, doomed = self._content()
        staged = self.store.files()
        moved = self._place(one for path, one in present.items() if path in staged)
        if not doomed:
            return moved
        there = self.place.files()
        return moved + self._delete(one for one in doomed if one.path in there or one.path in staged)

    def _content(self) -> tuple[dict[str, DataFile], list[DataFile]]:
        """The files of the table by path, and those that were taken out of it."""
        present: dict[str, DataFile] = {}
        gone: dict[str, DataFile] = {}
        for row in self._load().to_pyarrow_table().to_pylist():
            added = row.pop("added")
            one = DataFile(**row)
            (present if added else gone)[one.path] = one
        for path in gone:
            present.pop(path, None)
        return present, list(gone.values())

    def files(self) -> list[DataFile]:
        """See Table."""
        return list(self._content()[0].values())

    def open_path(self, file: DataFile) -> str:
        """See Table. A file that was decided but is not in place yet is read where it is."""
        staged = f"{self.store.path}/{file.path}"
        if self.store.filesystem().get_file_info(staged).type == pafs.FileType.File:
            return staged
        return f"{self.place.path}/{file.path}"

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], *, same_records: bool) -> None:
        """See Table. Who lists the directory finds the records of ``old`` missing for a moment, never twice."""
        table = self._load()
        present, _ = self._content()
        if any(one.path not in present for one in old):
            raise Overtaken(f"{self.place.url}: files that were to be replaced are gone")
        self.store.check_there(one.path for one in new)
        number = table.transaction_version(REPLACING) or 0
        self._decide(table, old, new, [Transaction(REPLACING, number + 1)])
        self._delete(old)
        self._place(new)

    def _delete(self, files: Iterable[DataFile]) -> int:
        filesystem = self.place.filesystem()
        deleted = 0
        for one in files:
            for path in (f"{self.place.path}/{one.path}", f"{self.store.path}/{one.path}"):
                if filesystem.get_file_info(path).type == pafs.FileType.File:
                    with contextlib.suppress(FileNotFoundError):  # another process may settle this at the same time
                        filesystem.delete_file(path)
                    deleted += 1
                    self.crash("between-deletions")
        return deleted

    def vacuum(self, before: datetime, *, dry_run: bool) -> Vacuumed:
        """See Table: staged files that no commit knows, and what the manifest no longer needs of its own."""
        present, _ = self._content()
        known = present.keys()
        filesystem = self.store.filesystem()
        files = size = 0
        for path, info in self.store.files().items():
            if path in known or (info.mtime or datetime.now(UTC)) >= before:
                continue
            files, size = files + 1, size + (info.size or 0)
            if not dry_run:
                filesystem.delete_file(f"{self.store.path}/{path}")
        if not dry_run:
            table = self._load()
            version = table.version()
            try:
                table.optimize.compact()
                sync_log(self._manifest, version)
                table.vacuum(whole_hours(before), dry_run=False, enforce_retention_duration=False)
            except DeltaError as error:
                raise PipelineError(f"{self._manifest.url} could not be vacuumed: {error}") from error
        return Vacuumed(files, size)


def _progress(table: DeltaTable, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    found = {part: table.transaction_version(application(part)) for part in parts}
    return {part: version for part, version in found.items() if version is not None}
