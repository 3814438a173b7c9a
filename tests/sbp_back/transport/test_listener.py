"""The TCP listener: framing, order, limits and leave-taking, with raw sockets on one side and a puppet on the other."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbp_back.errors import ErrorCode, SbpError
from sbp_back.transport.handler import Reply
from sbp_back.transport.listener import GoAwayForm, Listener, ListenerOptions
from sbp_back.wire import model as m
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.frame import (
    GOAWAY_MAINTENANCE,
    RESPONSE_FLAGS,
    SYSTEM_ERROR_FLAGS,
    Frame,
    encode_frame,
)
from sbp_back.wire.v02 import DialectV02
from tests.kit.sbp_frames import Frames
from tests.kit.waiting import until

DIALECT = DialectV02()


class Puppet:
    """Answers pings at once; keeps everything else for the test to answer."""

    def __init__(self) -> None:
        self.requests: list[m.Request] = []
        self.replies: list[Reply] = []
        self.arrived = asyncio.Condition()

    def handle(self, request: m.Request, reply: Reply) -> None:
        self.requests.append(request)
        if isinstance(request, m.PingRequest):
            if request.header == b"defect":
                raise ZeroDivisionError("a defect of the handler")
            reply(m.PingResponse(request.header, request.payload))
        else:
            self.replies.append(reply)


class Peer:
    """A client made of a bare socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = Frames()
        self._received: list[Frame] = []
        self._next_id = 1

    def send(self, request: m.Request, stream_id: int | None = None) -> int:
        if stream_id is None:
            stream_id = self._next_id
            self._next_id += 1
        opcode, header, payload = DIALECT.encode_request(request)
        self.writer.writelines(encode_frame(opcode, 0, stream_id, header, payload))
        return stream_id

    async def frame(self) -> Frame | None:
        """The next frame, or None when the server has closed the connection."""
        while not self._received:
            try:
                data = await self.reader.read(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._received = self._frames.feed(data)
        return self._received.pop(0)

    async def response(self) -> tuple[int, m.Response]:
        frame = await self.frame()
        assert frame is not None, "the server closed the connection"
        return frame.stream_id, DIALECT.decode_response(frame.opcode, frame.flags, frame.header, frame.payload)

    async def ping(self) -> None:
        stream_id = self.send(m.PingRequest(b"", b"alive"))
        assert await self.response() == (stream_id, m.PingResponse(b"", b"alive"))

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def served(**options: object) -> AsyncIterator[tuple[Listener, Puppet]]:
    puppet = Puppet()
    listener = Listener(puppet, DIALECT, "127.0.0.1", 0, ListenerOptions(**options))  # type: ignore[arg-type]
    await listener.start()
    try:
        yield listener, puppet
    finally:
        await listener.close()


async def connect(listener: Listener) -> Peer:
    return Peer(*await asyncio.open_connection(*listener.address))


FETCH = m.FetchRequest(m.RangeInfo(0, 0, 0, 0), 0, max_wait_ms=100)


async def test_requests_are_handed_over_in_order_and_answered_as_they_finish() -> None:
    async with served() as (listener, puppet):
        peer = await connect(listener)
        for offset in range(5):
            peer.send(m.FetchRequest(m.RangeInfo(0, 0, 0, 0), offset, max_wait_ms=100))
        await until(lambda: len(puppet.requests) == 5)
        assert [r.offset for r in puppet.requests if isinstance(r, m.FetchRequest)] == list(range(5))
        for position in (3, 0, 4, 1, 2):
            puppet.replies[position](m.FetchResponse(m.Status(ErrorCode.NO_NEW_RECORD)))
        assert [(await peer.response())[0] for _ in range(5)] == [4, 1, 5, 2, 3]


async def test_a_normal_answer_ends_its_sequence() -> None:
    async with served() as (listener, _):
        peer = await connect(listener)
        peer.send(m.PingRequest(b"head", b"body"))
        frame = await peer.frame()
        assert frame is not None
        assert (frame.opcode, frame.flags, frame.header, bytes(frame.payload)) == (1, RESPONSE_FLAGS, b"head", b"body")


async def test_entries_arrive_and_leave_whole() -> None:
    async with served() as (listener, puppet):
        peer = await connect(listener)
        entries = [pack_entry(1, 0, 1, base, 1, 5, b"x" * size) for base, size in enumerate((1, 70_000, 900_000))]
        peer.send(m.AppendRequest(entries=entries))
        await until(lambda: bool(puppet.replies))
        request = puppet.requests[0]
        assert isinstance(request, m.AppendRequest)
        assert [bytes(e.payload) for e in request.entries] == [bytes(e.payload) for e in entries]
        puppet.replies[0](m.AppendResponse(results=[m.AppendResult(m.Status(), 7)] * 3))
        _, answer = await peer.response()
        assert isinstance(answer, m.AppendResponse)
        assert [r.timestamp_ms for r in answer.results] == [7, 7, 7]
        peer.send(FETCH)
        await until(lambda: len(puppet.replies) == 2)
        puppet.replies[1](m.FetchResponse(entries=request.entries))
        _, fetched = await peer.response()
        assert isinstance(fetched, m.FetchResponse)
        assert [bytes(e.payload) for e in fetched.entries] == [bytes(e.payload) for e in entries]


@pytest.mark.parametrize(
    ("opcode", "code"),
    [
        (0x2003, ErrorCode.UNSUPPORTED_OPERATION),
        (0x6001, ErrorCode.UNSUPPORTED_OPERATION),
        (0x7777, ErrorCode.UNKNOWN_OPERATION),
    ],
)
async def test_opcodes_nobody_serves(opcode: int, code: ErrorCode) -> None:
    async with served() as (listener, _):
        peer = await connect(listener)
        peer.writer.writelines(encode_frame(opcode, 0, 9))
        frame = await peer.frame()
        assert frame is not None
        assert (frame.opcode, frame.flags, frame.stream_id) == (opcode, SYSTEM_ERROR_FLAGS, 9)
        answer = DIALECT.decode_response(frame.opcode, frame.flags, frame.header, frame.payload)
        assert isinstance(answer, m.SystemErrorResponse)
        assert answer.status.code == code
        await peer.ping()


async def test_a_header_that_does_not_decode_is_answered_with_the_dialect_spoken_here() -> None:
    async with served() as (listener, puppet):
        peer = await connect(listener)
        peer.writer.writelines(encode_frame(m.Opcode.CREATE_STREAM, 0, 9, b"\xff" * 12))
        stream_id, answer = await peer.response()
        assert stream_id == 9
        assert isinstance(answer, m.SystemErrorResponse)
        assert answer.status.code == ErrorCode.BAD_REQUEST
        assert "sbp-0.2" in answer.status.message
        assert puppet.requests == []
        await peer.ping()


async def test_a_defect_of_the_handler_is_answered() -> None:
    async with served() as (listener, _):
        peer = await connect(listener)
        peer.send(m.PingRequest(b"defect"))
        _, answer = await peer.response()
        assert isinstance(answer, m.SystemErrorResponse)
        assert answer.status.code == ErrorCode.RS_INTERNAL_SERVER_ERROR
        await peer.ping()


async def test_an_answer_too_long_for_a_frame_becomes_an_error() -> None:
    async with served() as (listener, puppet):
        peer = await connect(listener)
        peer.send(FETCH)
        await until(lambda: bool(puppet.replies))
        half = pack_entry(0, 0, 0, 0, 1, 0, bytes(9 << 20))
        puppet.replies[0](m.FetchResponse(entries=[half, half]))
        _, answer = await peer.response()
        assert isinstance(answer, m.SystemErrorResponse)
        assert answer.status.code == ErrorCode.PAYLOAD_TOO_LARGE
        await peer.ping()


MALFORMED = {
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "wrong magic": struct.pack(">IBHBII", 16, 24, 1, 0, 1, 1 << 24) + bytes(4),
    "length too small": struct.pack(">IBHBII", 15, 23, 1, 0, 1, 1 << 24) + bytes(4),
    "length too large": struct.pack(">IBHBII", (1 << 24) + 1, 23, 1, 0, 1, 1 << 24) + bytes(4),
    "header longer than the frame": struct.pack(">IBHBII", 16, 23, 1, 0, 1, 1 << 24 | 5) + bytes(4),
    "wrong crc": struct.pack(">IBHBII", 17, 23, 1, 0, 1, 1 << 24) + b"x" + bytes(4),
    "a response": b"".join(encode_frame(m.Opcode.PING, RESPONSE_FLAGS, 1)),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_bytes_cost_only_their_connection(data: bytes) -> None:
    async with served() as (listener, _):
        bystander = await connect(listener)
        peer = await connect(listener)
        await peer.ping()
        peer.writer.write(data)
        assert await peer.frame() is None
        await bystander.ping()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), cut=st.integers(0, 40))
