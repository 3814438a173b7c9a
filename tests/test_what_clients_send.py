"""Whatever Go and C clients put into a record, every reader gets it or is told of it, at the offset it has."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from anabranch_kit.run.sliced import at_once
from bridges.console.records.rendering import Wanted, rendered
from bridges.errors import BatchInvalid, RecordInvalid
from bridges.formats import FORMATS, FormatId, Translator, translate_group
from bridges.formats.base import EVENT_HEADER
from bridges.formats.codecs.compression import DEFAULT_LIMIT, Compression, compress
from bridges.formats.kafka import HEADER_SIZE, LOG_OVERHEAD, encode
from bridges.formats.pravega import segment_bytes
from bridges.formats.records import LOSSY_HEADER, Buffer, Record, StoredBatch
from bridges.log.byte_positions.event_bytes import bytes_of, record_at
from spark_pipeline.core.decoding.batches import decode as rows_of
from spark_pipeline.core.errors import UnreadableBatch
from spark_pipeline.core.ranges import OffsetRange
from tests.spark_pipeline.core.oracle import EVERYTHING
from ydb_topic_front.session.read_data import BatchReader, Place
from ydb_topic_front.wire.messages import messages

BASE = 1000
BROKEN = b"\x0e" + b"\xff" * 7
"""A record of seven bytes whose first number never ends."""
_Batch = messages["Ydb.Topic.StreamReadMessage.ReadResponse.Batch"]


class Sent(Struct):
    """A record as a client lays it out, which need not be as ours do."""

    value: bytes | None = b"value"
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp: int = 0
    attributes: int = 0


def number(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(value: bytes | None) -> bytes:
    return number(-1) if value is None else number(len(value)) + value


def laid(sent: Sent, delta: int) -> bytes:
    headers = b"".join(field(name) + field(value) for name, value in sent.headers)
    body = bytes([sent.attributes]) + number(sent.timestamp) + number(delta) + field(sent.key) + field(sent.value)
    body += number(len(sent.headers)) + headers
    return number(len(body)) + body


def batch_of(records: list[bytes], codec: int = 0) -> StoredBatch:
    """A batch with the head that our own would have, and ``records`` as they are."""
    head = encode([Record(None, b"", [], 0) for _ in records], BASE)[:HEADER_SIZE]
    batch = head + compress(codec, memoryview(b"".join(records))) if codec else head + b"".join(records)
    struct.pack_into(">i", batch, 8, len(batch) - LOG_OVERHEAD)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return StoredBatch(BASE, BASE + len(records), int(FormatId.KAFKA), bytes(batch), 77)


class Read(Struct):
    """What a reader got: (offset, value, headers) of each record, and the offset of its error (-1: none)."""

    records: list[tuple[int, bytes, list[tuple[str, bytes]]]]
    error: int = -1


def translated(batch: StoredBatch, target: FormatId) -> tuple[Buffer, int]:
    """The batch in another format as far as it goes, and where it comes to an error."""
    try:
        payload = Translator(0).payload(1, batch, target)
        if payload is None:  # what is long is done in a thread
            work = translate_group(FORMATS[FormatId.KAFKA], batch, FORMATS[target], DEFAULT_LIMIT)
            payload = at_once(work)
        return payload, -1
    except RecordInvalid as error:
        return error.before, error.offset
    except BatchInvalid:
        return b"", batch.base_offset


def ydb(batch: StoredBatch) -> Read:
    payload, error = translated(batch, FormatId.YDB)
    if not payload:
        return Read([], error)
    parts: list[Any] = []
    reader = BatchReader(payload, BASE, batch.end_offset, 77, Place(BASE))
    while not reader.ended:
        reader.take(parts, 1 << 30, 1 << 30)
    found = []
    for message in _Batch.FromString(b"".join(parts) + reader.tail).message_data:
        items = [(item.key, item.value) for item in message.metadata_items]
        found.append((message.offset, message.data, [item for item in items if item[0] not in _OURS]))
    return Read(found, error)


_OURS = {"__key", "anabranch.tombstone", "anabranch.null", "anabranch.timestamp"}


def http(batch: StoredBatch) -> Read:
    wanted = Wanted(0, BASE, 1 << 62, -1)
    lines = b"".join(part for part in rendered([batch], wanted, DEFAULT_LIMIT) if part).splitlines()
    read = Read([])
    for one in map(json.loads, lines):
        if "error" in one:
            read.error = one["offset"]
            continue
        value = bytes_in(one, "value")
        headers = [(name, bytes_of_header(content)) for name, content in one.get("headers", [])]
        read.records.append((one["offset"], value, headers))
    return read


def bytes_in(document: dict[str, Any], name: str) -> bytes:
    if f"{name}_base64" in document:
        return base64.b64decode(document[f"{name}_base64"])
    return (document.get(name) or "").encode()


def bytes_of_header(content: Any) -> bytes:
    if isinstance(content, dict):
        return base64.b64decode(content["base64"])
    return (content or "").encode()


def spark(batch: StoredBatch) -> Read:
    read = Read([])
    try:
        for rows in rows_of([batch], OffsetRange("t", 3, BASE, batch.end_offset), EVERYTHING, 1 << 21):
            for row in rows.select(["offset", "value", "headers"]).to_pylist():
                headers = [(one["key"], one["value"] or b"") for one in row["headers"] or []]
                read.records.append((row["offset"], row["value"] or b"", headers))
    except UnreadableBatch as error:
        read.error = error.offset
    return read


def pravega(batch: StoredBatch) -> Read:
    payload, error = translated(batch, FormatId.PRAVEGA)
    data = bytes(segment_bytes(payload)) if payload else b""
    read, at = Read([], error), 0
    while at < len(data):
        _, size = struct.unpack_from(">iI", data, at)
        value = data[at + EVENT_HEADER : at + EVENT_HEADER + size]
        place = at_once(record_at(batch, 0, at, DEFAULT_LIMIT))
        assert place.position == at
        read.records.append((place.offset, value, []))
        at += EVENT_HEADER + size
    whole = at_once(bytes_of(batch, BASE, batch.end_offset, DEFAULT_LIMIT))
    assert whole == at + (EVENT_HEADER if error >= 0 else 0), "a position at which readers come to the error"
    if error >= 0:
        assert tuple(at_once(record_at(batch, 0, at, DEFAULT_LIMIT))) == (error, at)
    return read


READERS = (ydb, http, spark, pravega)


def expected(sent: list[Sent]) -> list[tuple[int, bytes, list[tuple[str, bytes]]]]:
    found = []
    for offset, one in enumerate(sent, BASE):
        headers = [(name.decode(errors="replace"), value or b"") for name, value in one.headers[:10_000]]
        marks = [b"%d" % place for place, (name, _) in enumerate(one.headers[:10_000]) if not is_text(name)]
        if len(one.headers) > 10_000:
            marks.append(b"10000-%d" % (len(one.headers) - 1))
        if marks:
            headers.append((LOSSY_HEADER, b",".join(marks)))
        found.append((offset, one.value or b"", headers))
    return found


def is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def check(batch: StoredBatch, sent: list[Sent], error: int = -1) -> None:
    for reader in READERS:
        read = reader(batch)
        wanted = expected(sent)
        if reader is pravega:
            wanted = [(offset, value, []) for offset, value, _ in wanted]
        assert (read.records, read.error) == (wanted, error), reader.__name__


NAMES = st.binary(max_size=4) | st.sampled_from([b"\xff", b"caf\xe9", b"\xed\xa0\x80", b"\0", b"", b"trace-id"])
SENT = st.builds(
    Sent,
    value=st.none() | st.binary(max_size=40),
    key=st.none() | st.binary(max_size=10),
    headers=st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=5)), max_size=4).map(tuple),
    timestamp=st.integers(0, 1 << 45) | st.sampled_from([-1, -(1 << 40), (1 << 62)]),
    attributes=st.integers(0, 255),
)


@settings(deadline=None)
@given(st.lists(SENT, min_size=1, max_size=8), st.sampled_from(list(Compression)))
def test_every_reader_gets_what_clients_send(sent: list[Sent], codec: int) -> None:
    check(batch_of([laid(one, delta) for delta, one in enumerate(sent)], codec), sent)


@settings(deadline=None, max_examples=50)
@given(st.lists(SENT, max_size=5), st.lists(SENT, max_size=3), st.sampled_from(list(Compression)))
def test_what_lies_before_a_broken_record_is_read_and_the_error_has_its_offset(
    before: list[Sent], behind: list[Sent], codec: int
) -> None:
    records = [laid(one, delta) for delta, one in enumerate(before)]
    records += [BROKEN, *(laid(one, len(before) + 1 + delta) for delta, one in enumerate(behind))]
    check(batch_of(records, codec), before, BASE + len(before))


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_a_record_of_very_many_headers_is_read_with_the_first_of_them(codec: int) -> None:
    many = Sent(b"many", headers=((b"h", None),) * 10_001)
    sent = [Sent(b"before"), many, Sent(b"behind")]
    check(batch_of([laid(one, delta) for delta, one in enumerate(sent)], codec), sent)


def test_a_body_that_ends_too_early_is_read_as_far_as_it_goes() -> None:
    records = [laid(Sent(b"%d" % delta * 3), delta) for delta in range(4)]
    whole = batch_of(records)
    body = b"".join(records)[:-5]
    head = bytearray(whole.payload[:HEADER_SIZE]) + body
    struct.pack_into(">i", head, 8, len(head) - LOG_OVERHEAD)
    struct.pack_into(">I", head, 17, crc32c.crc32c(bytes(head[21:])))
    check(whole._replace(payload=bytes(head)), [Sent(b"%d" % delta * 3) for delta in range(3)], BASE + 3)
