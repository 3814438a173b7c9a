"""What a record does to the state: one place for live completion and for recovery."""

from __future__ import annotations

from sbp_back.errors import StoreError
from sbp_back.range_server.store.format import Record, RecordType
from sbp_back.range_server.store.index import StoredRange, StoreState
from sbp_back.range_server.store.segment import Segment


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
    """A range without entries may be created again with a higher epoch (reference/sbp.md, section 2.7)."""
    stored.epoch = epoch
    stored.start = stored.min_offset = stored.next_offset = start


def apply_records(state: StoreState, segment: Segment, records: list[Record], lsn: int) -> None:
    """Apply the records of a group at ``lsn`` that is being replayed. Raises ``StoreError`` when one contradicts the
    state; those before it are applied."""
    append = int(RecordType.APPEND)  # looked up once: this loop is most of a start after a crash
    ranges = state.ranges
    for number, record in enumerate(records):
        kind, crc, stream_id, epoch, base, _timestamp, index, offsets, length, position = record
        if kind == append:
            stored = ranges.get((stream_id, index))
            if stored is None or stored.end >= 0 or stored.next_offset != base or offsets < 1:
                raise StoreError(f"an entry at offset {base} does not continue range {index} of stream {stream_id}")
            stored.append(segment, base, base + offsets, position, length, crc)
            segment.live += length
        elif kind == RecordType.RELOCATE:
            apply_copy(state, segment, record, epoch)
        else:
            apply_control(state, kind, stream_id, index, epoch, base, lsn + number)


def apply_row(state: StoreState, segment: Segment, record: Record, lsn: int) -> None:
    """Index an entry the state already counts (it lies before the checkpoint)."""
    if record.type == RecordType.RELOCATE:
        apply_copy(state, segment, record, record.epoch)
    elif record.type == RecordType.APPEND:
        stored = state.ranges.get((record.stream_id, record.range_index))
        if stored is not None and lsn > stored.created_lsn:
            _copy(stored, segment, record)


def apply_copy(state: StoreState, segment: Segment, record: Record, created_lsn: int) -> None:
    """A copy counts only for the very range it was made for, not for a later one of the same name."""
    stored = state.ranges.get((record.stream_id, record.range_index))
    if stored is not None and stored.created_lsn == created_lsn:
        _copy(stored, segment, record)


def _copy(stored: StoredRange, segment: Segment, record: Record) -> None:
    base = record.base_offset
    stored.relocate(segment, base, base + record.offsets, record.position, record.length, record.crc)
