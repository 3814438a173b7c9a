"""The body of a group's object: its place in the log, its record headers, then the bodies. Little-endian::

    u64 base and u64 bytes of the segment | u32 position in it | u32 number of records
    u32 CRC-32 of all these and the record headers
    record headers, 56 bytes each, and bodies, as in a group on disk (docs/storage.md)

The headers come first, so that an index can be made from the beginnings of objects. Each has the length and CRC of its
body.
"""

from __future__ import annotations

from struct import Struct

from msgspec import Struct as Value

from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError
from sbp_back.range_server.object_log.objects.content import HEAD_BYTES
from sbp_back.range_server.store.layout.format import RECORD, RECORD_BYTES, Record
from sbp_back.wire.frame import crc32

_HEAD = Struct("<QQII")
_CRC = Struct("<I")
BEFORE_RECORDS = HEAD_BYTES + _HEAD.size + _CRC.size
"""Bytes of an object before its first record header."""


def group_bytes(records: int, body_bytes: int) -> int:
    return BEFORE_RECORDS + RECORD_BYTES * records + body_bytes


class ObjectGroup(Value):
    """A group as it lies in the log: ``position`` of its object in the segment with ``base``, ``size`` of it."""

    base: int
    segment_bytes: int
    position: int
    records: list[Record]
    size: int

    @property
    def body_at(self) -> int:
        """Return the position of the first body in the segment."""
        return self.position + BEFORE_RECORDS + RECORD_BYTES * len(self.records)


def encode_object(
    base: int, segment_bytes: int, position: int, records: list[bytes], bodies: list[Buffer]
) -> bytearray:
    """Encode an object with room for its head, and the body of a group that lies at ``position`` of the segment with
    ``base`` and ``segment_bytes``. The bodies are copied once.
    """
    headers = b"".join(records)
    head = _HEAD.pack(base, segment_bytes, position, len(records))
    crc = _CRC.pack(crc32(headers, crc32(head)))
    return bytearray().join((bytes(HEAD_BYTES), head, crc, headers, *bodies))


def records_end(start: Buffer) -> int:
    """Return how many bytes of an object are needed to decode its group; ``start`` has at least :data:`BEFORE_RECORDS`
    of them.
    """
    return BEFORE_RECORDS + RECORD_BYTES * int(_HEAD.unpack_from(start, HEAD_BYTES)[3])


def decode_group(start: Buffer, size: int) -> ObjectGroup:
    """Decode the group of an object of ``size`` bytes that begins with ``start``. Raises ``DecodeError``."""
    if len(start) < BEFORE_RECORDS:
        raise DecodeError("the group is cut short")
    base, segment_bytes, position, count = _HEAD.unpack_from(start, HEAD_BYTES)
    end = BEFORE_RECORDS + RECORD_BYTES * count
    if not count or end > len(start):
        raise DecodeError("the group's record headers are cut short")
    view = memoryview(start)
    head = view[HEAD_BYTES : HEAD_BYTES + _HEAD.size]
    if _CRC.unpack_from(start, HEAD_BYTES + _HEAD.size)[0] != crc32(view[BEFORE_RECORDS:end], crc32(head)):
        raise DecodeError("the group's record headers are damaged")
    records: list[Record] = list(RECORD.iter_unpack(view[BEFORE_RECORDS:end]))
    if end + sum(record[8] for record in records) != size:
        raise DecodeError("the group's lengths do not add up")
    return ObjectGroup(base, segment_bytes, position, records, size)
