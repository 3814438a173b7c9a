"""Batches for readers of another protocol: short ones at once, long ones off the event loop, each once."""

from __future__ import annotations

import asyncio
import gzip
import struct
import tracemalloc
from itertools import accumulate

import pytest
import zstandard

import bridges.formats.columns.translation  # noqa: F401 - the first import is not on the event loop
from anabranch_kit.run.sliced import SlicedWorks
from bridges import formats
from bridges.errors import BatchInvalid
from bridges.formats import FORMATS, FormatId, Translator, format_of
from bridges.formats.kafka import BatchBuilder, check_batch, iterate
from bridges.formats.kafka import encode as of_records
from bridges.formats.pravega import EVENT_HEAD, encode, gathered
from bridges.formats.protobuf import put_bytes, put_varint
from bridges.formats.records import Record, StoredBatch
from bridges.formats.ydb import Head
from bridges.formats.ydb import encode_batch as ydb_batch
from sbp_document.wire.record_batch import FORMAT_FLAG, DocumentRecord, encode_batch


def document(count: int, base: int = 0) -> StoredBatch:
    batch = encode_batch([DocumentRecord(b"%d" % number, timestamp=1000) for number in range(count)])
    return StoredBatch(base, base + count, FORMAT_FLAG, bytes(batch))


async def test_a_long_batch_is_translated_in_slices_and_once_for_all_who_ask() -> None:
    works = SlicedWorks()
    translator = Translator(1 << 20, works)
    batch = document(1000, base=50)
    assert translator.payload(1, batch, FormatId.KAFKA) is None
    assert translator.spent == 0
    first, second = await asyncio.gather(
        translator.translate(1, batch, FormatId.KAFKA), translator.translate(1, batch, FormatId.KAFKA)
    )
    assert first is second
    assert 10 <= works.steps <= 30, "one work of slices of a hundred records"
    assert check_batch(memoryview(first)).record_count == 1000
    found = [(record.offset, record.value) for record in iterate(first)]
    assert found == [(50 + number, b"%d" % number) for number in range(1000)]
    assert translator.payload(1, batch, FormatId.KAFKA) is first
    works.close()


async def test_a_short_batch_is_translated_at_once() -> None:
    translator = Translator(1 << 20)
    payload = translator.payload(1, document(100), FormatId.KAFKA)
    assert payload is not None
    assert translator.spent == 100 + len(document(100).payload) // 1024
    assert await translator.translate(1, document(100), FormatId.KAFKA) is payload


LARGE = 16 * 1024 * 1024


def of_kafka(codec: int) -> StoredBatch:
    builder = BatchBuilder()
    builder.add(Record(b"key", bytes(LARGE), [("name", b"content")]))
    return StoredBatch(0, 1, int(FormatId.KAFKA), builder.finish(codec))


def of_ydb(codec: int) -> StoredBatch:
    body = {1: bytes, 2: gzip.compress, 4: zstandard.compress}[codec](bytes(LARGE))
    messages = bytearray()
    put_bytes(messages, 1 << 3 | 2, b"".join((b"\x08\x01\x1a", put(len(body)), body)))
    return StoredBatch(0, 1, int(FormatId.YDB), ydb_batch(Head(False, codec, 1, 1, 1, -1, b"p", b""), messages))


def put(number: int) -> bytes:
    out = bytearray()
    put_varint(out, number)
    return bytes(out)


@pytest.mark.parametrize(
    ("batch", "target"),
    [
        (of_ydb(1), FormatId.KAFKA),
        (of_ydb(2), FormatId.KAFKA),
        (of_ydb(4), FormatId.KAFKA),
        (of_kafka(0), FormatId.YDB),
        (of_kafka(1), FormatId.YDB),
        (of_kafka(4), FormatId.YDB),
    ],
    ids=["ydb raw", "ydb gzip", "ydb zstd", "kafka", "kafka gzip", "kafka zstd"],
)
async def test_a_large_value_is_held_twice_at_most_and_counted(batch: StoredBatch, target: FormatId) -> None:
    changes: list[int] = []
    works = SlicedWorks()
    translator = Translator(64 << 20, works, held=changes.append)
    tracemalloc.start()
    try:
        translated = await translator.translate(1, batch, target)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        works.close()
    assert translator.spent < 100, "kilobytes: nothing large is copied on the event loop"
    assert peak < 2.5 * LARGE
    assert max(accumulate(changes)) >= 2 * LARGE
    assert sum(changes) == 0
    there = StoredBatch(0, 1, int(target), translated)
    (record,) = [one for one in format_of(target).records(there) if one is not None]
    assert record.value == bytes(LARGE)
    if batch.flags == FormatId.KAFKA:
        assert (record.key, record.headers) == (b"key", [("name", b"content")])


async def test_a_bad_batch_is_bad_for_all_who_ask_and_forgotten() -> None:
    works = SlicedWorks()
    translator = Translator(1 << 20, works)
    batch = document(1000)._replace(end_offset=999)
    results = await asyncio.gather(
        *(translator.translate(1, batch, FormatId.KAFKA) for _ in range(2)), return_exceptions=True
    )
    assert all(isinstance(result, BatchInvalid) for result in results)
    with pytest.raises(BatchInvalid):
        await translator.translate(1, batch, FormatId.KAFKA)
    works.close()


