"""Appends of one writer on one connection: in order, each answered when it is durable (docs/protocols/pravega.md,
"Appends").

Appends that arrive in one turn of the event loop are gathered into one batch, whose number is that of its last event. A
batch costs the log as much as ten thousand bytes, and clients that get quick answers send small blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from bridges.errors import AppendConditionFailed, EventNumberConflict, LogDeleted, LogError, NotOwner, PartitionSealed
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
    WrongHost,
)

if TYPE_CHECKING:
    from bridges.metrics import TopicTraffic

_log = structlog.get_logger(__name__)

_NEW = -1
"""Last number in the ledger of a writer that has written nothing."""
_GATHERED_BYTES = 1024 * 1024
"""Most bytes gathered into one batch; a larger append is a batch of its own."""
_GATHERED = 4096
"""Most appends gathered into one batch: each has its claim there."""


class Protest(Exception):
    """Violation of the protocol by the client: the connection must be closed."""


class Appending:
    """Appends of a writer that become one batch: ``appends`` of them, which hold ``held`` bytes of memory since
    ``arrived`` (monotonic clock)."""

    __slots__ = (
        "appends",
        "arrived",
        "before",
        "claims",
        "ended",
        "error",
        "events",
        "first",
        "held",
        "length",
        "number",
        "parts",
        "request_id",
        "size",
        "slot",
    )

    def __init__(self, before: int, first: int, arrived: float) -> None:
        self.arrived = arrived
        self.before = before
        """The writer's last number before this batch."""
        self.first = first
        """Number of the first append."""
        self.number = first
        self.appends = 0
        self.claims: list[tuple[int, int]] = []
        """For each append (events according to the writer, bytes)."""
        self.events = 0
        self.size = 0
        self.held = 0
        self.request_id = 0
        self.parts: list[Buffer] = []
        self.slot: Any = None
        """The connection's slot for these appends."""
        self.ended = False
        self.length = -1
        self.error: LogError | None = None


