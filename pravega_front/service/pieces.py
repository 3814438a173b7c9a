"""Piecewise appends to a segment: a transaction's segment at its commit, or the source of a merge."""

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
    """Counter of events in bytes that come piece by piece; an event may span pieces."""

    __slots__ = ("_broken", "_head", "_left")

    def __init__(self) -> None:
        self._left = 0  # bytes missing of the current event
        self._head = b""  # bytes of an incomplete event head
        self._broken = False

    def feed(self, parts: list[Buffer]) -> int:
        """Return the number of events in the next piece; 0 if it begins or ends within an event, or is not made of
        events."""
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
"""Most claims of a piece. Beyond that neighbouring claims are merged, since the writer chooses how many there are."""


class Piece(Struct):
    """Consecutive appends: their bytes, and a claim (offsets, bytes) for each."""

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
    """Yield a segment's appends in order, grouped into pieces of at most ``most`` bytes and as many events as one
    append may have."""
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
                continue  # a writer's note without data
            header, data = parse_header(batch.payload), segment_bytes(batch.payload)
            # Bytes that are no events get a piece of their own. Earlier versions did so, and a commit that one of them
            # began must continue with the same pieces.
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
    decided: bool = False,
) -> int:
    """Append to a segment and wait until that is durable; return the segment's length after it, -1 if unknown.

    Raises the errors of :meth:`pravega_front.service.segment.Segment.append`.
    """
    append = partial(segment.append, part=part, hold=hold, claims=claims, admitted=admitted, decided=decided)
    length: int = await awaited(lambda done: append(parts, size, stamp, None, done))
    return length


async def marked(segment: Segment, producer_id: int, *, commit: bool = True, hold: Hold | None = None) -> int:
    """End a transaction in a segment's log and wait until that is durable; return the offset behind its marker.

    Raises the errors of :meth:`bridges.log.partition.partition_log.PartitionLog.append_marker`.
    """
    ended: Appended = await awaited(lambda done: segment.log.append_marker(producer_id, -1, commit, done, hold=hold))
    return ended.end