async def test_any_bytes_leave_the_listener_working(data: bytes, cut: int) -> None:
    async with served() as (listener, _):
        peer = await connect(listener)
        good = b"".join(encode_frame(m.Opcode.PING, 0, 1, b"", [b"x"]))
        peer.writer.write(good[:cut] + data)
        peer.writer.write_eof()
        while await peer.frame() is not None:
            pass
        await (await connect(listener)).ping()


async def test_a_stream_id_under_way_cannot_be_used_again() -> None:
    async with served() as (listener, _):
        peer = await connect(listener)
        peer.send(FETCH, 5)
        peer.send(FETCH, 5)
        assert await peer.frame() is None
        again = await connect(listener)
        again.send(m.PingRequest(), 5)
        await again.response()
        again.send(m.PingRequest(), 5)
        assert (await again.response())[0] == 5


async def test_answers_after_the_client_is_gone_go_nowhere() -> None:
    async with served() as (listener, puppet):
        peer = await connect(listener)
        peer.send(FETCH)
        await until(lambda: bool(puppet.replies))
        peer.close()
        await until(lambda: len(listener.connections) == 0)
        puppet.replies[0](m.FetchResponse())


async def test_reading_stops_while_too_much_is_unanswered() -> None:
    async with served(max_unanswered_requests=10) as (listener, puppet):
        peer = await connect(listener)
        bystander = await connect(listener)
        for _ in range(30):
            peer.send(FETCH)
        await until(lambda: len(puppet.requests) == 10)
        await bystander.ping()
        await bystander.ping()
        fetches = [r for r in puppet.requests if isinstance(r, m.FetchRequest)]
        assert len(fetches) == 10
        for answered in range(30):
            await until(lambda n=answered: len(puppet.replies) > n)  # type: ignore[misc]
            puppet.replies[answered](m.FetchResponse(m.Status(ErrorCode.NO_NEW_RECORD)))
        assert [(await peer.response())[0] for _ in range(30)] == list(range(1, 31))


