"""YDB's messages as a stored format: the messages of one WriteRequest, or of several small ones, behind a small header.

Layout, numbers big-endian: CRC-32C of all that follows (4 bytes), version (1), flags (1), bytes of the producer id (2),
codec (4), number of messages (4), first and last seq_no (8 each), highest created_at in ms or -1 (8), bytes of the
session's metadata (4); in a batch of a transaction, which a flag says, the id (8), epoch (2) and sequence number (4) of
the transaction's producer; the producer id; the write session's metadata, encoded as field 3 of an InitRequest,
and as in a reader's Batch; the WriteRequest's fields, of which only the messages count (field 1).

Fields of a message (StreamWriteMessage.WriteRequest.MessageData): seq_no 1, created_at 2, data 3, uncompressed_size 4,
metadata_items 7. A message lies at the offset of its place. Batches that were translated from another format may have
gaps: then a flag says that each message has its distance from the batch's first offset in field 15, which is ours.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Iterator
from io import BytesIO
from typing import NamedTuple

from anabranch_kit.run.sliced import at_once
from bridges.errors import BatchCorrupt, BatchInvalid
from bridges.formats.base import BatchInfo, FormatId
from bridges.formats.checksum import crc32c
from bridges.formats.codecs.compression import DEFAULT_LIMIT, PIECE
from bridges.formats.codecs.ydb import Codec, codec_name, short_inflater, undo
from bridges.formats.pieces import LARGE, Layout, copied
from bridges.formats.producer import InTransaction, ProducerStamp, SeqNoStamp
from bridges.formats.protobuf import length, put_bytes, put_varint, signed, skip, varint
from bridges.formats.records import Buffer, Record, StoredBatch, told_headers

KEY_ITEM = "__key"
"""The metadata item for a record's key, which YDB's messages lack."""
TOMBSTONE_ITEM = "anabranch.tombstone"
"""The metadata item that marks a message without data as a record without a value; otherwise its value is empty."""
NULL_ITEM = "anabranch.null"
"""The metadata item for null values, which items cannot express: places of headers, from 0, and ``key`` for a record
without a key that has a header :data:`KEY_ITEM`; with commas between."""
TIMESTAMP_ITEM = "anabranch.timestamp"
"""The metadata item for a time in ms outside the range of created_at, which ends with the year 9999."""

DELTA_TAG = 15 << 3
"""Tag of our field in a message: its distance from the batch's first offset."""

_VERSION = 1
_SPARSE = 1
_IN_TRANSACTION = 2
_HEAD = struct.Struct(">IBBHiIqqqI")
_PART = struct.Struct(">qhi")
_CRC = struct.Struct(">I")
_MESSAGE_TAG = 1 << 3 | 2
_MESSAGE_MIN = 2
"""Bytes of the smallest message, its tag and its length."""
_CREATED_AT_TAG = 2 << 3 | 2
_FIELDS_LOOKED_AT = 4
_LATEST = 1 << 53
"""Milliseconds from 1970 beyond which a time counts as a mistake: not every format can hold it."""
FIRST_CREATED, LAST_CREATED = -62_135_596_800_000, 253_402_300_799_999
"""What a created_at may be, in ms: SDKs fail on one outside the years 1 to 9999 (google/protobuf/timestamp.proto)."""
_CHECKED_AT_ONCE = 1 << 20
_AT_ONCE = 100
"""Messages read in one go: each takes some microseconds."""
_PASSED_AT_ONCE = 2000
_KNOWN = frozenset(Codec)
_NULLS = re.compile(rb"(key|\d{1,9})(,\d{1,9})*")
_TIME = re.compile(rb"-?\d{1,18}")


class Head(NamedTuple):
    """The header before the messages, which lie in the payload from ``body`` on. ``session_meta`` is encoded. With an
    empty ``producer_id`` the ledger does not know the batch, so repetitions are not recognised.

    ``part`` is the stamp of a batch in a transaction. The ledger knows such a batch by it alone: the seq_nos count only
    when the transaction is committed.
    """

    sparse: bool
    codec: int
    messages: int
    first_seq_no: int
    last_seq_no: int
    max_created_ms: int
    producer_id: bytes
    session_meta: bytes
    body: int = -1
    part: ProducerStamp | None = None


