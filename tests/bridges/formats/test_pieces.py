"""What is as large as clients choose is put together and taken apart in steps, each of which copies little."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import TypeVar

import cramjam
import pytest

import bridges.formats.columns.translation  # noqa: F401 - the import takes much memory
from anabranch_kit.run.sliced import Sliced, advance, at_once
from bridges.formats import FORMATS, FormatId, translate_group, translate_one
from bridges.formats.codecs.compression import Compression, compress, decompress
from bridges.formats.codecs.ydb import Codec
from bridges.formats.kafka import HEADER_SIZE, encode
from bridges.formats.pieces import LARGE, STEP, Layout, copied, room, written
from bridges.formats.protobuf import put_bytes, put_varint
from bridges.formats.records import Record, StoredBatch
from bridges.formats.ydb import Head, encode_batch, encode_in_slices

T = TypeVar("T")
SIZE = 24 * STEP + 12345
BODY = bytes(range(256)) * (SIZE // 256 + 1)
BODY = BODY[:SIZE]
MOST = 5 << 20
"""Bytes that a step may make: what it copies, a little for growth, and a block of lz4 (4 MiB)."""


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def in_small_steps(work: Sliced[T]) -> T:
    """The result of ``work``, no step of which has made many bytes."""
    while True:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        ended, value = advance(work)
        _, peak = tracemalloc.get_traced_memory()
        assert peak - before <= MOST
        if ended:
            assert value is not None
            return value  # type: ignore[no-any-return]


def test_layouts_are_what_was_put_in_order() -> None:
    rng = random.Random(1)
    for _ in range(50):
        layout, expected = Layout(b"head"), b"head"
        for _ in range(rng.randrange(6)):
            if rng.random() < 0.5:
                layout.tail += b"short"
                expected += b"short"
            part = rng.randbytes(rng.choice((0, 5, LARGE - 1, LARGE, STEP - 1, STEP, 2 * STEP + 1)))
            layout.put(part)
            expected += part
        assert at_once(layout.together()) == expected
        assert at_once(layout.together()) == b""


@pytest.mark.parametrize("size", [0, 1, STEP, STEP + 1, 3 * STEP])
def test_copies_are_the_same_bytes(size: int) -> None:
    data = BODY[:size]
    assert at_once(copied(memoryview(data))) == data
    whole = BytesIO(b"before")
    whole.seek(6)
    assert at_once(written(whole, data)) == size
    assert whole.getvalue() == b"before" + data
    assert bytes(room(size)) == bytes(size)


def ydb_batch(codec: int, body: bytes) -> bytes:
    message, fields = bytearray(b"\x08\x01"), bytearray()
    put_bytes(message, 0x1A, body)
    put_bytes(fields, 0x0A, message)
    return encode_batch(Head(False, codec, 1, 1, 1, -1, b"p", b""), fields)


def gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(data) + packer.flush()


def kafka_batch(codec: int, packed: bytes | None = None) -> bytes:
    """A batch of two records, the second with a large header too; ``packed``: compressed by somebody else."""
    records = [Record(b"key", BODY, [("name", b"content")]), Record(None, b"small", [("large", BODY[: 4 * STEP])])]
    batch = encode(records, codec=codec)
    if packed is not None:
        batch[HEADER_SIZE:] = packed
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    return bytes(batch)


def plain_records() -> bytes:
    return kafka_batch(0)[HEADER_SIZE:]


SOURCES = {
    "ydb-raw": lambda: (FormatId.YDB, 1, ydb_batch(Codec.RAW, BODY)),
    "ydb-gzip": lambda: (FormatId.YDB, 1, ydb_batch(Codec.GZIP, gzip(BODY))),
    "ydb-gzip-cut": lambda: (FormatId.YDB, 1, ydb_batch(Codec.GZIP, b"\x1f\x8b" + BODY)),
    "ydb-custom": lambda: (FormatId.YDB, 1, ydb_batch(10_000, BODY)),
    "kafka": lambda: (FormatId.KAFKA, 2, kafka_batch(0)),
    "kafka-gzip": lambda: (FormatId.KAFKA, 2, kafka_batch(Compression.GZIP)),
    "kafka-lz4": lambda: (FormatId.KAFKA, 2, kafka_batch(Compression.LZ4)),
    "kafka-lz4-linked": lambda: (
        FormatId.KAFKA,
        2,
        kafka_batch(Compression.LZ4, bytes(cramjam.lz4.compress(plain_records()))),
    ),
    "kafka-snappy": lambda: (
        FormatId.KAFKA,
        2,
        kafka_batch(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(plain_records()))),
    ),
    "kafka-zstd": lambda: (FormatId.KAFKA, 2, kafka_batch(Compression.ZSTD)),
    "raw": lambda: (FormatId.RAW, 2, BODY),
}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *((source, FormatId.KAFKA) for source in SOURCES if not source.startswith("kafka")),
        *((source, FormatId.YDB) for source in SOURCES if not source.startswith("ydb")),
    ],
)
@pytest.mark.usefixtures("traced")
def test_no_step_of_a_translation_copies_much(source: str, target: FormatId) -> None:
    form, records, payload = SOURCES[source]()
    batch = StoredBatch(100, 100 + records, form, payload)
    translated = in_small_steps(translate_one(FORMATS[form], batch, FORMATS[target], 1 << 27))
    expected = [one for one in FORMATS[form].records(batch) if one is not None]
    found = [one for one in FORMATS[target].records(StoredBatch(100, 100 + records, target, translated)) if one]
    assert [(one.key, one.value, one.offset) for one in found] == [(one.key, one.value, one.offset) for one in expected]
    assert len(found[0].value or b"") >= SIZE


@pytest.mark.parametrize("codec", [0, Compression.LZ4])
@pytest.mark.usefixtures("traced")
def test_no_step_of_a_translation_by_columns_copies_much(codec: int) -> None:
    """Of many small records, and of those with a large one among them."""
    for large in (b"", BODY):
        values = [bytes(100)] * 20_000 + [large] + [b"end"] * 50
        payload = encode([Record(None, value) for value in values], codec=codec)
        batch = StoredBatch(0, len(values), FormatId.KAFKA, payload)
        (made,) = in_small_steps(translate_group(FORMATS[FormatId.KAFKA], [batch], FORMATS[FormatId.YDB], 1 << 27))
        again = FORMATS[FormatId.YDB].records(StoredBatch(0, len(values), FormatId.YDB, made))
        assert [one.value for one in again if one] == values


@pytest.mark.usefixtures("traced")
def test_no_step_of_what_a_writer_of_ydb_brings_copies_much() -> None:
    fields = bytearray()
    message = bytearray(b"\x08\x01\x1a")
    put_varint(message, len(BODY))
    put_varint(fields, 0x0A)
    put_varint(fields, len(message) + len(BODY))
    whole = bytes(fields + message) + BODY
    found = in_small_steps(encode_in_slices(Head(False, Codec.RAW, 1, 1, 1, -1, b"p", b""), whole))
    assert found == encode_batch(Head(False, Codec.RAW, 1, 1, 1, -1, b"p", b""), whole)


def test_builders_finish_the_same_at_once_and_in_slices() -> None:
    for form in (FormatId.KAFKA, FormatId.YDB, FormatId.PRAVEGA, FormatId.RAW):
        made = []
        for sliced in (False, True):
            builder = FORMATS[form].builder(0, 3)
            for number, size in enumerate((5, LARGE, 2 * STEP)):
                builder.add(Record(None, BODY[:size], offset=number))
            made.append(bytes(at_once(builder.finish_in_slices()) if sliced else builder.finish()))
        assert made[0] == made[1]


def test_a_large_batch_compressed_by_us_is_read_by_us() -> None:
    for codec in Compression:
        assert decompress(codec, compress(codec, BODY)) == BODY
