"""RecordBatch v2: against kafka-python's own writer and reader, and against every kind of damage."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from anabranch_kit.run.sliced import at_once
from bridges.errors import BatchCorrupt, BatchInvalid, CompressionUnsupported, DecompressedTooLarge
from bridges.formats import FormatId, Translator, decode, format_of
from bridges.formats.codecs.compression import Compression, compress, decompress
from bridges.formats.kafka import check_batch, encode, iterate, parse_header, set_log_append_time, stamp
from bridges.formats.records import Buffer, Record, StoredBatch

CODECS = list(Compression)

headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
records = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=200),
        headers=headers,
        timestamp=st.integers(0, 1 << 45),
    ),
    min_size=1,
    max_size=20,
)


def content(batch: bytes | bytearray) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]]:
    return [(r.key, r.value, list(r.headers), r.timestamp) for r in iterate(batch)]


@given(records, st.sampled_from(CODECS), st.integers(0, 1 << 40))
def test_what_is_encoded_is_decoded(given_records: list[Record], codec: int, base: int) -> None:
    batch = encode(given_records, base, codec=codec)
    header = check_batch(memoryview(batch))
    assert header.record_count == len(given_records)
    assert header.codec == codec
    decoded = decode(StoredBatch(base, base + len(given_records), int(FormatId.KAFKA), batch))
    assert [(r.key, r.value, r.headers, r.timestamp) for r in decoded] == [
        (r.key, r.value, r.headers, r.timestamp) for r in given_records
    ]
    assert [r.offset for r in decoded] == list(range(base, base + len(given_records)))


@given(records, st.sampled_from([Compression.NONE, Compression.GZIP]))
def test_kafka_python_reads_what_we_write(given_records: list[Record], codec: int) -> None:
    theirs = DefaultRecordBatch(bytes(encode(given_records, 7, codec=codec)))
    assert theirs.validate_crc()
    assert [(r.offset, r.key, r.value, list(r.headers), r.timestamp) for r in theirs] == [
        (7 + i, r.key, r.value, r.headers, r.timestamp) for i, r in enumerate(given_records)
    ]


@given(records)
def test_we_read_what_kafka_python_writes(given_records: list[Record]) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, 41, 2, 9, 1 << 20)
    for index, record in enumerate(given_records):
        builder.append(index, record.timestamp, record.key, record.value, record.headers)
    batch = bytes(builder.build())
    header = check_batch(memoryview(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (41, 2, 9)
    assert content(batch) == [(r.key, r.value, r.headers, r.timestamp) for r in given_records]


def test_stamping_leaves_the_checksum_valid() -> None:
    batch = encode([Record(None, b"v", timestamp=5)])
    stamp(batch, 123456789, 7)
    header = check_batch(memoryview(batch))
    assert (header.base_offset, header.leader_epoch) == (123456789, 7)
    assert next(iterate(batch)).offset == 123456789


def test_a_batch_that_nobody_stamped_says_no_leaders_epoch() -> None:
    # Translated batches are not stamped: a consumer that was told another epoch than that of the log would look for
    # where it ended, and find its log truncated.
    assert check_batch(memoryview(encode([Record(None, b"v", timestamp=5)]))).leader_epoch == -1


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = encode([Record(None, b"a", timestamp=5), Record(None, b"b", timestamp=9)])
    at_once(set_log_append_time(memoryview(batch), 1000))
    assert check_batch(memoryview(batch)).max_timestamp == 1000
    assert [r.timestamp for r in iterate(batch)] == [1000, 1000]


def test_every_damaged_byte_under_the_checksum_is_noticed() -> None:
    good = encode([Record(b"k", b"value", timestamp=5)])
    for position in range(17, len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        with pytest.raises(BatchCorrupt):
            check_batch(memoryview(bad))


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [(8, ">i", 10), (8, ">i", -1), (16, ">b", 1), (16, ">b", 3)],
    ids=["short", "negative", "magic-1", "magic-3"],
)
def test_a_header_that_contradicts_itself_is_refused(at: int, form: str, value: int) -> None:
    batch = encode([Record(b"k", b"value", timestamp=5)])
    struct.pack_into(form, batch, at, value)
    with pytest.raises(BatchInvalid):
        check_batch(memoryview(batch))


@given(st.binary(max_size=300))
def test_garbage_raises_only_the_typed_error(data: bytes) -> None:
    with pytest.raises(BatchInvalid):
        check_batch(memoryview(data))
    batch = bytearray(encode([Record(None, b"x", timestamp=1)]))[:61] + data
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with contextlib.suppress(BatchInvalid):
        list(iterate(batch))


@given(records, st.sampled_from(CODECS), st.randoms(use_true_random=False))
def test_mutated_records_raise_only_the_typed_error(
    given_records: list[Record], codec: int, rng: random.Random
) -> None:
    batch = encode(given_records, codec=codec)
    for _ in range(3):
        batch[rng.randrange(21, len(batch))] = rng.randrange(256)
    with contextlib.suppress(BatchInvalid):
        list(iterate(batch, limit=1 << 20))


@pytest.mark.parametrize("codec", [c for c in CODECS if c])
def test_a_decompression_bomb_is_cut_at_the_limit(codec: int) -> None:
    bomb = compress(codec, bytes(50_000_000))
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, bomb, limit=1_000_000)
    assert len(decompress(codec, bomb, limit=50_000_000)) == 50_000_000


def test_raw_snappy_is_read_as_well_as_framed() -> None:
    assert bytes(decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(b"abc" * 99)))) == b"abc" * 99


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_named(codec: int) -> None:
    with pytest.raises(CompressionUnsupported):
        decompress(codec, b"x")
    with pytest.raises(CompressionUnsupported):
        compress(codec, b"x")


def test_control_batches_hold_no_user_records() -> None:
    marker = encode([Record(b"\0\0\0\1", b"\0\0\0\0\0\0", timestamp=1)], attributes=0x30)
    assert decode(StoredBatch(0, 1, int(FormatId.KAFKA), marker)) == []


def test_an_opaque_batch_is_one_value_for_kafka_readers_and_keeps_its_offsets() -> None:
    opaque = StoredBatch(10, 15, 0, b"payload")
    translator = Translator(1000)
    batch = translator.payload(1, opaque, FormatId.KAFKA)
    assert batch is not None
    header = parse_header(batch)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (10, 4, 1)
    assert [(r.offset, r.value) for r in iterate(batch)] == [(10, b"payload")]
    assert translator.payload(1, opaque, FormatId.KAFKA) is batch
    own = StoredBatch(0, 1, int(FormatId.KAFKA), b"anything")
    assert translator.payload(1, own, FormatId.KAFKA) == b"anything"


def test_the_translator_forgets_what_exceeds_its_budget() -> None:
    translator = Translator(200)
    first = translator.payload(1, StoredBatch(0, 1, 0, b"a" * 100), FormatId.KAFKA)
    translator.payload(1, StoredBatch(1, 2, 0, b"b" * 100), FormatId.KAFKA)
    assert translator.payload(1, StoredBatch(0, 1, 0, b"a" * 100), FormatId.KAFKA) is not first


async def test_a_batch_that_is_translated_twice_counts_once() -> None:
    batch = StoredBatch(0, 1, 0, bytes(3 << 20))
    again: list[asyncio.Task[Buffer]] = []

    def held(change: int) -> None:
        if change < 0 and not again:  # the first translation ends in this step
            again.append(asyncio.create_task(translator.translate(1, batch, FormatId.KAFKA)))

    translator = Translator(5 << 20, held=held)
    await translator.translate(1, batch, FormatId.KAFKA)
    second = await again[0]
    assert translator.payload(1, batch, FormatId.KAFKA) is second


def test_an_unknown_stored_format_is_refused() -> None:
    with pytest.raises(BatchInvalid):
        format_of(9)
