"""Writers of one connection and their appends: blocks, block ends, conditional appends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind
from bridges.errors import LogDeleted
from bridges.formats.producer import LedgerKind
from bridges.net.quotas import turn
from pravega_front.access import Refused
from pravega_front.names import parse_segment
from pravega_front.service.appends import Appender, Appending, Protest
from pravega_front.service.segments import NotPossible, SegmentMissing
from pravega_front.session.useful_waits import UsefulWaits
from pravega_front.wire import commands as wire
from pravega_front.wire.blocks import appended, parse_block, parse_block_end
from pravega_front.wire.fields import Buffer, WireError

if TYPE_CHECKING:
    from bridges.net.connection import Slot
    from pravega_front.service.segment import Segment
    from pravega_front.session.connection import Connection

BLOCK, BLOCK_END = wire.AppendBlock.code, wire.AppendBlockEnd.code
_WRITER_BYTES = 1024
"""Memory counted for a writer that was set up."""
_FEW_WRITERS = 64
"""Writers of a connection among which those of deleted segments are not looked for."""


class Appends:
    """Writers of one connection, by id."""

    __slots__ = ("_block", "_connection", "_looked_at", "_waits", "gathering", "writers")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.writers: dict[bytes, Appender] = {}
        # How many writers were left when those of deleted segments were last looked for.
        self._looked_at = _FEW_WRITERS
        self.gathering: dict[Appender, None] = {}
        """Writers that have gathered appends in this turn of the event loop."""
        # An unfinished block: its writer, its bytes, the size of its frame, and when it came.
        self._block: tuple[bytes, Buffer, int, float] | None = None
        self._waits = UsefulWaits(connection.server.turn)

    @property
    def block_since(self) -> float | None:
        """Return the arrival time of an unfinished block (monotonic clock); None if there is none."""
        return None if self._block is None else self._block[3]

    @property
    def block_bytes(self) -> int:
        """Return the size of an unfinished block's frame in bytes; 0 if there is none."""
        return 0 if self._block is None else self._block[2]

    async def set_up(self, request: wire.SetupAppend, until: float | None) -> wire.Command | None:
        """Set up a writer, whose token is valid ``until`` (wall clock, s; None: for ever). Raises Protest, LogError."""
        connection = self._connection
        server = connection.server
        quota = server.quotas.produce
        if quota.in_force:
            # A client that has used up its quota must not evade it with a new connection.
            await self._waits.on(turn(quota.bucket(connection.principal.name, None)))
        segment = await server.segments.here(request.segment) or await self._mark(request.segment)
        if segment is None:
            return wire.NoSuchSegment(request.request_id, request.segment, "", -1)
        if len(self.writers) >= 2 * self._looked_at:
            self._drop_useless()
        if request.writer_id not in self.writers and len(self.writers) >= server.settings.writers_per_connection:
            raise Protest("too many writers are set up on one connection")
        try:
            if not segment.is_counted:
                await self._waits.on(segment.length())
            last = await _last_number(segment, request.writer_id)
            await segment.length()  # from now on the log keeps it up to date
        except LogDeleted:
            return wire.NoSuchSegment(request.request_id, request.segment, "", -1)
        traffic = None if segment.loose else server.metrics.topic(segment.topic)
        if connection.closed:
            return None
        connection.writer_id = request.writer_id
        if request.writer_id not in self.writers:
            connection.account.take(Kind.REQUESTS, _WRITER_BYTES)
        self.writers[request.writer_id] = Appender(
            request.writer_id,
            segment,
            last,
            traffic,
            self._counter(request.segment),
            until,
            send=connection.send,
            begun=self._begun,
            over=self._over,
            broken=lambda error: connection.close_slowly(error, segment.name),
            gone=self._gone,
            host_of=connection.host_of,
        )
        number = wire.NO_NUMBER if last is None else last
        return wire.AppendSetup(request.request_id, request.segment, request.writer_id, number)

    def _counter(self, name: str) -> Callable[[int, int], None] | None:
        """Return the function that counts events and bytes of a segment's stream; None for a segment of no stream.

        What is written in a transaction, or as a large event, is written to the stream.
        """
        parsed = parse_segment(name)
        stream = None if parsed is None else self._connection.server.segments.find(str(parsed._replace(suffix="")))
        if stream is None or stream.loose:
            return None
        count = partial(self._connection.client.wrote, stream.topic, stream.partition)
        count(0, 0)
        return count

    async def _mark(self, name: str) -> Segment | None:
        """Return a stream's watermark segment, creating it if missing: Java's readers set up a writer for it, though
        they never write."""
        topic = self._connection.server.segments.marked(name)
        try:
            return None if topic is None else await self._connection.server.segments.make_mark(topic)
        except (NotPossible, SegmentMissing):
            return None

    def start(self, code: int, frame: bytes | bytearray, arrived: float) -> None:
        """Handle a block or a block end, which most frames are, with as little work as possible."""
        try:
            if code == BLOCK:
                self._begin_block(frame, arrived)
            else:
                self._end_block(frame, arrived)
        except (Protest, WireError) as error:
            self._connection.release(len(frame))
            self._connection.protest(error, command=code, bytes=len(frame))

    def conditional(self, slot: Slot, command: wire.ConditionalAppend | wire.ConditionalBlockEnd, data: Buffer) -> None:
        """Append if the segment ends where the writer expects. Raises Protest, Refused."""
        if self._block is not None:
            raise Protest("a conditional append came before the end of an append block")
        writer = self._writer(command.writer_id)
        if self._expired(writer):
            raise Refused("the token of a writer has expired", True)
        parts = [data] if len(data) else []
        held, slot._size = slot._size, 0  # counted with the append from now on
        try:
            writer.append_at(
                parts, command.event_number, command.request_id, held, slot.arrived, command.expected_offset
            )
        except Protest:
            slot._size = held
            raise
        self._charge(held)
        self._connection.finish(slot)

    def _charge(self, size: int) -> None:
        quota = self._connection.server.quotas.produce
        if quota.in_force:
            self._connection.charge(quota, size)

    def flush(self) -> None:
        """Hand the gathered appends to the log."""
        gathering, self.gathering = self.gathering, {}
        for writer in gathering:
            writer.flush()

    def end(self) -> None:
        """Drop all writers: the connection has ended."""
        self._waits.end()
        for writer in self.writers.values():
            writer.ended = True
        self._connection.account.give(Kind.REQUESTS, _WRITER_BYTES * len(self.writers))
        self.writers.clear()
        if self._block is not None:
            self._connection.release(self._block[2])
            self._block = None

    def _writer(self, writer_id: bytes) -> Appender:
        writer = self.writers.get(writer_id)
        if writer is None:
            raise Protest("an append of a writer that was not set up")
        return writer

    def _drop_useless(self) -> None:
        """Drop writers whose segments were deleted: clients set up one for each segment of each transaction, and keep
        their connections."""
        for writer in [one for one in self.writers.values() if one.is_useless]:
            self._gone(writer)
        self._looked_at = max(_FEW_WRITERS, len(self.writers))

    def _gone(self, writer: Appender) -> None:
        if self.writers.get(writer.writer_id) is writer:
            del self.writers[writer.writer_id]
            self._connection.account.give(Kind.REQUESTS, _WRITER_BYTES)

    def _expired(self, writer: Appender) -> bool:
        return writer.until is not None and self._connection.server.access.expired(writer.until)

    def _begin_block(self, frame: bytes | bytearray, arrived: float) -> None:
        if self._block is not None:
            raise Protest("a block begins within another")
        writer_id, data = parse_block(frame)
        self._writer(writer_id)
        self._block = (writer_id, data, len(frame), arrived)

    def _end_block(self, frame: bytes | bytearray, arrived: float) -> None:
        block, self._block = self._block, None
        held = len(frame)
        data: Buffer | None = None
        try:
            end = parse_block_end(frame)
            if block is not None:
                writer_id, data, size, arrived = block
                held += size
                if writer_id != end.writer_id:
                    raise Protest("a block is ended by another writer")
            writer = self._writer(end.writer_id)
            parts = appended(data, end)
            if self._expired(writer):
                self._connection.release(held)
                refused = Refused("the token of a writer has expired", True)
                self._connection.refuse(end.request_id, refused, "AppendBlockEnd")
                return
            self.gathering[writer] = None
            writer.append(parts, end.last_event_number, end.num_events, end.request_id, held, arrived)
            self._charge(held)
        except (Protest, WireError):
            self._connection.release(held - len(frame))  # the block's bytes; the caller releases the frame's
            raise

    def _begun(self, append: Appending) -> None:
        append.slot = self._connection.slot(0, append.arrived, retained=True)

    def _over(self, append: Appending) -> None:
        connection = self._connection
        slot, held = append.slot, append.held
        connection.server.appends.many(append.appends, monotonic() - append.arrived, held)
        slot._size = held
        if connection.closed and not slot._done:
            # The connection has dropped its slots already, but not these bytes.
            slot._done = True
            slot._size = 0
            connection.release(held)
            return
        connection.finish(slot)


async def _last_number(segment: Segment, writer_id: bytes) -> int | None:
    """Return the number of a writer's last durable event; None if there is none. Raises LogError."""
    log = segment.log
    while True:
        await log.ready()
        last = log.last(LedgerKind.EVENT_NUMBER, writer_id)
        if last is None:
            return None
        if last.base_offset < log.high_watermark:
            return last.number
        await segment.passed(last.base_offset)
