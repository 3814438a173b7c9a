"""One client's connection to a listener.

Its requests are handed over in the order they arrived and answered in the order they are finished; an answer in the
document's dialect may come in several frames. A client can make its connection, and all connections together, hold only
a bounded amount of memory: received bytes, requests in flight, data read for answers and unsent answers count in a
budget (:mod:`anabranch_kit.memory.budget`). Reading stops while there is no room for more, or while too much is
unanswered or unsent; a fetch reads once there is room for the answer. A client can keep the loop busy only for a
bounded time: all connections share a bound on each turn (:mod:`anabranch_kit.net.turn`). Frames, GOAWAY and idle times:
docs/protocols/sbp.md, "Frame", "Range servers of 0.2" and "Placement driver".
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Protocol

from msgspec import Struct

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.memory.buffers import Buffer
from anabranch_kit.net.plain_outbox import Outbox
from anabranch_kit.net.tls_memory import bound_tls_memory
from anabranch_kit.net.turn import ENTRY_WORK, FRAME_WORK, LITTLE, RECEIVED_AT_ONCE, Turn
from anabranch_kit.net.untie import socket_transport, untie
from anabranch_kit.run.barrier import Barrier
from sbp_back.errors import DecodeError, ErrorCode, SbpError
from sbp_back.transport.answer_room import AnswerRoom
from sbp_back.transport.handler import DEFECT, Handler, HasSessions
from sbp_back.wire import model as m
from sbp_back.wire.base import Dialect
from sbp_back.wire.frame import (
    FLAG_RESPONSE,
    FRAME_OVERHEAD,
    GOAWAY_IDLE,
    GOAWAY_MAINTENANCE,
    RESPONSE_FLAGS,
    Frame,
    FrameReader,
    encode_frame,
)

logger = logging.getLogger(__name__)

_FLUSH_BYTES = 256 * 1024
"""Answers of one loop tick are written together, but not more than this many bytes at a time."""
_CAUTIOUS_BYTES = 4096
"""Bytes received at once while memory is scarce, before it is known whether there is room for them."""
_LIST_BYTES = 1024 * 1024
"""Bytes counted for a listing of ranges, whose answer may be much longer than the request."""
_LONG_ELEMENTS = 256
_LONG_PAYLOAD = 1024 * 1024
"""An answer of more elements, or with more bytes to be checksummed, is written in a thread."""
_LONG_HEADER = 64 * 1024
"""A request with a longer header, of thousands of elements, is read in a thread."""
_LEAST_RATE = 4096
"""Least average bytes per second of a long frame once it has taken ``stall_seconds``."""
_FIRST_NEGATIVE_ID = 1 << 31
_PROBES = 3
_PROBE_SECONDS = 5


class GoAwayForm(Enum):
    """Form of a server's GOAWAY, as the clients of each kind of server expect it (docs/protocols/sbp.md, "Frame")."""

    RANGE_SERVER = "range-server"
    """Flags 0x01, stream id 0, on shutdown only; an idle connection is closed without a GOAWAY."""

    PLACEMENT_DRIVER = "placement-driver"
    """Flags 0x00, stream id the next one expected, on shutdown and when idle; a client's GOAWAY is answered, flags
    0x03.
    """


class ListenerOptions(Struct):
    """Options of a listener. ``idle_seconds``: a connection without requests in flight that neither sent nor took bytes
    for so long is closed (0: never). ``stall_seconds``: a connection with requests in flight that takes nothing of its
    waiting answers is cut after so long; so is one whose peer is gone, which the system probes when nothing waits (0:
    never). ``max_unanswered_*``: per connection, past which it is not read from. ``write_high_bytes``: so many bytes of
    unsent answers stop the reading too; ``write_limit_bytes`` (answers to requests in flight still pile up) cut the
    connection. ``max_unsent_bytes``: data being read for a connection plus its unsent answers, past which its fetches
    wait; a single answer is never too long. ``memory_bytes``: of all connections of a listener that is given no budget.
    ``linger_seconds``: after GOAWAY, how long an idle client may take to close; ``drain_seconds``: the same for a
    client that still waits for answers. ``tls``: certificate and key of the listener; None: without TLS.
    """

    goaway: GoAwayForm = GoAwayForm.RANGE_SERVER
    idle_seconds: float = 6.0
    stall_seconds: float = 60.0
    max_connections: int = 2_000
    max_unanswered_bytes: int = 32 * 1024 * 1024
    max_unanswered_requests: int = 4096
    write_high_bytes: int = 4 * 1024 * 1024
    write_limit_bytes: int = 128 * 1024 * 1024
    max_unsent_bytes: int = 8 * 1024 * 1024
    memory_bytes: int = 256 * 1024 * 1024
    linger_seconds: float = 1.0
    drain_seconds: float = 12.0
    tls: ssl.SSLContext | None = None

    @classmethod
    def placement_driver(cls) -> ListenerOptions:
        """Return the options that clients of a placement driver expect: 15 s of idleness, its form of GOAWAY."""
        return cls(goaway=GoAwayForm.PLACEMENT_DRIVER, idle_seconds=15.0)


