"""Entries: record batches as they lie on the wire, on the disk and in memory (docs/protocols/sbp.md, "Entries").

``0x22 | u32 meta length | RecordBatchMeta | u32 payload length | payload``, lengths big-endian, the meta a FlatBuffer.
Ours have one of two prefix layouts, so they are packed and parsed with one ``struct`` call; any other layout a foreign
client may choose goes through the table reader. The longer one has a field more than the schema knows, which readers
of the schema pass over: how far the writer knew its range to be durable.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError, ErrorCode, SbpError
from sbp_back.wire.flat import Table, Unused, i16, i32, i64
from sbp_back.wire.frame import crc32
from sbp_back.wire.model import Entry

ENTRY_MAGIC = 0x22

PREFIX_BYTES = 73
"""Bytes before the payload in an entry that :func:`pack_entry` made."""

TELLING_PREFIX_BYTES = 89
"""The same for an entry with a confirmed offset."""

_META_BYTES = 64
_TELLING_META_BYTES = 80

# Everything before the first value: magic, meta length, root offset, padding, vtable, vtable offset.
_FIXED = Struct(">BI").pack(ENTRY_MAGIC, _META_BYTES) + Struct("<IIHHHHHHHHi").pack(
    24, 0, 16, 40, 16, 8, 6, 24, 12, 32, 16
)
_PREFIX = Struct(f"<{len(_FIXED)}s2xhiiqqq4s")
_TELLING_FIXED = Struct(">BI").pack(ENTRY_MAGIC, _TELLING_META_BYTES) + Struct("<III10Hi").pack(
    32, 0, 0, 20, 48, 16, 8, 6, 24, 12, 32, 0, 40, 20
)
_TELLING_PREFIX = Struct(f"<{len(_TELLING_FIXED)}s2xhiiqqqq4s")
_META_HEAD = Struct(">BI")
_LENGTH = Struct(">I")


class _Meta(msgspec.Struct):
    """Fields of a RecordBatchMeta that the generic path reads; ``count`` is what the schema calls last_offset_delta."""

    stream_id: int
    range_index: int
    flags: int
    base_offset: int
    count: int
    timestamp: int
    confirmed: int


META = Table(
    _Meta,
    i64("stream_id"),
    i32("range_index"),
    i16("flags"),
    i64("base_offset", -1),
    i32("count"),
    i64("timestamp"),
    Unused("properties"),  # stays in the prefix, verbatim
    i64("confirmed", -1),  # our own field
)


def pack_entry(
    stream_id: int,
    range_index: int,
    flags: int,
    base_offset: int,
    count: int,
    timestamp: int,
    payload: Buffer,
    confirmed: int = -1,
) -> Entry:
    """Make an entry of ``count`` records around ``payload`` (bytes-like with one-byte items, not copied).

    ``timestamp`` is in milliseconds; ``confirmed`` below 0 is left out and takes no room. Raises ``struct.error`` when
    a number does not fit its field: ``flags`` int16, ``range_index`` and ``count`` int32, the others int64.
    """
    length = len(payload).to_bytes(4, "big")
    if confirmed < 0:
        prefix = _PREFIX.pack(_FIXED, flags, range_index, count, stream_id, base_offset, timestamp, length)
    else:
        prefix = _TELLING_PREFIX.pack(
            _TELLING_FIXED, flags, range_index, count, stream_id, base_offset, timestamp, confirmed, length
        )
    return Entry(stream_id, range_index, flags, base_offset, count, timestamp, payload, prefix, -1, confirmed)


def parse_entries(buffer: Buffer, most: int = -1) -> list[Entry]:
    """Parse the entries that fill ``buffer``; their prefixes and payloads are slices of it.

    Raises ``DecodeError`` when the bytes do not end with an entry, or an entry claims no records; ``SbpError`` 1413
    when there are more than ``most`` (-1: any number).
    """
    view = memoryview(buffer)
    size = len(view)
    at = 0
    entries: list[Entry] = []
    unpack = _PREFIX.unpack_from
    unpack_telling = _TELLING_PREFIX.unpack_from
    while at < size:
        if len(entries) == most:
            raise SbpError(ErrorCode.PAYLOAD_TOO_LARGE, f"there are more than {most} entries")
        body = at + TELLING_PREFIX_BYTES
        if body <= size:
            fixed, flags, range_index, count, stream_id, base, timestamp, confirmed, length = unpack_telling(view, at)
            if fixed == _TELLING_FIXED:
                end = body + int.from_bytes(length, "big")
                if end > size:
                    raise DecodeError("entry payload is longer than the buffer")
                if count < 1:
                    raise DecodeError(f"entry of {count} records")
                payload, prefix = view[body:end], view[at:body]
                entries.append(
                    Entry(stream_id, range_index, flags, base, count, timestamp, payload, prefix, -1, confirmed)
                )
                at = end
                continue
        body = at + PREFIX_BYTES
        if body <= size:
            fixed, flags, range_index, count, stream_id, base, timestamp, length = unpack(view, at)
            if fixed == _FIXED:
                end = body + int.from_bytes(length, "big")
                if end > size:
                    raise DecodeError("entry payload is longer than the buffer")
                if count < 1:
                    raise DecodeError(f"entry of {count} records")
                entries.append(
                    Entry(stream_id, range_index, flags, base, count, timestamp, view[body:end], view[at:body])
                )
                at = end
                continue
        entry = _parse_one(view, at)
        at += entry.size
        entries.append(entry)
    return entries


def parse_entry(view: memoryview) -> Entry:
    """Parse the single entry that fills ``view``. Raises what :func:`parse_entries` does; ``ValueError`` when it is not
    one.
    """
    size = len(view)
    if size >= TELLING_PREFIX_BYTES:
        told = _TELLING_PREFIX.unpack_from(view)
        fixed, flags, range_index, count, stream_id, base, timestamp, confirmed, length = told
        if fixed == _TELLING_FIXED and count > 0 and int.from_bytes(length, "big") == size - TELLING_PREFIX_BYTES:
            payload, prefix = view[TELLING_PREFIX_BYTES:], view[:TELLING_PREFIX_BYTES]
            return Entry(stream_id, range_index, flags, base, count, timestamp, payload, prefix, -1, confirmed)
    if size >= PREFIX_BYTES:
        fixed, flags, range_index, count, stream_id, base, timestamp, length = _PREFIX.unpack_from(view)
        if fixed == _FIXED and count > 0 and int.from_bytes(length, "big") == size - PREFIX_BYTES:
            payload, prefix = view[PREFIX_BYTES:], view[:PREFIX_BYTES]
            return Entry(stream_id, range_index, flags, base, count, timestamp, payload, prefix)
    (entry,) = parse_entries(view)
    return entry


def _parse_one(view: memoryview, at: int) -> Entry:
    """Parse the entry at ``at``, whatever the layout of its meta."""
    remaining = len(view) - at - _META_HEAD.size
    if remaining < 0:
        raise DecodeError("entry is cut short")
    magic, meta_length = _META_HEAD.unpack_from(view, at)
    if magic != ENTRY_MAGIC:
        raise DecodeError(f"entry magic is {magic:#x}, not {ENTRY_MAGIC:#x}")
    if meta_length + 4 > remaining:
        raise DecodeError("entry meta is longer than the buffer")
    meta_at = at + _META_HEAD.size
    body = meta_at + meta_length + 4
    (length,) = _LENGTH.unpack_from(view, body - 4)
    end = body + length
    if end > len(view):
        raise DecodeError("entry payload is longer than the buffer")
    meta: _Meta = META.read(bytes(view[meta_at : body - 4]))
    if meta.count < 1:
        raise DecodeError(f"entry of {meta.count} records")
    place = meta.stream_id, meta.range_index, meta.flags, meta.base_offset, meta.count, meta.timestamp
    return Entry(*place, view[body:end], view[at:body], -1, meta.confirmed)


def entry_crc(entry: Entry) -> int:
    """Return the CRC-32 of the entry's bytes, computed at most once. It is also the CRC of a frame with just this
    entry.
    """
    crc = entry.crc
    if crc < 0:
        crc = entry.crc = crc32(entry.payload, crc32(entry.prefix))
    return crc
