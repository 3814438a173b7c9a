"""Translation by columns gives what translation record by record gives, whatever there is to be translated."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.run.sliced import at_once
from bridges.errors import BatchInvalid
from bridges.formats import FORMATS, translate_one
from bridges.formats.base import APPEND_TIME, FORMAT_MASK, FormatId
from bridges.formats.codecs.compression import DEFAULT_LIMIT, PIECE
from bridges.formats.codecs.ydb import Codec
from bridges.formats.columns import Unusual, rows, translation
from bridges.formats.columns.translation import translate
from bridges.formats.kafka import LOG_APPEND_TIME, encode
from bridges.formats.pravega import Shape, gathered
from bridges.formats.pravega import encode as encode_pravega
from bridges.formats.records import Buffer, Record, StoredBatch
from bridges.formats.ydb import NULL_ITEM, TIMESTAMP_ITEM, TOMBSTONE_ITEM, Head, encode_batch
from tests.bridges.formats import ydb_messages

TARGETS = (FormatId.KAFKA, FormatId.PRAVEGA, FormatId.YDB)


def long_way(batch: StoredBatch, target: int) -> Buffer | None:
    """The translation record by record; None if the batch is invalid."""
    try:
        return at_once(translate_one(FORMATS[batch.flags & FORMAT_MASK], batch, FORMATS[target], DEFAULT_LIMIT))
    except BatchInvalid:
        return None


def told(batch: StoredBatch, target: int, made: Buffer) -> tuple[object, object]:
    """The records of a translation, and its bytes where both ways have the same."""
    again = StoredBatch(batch.base_offset, batch.end_offset, target, made, 99)
    records = [one for one in FORMATS[target].records(again) if one is not None]
    return records, None if target == FormatId.YDB else bytes(made)


def check(*batches: StoredBatch) -> int:
    """What columns give of ``batches`` together is what the long way gives of each. Returns how many they gave."""
    given = 0
    for target in TARGETS:
        if target == batches[0].flags & FORMAT_MASK:
            continue
        try:
            made = at_once(translate(batches, FORMATS[target], DEFAULT_LIMIT))
        except (Unusual, BatchInvalid):
            continue
        assert made
        for batch, one in zip(batches, made, strict=False):
            long = long_way(batch, target)
            assert long is not None
            assert told(batch, target, one) == told(batch, target, long), target.name
        given += len(made)
    return given


TIMES = st.sampled_from([-1, 0, 5, 1_700_000_000_123, -1_000, 300_000_000_000_000, 1_700_000_000_124])
RECORDS = st.builds(
    Record,
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=300) | st.integers(60_000, 200_000).map(bytes),
    st.lists(
        st.tuples(
            st.text(max_size=3) | st.sampled_from(["__key", NULL_ITEM, TIMESTAMP_ITEM, TOMBSTONE_ITEM]),
            st.none() | st.binary(max_size=3),
        ),
        max_size=2,
    )
    | st.just([]),
    TIMES,
)


@pytest.mark.parametrize("codec", [0, 1, 4])
@given(
    records=st.lists(RECORDS, max_size=12),
    base=st.sampled_from([0, 5, 1 << 40]),
    append_time=st.booleans(),
    producer=st.sampled_from([(-1, -1), (7, 0), (7, (1 << 31) - 5)]),
    gap=st.integers(0, 2),
)
def test_batches_of_kafka(
    codec: int, records: list[Record], base: int, append_time: bool, producer: tuple[int, int], gap: int
) -> None:
    for number, record in enumerate(records):
        record.offset = base + number + (gap if number > 4 else 0)
    span = len(records) + gap
    stamp = {"producer_id": producer[0], "producer_epoch": 0, "base_sequence": producer[1]}
    payload = encode(records, base, codec=codec, attributes=LOG_APPEND_TIME * append_time, count=span, **stamp)
    check(StoredBatch(base, base + max(1, span), FormatId.KAFKA, payload, 77))


@pytest.mark.parametrize("size", [0, 1, 90, 63, 64, 1000, 8200])
def test_many_records_of_one_size(size: int) -> None:
    records = [Record(None, bytes(size), [], 1_700_000_000_000 + number // 7, number) for number in range(1200)]
    batch = StoredBatch(0, 1200, FormatId.KAFKA, encode(records), 77)
    assert check(batch) == 2
    for target in (FormatId.PRAVEGA, FormatId.YDB):
        (made,) = at_once(translate([batch], FORMATS[target], DEFAULT_LIMIT))
        assert check(StoredBatch(0, 1200, target, made, 77)) == 2


def of_kafka(records: list[Record], base: int, codec: int = 0, flags: int = 0) -> StoredBatch:
    for number, record in enumerate(records):
        record.offset = base + number
    payload = encode(records, base, codec=codec, producer_id=base % 3 - 1, producer_epoch=0, base_sequence=base)
    return StoredBatch(base, base + len(records), FormatId.KAFKA | flags, payload, 77)


HEADERS = st.lists(st.tuples(st.sampled_from(["", "name", "\u0444"]), st.binary(max_size=200)), max_size=3)
PLAIN = st.builds(
    Record,
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=300),
    HEADERS,
    st.sampled_from([-1, 0, 5, 1_700_000_000_123, 1_700_000_000_124]),
)


@given(
    batches=st.lists(st.lists(PLAIN, min_size=1, max_size=9), min_size=2, max_size=6),
    codec=st.sampled_from([0, 4]),
    flags=st.sampled_from([0, APPEND_TIME]),
)
def test_several_batches_together(batches: list[list[Record]], codec: int, flags: int) -> None:
    base = 5
    stored = []
    for number, records in enumerate(batches):
        stored.append(of_kafka(records, base, codec, flags * (number % 2)))
        base += len(records) + number
    assert check(*stored) == 2 * len(stored)
    for target in (FormatId.PRAVEGA, FormatId.YDB):
        made = at_once(translate(stored, FORMATS[target], DEFAULT_LIMIT))
        again = [
            StoredBatch(batch.base_offset, batch.end_offset, target, one, 78)
            for batch, one in zip(stored, made, strict=True)
        ]
        assert check(*again) == 2 * len(stored)


@pytest.mark.parametrize("target", [FormatId.PRAVEGA, FormatId.YDB])
def test_batches_in_many_steps(target: FormatId, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "STEP_BYTES", 3000)
    monkeypatch.setattr(rows, "STEP_RECORDS", 40)
    draw = random.Random(3)
    records = [
        Record(
            draw.choice([None, b"key"]),
            draw.randbytes(draw.choice([0, 5, 200, 1500])),
            draw.choice([[], [("one", b"1"), ("two", b"2")]]),
            5 + number,
        )
        for number in range(300)
    ]
    batch = of_kafka(records, 12)
    assert check(batch) == 2
    (made,) = at_once(translate([batch], FORMATS[target], DEFAULT_LIMIT))
    assert check(StoredBatch(12, 312, target, made, 77)) == 2


@given(
    seed=st.integers(0, 1 << 30),
    flips=st.integers(1, 4),
    records=st.lists(
        st.builds(Record, st.none() | st.binary(max_size=9), st.binary(max_size=150)), min_size=1, max_size=8
    ),
)
def test_damaged_batches_of_kafka(seed: int, flips: int, records: list[Record]) -> None:
    for number, record in enumerate(records):
        record.offset = number
    payload = encode(records)
    draw = random.Random(seed)
    for _ in range(flips):
        payload[draw.randrange(61, len(payload))] = draw.randrange(256)
    check(StoredBatch(0, len(records), FormatId.KAFKA, payload, 77))
    check(StoredBatch(0, len(records) + 1, FormatId.KAFKA, payload, 77))
    check(StoredBatch(0, len(records), FormatId.KAFKA, payload[: draw.randrange(61, len(payload) + 1)], 77))


EVENTS = st.lists(st.binary(max_size=300) | st.integers(60_000, 200_000).map(bytes), min_size=1, max_size=6)


@given(
    appends=st.lists(EVENTS, min_size=1, max_size=4),
    wrong=st.integers(0, 5),
    numbered=st.booleans(),
    scattered=st.booleans(),
)
def test_appends_of_pravega(appends: list[list[bytes]], wrong: int, numbered: bool, scattered: bool) -> None:
    laid = [[struct.pack(">iI", 0, len(event)) + event for event in events] for events in appends]
    claims = [(len(events) + (wrong == 1) - (wrong == 2), sum(map(len, events))) for events in laid]
    shape, records, front = gathered(claims, 100)
    parts: list[Buffer] = [front, *(event for events in laid for event in events)]
    size = sum(size for _, size in claims)
    count = sum(map(len, appends))
    end = records
    if scattered:
        shape, records, end = Shape.SCATTERED, count, 3 * count
        parts[0] = struct.pack(f">{count}I", *(3 * number for number in range(count)))
    writer = {"writer_id": bytes(range(16)), "last_number": 500, "events": count} if numbered else {}
    payload = encode_pravega(parts, size, shape, records, time_ms=1_700_000_000_000, **writer)  # type: ignore[arg-type]
    check(StoredBatch(50, 50 + end, FormatId.PRAVEGA, payload, 77))


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"seq_no": st.integers(-5, 1 << 50), "data": st.binary(max_size=300) | st.integers(60_000, 200_000).map(bytes)},
        optional={
            "created": st.tuples(
                st.sampled_from([0, 5, -1, -62_135_596_801, 1 << 44]), st.sampled_from([0, 7, 999_999_999, -1])
            ),
            "item": st.tuples(st.sampled_from(["__key", "other"]), st.binary(max_size=3)),
            "odd": st.just(True),
        },
    ),
    min_size=1,
    max_size=10,
)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes((value,))


def message(one: dict[str, object]) -> Iterator[bytes]:
    yield b"\x08" + varint(one["seq_no"])  # type: ignore[arg-type]
    if "created" in one:
        seconds, nanos = one["created"]  # type: ignore[misc]
        time = b"\x08" + varint(seconds) + b"\x10" + varint(nanos)
        yield b"\x12" + varint(len(time)) + time
    data: bytes = one["data"]  # type: ignore[assignment]
    yield b"\x1a" + varint(len(data)) + data
    if "item" in one:
        key, value = one["item"]  # type: ignore[misc]
        item = b"\x0a" + varint(len(key)) + key.encode() + b"\x12" + varint(len(value)) + value
        yield b"\x3a" + varint(len(item)) + item
    if "odd" in one:
        yield b"\xf2\x01\x02hi"  # a field that nobody knows
        yield b"\x1a\x00" if one["seq_no"] == 0 else b""


@given(
    messages=MESSAGES,
    behind=st.sampled_from([b"", b"\x10\x01", b"\x0a\x00", b"\x0a\x05"]),
    codec=st.sampled_from([1, 2]),
)
def test_messages_of_ydb(messages: list[dict[str, object]], behind: bytes, codec: int) -> None:
    whole = [b"".join(message(one)) for one in messages]
    body = b"".join(b"\x0a" + varint(len(one)) + one for one in whole) + behind
    head = Head(False, codec, len(messages), 1, 9, 5, b"me", b"")
    check(StoredBatch(50, 50 + len(messages), FormatId.YDB, encode_batch(head, body), 77))


def packed(codec: int, data: bytes) -> bytes:
    return zstandard.compress(data) if codec == Codec.ZSTD else ydb_messages.encoded(codec, data)


def of_ydb(codec: int, *bodies: bytes, items: Sequence[tuple[str, bytes]] = ()) -> StoredBatch:
    messages = [ydb_messages.message(number, body, items) for number, body in enumerate(bodies)]
    return ydb_messages.stored(*messages, base=50, codec=codec)


@given(
    plain=st.lists(st.binary(max_size=300) | st.integers(60_000, 70_000).map(bytes), min_size=1, max_size=8),
    codec=st.sampled_from([Codec.GZIP, Codec.ZSTD, Codec.LZOP]),
    odd=st.sampled_from(["", "twice", "cut", "more", "empty", "tombstone"]),
)
def test_compressed_messages_of_ydb(plain: list[bytes], codec: int, odd: str) -> None:
    bodies = [packed(codec, one) for one in plain]
    first = bodies[0]
    bodies[0] = {"twice": first + first, "cut": first[:-1], "more": first + b"x"}.get(odd, first)
    if odd in ("empty", "tombstone"):
        bodies = [b"" for _ in bodies]
    given = check(of_ydb(codec, *bodies, items=[(TOMBSTONE_ITEM, b"")] if odd == "tombstone" else []))
    if (not odd and min(map(len, plain)) > 0 and max(map(len, plain)) <= PIECE and codec != Codec.LZOP) or (
        odd == "tombstone" and codec != Codec.LZOP
    ):
        assert given == 2


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_compressed_messages_of_ydb_are_inflated_in_parts_and_within_the_limit(codec: int) -> None:
    bodies = [packed(codec, b"%d" % number * 400) for number in range(1800)]
    batch = of_ydb(codec, *bodies)
    assert check(batch) == 2, "four parts of at most a mebibyte"
    assert check(of_ydb(codec, *[packed(codec, bytes(PIECE))] * 40)) == 0, "more than a step may inflate"
    with pytest.raises(Unusual):
        at_once(translate([batch], FORMATS[FormatId.KAFKA], 2 * 1024 * 1024))


@given(seed=st.integers(0, 1 << 30), flips=st.integers(1, 4))
def test_messages_of_ydb_that_are_damaged(seed: int, flips: int) -> None:
    draw = random.Random(seed)
    whole = [b"".join(message({"seq_no": 5, "data": b"abcdef", "created": (5, 7)})) for _ in range(4)]
    body = bytearray(b"".join(b"\x0a" + varint(len(one)) + one for one in whole))
    for _ in range(flips):
        body[draw.randrange(len(body))] = draw.randrange(256)
    head = Head(False, 1, 4, 1, 9, 5, b"me", b"")
    check(StoredBatch(0, 4, FormatId.YDB, encode_batch(head, body), 77))


def test_records_with_many_headers_are_left_to_the_long_way() -> None:
    """Columns take a pass over all records for each header, whose number a client chooses."""
    records = [Record(None, b"", [("", b"")] * (50_000 if number == 7 else 0), 5, number) for number in range(50)]
    payload = encode(records)
    for target in (FormatId.KAFKA, FormatId.YDB):
        stored = StoredBatch(0, 50, FormatId.KAFKA, payload, 77)
        if target == FormatId.YDB:
            made = at_once(translate_one(FORMATS[FormatId.KAFKA], stored, FORMATS[target], DEFAULT_LIMIT))
            stored = StoredBatch(0, 50, target, made, 77)
        assert check(stored) == 0
