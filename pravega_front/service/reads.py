"""Reads of segments: answered at once, or parked at the end until there is more data (docs/protocols/pravega.md,
"Reads")."""

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
"""Least bytes of an answer, if the segment has them, however few the client asks for."""


class BeyondEnd(Exception):
    """A read beyond the end of a sealed segment. The connection is closed, as in Pravega."""


class Found:
    """Answer to a read: a command without its data, and the data."""

    __slots__ = ("answer", "data")

    def __init__(self, answer: Command, data: list[Buffer] | None = None) -> None:
        self.answer = answer
        self.data = data


class Seen(NamedTuple):
    """State of a segment that a parked read watches: when it changes, the read is tried again."""

    limit: int
    start: int
    is_open: bool
    ended: bool

    @classmethod
    def capture(cls, segment: Segment) -> Seen:
        """Return a segment's present state."""
        log = segment.log
        return cls(log.last_stable_offset, log.log_start_offset, log.is_open, segment.ended)


async def read(segment: Segment, request: ReadSegment, most: int, *, parked: bool = False) -> Found | Seen:
    """Return the answer to a read, or the state of the segment if the read has to wait at its end. ``parked``: the read
    has waited before. Raises BeyondEnd, LogError."""
    name, position = request.segment, request.offset
    most = max(LEAST, min(request.suggested_length, most))
    while True:
        seen = Seen.capture(segment)  # before the first await, during which the segment may change
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
            # An operator has skipped damage here: readers continue behind it as behind truncated bytes.
            return Found(SegmentIsTruncated(request.request_id, name, error.position, "", position))
        except OffsetOutOfRange:
            if position >= await segment.start():
                raise
            # The segment was truncated meanwhile: the next round answers that.


def missing(request: ReadSegment) -> Command:
    """Return the answer to a read of a segment that does not exist. Clients match it to their read by the offset."""
    return NoSuchSegment(request.request_id, request.segment, "", request.offset)


def stopping(request: ReadSegment) -> Found:
    """Return the answer to a parked read when the node stops."""
    return Found(SegmentRead(request.segment, request.offset, True, False, b"", request.request_id), [])


class Parked:
    """Read that waits until its segment's state differs from ``seen``. Then ``again`` is called, once."""

    __slots__ = ("_again", "_seen", "request", "segment")

    def __init__(self, segment: Segment, request: ReadSegment, seen: Seen, again: Callable[[Parked], None]) -> None:
        self.segment = segment
        self.request = request
        self._seen = seen
        self._again = again
        segment.log.add_waiter(self)

    def recheck(self) -> None:
        """Check whether the state has changed since ``seen``, before this waiter was added."""
        self.log_moved(self.segment.log)

    def log_moved(self, log: PartitionLog) -> None:
        if Seen.capture(self.segment) != self._seen:
            self.leave()
            self._again(self)

    def leave(self) -> None:
        """Stop waiting."""
        self.segment.log.remove_waiter(self)


class ParkedMark:
    """Read of a stream's watermarks that waits for the first of them. Then ``again`` is called, once."""

    __slots__ = ("_again", "leave", "request")

    def __init__(self, segments: Segments, request: ReadSegment, again: Callable[[ParkedMark], None]) -> None:
        self.request = request
        self._again = again
        self.leave = segments.wait_for_mark(request.segment, self._retry)
        """Stop waiting."""

    def recheck(self) -> None:
        """Do nothing: no change can be missed before this waiter was added."""

    def _retry(self) -> None:
        self._again(self)
