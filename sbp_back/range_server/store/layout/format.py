"""Bytes of the log: segment headers, groups and records. Pure functions; docs/storage.md has the same in tables.

All numbers are little-endian. A *group* is what one write and one flush make durable: it starts on a 4 KiB boundary,
so that no sector of acknowledged data is ever written again, and holds one header, the record headers and then the
bodies (entries exactly as received; control records have none). Rules: docs/storage.md, "Formats".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import TypeAlias

import msgspec

from anabranch_kit.errors import StoreVersionError
from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError
from sbp_back.wire.frame import crc32

BLOCK = 4096
"""Alignment of groups, and size of the segment header, in bytes."""

FORMAT_VERSION = 1

SEGMENT_MAGIC = b"ANBRSEG\0"
GROUP_MAGIC = b"ANBRGRP\1"

_SEGMENT_HEADER = Struct("<8sII36sqQQQ")
_CRC = Struct("<I")
_GROUP_HEAD = Struct("<8sQQQII")
GROUP_HEADER_BYTES = _GROUP_HEAD.size + 8  # + flags + crc
_GROUP_FLAGS_CRC = Struct("<II")
RECORD = Struct("<BxxxIqqqqiiI4x")
RECORD_BYTES = RECORD.size

FLAG_NOT_FLUSHED = 1
"""The group was acknowledged without a flush (durability ``os``)."""

ZEROS = bytes(BLOCK)


class RecordType(IntEnum):
    """Kinds of records. The fields that are not named are 0."""

    APPEND = 1
    """A new entry: stream, range, epoch of the range, base, count, length, crc, timestamp."""
    RELOCATE = 2
    """A copy of an entry from an older segment that is about to be deleted; fields as in APPEND."""
    CREATE = 3
    """Range created: stream, range, epoch, base = start."""
    SEAL = 4
    """Range sealed: stream, range, epoch, base = end."""
    TRIM_STREAM = 5
    """Stream, base = smallest offset that has to be kept."""
    DELETE_STREAM = 6
    """Stream."""
    ADOPT = 7
    """In logs of objects: the log of a range server belongs to this one from here on; stream = that server, base = its
    incarnation that was claimed and is never used.
    """


class SegmentHeader(msgspec.Struct, frozen=True):
    """``base`` and ``size`` in log bytes (LSN); ``salt`` tells this use of the file from earlier ones."""

    cluster_id: str
    server_id: int
    base: int
    size: int
    salt: int
    version: int = FORMAT_VERSION


Record: TypeAlias = "tuple[int, int, int, int, int, int, int, int, int]"
"""A record header: type, CRC of the body, stream, epoch, base offset, timestamp, range index, number of offsets, length
of the body. As it is unpacked and no class, because a start after a crash reads one for every entry it replays."""


class GroupHeader(msgspec.Struct, frozen=True):
    """A group's header whose own CRC (header and record headers) is right; the bodies are not checked yet."""

    seq: int
    count: int
    body_bytes: int
    flags: int

    @property
    def flushed(self) -> bool:
        """Return whether this group was on the disk before anything behind it was written."""
        return not self.flags & FLAG_NOT_FLUSHED

    @property
    def body_at(self) -> int:
        """Return the offset of the first body from the start of the group."""
        return GROUP_HEADER_BYTES + RECORD_BYTES * self.count

    @property
    def size(self) -> int:
        """Return the bytes of the group including its padding."""
        return align(self.body_at + self.body_bytes)


