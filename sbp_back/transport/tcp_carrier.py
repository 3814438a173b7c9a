"""The carrier over TCP: one connection to one server, made when it is needed, with frames in both directions."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec import Struct

from anabranch_kit.memory.buffers import Buffer
from anabranch_kit.net.framing import FrameError, ReceiveBuffer
from anabranch_kit.net.tls_memory import bound_tls_memory
from anabranch_kit.net.untie import socket_transport, untie
from anabranch_kit.run.awaited import Settle, awaited
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.deadlines import Alarm
from sbp_back.errors import ConnectionLost, DecodeError, ErrorCode, SbpError
from sbp_back.transport.carrier import Answer, AnswerTo, Carrier, TimedCall, time_out
from sbp_back.transport.handler import DEFECT
from sbp_back.transport.tickets import Tickets
from sbp_back.wire import model as m
from sbp_back.wire.base import Dialect
from sbp_back.wire.frame import (
    FLAG_END,
    FLAG_RESPONSE,
    FLAG_SYSTEM_ERROR,
    FRAME_OVERHEAD,
    FRAMING,
    MAX_FRAME_LENGTH,
    RESPONSE_FLAGS,
    encode_frame,
    is_foreign,
    parse_frame,
)
from sbp_back.wire.identity import RangeServerCheck
from sbp_back.wire.v02 import DialectV02


class TcpOptions(Struct):
    """Options of a carrier. Times in seconds, sizes in bytes.

    ``heartbeat_idle``: after that long without a request a HEARTBEAT is sent, because servers drop idle connections (6
    s in elastic-stream), and also after that long without a sign of life while answers are due. When nothing at all is
    heard within ``heartbeat_timeout`` of a heartbeat the peer is gone. ``max_inflight_bytes``: unanswered requests on
    one connection; more wait. ``max_queued_bytes``: requests that may wait; beyond that a request is answered with
    1429. ``backoff_first``, ``backoff_limit``: pause before connecting again after a failure, doubled each time.
    ``tls``: for connections to servers; None: without TLS. ``tickets``: shown to all servers; those that demand none
    only say so.
    """

    request_timeout: float = 30.0
    connect_timeout: float = 5.0
    heartbeat_idle: float = 3.0
    heartbeat_timeout: float = 6.0
    backoff_first: float = 0.05
    backoff_limit: float = 2.0
    max_inflight_bytes: int = 16 * 1024 * 1024
    max_queued_bytes: int = 112 * 1024 * 1024
    client_id: str = "anabranch"
    tls: ssl.SSLContext | None = None
    tickets: Tickets | None = None


class _Call(TimedCall):
    """An encoded request, queued or in flight."""

    __slots__ = ("crc", "header", "opcode", "parts", "size")

    def __init__(
        self,
        reply: AnswerTo,
        deadline: float,
        opcode: int,
        header: bytes,
        parts: Sequence[Buffer],
        crc: int,
        barrier: Barrier,
    ) -> None:
        super().__init__(reply, deadline, barrier)
        self.opcode = opcode
        self.header = header
        self.parts = parts
        self.crc = crc
        size = FRAME_OVERHEAD + len(header)
        for part in parts:
            size += len(part)
        self.size = size


Introduce = Callable[[Callable[[m.Request], Awaitable[m.Response]]], Awaitable[str | None]]
"""Identifies the server at the other end of a new connection, by its answers to requests; returns why the connection is
not to be used, None if it is. The function that it gets to send requests raises ``ConnectionLost``; an ``SbpError``
that it raises itself counts as a reason, too.
"""

_LAST_STREAM_ID = 0x7FFFFFFF
_RECEIVED_AT_ONCE = 128 * 1024
"""Bytes of the buffer that a connection has while it lives."""
_WRITE_HIGH_WATER = 1024 * 1024
"""Unsent bytes of a connection from which its writers wait."""


class _Connection(asyncio.BufferedProtocol):
    """One socket: requests out with increasing stream ids, responses in by stream id."""

    def __init__(self, carrier: TcpCarrier, dialect: Dialect, options: TcpOptions) -> None:
        self._carrier = carrier
        self._dialect = dialect
        self._options = options
        self._framer = FRAMING.framer(ReceiveBuffer(_RECEIVED_AT_ONCE))
        self._transport: asyncio.Transport | None = None
        self._socket: object = None
        self._out: list[Buffer] = []
        self._last_id = 0
        self._paused = False
        self._shown = 0  # tickets up to this version were shown
        self._lost = asyncio.get_running_loop().create_future()
        self.calls: dict[int, _Call] = {}
        self.inflight_bytes = 0
        self.retired = False
        self.heard = False
        self.last_sent = 0.0
        self.last_heard = asyncio.get_running_loop().time()
        self.asked_at = float("-inf")
        """When a sign of life was last requested; earlier than ``last_heard`` if there was one."""

    # --- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._socket = socket_transport(transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER)
        if self._options.tls is not None:
            bound_tls_memory(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._framer.space()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_heard = asyncio.get_running_loop().time()
        framer = self._framer
        skips = self._dialect.manners.skips_foreign_magic
        try:
            frames = [parse_frame(one) for one in framer.received(nbytes) if not (skips and is_foreign(one))]
        except (FrameError, DecodeError) as error:
            self.drop(f"malformed frame: {error}")
            return
        framer.retry()
        for frame in frames:
            self.heard = True
            if frame.opcode == m.Opcode.GOAWAY:
                self.retire()
                continue
            if frame.opcode == m.Opcode.PING and not frame.flags & FLAG_RESPONSE:
                # Either side may send one; its stream id is the server's and has nothing to do with ours.
                self._write(encode_frame(m.Opcode.PING, RESPONSE_FLAGS, frame.stream_id, frame.header, [frame.payload]))
                continue
            call = self.calls.get(frame.stream_id)
            if call is None:
                continue  # its caller has stopped waiting
            if frame.opcode != call.opcode and not frame.flags & FLAG_SYSTEM_ERROR:
                # (A system error looks the same under any opcode.)
                manners = self._dialect.manners
                if manners.discards(frame.opcode):
                    continue
                if not manners.answers(call.opcode, frame.opcode):
                    self.drop(f"malformed response: opcode {frame.opcode:#06x} answers {call.opcode:#06x}")
                    return
            if not self._dialect.manners.several_frames or frame.flags & (FLAG_END | FLAG_SYSTEM_ERROR):
                del self.calls[frame.stream_id]
                self.inflight_bytes -= call.size
            try:
                response = self._dialect.decode_response(
                    call.opcode, frame.flags, frame.header, frame.payload, frame.crc
                )
            except Exception as error:  # noqa: BLE001 - logged and counted below
                reason = f"malformed response: {error}"
                if not isinstance(error, DecodeError):
                    self._carrier.barrier.caught("decoding a response", error)
                unanswered = self.calls.get(frame.stream_id) is call
                self.drop(reason)
                if not unanswered:  # otherwise dropping the connection has answered it
                    call.reply(ConnectionLost(reason))
                return
            call.reply(response)
        if self.retired and not self.calls:
            self.drop("the server asked to go away")
        self._carrier.pump()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        # The peer takes what is sent, so it lives. A peer that is gone stops soon: the bytes in flight are bounded.
        self.last_heard = asyncio.get_running_loop().time()
        self._paused = False
        self._carrier.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        untie(self._socket)
        self._transport = None
        if not self._lost.done():
            self._lost.set_result(None)
        self._carrier.lost(self, "the connection was closed" if exc is None else f"the connection broke: {exc}")

    # --- for the carrier --------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._transport is None

    def has_room(self, size: int) -> bool:
        if self._paused:
            return False
        return not self.inflight_bytes or self.inflight_bytes + size <= self._options.max_inflight_bytes

    def send(self, call: _Call, now: float) -> None:
        tickets = self._options.tickets
        if tickets is not None and self._shown != tickets.version:
            self._show(tickets, now)
        self._last_id = stream_id = self._last_id + 1
        if call.opcode != m.Opcode.GOAWAY:
            self.calls[stream_id] = call
            self.inflight_bytes += call.size
        self._write(encode_frame(call.opcode, 0, stream_id, call.header, call.parts, call.crc))
        self.last_sent = now
        if stream_id == _LAST_STREAM_ID:
            self.retire()

    def _show(self, tickets: Tickets, now: float) -> None:
        """Send the tickets that have not been shown yet. The server takes requests in their order, so later requests
        need not wait for the answer: a refused ticket shows in their own refusals.
        """
        shown, self._shown = self._shown, tickets.version
        carrier = self._carrier

        def answered(answer: Answer) -> None:
            if not isinstance(answer, ConnectionLost):
                tickets.answered(carrier.address, answer.status.code)

        for ticket in tickets.since(shown):
            opcode, header, parts = self._dialect.encode_request(m.ShowTicketRequest(ticket))
            deadline = now + self._options.request_timeout
            self.send(_Call(answered, deadline, opcode, header, parts, -1, carrier.barrier), now)

    def retire(self) -> None:
        """Take no more requests; close when those in flight are answered."""
        self.retired = True
        self._carrier.forget(self)
        if not self.calls:
            self.drop("the server asked to go away")

    def drop(self, reason: str) -> None:
        """Close at once; everything in flight is answered now."""
        if self._transport is not None:
            self._transport.abort()
        self._carrier.lost(self, reason)

    async def wait_closed(self) -> None:
        if self._transport is not None:
            await self._lost

    def _write(self, parts: Sequence[Buffer]) -> None:
        if not self._out:
            # All requests of one turn of the loop go into one write.
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += parts

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(out)


class TcpCarrier(Carrier):
    """Carries requests over one connection to ``host:port``, made when first needed and again after it was lost.

    Requests are pipelined. Requests that arrive while the connection is being made wait for it; if it cannot be made,
    all of them are answered with ``ConnectionLost``. After a GOAWAY the requests in flight are still answered and new
    ones go over a new connection. ``introduce`` is asked about every new connection before any other request is sent on
    it, and may refuse it.
    """

    def __init__(
        self,
        host: str,
        port: int,
        dialect: Dialect | None = None,
        options: TcpOptions | None = None,
        introduce: Introduce | None = None,
        barrier: Barrier | None = None,
    ) -> None:
        if not 0 < port < 65536:
            raise ValueError(f"port {port} is outside 1..65535")
        self._host = host
        self._port = port
        self._dialect: Dialect = dialect if dialect is not None else DialectV02()
        self._options = options if options is not None else TcpOptions()
        self._introduce = introduce
        self.barrier = barrier or Barrier()
        self._queue: deque[_Call] = deque()
        self._queued_bytes = 0
        self._connection: _Connection | None = None
        self._all: set[_Connection] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._alarm: Alarm | None = None
        self._closed = False

    @property
    def address(self) -> str:
        """Return the "host:port" that it leads to."""
        return f"{self._host}:{self._port}"

    @property
    def connected(self) -> bool:
        """Return whether there is a connection that takes requests."""
        return self._connection is not None

    def submit(self, request: m.Request, reply: AnswerTo, timeout: float | None = None) -> None:
        if self._closed:
            self.barrier.call("reply", reply, ConnectionLost(f"the carrier to {self._host}:{self._port} is closed"))
            return
        try:
            opcode, header, parts = self._dialect.encode_request(request)
            crc = self._dialect.payload_crc(request)
        except SbpError as error:
            self.barrier.call("reply", reply, m.SystemErrorResponse.from_code(error.code, error.message))
            return
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self.barrier.caught(f"writing {type(request).__name__}", error)
            self.barrier.call("reply", reply, m.SystemErrorResponse(DEFECT))
            return
        loop = asyncio.get_running_loop()
        if self._alarm is None:
            self._alarm = Alarm(loop, self._ring)
        now = loop.time()
        deadline = now + (self._options.request_timeout if timeout is None else timeout)
        call = _Call(reply, deadline, opcode, header, parts, crc, self.barrier)
        if isinstance(request, m.GoAway):
            if self._connection is not None:
                self._connection.send(call, now)
            return
        if call.size - 4 > MAX_FRAME_LENGTH:
            message = f"a frame of {call.size} bytes is too long"
            call.reply(m.SystemErrorResponse.from_code(ErrorCode.PAYLOAD_TOO_LARGE, message))
            return
        connection = self._connection
        if connection is not None and not self._queue and connection.has_room(call.size):
            connection.send(call, now)
        elif self._queue and self._queued_bytes + call.size > self._options.max_queued_bytes:
            message = f"{self._queued_bytes} bytes of requests to {self._host}:{self._port} wait already"
            call.reply(m.SystemErrorResponse.from_code(ErrorCode.TOO_MANY_REQUESTS, message))
            return
        else:
            self._queue.append(call)
            self._queued_bytes += call.size
            self.pump()
        self._alarm.set(deadline)

    async def close(self) -> None:
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        connecting = self._connecting
        if connecting is not None:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        connections = list(self._all)
        for connection in connections:
            connection.drop("the carrier is closed")
        self._fail_queue("the carrier is closed")
        for connection in connections:
            await connection.wait_closed()

    # --- for connections --------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send waiting requests, as far as there is room; connect if there is no connection."""
        queue = self._queue
        if not queue or self._closed:
            return
        now = asyncio.get_running_loop().time()
        while queue:
            connection = self._connection
            if connection is None:
                if self._connecting is None:
                    self._connecting = asyncio.get_running_loop().create_task(self._connect())
                return
            if not connection.has_room(queue[0].size):
                return
            call = queue.popleft()
            self._queued_bytes -= call.size
            connection.send(call, now)

    def forget(self, connection: _Connection) -> None:
        """Send nothing more over ``connection``."""
        if self._connection is connection:
            self._connection = None

    def lost(self, connection: _Connection, reason: str) -> None:
        """React to the end of ``connection``."""
        if connection not in self._all:
            return
        self._all.discard(connection)
        if self._connection is connection:
            self._connection = None
            if connection.heard:
                self._failures = 0
            else:
                self._back_off()
        text = f"{self._host}:{self._port}: {reason}"
        calls = list(connection.calls.values())
        connection.calls.clear()
        connection.inflight_bytes = 0
        for call in calls:
            call.reply(ConnectionLost(text))
        self.pump()

    # --- own --------------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        delay = self._not_before - loop.time()
        if delay > 0:
            await asyncio.sleep(delay)
        connection = _Connection(self, self._dialect, self._options)
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                await loop.create_connection(
                    lambda: connection,
                    self._host,
                    self._port,
                    ssl=self._options.tls,
                    ssl_handshake_timeout=self._options.connect_timeout if self._options.tls else None,
                )
        except Exception as error:  # noqa: BLE001 - logged and counted below
            # TimeoutError is an OSError; UnicodeError: no such host name can be
            if not isinstance(error, OSError | UnicodeError):
                self.barrier.caught("connecting", error)
            self._connecting = None
            self._back_off()
            self._fail_queue(f"cannot connect: {error or type(error).__name__}")
            return
        if connection.closed:  # the server hung up before this task got its turn
            refusal: str | None = "the connection was closed at once"
        else:
            self._all.add(connection)
            refusal = await self._introduced(connection)
        if refusal is not None:
            connection.drop(refusal)  # before a new connection may be made for waiting calls: they get this one's error
            self._connecting = None
            self._back_off()
            self._fail_queue(refusal)
            return
        self._connecting = None
        if connection.retired:
            connection.retire()
            self.pump()
            return
        self._connection = connection
        connection.last_sent = loop.time()
        if self._alarm is not None:
            self._alarm.set(self._heartbeat_at(connection))
        self.pump()

    async def _introduced(self, connection: _Connection) -> str | None:
        """Return why ``connection``, which was just made, is not to be used; None if it is."""
        if self._introduce is None:
            return None

        async def first(request: m.Request) -> m.Response:
            opcode, header, parts = self._dialect.encode_request(request)
            if connection.closed:
                raise ConnectionLost("the connection was closed at once")

            def send(settle: Settle[m.Response]) -> None:
                call = _Call(settle, float("inf"), opcode, header, parts, -1, self.barrier)
                connection.send(call, asyncio.get_running_loop().time())

            return await awaited(send)

        try:
            async with asyncio.timeout(self._options.connect_timeout):
                refusal = await self._introduce(first)
        except TimeoutError:
            return "it did not say in time who it is"
        except SbpError as error:
            return error.message.removeprefix(f"{self._host}:{self._port}: ")
        except Exception as error:  # noqa: BLE001 - logged and counted there
            # Refuse the connection, so that waiting requests are answered; the next attempt may succeed.
            self.barrier.caught("introduction", error)
            return f"unexpected {type(error).__name__}: {error}"
        if refusal is None and connection.closed:
            return "the connection was closed at once"
        return refusal

    def _back_off(self) -> None:
        options = self._options
        pause = min(options.backoff_limit, options.backoff_first * 2 ** min(self._failures, 16))
        self._failures += 1
        # Jitter, so that the clients of a server that comes back do not all connect at the same moment.
        self._not_before = asyncio.get_running_loop().time() + pause * random.uniform(0.5, 1.0)

    def _fail_queue(self, reason: str) -> None:
        text = f"{self._host}:{self._port}: {reason}"
        calls = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        for call in calls:
            call.reply(ConnectionLost(text))

    def _ring(self, now: float) -> None:
        """React to a deadline that may have come: of a request in flight, of a waiting one, or for a heartbeat."""
        expired: list[TimedCall] = []
        earliest = float("inf")
        for connection in self._all:
            late = [number for number, call in connection.calls.items() if call.deadline <= now]
            for number in late:
                call = connection.calls.pop(number)
                connection.inflight_bytes -= call.size
                expired.append(call)
            for call in connection.calls.values():
                earliest = min(earliest, call.deadline)
        if any(call.deadline <= now for call in self._queue):
            kept: deque[_Call] = deque()
            for call in self._queue:
                if call.deadline <= now:
                    self._queued_bytes -= call.size
                    expired.append(call)
                else:
                    kept.append(call)
            self._queue = kept
        for call in self._queue:
            earliest = min(earliest, call.deadline)
        current = self._connection
        if current is not None:
            if self._heartbeat_at(current) <= now:
                earliest = min(earliest, self._heartbeat(current, now))
            earliest = min(earliest, self._heartbeat_at(current))
        if self._alarm is not None and earliest < float("inf"):
            self._alarm.set(earliest)
        for connection in [one for one in self._all if one.retired and not one.calls]:
            connection.drop("the server asked to go away")
        time_out(expired)
        self.pump()

    def _heartbeat_at(self, connection: _Connection) -> float:
        """Return when a heartbeat is due: nothing was sent for so long that the server might close the connection, or
        answers are due and nothing was heard for as long. Sent requests do not show that the peer lives, so they do not
        postpone the second case.
        """
        since = connection.last_sent
        if connection.calls and connection.asked_at < connection.last_heard:
            since = min(since, connection.last_heard)
        return since + self._options.heartbeat_idle

    def _heartbeat(self, connection: _Connection, now: float) -> float:
        """Send a heartbeat; return until when something must be heard."""

        def answered(answer: Answer) -> None:
            if isinstance(answer, ConnectionLost) and connection.last_heard <= now:
                connection.drop("nothing was heard, a heartbeat was not answered")

        deadline = now + self._options.heartbeat_timeout
        opcode, header, parts = self._dialect.encode_request(m.HeartbeatRequest(self._options.client_id))
        connection.asked_at = now
        connection.send(_Call(answered, deadline, opcode, header, parts, -1, self.barrier), now)
        return deadline


def parse_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``. Raises ``ValueError``."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, int(port)


def tcp_connector(
    options: TcpOptions | None = None,
    check: RangeServerCheck | None = None,
    barrier: Barrier | None = None,
) -> Callable[[m.RangeServerInfo], Carrier]:
    """Return a function that makes carriers to range servers at the addresses they advertise. ``check`` verifies on
    each new connection which server it leads to (None: accepts strangers).
    """
    asked = check if check is not None else RangeServerCheck(strangers=True)

    def connect(server: m.RangeServerInfo) -> Carrier:
        host, port = parse_address(server.advertise_addr)
        return TcpCarrier(host, port, None, options, partial(asked.meet, server.server_id), barrier)

    return connect
