"""Replay of records: their effect on the state, in one place for live completion and for recovery."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from anabranch_kit.errors import StoreError
from sbp_back.range_server.store.index import CopiedRow, StoredRange, StoreState
from sbp_back.range_server.store.layout.format import Record, RecordType
from sbp_back.range_server.store.segment import Segment


class Replayed(Protocol):
    """A group that is read back: its position in the segment, and that of its first body."""

    position: int
    records: list[Record]

    @property
    def body_at(self) -> int: ...


def apply_control(state: StoreState, kind: int, stream_id: int, index: int, epoch: int, base: int, lsn: int) -> None:
    """Apply a control record written at ``lsn``. Raises ``StoreError`` when it contradicts the state."""
    if kind == RecordType.CREATE:
        stored = state.ranges.get((stream_id, index))
        if stored is None:
            state.add(StoredRange(stream_id, index, epoch, base, lsn))
        elif stored.end >= 0 or stored.next_offset != stored.start:
            raise StoreError(f"range {index} of stream {stream_id} is created twice")
        else:
            restart_empty(stored, epoch, base)
    elif kind == RecordType.SEAL:
        stored = state.ranges.get((stream_id, index))
        if stored is None:
            raise StoreError(f"range {index} of stream {stream_id} is sealed but was never created")
        stored.seal(base, epoch)
    elif kind == RecordType.TRIM_STREAM:
        state.trim_stream(stream_id, base)
    elif kind == RecordType.DELETE_STREAM:
        state.delete_stream(stream_id)
    else:
        raise StoreError(f"a record has the unknown type {kind}")


def restart_empty(stored: StoredRange, epoch: int, start: int) -> None:
    """Create a range without entries again, with a higher epoch (docs/protocols/sbp.md, "Ranges of a server")."""
    stored.epoch = epoch
    stored.start = stored.min_offset = stored.next_offset = start


def apply_records(
    state: StoreState, segment: Segment, group: Replayed, adopt: Callable[[int, int], None] | None = None
) -> None:
    """Apply a group that is being replayed. Raises ``StoreError`` when a record contradicts the state; those before it
    are applied. ``adopt`` carries out an ADOPT record; it gets the server and its number.
    """
    append = int(RecordType.APPEND)  # looked up once: this loop is most of a start after a crash
    ranges = state.ranges
    stored: StoredRange | None = None
    copies = CopiedRows(segment)
    position = group.body_at
    for number, (kind, crc, stream_id, epoch, base, _timestamp, index, offsets, length) in enumerate(group.records):
        if kind == append:
            if stored is None or stored.index != index or stored.stream_id != stream_id:
                stored = ranges.get((stream_id, index))
            if stored is None or stored.end >= 0 or stored.next_offset != base or offsets < 1:
                raise StoreError(f"an entry at offset {base} does not continue range {index} of stream {stream_id}")
            if copies:
                copies.apply()
            stored.append(segment, base, base + offsets, position, length, crc)
            segment.live += length
        else:
            stored = None  # a control record may replace the range
            if kind == RecordType.RELOCATE:
                _note_copy(state, copies, group.records[number], position)
            elif kind == RecordType.ADOPT and adopt is not None:
                copies.apply()
                adopt(stream_id, base)
            else:
                copies.apply()
                lsn = segment.origin + group.position + number
                apply_control(state, kind, stream_id, index, epoch, base, lsn)
        position += length
    copies.apply()


def apply_rows(state: StoreState, segment: Segment, group: Replayed) -> None:
    """Index the entries of a group that the state already counts (it lies before the checkpoint)."""
    copies = CopiedRows(segment)
    position = group.body_at
    for number, record in enumerate(group.records):
        kind, _crc, stream_id, _epoch, _base, _timestamp, index, _offsets, length = record
        if kind == RecordType.RELOCATE:
            _note_copy(state, copies, record, position)
        elif kind == RecordType.APPEND:
            stored = state.ranges.get((stream_id, index))
            if stored is not None and segment.base + group.position + number > stored.created_lsn:
                _copy(stored, copies, record, position)
        position += length
    copies.apply()


class CopiedRows:
    """Entries that were written again, applied together as far as they follow one another: finding the place of a row
    costs more than adding it.
    """

    __slots__ = ("_rows", "_segment", "_stored")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._stored: StoredRange | None = None
        self._rows: list[CopiedRow] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, stored: StoredRange, base: int, end: int, position: int, length: int, crc: int) -> None:
        rows = self._rows
        if rows and (stored is not self._stored or rows[-1][1] != base):
            self.apply()
            rows = self._rows
        self._stored = stored
        rows.append((base, end, position, length, crc))

    def apply(self) -> None:
        """Apply all rows that were added to the state."""
        if self._stored is not None and self._rows:
            rows, self._rows = self._rows, []
            self._stored.relocate(self._segment, rows)


def _note_copy(state: StoreState, copies: CopiedRows, record: Record, position: int) -> None:
    """Add a copy. It counts only for the very range it was made for, not for a later one of the same name: the epoch of
    the record is the log position of that range's creation.
    """
    stored = state.ranges.get((record[2], record[6]))
    if stored is not None and stored.created_lsn == record[3]:
        _copy(stored, copies, record, position)


def _copy(stored: StoredRange, copies: CopiedRows, record: Record, position: int) -> None:
    _kind, crc, _stream_id, _epoch, base, _timestamp, _index, offsets, length = record
    copies.add(stored, base, base + offsets, position, length, crc)
