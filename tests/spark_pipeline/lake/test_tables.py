"""The three kinds of tables alike: what is committed is there once, and whoever comes too late changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from spark_pipeline.core.errors import OptionError, PipelineError
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.lake import reading
from spark_pipeline.lake.delta import DeltaRecords
from spark_pipeline.lake.iceberg import IcebergRecords
from spark_pipeline.lake.layout import EARLIEST, LATEST, DataFile, FileWriter, schema_of
from spark_pipeline.lake.reading import clusters, read_files
from spark_pipeline.lake.store import Store
from spark_pipeline.lake.table import Overtaken, Table
from tests.spark_pipeline.lake.records import FLIGHTS, NOON, records, written

OTHER = TopicPartition("other", 0)


class Killed(Exception):
    """Stands for the end of the process."""


def open_table(kind: str, place: Path, by: str = "day", crash: Callable[[str], None] = lambda _: None) -> Table:
    """The table below ``place``, made if it is not there."""
    store = Store.at(str(place))
    table: Any
    if kind == "delta":
        table = DeltaRecords(store.below("records"), schema_of(), by, crash)
    else:
        store.make()
        catalog = f"sqlite:///{place}/catalog.db"
        table = IcebergRecords(store.below("records"), "tests.records", catalog, schema_of(), by, crash)
    table.make()
    made: Table = table
    return made


def foreign_rows(kind: str, place: Path) -> pa.Table:
    """All rows, as somebody reads them who knows nothing of archives."""
    if kind == "delta":
        return DeltaTable(place / "records").to_pyarrow_table()
    catalog = load_catalog("anabranch", type="sql", uri=f"sqlite:///{place}/catalog.db")
    return catalog.load_table("tests.records").scan().to_arrow()


def offsets(table: Table) -> list[int]:
    files = [one for one in table.files() if one.topic == FLIGHTS.topic]
    return [n for batch in read_files(table, files, ("offset",), 0, 1 << 60) for n in batch.column(0).to_pylist()]


kinds = pytest.mark.parametrize("kind", ["delta", "iceberg"])


@kinds
@pytest.mark.parametrize("by", ["none", "day", "hour"])
def test_what_is_committed_is_read_again(kind: str, by: str, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path, by)
    batch = records(5, 65, every=timedelta(minutes=20))
    files = written(table, [batch.slice(0, 30), batch.slice(30)], by=by)
    assert table.files() == []
    table.commit(files, {}, {FLIGHTS: 65})
    again = open_table(kind, tmp_path, by)
    assert again.progress([FLIGHTS, OTHER]) == {FLIGHTS: 65}
    key = lambda one: one.first  # noqa: E731
    assert sorted(again.files(), key=key) == sorted(files, key=key)
    assert {one.day for one in files} == ({None} if by == "none" else {"2013-01-01", "2013-01-02"})
    read = pa.Table.from_batches(read_files(again, again.files(), schema_of().names, 0, 1 << 60))
    assert read.to_pylist() == batch.to_pylist()
    part = pa.Table.from_batches(read_files(again, again.files(), ("offset", "key"), 20, 31))
    assert part.column("offset").to_pylist() == list(range(20, 31))
    found = foreign_rows(kind, tmp_path).sort_by("offset").select(schema_of().names)
    # pyiceberg reads a list that is null as an empty one.
    rows = [{**row, "headers": row["headers"] or None} for row in found.to_pylist()]
    assert rows == batch.to_pylist()


@kinds
def test_a_commit_that_comes_too_late_changes_nothing(kind: str, tmp_path: Path) -> None:
    slow, fast = open_table(kind, tmp_path), open_table(kind, tmp_path)
    files = written(slow, [records(0, 10)])
    fast.commit(written(fast, [records(0, 10)]), {}, {FLIGHTS: 10})
    with pytest.raises(Overtaken):
        slow.commit(files, {}, {FLIGHTS: 10})
    with pytest.raises(Overtaken):
        slow.commit(files, {FLIGHTS: 5}, {FLIGHTS: 20})
    assert offsets(slow) == list(range(10))


@kinds
def test_two_commits_at_the_same_time_are_one(kind: str, tmp_path: Path) -> None:
    """The other one commits between the look at the progress and the commit."""
    fast = open_table(kind, tmp_path)

    def overtake(step: str) -> None:
        if step == "before-commit" and not fast.progress([FLIGHTS]):
            fast.commit(written(fast, [records(0, 10)]), {}, {FLIGHTS: 10})

    slow = open_table(kind, tmp_path, crash=overtake)
    with pytest.raises(Overtaken):
        slow.commit(written(slow, [records(0, 12)]), {}, {FLIGHTS: 12})
    assert offsets(fast) == list(range(10))
    assert fast.progress([FLIGHTS]) == {FLIGHTS: 10}


@kinds
def test_commits_of_different_partitions_do_not_disturb_one_another(kind: str, tmp_path: Path) -> None:
    other = open_table(kind, tmp_path)

    def beside(step: str) -> None:
        if step == "before-commit" and not other.progress([OTHER]):
            other.commit(written(other, [records(0, 3, OTHER)], OTHER), {}, {OTHER: 3})

    table = open_table(kind, tmp_path, crash=beside)
    table.commit(written(table, [records(0, 12)]), {}, {FLIGHTS: 12})
    assert table.progress([FLIGHTS, OTHER]) == {FLIGHTS: 12, OTHER: 3}
    assert offsets(table) == list(range(12))


@kinds
def test_progress_over_a_gap_is_kept_without_files(kind: str, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path)
    table.commit([], {}, {FLIGHTS: 7})
    assert open_table(kind, tmp_path).progress([FLIGHTS]) == {FLIGHTS: 7}
    table.commit(written(table, [records(7, 9)]), {FLIGHTS: 7}, {FLIGHTS: 9})
    assert offsets(table) == [7, 8]


@kinds
@pytest.mark.parametrize("step", ["before-commit", "after-commit"])
def test_a_process_that_dies_in_a_commit_leaves_all_of_it_or_nothing(kind: str, step: str, tmp_path: Path) -> None:
    def die(now: str) -> None:
        if now == step:
            raise Killed

    table = open_table(kind, tmp_path, crash=die)
    batches = [records(0, 10, every=timedelta(hours=7))]
    with pytest.raises(Killed):
        table.commit(written(table, batches), {}, {FLIGHTS: 10})
    reader = open_table(kind, tmp_path)
    if step == "before-commit":
        assert offsets(reader) == []
        assert foreign_rows(kind, tmp_path).num_rows == 0
        reader.commit(written(reader, batches), {}, {FLIGHTS: 10})
    assert offsets(reader) == list(range(10))
    assert sorted(foreign_rows(kind, tmp_path).column("offset").to_pylist()) == list(range(10))
    assert reader.progress([FLIGHTS]) == {FLIGHTS: 10}


@kinds
def test_files_are_replaced_at_once_and_only_once(kind: str, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path)
    done = 0
    for end in (4, 8, 12):
        before = {FLIGHTS: done} if done else {}
        table.commit(written(table, [records(done, end)]), before, {FLIGHTS: end})
        done = end
    old = table.files()
    assert len(old) == 3
    (new,) = written(table, [records(0, 12)])
    table.replace(old, [new], same_records=True)
    assert table.files() == [new]
    assert offsets(table) == list(range(12))
    assert foreign_rows(kind, tmp_path).num_rows == 12
    with pytest.raises(Overtaken):
        table.replace(old, written(table, [records(0, 12)]), same_records=True)
    assert offsets(table) == list(range(12))
    assert table.progress([FLIGHTS]) == {FLIGHTS: 12}
    table.replace([new], [], same_records=False)
    assert foreign_rows(kind, tmp_path).num_rows == 0
    assert table.progress([FLIGHTS]) == {FLIGHTS: 12}


@kinds
def test_a_replacement_during_a_commit_is_no_reason_to_fail(kind: str, tmp_path: Path) -> None:
    other = open_table(kind, tmp_path)
    other.commit(written(other, [records(0, 4)]), {}, {FLIGHTS: 4})

    def compact(step: str) -> None:
        old = other.files()
        if step == "before-commit" and len(old) == 1 and old[0].rows == 4 and not compacted:
            compacted.append(step)
            other.replace(old, written(other, [records(0, 4)]), same_records=True)

    compacted: list[str] = []
    table = open_table(kind, tmp_path, crash=compact)
    table.commit(written(table, [records(4, 9)]), {FLIGHTS: 4}, {FLIGHTS: 9})
    assert compacted
    assert offsets(table) == list(range(9))


@kinds
def test_files_that_belong_to_nothing_are_vacuumed(kind: str, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path)
    table.commit(written(table, [records(0, 4)]), {}, {FLIGHTS: 4})
    written(table, [records(4, 9)])  # of a process that died
    kept = table.vacuum(datetime.now(UTC) - timedelta(days=1), dry_run=False)
    assert kept.files == 0
    later = datetime.now(UTC) + timedelta(seconds=1)
    assert table.vacuum(later, dry_run=True).files == 1
    assert table.vacuum(later, dry_run=False).files == 1
    assert table.vacuum(later, dry_run=True).files == 0
    assert offsets(table) == list(range(4))


def test_files_that_overlap_stand_together() -> None:
    def file(first: int, last: int) -> DataFile:
        return DataFile(f"{first}-{last}", "t", 0, first, last, 1, 1, None, None, 0, 0)

    files = [file(0, 9), file(10, 19), file(15, 30), file(31, 40), file(20, 25)]
    assert [[one.path for one in together] for together in clusters(files)] == [
        ["0-9"],
        ["10-19", "15-30", "20-25"],
        ["31-40"],
    ]


@kinds
def test_what_is_younger_than_asked_is_not_vacuumed(kind: str, tmp_path: Path) -> None:
    """As are the files of a step that is not committed yet."""
    table = open_table(kind, tmp_path)
    files = written(table, [records(0, 4)])
    assert table.vacuum(datetime.now(UTC) - timedelta(minutes=10), dry_run=False).files == 0
    table.commit(files, {}, {FLIGHTS: 4})
    assert offsets(table) == list(range(4))


@kinds
def test_files_that_were_vacuumed_too_soon_are_not_committed(kind: str, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path)
    table.commit(written(table, [records(0, 4)]), {}, {FLIGHTS: 4})
    files = written(table, [records(4, 9)])
    table.vacuum(datetime.now(UTC) + timedelta(seconds=1), dry_run=False)
    with pytest.raises((PipelineError, OSError)):
        table.commit(files, {FLIGHTS: 4}, {FLIGHTS: 9})
    assert table.progress([FLIGHTS]) == {FLIGHTS: 4}
    with pytest.raises((PipelineError, OSError)):
        table.replace(table.files(), files, same_records=True)
    assert offsets(table) == list(range(4))


def test_snapshots_expire_at_a_moment_whatever_its_time_zone(tmp_path: Path) -> None:
    table = open_table("iceberg", tmp_path)
    table.commit(written(table, [records(0, 4)]), {}, {FLIGHTS: 4})
    table.replace(table.files(), written(table, [records(0, 4)]), same_records=True)
    an_hour_ago = datetime.now(timezone(timedelta(hours=14))) - timedelta(hours=1)
    table.vacuum(an_hour_ago, dry_run=False)
    catalog = load_catalog("anabranch", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    assert len(list(catalog.load_table("tests.records").snapshots())) > 1


@kinds
@pytest.mark.parametrize("by", ["none", "day", "hour"])
def test_times_outside_of_the_calendar_count_as_its_first_or_last_day(kind: str, by: str, tmp_path: Path) -> None:
    """What a client took for milliseconds may have been anything. Iceberg cannot have such times themselves either."""
    table = open_table(kind, tmp_path, by)
    batch = records(0, 4)
    micros = [1_357_041_600_000_000, (1 << 63) - 1 - 807, 1_357_041_600_000_000_000, -(1 << 63) + 808]
    at = batch.schema.get_field_index("timestamp")
    batch = batch.set_column(at, batch.schema.field(at), pa.array(micros).view(batch.schema.field(at).type))
    writer = FileWriter(
        table.store, FLIGHTS.topic, FLIGHTS.partition, schema_of(), by, within_calendar=kind == "iceberg"
    )
    writer.write(batch)
    table.commit(writer.finish(), {}, {FLIGHTS: 4})
    if kind == "iceberg":
        micros = [min(max(one, EARLIEST), LATEST // 1000 * 1000) for one in micros]
    days = {None} if by == "none" else {"0001-01-01", "2013-01-01", "9999-12-31"}
    assert {one.day for one in table.files()} == days
    read = pa.Table.from_batches(read_files(table, table.files(), ("offset", "timestamp"), 0, 1 << 60))
    assert read.column("timestamp").cast(pa.int64()).to_pylist() == micros


@kinds
def test_a_directory_may_have_any_name_that_is_no_part_of_a_url(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "flüge von 2013 & später"
    table = open_table(kind, place)
    table.commit(written(table, [records(0, 4)]), {}, {FLIGHTS: 4})
    assert offsets(open_table(kind, place)) == list(range(4))
    assert foreign_rows(kind, place).num_rows == 4
    for name in ("100%25", "what?", "part#1"):
        with pytest.raises(OptionError, match="none of the characters"):
            open_table(kind, tmp_path / name)


def test_a_commit_is_on_disk_before_anything_follows_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def told(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    root = tmp_path / "records"
    unsynced: list[list[str]] = []

    def look(step: str) -> None:
        if step == "after-commit":
            entries = [str(one) for one in root.rglob("*") if one.suffix in {".json", ".parquet"} and one not in before]
            unsynced.append(sorted({*entries, str(root / "_delta_log")} - synced))

    table = open_table("delta", tmp_path, crash=look)
    before = set(root.rglob("*"))
    monkeypatch.setattr(os, "fsync", told)
    table.commit(written(table, [records(0, 4)]), {}, {FLIGHTS: 4})
    assert unsynced == [[]]


@kinds
def test_many_files_that_overlap_are_read_a_few_at_a_time(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(kind, tmp_path)
    rows = records(0, 40).to_pylist()
    for row in rows:
        row["timestamp"] = NOON + timedelta(days=row["offset"] % 10)
    table.commit(written(table, [pa.RecordBatch.from_pylist(rows, schema=schema_of())]), {}, {FLIGHTS: 40})
    streams: list[Any] = []
    most = 0

    class Counting:
        def __init__(self, real: Any) -> None:
            self._real = real

        def open_input_file(self, path: str) -> Any:
            nonlocal most
            streams.append(self._real.open_input_file(path))
            most = max(most, sum(not one.closed for one in streams))
            return streams[-1]

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    make = Store.filesystem
    monkeypatch.setattr(Store, "filesystem", lambda store: Counting(make(store)))
    monkeypatch.setattr(reading, "OPEN", 3)
    assert len(table.files()) == 10
    assert offsets(table) == list(range(40))
    assert most == 3
    assert all(one.closed for one in streams)


def test_offsets_that_are_far_apart_take_no_more_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of Pravega's events, which are positions in bytes."""
    table = open_table("delta", tmp_path)
    rows = records(0, 30).to_pylist()
    for row in rows:
        row["timestamp"] = NOON + timedelta(days=row["offset"] % 2)
        row["offset"] *= 1_000_000_000
    table.commit(written(table, [pa.RecordBatch.from_pylist(rows, schema=schema_of())]), {}, {FLIGHTS: 1 << 40})
    windows = 0
    sort = reading.sort_rows

    def counted(*arguments: Any) -> Any:
        nonlocal windows
        windows += 1
        return sort(*arguments)

    monkeypatch.setattr(reading, "sort_rows", counted)
    assert offsets(table) == [n * 1_000_000_000 for n in range(30)]
    assert windows == 1


def test_large_records_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    table = open_table("delta", tmp_path)
    rows = records(0, 40).to_pylist()
    for row in rows:
        row["value"] = os.urandom(1 << 20)
    batch = pa.RecordBatch.from_pylist(rows, schema=schema_of())
    table.commit(written(table, [batch.slice(0, 20), batch.slice(20)]), {}, {FLIGHTS: 40})
    read = list(read_files(table, table.files(), ("offset", "value"), 0, 1 << 60))
    assert sum(one.num_rows for one in read) == 40
    assert max(one.nbytes for one in read) < 2 * reading.BYTES


@kinds
def test_times_that_go_back_over_midnight_are_read_in_order(kind: str, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path)
    rows = records(0, 30).to_pylist()
    for row in rows:
        row["timestamp"] = NOON + timedelta(hours=24 * (row["offset"] % 3))
    batch = pa.RecordBatch.from_pylist(rows, schema=schema_of())
    table.commit(written(table, [batch.slice(0, 13), batch.slice(13)]), {}, {FLIGHTS: 30})
    assert len(table.files()) == 3
    assert offsets(table) == list(range(30))
