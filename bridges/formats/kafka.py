"""Kafka's RecordBatch v2 as a stored format: header, checks, stamping in place, records.

Layout and rules: KIP-98 and docs/protocols/kafka.md, rules 21-26. The base offset and the leader epoch lie outside the
checksum, so storing a batch rewrites twelve bytes and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from anabranch_kit.run.sliced import at_once
from bridges.errors import BatchCorrupt, BatchInvalid, DecompressedTooLarge
from bridges.formats.base import BatchInfo, FormatId
from bridges.formats.checksum import crc32c
from bridges.formats.codecs.compression import DEFAULT_LIMIT, PIECE, compress, inflate
from bridges.formats.pieces import LARGE, STEP, Layout, copied, written
from bridges.formats.producer import SEQUENCES, InTransaction, ProducerStamp, fence
from bridges.formats.records import LOSSY_HEADER, Buffer, Record, StoredBatch, told_headers

HEADER_SIZE = 61
LOG_OVERHEAD = 12
"""Bytes before those that the batch's length field counts."""
MAGIC = 2
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""The flag of a batch whose base timestamp is its delete horizon: the time (ms) from which compaction may remove
tombstones and markers (KIP-534)."""

_new = tuple.__new__
"""Makes a named tuple in half the time of its class; for tuples that are made with every batch."""
_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC_START = 21
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35
RECORD_MIN = 7
"""Encoded bytes of the smallest record: length, attributes, two deltas, two lengths, header count."""
_MOST_RATIO = (1, 1032, 22, 255, 32768)
"""Most bytes that one byte decompresses to, by codec. Deflate: 258 in two bits; snappy: 64 in three bytes; lz4: 255 a
byte; zstd: a block of 128 KiB in four bytes."""


class Header(NamedTuple):
    """The fixed 61 bytes of a batch, field by field."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def size(self) -> int:
        """Return the bytes of the whole batch."""
        return self.length + LOG_OVERHEAD


class RawRecord(NamedTuple):
    """A record inside a batch, with its deltas resolved."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def parse_header(batch: Buffer, position: int = 0) -> Header:
    """Read the header at ``position``. Raises BatchInvalid when fewer than 61 bytes are there."""
    if len(batch) - position < HEADER_SIZE:
        raise _cut_short(len(batch) - position)
    return _new(Header, _HEADER.unpack_from(batch, position))


def _cut_short(size: int) -> BatchInvalid:
    return BatchInvalid(f"a record batch has {size} bytes, fewer than its header")


def checksum(batch: memoryview) -> Generator[None, None, int]:
    """Return the checksum of a batch, yielding between two steps: a hundred mebibytes take tens of milliseconds."""
    value = 0
    for at in range(_CRC_START, len(batch), STEP):
        if at > _CRC_START:
            yield None
        value = crc32c(batch[at : at + STEP], value)
    return value


def check_batch(batch: memoryview, crc: int | None = None) -> Header:
    """Verify that ``batch`` is exactly one well-formed batch with a good checksum (rules 21 and 22).

    ``crc``: its :func:`checksum`, if the caller has computed it. Raises BatchCorrupt for a wrong checksum, BatchInvalid
    for everything else.
    """
    if len(batch) < HEADER_SIZE:
        raise _cut_short(len(batch))
    header: Header = _new(Header, _HEADER.unpack_from(batch))
    if header.magic != MAGIC:
        raise BatchInvalid(f"record batches of magic {header.magic} are not accepted, only {MAGIC}")
    if header.length + LOG_OVERHEAD != len(batch):
        raise BatchInvalid(f"a batch of {header.length + LOG_OVERHEAD} bytes came in a field of {len(batch)}")
    if (crc32c(batch[_CRC_START:]) if crc is None else crc) != header.crc:
        raise BatchCorrupt("the batch's checksum does not match its bytes")
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        raise BatchInvalid(f"a batch of {header.record_count} records ends at offset delta {header.last_offset_delta}")
    return header


def stamp(batch: Buffer, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into a batch in place; neither is covered by the checksum (rule 23)."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, 12, leader_epoch)


def set_log_append_time(batch: memoryview, now_ms: int) -> Generator[None, None, None]:
    """Set the batch's timestamp, which the checksum covers, to the node's clock (rule 24); in steps."""
    (attributes,) = struct.unpack_from(">h", batch, _ATTRIBUTES_AT)
    struct.pack_into(">h", batch, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    yield from set_max_timestamp(batch, now_ms)


def set_max_timestamp(batch: memoryview, timestamp: int) -> Generator[None, None, None]:
    """Correct the header's highest timestamp, which the checksum covers; the rest stays as it was sent. In steps."""
    struct.pack_into(">q", batch, _MAX_TIMESTAMP_AT, timestamp)
    struct.pack_into(">I", batch, _CRC_AT, (yield from checksum(batch)))


