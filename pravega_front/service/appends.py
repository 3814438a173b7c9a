"""Appends of one writer on one connection: in order, each answered when it is durable (reference/pravega.md, 2.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from bridges.errors import AppendConditionFailed, EventNumberConflict, LogDeleted, LogError, PartitionSealed
from bridges.formats.producer import EventStamp
from bridges.formats.records import Buffer
from pravega_front.service.segment import Segment
from pravega_front.wire.commands import (
    NO_NUMBER,
    Command,
    ConditionalCheckFailed,
    DataAppended,
    InvalidEventNumber,
    NoSuchSegment,
    SegmentIsSealed,
)

if TYPE_CHECKING:
    from bridges.metrics import TopicTraffic

_NEW = -1
"""What the ledger calls the last number of a writer that has written nothing."""


class Protest(Exception):
    """The writer broke the protocol's rules: its connection must be closed."""


class _Append:
    __slots__ = ("_on_end", "ended", "error", "events", "length", "number", "request_id", "size")

    def __init__(self, number: int, events: int, size: int, request_id: int, on_end: Callable[[], None]) -> None:
        self.number = number
        self.events = events
        self.size = size
        self.request_id = request_id
        self.ended = False
        self.length = -1
        self.error: LogError | None = None
        self._on_end = on_end

    def end(self) -> None:
        self._on_end()


class Appender:
    """A writer that was set up on a connection. ``send`` takes answers; ``broken`` is called, with why, when the
    connection is to be closed; ``gone`` when the writer has to be set up anew."""

    __slots__ = (
        "_acknowledged",
        "_broken",
        "_gone",
        "_in_flight",
        "_last",
        "_send",
        "_traffic",
        "ended",
        "segment",
        "writer_id",
    )

    def __init__(
        self,
        writer_id: bytes,
        segment: Segment,
        last: int | None,
        traffic: TopicTraffic | None,
        send: Callable[[Command], None],
        broken: Callable[[str], None],
        gone: Callable[[Appender], None],
    ) -> None:
        self.writer_id = writer_id
        self.segment = segment
        self.ended = False
        self._traffic = traffic
        self._send = send
        self._broken = broken
        self._gone = gone
        # The number of the last append that was handed over, and of the last one that was acknowledged.
        self._last = _NEW if last is None else last
        self._acknowledged = NO_NUMBER if last is None else last
        self._in_flight: deque[_Append] = deque()

    def append(
        self,
        parts: list[Buffer],
        number: int,
        events: int,
        request_id: int,
        on_end: Callable[[], None],
        expected: int | None = None,
    ) -> None:
        """Append ``parts``, whose last event has ``number``; ``on_end`` is called when they are held no more.

        Raises Protest, and does not call it then.
        """
        if self.ended:
            raise Protest("an append of a writer that has to be set up anew")
        if number < self._last or number < 0:
            raise Protest(f"event number {number} after {self._last}")
        size = sum(map(len, parts))
        append = _Append(number, events, size, request_id, on_end)
        stamp = EventStamp(self.writer_id, number, events, self._last)
        before, self._last = self._last, number
        self._in_flight.append(append)

        def done(length: int, error: LogError | None) -> None:
            append.length, append.error, append.ended = length, error, True
            if error is not None and self._last == number:
                self._last = before  # it is the writer's to give again
            self._settle()

        if self.segment.loose_sealed:
            done(-1, PartitionSealed(self.segment.name, ()))
            return
        self.segment.append(parts, size, stamp, expected, done)

    def _settle(self) -> None:
        """Answer what has ended, in order: an error waits for the answers to all appends before its own."""
        acknowledged: _Append | None = None
        in_flight = self._in_flight
        while in_flight and in_flight[0].ended and in_flight[0].error is None:
            acknowledged = in_flight.popleft()
            if self._traffic is not None:
                self._traffic.appended(1, acknowledged.events, acknowledged.size)
            acknowledged.end()
        if acknowledged is not None and not self.ended:
            previous, self._acknowledged = self._acknowledged, acknowledged.number
            self._send(
                DataAppended(
                    self.writer_id, acknowledged.number, previous, acknowledged.request_id, acknowledged.length
                )
            )
        if in_flight and in_flight[0].ended and not self.ended:
            failed = in_flight.popleft()
            assert failed.error is not None
            failed.end()
            self._refuse(failed, failed.error)
            if in_flight:
                self._settle()
        elif self.ended:
            while in_flight and in_flight[0].ended:
                in_flight.popleft().end()

    def _refuse(self, append: _Append, error: LogError) -> None:
        if isinstance(error, AppendConditionFailed):
            self._send(ConditionalCheckFailed(self.writer_id, append.number, append.request_id))
            return
        self.ended = True
        self._gone(self)
        name = self.segment.name
        if isinstance(error, PartitionSealed):
            self._send(SegmentIsSealed(append.request_id, name, "", append.number))
        elif isinstance(error, LogDeleted):
            self._send(NoSuchSegment(append.request_id, name, "", -1))
        elif isinstance(error, EventNumberConflict):
            self._send(InvalidEventNumber(self.writer_id, append.request_id, "", append.number))
            self._broken(f"{error}")
        else:
            self._broken(f"an append cannot be stored: {error}")
