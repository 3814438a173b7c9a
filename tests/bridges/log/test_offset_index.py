"""The sparse offset index against a list of all batches."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.log.state.offset_index import OffsetIndex
from sbp_back.errors import DecodeError

batches = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 300), st.integers(-1, 50)), min_size=1, max_size=80)


def build(rows: list[tuple[int, int, int]], max_rows: int = 8192) -> tuple[OffsetIndex, list[tuple[int, int, int]]]:
    index = OffsetIndex(interval=500, max_rows=max_rows)
    base = 0
    all_batches = []
    for count, size, timestamp in rows:
        index.add(base, size, timestamp, timestamp, 25)
        all_batches.append((base, size, timestamp))
        base += count
    return index, all_batches


@given(batches, st.integers(0, 60), st.sampled_from([4, 8192]))
def test_a_scan_from_the_sought_offset_meets_the_first_batch_in_time(rows, timestamp, max_rows) -> None:  # type: ignore[no-untyped-def]
    index, all_batches = build(rows, max_rows)
    first = next((base for base, _, ts in all_batches if ts >= timestamp), None)
    found = index.seek(timestamp)
    assert (found is None) == (first is None)
    if found is not None and first is not None:
        end = index.end_of(found.start)
        assert found.start <= first
        assert end is None or first < end


@given(batches, st.integers(0, 60), st.sampled_from([4, 8192]))
def test_everything_before_older_than_is_older(rows, timestamp, max_rows) -> None:  # type: ignore[no-untyped-def]
    index, all_batches = build(rows, max_rows)
    offset = index.older_than(timestamp)
    assert all(
        (ts if ts >= 0 else 25) < timestamp for base, _, ts in all_batches if offset is not None and base < offset
    )
    blocking = index.blocking(timestamp)
    kept = next((base for base, _, ts in all_batches if (ts if ts >= 0 else 25) >= timestamp), None)
    assert (blocking is None) == (kept is None)
    if blocking is not None and kept is not None:
        end = index.end_of(blocking.start)
        assert blocking.start <= kept
        assert end is None or kept < end


@given(batches, st.integers(0, 60))
def test_bytes_since_are_those_from_the_first_batch_in_time(rows, timestamp) -> None:  # type: ignore[no-untyped-def]
    index, all_batches = build(rows)
    first = next((base for base, _, ts in all_batches if (ts if ts >= 0 else 25) >= timestamp), None)
    exact = sum(size for base, size, _ in all_batches if first is not None and base >= first)
    assert exact <= index.bytes_since(timestamp) <= exact + (0 if first is None else 500 + 300)


@given(batches, st.integers(0, 30_000), st.sampled_from([4, 8192]))
def test_beyond_leaves_at_least_what_is_to_be_kept(rows, keep, max_rows) -> None:  # type: ignore[no-untyped-def]
    index, all_batches = build(rows, max_rows)
    offset = index.beyond(keep)
    if offset is not None:
        assert sum(size for base, size, _ in all_batches if base >= offset) >= keep
        assert any(base < offset for base, _, _ in all_batches)


@given(batches, st.sampled_from([4, 8192]))
def test_the_highest_timestamp_lies_where_it_says(rows, max_rows) -> None:  # type: ignore[no-untyped-def]
    index, all_batches = build(rows, max_rows)
    highest = max(ts for _, _, ts in all_batches)
    found = index.highest()
    if highest < 0:
        assert found is None
    else:
        assert found is not None
        end = index.end_of(found.start)
        first = next(base for base, _, ts in all_batches if ts == highest)
        assert found.highest == highest
        assert found.start <= first
        assert end is None or first < end


@given(batches, st.integers(0, 200))
def test_dropping_keeps_the_size_of_what_remains_within_an_interval(rows, offset) -> None:  # type: ignore[no-untyped-def]
    index, all_batches = build(rows)
    assert index.size_bytes == sum(size for _, size, _ in all_batches)
    index.drop_before(offset)
    remaining = sum(size for base, size, _ in all_batches if base >= offset)
    assert remaining <= index.size_bytes <= remaining + 500 + 300


@given(batches, batches)
def test_a_restored_index_goes_on_like_the_original(rows, more) -> None:  # type: ignore[no-untyped-def]
    index, all_batches = build(rows)
    copy = OffsetIndex()
    copy.restore(index.snapshot())
    base = all_batches[-1][0] + 5
    for count, size, timestamp in more:
        index.add(base, size, timestamp, timestamp, 25)
        copy.add(base, size, timestamp, timestamp, 25)
        base += count
    assert copy.snapshot() == index.snapshot()


@given(st.binary(max_size=100))
def test_damaged_snapshots_raise_only_the_typed_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        OffsetIndex().restore(b"\x09" + data)


def test_rows_stay_bounded() -> None:
    index, _ = build([(1, 500, i) for i in range(10_000)], max_rows=16)
    assert len(index.offsets) <= 16
    assert index.size_bytes == 5_000_000


@given(batches, st.integers(0, 200))
def test_what_is_dropped_takes_its_timestamps_with_it(rows, offset) -> None:  # type: ignore[no-untyped-def]
    index, all_batches = build(rows)
    index.drop_before(offset)
    fresh = OffsetIndex(interval=500)
    fresh.restore(index.snapshot())
    start = index.offsets[0]
    kept = [ts for base, _, ts in all_batches if base >= start]
    for one in (index, fresh):
        found = one.highest()
        assert (-1 if found is None else found.highest) == max(kept)
    index.clear()
    assert index.highest() is None
    assert index.blocking(0) is None


def test_a_corrected_row_counts_as_what_it_is() -> None:
    index, _ = build([(1, 500, 10), (1, 500, 1 << 62), (1, 500, 12), (1, 500, 11)])
    assert index.highest() == (1, 1 << 62)
    assert index.blocking(12) == (1, 1 << 62)
    index.correct(1, 9, 9)
    assert index.highest() == (2, 12)
    assert index.seek(12) == (2, 12)
    assert index.older_than(12) == 2
    index.correct(2, -1, -1, unreadable_ms=50)
    assert index.highest() == (3, 11)
    assert index.blocking(50) == (2, -1), "records that could not be read are as old as the look at them"
    index.correct(77, 5, 5)
    copy = OffsetIndex()
    copy.restore(index.snapshot())
    assert copy.highest() == (3, 11)
    assert copy.blocking(50) == (2, -1)


def test_rows_of_what_trickles_are_closed_by_age_and_stay_few() -> None:
    index = OffsetIndex()
    index.keep_for(8000)
    for number in range(1000):
        index.add(number, 10, -1, -1, number * 100)
    assert index.starts == list(range(0, 1000, 10))
    assert index.older_than(99_900 - 8000) == 910
    assert restored(index.snapshot()).older_than(99_900 - 8000) == 910


def test_a_claim_that_is_no_age_serves_lookups_only() -> None:
    index = OffsetIndex(interval=500)
    index.add(0, 500, 10, -1, 1000)
    index.add(1, 500, 1 << 60, -1, 2000)
    index.add(2, 500, 10, 10, 3000)
    for one in (index, restored(index.snapshot())):
        assert one.seek(11) == (1, 1 << 60)
        assert one.blocking(1500) == (1, -1), "as old as its append"
        assert one.blocking(2001) is None
        assert one.older_than(1500) == 1
        assert one.bytes_since(2000) == 1000


FORMER = struct.pack(">BIQQ", 2, 3, 500, 1500) + struct.pack("=12q", 0, 1, 2, 0, 500, 1000, 10, 1 << 60, 11, -1, 25, -1)
"""What the version before wrote, for which every claim was an age."""


def test_rows_of_before_there_were_ages_are_read() -> None:
    believed = restored(FORMER)
    assert (believed.blocking(11), believed.blocking(1 << 60)) == ((1, 1 << 60), (1, 1 << 60))
    doubted = restored(FORMER, 20)
    assert doubted.seek(1 << 60) == (1, 1 << 60), "lookups go by claims"
    assert doubted.older_than(21) is None, "nothing is younger than its last append"
    assert doubted.blocking(25) == (0, -1)
    assert doubted.blocking(26) is None, "nor is it kept longer than from then on"
    for one in (believed, doubted):
        assert restored(one.snapshot()).snapshot() == one.snapshot()


def restored(data: bytes, former_ms: int = -1) -> OffsetIndex:
    index = OffsetIndex()
    index.restore(data, former_ms)
    return index