def _varint(data: Buffer, position: int) -> tuple[int, int]:
    """Return (value, next position) of a zig-zag varint of at most 64 bits."""
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
        if shift > 63:
            raise BatchInvalid("a variable-length number in a record is too long")


def _take(data: Buffer, position: int, end: int, make: Callable[[Buffer], Any] = bytes) -> tuple[Any, int]:
    """Return (field, next position) of a nullable byte string that must end at or before ``end``; ``make`` turns the
    part of ``data`` into the field."""
    length, position = _varint(data, position)
    if length < 0:
        return None, position
    if length > end - position:
        raise BatchInvalid("a field of a record is longer than the record")
    return make(data[position : position + length]), position + length


class _Body:
    """The bytes after a batch's header, decompressed only as far as the records read so far need."""

    __slots__ = ("_pieces", "_spent", "data")

    def __init__(self, pieces: Iterator[Buffer | None]) -> None:
        self._pieces = pieces
        self._spent = 0
        self.data: Buffer = b""

    def _more(self) -> Generator[None, None, Buffer | None]:
        """Return the next piece, None at the end. Yields when a slice's worth of bytes or of pieces has come out."""
        for piece in self._pieces:
            if piece is None:
                self._spent = 0
                yield None
                continue
            if self._spent >= PIECE:
                self._spent = 0
                yield None
            self._spent += len(piece) + PIECE // 64
            return _sliceable(piece)
        return None

    def need(self, position: int, size: int) -> Generator[None, None, None]:
        """Drop what lies before ``position`` from ``data``, and extend it to at least ``size`` bytes, or to the end."""
        rest = self.data[position:]
        piece = rest if len(rest) else (yield from self._more())
        if piece is None or len(piece) >= size:
            self.data = b"" if piece is None else piece
            return
        self.data = b""
        grown = BytesIO()  # joining parts would need their bytes twice
        have = yield from written(grown, piece)
        while have < size and (piece := (yield from self._more())) is not None:
            have += yield from written(grown, piece)
        self.data = _sliceable(grown.getvalue())

    def skip(self, position: int) -> Generator[None, None, None]:
        """Drop what lies before ``position``, which may be far behind ``data``. Raises BatchInvalid."""
        left = position - len(self.data)
        while left >= 0:
            piece = yield from self._more()
            if piece is None:
                if left:
                    raise BatchInvalid("a record is longer than its batch")
                self.data = b""
                return
            left -= len(piece)
            self.data = piece
        self.data = self.data[len(self.data) + left :]


def _sliceable(data: Buffer) -> Buffer:
    """Return the same bytes, as a memoryview if they are many, so that slicing does not copy."""
    return data if len(data) <= STEP else memoryview(data)


def _open(batch: Buffer, limit: int) -> tuple[Header, _Body]:
    """Return the header and the body. Raises BatchInvalid if the record count does not fit into the bytes or the
    limit."""
    header = parse_header(batch)
    body = memoryview(batch)[HEADER_SIZE : header.size]
    check_count(header, len(body), limit)
    return header, _Body(inflate(header.codec, body, limit))


