"""Serves a handler to TCP clients in one dialect.

A connection's requests are handed over in the order they arrived and answered in the order they are finished, in the
document's dialect also bit by bit, in several frames.
Nothing a client does makes it hold more than a bounded amount of memory here: reading stops while too much of it is
unanswered or its answers are not taken. Frames, GOAWAY and idle times: reference/sbp.md, sections 1.1, 2.3, 2.4.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from sbp_back.barrier import DEFECTS, guarded
from sbp_back.dialects import Dialect
from sbp_back.errors import DecodeError, ErrorCode, SbpError
from sbp_back.frame import (
    FLAG_RESPONSE,
    FRAME_OVERHEAD,
    GOAWAY_IDLE,
    GOAWAY_MAINTENANCE,
    RESPONSE_FLAGS,
    Frame,
    FrameReader,
    encode_frame,
)
from sbp_back.handler import DEFECT, Handler, HasSessions
from sbp_back.model import (
    Buffer,
    DocumentRequest,
    DocumentResponse,
    FetchRequest,
    Opcode,
    Request,
    Response,
    Status,
    SystemErrorResponse,
)

logger = logging.getLogger(__name__)

# Answers of one loop tick are written together, but not more than this many bytes at a time.
_FLUSH_BYTES = 256 * 1024
_DEFAULT_FETCH_BYTES = 1024 * 1024
_MAX_FETCH_BYTES = 16 * 1024 * 1024
_FIRST_NEGATIVE_ID = 1 << 31


class GoAwayForm(Enum):
    """How a server takes leave, as the clients of each kind of server know it (reference/sbp.md, section 1.1)."""

    RANGE_SERVER = "range-server"
    """Flags 0x01, stream id 0, on shutdown only; an idle connection is closed without a word."""

    PLACEMENT_DRIVER = "placement-driver"
    """Flags 0x00, stream id the next one expected, on shutdown and when idle; a client's is answered, flags 0x03."""


@dataclass(slots=True)
class ListenerOptions:
    """``idle_seconds``: a connection with nothing under way that neither sent nor took bytes for so long is closed (0:
    never). ``stall_seconds``: one with requests under way that takes nothing of the answers waiting for it is cut after
    so long; one that is gone, which the system asks for when nothing waits, too (0: never). ``max_unanswered_*``: per
    connection, past which it is not read from. ``write_high_bytes``: as many bytes of answers not taken stop the
    reading too; ``write_limit_bytes`` (answers to requests already under way still pile up) cut the connection.
    ``linger_seconds``: after GOAWAY, how long an idle client may take to close; ``drain_seconds``: the same for one
    that still waits for answers."""

    goaway: GoAwayForm = GoAwayForm.RANGE_SERVER
    idle_seconds: float = 6.0
    stall_seconds: float = 60.0
    max_connections: int = 2_000
    max_unanswered_bytes: int = 32 * 1024 * 1024
    max_unanswered_requests: int = 4096
    write_high_bytes: int = 4 * 1024 * 1024
    write_limit_bytes: int = 128 * 1024 * 1024
    linger_seconds: float = 1.0
    drain_seconds: float = 12.0

    @classmethod
    def placement_driver(cls) -> ListenerOptions:
        """What clients of a placement driver expect: 15 s of idleness, its form of GOAWAY."""
        return cls(goaway=GoAwayForm.PLACEMENT_DRIVER, idle_seconds=15.0)


