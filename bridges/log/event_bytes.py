"""Bytes that a batch and its offsets take of a position as Pravega counts them, slice by slice (bridges/sliced.py).

Where a format tells from the header what a batch takes, that holds, whatever its records are; of offsets inside the
batch its records tell, but no more than the whole, and what is left over belongs to its end. A batch whose records
cannot be read takes what its header tells, or nothing.
"""

from __future__ import annotations

from bridges.errors import BatchInvalid
from bridges.formats import format_of
from bridges.formats.base import EVENT_HEADER
from bridges.formats.records import Buffer, StoredBatch
from bridges.log.byte_column import BytePlace
from bridges.sliced import Sliced

_AT_ONCE = 100
"""Records that are decoded in one go."""


def told_bytes(flags: int, payload: Buffer) -> int | None:
    """What a whole batch takes, as its header tells; None if only its records do."""
    try:
        return format_of(flags).event_bytes(payload)
    except BatchInvalid:
        return 0


def bytes_of(batch: StoredBatch, start: int, end: int, limit: int) -> Sliced[int]:
    """What the offsets of ``batch`` in ``[start, end)`` take; at most ``limit`` bytes are decompressed."""
    whole = told_bytes(batch.flags, batch.payload)
    if whole is not None and start <= batch.base_offset and batch.end_offset <= end:
        return whole
    before_start = before_end = total = 0
    try:
        for count, record in enumerate(format_of(batch.flags).records(batch, limit), 1):
            if record is None or not count % _AT_ONCE:
                yield None
            if record is not None:
                size = EVENT_HEADER + len(record.value or b"")
                total += size
                if record.offset < start:
                    before_start += size
                if record.offset < end:
                    before_end += size
    except BatchInvalid:
        before_start = before_end = total = 0
    if whole is not None:
        before_start, before_end, total = min(before_start, whole), min(before_end, whole), whole
    return (total if batch.end_offset <= end else before_end) - before_start


def record_at(batch: StoredBatch, at: int, position: int, limit: int) -> Sliced[BytePlace]:
    """The record that has the byte at ``position``, which is one of ``batch``; that one begins ``at``."""
    begin = found = BytePlace(batch.base_offset, at)
    try:
        for count, record in enumerate(format_of(batch.flags).records(batch, limit), 1):
            if record is None or not count % _AT_ONCE:
                yield None
            if record is not None:
                if at > position:
                    break
                found = BytePlace(record.offset, at)
                at += EVENT_HEADER + len(record.value or b"")
    except BatchInvalid:
        return begin
    return found