def check_count(header: Header, body_bytes: int, limit: int = DEFAULT_LIMIT) -> None:
    """Check the header's record count against the size of the body; reads nothing but the header.

    Raises BatchInvalid when so many records cannot lie in ``body_bytes``, whatever these decompress to, and
    DecompressedTooLarge when the records must exceed ``limit`` bytes.
    """
    least = header.record_count * RECORD_MIN
    codec = header.codec
    if header.record_count < 0 or (codec < len(_MOST_RATIO) and least > body_bytes * _MOST_RATIO[codec]):
        raise BatchInvalid(f"{header.record_count} records cannot lie in {body_bytes} bytes")
    if least > limit:
        raise DecompressedTooLarge(f"{header.record_count} records decompress to more than {limit} bytes")


_MOST_HEADERS = 10_000
"""Headers of one record for readers of other protocols: each costs a hundred times the two bytes it may take."""
_HEAD_MOST = 40
"""Bytes of a record up to and with the length of its key, if each number has its greatest length."""
_PASSED_AT_ONCE = 500
"""Records skipped in one go."""


def slices(batch: Buffer, limit: int = DEFAULT_LIMIT, first: int = 0) -> Iterator[RawRecord | None]:
    """Yield the records of one batch, in order, and None wherever a ``PIECE`` has been decompressed since the last.

    Records whose offset lies less than ``first`` above the batch's are skipped without reading their fields.
    Decompresses lazily, to at most ``limit`` bytes. Raises BatchInvalid (or one of its kinds) as soon as a record is
    malformed.
    """
    header, body = _open(batch, limit)
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    position = passed = 0
    try:
        for _ in range(header.record_count):
            if len(body.data) - position < _HEAD_MOST:
                if position > len(body.data):
                    yield from body.skip(position)
                    position = 0
                yield from body.need(position, _HEAD_MOST)
                position = 0
            length, position = _varint(body.data, position)
            if first and _offset_delta(body.data, position) < first:
                if length < RECORD_MIN - 1:
                    raise BatchInvalid("a record ends within a field")
                position += length
                passed += 1
                if not passed % _PASSED_AT_ONCE:
                    yield None
                continue
            if length > limit:
                raise DecompressedTooLarge(f"a record of {length} bytes exceeds the limit of {limit}")
            if len(body.data) - position < length:
                yield from body.need(position, length)
                position = 0
            data = body.data
            end = position + length
            if length < 0 or end > len(data):
                raise BatchInvalid("a record is longer than its batch")
            position += 1  # attributes, unused
            timestamp_delta, position = _varint(data, position)
            offset_delta, position = _varint(data, position)
            make = bytes if length <= STEP else memoryview  # long fields are copied in steps below
            key, position = _take(data, position, end, make)
            value, position = _take(data, position, end, make)
            headers, position = _headers(data, position, end, make)
            if position != end:
                raise BatchInvalid("a record does not fill the length it claims")
            if length > STEP:
                key = None if key is None else (yield from copied(key))
                value = None if value is None else (yield from copied(value))
                for number, (name, content) in enumerate(headers):
                    if content is not None:
                        headers[number] = name, (yield from copied(content))
            if not 0 <= offset_delta <= header.last_offset_delta:
                raise BatchInvalid(f"a record claims offset {offset_delta} of {header.last_offset_delta + 1}")
            if length > PIECE and end == len(data):  # release a large record's bytes while the caller uses it
                body.data = data = b""
                position = 0
            yield RawRecord(
                header.base_offset + offset_delta,
                header.base_timestamp + timestamp_delta if append_time is None else append_time,
                key,
                value,
                headers,
            )
        if position > len(body.data):
            yield from body.skip(position)
    except IndexError as error:
        raise BatchInvalid("a record ends within a field") from error