class Listener:
    """``handler`` at ``host``:``port`` (0: the system chooses a port, see :attr:`address`)."""

    def __init__(
        self, handler: Handler, dialect: Dialect, host: str, port: int, options: ListenerOptions | None = None
    ) -> None:
        self._handler = handler
        self._dialect = dialect
        self._host = host
        self._port = port
        self._options = options or ListenerOptions()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._address: tuple[str, int] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it listens at. Raises ``RuntimeError`` before :meth:`start`."""
        if self._address is None:
            raise RuntimeError("the listener was not started")
        return self._address

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        """Raises ``OSError`` when the address cannot be bound."""
        loop = self._loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self, loop, self._handler, self._dialect, self._options),
            self._host,
            self._port,
            backlog=1024,
        )
        self._address = self._server.sockets[0].getsockname()[:2]
        if self._sweep_seconds > 0:
            self._sweep_timer = loop.call_later(self._sweep_seconds, self._sweep)

    @property
    def _sweep_seconds(self) -> float:
        times = [time for time in (self._options.idle_seconds, self._options.stall_seconds) if time > 0]
        return min(times) / 4 if times else 0.0

    async def drain(self) -> None:
        """Accept no more, say GOAWAY, answer what is under way, and close; takes ``drain_seconds`` at most."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.go_away()
        try:
            await asyncio.wait_for(self._empty.wait(), self._options.drain_seconds)
        except TimeoutError:
            logger.warning("%d connections did not end in time and are cut", len(self._connections))
        await self.close()

    async def close(self) -> None:
        """Cut everything at once. Idempotent."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.abort()
        await self._empty.wait()

    def admit(self, connection: _Connection) -> bool:
        """For a new connection: False when there are too many."""
        if len(self._connections) >= self._options.max_connections:
            logger.warning("connection refused: there are %d already", len(self._connections))
            return False
        self._connections.add(connection)
        self._empty.clear()
        return True

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def _sweep(self) -> None:
        # One timer for all: connections are many, and closing one a little late harms nobody.
        assert self._loop is not None
        self._sweep_timer = self._loop.call_later(self._sweep_seconds, self._sweep)
        now = self._loop.time()
        for connection in list(self._connections):
            connection.look_after(now)


class _Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(
        self,
        listener: Listener,
        loop: asyncio.AbstractEventLoop,
        handler: Handler,
        dialect: Dialect,
        options: ListenerOptions,
    ) -> None:
        self._listener = listener
        self._loop = loop
        self._session = handler.session() if isinstance(handler, HasSessions) else None
        self._handler = handler if self._session is None else self._session
        self._dialect = dialect
        self._options = options
        self._reader = FrameReader(skip_foreign=dialect.manners.skips_foreign_magic)
        self._transport: asyncio.Transport | None = None
        self._active = self._taken_at = loop.time()
        self._written = self._taken = 0  # bytes given to the transport, and those of them that the socket took
        # Frames received but not handed over, because of the limits; reading is paused while there are any.
        self._queue: deque[Frame] = deque()
        self._unanswered: set[int] = set()
        self._unanswered_bytes = 0
        self._write_paused = False
        self._read_paused = False
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
        if not self._listener.admit(self):
            transport.abort()
            return
        self._transport = transport
        transport.set_write_buffer_limits(high=self._options.write_high_bytes)
        if self._options.stall_seconds > 0:
            _ask_for_life(transport, self._options.stall_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._out.clear()
        self._queue.clear()
        if self._leaving is not None:
            self._leaving.cancel()
        self._listener.forget(self)
        if self._session is not None:
            guarded("end of a session", self._session.ended)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._active = self._loop.time()
        try:
            frames = self._reader.received(nbytes)
        except DecodeError as error:
            self._refuse_connection(str(error))
            return
        if frames:
            self._queue.extend(frames)
            self._pump()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._active = self._loop.time()
        self._pump()

    # --- requests ---------------------------------------------------------------------------------------------------

    @property
    def _blocked(self) -> bool:
        options = self._options
        return (
            self._write_paused
            or self._unanswered_bytes > options.max_unanswered_bytes
            or len(self._unanswered) >= options.max_unanswered_requests
        )

    def _pump(self) -> None:
        """Hand over queued frames as far as the limits allow, and pause or resume reading accordingly."""
        if self._pumping:
            return  # called by an answer that was given at once: the loop below goes on by itself
        self._pumping = True
        queue = self._queue
        while queue and self._transport is not None and not self._blocked:
            self._dispatch(queue.popleft())
        self._pumping = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        hold = bool(queue) or self._blocked
        if hold != self._read_paused:
            self._read_paused = hold
            if hold:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def _dispatch(self, frame: Frame) -> None:
        opcode, stream_id = frame.opcode, frame.stream_id
        if opcode == Opcode.GOAWAY:
            self._client_leaves(frame)
            return
        if frame.flags & FLAG_RESPONSE:
            self._refuse_connection("a client sent a response")
            return
        if stream_id in self._unanswered:
            self._refuse_connection(f"stream id {stream_id} is used again before it was answered")
            return
        if stream_id >= self._next_stream_id:
            self._next_stream_id = stream_id + 1
        weight = FRAME_OVERHEAD + len(frame.header) + len(frame.payload)
        manners = self._dialect.manners
        self._unanswered.add(stream_id)
        if stream_id >= _FIRST_NEGATIVE_ID and manners.signed_stream_ids:
            status = Status(ErrorCode.BAD_REQUEST, f"stream id {stream_id - (1 << 32)} is negative")
            self._answer(stream_id, opcode, 0, SystemErrorResponse(status))
            return
        try:
            request = self._dialect.decode_request(
                opcode, frame.header, frame.payload, frame.crc if len(frame.payload) else -1
            )
        except DecodeError as error:
            message = f"this listener speaks {self._dialect.name}: {error}"
            self._answer(stream_id, opcode, 0, SystemErrorResponse(Status(manners.malformed, message)))
            return
        except SbpError as error:
            if manners.ignores_unknown and error.code == ErrorCode.UNKNOWN_OPERATION:
                self._unanswered.discard(stream_id)
                return
            self._answer(stream_id, opcode, 0, SystemErrorResponse(Status(error.code, error.message)))
            return
        if type(request) is FetchRequest and request.max_wait_ms <= 0:
            # Its answer will be much longer than itself. One that may wait long for data reserves nothing, or idle
            # readers would lock the connection.
            weight += min(request.max_bytes, _MAX_FETCH_BYTES) if request.max_bytes > 0 else _DEFAULT_FETCH_BYTES
        elif isinstance(request, DocumentRequest):
            weight += request.answer_bytes
        self._unanswered_bytes += weight
        self._hand_over(request, stream_id, opcode, weight)

    def _hand_over(self, request: Request, stream_id: int, opcode: int, weight: int) -> None:
        try:
            self._handler.handle(request, partial(self._answer, stream_id, opcode, weight))
        except Exception:  # noqa: BLE001 - logged and counted there
            # Handlers do not raise; should one have a defect, its request must still be answered.
            DEFECTS.caught(type(request).__name__)
            if stream_id in self._unanswered:
                self._answer(stream_id, opcode, weight, SystemErrorResponse(DEFECT))

    # --- answers ----------------------------------------------------------------------------------------------------

    def _answer(self, stream_id: int, opcode: int, weight: int, response: Response) -> None:
        if self._transport is None:
            return
        if stream_id not in self._unanswered:
            logger.error("request %d of opcode %#06x was answered twice", stream_id, opcode)
            return
        was_blocked = self._read_paused
        if not isinstance(response, DocumentResponse) or response.last:
            self._unanswered.discard(stream_id)
            self._unanswered_bytes -= weight
        try:
            parts = self._encode(stream_id, opcode, response)
        except SbpError as error:
            parts = self._encode(stream_id, opcode, SystemErrorResponse(Status(error.code, error.message)))
        except Exception:  # noqa: BLE001 - logged and counted there
            # As in _hand_over: an answer that cannot be written, a number too large for its field, is a defect of ours.
            DEFECTS.caught(f"writing {type(response).__name__}")
            parts = self._encode(stream_id, opcode, SystemErrorResponse(DEFECT))
        self._write(parts)
        if was_blocked:
            self._pump()
        if self._said_goaway:
            self._leave_when_done()

    def _encode(self, stream_id: int, opcode: int, response: Response) -> list[Buffer]:
        flags, header, payload = self._dialect.encode_response(opcode, response)
        crc = self._dialect.payload_crc(response) if payload else -1
        return encode_frame(opcode, flags, stream_id, header, payload, crc)

    def _write(self, parts: Sequence[Buffer]) -> None:
        self._out.extend(parts)
        for part in parts:
            self._out_bytes += len(part)
        if self._out_bytes >= _FLUSH_BYTES:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_tick)

    def _flush_tick(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        transport = self._transport
        if transport is None or not self._out:
            return
        out, self._out = self._out, []
        self._written += self._out_bytes
        self._out_bytes = 0
        self._active = self._loop.time()
        transport.writelines(out)
        waiting = transport.get_write_buffer_size()
        if waiting > self._options.write_limit_bytes:
            logger.warning("%s does not take its answers: cut with %d bytes waiting", self._peer(), waiting)
            transport.abort()

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
            # Its clients know no reasons: the lowest flag would make the frame a response.
            self._write(encode_frame(Opcode.GOAWAY, GOAWAY_IDLE, self._next_stream_id))
        else:
            self._write(encode_frame(Opcode.GOAWAY, reason, 0))

    def _client_leaves(self, frame: Frame) -> None:
        if self._options.goaway is GoAwayForm.PLACEMENT_DRIVER and not self._said_goaway:
            self._write(encode_frame(Opcode.GOAWAY, RESPONSE_FLAGS, frame.stream_id))
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
        self._flush()
        self._transport.close()

    def look_after(self, now: float) -> None:
        """Close it when nothing happens on it any more; ``now`` is the loop's time."""
        transport, options = self._transport, self._options
        if transport is None:
            return
        waiting = transport.get_write_buffer_size()
        if not waiting or self._taken != self._written - waiting:
            self._taken, self._taken_at = self._written - waiting, now
        elif 0 < options.stall_seconds <= now - self._taken_at:
            logger.warning("%s takes nothing of its answers: cut with %d bytes waiting", self._peer(), waiting)
            transport.abort()
            return
        if options.idle_seconds > 0 and now - self._active >= options.idle_seconds:
            self._close_if_idle(transport)

    def _close_if_idle(self, transport: asyncio.Transport) -> None:
        if self._said_goaway or self._unanswered or self._queue:
            return
        if self._options.goaway is GoAwayForm.PLACEMENT_DRIVER:
            self._say_goaway(GOAWAY_IDLE)
            self._leave_when_done()
        elif transport.get_write_buffer_size():
            transport.abort()  # it does not take its answers, so there is nothing to close in order
        else:
            transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _refuse_connection(self, message: str) -> None:
        """The bytes cannot be understood any further: only this connection pays for it."""
        logger.warning("%s is cut: %s", self._peer(), message)
        self._queue.clear()
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def _peer(self) -> str:
        """For the log."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"client {name[0]}:{name[1]}" if isinstance(name, tuple) else "a client"


_PROBES = 3
_PROBE_SECONDS = 5


def _ask_for_life(transport: asyncio.Transport, seconds: float) -> None:
    """Has the system ask a peer that says nothing for about ``seconds`` whether it is still there: one that waits for
    data for minutes may be gone without a word."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(seconds) - _PROBES * _PROBE_SECONDS))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