async def test_unanswered_bytes_are_bounded_but_one_request_always_passes() -> None:
    async with served(connection_bytes=100_000) as (listener, puppet):
        peer = await connect(listener)
        for base in range(8):
            peer.send(m.AppendRequest(entries=[pack_entry(0, 0, 0, base, 1, 0, bytes(300_000))]))
        await until(lambda: bool(puppet.replies))
        await (await connect(listener)).ping()
        for answered in range(8):
            await until(lambda n=answered: len(puppet.replies) > n)  # type: ignore[misc]
            assert len(puppet.replies) == answered + 1, "never two of them at a time"
            puppet.replies[answered](m.AppendResponse(results=[m.AppendResult(m.Status(), 1)]))
        assert [(await peer.response())[0] for _ in range(8)] == list(range(1, 9))


async def test_a_slow_reader_is_not_served_further_until_it_reads() -> None:
    async with served(write_buffer_bytes=1 << 16) as (listener, puppet):
        peer = await connect(listener)
        peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        total = 400
        for _ in range(total):
            peer.send(m.PingRequest(b"", bytes(100_000)))
        # Everything the two kernels take is read and answered; then the answers are in the way.
        bystander = await connect(listener)

        def taken() -> int:
            return sum(1 for r in puppet.requests if isinstance(r, m.PingRequest) and len(r.payload) == 100_000)

        seen = -1
        while taken() != seen:
            seen = taken()
            for _ in range(50):
                await bystander.ping()
        assert seen < total
        for expected in range(1, total + 1):
            assert (await peer.response())[0] == expected


