"""What is left of a batch of Kafka's is what a filter of its records would leave, whatever they are."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.errors import BatchInvalid
from bridges.formats.kafka import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchBuilder,
    iterate,
    outlines,
    parse_header,
)
from bridges.formats.kafka_compaction import NO_HORIZON, Compacted, compacted, keys
from bridges.formats.records import Buffer, Record

NOW, HORIZON = 5_000, 9_000
small = st.binary(max_size=8)
keyed = st.one_of(st.none(), st.sampled_from([b"", b"a", b"bb", b"k" * 200]), small)
valued = st.one_of(st.none(), small, st.just(b"v" * 300), st.just(b"V" * 70_000))
headed = st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), small)), max_size=3)
record = st.tuples(keyed, valued, headed, st.integers(-(2**40), 2**40), st.integers(1, 3))


def batch_of(records: list[Any], codec: int, attributes: int = 0, base: int = 100) -> bytes:
    at, laid = base - 1, []
    for key, value, headers, time, step in records:
        at += step
        laid.append(Record(key, value, headers, time, at))
    builder = BatchBuilder(base, count=at - base + 1, producer_id=7, producer_epoch=2, base_sequence=11)
    for one in laid:
        builder.add(one)
    return bytes(builder.finish(codec, attributes))


def done(work: Generator[None, None, Compacted]) -> Compacted:
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: Compacted = end.value
            return found


def told(batch: Buffer) -> list[tuple[Any, ...]]:
    return [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in iterate(batch)]


@given(st.lists(record, min_size=1, max_size=12), st.integers(0, 4), st.sampled_from([0, LOG_APPEND_TIME]))
def test_outlines_are_of_the_same_records(records: list[Any], codec: int, attributes: int) -> None:
    batch = batch_of(records, codec, attributes)
    wanted = [(one.offset, one.timestamp, one.key, one.value is not None) for one in iterate(batch)]
    for raw in (False, True):
        found = [one for one in outlines(batch, raw=raw) if one is not None]
        assert [one[:4] for one in found] == wanted
    assert [one for one in keys(batch) if one is not None] == [(offset, key) for offset, _, key, _ in wanted]
    if not codec:
        assert b"".join(one.raw for one in outlines(batch, raw=True) if one is not None) == batch[HEADER_SIZE:]


@given(st.lists(record, min_size=1, max_size=12), st.integers(0, 4), st.data())
def test_what_stays_is_what_a_filter_leaves(records: list[Any], codec: int, data: st.DataObject) -> None:
    batch = batch_of(records, codec)
    before = told(batch)
    latest = data.draw(st.sets(st.sampled_from([one[0] for one in before])))
    found = done(compacted(batch, lambda offset, key: offset in latest, NOW, HORIZON))
    wanted = [one for one in before if one[0] in latest and one[2] is not None]
    assert found.records == len(wanted)
    tombstones = any(one[3] is None for one in wanted)
    assert found.horizon_ms == (HORIZON if tombstones else NO_HORIZON)
    after = batch if found.payload is None else found.payload
    assert told(after) == wanted
    old, new = parse_header(batch), parse_header(after)
    assert (old.base_offset, old.last_offset_delta, *old[9:12]) == (new.base_offset, new.last_offset_delta, *new[9:12])
    if wanted:
        assert new.max_timestamp == max(one[1] for one in wanted)
        assert new.codec == old.codec
        assert bool(new.attributes & DELETE_HORIZON) is tombstones
        if tombstones:
            # The next pass leaves it as it is, and the one after the horizon takes those that tell nothing more.
            again = done(compacted(after, lambda offset, key: True, NOW, HORIZON + 1))
            assert again == Compacted(None, len(wanted), HORIZON)
            last = done(compacted(after, lambda offset, key: True, HORIZON, HORIZON + 1))
            rest = [one for one in wanted if one[3] is not None]
            assert last.payload is not None
            assert told(last.payload) == rest
            assert parse_header(last.payload).attributes & CODEC_MASK == (codec if rest else 0)


@given(st.lists(record, min_size=1, max_size=4), st.integers(0, 400), st.integers(0, 255))
def test_what_is_damaged_is_told_or_kept_within_its_bounds(records: list[Any], at: int, byte: int) -> None:
    batch = bytearray(batch_of(records, 0))
    batch[HEADER_SIZE + at % max(1, len(batch) - HEADER_SIZE)] = byte
    try:
        found = [one for one in outlines(batch, raw=True) if one is not None]
    except BatchInvalid:
        return
    assert sum(len(one.raw) for one in found) <= len(batch) - HEADER_SIZE


def test_a_record_that_ends_behind_its_batch_is_told() -> None:
    batch = batch_of([(b"key", b"value", [], 0, 1)], 0)
    for cut in range(HEADER_SIZE + 1, len(batch) - 6):
        for raw in (False, True):
            with pytest.raises(BatchInvalid):
                list(outlines(batch[:cut], raw=raw))
