"""One client's connection to a listener.

Its requests are handed over in the order they arrived and answered in the order they are finished; an answer in the
document's dialect may come in several frames. A client can make its connection, and all connections together, hold only
a bounded amount of memory: received bytes, requests in flight, data read for answers and unsent answers count in a
budget (:mod:`anabranch_kit.memory.budget`). Reading stops while there is no room for more, or while too much is
unanswered or unsent (:mod:`anabranch_kit.net.connection`); a fetch reads once there is room for the answer. A client
can keep the loop busy only for a bounded time: all connections share a bound on each turn
(:mod:`anabranch_kit.net.turn`). Frames, GOAWAY and idle times: docs/protocols/sbp.md, "Frame", "Range servers of 0.2"
and "Placement driver".
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind
from anabranch_kit.memory.buffers import Buffer
from anabranch_kit.net import connection as net
from anabranch_kit.net.server import Limits
from anabranch_kit.net.turn import ENTRY_WORK, FRAME_WORK
from sbp_back.errors import DecodeError, ErrorCode, SbpError
from sbp_back.transport.answer_room import AnswerRoom
from sbp_back.transport.handler import DEFECT, HasSessions
from sbp_back.wire import model as m
from sbp_back.wire.frame import (
    FLAG_RESPONSE,
    FRAMING,
    GOAWAY_IDLE,
    GOAWAY_MAINTENANCE,
    RESPONSE_FLAGS,
    Frame,
    encode_frame,
    is_foreign,
    parse_frame,
)

if TYPE_CHECKING:
    from sbp_back.transport.listener import Listener

logger = logging.getLogger(__name__)

_FLUSH_BYTES = 256 * 1024
"""Answers of one loop tick are written together, but not more than this many bytes at a time."""
_LIST_BYTES = 1024 * 1024
"""Bytes counted for a listing of ranges, whose answer may be much longer than the request."""
_MAX_UNSENT_BYTES = 8 * 1024 * 1024
"""Data being read for a connection plus its unsent answers, past which its fetches wait; a single answer is never too
long."""
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


class ListenerOptions(Limits, frozen=True):
    """Options of a listener. ``idle_seconds``: a connection without requests in flight that neither sent nor took bytes
    for so long is closed (0: never). ``stall_seconds``: a connection with requests in flight that takes nothing of its
    waiting answers is cut after so long; so is one whose peer is gone, which the system probes when nothing waits (0:
    never). ``connection_bytes`` and ``max_unanswered_requests``: of requests in flight of one connection, past which it
    is not read from. ``write_buffer_bytes``: so many bytes of unsent answers stop the reading too;
    ``write_limit_bytes`` (answers to requests in flight still pile up) cut the connection.
    ``memory_bytes``: of all connections of a listener that is given no budget. ``linger_seconds``: after GOAWAY, how
    long an idle client may take to close; ``drain_seconds``: the same for a client that still waits for answers.
    ``tls``: certificate and key of the listener; None: without TLS.
    """

    connection_bytes: int = 32 * 1024 * 1024
    write_buffer_bytes: int = 4 * 1024 * 1024
    idle_seconds: float = 6.0
    max_connections: int = 2_000
    goaway: GoAwayForm = GoAwayForm.RANGE_SERVER
    stall_seconds: float = 60.0
    max_unanswered_requests: int = 4096
    write_limit_bytes: int = 128 * 1024 * 1024
    memory_bytes: int = 256 * 1024 * 1024
    linger_seconds: float = 1.0
    drain_seconds: float = 12.0
    tls: ssl.SSLContext | None = None

    @classmethod
    def placement_driver(cls) -> ListenerOptions:
        """Return the options that clients of a placement driver expect: 15 s of idleness, its form of GOAWAY."""
        return cls(goaway=GoAwayForm.PLACEMENT_DRIVER, idle_seconds=15.0)


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
        return self.done or self._connection.closed

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
            self._connection.server.barrier.call("abandoned request", ended)


class Connection(net.Connection):
    """A connection of a listener."""

    server: Listener

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener, FRAMING)
        handler = listener.handler
        self._session = handler.session() if isinstance(handler, HasSessions) else None
        self._handler = handler if self._session is None else self._session
        self._dialect = listener.dialect
        self._options = listener.limits
        # Two accounts, requests and answers, since neither may keep the other waiting for its turn.
        self.room = AnswerRoom(
            listener.loop, listener.budget, listener.turn, _MAX_UNSENT_BYTES, listener.barrier, self._rest
        )
        self._sending = self.room.account
        self._unanswered: dict[int, Asked] = {}
        self._reading_request = False  # a frame is decoded in a thread, and those behind it wait
        self._next_stream_id = 1
        self._said_goaway = False
        self._leaving: asyncio.TimerHandle | None = None

    # --- the connection ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._options.stall_seconds > 0:
            _ask_for_life(transport, self._options.stall_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._leaving is not None:
            self._leaving.cancel()
        if self._session is not None:
            self.server.barrier.call("end of a session", self._session.ended)

    def _abandon(self) -> int:
        """Stop reading for answers. Requests in flight hold their bytes until they are answered."""
        self.room.close()
        for asked in list(self._unanswered.values()):
            asked.lost()
        return 0

    def eof_received(self) -> bool:
        """Close once the answers so far are sent. asyncio keeps no connection with TLS half open."""
        self.shut()
        return not self._tls_bytes

    def resume_writing(self) -> None:
        self.last_active = monotonic()
        super().resume_writing()

    def _check_unsent(self) -> None:
        super()._check_unsent()
        outbox = self._outbox
        if outbox is None:
            return
        unsent = outbox.unsent
        self.room.note_unsent(unsent)
        if unsent > self._options.write_limit_bytes:
            self.abort_because(f"the client does not take its answers, and {unsent} bytes wait")

    def _flush(self) -> None:
        if self._output:
            self.last_active = monotonic()
            super()._flush()
            if self._outbox is not None:
                self.room.flushed(self._outbox.unsent)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _may_begin(self, frame: net.Frame | None) -> bool:
        options = self._options
        return (
            not self._reading_request
            and len(self._unanswered) < options.max_unanswered_requests
            and self.in_flight - self._waiting_bytes <= options.connection_bytes
        )

    def _begin(self, frame: net.Frame, arrived: float) -> None:
        turn = self.server.turn
        turn.spend(FRAME_WORK)
        if turn.is_over and self._waiting:
            self._rest()
        if self._dialect.manners.skips_foreign_magic and is_foreign(frame):
            self._release(len(frame))
            return
        try:
            parsed = parse_frame(frame)
        except DecodeError as error:
            self._release(len(frame))
            self.close(str(error))
            return
        self._dispatch(parsed, len(frame))

    def _work(self) -> None:
        if self._waiting and self.server.turn.is_over:
            self._rest()
        super()._work()

    def _rested(self) -> None:
        self.room.grant()
        super()._rested()

    def _dispatch(self, frame: Frame, weight: int) -> None:
        opcode, stream_id = frame.opcode, frame.stream_id
        if opcode == m.Opcode.GOAWAY:
            self._release(weight)
            self._client_leaves(frame)
            return
        if frame.flags & FLAG_RESPONSE or stream_id in self._unanswered:
            self._release(weight)
            again = f"stream id {stream_id} is used again before it was answered"
            self.close("a client sent a response" if frame.flags & FLAG_RESPONSE else again)
            return
        if stream_id >= self._next_stream_id:
            self._next_stream_id = min(stream_id + 1, _FIRST_NEGATIVE_ID - 1)  # 0xffffffff has none behind it
        manners = self._dialect.manners
        asked = self._unanswered[stream_id] = Asked(self, stream_id, opcode, weight)
        if stream_id >= _FIRST_NEGATIVE_ID and manners.signed_stream_ids:
            message = f"stream id {stream_id - (1 << 32)} is negative"
            self.answer(asked, m.SystemErrorResponse.from_code(ErrorCode.BAD_REQUEST, message))
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
            return m.SystemErrorResponse.from_code(manners.malformed, message)
        except SbpError as error:
            if manners.ignores_unknown and error.code == ErrorCode.UNKNOWN_OPERATION:
                return None
            return m.SystemErrorResponse.from_code(error.code, error.message)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self.server.barrier.caught("reading a request", error)
            return m.SystemErrorResponse(DEFECT)

    def _was_read(self, asked: Asked, request: m.Request | m.SystemErrorResponse | None) -> None:
        self._reading_request = False
        self._take(asked, None if self._closing else request)
        self._schedule()

    def _take(self, asked: Asked, request: m.Request | m.SystemErrorResponse | None) -> None:
        if request is None:
            self._finish(asked)
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
            self.server.turn.spend(len(request.entries) * ENTRY_WORK)
        elif type(request) is m.ListRangeRequest:
            self._add_weight(asked, _LIST_BYTES)
        self._hand_over(request, asked)

    def _add_weight(self, asked: Asked, more: int) -> None:
        """Count ``more`` bytes that serving the request takes beyond its frame."""
        if more:
            asked.weight += more
            self.in_flight += more
            self.account.take(Kind.REQUESTS, more)

    def _hand_over(self, request: m.Request, asked: Asked) -> None:
        try:
            self._handler.handle(request, asked)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            # Handlers do not raise; should one have a defect, its request must still be answered.
            self.server.barrier.caught(type(request).__name__, error)
            if self._unanswered.get(asked.stream_id) is asked:
                self.answer(asked, m.SystemErrorResponse(DEFECT))

    # --- answers ----------------------------------------------------------------------------------------------------

    def answer(self, asked: Asked, response: m.Response) -> None:
        """Send an answer to a request, or a part of it."""
        if self._unanswered.get(asked.stream_id) is not asked:
            logger.error("request %d of opcode %#06x was answered twice", asked.stream_id, asked.opcode)
            return
        last = not isinstance(response, m.DocumentResponse) or response.last
        if self._closing:
            if last:
                self._finish(asked)
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
            self.server.barrier.caught(f"writing {type(response).__name__}", error)
            status = DEFECT
        return self._encode(asked.stream_id, asked.opcode, m.SystemErrorResponse(status))

    def _send_answer(self, asked: Asked, parts: list[Buffer], last: bool) -> None:
        if self._closing:
            self._finish(asked)
            return
        if asked.held:
            self.room.hand_over(asked, min(asked.held, sum(map(len, parts))))
        self._write(parts)
        if last:
            self._finish(asked)
        if self._said_goaway:
            self._leave_when_done()

    def _finish(self, asked: Asked) -> None:
        """Release everything that an answered request holds."""
        asked.done = True
        del self._unanswered[asked.stream_id]
        self._release(asked.weight)
        if asked.held:
            self.room.give_back(asked, asked.held)

    def _encode(self, stream_id: int, opcode: int, response: m.Response) -> list[Buffer]:
        flags, header, payload = self._dialect.encode_response(opcode, response)
        crc = self._dialect.payload_crc(response) if payload else -1
        return encode_frame(opcode, flags, stream_id, header, payload, crc)

    def _write(self, parts: Sequence[Buffer]) -> None:
        """Send ``parts`` with everything else of this turn."""
        self._output += parts
        self._output_bytes += sum(map(len, parts))
        if self._output_bytes >= _FLUSH_BYTES:
            self._flush()
        if not self._busy:
            self._schedule()

    # --- leaving ----------------------------------------------------------------------------------------------------

    def go_away(self) -> None:
        """Ask the client to leave: the server shuts down."""
        if self._closing:
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
        if self._leaving is None and not self._unanswered and not self._waiting:
            self._leaving = self._loop.call_later(self._options.linger_seconds, self._leave)

    def _leave(self) -> None:
        self._leaving = None
        if not self._unanswered and not self._waiting:
            self.shut()  # otherwise it asked once more meanwhile, and the last answer brings us back here

    @property
    def idle(self) -> bool:
        return not self._unanswered and not self._waiting and not self._output

    def look_after(self, now: float) -> None:
        options = self._options
        if self._outbox is None:
            return
        if options.stall_seconds > 0:
            if self.stalled_since <= now - options.stall_seconds:
                self.abort_because(f"the client takes nothing of its answers, and {self._outbox.unsent} bytes wait")
                return
            seconds = now - self.receiving_since
            if seconds >= options.stall_seconds and self._framer.partial < seconds * _LEAST_RATE:
                self.abort_because("a frame does not come to its end")
                return
        if 0 < options.idle_seconds <= now - self.last_active and self.reading:
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._closing or self._said_goaway or not self.idle:
            return
        if self._options.goaway is GoAwayForm.PLACEMENT_DRIVER:
            self._say_goaway(GOAWAY_IDLE)
            self._leave_when_done()
        elif self._outbox is not None and self._outbox.unsent:
            self.abort()  # it does not take its answers, so an orderly close is impossible
        else:
            self.shut()

    def abort_because(self, reason: str) -> None:
        """Cut the connection, and say why."""
        self._tell_closed(reason, {})
        self.abort()


def _is_long(response: m.Response) -> bool:
    if type(response) is m.ListRangeResponse:
        return len(response.ranges) > _LONG_ELEMENTS
    if not isinstance(response, m.DocumentResponse):
        return False
    return response.elements > _LONG_ELEMENTS or response.payload_bytes > _LONG_PAYLOAD


def _ask_for_life(transport: asyncio.BaseTransport, seconds: float) -> None:
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