def _offset_delta(data: Buffer, position: int) -> int:
    """Return the offset delta of the record whose attributes lie at ``position``."""
    _, position = _varint(data, position + 1)
    return _varint(data, position)[0]


def iterate(batch: Buffer, limit: int = DEFAULT_LIMIT) -> Iterator[RawRecord]:
    """Yield only the records of :func:`slices`, with its errors."""
    return (record for record in slices(batch, limit) if record is not None)


def heads(batch: Buffer, limit: int = DEFAULT_LIMIT) -> Iterator[tuple[int, bool] | None]:
    """Yield (timestamp, whether it has a key) of every record, like :func:`slices` but without reading the rest.

    A record costs a fraction of what it costs there, and values are never held whole.
    """
    header, body = _open(batch, limit)
    base_timestamp, last = header.base_timestamp, header.last_offset_delta
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    position = 0
    data = body.data
    room = -_HEAD_MOST
    try:
        for _ in range(header.record_count):
            if position > room:
                if position >= len(data):
                    yield from body.skip(position)
                    position = 0
                yield from body.need(position, _HEAD_MOST)
                data = body.data
                position = 0
                room = len(data) - _HEAD_MOST
            # Nearly all numbers have one byte; read these in place.
            byte = data[position]
            if byte < 0x80:
                length = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                length, position = _varint(data, position)
            end = position + length
            position += 1  # attributes, unused
            byte = data[position]
            if byte < 0x80:
                timestamp = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                timestamp, position = _varint(data, position)
            byte = data[position]
            if byte < 0x80:
                offset = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                offset, position = _varint(data, position)
            byte = data[position]
            if byte < 0x80:
                key = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                key, position = _varint(data, position)
            if position + (key if key > 0 else 0) > end:
                raise BatchInvalid("a field of a record is longer than the record")
            if not 0 <= offset <= last:
                raise BatchInvalid(f"a record claims offset {offset} of {last + 1}")
            yield base_timestamp + timestamp if append_time is None else append_time, key >= 0
            position = end
        if position > len(data):
            yield from body.skip(position)
    except IndexError as error:
        raise BatchInvalid("a record ends within a field") from error


def _headers(data: Buffer, position: int, end: int, make: Callable[[Buffer], Any]) -> tuple[list[tuple[str, Any]], int]:
    """Return the headers of a record that ends at ``end``. LOSSY_HEADER marks those that cannot be represented."""
    count, position = _varint(data, position)
    if count < 0 or count > end - position:
        raise BatchInvalid(f"a record claims {count} headers")
    headers: list[tuple[str, Any]] = []
    lossy: list[bytes] = []
    for number in range(min(count, _MOST_HEADERS)):
        raw, position = _take(data, position, end)
        value, position = _take(data, position, end, make)
        if raw is None:
            raise BatchInvalid("a record header has no name")
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            name = raw.decode(errors="replace")
            lossy.append(b"%d" % number)
        headers.append((name, value))
    if count > _MOST_HEADERS:
        lossy.append(b"%d-%d" % (_MOST_HEADERS, count - 1))
        position = end
    if lossy:
        headers.append((LOSSY_HEADER, b",".join(lossy)))
    return headers, position


def _put_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _lay(layout: Layout, value: bytes | None) -> None:
    tail = layout.tail
    if value is None:
        _put_varint(tail, -1)
        return
    _put_varint(tail, len(value))
    if len(value) < LARGE:
        tail += value
    else:
        layout.put(value)


