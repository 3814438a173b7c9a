"""One connection to the segment store: frames in, answers out as they come.

Answers do not wait for one another: a read may be parked for hours while appends and other reads go on over the same
connection. Those of one writer are in the order of its appends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from bridges.errors import LogDeleted, LogError
from bridges.formats.producer import LedgerKind
from bridges.net import connection as net
from bridges.net.budget import Kind
from bridges.net.outbox import joined
from pravega_front.access import Refused
from pravega_front.service.appends import Appender, Appending, Protest
from pravega_front.service.reads import BeyondEnd, Found, Parked, ParkedMark, missing, read, stopping
from pravega_front.wire import commands as wire
from pravega_front.wire.blocks import appended, parse_block, parse_block_end
from pravega_front.wire.fields import Buffer, WireError
from pravega_front.wire.frames import HEAD, code_of, decode, encode, segment_read

if TYPE_CHECKING:
    from pravega_front.server import SegmentStore
    from pravega_front.service.segment import Segment

log = structlog.get_logger(__name__)

#: Requests up to this size are read on the event loop, longer ones in a thread, but for those that hold bytes only.
_SHORT_BYTES = 32 * 1024
_BYTES_ONLY = frozenset((wire.ConditionalAppend.code, wire.ConditionalBlockEnd.code))
#: Those with lists of small things take longer for their bytes.
_SHORT_LIST_BYTES = 4 * 1024
_LISTS = frozenset(
    one.code
    for one in (
        wire.UpdateTableEntries,
        wire.RemoveTableKeys,
        wire.ReadTable,
        wire.MergeSegments,
        wire.MergeSegmentsBatch,
    )
)
#: Things of an answer up to which it is written on the event loop.
_SHORT_LIST = 250
_BLOCK, _BLOCK_END = wire.AppendBlock.code, wire.AppendBlockEnd.code

#: Commands of one connection that are carried out at the same time; what comes behind them waits.
_RUNNING = 64
#: What a writer that was set up counts with in the budget, and a read that waits at the end of a segment.
_WRITER_BYTES = 1024
_PARKED_BYTES = 1024
#: Bytes of answers that do not wait for others of the same turn of the loop.
_AT_ONCE = 64 * 1024
#: What a read gets when memory is short.
_SHORT_READ = 64 * 1024

#: Commands that change nothing; what tables hold of reader groups is changed by readers.
_READING = frozenset(
    {
        wire.GetStreamSegmentInfo,
        wire.GetSegmentAttribute,
        wire.LocateOffset,
        wire.GetTableSegmentInfo,
        wire.ReadTable,
        wire.ReadTableKeys,
        wire.ReadTableEntries,
        wire.ReadTableEntriesDelta,
    }
)


class Encoded(NamedTuple):
    """An answer as it is sent."""

    parts: list[Buffer]


#: Segments that one command merges.
_SOURCES = 100


def _segments_of(command: Any) -> list[str]:
    """The segments that a command is about. Raises Protest for one that names none, or too many."""
    found = [getattr(command, name) for name in ("segment", "parent", "target", "source") if hasattr(command, name)]
    sources = getattr(command, "sources", ())
    if not found or len(sources) > _SOURCES:
        raise Protest("the command names no segment, or too many")
    return [*found, *sources]


class Connection(net.Connection):
    """A client's connection to the segment store."""

    server: SegmentStore

    def __init__(self, server: SegmentStore, listener: str, advertised: tuple[str, int] | None) -> None:
        super().__init__(server, listener, advertised, server.framing)
        self._writers: dict[bytes, Appender] = {}
        # Those that have gathered appends in this turn of the event loop.
        self._gathering: dict[Appender, None] = {}
        # A block whose end has not come: its writer, its bytes, the size of its frame, and when it came.
        self._block: tuple[bytes, Buffer, int, float] | None = None
        self._parked: set[Parked | ParkedMark] = set()
        self.transient: set[str] = set()
        """Segments for large events that were made on this connection and not merged yet."""
        self._running = 0
        # Reads are carried out one after the other, each when the client has taken what was read before.
        self._reading_turn = asyncio.Lock()
        self._taken: asyncio.Future[None] | None = None
        # Of what is read and no answer yet; another account than that of requests, so that each waits by itself.
        self._reads = server.budget.account(self._room_came)
        self._room: asyncio.Future[None] | None = None

    # --- requests --------------------------------------------------------------------------------------------------

    def _may_start(self, frame: bytes | bytearray | None) -> bool:
        return self._running < _RUNNING

    def _outlives(self, slot: net.Slot) -> bool:
        # Appends go on and hold their bytes: they stay accounted until they are durable.
        return slot._retained

    def _start(self, frame: bytes | bytearray, arrived: float) -> None:
        code = code_of(frame)
        if code in (_BLOCK, _BLOCK_END):
            self._start_append(code, frame, arrived)
            return
        if self._gathering:
            self._append_gathered()  # whatever this is about, it comes behind them
        slot = net.Slot(len(frame), arrived)
        self._slots.append(slot)
        if len(frame) > (_SHORT_LIST_BYTES if code in _LISTS else _SHORT_BYTES) and code not in _BYTES_ONLY:
            self._running += 1
            self.server.spawn(self._start_long(slot, frame))
            return
        try:
            command = decode(frame)
        except WireError as error:
            self._malformed(slot, frame, str(error))
            return
        self._handle(slot, command, frame)

    def _start_append(self, code: int, frame: bytes | bytearray, arrived: float) -> None:
        """What most frames are, with as little as possible done for each."""
        try:
            if code == _BLOCK:
                self._begin_block(frame, arrived)
            else:
                self._end_block(frame, arrived)
        except (Protest, WireError) as error:
            self._release(len(frame))
            self.close(str(error), command=code, bytes=len(frame))

    def _work(self) -> None:
        try:
            super()._work()
        finally:
            if self._gathering:
                self._append_gathered()
        if self._block is not None:
            # A block holds memory that others wait for, like a frame that is not complete.
            self.receiving_since = min(self.receiving_since, self._block[3])

    def _append_gathered(self) -> None:
        gathering, self._gathering = self._gathering, {}
        for writer in gathering:
            writer.flush()

    async def _start_long(self, slot: net.Slot, frame: bytes | bytearray) -> None:
        try:
            command = await self.server.off_loop(decode, frame)
            if not self._closing:
                self._handle(slot, command, frame)
        except WireError as error:
            self._malformed(slot, frame, str(error))
        except Exception:  # the log gets a traceback, and the client an end
            log.exception("command failed", bytes=len(frame))
            self._malformed(slot, frame, "an unexpected error")
        finally:
            self._ran()

    def _malformed(self, slot: net.Slot, frame: bytes | bytearray, reason: str) -> None:
        self._finish(slot)
        self.close(reason, command=HEAD.unpack_from(frame)[0], bytes=len(frame))

    def _handle(self, slot: net.Slot, command: wire.Command, frame: bytes | bytearray) -> None:
        try:
            match command:
                case wire.ConditionalAppend():
                    self._conditional(slot, command, command.event)
                case wire.ConditionalBlockEnd():
                    self._conditional(slot, command, command.data)
                case wire.Padding():
                    self._finish(slot)
                case wire.KeepAlive():
                    self._finish(slot, [frame])
                case wire.Hello():
                    self._hello(slot, command)
                case wire.SetupAppend():
                    until = self._check(command, command.segment, update=True)
                    self._spawn(slot, command, self._set_up(command, until))
                case wire.ReadSegment():
                    self._check(command, command.segment, update=False)
                    self._spawn(slot, command, self._read(command))
                case _:
                    handler = self.server.handlers.get(type(command))
                    if handler is None:
                        raise Protest("the command is not served")
                    for segment in _segments_of(command):
                        self._check(command, segment, update=type(command) not in _READING)
                    self._spawn(slot, command, handler(self, command))
        except (Protest, WireError) as error:
            self._finish(slot)
            self.close(str(error), command=type(command).__name__)
        except Refused as error:
            self._refuse(getattr(command, "request_id", wire.NO_ID), error, type(command).__name__)
            self._finish(slot)

    def _check(self, command: Any, segment: str, *, update: bool) -> float | None:
        """Until when the command's token is valid. Raises Refused."""
        return self.server.access.check(command.token, segment, update)

    def _refuse(self, request_id: int, error: Refused, kind: str) -> None:
        self.server.observer.error_told(kind, "AuthTokenCheckFailed")
        self.send(wire.AuthTokenCheckFailed(request_id, "", 1 if error.expired else 0))
        if error.expired:
            self.close(str(error), command=kind)

    def _spawn(self, slot: net.Slot, command: wire.Command, work: object) -> None:
        self._running += 1
        self.server.spawn(self._run(slot, command, work))

    async def _run(self, slot: net.Slot, command: wire.Command, work: object) -> None:
        kind = type(command).__name__
        try:
            answer = await work  # type: ignore[misc]
            size = 0
            if isinstance(answer, Found):
                size = self._emit_found(answer)
            elif isinstance(answer, Encoded):
                size = self._emit(answer.parts)
            elif answer is not None:
                size = self._emit((await self.encoded(answer)).parts)
                if type(answer).__name__ in self.server.errors:
                    self.server.observer.error_told(kind, type(answer).__name__)
            self.server.observer.request_done(kind, monotonic() - slot.arrived, slot._size, size)
        except (Protest, WireError, BeyondEnd) as error:
            self.close(str(error), command=kind)
        except LogError as error:
            # What cannot be had now is had on another connection, to which clients come back.
            self.server.observer.error_told(kind, type(error).__name__)
            self.close(str(error), command=kind)
        except Exception:  # the log gets a traceback, and the client an end
            log.exception("command failed", command=kind)
            self.server.observer.error_told(kind, "unexpected exception")
            self.close("an unexpected error", command=kind)
        finally:
            self._finish(slot)
            self._ran()

    def _ran(self) -> None:
        """A command was carried out: one that waits may be."""
        self._running -= 1
        if self._waiting or not self._reading:
            self._schedule()

    def maybe_resume(self) -> None:
        super().maybe_resume()
        if self._reading and self._block is not None:
            # It is the client's turn again, of which nothing may come.
            self.receiving_since = min(self.receiving_since, monotonic())

    def shed(self, since: float) -> None:
        """Memory is short. What was read cannot be given back and read again: a client that takes nothing of it for
        long is cut, and comes back when it wants more."""
        super().shed(since)
        patience = self.server.settings.reader_patience_ms / 1000
        if not self._closing and self.stalled_since < monotonic() - patience:
            self._tell_closed("nothing is taken of what was asked for, while memory is short", {})
            self.abort()

    # --- answers ---------------------------------------------------------------------------------------------------

    def send(self, command: wire.Command) -> None:
        """Send a command, with others of this turn of the loop."""
        self._emit(encode(command))

    async def encoded(self, answer: wire.Command) -> Encoded:
        """An answer as it is sent, one with many things in it written in a thread."""
        many = max(len(getattr(answer, name, ())) for name in ("entries", "keys", "versions"))
        if many <= _SHORT_LIST:
            return Encoded(encode(answer))
        return Encoded(await self.server.off_loop(_encode_in_few, answer))

    def _emit(self, parts: list[Buffer]) -> int:
        if self._closing:
            return 0
        size = sum(map(len, parts))
        self._output += parts
        self._output_bytes += size
        if not self._busy:
            if self._output_bytes > _AT_ONCE:
                self._flush()  # what was read counts as unsent before anybody else reads
            else:
                self._schedule()
        return size

    def _emit_found(self, found: Found) -> int:
        if found.data is None or not isinstance(found.answer, wire.SegmentRead):
            return self._emit(encode(found.answer))
        return self._emit(segment_read(found.answer, list(found.data)))

    def _finish(self, slot: net.Slot, output: list[Buffer] | None = None) -> None:
        """A request is over: what it held is free. Its answer, if any, has been sent or is ``output``."""
        if slot._done:
            return
        slot._done = True
        if output:
            self._emit(output)
        # What keeps a slot that is done is only those before it.
        slot._retained = False
        self._fill(slot, [], 0)

    def _fill(self, slot: net.Slot, output: list[Buffer], sent: int) -> None:
        super()._fill(slot, output, sent)
        # Those in front may take long: what is done behind them need not be remembered.
        slots = self._slots
        while slots and slots[-1]._done:
            slots.pop()

    def _hello(self, slot: net.Slot, hello: wire.Hello) -> None:
        self._finish(slot, encode(wire.Hello(wire.WIRE_VERSION, wire.OLDEST_COMPATIBLE)))
        if hello.low > wire.WIRE_VERSION or hello.high < wire.OLDEST_COMPATIBLE:
            self.close(f"the client speaks versions {hello.low} to {hello.high}")

    # --- appends ---------------------------------------------------------------------------------------------------

    async def _set_up(self, request: wire.SetupAppend, until: float | None) -> wire.Command | None:
        segment = self.server.segments.find(request.segment)
        if segment is None:
            return wire.NoSuchSegment(request.request_id, request.segment, "", -1)
        if request.writer_id not in self._writers and len(self._writers) >= self.server.settings.writers_per_connection:
            raise Protest("too many writers are set up on one connection")
        try:
            last = await _last_number(segment, request.writer_id)
            await segment.length()  # from now on it is known with every append
        except LogDeleted:
            return wire.NoSuchSegment(request.request_id, request.segment, "", -1)
        traffic = None if segment.loose else self.server.metrics.topic(segment.topic)
        if self._closing:
            return None
        if request.writer_id not in self._writers:
            self.account.take(Kind.REQUESTS, _WRITER_BYTES)
        self._writers[request.writer_id] = Appender(
            request.writer_id,
            segment,
            last,
            traffic,
            until,
            send=self.send,
            begun=self._append_begun,
            over=self._append_over,
            broken=self._broken,
            gone=self._writer_gone,
        )
        number = wire.NO_NUMBER if last is None else last
        return wire.AppendSetup(request.request_id, request.segment, request.writer_id, number)

    def _broken(self, reason: str) -> None:
        self.close(reason)

    def _writer_gone(self, writer: Appender) -> None:
        if self._writers.get(writer.writer_id) is writer:
            del self._writers[writer.writer_id]
            self.account.give(Kind.REQUESTS, _WRITER_BYTES)

    def _writer(self, writer_id: bytes) -> Appender:
        writer = self._writers.get(writer_id)
        if writer is None:
            raise Protest("an append of a writer that was not set up")
        return writer

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
            if writer.until is not None and self.server.access.expired(writer.until):
                self._release(held)
                self._refuse(end.request_id, Refused("the token of a writer has expired", True), "AppendBlockEnd")
                return
            self._gathering[writer] = None
            writer.append(parts, end.last_event_number, end.num_events, end.request_id, held, arrived)
        except (Protest, WireError):
            self._release(held - len(frame))  # the block's; whoever called this one has the frame's
            raise

    def _conditional(
        self, slot: net.Slot, command: wire.ConditionalAppend | wire.ConditionalBlockEnd, data: Buffer
    ) -> None:
        if self._block is not None:
            raise Protest("a block was not ended")
        writer = self._writer(command.writer_id)
        if writer.until is not None and self.server.access.expired(writer.until):
            raise Refused("the token of a writer has expired", True)
        parts = [data] if len(data) else []
        held, slot._size = slot._size, 0  # which is counted with the append from now on
        try:
            writer.append_at(
                parts, command.event_number, command.request_id, held, slot.arrived, command.expected_offset
            )
        except Protest:
            slot._size = held
            raise
        self._finish(slot)

    def _append_begun(self, append: Appending) -> None:
        slot = append.slot = net.Slot(0, append.arrived)
        slot._retained = True
        self._slots.append(slot)

    def _append_over(self, append: Appending) -> None:
        slot, held = append.slot, append.held
        self.server.appends.many(append.appends, monotonic() - append.arrived, held)
        slot._size = held
        if self._closing and not slot._done:
            # The connection has forgotten its requests; the bytes were held until now.
            slot._done = True
            slot._size = 0
            self._release(held)
            return
        self._finish(slot)

    # --- reads -----------------------------------------------------------------------------------------------------

    async def _read(self, request: wire.ReadSegment, parked: bool = False) -> wire.Command | Found | None:
        segment = self.server.segments.find(request.segment)
        if segment is None:
            return self._read_mark(request) if self.server.segments.is_mark(request.segment) else missing(request)
        most = min(self.server.settings.read_max_bytes, max(request.suggested_length, 8))
        async with self.room_to_read(most, min(most, _SHORT_READ)) as room:
            if not room:
                return None
            found = await read(segment, request, room, parked=parked)
        if found is None:
            if self._draining:
                return stopping(request)
            if not segment.log.is_open:
                return await self._read(request, parked)  # it was deleted meanwhile, or its log failed
            # Its token was looked at, and is not kept: how long it is was the client's to choose.
            self._park(Parked(segment, replace(request, token=""), self._read_again))
        elif found.data and not segment.loose:
            self.server.metrics.topic(segment.topic).fetched(1, 0, sum(map(len, found.data)))
        return found

    @asynccontextmanager
    async def room_to_read(self, most: int, least: int) -> AsyncIterator[int]:
        """When it is this command's turn to read, and the client has taken what was read before: how many bytes may be
        read, from ``least`` to ``most``. They are counted until the end. 0 if the connection has ended."""
        async with self._reading_turn:
            await self._all_taken()
            granted = 0
            while not self._closing and not (granted := self._reads.grant(Kind.READS, most, least)):
                self._room = self._loop.create_future()
                self._reads.wait(least)
                await self._room
            try:
                yield granted
            finally:
                self._reads.give(Kind.READS, granted)

    def _room_came(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    async def _all_taken(self) -> None:
        """Return when so little is unsent that more may be read, or the connection ends."""
        if self._output_bytes > self.server.limits.write_buffer_bytes:
            self._flush()
        while self._write_paused and not self._closing:
            self._taken = self._loop.create_future()
            await self._taken

    def _check_unsent(self) -> None:
        super()._check_unsent()
        if not self._write_paused:
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        taken, self._taken = self._taken, None
        if taken is not None and not taken.done():
            taken.set_result(None)

    def _read_mark(self, request: wire.ReadSegment) -> wire.Command | Found | None:
        """The stream has no watermarks yet."""
        if request.offset < 0:
            return wire.SegmentIsTruncated(request.request_id, request.segment, 0, "", request.offset)
        if self._draining:
            return stopping(request)
        self._park(ParkedMark(self.server.segments, replace(request, token=""), self._read_again))
        return None

    def _park(self, parked: Parked | ParkedMark) -> None:
        if self._closing:
            parked.leave()
            return
        if len(self._parked) >= self.server.settings.parked_reads_per_connection:
            parked.leave()
            raise Protest("too many reads wait at the ends of segments")
        self._parked.add(parked)
        self.account.take(Kind.REQUESTS, _PARKED_BYTES)

    def _unpark(self) -> list[Parked | ParkedMark]:
        """Those that wait do no more."""
        parked, self._parked = list(self._parked), set()
        for one in parked:
            one.leave()
        self.account.give(Kind.REQUESTS, _PARKED_BYTES * len(parked))
        return parked

    def _read_again(self, parked: Parked | ParkedMark) -> None:
        self._parked.discard(parked)
        self.account.give(Kind.REQUESTS, _PARKED_BYTES)
        if self._closing:
            return
        slot = net.Slot(0, monotonic())
        self._slots.append(slot)
        self._spawn(slot, parked.request, self._read(parked.request, parked=True))

    # --- the end ---------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        for one in self._unpark():
            self._emit_found(stopping(one.request))
        super().drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unpark()
        for writer in self._writers.values():
            writer.ended = True
        self.account.give(Kind.REQUESTS, _WRITER_BYTES * len(self._writers))
        self._writers.clear()
        if self._block is not None:
            self._release(self._block[2])
            self._block = None
        super().connection_lost(exc)
        self._reads.close()
        self._room_came()
        self._go_on_reading()
        transient, self.transient = self.transient, set()
        for name in transient:
            self.server.spawn(self.server.forget_transient(name))


def _encode_in_few(answer: wire.Command) -> list[Buffer]:
    return joined(encode(answer))


async def _last_number(segment: Segment, writer_id: bytes) -> int | None:
    """The number of a writer's last event that is durable; None if there is none. Raises LogError."""
    log = segment.log
    while True:
        await log.ready()
        last = log.last(LedgerKind.EVENT_NUMBER, writer_id)
        if last is None:
            return None
        if last.base_offset < log.high_watermark:
            return last.number
        await segment.passed(last.base_offset)