class Appender:
    """Writer that was set up on a connection, with a token that is valid ``until`` (wall clock, s; None: for ever).

    ``count`` counts durable events and bytes as the client's. ``send`` takes answers. ``begun`` is called with new
    appends, ``over`` when they are decided and hold no memory any more. ``broken`` is called with an error when the
    connection must be closed, ``gone`` when the writer must be set up again. ``host_of`` returns the address of the
    owner that a NotOwner names.
    """

    __slots__ = (
        "_acknowledged",
        "_begun",
        "_broken",
        "_count",
        "_gathered",
        "_gone",
        "_host_of",
        "_in_flight",
        "_last",
        "_over",
        "_send",
        "_traffic",
        "ended",
        "segment",
        "until",
        "writer_id",
    )

    def __init__(
        self,
        writer_id: bytes,
        segment: Segment,
        last: int | None,
        traffic: TopicTraffic | None,
        count: Callable[[int, int], None] | None,
        until: float | None,
        *,
        send: Callable[[Command], None],
        begun: Callable[[Appending], None],
        over: Callable[[Appending], None],
        broken: Callable[[LogError], None],
        gone: Callable[[Appender], None],
        host_of: Callable[[NotOwner], str],
    ) -> None:
        self.writer_id = writer_id
        self.segment = segment
        self.until = until
        self.ended = False
        self._traffic = traffic
        self._count = count
        self._send = send
        self._begun = begun
        self._over = over
        self._broken = broken
        self._gone = gone
        self._host_of = host_of
        # Numbers of the last append that was taken, and of the last one that was acknowledged.
        self._last = _NEW if last is None else last
        self._acknowledged = NO_NUMBER if last is None else last
        self._gathered: Appending | None = None
        self._in_flight: deque[Appending] = deque()

    @property
    def is_useless(self) -> bool:
        """Return whether the segment was deleted and no append waits for its answer."""
        return self.segment.log.is_deleted and not self._in_flight and self._gathered is None

    def append(self, parts: list[Buffer], number: int, events: int, request_id: int, held: int, arrived: float) -> None:
        """Append ``parts``, whose last event has ``number``, together with other appends before :meth:`flush`. Raises
        Protest."""
        last = self._last
        self._check(number)
        size = 0
        for part in parts:
            size += len(part)
        gathered = self._gathered
        if gathered is not None and not (
            number > last
            and gathered.appends < _GATHERED
            and gathered.size + size <= _GATHERED_BYTES
            and gathered.events + events <= self.segment.most_events
        ):
            self.flush()
            gathered, last = None, self._last
        if gathered is None:
            gathered = self._gathered = Appending(last, number, arrived)
            self._begun(gathered)
        gathered.parts += parts
        gathered.claims.append((events, size))
        gathered.size += size
        gathered.events += events
        gathered.appends += 1
        gathered.held += held
        gathered.number = self._last = number
        gathered.request_id = request_id

    def append_at(
        self, parts: list[Buffer], number: int, request_id: int, held: int, arrived: float, expected: int
    ) -> None:
        """Append ``parts`` if the segment ends at ``expected``. Raises Protest."""
        self._check(number)
        self.flush()
        # A byte stream has no events; the writer's number counts the append.
        appending = Appending(self._last, number, arrived)
        appending.parts, appending.size = parts, sum(map(len, parts))
        appending.events = appending.appends = 1
        appending.held, appending.request_id = held, request_id
        self._last = number
        self._begun(appending)
        self._hand_over(appending, expected)

    def _check(self, number: int) -> None:
        if self.ended:
            raise Protest("an append of a writer that has to be set up anew")
        if number < self._last or number < 0:
            raise Protest(f"event number {number} after {self._last}")

    def flush(self) -> None:
        """Hand the gathered appends to the log."""
        gathered, self._gathered = self._gathered, None
        if gathered is not None:
            self._hand_over(gathered, None)

    def _hand_over(self, appending: Appending, expected: int | None) -> None:
        parts, appending.parts = appending.parts, []
        claims, appending.claims = appending.claims, []
        self._in_flight.append(appending)

        def done(length: int, error: LogError | None) -> None:
            appending.length, appending.error, appending.ended = length, error, True
            if error is not None and self._last == appending.number:
                self._last = appending.before  # the writer may use the number again
            self._settle()

        if self.segment.loose_sealed:
            done(-1, PartitionSealed(self.segment.name, ()))
            return
        stamp = EventStamp(self.writer_id, appending.number, appending.events, appending.before)
        self.segment.append(parts, appending.size, stamp, expected, done, claims=claims)

    def _settle(self) -> None:
        """Answer finished appends in order: an error waits until all appends before it are answered."""
        acknowledged: Appending | None = None
        in_flight = self._in_flight
        while in_flight and in_flight[0].ended and in_flight[0].error is None:
            acknowledged = in_flight.popleft()
            if self._traffic is not None:
                self._traffic.appended(1, acknowledged.events, acknowledged.size)
            if self._count is not None:
                self._count(acknowledged.events, acknowledged.size)
            self._over(acknowledged)
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
            self._over(failed)
            self._refuse(failed, failed.error)
            if in_flight:
                self._settle()
        elif self.ended:
            while in_flight and in_flight[0].ended:
                self._over(in_flight.popleft())

    def _refuse(self, append: Appending, error: LogError) -> None:
        if isinstance(error, AppendConditionFailed):
            self._send(ConditionalCheckFailed(self.writer_id, append.number, append.request_id))
            return
        self.ended = True
        self._gone(self)
        name = self.segment.name
        if isinstance(error, PartitionSealed):
            self._send(SegmentIsSealed(append.request_id, name, "", append.first))
        elif not error.retriable and not isinstance(error, NotOwner | LogDeleted | EventNumberConflict):
            # SegmentIsSealed is the only answer that ends a write with an error: clients look for successors, find
            # none, and raise. If the connection were closed instead, they would repeat the append for ever.
            _log.warning("an append is refused", segment=name, topic=self.segment.topic, reason=str(error))
            self._send(SegmentIsSealed(append.request_id, name, "", append.first))
        elif isinstance(error, NotOwner):
            self._send(WrongHost(append.request_id, name, self._host_of(error)))
        elif isinstance(error, LogDeleted):
            self._send(NoSuchSegment(append.request_id, name, "", -1))
        elif isinstance(error, EventNumberConflict):
            self._send(InvalidEventNumber(self.writer_id, append.request_id, "", append.first))
            self._broken(error)
        else:
            self._broken(error)
