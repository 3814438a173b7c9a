"""The bytes of a position that a batch and its offsets take, as Pravega counts them, computed slice by slice.

If a format's header gives a batch's bytes, that number holds, whatever the records are. The records determine the
offsets inside the batch, but never exceed that number, and the batch's end gets the rest. An unreadable record takes
the bytes of an event's header, so that readers meet an error there; the records after it in its batch take none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from anabranch_kit.run.sliced import Sliced
from bridges.errors import BatchInvalid
from bridges.formats import format_of
from bridges.formats.base import EVENT_HEADER, StoredFormat
from bridges.formats.columns import LEAST_RECORDS, Unusual
from bridges.formats.records import Buffer, StoredBatch
from bridges.log.byte_positions.column import BytePlace

if TYPE_CHECKING:
    from bridges.formats.columns.varints import Int64s

_AT_ONCE = 100
"""Records decoded in one go."""


def told_bytes(flags: int, payload: Buffer) -> int | None:
    """Return the bytes of a whole batch by its header; None if only its records determine them."""
    try:
        return format_of(flags).event_bytes(payload)
    except BatchInvalid:
        return 0


def bytes_of(batch: StoredBatch, start: int, end: int, limit: int) -> Sliced[int]:
    """Return the bytes of the offsets of ``batch`` in ``[start, end)``; at most ``limit`` bytes are decompressed."""
    whole = told_bytes(batch.flags, batch.payload)
    if whole is not None and start <= batch.base_offset and batch.end_offset <= end:
        return whole
    source = format_of(batch.flags)
    found = yield from _by_columns(batch, start, end, limit)
    if found is None:
        found = yield from _one_by_one(source, batch, start, end, limit)
    before_start, before_end, total = found
    if whole is not None:
        before_start, before_end, total = min(before_start, whole), min(before_end, whole), whole
    return (total if batch.end_offset <= end else before_end) - before_start


_Sums = tuple[int, int, int]
"""Bytes before the start, bytes before the end, and the bytes of the whole batch."""


def _by_columns(batch: StoredBatch, start: int, end: int, limit: int) -> Sliced[_Sums | None]:
    """Compute the sums from columns; None if these do not take the batch."""
    before_start = before_end = total = 0
    try:
        for part in _columns(batch, limit):
            if part is not None:
                offsets, sizes = part
                total += int(sizes.sum())
                before_start += int(sizes[offsets < start].sum())
                before_end += int(sizes[offsets < end].sum())
            yield None
    except (Unusual, BatchInvalid):
        return None
    return before_start, before_end, total


def _record_by_columns(batch: StoredBatch, at: int, position: int, limit: int) -> Sliced[BytePlace | None]:
    try:
        for part in _columns(batch, limit):
            if part is not None:
                offsets, sizes = part
                ends = at + sizes.cumsum()
                number = int(ends.searchsorted(position, "right"))
                if number < len(ends):
                    return BytePlace(int(offsets[number]), int(ends[number - 1]) if number else at)
                at = int(ends[-1])
            yield None
    except (Unusual, BatchInvalid):
        pass
    return None


def _columns(batch: StoredBatch, limit: int) -> Iterator[tuple[Int64s, Int64s] | None]:
    """Yield the offsets and the bytes of a batch's records in parts, and None where much was done. Raises Unusual, and
    BatchInvalid."""
    if batch.end_offset - batch.base_offset < LEAST_RECORDS:
        raise Unusual
    yield None  # numpy may be imported below, which must not be on the event loop
    from bridges.formats.columns.translation import rows_of

    for found in rows_of([batch], limit):
        yield None if found is None else (found[1].offsets, EVENT_HEADER + found[1].values.sizes)


def _one_by_one(source: StoredFormat, batch: StoredBatch, start: int, end: int, limit: int) -> Sliced[_Sums]:
    before_start = before_end = total = 0
    reached = batch.base_offset
    try:
        for count, record in enumerate(source.records(batch, limit), 1):
            if record is None or not count % _AT_ONCE:
                yield None
            if record is not None:
                size = EVENT_HEADER + len(record.value or b"")
                total += size
                if record.offset < start:
                    before_start += size
                if record.offset < end:
                    before_end += size
                reached = record.offset + 1
    except BatchInvalid:
        total += EVENT_HEADER
        before_start += EVENT_HEADER if reached < start else 0
        before_end += EVENT_HEADER if reached < end else 0
    return before_start, before_end, total


def record_at(batch: StoredBatch, at: int, position: int, limit: int) -> Sliced[BytePlace]:
    """Return the record that contains the byte at ``position`` of ``batch``, which begins at ``at``."""
    source = format_of(batch.flags)
    by_columns = yield from _record_by_columns(batch, at, position, limit)
    if by_columns is not None:
        return by_columns
    found = BytePlace(batch.base_offset, at)
    reached = batch.base_offset
    try:
        for count, record in enumerate(source.records(batch, limit), 1):
            if record is None or not count % _AT_ONCE:
                yield None
            if record is not None:
                if at > position:
                    break
                found = BytePlace(record.offset, at)
                at += EVENT_HEADER + len(record.value or b"")
                reached = record.offset + 1
    except BatchInvalid:
        if at <= position:
            return BytePlace(reached, at)
    return found