class BatchBuilder:
    """A builder of one batch, record by record. Keyword arguments go into the header.

    Pass -1 as the leader epoch if it is unknown. A consumer takes any other value for the epoch in which the records
    were written, and detects a truncated log if that is wrong (KIP-320).
    """

    __slots__ = (
        "_base_timestamp",
        "_count",
        "_given",
        "_layout",
        "_one",
        "_span",
        "_stamp",
        "base_offset",
        "max_timestamp",
    )

    def __init__(
        self,
        base_offset: int = 0,
        *,
        count: int | None = None,
        leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        base_timestamp: int | None = None,
    ) -> None:
        self.base_offset = base_offset
        self._given = base_timestamp is not None
        self._base_timestamp = base_timestamp or 0
        self._layout = Layout(bytes(HEADER_SIZE))
        self._count = 0
        self._one = Layout(b"")
        self._span = count
        self._stamp = (leader_epoch, producer_id, producer_epoch, base_sequence)
        self.max_timestamp = -1

    def __len__(self) -> int:
        return self._count

    def add(self, record: Record) -> None:
        """Add a record. With an ``offset`` it keeps its distance to the batch's base (gaps are legal when reading);
        without, records are numbered in order."""
        if not self._count:
            self.max_timestamp = record.timestamp
            if not self._given:
                self._base_timestamp = record.timestamp
        elif record.timestamp > self.max_timestamp:
            self.max_timestamp = record.timestamp
        one, layout = self._one, self._layout
        tail = one.tail
        tail.append(0)
        _put_varint(tail, record.timestamp - self._base_timestamp)
        _put_varint(tail, record.offset - self.base_offset if record.offset >= 0 else self._count)
        _lay(one, record.key)
        _lay(one, record.value)
        headers = record.headers if record.codec is None else told_headers(record)
        _put_varint(one.tail, len(headers))
        for name, content in headers:
            _lay(one, name.encode())
            _lay(one, content)
        _put_varint(layout.tail, len(one))
        layout.take(one)
        self._count += 1

    def base_of(self, timestamp: int) -> int:
        """Return the timestamp from which the records count, whose first has this ``timestamp``."""
        if not self._count and not self._given:
            self._base_timestamp = timestamp
        return self._base_timestamp

    def add_encoded(self, records: bytes, count: int, max_timestamp: int) -> None:
        """Add encoded records; :meth:`base_of` has been called for them."""
        self.max_timestamp = max(max_timestamp, self.max_timestamp) if self._count else max_timestamp
        self._count += count
        self._layout.put(records)

    def finish(self, codec: int = 0, attributes: int = 0) -> bytearray:
        """Return the batch. Kafka's compaction leaves batches without records, too, and clients skip them."""
        return at_once(self.finish_in_slices(codec, attributes))

    def finish_in_slices(self, codec: int = 0, attributes: int = 0) -> Generator[None, None, bytearray]:
        """Return the batch, yielding now and then."""
        if not self._count:
            codec, self._base_timestamp = 0, -1
        leader_epoch, producer_id, producer_epoch, base_sequence = self._stamp
        batch = yield from self._layout.together()
        if codec:
            plain, batch = batch, bytearray(HEADER_SIZE)
            batch += compress(codec, memoryview(plain)[HEADER_SIZE:])
        _HEADER.pack_into(
            batch,
            0,
            self.base_offset,
            len(batch) - LOG_OVERHEAD,
            leader_epoch,
            MAGIC,
            0,
            attributes | codec,
            (self._count if self._span is None else self._span) - 1,
            self._base_timestamp,
            self.max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self._count,
        )
        struct.pack_into(">I", batch, _CRC_AT, (yield from checksum(memoryview(batch))))
        return batch


def encode(
    records: Sequence[Record], base_offset: int = 0, *, codec: int = 0, attributes: int = 0, **stamp: int
) -> bytearray:
    """Encode ``records`` as one batch; ``stamp`` takes the keyword arguments of :class:`BatchBuilder`.

    ``count`` in ``stamp`` is the number of offsets the batch spans, by default the number of records.
    """
    builder = BatchBuilder(base_offset, **stamp)
    for record in records:
        builder.add(record)
    return builder.finish(codec, attributes)


def _placed(batch: StoredBatch, delta: int) -> int:
    """Return the offset of a record: the log decides where the batch lies, not the batch's header."""
    offset = batch.base_offset + delta
    if offset >= batch.end_offset:
        raise BatchInvalid(f"a record claims offset {offset} of a batch that ends at {batch.end_offset}")
    return offset


