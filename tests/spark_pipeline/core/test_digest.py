"""Digests tell every change of a copy, whatever batches the records came in, and the first bad offset is found."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_pipeline.core.bisect import first_bad, narrow, range_digest
from spark_pipeline.core.digest import BLOCK, BlockDigest, Digester, content_sum, differences, digest, hashes
from spark_pipeline.core.rows import Columns

SCHEMA = Columns(("key", "value", "offset", "timestamp", "headers")).schema
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]
rows_of_any = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=8),
        "value": st.none() | st.binary(max_size=20),
        "timestamp": st.integers(-1, 2_000_000_000_000).map(lambda ms: EPOCH + timedelta(milliseconds=ms)),
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"key": st.text(max_size=4), "value": st.none() | st.binary(max_size=4)}), max_size=3
        ),
    }
)


def batch_of(rows: list[Row], first: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"offset": first + number, **row} for number, row in enumerate(rows)], schema=SCHEMA
    )


def canonical(row: Row) -> bytes:
    """The canonical form, written down a second time without Arrow."""

    def size(content: bytes | None) -> int:
        return -1 if content is None else len(content)

    headers = b"".join(
        struct.pack("<ii", len(one["key"].encode()), size(one["value"])) + one["key"].encode() + (one["value"] or b"")
        for one in row["headers"] or []
    )
    stamp = round((row["timestamp"] - EPOCH) / timedelta(milliseconds=1))
    head = struct.pack("<qiii", stamp, size(row["key"]), size(row["value"]), len(headers))
    return head + (row["key"] or b"") + (row["value"] or b"") + headers


def simple(count: int, first: int = 0) -> pa.RecordBatch:
    return batch_of(
        [
            {"key": b"k%d" % (n % 7), "value": b"v%d" % n, "timestamp": EPOCH + timedelta(seconds=n), "headers": None}
            for n in range(first, first + count)
        ],
        first,
    )


@given(st.lists(rows_of_any, min_size=1, max_size=20), st.data())
def test_a_sum_of_contents_depends_on_no_order_and_tells_each_change(rows: list[Row], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    parts = [batch_of(rows[at:][::-1]), batch_of(rows[:at])]
    assert sum(map(content_sum, parts)) % 2**64 == content_sum(batch_of(rows))
    assert content_sum(batch_of(rows).slice(at)) == content_sum(batch_of(rows[at:]))
    field = data.draw(st.sampled_from(["key", "value", "headers"]))
    changed = {**rows[at], field: [{"key": "x" * 9, "value": None}] if field == "headers" else b"x" * 30}
    assert content_sum(batch_of([*rows[:at], changed, *rows[at + 1 :]])) != content_sum(batch_of(rows))
    swapped = {**rows[at], "key": rows[at]["value"], "value": rows[at]["key"]}
    assert (content_sum(batch_of([swapped])) == content_sum(batch_of([rows[at]]))) == (
        rows[at]["key"] == rows[at]["value"]
    )


def changed(batch: pa.RecordBatch, column: str, at: int, value: object) -> pa.RecordBatch:
    (row,) = batch.slice(at, 1).to_pylist()
    one = pa.RecordBatch.from_pylist([{**row, column: value}], schema=batch.schema)
    table = pa.Table.from_batches([batch.slice(0, at), one, batch.slice(at + 1)])
    return table.combine_chunks().to_batches()[0]


@pytest.fixture(scope="module")
def block() -> pa.RecordBatch:
    return simple(BLOCK)


@settings(deadline=None)  # the first call loads Arrow's functions
@given(st.lists(rows_of_any, max_size=12))
def test_a_hash_is_that_of_the_canonical_form(rows: list[Row]) -> None:
    assert hashes(batch_of(rows)).tolist() == [xxhash.xxh3_64_intdigest(canonical(row)) for row in rows]


@settings(deadline=None)  # the first call loads Arrow's functions
@given(st.lists(rows_of_any, min_size=1, max_size=20), st.data())
def test_slices_of_a_batch_have_the_digest_of_the_whole(rows: list[Row], data: st.DataObject) -> None:
    batch = batch_of(rows, BLOCK - 7)
    cut = data.draw(st.integers(0, len(rows)))
    assert digest([batch.slice(0, cut), batch.slice(cut)]) == digest([batch])


@settings(deadline=None)  # the first call loads Arrow's functions
@given(st.lists(rows_of_any, min_size=1, max_size=10), st.data())
def test_one_changed_record_changes_the_digest(rows: list[Row], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    other = data.draw(rows_of_any.filter(lambda row: canonical(row) != canonical(rows[at])))
    copy = [*rows[:at], other, *rows[at + 1 :]]
    (found,) = differences(digest([batch_of(rows)]), digest([batch_of(copy)]))
    assert found.reason == "as many records, with other contents"
    bad = first_bad(batch_of(rows), batch_of(copy))
    assert bad is not None
    assert bad.offset == at


def test_blocks_end_where_their_offsets_do() -> None:
    batch = simple(10, BLOCK - 4)
    found = digest([batch])
    assert {number: (one.count, one.first, one.last) for number, one in found.items()} == {
        0: (4, BLOCK - 4, BLOCK - 1),
        1: (6, BLOCK, BLOCK + 5),
    }
    assert found[0] == digest([batch.slice(0, 4)])[0]
    assert found[1] == digest([batch.slice(4)])[1]


def test_order_and_places_are_told_from_contents() -> None:
    batch = simple(6)
    swapped = changed(changed(batch, "value", 2, b"v3"), "value", 3, b"v2")
    swapped = changed(
        changed(swapped, "timestamp", 2, EPOCH + timedelta(seconds=3)), "timestamp", 3, EPOCH + timedelta(seconds=2)
    )
    swapped = changed(changed(swapped, "key", 2, b"k3"), "key", 3, b"k2")
    (found,) = differences(digest([batch]), digest([swapped]))
    assert found.reason == "the same records, in another order"
    moved = changed(batch, "offset", 5, 9)
    (found,) = differences(digest([batch]), digest([moved]))
    assert found.reason == "the same number of records, at other offsets"
    elsewhere = {"first": 0, "last": 0, "places": 0}
    assert replace(found.left, **elsewhere) == replace(found.right, **elsewhere)
    (found,) = differences(digest([batch]), digest([batch.slice(0, 5)]))
    assert found.reason == "6 records on the left, 5 on the right"
    assert [one.block for one in differences(digest([batch]), {})] == [0]


def test_fields_that_are_not_compared_may_differ() -> None:
    batch = simple(5)
    other = changed(batch, "key", 3, b"another")
    assert digest([batch], ("value", "timestamp")) == digest([other], ("value", "timestamp"))
    assert digest([batch], ("key",)) != digest([other], ("key",))
    assert digest([batch.select(["offset", "value"])], ("value",)) == digest([batch], ("value",))


def test_a_large_batch_is_hashed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = simple(1000)
    whole = hashes(batch)
    monkeypatch.setattr("spark_pipeline.core.digest.SLICE_BYTES", 500)
    assert np.array_equal(hashes(batch), whole)


def test_digests_go_through_json() -> None:
    (one,) = digest([simple(9)]).values()
    assert BlockDigest.from_json(json.loads(json.dumps(one.as_json()))) == one


def test_a_digester_that_was_given_nothing_has_no_blocks() -> None:
    digester = Digester()
    digester.add(simple(0))
    assert digester.blocks == {}


@pytest.mark.parametrize("at", [0, 1, 511, 512, 40_000, 65_535])
def test_narrowing_finds_the_half_with_the_first_difference(block: pa.RecordBatch, at: int) -> None:
    left = block
    right = changed(changed(left, "value", at, b"planted"), "value", BLOCK - 1, b"later")
    reads: list[int] = []

    def side(batch: pa.RecordBatch, start: int, end: int) -> BlockDigest:
        reads.append(end - start)
        return range_digest([batch.slice(start, end - start)])

    found = narrow(lambda s, e: side(left, s, e), lambda s, e: side(right, s, e), 0, BLOCK)
    assert found is not None
    start, end = found
    assert start <= at < end <= start + 512
    bad = first_bad(left.slice(start, end - start), right.slice(start, end - start))
    assert bad is not None
    assert (bad.offset, bad.reason) == (at, "value differ")
    assert len(reads) <= 2 * 8


def test_two_equal_ranges_have_no_first_difference() -> None:
    batch = simple(100)
    assert narrow(lambda s, e: range_digest([batch]), lambda s, e: range_digest([batch]), 0, 100) is None
    assert first_bad(batch, batch) is None
    assert range_digest([]) == BlockDigest()


def test_missing_doubled_and_misplaced_records_are_named() -> None:
    batch = simple(10)
    rows = batch.to_pylist()

    def of(picked: list[int]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([rows[n] for n in picked], schema=SCHEMA)

    def told(left: pa.RecordBatch, right: pa.RecordBatch) -> tuple[int, str]:
        bad = first_bad(left, right)
        assert bad is not None
        return bad.offset, bad.reason

    assert told(batch, of([0, 1, 3, 4])) == (2, "missing on the right")
    assert told(of([0, 1, 3, 4]), batch) == (2, "missing on the left")
    assert told(batch, of([0, 1, 2])) == (3, "missing on the right")
    assert told(of([0, 1, 2]), batch) == (3, "missing on the left")
    assert told(batch, of([0, 1, 2, 2, 3])) == (2, "twice on the right")
    assert told(of([0, 1, 1, 2]), batch) == (1, "twice on the left")
    assert told(batch, of([0, 1, 2, 0])) == (0, "out of order on the right")
