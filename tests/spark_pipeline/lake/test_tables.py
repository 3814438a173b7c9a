"""The three kinds of tables alike: what is committed is there once, and whoever comes too late changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.lake.delta import DeltaRecords
from spark_pipeline.lake.iceberg import IcebergRecords
from spark_pipeline.lake.layout import DataFile, schema_of
from spark_pipeline.lake.plain import PlainRecords
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
    elif kind == "parquet":
        table = PlainRecords(store.below("records"), store.below("state"), schema_of(), by, crash)
    else:
        store.make()
        catalog = f"sqlite:///{place}/catalog.db"
        table = IcebergRecords(store.below("records"), "tests.records", catalog, schema_of(), by, crash)
    table.make()
    table.settle()
    made: Table = table
    return made


def foreign_rows(kind: str, place: Path) -> pa.Table:
    """All rows, as somebody reads them who knows nothing of archives."""
    if kind == "delta":
        return DeltaTable(place / "records").to_pyarrow_table()
    if kind == "parquet":
        return pads.dataset(place / "records", format="parquet", partitioning="hive").to_table()
    catalog = load_catalog("anabranch", type="sql", uri=f"sqlite:///{place}/catalog.db")
    return catalog.load_table("tests.records").scan().to_arrow()


def offsets(table: Table) -> list[int]:
    files = [one for one in table.files() if one.topic == FLIGHTS.topic]
    return [n for batch in read_files(table, files, ("offset",), 0, 1 << 60) for n in batch.column(0).to_pylist()]


kinds = pytest.mark.parametrize("kind", ["delta", "parquet", "iceberg"])


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
@pytest.mark.parametrize("step", ["before-commit", "after-commit", "between-moves"])
def test_a_process_that_dies_in_a_commit_leaves_all_of_it_or_nothing(kind: str, step: str, tmp_path: Path) -> None:
    if step == "between-moves" and kind != "parquet":
        pytest.skip("only plain files are put into place after the commit")

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


def test_what_was_decided_is_read_before_it_is_in_place(tmp_path: Path) -> None:
    def die(now: str) -> None:
        if now == "after-commit":
            raise Killed

    table = open_table("parquet", tmp_path, crash=die)
    with pytest.raises(Killed):
        table.commit(written(table, [records(0, 10)]), {}, {FLIGHTS: 10})
    assert offsets(table) == list(range(10))
    assert foreign_rows("parquet", tmp_path).num_rows == 0
    assert table.settle() == 1
    assert table.settle() == 0
    assert offsets(table) == list(range(10))


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
def test_times_that_go_back_over_midnight_are_read_in_order(kind: str, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path)
    rows = records(0, 30).to_pylist()
    for row in rows:
        row["timestamp"] = NOON + timedelta(hours=24 * (row["offset"] % 3))
    batch = pa.RecordBatch.from_pylist(rows, schema=schema_of())
    table.commit(written(table, [batch.slice(0, 13), batch.slice(13)]), {}, {FLIGHTS: 30})
    assert len(table.files()) == 3
    assert offsets(table) == list(range(30))