async def test_a_client_that_never_reads_is_cut() -> None:
    async with served(write_buffer_bytes=1 << 16, write_limit_bytes=1 << 20, idle_seconds=0) as (listener, puppet):
        peer = await connect(listener)
        for _ in range(40):
            peer.send(FETCH)
        await until(lambda: len(puppet.replies) == 40)
        entry = pack_entry(0, 0, 0, 0, 1, 0, bytes(1 << 20))
        for reply in puppet.replies:
            reply(m.FetchResponse(entries=[entry]))
        await until(lambda: len(listener.connections) == 0)


async def test_a_client_that_takes_nothing_for_long_is_cut_though_requests_are_under_way() -> None:
    """Half-open or stuck: its answers would be kept until the kernel gives the connection up."""
    async with served(write_buffer_bytes=1 << 16, stall_seconds=0.05, idle_seconds=0) as (listener, puppet):
        peer = await connect(listener)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.send(FETCH)
        for _ in range(200):
            peer.send(m.PingRequest(b"", bytes(100_000)))
        await until(lambda: len(listener.connections) == 0)
        assert len(puppet.requests) < 200, "its answers were in the way"


async def test_a_slow_reader_is_not_cut_as_long_as_it_takes_anything() -> None:
    async with served(write_buffer_bytes=1 << 16, stall_seconds=60, idle_seconds=0) as (listener, _):
        peer = await connect(listener)
        reading = peer.writer.transport
        reading.pause_reading()  # type: ignore[attr-defined]
        peer.send(FETCH)
        for _ in range(200):
            peer.send(m.PingRequest(b"", bytes(100_000)))
        (connection,) = listener.connections
        await until(lambda: connection.write_paused)
        since = connection.stalled_since
        connection.look_after(since + 59)
        assert listener.connections
        reading.resume_reading()  # type: ignore[attr-defined]
        while connection.stalled_since == since:
            await peer.frame()
        reading.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: since < connection.stalled_since < math.inf)
        connection.look_after(since + 60)
        connection.look_after(connection.stalled_since + 59)
        assert listener.connections
        connection.look_after(connection.stalled_since + 60)
        await until(lambda: not listener.connections)


async def test_the_system_asks_silent_clients_for_a_sign_of_life() -> None:
    """One that waits for data for minutes may be gone without a word."""
    async with served(stall_seconds=60) as (listener, _):
        await (await connect(listener)).ping()
        (connection,) = listener.connections
        assert connection.transport is not None
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 45


async def test_idle_connections_are_closed_without_a_word_by_a_range_server() -> None:
    async with served(idle_seconds=0.05) as (listener, _):
        peer = await connect(listener)
        await peer.ping()
        assert await peer.frame() is None


async def test_idle_connections_get_a_goaway_from_a_placement_driver() -> None:
    async with served(idle_seconds=0.05, linger_seconds=0.01, goaway=GoAwayForm.PLACEMENT_DRIVER) as (listener, _):
        peer = await connect(listener)
        await peer.ping()
        frame = await peer.frame()
        assert frame is not None
        assert (frame.opcode, frame.flags, frame.stream_id, frame.header) == (m.Opcode.GOAWAY, 0, 2, b"")
        assert await peer.frame() is None


async def test_a_connection_that_waits_for_an_answer_is_not_idle() -> None:
    async with served(idle_seconds=0.02) as (listener, puppet):
        waiting = await connect(listener)
        waiting.send(FETCH)
        await until(lambda: bool(puppet.replies))
        for _ in range(3):  # as long as three idle connections take to be closed, one after the other
            idle = await connect(listener)
            assert await idle.frame() is None
        puppet.replies[0](m.FetchResponse(m.Status(ErrorCode.NO_NEW_RECORD)))
        assert (await waiting.response())[0] == 1