def created_ms(seconds: int, nanos: int) -> int:
    """Return a created_at in ms since the epoch, -1 if not every other format can hold it."""
    ms = seconds * 1000 + nanos // 1_000_000
    return ms if -_LATEST < ms < _LATEST else -1


def encode_batch(head: Head, messages: Buffer) -> bytes:
    """Return a batch of ``messages``, encoded as the fields of a WriteRequest."""
    parts = (_packed(head)[_CRC.size :], head.producer_id, head.session_meta, messages)
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return b"".join((_CRC.pack(crc), *parts))


def encode_in_slices(head: Head, messages: Buffer) -> Generator[None, None, Buffer]:
    """Return the same batch as :func:`encode_batch`, in steps of a mebibyte, for messages of many mebibytes."""
    layout = Layout(_packed(head))
    for part in (head.producer_id, head.session_meta, messages):
        layout.put(part)
    whole = yield from layout.together()
    yield from _seal(whole)
    return memoryview(whole).toreadonly()


def _seal(whole: bytearray) -> Generator[None, None, None]:
    """Write the checksum of all that follows it, yielding now and then."""
    crc = yield from _checksum(whole)
    _CRC.pack_into(whole, 0, crc)


def _checksum(payload: Buffer) -> Generator[None, None, int]:
    view = memoryview(payload)
    crc = 0
    for position in range(_CRC.size, len(view), _CHECKED_AT_ONCE):
        crc = crc32c(view[position : position + _CHECKED_AT_ONCE], crc)
        if position + _CHECKED_AT_ONCE < len(view):
            yield None
    return crc


def _packed(head: Head) -> bytes:
    """Return the fixed part of the header; its checksum is still 0."""
    sparse, codec, count, first, last, created, producer, meta, _, part = head
    flags = (_SPARSE if sparse else 0) | (0 if part is None else _IN_TRANSACTION)
    packed = _HEAD.pack(0, _VERSION, flags, len(producer), codec, count, first, last, created, len(meta))
    return packed if part is None else packed + _PART.pack(*part[:3])


def parse_head(payload: Buffer) -> Head:
    """Return the header. Raises BatchInvalid for what cannot be the beginning of a batch."""
    try:
        _, version, flags, name, codec, count, first, last, created, meta = _HEAD.unpack_from(payload)
    except struct.error as error:
        raise BatchInvalid("a batch of YDB messages is cut short") from error
    if version != _VERSION or flags & ~(_SPARSE | _IN_TRANSACTION):
        raise BatchInvalid(f"batches of YDB messages of version {version} with flags {flags} are not known")
    begin = _HEAD.size + (_PART.size if flags & _IN_TRANSACTION else 0)
    body = begin + name + meta
    if body > len(payload) or count * _MESSAGE_MIN > len(payload) - body:
        raise BatchInvalid("a batch of YDB messages is shorter than its header says")
    view = memoryview(payload)
    producer_id, session_meta = bytes(view[begin : begin + name]), bytes(view[begin + name : body])
    part = None
    if flags & _IN_TRANSACTION:
        transaction_producer, epoch, sequence = _PART.unpack_from(payload, _HEAD.size)
        if min(transaction_producer, epoch, sequence) < 0:
            raise BatchInvalid(f"a transaction of producer {transaction_producer}, epoch {epoch}, is not known")
        part = ProducerStamp(transaction_producer, epoch, sequence, count)
    return Head(bool(flags & _SPARSE), codec, count, first, last, created, producer_id, session_meta, body, part)