def align(size: int) -> int:
    """Round ``size`` up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def group_size(records: int, body_bytes: int) -> int:
    """Return the bytes a group takes in the segment, padding included."""
    return align(GROUP_HEADER_BYTES + RECORD_BYTES * records + body_bytes)


def encode_segment_header(header: SegmentHeader) -> bytes:
    fields = _SEGMENT_HEADER.pack(
        SEGMENT_MAGIC,
        header.version,
        BLOCK,
        header.cluster_id.encode(),
        header.server_id,
        header.base,
        header.size,
        header.salt,
    )
    return (fields + _CRC.pack(crc32(fields))).ljust(BLOCK, b"\0")


def decode_segment_header(block: Buffer) -> SegmentHeader:
    """Decode the header of a segment. Raises ``DecodeError``, or ``StoreVersionError`` when the header is whole but of
    another version.
    """
    view = memoryview(block)
    if len(view) < BLOCK:
        raise DecodeError("the segment header is cut short")
    magic, version, header_bytes, cluster, server_id, base, size, salt = _SEGMENT_HEADER.unpack_from(view)
    if magic != SEGMENT_MAGIC:
        raise DecodeError("no segment magic")
    (crc,) = _CRC.unpack_from(view, _SEGMENT_HEADER.size)
    if crc != crc32(view[: _SEGMENT_HEADER.size]):
        raise DecodeError("the checksum of the segment header is wrong")
    if version != FORMAT_VERSION:
        raise StoreVersionError(f"the segment has format version {version}, this program reads {FORMAT_VERSION}")
    if header_bytes != BLOCK or size < 2 * BLOCK or size % BLOCK:
        raise DecodeError("the sizes in the segment header make no sense")
    try:
        cluster_id = cluster.rstrip(b"\0").decode()
    except UnicodeDecodeError as error:
        raise DecodeError("the cluster id is not text") from error
    return SegmentHeader(cluster_id, server_id, base, size, salt, version)


def encode_group_header(
    seq: int, salt: int, lsn: int, flags: int, count: int, body_bytes: int, headers: bytes
) -> bytes:
    """Encode the header of a group with ``count`` packed record ``headers``; ``lsn``: the group's log position."""
    head = _GROUP_HEAD.pack(GROUP_MAGIC, seq, salt, lsn, count, body_bytes)
    crc = crc32(headers, crc32(flags.to_bytes(4, "little"), crc32(head)))
    return head + _GROUP_FLAGS_CRC.pack(flags, crc)


def encode_group(
    seq: int, salt: int, lsn: int, records: Sequence[bytes], bodies: Sequence[Buffer], flags: int = 0
) -> list[Buffer]:
    """Encode a whole group, padded; ``records`` are packed :data:`RECORD` headers in the order of ``bodies``."""
    headers = b"".join(records)
    body_bytes = sum(map(len, bodies))
    head = encode_group_header(seq, salt, lsn, flags, len(records), body_bytes, headers)
    parts: list[Buffer] = [head, headers, *bodies]
    used = len(head) + len(headers) + body_bytes
    if used % BLOCK:
        parts.append(memoryview(ZEROS)[used % BLOCK :])
    return parts


def looks_like_group(block: Buffer, at: int, salt: int, lsn: int) -> tuple[int, int, int] | None:
    """Return ``(seq, count, body bytes)`` if a header for exactly this place in the log begins at ``at``, unchecked."""
    magic, seq, group_salt, group_lsn, count, body_bytes = _GROUP_HEAD.unpack_from(block, at)
    if magic != GROUP_MAGIC or group_salt != salt or group_lsn != lsn or count == 0:
        return None
    return seq, count, body_bytes


def decode_group_header(buffer: Buffer, at: int, salt: int, lsn: int) -> GroupHeader | None:
    """Decode the header at ``at``; None when its bytes (record headers included) are not a whole, undamaged header."""
    view = memoryview(buffer)
    if len(view) - at < GROUP_HEADER_BYTES:
        return None
    found = looks_like_group(view, at, salt, lsn)
    if found is None:
        return None
    seq, count, body_bytes = found
    headers_at = at + GROUP_HEADER_BYTES
    body_at = headers_at + RECORD_BYTES * count
    if body_at > len(view):
        return None
    flags, crc = _GROUP_FLAGS_CRC.unpack_from(view, at + _GROUP_HEAD.size)
    head_crc = crc32(flags.to_bytes(4, "little"), crc32(view[at : at + _GROUP_HEAD.size]))
    if crc32(view[headers_at:body_at], head_crc) != crc:
        return None
    return GroupHeader(seq, count, body_bytes, flags)


def decode_records(buffer: Buffer, at: int, header: GroupHeader) -> list[Record] | None:
    """Decode the records of the group at ``at`` of ``buffer``, whose bodies lie one after the other from
    ``header.body_at``.

    None when a body has not the CRC its record states, or the lengths do not add up (impossible unless the writer was
    wrong: they have a CRC).
    """
    view = memoryview(buffer)
    end = at + header.body_at
    records: list[Record] = list(RECORD.iter_unpack(view[at + GROUP_HEADER_BYTES : end]))
    for record in records:
        length = record[8]
        if length:
            begin = end
            end += length
            if crc32(view[begin:end]) != record[1]:
                return None
    return records if end == at + header.body_at + header.body_bytes else None
