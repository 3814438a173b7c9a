"""What is appended to a segment piece by piece: a transaction's part of it, or a segment that is merged."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from msgspec import Struct, field

from anabranch_kit.run.awaited import awaited
from bridges.errors import LogError
from bridges.formats import FormatId
from bridges.formats.pravega import EVENT_HEAD, Shape, claims_of, parse_header, segment_bytes
from bridges.formats.records import Buffer

if TYPE_CHECKING:
    from bridges.formats.producer import EventStamp, InTransaction
    from bridges.log.interfaces import Appended
    from bridges.log.partition.append_path import Hold
    from pravega_front.service.segment import Segment

_HEAD = struct.Struct(">iI")


class EventCount:
    """Counts the events in bytes that come piece by piece; an event may go over many."""

    __slots__ = ("_broken", "_head", "_left")

    def __init__(self) -> None:
        self._left = 0  # bytes of the event under way that are still to come
        self._head = b""  # of an event whose head is not complete
        self._broken = False

    def feed(self, parts: list[Buffer]) -> int:
        """How many whole events the next piece is; 0 if it begins or ends within one, or they are none."""
        begins = not self._left and not self._head
        count = 0
        for part in parts:
            if self._broken:
                return 0
            count += self._part(memoryview(part))
        whole = begins and not self._left and not self._head and not self._broken
        return count if whole else 0

    def _part(self, data: memoryview) -> int:
        at, end, count = 0, len(data), 0
        while at < end:
            if self._left:
                taken = min(self._left, end - at)
            else:
                taken = min(EVENT_HEAD - len(self._head), end - at)
                self._head += bytes(data[at : at + taken])
                if len(self._head) == EVENT_HEAD:
                    kind, self._left = _HEAD.unpack(self._head)
                    self._head = b""
                    if kind:
                        self._broken = True
                        return 0
                    count += not self._left
                at += taken
                continue
            self._left -= taken
            at += taken
            count += not self._left
        return count


MOST_CLAIMS = 4096
"""Of how many appends a piece knows each by itself: beyond them neighbours are taken together, as whoever writes
chooses how many they are."""


class Piece(Struct):
    """Appends one behind another: their bytes, and of each the offsets it has and its size in bytes."""

    parts: list[Buffer] = field(default_factory=list)
    size: int = 0
    claims: list[tuple[int, int]] = field(default_factory=list)
    events: int = 0

    def add(self, parts: Iterable[Buffer], claims: Sequence[tuple[int, int]]) -> None:
        """Add appends at the end."""
        self.parts += parts
        self.claims += claims
        for events, size in claims:
            self.events += events
            self.size += size
        if len(self.claims) > MOST_CLAIMS:
            pairs = zip_longest(self.claims[::2], self.claims[1::2], fillvalue=(0, 0))
            self.claims = [(one + other, size + more) for (one, size), (other, more) in pairs]


async def appends_of(segment: Segment, most: int) -> AsyncIterator[Piece]:
    """A segment's appends in order, those together that have at most ``most`` bytes and as many events as one append
    may have."""
    piece = Piece()
    alone = False
    offset, end = 0, segment.log.high_watermark
    while offset < end:
        batches = await segment.log.read_committed(offset, most)
        if not batches:
            raise LogError(f"{segment.name} has nothing at offset {offset}, below its end {end}")
        for batch in batches:
            offset = batch.end_offset
            if batch.flags != FormatId.PRAVEGA:
                continue  # a note of a writer that has appended nothing
            header, data = parse_header(batch.payload), segment_bytes(batch.payload)
            # What was no events lay in a piece of its own always: a commit that an earlier version has begun goes on
            # behind the same pieces.
            alone, before = header.shape == Shape.BYTES, alone
            many = piece.events + header.records > segment.most_events
            if piece.parts and (piece.size + len(data) > most or many or alone or before):
                yield piece
                piece = Piece()
            piece.add((data,), claims_of(header, batch.payload))
    if piece.parts:
        yield piece


async def appended(
    segment: Segment,
    parts: list[Buffer],
    size: int,
    stamp: EventStamp,
    part: InTransaction | None = None,
    hold: Hold | None = None,
    claims: Sequence[tuple[int, int]] = (),
    *,
    admitted: bool = False,
) -> int:
    """Append to a segment, and return when that is durable: the segment's length behind it, -1 if it is not known.

    Raises the errors of :meth:`pravega_front.service.segment.Segment.append`.
    """
    append = partial(segment.append, part=part, hold=hold, claims=claims, admitted=admitted)
    length: int = await awaited(lambda done: append(parts, size, stamp, None, done))
    return length


async def marked(segment: Segment, producer_id: int, *, commit: bool = True, hold: Hold | None = None) -> int:
    """End a transaction of a segment's log, and return when that is durable: the offset behind its marker.

    Raises the errors of :meth:`bridges.log.partition.partition_log.PartitionLog.append_marker`.
    """
    ended: Appended = await awaited(lambda done: segment.log.append_marker(producer_id, -1, commit, done, hold=hold))
    return ended.end