@pytest.mark.parametrize("form", GoAwayForm)
async def test_drain_says_goaway_answers_what_is_under_way_and_closes(form: GoAwayForm) -> None:
    async with served(goaway=form, linger_seconds=0.01) as (listener, puppet):
        address = listener.address
        busy = await connect(listener)
        idle = await connect(listener)
        await idle.ping()
        busy.send(FETCH)
        await until(lambda: bool(puppet.replies))
        draining = asyncio.ensure_future(listener.drain())
        for peer, next_id in ((idle, 2), (busy, 2)):
            frame = await peer.frame()
            assert frame is not None
            assert frame.opcode == m.Opcode.GOAWAY
            if form is GoAwayForm.RANGE_SERVER:
                assert (frame.flags, frame.stream_id, frame.header) == (GOAWAY_MAINTENANCE, 0, b"")
            else:
                assert (frame.flags, frame.stream_id, frame.header) == (0, next_id, b"")
        assert await idle.frame() is None
        assert not draining.done()
        with pytest.raises(OSError, match=r".*"):
            await asyncio.open_connection(*address)
        puppet.replies[0](m.FetchResponse(m.Status(ErrorCode.NO_NEW_RECORD)))
        assert (await busy.response())[0] == 1
        assert await busy.frame() is None
        await draining


async def test_drain_cuts_clients_that_do_not_end() -> None:
    async with served(drain_seconds=0.05) as (listener, puppet):
        peer = await connect(listener)
        peer.send(FETCH)
        await until(lambda: bool(puppet.replies))
        await listener.drain()
        assert len(listener.connections) == 0


@pytest.mark.parametrize("form", GoAwayForm)
async def test_a_client_takes_its_leave(form: GoAwayForm) -> None:
    async with served(goaway=form, linger_seconds=0.01) as (listener, _):
        peer = await connect(listener)
        peer.writer.writelines(encode_frame(m.Opcode.GOAWAY, GOAWAY_MAINTENANCE, 3))
        if form is GoAwayForm.PLACEMENT_DRIVER:
            frame = await peer.frame()
            assert frame is not None
            assert (frame.opcode, frame.flags, frame.stream_id) == (m.Opcode.GOAWAY, RESPONSE_FLAGS, 3)
        assert await peer.frame() is None


async def test_more_connections_than_allowed_are_refused() -> None:
    async with served(max_connections=2) as (listener, _):
        first, second = await connect(listener), await connect(listener)
        await first.ping()
        await second.ping()
        third = await connect(listener)
        assert await third.frame() is None
        first.close()
        await until(lambda: len(listener.connections) == 1)
        await (await connect(listener)).ping()


async def test_two_hundred_connections() -> None:
    async with served() as (listener, puppet):
        peers = await asyncio.gather(*(connect(listener) for _ in range(200)))
        for _ in range(5):
            await asyncio.gather(*(peer.ping() for peer in peers))
        assert len(puppet.requests) == 1000
        assert len(listener.connections) == 200
        await listener.close()
        assert len(listener.connections) == 0


async def test_address_in_use_and_not_started() -> None:
    async with served() as (listener, puppet):
        second = Listener(puppet, DIALECT, *listener.address)
        with pytest.raises(RuntimeError):
            _ = second.address
        with pytest.raises(OSError, match="in use"):
            await second.start()
        await second.close()


async def test_an_answer_no_frame_can_hold_is_told() -> None:
    async with served() as (listener, puppet):
        peer = await connect(listener)
        peer.send(m.AllocateIdRequest())
        await until(lambda: bool(puppet.replies))
        puppet.replies[0](m.AllocateIdResponse(id=1 << 31))
        _, answer = await peer.response()
        assert isinstance(answer, m.SystemErrorResponse)
        assert answer.status.code == ErrorCode.RS_INTERNAL_SERVER_ERROR
        await peer.ping()


async def test_an_error_the_dialect_raises_for_an_answer_is_told() -> None:
    class Mute:
        """A dialect that cannot express one answer."""

        name = "mute"

        def __getattr__(self, name: str) -> object:
            return getattr(DIALECT, name)

        def encode_response(self, opcode: int, response: m.Response) -> object:
            if isinstance(response, m.PingResponse):
                raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, "no words for it")
            return DIALECT.encode_response(opcode, response)

    listener = Listener(Puppet(), Mute(), "127.0.0.1", 0)  # type: ignore[arg-type]
    await listener.start()
    peer = await connect(listener)
    peer.send(m.PingRequest())
    _, answer = await peer.response()
    assert isinstance(answer, m.SystemErrorResponse)
    assert answer.status.code == ErrorCode.UNSUPPORTED_OPERATION
    await listener.close()