_MARKER_KEY = struct.Struct(">hh")
"""Version and type: the key of a control batch's record (docs/protocols/kafka.md, rule 37)."""
_MARKER_VALUE = struct.Struct(">hi")
"""Version, and the epoch of the transaction's coordinator."""
_ABORT = 0
_COMMIT = 1
_MARKER_MOST = 4096
"""Most decompressed bytes read of a control batch: a marker has some twenty."""


def marker(part: InTransaction, now_ms: int, coordinator_epoch: int = 0) -> bytearray:
    """Return the control batch that ends a transaction, with one record."""
    record = Record(
        _MARKER_KEY.pack(0, _COMMIT if part.commit else _ABORT), _MARKER_VALUE.pack(0, coordinator_epoch), [], now_ms
    )
    return encode([record], attributes=TRANSACTIONAL | CONTROL, producer_id=part.producer_id, producer_epoch=part.epoch)


def transaction_of(batch: Buffer, header: Header) -> InTransaction | None:
    """Return the transaction that a batch belongs to, or ends, by its own claim; None without one."""
    if not header.attributes & TRANSACTIONAL or header.producer_id < 0:
        return None
    if not header.attributes & CONTROL:
        return InTransaction(header.producer_id, header.producer_epoch)
    try:
        record = next(iterate(batch, _MARKER_MOST), None)
        _, kind = _MARKER_KEY.unpack_from((record and record.key) or b"")
    except (BatchInvalid, struct.error):
        return None
    if kind not in (_ABORT, _COMMIT):
        return None  # control batches have other uses, too
    return InTransaction(header.producer_id, header.producer_epoch, kind == _COMMIT)


class KafkaFormat:
    """The stored-format plug of RecordBatch v2 (see :class:`bridges.formats.base.StoredFormat`)."""

    id = FormatId.KAFKA
    name = "kafka"

    def describe(self, payload: Buffer) -> BatchInfo:
        header = parse_header(payload)
        transaction = transaction_of(payload, header) if header.attributes & TRANSACTIONAL else None
        if header.attributes & CONTROL:
            # A transaction's marker fences its producer but takes no sequence number, and no reader sees its time.
            stamp = None if transaction is None else fence(transaction)
            return BatchInfo(-1, header.leader_epoch, stamp, control=True, transaction=transaction)
        producer = None
        if header.producer_id >= 0 and header.base_sequence >= 0:
            # After compaction a batch has fewer records than sequence numbers.
            records = header.last_offset_delta + 1
            producer = ProducerStamp(header.producer_id, header.producer_epoch, header.base_sequence, records)
        return BatchInfo(header.max_timestamp, header.leader_epoch, producer, transaction=transaction)

    stamp = staticmethod(stamp)

    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        header = parse_header(batch.payload)
        if header.attributes & CONTROL:
            return
        producer = str(header.producer_id) if header.producer_id >= 0 else None
        sequence = header.base_sequence if producer is not None else -1
        written = header.max_timestamp if header.attributes & LOG_APPEND_TIME else batch.written_ms
        for raw in slices(batch.payload, limit, max(0, start - batch.base_offset)):
            if raw is None:
                yield None
                continue
            delta = raw.offset - header.base_offset
            yield Record(
                raw.key,
                raw.value,
                raw.headers,
                raw.timestamp,
                _placed(batch, delta),
                producer,
                (sequence + delta) % SEQUENCES if sequence >= 0 else -1,
                written,
            )

    def event_bytes(self, payload: Buffer) -> int | None:
        header = parse_header(payload)
        return 0 if header.attributes & CONTROL or not header.record_count else None

    def builder(self, base_offset: int, end_offset: int) -> BatchBuilder:
        return BatchBuilder(base_offset, count=end_offset - base_offset)