def check_crc(payload: Buffer) -> Generator[None, None, None]:
    """Verify a batch's checksum, yielding now and then. Raises BatchCorrupt."""
    crc = yield from _checksum(payload)
    yield None
    if _CRC.unpack_from(payload)[0] != crc:
        raise BatchCorrupt("a batch of YDB messages does not match its checksum")


def next_message(payload: Buffer, position: int, end: int) -> tuple[int, int] | None:
    """Return the beginning and end of the next message from ``position`` on; None if there is none.

    Raises BatchInvalid, or IndexError for a field that ends too early.
    """
    while position < end:
        tag, position = varint(payload, position)
        if tag == _MESSAGE_TAG:
            return length(payload, position, end)
        position = skip(payload, tag, position, end)
    return None


def first_created_ms(messages: Buffer) -> int:
    """Return the created_at of the first encoded message, in ms; -1 if it has none, or not among its first fields, or
    one before 1970."""
    try:
        found = next_message(messages, 0, len(messages))
        if found is None:
            return -1
        position, end = found
        for _ in range(_FIELDS_LOOKED_AT):
            if position >= end:
                break
            tag, start = varint(messages, position)
            position = skip(messages, tag, start, end)
            if tag == _CREATED_AT_TAG:
                seconds, nanos = _timestamp(messages, *length(messages, start, end))
                return max(-1, created_ms(signed(seconds), signed(nanos)))
    except (BatchInvalid, IndexError):
        pass  # mistakes are reported elsewhere
    return -1


def _timestamp(payload: Buffer, position: int, end: int, seconds: int = 0, nanos: int = 0) -> tuple[int, int]:
    """Return seconds and nanoseconds as varints; fields that are missing keep the values passed in. Raises
    BatchInvalid, or IndexError for a field that ends too early."""
    while position < end:
        tag, position = varint(payload, position)
        if tag == 0x08:
            seconds, position = varint(payload, position)
        elif tag == 0x10:
            nanos, position = varint(payload, position)
        else:
            position = skip(payload, tag, position, end)
    return seconds, nanos


def without_first(messages: Buffer, count: int) -> memoryview:
    """Return the encoded messages without the first ``count``. Raises BatchInvalid if there are fewer."""
    position = 0
    try:
        for _ in range(count):
            found = next_message(messages, position, len(messages))
            if found is None:
                raise BatchInvalid(f"there are fewer than {count} messages")
            position = found[1]
    except IndexError as error:
        raise BatchInvalid("a message ends within a field") from error
    return memoryview(messages)[position:]


class _Message(NamedTuple):
    """One message; ``data`` and ``items`` are places in the payload, ``delta`` is -1 without one."""

    seq_no: int
    created_ms: int
    data: tuple[int, int]
    items: list[tuple[int, int]]
    delta: int


def _message(payload: Buffer, position: int, end: int) -> _Message:
    seq_no, delta, seconds, nanos, timed = 0, -1, 0, 0, False
    data = (position, position)
    items: list[tuple[int, int]] = []
    while position < end:
        tag, position = varint(payload, position)
        if tag == 0x08:
            seq_no, position = varint(payload, position)
        elif tag == _CREATED_AT_TAG:
            start, position = length(payload, position, end)
            seconds, nanos = _timestamp(payload, start, position, seconds, nanos)
            timed = True
        elif tag == 0x1A:
            data = length(payload, position, end)
            position = data[1]
        elif tag == 0x3A:
            item = length(payload, position, end)
            items.append(item)
            position = item[1]
        elif tag == DELTA_TAG:
            delta, position = varint(payload, position)
        else:
            position = skip(payload, tag, position, end)
    if position > end:
        raise BatchInvalid("a field is longer than its message")
    created = created_ms(signed(seconds), signed(nanos)) if timed else -1
    return _Message(signed(seq_no), created, data, items, delta)


