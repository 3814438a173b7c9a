"""Maintenance of an archive: merging small files, removing old records, deleting unused files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet as pq

from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.base import Endpoint
from spark_pipeline.jobs.engine import Engine
from spark_pipeline.lake.archive import Archive
from spark_pipeline.lake.layout import FILE_BYTES, DataFile, FileWriter
from spark_pipeline.lake.reading import read_files
from spark_pipeline.lake.table import Table

_EVERYTHING = 1 << 62


@dataclass(frozen=True, slots=True)
class Group:
    """Adjacent files of one partition and one time partition that are merged into fewer.

    ``table`` is the name of their table in the archive at ``place``.
    """

    place: str
    table: str
    files: tuple[DataFile, ...]
    file_bytes: int


def plan(archive: Archive, file_bytes: int = FILE_BYTES, fewest: int = 2) -> list[Group]:
    """Return the files that are worth merging: runs of files that are each smaller than half of ``file_bytes``.

    A run ends where its files together would exceed ``file_bytes``. Files that overlap are merged in order. With
    ``fewest`` above 2 a run has at least that many files, none larger than the others together: repeated compactions
    then write a record anew a few times, not each time.
    """
    groups: list[Group] = []
    for name, table in archive.tables.items():
        kinds: dict[tuple[Any, ...], list[DataFile]] = {}
        for one in table.files():
            kinds.setdefault((one.topic, one.partition, one.day, one.hour), []).append(one)
        for files in kinds.values():
            for run in _runs(sorted(files, key=lambda one: (one.first, one.path)), file_bytes):
                # Drop the start of a run up to each file that is larger than the others together.
                while fewest > 2 and run and 2 * max(one.size for one in run) > sum(one.size for one in run):
                    run = run[1 + max(range(len(run)), key=lambda at: run[at].size) :]
                if len(run) < fewest:
                    continue
                groups.append(Group(archive.store.url, name, tuple(run), file_bytes))
    return groups


def _runs(files: list[DataFile], file_bytes: int) -> Iterator[list[DataFile]]:
    run: list[DataFile] = []
    for one in files:
        if run and (2 * one.size > file_bytes or sum(each.size for each in run) + one.size > file_bytes):
            if len(run) > 1:
                yield run
            run = []
        if 2 * one.size <= file_bytes:
            run.append(one)
    if len(run) > 1:
        yield run


def merge(group: Group) -> tuple[Group, list[DataFile]]:
    """Write the records of a group into new files that belong to no table yet. Raises OSError."""
    table: Table = Archive.open(group.place).tables[group.table]
    first = group.files[0]
    with table.store.filesystem().open_input_file(f"{table.store.path}/{first.path}") as stream:
        schema = pq.read_schema(stream)
    # All records of a group are of one time partition, so the writer need not compute it, but must name it.
    writer = FileWriter(table.store, first.topic, first.partition, schema, "none", 2 * group.file_bytes)
    writer.period = (first.day, first.hour)
    for batch in read_files(table, group.files, schema.names, 0, _EVERYTHING):
        writer.write(batch)
    return group, writer.finish()


@dataclass(slots=True)
class Compacted:
    """The result of a compaction, or of its dry run."""

    groups: int = 0
    files_before: int = 0
    files_after: int = 0
    size_before: int = 0
    size_after: int = 0


def compact(
    archive: Archive,
    engine: Engine,
    file_bytes: int = FILE_BYTES,
    *,
    fewest: int = 2,
    dry_run: bool = False,
    on_group: Callable[[Compacted], None] = lambda done: None,
) -> Compacted:
    """Merge small files, group by group, beside archiving. Raises Overtaken by another compaction."""
    groups = plan(archive, file_bytes, fewest)
    done = Compacted()
    if dry_run:
        done.groups = len(groups)
        done.files_before = sum(len(one.files) for one in groups)
        done.size_before = sum(file.size for one in groups for file in one.files)
        return done
    for group, files in engine.map(merge, groups):
        archive.tables[group.table].replace(group.files, files, same_records=True)
        done.groups += 1
        done.files_before += len(group.files)
        done.files_after += len(files)
        done.size_before += sum(one.size for one in group.files)
        done.size_after += sum(one.size for one in files)
        on_group(done)
    return done


@dataclass(slots=True)
class Expired:
    """The result of an expiry, or of its dry run."""

    files: int = 0
    records: int = 0
    size: int = 0
    vacuumed_files: int = 0
    vacuumed_size: int = 0


def expire(
    archive: Archive, *, before: datetime | None, vacuum_before: datetime | None, dry_run: bool = False
) -> Expired:
    """Remove files whose records all have timestamps before ``before``; delete files that no table has needed since
    ``vacuum_before``.

    The archive stores the time up to which records were removed (whole time partitions, so often less than requested),
    so that a verification does not miss them.
    """
    done = Expired()
    if before is not None:
        edge = before.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        if archive.description.partitioning == "day":
            edge = edge.replace(hour=0)
        micros = round(edge.timestamp() * 1_000_000)
        if not dry_run:
            archive.expired(micros // 1000)  # first, or a verification in between would report missing records
        for table in archive.tables.values():
            old = [one for one in table.files() if one.latest < micros]
            done.files += len(old)
            done.records += sum(one.rows for one in old)
            done.size += sum(one.size for one in old)
            if old and not dry_run:
                table.replace(old, [], same_records=False)
    if vacuum_before is not None:
        for table in archive.tables.values():
            gone = table.vacuum(vacuum_before, dry_run=dry_run)
            done.vacuumed_files += gone.files
            done.vacuumed_size += gone.size
    return done


def status(archive: Archive, source: Endpoint | None = None) -> dict[str, Any]:
    """Report the archive's content and progress, and how far it is behind ``source``."""
    parts = archive.description.parts
    done = archive.records.progress(parts)
    files: dict[TopicPartition, list[DataFile]] = {}
    for one in archive.records.files():
        files.setdefault(TopicPartition(one.topic, one.partition), []).append(one)
    behind: dict[TopicPartition, int] = {}
    begun = archive.description.begun
    if source is not None:
        known = source.topics()
        there = [part for part in parts if part.topic in known and part.partition in known[part.topic].partitions]
        behind = {
            part: max(0, one.stable - done.get(part, begun.get(str(part), one.start)))
            for part, one in source.positions(there).items()
        }
    letters = archive.dead_letters.files() if archive.dead_letters is not None else []
    description = archive.description
    return {
        "archive": archive.store.url,
        "table": description.kind,
        "partitioned_by": description.partitioning,
        "values": "as written" if description.decoding is None else description.decoding.get("format"),
        "records": sum(one.rows for some in files.values() for one in some),
        "files": sum(map(len, files.values())),
        "bytes": sum(one.size for some in files.values() for one in some),
        "dead_letters": sum(one.rows for one in letters),
        "expired_before_ms": description.expired_ms,
        "behind": sum(behind.values()) if source is not None else None,
        "partitions": [
            {
                "topic": part.topic,
                "partition": part.partition,
                "archived_to": done.get(part),
                "records": sum(one.rows for one in files.get(part, [])),
                "files": len(files.get(part, [])),
                "behind": behind.get(part),
            }
            for part in parts
        ],
    }
