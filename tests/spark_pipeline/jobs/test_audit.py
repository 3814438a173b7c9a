"""Audits find what differs at its exact offset, and nothing where nothing differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bridges.formats import FORMATS, FormatId
from bridges.formats.records import Record, StoredBatch
from sbp_document.wire.record_batch import FORMAT_FLAG
from spark_pipeline.core.digest import BLOCK
from spark_pipeline.core.errors import OptionError, UnknownTopic
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.jobs.audit.audit import Audit, Side, against_digests, positions_of
from spark_pipeline.jobs.audit.cross import values
from spark_pipeline.jobs.audit.pieces import PIECE, damage, pieces
from spark_pipeline.jobs.engine import LocalEngine
from spark_pipeline.lake.archive import Archive, Description
from tests.spark_pipeline.lake.records import NOON, records, written

PART = TopicPartition("flights", 2)
END = BLOCK + 3000

Change = Callable[[list[dict[str, Any]]], None]


@pytest.fixture(scope="module")
def batches() -> list[pa.RecordBatch]:
    """From offset 5 on, over the end of a block, with a gap at every 1000th offset."""
    return [
        records(start, min(start + 4096, END), PART, every=timedelta(milliseconds=7), skip=1000)
        for start in range(5, END, 4096)
    ]


@pytest.fixture
def make(tmp_path: Path, batches: list[pa.RecordBatch]) -> Callable[..., Side]:
    """Makes a system that keeps the records, but for what ``change`` does to those of one batch."""

    def made(name: str, at: int = 0, change: Change | None = None, end: int = END) -> Side:
        archive = Archive.make(str(tmp_path / name), Description(partitioning="none"))
        archive.learn({PART.topic: (PART.partition,)})
        kept = list(batches)
        if change is not None:
            number = (at - 5) // 4096
            rows = kept[number].to_pylist()
            change(rows)
            kept[number] = pa.RecordBatch.from_pylist(rows, schema=kept[number].schema)
        archive.records.commit(written(archive.records, kept, PART, "none"), {}, {PART: end})
        return Side(f"archive://{tmp_path / name}")

    return made


def audit() -> Audit:
    return Audit(LocalEngine(2))


def row_at(rows: list[dict[str, Any]], offset: int) -> int:
    return next(number for number, row in enumerate(rows) if row["offset"] == offset)


def set_value(offset: int, **fields: object) -> Change:
    return lambda rows: rows[row_at(rows, offset)].update(fields)


def remove(offset: int) -> Change:
    return lambda rows: rows.pop(row_at(rows, offset)) and None


def double(offset: int) -> Change:
    return lambda rows: rows.insert(row_at(rows, offset), dict(rows[row_at(rows, offset)]))


def swap(offset: int) -> Change:
    def change(rows: list[dict[str, Any]]) -> None:
        at = row_at(rows, offset)
        one, other = dict(rows[at]), dict(rows[at + 1])
        one["offset"], other["offset"] = other["offset"], one["offset"]
        rows[at], rows[at + 1] = other, one

    return change


def test_two_equal_systems(make: Callable[..., Side]) -> None:
    report = audit().diff(make("left"), make("right"), ["fl.*"], 3)
    assert report["equal"]
    assert report["differences"] == []
    (part,) = report["partitions"]
    assert part["compared"] == [5, END]
    assert part["blocks"] == 2
    assert part["left"]["records"] == report["records"] == END - 5 - 68
    assert part["left"]["gaps"][:2] == ["[1000, 1001)", "[2000, 2001)"]
    assert part["left"]["offsets_without_records"] == 68
    json.dumps(report)


@pytest.mark.parametrize(
    ("offset", "change", "found"),
    [
        (4321, set_value(4321, value=b"planted"), "value differ"),
        (BLOCK - 1, set_value(BLOCK - 1, key=None), "key differ"),
        (BLOCK, set_value(BLOCK, headers=[{"key": "x", "value": None}]), "headers differ"),
        (END - 1, remove(END - 1), "missing on the right"),
        (70, double(70), "twice on the right"),
        (33_333, swap(33_333), "differ"),
    ],
)
def test_a_planted_corruption_is_found_at_its_offset(
    make: Callable[..., Side], offset: int, change: Change, found: str
) -> None:
    report = audit().diff(make("left"), make("right", offset, change), ["flights"], 2)
    assert not report["equal"]
    (one,) = report["differences"]
    assert one["block"] == offset // BLOCK
    assert one["first"]["offset"] == offset
    assert found in one["first"]["reason"]
    json.dumps(report)


def test_what_is_not_compared_may_differ(make: Callable[..., Side]) -> None:
    left, right = make("left"), make("right", 100, set_value(100, key=b"other"))
    some = Audit(LocalEngine(1), fields=("value", "timestamp"))
    assert some.diff(left, right, ["flights"], 2)["equal"]
    assert audit().diff(left, right, ["flights"], 0)["equal"]
    late = Audit(LocalEngine(1), since_us=1 << 60)
    assert late.diff(left, right, ["flights"], 2)["records"] == 0


def test_numbers_and_ends_are_compared_at_level_0(make: Callable[..., Side]) -> None:
    left = make("left")
    (one,) = audit().diff(left, make("fewer", 100, remove(101)), ["flights"], 0)["differences"]
    assert one["reason"] == f"{BLOCK - 5 - 65} records on the left, {BLOCK - 5 - 66} on the right"
    assert one["first"]["offset"] == 101
    shorter = make("shorter", end=END + 7)
    (one,) = audit().diff(left, shorter, ["flights"], 2)["differences"]
    assert one["what"] == "range"
    assert audit().diff(left, shorter, ["flights"], 2, same_ends=False)["equal"]


def test_one_system_alone(make: Callable[..., Side]) -> None:
    good = audit().whole(make("good"), ["flights"], 3)
    assert good["equal"]
    bad = audit().whole(make("bad", 70, double(70)), ["flights"], 3)
    assert not bad["equal"]
    assert bad["partitions"][0]["repeated_offsets"] == [70]
    with pytest.raises(UnknownTopic):
        audit().whole(make("none"), ["nowhere"], 0)


def test_digests_are_compared_with_later(make: Callable[..., Side], tmp_path: Path) -> None:
    left = make("left")
    path = tmp_path / "digests.json"
    path.write_text(json.dumps(audit().digests(left, ["flights"])))
    assert against_digests(audit(), left, path)["equal"]
    report = against_digests(audit(), make("right", 100, set_value(100, value=b"x")), path)
    (one,) = report["differences"]
    assert (one["block"], one["reason"]) == (0, "as many records, with other contents")
    path.write_text("{}")
    with pytest.raises(OptionError):
        against_digests(audit(), left, path)


def test_digests_know_of_which_records_they_are(make: Callable[..., Side], tmp_path: Path) -> None:
    left = make("left")
    path = tmp_path / "digests.json"
    late = Audit(LocalEngine(1), since_us=round((NOON + timedelta(milliseconds=7 * 3000)).timestamp() * 1e6))
    path.write_text(json.dumps(late.digests(left, ["flights"])))
    report = against_digests(audit(), left, path)
    assert report["equal"], report["differences"]
    assert report["records"] < END - 3000
    assert against_digests(audit(), make("right", 100, set_value(100, value=b"x")), path)["equal"]


def test_digests_of_a_topic_that_is_gone(make: Callable[..., Side], tmp_path: Path) -> None:
    path = tmp_path / "digests.json"
    told = audit().digests(make("left"), ["flights"])
    other = [{**one, "topic": "hotels"} for one in told["partitions"]]
    path.write_text(json.dumps({**told, "partitions": [*told["partitions"], *other]}))
    (one,) = against_digests(audit(), make("again"), path)["differences"]
    assert (one["topic"], one["reason"]) == ("hotels", "is gone")
    assert against_digests(audit(), make("third"), path, ["fl.*"])["equal"]
    with pytest.raises(UnknownTopic, match="trains"):
        against_digests(audit(), make("fourth"), path, ["trains"])


def test_a_topic_that_one_system_has_alone_is_a_difference(make: Callable[..., Side], tmp_path: Path) -> None:
    left, right = make("left"), make("right")
    Archive.open(str(tmp_path / "left")).learn({"hotels": (0,)})
    for one, other, where in ((left, right, "left"), (right, left, "right")):
        (said,) = audit().diff(one, other, ["flights", "hotels"], 2)["differences"]
        assert (said["topic"], said["reason"]) == ("hotels", f"only on the {where}")
    with pytest.raises(UnknownTopic, match="trains"):
        audit().diff(left, right, ["flights", "trains"], 0)


def test_progress_is_told(make: Callable[..., Side]) -> None:
    told: list[tuple[int, int]] = []
    one = Audit(LocalEngine(1), told=lambda done, total: told.append((done, total)))
    one.whole(make("left"), ["flights"], 2)
    assert told[-1] == (END - 5, END - 5)


def test_pieces_end_with_blocks() -> None:
    found = pieces(OffsetRange("t", 0, 5, 2 * PIECE + 9))
    assert [(one.start, one.end) for one in found] == [(5, PIECE), (PIECE, 2 * PIECE), (2 * PIECE, 2 * PIECE + 9)]
    assert pieces(OffsetRange("t", 0, 7, 7)) == []
    assert [(one.start, one.end) for one in pieces(OffsetRange("t", 0, 7, 9))] == [(7, 9)]


@pytest.mark.parametrize("format_", [FormatId.KAFKA, FormatId.YDB, FormatId.PRAVEGA, FORMAT_FLAG])
def test_damage_of_a_stored_batch_is_found(format_: FormatId) -> None:
    builder = FORMATS[format_].builder(100, 103)
    for number in range(3):
        builder.add(Record(offset=100 + number, key=None, value=b"value %d" % number, headers=[], timestamp=1_000))
    payload = bytes(builder.finish())
    assert damage(StoredBatch(100, 103, format_, payload)) is None
    assert damage(StoredBatch(100, 103, format_, payload[:-1])) is not None
    if format_ != FORMAT_FLAG:  # whose batches have no checksum
        broken = bytearray(payload)
        broken[-3] ^= 1
        assert damage(StoredBatch(100, 103, format_, bytes(broken))) is not None


def test_a_batch_of_an_unknown_format_is_told() -> None:
    assert damage(StoredBatch(0, 1, 15, b"")) == "stored format 15 is not known to this version"


def swap_values(offset: int) -> Change:
    def change(rows: list[dict[str, Any]]) -> None:
        one, other = rows[row_at(rows, offset)], rows[row_at(rows, offset + 1)]
        one["value"], other["value"] = other["value"], one["value"]

    return change


@pytest.mark.parametrize("change", [set_value(5555, value=b"other"), swap_values(5555), remove(5555)])
def test_values_that_differ_or_changed_places_are_told_of_their_partition(
    make: Callable[..., Side], change: Change
) -> None:
    left, right = make("left"), make("right", 5555, change)
    ranges = [part.range(one.start, one.stable) for part, one in positions_of(left, ["flights"]).items()]
    told = values(left, right, ranges)
    assert not told["equal"]
    assert [(one["topic"], one["partition"]) for one in told["differences"]] == [("flights", 2)]


def test_values_that_came_since_and_those_without_bytes_are_no_difference(make: Callable[..., Side]) -> None:
    left = make("left", 5555, set_value(5555, value=None))
    right = make("right", 5555, set_value(5555, value=b""))
    told = values(left, right, [PART.range(5, BLOCK)])
    assert told["equal"]
    assert told["not_comparable"] > 0
    assert told["records"] + told["not_comparable"] == sum(1 for offset in range(5, BLOCK) if offset % 1000)
