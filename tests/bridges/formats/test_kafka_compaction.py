"""What is left of a batch of Kafka's is what a filter of its records would leave, whatever they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.run.sliced import at_once
from bridges.formats.checksum import crc32c
from bridges.formats.columns import translation
from bridges.formats.columns.compaction import Compacted, all_keys, compacted
from bridges.formats.kafka import (
    CODEC_MASK,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    BatchBuilder,
    iterate,
    parse_header,
)
from bridges.formats.kafka_compaction import NO_HORIZON
from bridges.formats.records import Buffer, Record, StoredBatch

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


def stored(batch: Buffer) -> StoredBatch:
    header = parse_header(batch)
    return StoredBatch(header.base_offset, header.base_offset + header.last_offset_delta + 1, 1, batch)


def compact(
    batches: Sequence[Buffer], newest: dict[bytes | None, int], now: int = NOW, *, by_columns: bool = True
) -> list[Compacted | None]:
    with patch.object(translation, "LEAST_RECORDS", 0 if by_columns else 1 << 40):
        work = compacted(
            [stored(one) for one in batches], lambda keys: np.array([newest[key] for key in keys]), now, HORIZON
        )
        return at_once(work)


def compact_one(batch: Buffer, newest: dict[bytes | None, int], now: int = NOW) -> Compacted:
    (found,) = compact([batch], newest, now)
    assert [found] == compact([batch], newest, now, by_columns=False), "columns and the long way differ"
    assert found is not None
    return found


def told(batch: Buffer) -> list[tuple[Any, ...]]:
    return [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in iterate(batch)]


@given(st.lists(record, min_size=1, max_size=12), st.integers(0, 4), st.sampled_from([0, LOG_APPEND_TIME]))
def test_keys_are_those_of_the_records(records: list[Any], codec: int, attributes: int) -> None:
    batch = batch_of(records, codec, attributes)
    wanted = [(one.offset, one.key) for one in iterate(batch)]
    for least in (0, 1 << 40):
        with patch.object(translation, "LEAST_RECORDS", least):
            found = [one for one in all_keys([stored(batch)]) if one is not None]
        keyed = [one for one in wanted if one[1] is not None]
        assert [(offset, key) for one in found for key, offset in zip(one.keys, one.offsets, strict=True)] == keyed
        assert sum(one.missing for one in found) == len(wanted) - len(keyed)


@given(st.lists(record, min_size=1, max_size=12), st.integers(0, 4), st.data())
def test_what_stays_is_what_a_filter_leaves(records: list[Any], codec: int, data: st.DataObject) -> None:
    batch = batch_of(records, codec)
    before = told(batch)
    newest = {key: data.draw(st.integers(99, before[-1][0] + 1)) for key in {one[2] for one in before}}
    newest[b""] = newest.get(b"", 0)
    found = compact_one(batch, newest)
    wanted = [one for one in before if one[2] is not None and newest[one[2]] <= one[0]]
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
            again = compact_one(after, newest)
            assert again == Compacted(None, len(wanted), HORIZON)
            last = compact_one(after, newest, HORIZON)
            rest = [one for one in wanted if one[3] is not None]
            assert last.payload is not None
            assert told(last.payload) == rest
            assert parse_header(last.payload).attributes & CODEC_MASK == (codec if rest else 0)


@given(st.lists(st.lists(record, min_size=1, max_size=6), min_size=2, max_size=5), st.integers(0, 4), st.data())
def test_batches_that_are_compacted_together_become_what_each_becomes_alone(
    groups: list[list[Any]], codec: int, data: st.DataObject
) -> None:
    batches: list[Buffer] = []
    base = 100
    for records in groups:
        batches.append(batch_of(records, codec, base=base))
        base = stored(batches[-1]).end_offset
    newest = {key: data.draw(st.integers(99, base)) for batch in batches for key in {one[2] for one in told(batch)}}
    newest[b""] = newest.get(b"", 0)
    damaged = -1 if codec else data.draw(st.integers(-1, len(batches) - 1))  # gzip works without its last bytes
    if damaged >= 0:
        batches[damaged] = bytes(batches[damaged][:-3])
    found = compact(batches, newest)
    assert found == [one for batch in batches for one in compact([batch], newest)]
    assert found == compact(batches, newest, by_columns=False)
    assert [number for number, one in enumerate(found) if one is None] == ([damaged] if damaged >= 0 else [])


def test_no_batches_become_none() -> None:
    """A part of a log may hold nothing but markers."""
    assert compact([], {}) == []
    assert list(all_keys([])) == []


def test_a_batch_of_many_records_is_compacted_in_parts() -> None:
    records = [(b"%d" % (number % 700), b"v", [("h", b"%d" % number)], number, 1) for number in range(5000)]
    batch = batch_of(records, 0)
    newest: dict[bytes | None, int] = {b"%d" % key: 100 + key + 700 * ((4999 - key) // 700) for key in range(700)}
    found = compact_one(batch, newest)
    assert found.payload is not None
    assert told(found.payload) == told(batch)[-700:]


def test_headers_whose_names_are_no_text_stay_as_they_are() -> None:
    batch = batch_of([(b"k", b"v", [("h", b"\0")], 5, 1), (b"k", b"w", [("h", b"\0")], 5, 1)], 0)
    odd = bytearray(batch.replace(b"\2h", b"\2\xff"))
    odd[17:21] = crc32c(memoryview(odd)[21:]).to_bytes(4, "big")
    (found,) = compact([odd], {b"k": 101, b"": 0})
    assert found is not None
    assert found.payload is not None
    assert bytes(found.payload).count(b"\2\xff") == 1
    assert compact([odd], {b"k": 101, b"": 0}, by_columns=False) == [None], "the long way would change them"