def _item(payload: Buffer, position: int, end: int) -> tuple[str, bytes]:
    """Return key (field 1) and value (field 2) of a metadata item."""
    key = value = b""
    try:
        while position < end:
            tag, position = varint(payload, position)
            if tag == 0x0A:
                start, position = length(payload, position, end)
                key = bytes(payload[start:position])
            elif tag == 0x12:
                start, position = length(payload, position, end)
                value = bytes(payload[start:position])
            else:
                position = skip(payload, tag, position, end)
        return key.decode(), value
    except UnicodeDecodeError as error:
        raise BatchInvalid("the key of a metadata item is not UTF-8") from error
    except IndexError as error:
        raise BatchInvalid("a metadata item ends within a field") from error


class YdbFormat:
    """The stored format of YDB's messages (see :class:`bridges.formats.base.StoredFormat`)."""

    id = FormatId.YDB
    name = "ydb"

    def describe(self, payload: Buffer) -> BatchInfo:
        """Return the header's facts. The stamp has the last seq_no and the number of messages, which the ledger
        remembers; the seq_nos between are only in the messages."""
        head = parse_head(payload)
        stamp = None
        if head.part is not None:
            transaction = InTransaction(head.part.producer_id, head.part.epoch)
            return BatchInfo(head.max_created_ms, -1, head.part, transaction=transaction)
        if head.producer_id and head.messages:
            last = head.last_seq_no
            stamp = SeqNoStamp(head.producer_id, range(last - head.messages + 1, last + 1))
        return BatchInfo(head.max_created_ms, -1, stamp)

    def stamp(self, payload: Buffer, base_offset: int, epoch: int) -> None:
        return None  # the batch stores neither

    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        """Yield the records. A body that does not decode, or not within ``limit``, is passed on as it is, with its
        codec: it must not hide the records after it."""
        payload = batch.payload
        head = parse_head(payload)
        yield from check_crc(payload)
        producer = head.producer_id.decode(errors="replace") or None
        decoder = _Decoder(head.codec, memoryview(payload), limit)
        for found in _walk(batch, head, start):
            if found is None:
                yield None
                continue
            offset, message = found
            key, tombstone, created = None, False, message.created_ms
            headers: list[tuple[str, bytes | None]] = []
            before_key, nulls = 0, b""
            for place in message.items:
                name, value = _item(payload, *place)
                if name == KEY_ITEM and key is None:
                    key, before_key = value, len(headers)
                elif name == TOMBSTONE_ITEM and message.data[0] == message.data[1]:
                    tombstone = True
                elif name == NULL_ITEM and not nulls and _NULLS.fullmatch(value):
                    nulls = value
                elif name == TIMESTAMP_ITEM and created == -1 and _TIME.fullmatch(value):
                    created = int(value)
                else:
                    headers.append((name, value))
            if nulls:
                key = _without_values(nulls, key, before_key, headers)
            codec = body = None
            if not tombstone:
                codec, body = yield from decoder.decode(*message.data)
            yield Record(
                key,
                body,
                headers,
                created,
                offset,
                producer,
                message.seq_no,
                batch.written_ms,
                codec,
            )

    def event_bytes(self, payload: Buffer) -> int | None:
        return None  # bodies may be compressed

    def builder(self, base_offset: int, end_offset: int) -> YdbBuilder:
        return YdbBuilder(base_offset, end_offset)


def _walk(batch: StoredBatch, head: Head, start: int) -> Iterator[tuple[int, _Message] | None]:
    """Yield offset and content of each message at ``start`` or above, and None now and then."""
    payload = batch.payload
    end = len(payload)
    position = head.body
    previous = batch.base_offset - 1
    if not head.sparse and head.messages != batch.end_offset - batch.base_offset:
        raise BatchInvalid(f"{head.messages} YDB messages take {batch.end_offset - batch.base_offset} offsets")
    steps = 0
    try:
        for number in range(head.messages):
            found = next_message(payload, position, end)
            if found is None:
                raise BatchInvalid(f"a batch of YDB messages has fewer than {head.messages}")
            begin, position = found
            steps += 1
            if not head.sparse and batch.base_offset + number < start:
                previous += 1
                if steps >= _PASSED_AT_ONCE:
                    steps = 0
                    yield None
                continue
            message = _message(payload, begin, position)
            offset = batch.base_offset + (message.delta if head.sparse else number)
            if not previous < offset < batch.end_offset:
                raise BatchInvalid(f"a YDB message claims offset {offset}")
            previous = offset
            steps += len(message.items)
            if offset >= start:
                yield offset, message
            if steps >= _AT_ONCE:
                steps = 0
                yield None
        if next_message(payload, position, end) is not None:
            raise BatchInvalid(f"a batch of YDB messages has more than {head.messages}")
    except IndexError as error:
        raise BatchInvalid("a YDB message ends within a field") from error


