"""Reads of segments: at once, or parked at the end until something comes (docs/protocols/pravega.md, "Reads")."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bridges.errors import LogDeleted, LogError, OffsetOutOfRange, PositionLost
from pravega_front.service.segment import Segment
from pravega_front.wire.commands import (
    Command,
    NoSuchSegment,
    ReadSegment,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentRead,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridges.formats.records import Buffer
    from bridges.log.partition.partition_log import PartitionLog
    from pravega_front.service.segments import Segments

LEAST = 8
"""Bytes that a read is answered with at least, if there are so many, however few were asked for."""


class BeyondEnd(Exception):
    """A read beyond the end of a sealed segment: the connection is closed, as Pravega does."""


class Found:
    """The answer to a read: a command, and the bytes that it leaves out."""

    __slots__ = ("answer", "data")

    def __init__(self, answer: Command, data: list[Buffer] | None = None) -> None:
        self.answer = answer
        self.data = data


class Seen(NamedTuple):
    """What a read that has to wait goes by: when it is another, there may be something to tell."""

    limit: int
    start: int
    is_open: bool
    ended: bool

    @classmethod
    def of(cls, segment: Segment) -> Seen:
        """As it is now."""
        log = segment.log
        return cls(log.last_stable_offset, log.log_start_offset, log.is_open, segment.ended)


async def read(segment: Segment, request: ReadSegment, most: int, *, parked: bool = False) -> Found | Seen:
    """The answer to a read, or what was known when it was found that it has to wait at the end. ``parked``: it has
    waited.

    Raises BeyondEnd, LogError.
    """
    name, position = request.segment, request.offset
    most = max(LEAST, min(request.suggested_length, most))
    while True:
        seen = Seen.of(segment)  # before anything is waited for: it may move meanwhile
        try:
            start = await segment.start_for(position)
            ended = segment.ended
            end = await segment.length()
            if position < start:
                answer = SegmentIsTruncated(request.request_id, name, start, "", position)
                return Found(answer)
            if position > end and ended:
                raise BeyondEnd(f"a read at {position} of a sealed segment of {end} bytes")
            if position >= end:
                if not ended:
                    return seen
                if parked:
                    return Found(SegmentIsSealed(request.request_id, name, "", position))
                return Found(SegmentRead(name, position, False, True, b"", request.request_id), [])
            wanted = min(most, end - position)
            data = await segment.read(position, wanted)
            size = sum(map(len, data))
            if not size:
                raise LogError(f"{segment.name} has nothing at {position}, below its end {end}")
            past = position + size >= end and size < most
            return Found(SegmentRead(name, position, past and not ended, past and ended, b"", request.request_id), data)
        except LogDeleted:
            return Found(missing(request))
        except PositionLost as error:
            # Somebody has declared it lost: readers go on behind it as behind what was truncated.
            return Found(SegmentIsTruncated(request.request_id, name, error.position, "", position))
        except OffsetOutOfRange:
            if position >= await segment.start():
                raise
            # It was trimmed meanwhile: that is what is answered.


def missing(request: ReadSegment) -> Command:
    """The answer to a read of a segment there is not: clients find their read by its offset."""
    return NoSuchSegment(request.request_id, request.segment, "", request.offset)


def stopping(request: ReadSegment) -> Found:
    """The answer to a parked read when the node stops."""
    return Found(SegmentRead(request.segment, request.offset, True, False, b"", request.request_id), [])


class Parked:
    """A read that waits for its segment to be otherwise than it was ``seen``: ``again`` is called then, once."""

    __slots__ = ("_again", "_seen", "request", "segment")

    def __init__(self, segment: Segment, request: ReadSegment, seen: Seen, again: Callable[[Parked], None]) -> None:
        self.segment = segment
        self.request = request
        self._seen = seen
        self._again = again
        segment.log.add_waiter(self)

    def look(self) -> None:
        """Look whether it has moved since, as it may have before anybody waited."""
        self.log_moved(self.segment.log)

    def log_moved(self, log: PartitionLog) -> None:
        if Seen.of(self.segment) != self._seen:
            self.leave()
            self._again(self)

    def leave(self) -> None:
        """Wait no more."""
        self.segment.log.remove_waiter(self)


class ParkedMark:
    """A read of a stream's watermarks that waits for the first of them: ``again`` is called then, once."""

    __slots__ = ("_again", "leave", "request")

    def __init__(self, segments: Segments, request: ReadSegment, again: Callable[[ParkedMark], None]) -> None:
        self.request = request
        self._again = again
        self.leave = segments.wait_for_mark(request.segment, self._made)
        """Wait no more."""

    def look(self) -> None:
        """Nothing can have happened before anybody waited."""

    def _made(self) -> None:
        self._again(self)