class Home(Protocol):
    """The listener of a connection."""

    def admit(self, connection: Connection) -> bool: ...
    def forget(self, connection: Connection) -> None: ...


class Asked:
    """A request that was handed over. Its handler uses it to reply, and as room for the answer
    (:class:`sbp_back.wire.room.Room`). ``weight``: bytes it holds until it is answered; ``held``: reserved for the
    answer.
    """

    __slots__ = ("_connection", "_watchers", "done", "held", "opcode", "stream_id", "weight")

    def __init__(self, connection: Connection, stream_id: int, opcode: int, weight: int) -> None:
        self._connection = connection
        self._watchers: list[Callable[[], None]] | None = None
        self.stream_id = stream_id
        self.opcode = opcode
        self.weight = weight
        self.held = 0
        self.done = False

    def __call__(self, response: m.Response) -> None:
        self._connection.answer(self, response)

    @property
    def gone(self) -> bool:
        return self.done or self._connection.is_lost

    def reserve(self, most: int, least: int) -> int:
        return self._connection.room.reserve(self, most, least)

    def settle(self, reserved: int, used: int, pieces: int = 0) -> None:
        self._connection.room.settle(self, reserved, used, pieces)

    def wait(self, most: int, least: int, again: Callable[[], None]) -> None:
        self._connection.room.wait(most, least, again)

    def watch(self, ended: Callable[[], None]) -> None:
        if self._watchers is None:
            self._watchers = []
        self._watchers.append(ended)

    def lost(self) -> None:
        """React to the end of the connection."""
        watchers, self._watchers = self._watchers, None
        for ended in watchers or ():
            self._connection.barrier.call("abandoned request", ended)


