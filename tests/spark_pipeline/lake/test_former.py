"""Archives that earlier versions have made: plain Parquet files with a manifest beside them, and decoded values."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from spark_pipeline.jobs.archive.upkeep import compact, status
from spark_pipeline.jobs.engine import LocalEngine
from spark_pipeline.lake.archive import Archive, Description
from spark_pipeline.lake.delta import DeltaRecords, application
from spark_pipeline.lake.layout import DataFile, FileWriter, schema_of
from spark_pipeline.lake.store import Store
from tests.spark_pipeline.lake.records import FLIGHTS, records

MANIFEST = pa.schema(
    [
        ("added", pa.bool_()), ("path", pa.string()), ("topic", pa.string()), ("partition", pa.int32()),
        ("first", pa.int64()), ("last", pa.int64()), ("rows", pa.int64()), ("size", pa.int64()), ("day", pa.string()),
        ("hour", pa.string()), ("earliest", pa.int64()), ("latest", pa.int64()),
    ]
)  # fmt: skip
DECODING = {"format": "json", "schema": "{}", "message": "", "framing": "none", "writers": {}}


def described(place: Path, **more: Any) -> None:
    told = {
        "version": 1, "kind": "parquet", "partitioning": "day", "decoding": None, "catalog": "",
        "name": "anabranch.records", "topics": {FLIGHTS.topic: [FLIGHTS.partition]}, "begun": {str(FLIGHTS): 0},
        "expired_ms": None, **more,
    }  # fmt: skip
    place.mkdir(exist_ok=True)
    (place / "archive.json").write_text(json.dumps(told))


def files_of(directory: Path, batch: pa.RecordBatch, schema: pa.Schema | None = None) -> list[DataFile]:
    writer = FileWriter(Store.at(str(directory)), FLIGHTS.topic, FLIGHTS.partition, schema or schema_of())
    writer.write(batch)
    return writer.finish()


def decided(place: Path, rows: list[tuple[bool, DataFile]], reached: int) -> None:
    """A commit of the manifest."""
    table = pa.Table.from_pylist([{"added": added, **asdict(one)} for added, one in rows], schema=MANIFEST)
    properties = CommitProperties(app_transactions=[Transaction(application(FLIGHTS), reached)])
    manifest = place / "state/records/manifest"
    manifest.mkdir(parents=True, exist_ok=True)
    write_deltalake(str(manifest), table, mode="append", commit_properties=properties)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Offsets 0 to 29, of which 10 to 19 were compacted into another file, and 20 to 29 are not in place yet."""
    place = tmp_path / "archive"
    described(place)
    placed, staged = place / "records", place / "state/records/staged"
    every = timedelta(hours=7)
    first, old = files_of(placed, records(0, 10, every=every)), files_of(placed, records(10, 20, every=every))
    decided(place, [(True, one) for one in [*first, *old]], 20)
    new = files_of(placed, records(10, 20, every=every))
    decided(place, [(False, one) for one in old] + [(True, one) for one in new], 20)
    decided(place, [(True, one) for one in files_of(staged, records(20, 30, every=every))], 30)
    files_of(staged, records(30, 40))  # of a process that died before its commit
    return place


def offsets(place: Path) -> list[int]:
    read = endpoint(f"archive://{place}").read(
        OffsetRange(FLIGHTS.topic, FLIGHTS.partition, 0, 100), Columns(("offset",))
    )
    return [offset for batch in read for offset in batch.column(0).to_pylist()]


def test_plain_files_become_a_delta_table_of_the_same_files(plain: Path) -> None:
    before = {path.name for path in plain.rglob("part-*.parquet")}
    assert offsets(plain) == list(range(30))
    archive = Archive.open(str(plain))
    assert archive.description.kind == "delta"
    assert archive.records.progress([FLIGHTS]) == {FLIGHTS: 30}
    found = DeltaTable(plain / "records").to_pyarrow_table(columns=["offset", "value", "headers"])
    assert sorted(found.column("offset").to_pylist()) == list(range(30))
    assert pc.count(found.column("value"), mode="only_null").as_py() == 2
    assert {path.name for path in (plain / "records").rglob("part-*.parquet")} <= before, "nothing was copied"
    archive = Archive.make(str(plain), Description())
    archive.records.commit(files_of(plain / "records", records(30, 33)), {FLIGHTS: 30}, {FLIGHTS: 33})
    assert offsets(plain) == list(range(33))
    assert compact(archive, LocalEngine(1)).groups > 0
    assert offsets(plain) == list(range(33))


def test_a_process_that_dies_while_it_brings_them_over_is_followed_by_another(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    commit, write = DeltaRecords.commit, Store.write_bytes

    def die(*_: Any) -> None:
        raise Killed

    for where, what in ((DeltaRecords, "commit"), (Store, "write_bytes")):
        monkeypatch.setattr(where, what, die)
        with pytest.raises(Killed):
            Archive.open(str(plain))
        monkeypatch.setattr(DeltaRecords, "commit", commit)
        monkeypatch.setattr(Store, "write_bytes", write)
    assert offsets(plain) == list(range(30))


def test_an_archive_of_decoded_values_is_read_and_takes_no_more(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    described(place, kind="delta", decoding=DECODING)
    value = pa.struct([("n", pa.int64())])
    schema = pa.schema([pa.field(one.name, value if one.name == "value" else one.type) for one in schema_of()])
    batch = records(0, 10)
    made = batch.set_column(batch.schema.names.index("value"), "value", pa.array([{"n": n} for n in range(10)], value))
    letters = pa.schema([*schema_of(), pa.field("reason", pa.string())])
    bad = records(10, 12).append_column("reason", pa.array(["is no JSON"] * 2))
    for name, kind, rows in (("records", schema, made), ("dead_letters", letters, bad)):
        table = DeltaRecords(Store.at(str(place)).below(name), kind)
        table.make()
        files = files_of(place / name, pa.RecordBatch.from_arrays(rows.columns, schema=kind), kind)
        table.commit(files, {}, {FLIGHTS: 12})
    told = status(Archive.open(str(place)))
    assert (told["records"], told["dead_letters"], told["values"]) == (10, 2, "json")
    assert offsets(place) == list(range(10))
    both = endpoint(f"archive://{place}", {"dead_letters": "true"})
    (got,) = both.read(OffsetRange(FLIGHTS.topic, FLIGHTS.partition, 10, 12), Columns(("offset", "key")))
    assert got.column("offset").to_pylist() == [10, 11]
    with pytest.raises(OptionError, match="decoded"):
        next(both.read(OffsetRange(FLIGHTS.topic, FLIGHTS.partition, 0, 5), Columns(("value",))))
    for wanted in (Description(), Description(decoding=DECODING)):
        with pytest.raises(OptionError, match="takes no more records"):
            Archive.make(str(place), wanted)
    assert compact(Archive.open(str(place)), LocalEngine(1)).groups == 0
