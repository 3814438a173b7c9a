"""Arrow to record batches: byte for byte what others' builders make of the same records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from bridges.catalog.topics.lineage import choose_partition, murmur2
from bridges.formats.kafka import TRANSACTIONAL, check_batch, iterate
from bridges.formats.kafka import encode as encode_ours
from bridges.formats.records import Record
from spark_pipeline.core.encoding.kafka import (
    EncodedBatch,
    Records,
    encode,
    lengths_of,
    murmur2_of,
    partitions_of,
    sizes,
    starts_of,
)
from spark_pipeline.core.rows import TYPES

Header = tuple[str, bytes | None]
Row = tuple[bytes | None, bytes | None, int, list[Header] | None]

BYTES = st.none() | st.binary(max_size=200) | st.integers(0, 20_000).map(bytes)
TIMES = st.integers(0, 1 << 41) | st.integers(1_700_000_000_000, 1_700_000_100_000)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=20), BYTES), max_size=4)
ROWS = st.lists(st.tuples(BYTES, BYTES, TIMES, HEADERS), min_size=1, max_size=40)


def records_of(rows: list[Row], *, keys: bool = True, headers: bool = True) -> Records:
    told = [None if row[3] is None else [{"key": key, "value": value} for key, value in row[3]] for row in rows]
    return Records(
        pa.array([row[0] for row in rows], pa.binary()) if keys else None,
        pa.array([row[1] for row in rows], pa.binary()),
        np.array([row[2] for row in rows], np.int64),
        pa.array(told, TYPES["headers"]) if headers else None,
    )


def payload(batch: EncodedBatch, **stamp: Any) -> bytes:
    return batch.header(**stamp) + bytes(batch.body)


def one(records: Records, codec: int = 0) -> EncodedBatch:
    (made,) = encode(records, np.array([0], np.int64), codec)
    return made


@settings(deadline=None, max_examples=40)
@given(rows=ROWS)
@example(rows=[(None, None, 0, None)])
@example(rows=[(b"", b"", 0, [])])
@example(rows=[(b"k", b"v", 1 << 40, None), (b"k", b"v", 0, None)])
def test_the_same_bytes_as_others_make(rows: list[Row]) -> None:
    made = payload(one(records_of(rows)), producer_id=7, epoch=3, sequence=11, transactional=True)
    for builder in (
        AioBuilder(2, 0, True, 7, 3, 11, 1 << 30),
        KafkaPythonBuilder(2, 0, True, 7, 3, 11, 1 << 30),
    ):
        for offset, (key, value, timestamp, headers) in enumerate(rows):
            builder.append(offset, timestamp, key, value, list(headers or []))
        built = bytes(builder.build())
        # Between them: the leader's epoch, which is the log's to tell, and which no checksum covers.
        assert (built[:12], built[16:]) == (made[:12], made[16:])
    told = [Record(key, value, headers or [], timestamp) for key, value, timestamp, headers in rows]
    stamp = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 11}
    assert encode_ours(told, attributes=TRANSACTIONAL, leader_epoch=0, **stamp)[21:] == made[21:]
    check_batch(memoryview(made))


@settings(deadline=None, max_examples=40)
@given(rows=ROWS, codec=st.sampled_from([1, 2, 3, 4]))
def test_compressed_batches_hold_the_same_records(rows: list[Row], codec: int) -> None:
    made = payload(one(records_of(rows), codec), transactional=False)
    assert check_batch(memoryview(made)).codec == codec
    assert [(r.key, r.value, r.timestamp, r.headers) for r in iterate(made)] == [
        (key, value, timestamp, headers or []) for key, value, timestamp, headers in rows
    ]


@settings(deadline=None, max_examples=40)
@given(rows=ROWS, cuts=st.sets(st.integers(1, 39)))
def test_many_batches_in_one_pass(rows: list[Row], cuts: set[int]) -> None:
    starts = [0, *sorted(cut for cut in cuts if cut < len(rows))]
    whole = records_of(rows)
    made = encode(whole, np.array(starts, np.int64))
    for start, end, batch in zip(starts, [*starts[1:], len(rows)], made, strict=True):
        assert payload(batch) == payload(one(records_of(rows[start:end])))
        assert batch.size <= 61 + int(sizes(whole)[start:end].sum())


def test_columns_that_are_not_there_and_slices_of_arrays() -> None:
    rows: list[Row] = [(None, b"%d" % number, number, None) for number in range(100)]
    made = payload(one(records_of(rows[7:50])))
    whole = records_of(rows)
    assert whole.keys is not None
    assert whole.headers is not None
    part = Records(whole.keys.slice(7, 43), whole.values.slice(7, 43), whole.times[7:50], whole.headers.slice(7, 43))
    assert payload(one(part)) == made
    assert payload(one(records_of(rows[7:50], keys=False, headers=False))) == made
    assert payload(one(whole.take(np.arange(7, 50)))) == made
    assert encode(whole.take(np.empty(0, np.int64)), np.empty(0, np.int64)) == []


@settings(deadline=None, max_examples=40)
@given(
    bounds=st.lists(st.integers(37, 5_000), min_size=1, max_size=60),
    groups=st.sets(st.integers(0, 59)),
    most=st.integers(62, 20_000),
    count=st.integers(1, 30),
)
def test_where_batches_begin(bounds: list[int], groups: set[int], most: int, count: int) -> None:
    begun = [0, *sorted(one for one in groups if 0 < one < len(bounds))]
    starts = starts_of(np.array(bounds, np.int64), np.array(begun, np.int64), most, count).tolist()
    assert set(begun) <= set(starts)
    assert starts == sorted(set(starts))
    for start, end in zip(starts, [*starts[1:], len(bounds)], strict=True):
        assert end - start <= count
        assert sum(bounds[start:end]) + 61 <= most or end == start + 1
        if end not in begun and end < len(bounds):  # no smaller than it must be
            assert sum(bounds[start : end + 1]) + 61 > most or end - start == count


@settings(deadline=None, max_examples=40)
@given(keys=st.lists(st.none() | st.binary(max_size=40) | st.integers(4_090, 4_100).map(bytes), max_size=30))
def test_keys_go_where_kafkas_clients_send_them(keys: list[bytes | None]) -> None:
    array = pa.array([b"x", *keys, b"yy"], pa.binary()).slice(1, len(keys))
    assert murmur2_of(array).tolist() == [murmur2(key or b"") for key in keys]
    for partitions in (1, 3, 7):
        assert partitions_of(array, partitions).tolist() == [choose_partition(key or b"", partitions) for key in keys]


@pytest.mark.parametrize("sequence", [0, (1 << 31) - 1, 1 << 31])
def test_sequence_numbers_wrap(sequence: int) -> None:
    made = payload(one(records_of([(None, b"v", 0, None)])), producer_id=1, epoch=0, sequence=sequence)
    assert check_batch(memoryview(made)).base_sequence == sequence % (1 << 31)


@pytest.mark.parametrize("keys", [[b"12345678", b"abcdefgh"], [b"1234", b"123456789012", b"", None], [None], []])
def test_the_hashes_and_lengths_of_a_part_of_a_column(keys: list[bytes | None]) -> None:
    array = pa.array([b"before", None, *keys, b"behind"], pa.binary()).slice(2, len(keys))
    assert murmur2_of(array).tolist() == [murmur2(key or b"") for key in keys]
    assert lengths_of(array).tolist() == [len(key or b"") for key in keys]


def test_what_lies_behind_a_null_has_no_length() -> None:
    whole = pa.array([b"abc", b"de", b"f"], pa.binary())
    some = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), *whole.buffers()[1:]])
    assert some.to_pylist() == [b"abc", None, b"f"]
    assert lengths_of(some).tolist() == [3, 0, 1]