class Connection(asyncio.BufferedProtocol):
    """A connection of a listener. ``buffer`` receives bytes; it and ``turn`` are shared with all other connections of
    the loop.
    """

    def __init__(
        self,
        listener: Home,
        loop: asyncio.AbstractEventLoop,
        handler: Handler,
        dialect: Dialect,
        options: ListenerOptions,
        budget: MemoryBudget,
        buffer: bytearray,
        turn: Turn,
        barrier: Barrier,
    ) -> None:
        self._listener = listener
        self.barrier = barrier
        self._loop = loop
        self._session = handler.session() if isinstance(handler, HasSessions) else None
        self._handler = handler if self._session is None else self._session
        self._dialect = dialect
        self._options = options
        self._reader = FrameReader(
            skip_foreign=dialect.manners.skips_foreign_magic, buffer=buffer, admit=self._admit_frame
        )
        self._transport: asyncio.Transport | None = None
        self._socket: object = None
        self._outbox: Outbox | None = None
        self.is_lost = False
        self._active = self._taken_at = loop.time()
        self._written = self._taken = 0  # bytes given to the outbox, and bytes that the socket took
        # Two accounts, requests and answers, since neither may keep the other waiting for its turn.
        self._budget = budget
        self._turn = turn
        self._received = budget.account(self._room_to_receive)
        self.room = AnswerRoom(
            loop, budget, turn, options.max_unsent_bytes, barrier, partial(turn.wait, self, self._go_on)
        )
        self._tls_bytes = 0
        self._stashed = 0  # counted for a small frame that is not complete
        self._admitted = 0  # counted for the long frame that is being received
        self._frame_since = 0.0  # when that frame began
        # Frames received but not handed over, because of the limits; reading is paused while there are any.
        self._queue: deque[Frame] = deque()
        self._unanswered: dict[int, Asked] = {}
        self._unanswered_bytes = 0
        self._write_paused = False
        self._read_paused = False
        self._reading_request = False  # a frame is decoded in a thread, and those behind it wait
        self._pumping = False
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._flush_scheduled = False
        self._next_stream_id = 1
        self._said_goaway = False
        self._leaving: asyncio.TimerHandle | None = None

    # --- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = socket_transport(transport)
        if not self._listener.admit(self):
            self._end()
            transport.abort()
            return
        self._transport = transport
        # With TLS, a limit of zero would count an empty buffer as full.
        transport.set_write_buffer_limits(high=0 if self._options.tls is None else 1, low=0)
        if self._options.tls is not None:
            self._tls_bytes = bound_tls_memory(transport)
            self._budget.attach(self._tls_bytes)
        self._outbox = Outbox(transport)
        if self._options.stall_seconds > 0:
            _ask_for_life(transport, self._options.stall_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._tls_bytes:
            self._budget.attach(-self._tls_bytes)
            self._tls_bytes = 0
        untie(self._socket)
        self._transport = None
        self._outbox = None
        self._out.clear()
        self._out_bytes = 0
        self._end()
        if self._leaving is not None:
            self._leaving.cancel()
        self._listener.forget(self)
        if self._session is not None:
            self.barrier.call("end of a session", self._session.ended)

    def _end(self) -> None:
        """Stop receiving and sending. Requests in flight hold their bytes until they are answered."""
        if self.is_lost:
            return
        self.is_lost = True
        self._drop_queue()
        self._received.give(Kind.REQUESTS, self._stashed + self._admitted)
        self._stashed = self._admitted = 0
        self._reader.close()
        self._turn.forget(self)
        self._received.close()
        self.room.close()
        for asked in list(self._unanswered.values()):
            asked.lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._reader.get_buffer(sizehint)
        if self._budget.scarce and not self._reader.receiving:
            return buffer[:_CAUTIOUS_BYTES]
        return self._turn.receive(buffer) if self._turn.is_over or len(buffer) > RECEIVED_AT_ONCE else buffer

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes > LITTLE:
            self._turn.spend(nbytes)
        self._active = self._loop.time()
        if self._transport is None or self._transport.is_closing():
            return
        try:
            frames = self._reader.received(nbytes)
        except DecodeError as error:
            self._refuse_connection(str(error))
            return
        self._count_received(frames)
        if frames:
            self._queue.extend(frames)
            self._pump()
        else:
            self._hold()

    def eof_received(self) -> bool:
        """Keep the connection: a client that stops sending still gets its answers."""
        self._flush()
        if self._outbox is not None:
            self._outbox.finish()
        return False

    def pause_writing(self) -> None:
        if self._outbox is not None:
            self._outbox.block()

    def resume_writing(self) -> None:
        self._active = self._loop.time()
        if self._outbox is not None:
            self._outbox.unblock()
            self._sent()

    # --- receiving --------------------------------------------------------------------------------------------------

    def _count_received(self, frames: list[Frame]) -> None:
        reader = self._reader
        size = 0
        for frame in frames:
            size += _weight(frame)
        if reader.receiving:
            if not self._frame_since:
                self._frame_since = self._active
        else:
            size -= self._admitted  # the bytes counted for a long frame belong to that frame now
            self._admitted = 0
            self._frame_since = 0.0
        stashed = reader.stashed
        size += stashed - self._stashed
        self._stashed = stashed
        if size > 0:
            self._received.take(Kind.REQUESTS, size)
        elif size:
            self._received.give(Kind.REQUESTS, -size)

    def _admit_frame(self, size: int) -> bool:
        """Return whether a long frame of ``size`` bytes may be received."""
        if not self._received.admit(Kind.REQUESTS, size, self._stashed):
            return False
        self._stashed = 0
        self._admitted = size
        return True

    def _room_to_receive(self) -> None:
        if not self.is_lost:
            self._reader.retry()
            self._pump()

    def _hold(self) -> None:
        """Pause or resume reading."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        received = self._received
        refused = self._reader.refused
        # A long frame was counted as a whole, so there is room for its rest.
        short = bool(refused) or (not self._admitted and received.crowded)
        if short and not received.wanted:
            received.wait(refused or 1, self._stashed if refused else 0)
        elif not short and received.wanted:
            received.stop_waiting()
        hold = short or bool(self._queue) or self._blocked
        if hold != self._read_paused:
            self._read_paused = hold
            if hold:
                transport.pause_reading()
            else:
                transport.resume_reading()

    # --- requests ---------------------------------------------------------------------------------------------------

    @property
    def _blocked(self) -> bool:
        options = self._options
        return (
            self._write_paused
            or self._reading_request
            or self._unanswered_bytes > options.max_unanswered_bytes
            or len(self._unanswered) >= options.max_unanswered_requests
        )

    def _pump(self) -> None:
        """Hand over queued frames as far as the limits allow, and pause or resume reading accordingly."""
        if self._pumping:
            return  # called by an answer that was given at once: the loop below goes on by itself
        self._pumping = True
        queue = self._queue
        turn = self._turn
        while queue and self._transport is not None and not self._blocked:
            if turn.is_over:
                turn.wait(self, self._go_on)
                break
            turn.spend(FRAME_WORK)
            self._dispatch(queue.popleft())
        self._pumping = False
        self._hold()

    def _go_on(self) -> None:
        """Go on in this connection's next turn."""
        self.room.grant()
        self._pump()

    def _drop_queue(self) -> None:
        if self._queue:
            self._received.give(Kind.REQUESTS, sum(_weight(frame) for frame in self._queue))
            self._queue.clear()

    def _dispatch(self, frame: Frame) -> None:
        opcode, stream_id = frame.opcode, frame.stream_id
        weight = _weight(frame)
        if opcode == m.Opcode.GOAWAY:
            self._received.give(Kind.REQUESTS, weight)
            self._client_leaves(frame)
            return
        if frame.flags & FLAG_RESPONSE or stream_id in self._unanswered:
            self._received.give(Kind.REQUESTS, weight)
            again = f"stream id {stream_id} is used again before it was answered"
            self._refuse_connection("a client sent a response" if frame.flags & FLAG_RESPONSE else again)
            return
        if stream_id >= self._next_stream_id:
            self._next_stream_id = min(stream_id + 1, _FIRST_NEGATIVE_ID - 1)  # 0xffffffff has none behind it
        manners = self._dialect.manners
        asked = self._unanswered[stream_id] = Asked(self, stream_id, opcode, weight)
        self._unanswered_bytes += weight
        if stream_id >= _FIRST_NEGATIVE_ID and manners.signed_stream_ids:
            message = f"stream id {stream_id - (1 << 32)} is negative"
            self.answer(asked, m.SystemErrorResponse.of(ErrorCode.BAD_REQUEST, message))
            return
        if len(frame.header) > _LONG_HEADER:
            self._reading_request = True
            reading = self._loop.run_in_executor(None, self._read_request, frame)
            reading.add_done_callback(lambda done: self._was_read(asked, done.result()))
        else:
            self._take(asked, self._read_request(frame))

    def _read_request(self, frame: Frame) -> m.Request | m.SystemErrorResponse | None:
        """Decode the request in a frame; return an error response if that fails, None when the frame is to be ignored.
        Never raises.
        """
        manners = self._dialect.manners
        try:
            return self._dialect.decode_request(
                frame.opcode, frame.header, frame.payload, frame.crc if len(frame.payload) else -1
            )
        except DecodeError as error:
            message = f"this listener speaks {self._dialect.name}: {error}"
            return m.SystemErrorResponse.of(manners.malformed, message)
        except SbpError as error:
            if manners.ignores_unknown and error.code == ErrorCode.UNKNOWN_OPERATION:
                return None
            return m.SystemErrorResponse.of(error.code, error.message)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self.barrier.caught("reading a request", error)
            return m.SystemErrorResponse(DEFECT)

    def _was_read(self, asked: Asked, request: m.Request | m.SystemErrorResponse | None) -> None:
        self._reading_request = False
        self._take(asked, None if self.is_lost else request)
        self._pump()

    def _take(self, asked: Asked, request: m.Request | m.SystemErrorResponse | None) -> None:
        if request is None:
            self._done(asked)
            return
        if isinstance(request, m.SystemErrorResponse):
            self.answer(asked, request)
            return
        if type(request) is m.FetchRequest:
            request.room = asked
        elif isinstance(request, m.DocumentRequest):
            request.room = asked
            self._add_weight(asked, request.working_bytes)
        elif type(request) is m.AppendRequest:
            self._turn.spend(len(request.entries) * ENTRY_WORK)
        elif type(request) is m.ListRangeRequest:
            self._add_weight(asked, _LIST_BYTES)
        self._hand_over(request, asked)

    def _add_weight(self, asked: Asked, more: int) -> None:
        """Count ``more`` bytes that serving the request takes beyond its frame."""
        if more:
            asked.weight += more
            self._unanswered_bytes += more
            self._received.take(Kind.REQUESTS, more)

    def _hand_over(self, request: m.Request, asked: Asked) -> None:
        try:
            self._handler.handle(request, asked)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            # Handlers do not raise; should one have a defect, its request must still be answered.
            self.barrier.caught(type(request).__name__, error)
            if self._unanswered.get(asked.stream_id) is asked:
                self.answer(asked, m.SystemErrorResponse(DEFECT))

    # --- answers ----------------------------------------------------------------------------------------------------

    def answer(self, asked: Asked, response: m.Response) -> None:
        """Send an answer to a request, or a part of it."""
        if self._unanswered.get(asked.stream_id) is not asked:
            logger.error("request %d of opcode %#06x was answered twice", asked.stream_id, asked.opcode)
            return
        last = not isinstance(response, m.DocumentResponse) or response.last
        if self._transport is None:
            if last:
                self._done(asked)
            return
        if last and _is_long(response):
            writing = self._loop.run_in_executor(None, self._parts, asked, response)
            writing.add_done_callback(lambda parts: self._send_answer(asked, parts.result(), True))
        else:
            self._send_answer(asked, self._parts(asked, response), last)

    def _parts(self, asked: Asked, response: m.Response) -> list[Buffer]:
        """Encode the answer. Never raises: errors and defects become a system error."""
        try:
            return self._encode(asked.stream_id, asked.opcode, response)
        except SbpError as error:
            status = m.Status(error.code, error.message)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            # As in _hand_over: an answer that cannot be encoded (a number too large for its field) is a defect of ours.
            self.barrier.caught(f"writing {type(response).__name__}", error)
            status = DEFECT
        return self._encode(asked.stream_id, asked.opcode, m.SystemErrorResponse(status))

    def _send_answer(self, asked: Asked, parts: list[Buffer], last: bool) -> None:
        if self._transport is None:
            self._done(asked)
            return
        size = self._write(parts)
        if asked.held:
            # From now on the socket's unsent bytes count instead of the reservation.
            self.room.holds(self._unsent)
            self.room.give_back(asked, min(asked.held, size))
        elif size > LITTLE:
            self._turn.spend(size)  # nothing has counted it before
        if last:
            self._done(asked)
        if self._read_paused:
            self._pump()
        if self._said_goaway:
            self._leave_when_done()

    def _done(self, asked: Asked) -> None:
        """Release everything that an answered request holds."""
        asked.done = True
        del self._unanswered[asked.stream_id]
        self._unanswered_bytes -= asked.weight
        self._received.give(Kind.REQUESTS, asked.weight)
        if asked.held:
            self.room.give_back(asked, asked.held)

    def _encode(self, stream_id: int, opcode: int, response: m.Response) -> list[Buffer]:
        flags, header, payload = self._dialect.encode_response(opcode, response)
        crc = self._dialect.payload_crc(response) if payload else -1
        return encode_frame(opcode, flags, stream_id, header, payload, crc)

    def _write(self, parts: Sequence[Buffer]) -> int:
        """Send ``parts`` with everything else of this turn; return their bytes."""
        self._out.extend(parts)
        size = 0
        for part in parts:
            size += len(part)
        self._out_bytes += size
        if self._out_bytes >= _FLUSH_BYTES:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_tick)
        return size

    def _flush_tick(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        outbox, transport = self._outbox, self._transport
        if outbox is None or transport is None or not self._out:
            return
        out, self._out = self._out, []
        self._written += self._out_bytes
        self._out_bytes = 0
        self._active = self._loop.time()
        outbox.send(out)
        self._sent()
        if outbox.unsent > self._options.write_limit_bytes:
            logger.warning("%s does not take its answers: cut with %d bytes waiting", self._peer(), outbox.unsent)
            transport.abort()

    def _sent(self) -> None:
        """React to a change of the unsent bytes."""
        outbox = self._outbox
        if outbox is None:
            return
        unsent = outbox.unsent
        self.room.holds(self._unsent)
        if self._write_paused:
            if unsent <= self._options.write_high_bytes // 2:
                self._write_paused = False
                self._pump()
        elif unsent > self._options.write_high_bytes:
            self._write_paused = True
            self._hold()
        self.room.more()

    @property
    def _unsent(self) -> int:
        """Return the bytes of answers that the socket has not taken."""
        return self._out_bytes + (0 if self._outbox is None else self._outbox.unsent)

    # --- leaving ----------------------------------------------------------------------------------------------------

    def go_away(self) -> None:
        """Ask the client to leave: the server shuts down."""
        if self._transport is None:
            return
        if not self._said_goaway:
            self._say_goaway(GOAWAY_MAINTENANCE)
        self._leave_when_done()

    def _say_goaway(self, reason: int) -> None:
        self._said_goaway = True
        if self._options.goaway is GoAwayForm.PLACEMENT_DRIVER:
            # The placement driver's clients know no reasons: the lowest flag would make the frame a response.
            self._write(encode_frame(m.Opcode.GOAWAY, GOAWAY_IDLE, self._next_stream_id))
        else:
            self._write(encode_frame(m.Opcode.GOAWAY, reason, 0))

    def _client_leaves(self, frame: Frame) -> None:
        if self._options.goaway is GoAwayForm.PLACEMENT_DRIVER and not self._said_goaway:
            self._write(encode_frame(m.Opcode.GOAWAY, RESPONSE_FLAGS, frame.stream_id))
        self._said_goaway = True
        self._leave_when_done()

    def _leave_when_done(self) -> None:
        if self._leaving is None and not self._unanswered and not self._queue:
            self._leaving = self._loop.call_later(self._options.linger_seconds, self._leave)

    def _leave(self) -> None:
        self._leaving = None
        if self._transport is None:
            return
        if self._unanswered or self._queue:
            return  # it asked once more meanwhile; the last answer brings us back here
        self._close()

    def _close(self) -> None:
        """Close once everything is sent."""
        self._flush()
        if self._outbox is not None:
            self._outbox.finish()
        if self._transport is not None:
            self._transport.close()

    def look_after(self, now: float) -> None:
        """Close the connection if it is idle or stalled; ``now`` is the loop's time."""
        transport, outbox, options = self._transport, self._outbox, self._options
        if transport is None or outbox is None:
            return
        waiting = outbox.unsent
        if not waiting or self._taken != self._written - waiting:
            self._taken, self._taken_at = self._written - waiting, now
        elif 0 < options.stall_seconds <= now - self._taken_at:
            logger.warning("%s takes nothing of its answers: cut with %d bytes waiting", self._peer(), waiting)
            transport.abort()
            return
        if self._read_paused:
            self._frame_since = 0.0 if not self._frame_since else now  # not the client's fault
        elif self._frame_since and options.stall_seconds > 0:
            seconds = now - self._frame_since
            if seconds >= options.stall_seconds and self._reader.buffered < seconds * _LEAST_RATE:
                logger.warning("%s is cut: a frame does not come to its end", self._peer())
                transport.abort()
                return
        if options.idle_seconds > 0 and now - self._active >= options.idle_seconds:
            self._close_if_idle(transport)

    def _close_if_idle(self, transport: asyncio.Transport) -> None:
        if self._said_goaway or self._unanswered or self._queue or self._read_paused:
            return
        if self._options.goaway is GoAwayForm.PLACEMENT_DRIVER:
            self._say_goaway(GOAWAY_IDLE)
            self._leave_when_done()
        elif self._outbox is not None and self._outbox.unsent:
            transport.abort()  # it does not take its answers, so an orderly close is impossible
        else:
            transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _refuse_connection(self, message: str) -> None:
        """Cut this connection: its bytes cannot be understood any further."""
        logger.warning("%s is cut: %s", self._peer(), message)
        self._drop_queue()
        self._close()

    def _peer(self) -> str:
        """Name the peer for the log."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"client {name[0]}:{name[1]}" if isinstance(name, tuple) else "a client"


def _is_long(response: m.Response) -> bool:
    if type(response) is m.ListRangeResponse:
        return len(response.ranges) > _LONG_ELEMENTS
    if not isinstance(response, m.DocumentResponse):
        return False
    return response.elements > _LONG_ELEMENTS or response.payload_bytes > _LONG_PAYLOAD


def _weight(frame: Frame) -> int:
    """Return the bytes of a frame on the wire, all of which it keeps."""
    return FRAME_OVERHEAD + len(frame.header) + len(frame.payload)


def _ask_for_life(transport: asyncio.Transport, seconds: float) -> None:
    """Have the system probe a peer that is silent for about ``seconds``: a client that waits minutes for data may
    vanish without closing.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(seconds) - _PROBES * _PROBE_SECONDS))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
