"""An index as an object: everything that a log has, so that a start reads the last index and the log behind it.

The rows of a finished segment are an object of their own (``rows/…``), the bytes of an index file (docs/storage.md);
those of other segments are in the index. Positions are those in the log that an entry lies in, whatever its position in
this process.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from struct import Struct as Packing

from msgspec import Struct

from anabranch_kit.errors import StoreCorrupt
from sbp_back.errors import DecodeError
from sbp_back.range_server.object_log.objects.cache import CachedSegment, RangeSegment
from sbp_back.range_server.object_log.objects.sealed import Sealed
from sbp_back.range_server.object_log.range_objects.range_object import RangeObject
from sbp_back.range_server.store.index import Column, Run, StoreState
from sbp_back.range_server.store.layout import checkpoint as checkpoints
from sbp_back.range_server.store.layout.idxfile import SegmentIndex
from sbp_back.range_server.store.segment import Segment

_VERSION = 2
"""Version of an index that names objects of ranges. Version 1 has none; an index without any is still written as 1."""
_PLACE = Packing("<IQQI")


class SegmentFacts(Struct, array_like=True):
    """A segment in the index. ``places``: position, incarnation, number and bytes of each object. ``rows``: the object
    that has the rows; empty: they are ``inline``. ``what``: set if the segment is the object of a range and no part of
    a log; ``places`` are then the checksums of its parts.
    """

    log: str
    base: int
    size: int
    used: int
    places: bytes
    rows: str
    inline: bytes
    what: RangeObject | None = None


class Index(Struct, array_like=True):
    """``state``: ranges and streams, as in a checkpoint (docs/storage.md). ``adopted``: the logs of range servers."""

    state: bytes
    adopted: dict[int, str]
    segments: list[SegmentFacts]


_SEALED = Sealed(Index, "the index", _VERSION)
decode_index_object = _SEALED.decode


def encode_index_object(index: Index) -> bytes:
    """Encode an index as the bytes of its object."""
    return _SEALED.encode(index, _VERSION if any(facts.what is not None for facts in index.segments) else 1)


def pack_places(source: CachedSegment, used: int) -> bytes:
    """Encode the places of a segment's objects below position ``used``; for the object of a range, the checksums of its
    parts.
    """
    if isinstance(source, RangeSegment):
        return source.crcs.tobytes()
    return b"".join(
        [_PLACE.pack(p.position, p.incarnation, p.number, p.size) for p in source.places if p.position < used]
    )


def unpack_crcs(packed: bytes) -> Sequence[int]:
    """Decode the checksums of the parts of a range's object. Raises DecodeError."""
    if len(packed) % 4:
        raise DecodeError("the checksums of an object of a range are cut short")
    return memoryview(packed).cast("I")


def unpack_places(source: CachedSegment, packed: bytes) -> None:
    """Decode the places of a segment's objects into ``source``. Raises DecodeError."""
    if len(packed) % _PLACE.size:
        raise DecodeError("the places of objects are cut short")
    for place in _PLACE.iter_unpack(packed):
        source.add(*place)


def place_rows(state: StoreState, segment: Segment, rows: SegmentIndex) -> None:
    """Give the ranges of ``state`` the rows of a segment that can still be read."""
    for entry in rows.runs:
        stored = state.ranges.get((entry.stream_id, entry.range_index))
        if stored is None or not stored.holds(entry.first, entry.end):
            continue
        bases, meta = rows.columns(entry)
        run = Run(stored, segment, entry.first, entry.end, bases, meta, entry.live)
        first = run.row_of(stored.min_offset) if run.first < stored.min_offset else 0
        limit = stored.visible_end
        last = len(run.bases) if run.end <= limit else bisect_left(run.bases, limit)
        if (first, last) != (0, len(run.bases)):
            run = run.slice(first, last)
        stored.place(run)


def restore_state(index: Index) -> StoreState:
    """Return ranges and streams, without rows. Raises DecodeError."""
    return checkpoints.restore(checkpoints.decode(index.state))


def check_whole(state: StoreState, where: str) -> None:
    """Check that rows cover all offsets of every range. Raises ``StoreCorrupt``."""
    for stored in state.ranges.values():
        for first, end in stored.gaps():
            raise StoreCorrupt(
                f"acknowledged data is missing: offsets {first} to {end - 1} of range {stored.index} of stream"
                f" {stored.stream_id} are in no object that {where} knows"
            )


def copied(column: Column) -> Column:
    """Copy a column that may still grow."""
    return column[:] if isinstance(column, array) else column