async def test_one_who_gives_up_takes_it_from_nobody_else() -> None:
    works = SlicedWorks()
    translator = Translator(1 << 20, works)
    batch = document(1000)
    impatient = asyncio.create_task(translator.translate(1, batch, FormatId.KAFKA))
    patient = asyncio.create_task(translator.translate(1, batch, FormatId.KAFKA))
    await asyncio.sleep(0)
    impatient.cancel()
    assert len(list(iterate(await patient))) == 1000
    works.close()


def made(source: FormatId, count: int, size: int) -> StoredBatch:
    """A batch of records of ``size`` bytes, as clients of a protocol store them."""
    if source == FORMAT_FLAG:
        return document(count)
    builder = FORMATS[source].builder(0, count)
    for number in range(count):
        builder.add(Record(None, bytes(size), timestamp=5, offset=number))
    return StoredBatch(0, count, int(source), bytes(builder.finish()))


def appended_by_pravega(appends: int, size: int) -> StoredBatch:
    """Several appends of an event each that came together."""
    shape, records, front = gathered([(1, EVENT_HEAD + size)] * appends, 1000)
    event = struct.pack(">ii", 0, size) + bytes(size)
    payload = encode([front, *([event] * appends)], appends * len(event), shape, records, time_ms=5)
    return StoredBatch(0, records, int(FormatId.PRAVEGA), payload)


SHORT = [
    *((f"{source!r} {count} x {size}", made(source, count, size))
      for source in (FormatId.KAFKA, FormatId.YDB, FormatId.PRAVEGA, FORMAT_FLAG)
      for count, size in ((1, 100), (1, 1400), (90, 100))),
    ("PRAVEGA gathered", appended_by_pravega(3, 1400)),
]  # fmt: skip


@pytest.mark.parametrize("target", [FormatId.KAFKA, FormatId.YDB, FormatId.PRAVEGA])
@pytest.mark.parametrize("batch", [batch for _, batch in SHORT], ids=[name for name, _ in SHORT])
def test_what_many_clients_send_is_translated_at_once(batch: StoredBatch, target: FormatId) -> None:
    """Where writers of several protocols take turns, every batch that is not is an answer of its own for a reader."""
    assert Translator(1 << 20).payload(1, batch, target) is not None


def small(number: int, *, headers: bool = False) -> StoredBatch:
    """A batch of ten records."""
    base = 10 * number
    given = [("name", b"value")] if headers else []
    records = [Record(None, b"%d" % offset, given, 5, offset) for offset in range(base, base + 10)]
    return StoredBatch(base, base + 10, int(FormatId.KAFKA), bytes(of_records(records, base)))


@pytest.mark.parametrize("unusual", [None, 0, 2, 4])
def test_small_batches_are_translated_with_those_before_them(
    unusual: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [small(number, headers=number == unusual) for number in range(5)]
    alone = [Translator(0).payload(1, batch, FormatId.YDB) for batch in batches]
    translator = Translator(1 << 20)
    first = translator.payload(1, batches[0], FormatId.YDB, batches[1:])
    monkeypatch.setattr(formats, "translate_group", None)  # all others are there already
    made = [first, *(translator.payload(1, batch, FormatId.YDB) for batch in batches[1:])]
    for batch, one, other in zip(batches, made, alone, strict=True):
        assert one is not None
        assert other is not None
        as_ydb = [batch._replace(flags=int(FormatId.YDB), payload=payload) for payload in (one, other)]
        assert formats.decode(as_ydb[0]) == formats.decode(as_ydb[1])


def test_a_batch_that_cannot_be_read_does_not_hide_those_before_it() -> None:
    batches = [small(number) for number in range(5)]
    damaged = bytearray(batches[3].payload)
    damaged[-1] ^= 0xFF
    damaged[70:80] = bytes(10)
    batches[3] = batches[3]._replace(payload=bytes(damaged))
    translator = Translator(1 << 20)
    for number, batch in enumerate(batches):
        behind = batches[number + 1 :]
        if number == 3:
            with pytest.raises(BatchInvalid):
                translator.payload(1, batch, FormatId.YDB, behind)
        else:
            assert translator.payload(1, batch, FormatId.YDB, behind) is not None


def test_what_the_cache_would_not_keep_is_not_translated_ahead() -> None:
    batches = [small(number) for number in range(9)]
    translator = Translator(0)
    assert translator.payload(1, batches[0], FormatId.YDB, batches[1:]) is not None
    assert translator.spent == 10, "the records of the first"


def test_what_is_remembered_of_many_small_batches_is_counted_whole() -> None:
    """A small one takes more for its key and its place than for its bytes."""
    batches = [StoredBatch(number, number + 1, int(FormatId.RAW), b"%060d" % number) for number in range(20_000)]
    translator = Translator(1 << 20)
    tracemalloc.start()
    try:
        for batch in batches:
            translator.payload(1, batch, FormatId.KAFKA)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * (1 << 20) < held < 1.5 * (1 << 20)