def _without_values(
    nulls: bytes, key: bytes | None, before_key: int, headers: list[tuple[str, bytes | None]]
) -> bytes | None:
    """Return the key, and update ``headers``, by the places in a :data:`NULL_ITEM`. Impossible places change
    nothing."""
    places = nulls.split(b",")
    if places[0] == b"key":
        del places[0]
        if key is not None:
            headers.insert(before_key, (KEY_ITEM, key))
            key = None
    for place in map(int, places):
        if place < len(headers) and not headers[place][1]:
            headers[place] = headers[place][0], None
    return key


class _Decoder:
    """A decoder of the bodies of one batch, up to ``limit`` bytes together."""

    __slots__ = ("_codec", "_inflate", "_left", "_name", "_payload", "_spent")

    def __init__(self, codec: int, payload: memoryview, limit: int) -> None:
        self._codec = codec
        self._inflate = short_inflater(codec)
        self._payload = payload
        self._left = limit
        self._spent = 0
        self._name = codec_name(codec)

    def decode(self, start: int, end: int) -> Generator[None, None, tuple[str | None, bytes]]:
        """Return (None, the plain body) or (codec, the body as it is)."""
        body = self._payload[start:end]
        self._spent += len(body)
        if self._spent >= PIECE:
            self._spent = 0
            yield None
        if self._codec not in _KNOWN or self._codec == Codec.RAW:
            plain = yield from copied(body)
            return None if self._codec == Codec.RAW else self._name, plain
        if (short := self._inflate(body)) is not None and len(short) <= self._left:
            self._left -= len(short)
            self._spent += len(short)
            return None, short
        if self._codec == Codec.LZOP:
            yield None  # a block may expand beyond its claim: never on the event loop
        whole = BytesIO()  # joining parts would need their bytes twice
        size = 0
        try:
            for piece in undo(self._codec, body, self._left):
                if piece is None or self._spent >= PIECE:
                    self._spent = 0
                    yield None
                if piece is not None:
                    size += whole.write(piece)
                    self._spent += len(piece) + PIECE // 64
        except BatchInvalid:
            # A body with a false length may have cost much more than it gave: halve the limit, so that few are tried.
            self._left = min(self._left - size, self._left // 2)
            return self._name, (yield from copied(body))
        self._left -= size
        return None, whole.getvalue()


class YdbBuilder:
    """A builder of YDB messages. Keys, headers and missing values become metadata items, a codec becomes a header.
    Items of our own, after the others, hold what items cannot express."""

    __slots__ = (
        "_base_offset",
        "_count",
        "_created",
        "_end_offset",
        "_first",
        "_last",
        "_layout",
        "_one",
        "_producer",
        "_sparse",
    )

    def __init__(self, base_offset: int, end_offset: int) -> None:
        self._base_offset = base_offset
        self._end_offset = end_offset
        self._layout = Layout(bytes(_HEAD.size))
        self._one = Layout(b"")
        self._count = 0
        self._created = -1
        self._first = self._last = 0
        self._producer = b""
        # Whether messages carry their offsets; needless if every offset has a message.
        self._sparse = True

    def __len__(self) -> int:
        return self._count

    def add(self, record: Record) -> None:
        """Add a record. Records without an offset are numbered in order; one without a sequence gets its offset + 1 as
        seq_no, because seq_nos begin with 1."""
        offset = record.offset if record.offset >= 0 else self._base_offset + self._count
        seq_no = record.sequence if record.sequence >= 0 else offset + 1
        if not self._count:
            self._first = seq_no
            self._producer = (record.producer or "").encode()[:0xFFFF]
            self._layout.tail += self._producer
        self._last = seq_no
        self._count += 1
        one, layout = self._one, self._layout
        tail = one.tail
        put_varint(tail, DELTA_TAG)
        put_varint(tail, offset - self._base_offset)
        tail.append(0x08)
        put_varint(tail, seq_no)
        timestamp = record.timestamp
        if timestamp != -1 and FIRST_CREATED <= timestamp <= LAST_CREATED:
            if timestamp > self._created:
                self._created = timestamp
            created = bytearray(b"\x08")
            put_varint(created, timestamp // 1000)
            if nanos := timestamp % 1000 * 1_000_000:
                created.append(0x10)
                put_varint(created, nanos)
            put_bytes(tail, 0x12, created)
        if record.value:
            _lay(one, 0x1A, record.value)
            one.tail.append(0x20)
            put_varint(one.tail, len(record.value))
        if record.key is not None:
            _lay_item(one, KEY_ITEM, record.key)
        headers = told_headers(record)
        for name, content in headers:
            _lay_item(one, name, content or b"")
        if record.value is None:
            _lay_item(one, TOMBSTONE_ITEM, b"")
        if headers and (nulls := _nulls(record.key, headers)):
            _lay_item(one, NULL_ITEM, nulls)
        if not FIRST_CREATED <= timestamp <= LAST_CREATED:
            _lay_item(one, TIMESTAMP_ITEM, b"%d" % timestamp)
        put_varint(layout.tail, _MESSAGE_TAG)
        put_varint(layout.tail, len(one))
        layout.take(one)

    def add_encoded(
        self, messages: bytes, count: int, seq_nos: tuple[int, int], max_created: int, producer: str | None
    ) -> None:
        """Add encoded messages, with the first and the last of their seq_nos. Every offset has one: all messages of a
        batch are added so, or none."""
        if not self._count:
            self._sparse = False
            self._first = seq_nos[0]
            self._producer = (producer or "").encode()[:0xFFFF]
            self._layout.tail += self._producer
        self._last = seq_nos[1]
        self._count += count
        self._created = max(self._created, max_created)
        self._layout.put(messages)

    def finish(self) -> Buffer:
        return at_once(self.finish_in_slices())

    def finish_in_slices(self) -> Generator[None, None, Buffer]:
        whole = yield from self._layout.together()
        numbers = self._count, self._first, self._last, self._created
        head = _packed(Head(self._sparse, Codec.RAW, *numbers, self._producer, b""))
        whole[: len(head)] = head
        yield from _seal(whole)
        return whole


def _nulls(key: bytes | None, headers: list[tuple[str, bytes | None]]) -> bytes:
    """Return the value of a :data:`NULL_ITEM`; empty if the other items suffice."""
    found = [b"%d" % place for place, (_, value) in enumerate(headers) if value is None]
    if key is None and any(name == KEY_ITEM for name, _ in headers):
        found.insert(0, b"key")
    return b",".join(found)


def _lay(layout: Layout, tag: int, value: Buffer) -> None:
    """Append a field of type BYTES."""
    if len(value) < LARGE:
        put_bytes(layout.tail, tag, value)
    else:
        put_varint(layout.tail, tag)
        put_varint(layout.tail, len(value))
        layout.put(value)


def _lay_item(layout: Layout, name: str, value: bytes) -> None:
    item = bytearray()
    put_bytes(item, 0x0A, name.encode())
    if not value:
        put_bytes(layout.tail, 0x3A, item)
        return
    put_varint(item, 0x12)
    put_varint(item, len(value))
    put_varint(layout.tail, 0x3A)
    put_varint(layout.tail, len(item) + len(value))
    layout.tail += item
    layout.put(value)
