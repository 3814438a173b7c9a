"""Both carriers keep the same promises; the TCP one keeps them on a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from sbp_back.errors import ConnectionLost, ErrorCode
from sbp_back.transport.carrier import Answer, Carrier, InProcessCarrier
from sbp_back.transport.handler import Reply
from sbp_back.transport.listener import Listener
from sbp_back.transport.tcp_carrier import TcpCarrier, TcpOptions, parse_address, tcp_connector
from sbp_back.wire import model as w
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.frame import GOAWAY_MAINTENANCE, RESPONSE_FLAGS, Frame, encode_frame
from sbp_back.wire.v02 import DialectV02
from sbp_document.wire import messages as m
from sbp_document.wire.v01 import V01
from tests.kit.sbp_frames import Frames
from tests.kit.waiting import until
from tests.sbp_document.document_lab import DIALECTS

DIALECT = DialectV02()
LOCAL = "127.0.0.1"


@dataclass
class Scripted:
    """Echoes pings; keeps everything else until it is told to answer."""

    kept: list[tuple[w.Request, Reply]] = field(default_factory=list)
    seen: list[w.Request] = field(default_factory=list)

    def handle(self, request: w.Request, reply: Reply) -> None:
        self.seen.append(request)
        if isinstance(request, w.PingRequest):
            reply(w.PingResponse(request.header, request.payload))
        elif isinstance(request, w.HeartbeatRequest):
            reply(w.HeartbeatResponse(request.client_id, request.role))
        elif not isinstance(request, w.GoAway):
            self.kept.append((request, reply))

    def answer(self, position: int = 0) -> None:
        request, reply = self.kept.pop(position)
        assert isinstance(request, w.DescribeStreamRequest)
        reply(w.StreamResponse(w.Status(ErrorCode.NOT_FOUND, str(request.stream_id))))


@asynccontextmanager
async def reaching(kind: str, handler: Scripted, options: TcpOptions | None = None) -> AsyncIterator[Carrier]:
    if kind == "in-process":
        carrier: Carrier = InProcessCarrier(handler)
        yield carrier
        await carrier.close()
        return
    listener = Listener(handler, DIALECT, LOCAL, 0)
    await listener.start()
    carrier = TcpCarrier(*listener.address, options=options)
    yield carrier
    await carrier.close()
    await listener.close()


both = pytest.mark.parametrize("kind", ["in-process", "tcp"])


# --- both -----------------------------------------------------------------------------------------------------------


@both
async def test_ping_comes_back(kind: str) -> None:
    async with reaching(kind, Scripted()) as carrier:
        assert await carrier.call(w.PingRequest(b"head", b"body")) == w.PingResponse(b"head", b"body")


@both
async def test_requests_arrive_in_order_and_answers_find_their_request(kind: str) -> None:
    handler = Scripted()
    async with reaching(kind, handler) as carrier:
        got: list[tuple[int, Answer]] = []
        for k in range(100):
            carrier.submit(w.DescribeStreamRequest(k), lambda answer, k=k: got.append((k, answer)))  # type: ignore[misc]
        await until(lambda: len(handler.kept) == 100)
        assert [request.stream_id for request, _ in handler.kept] == list(range(100))  # type: ignore[union-attr]
        while handler.kept:
            handler.answer(len(handler.kept) // 2)
        await until(lambda: len(got) == 100)
        assert sorted(k for k, _ in got) == list(range(100))
        for k, answer in got:
            assert answer == w.StreamResponse(w.Status(ErrorCode.NOT_FOUND, str(k)))


@both
async def test_timeout_and_a_late_answer(kind: str) -> None:
    handler = Scripted()
    async with reaching(kind, handler) as carrier:
        assert (
            await carrier.call(w.PingRequest()) == w.PingResponse()
        )  # connected: to connect may take longer than that
        got: list[Answer] = []
        carrier.submit(w.DescribeStreamRequest(1), got.append, 0.02)
        carrier.submit(w.DescribeStreamRequest(2), got.append, 60)
        await until(lambda: len(handler.kept) == 2)
        await until(lambda: len(got) == 1)
        assert isinstance(got[0], ConnectionLost)
        handler.answer()
        handler.answer()
        await until(lambda: len(got) == 2)
        assert got[1] == w.StreamResponse(w.Status(ErrorCode.NOT_FOUND, "2"))
        assert await carrier.call(w.PingRequest()) == w.PingResponse()
        assert len(got) == 2, "the late answer went nowhere"


@both
async def test_earlier_deadline_after_a_later_one(kind: str) -> None:
    handler = Scripted()
    async with reaching(kind, handler) as carrier:
        got: list[int] = []
        carrier.submit(w.DescribeStreamRequest(1), lambda _: got.append(1), 60)
        carrier.submit(w.DescribeStreamRequest(2), lambda _: got.append(2), 0.02)
        await until(lambda: bool(got))
        carrier.submit(w.DescribeStreamRequest(3), lambda _: got.append(3), 0.02)
        await until(lambda: len(got) == 2)
        assert got == [2, 3], "the first one's time is not up yet"


@both
async def test_close_answers_everything(kind: str) -> None:
    handler = Scripted()
    async with reaching(kind, handler) as carrier:
        got: list[Answer] = []
        for k in range(3):
            carrier.submit(w.DescribeStreamRequest(k), got.append)
        await until(lambda: len(handler.kept) == 3)
        await carrier.close()
        assert [type(answer) for answer in got] == [ConnectionLost] * 3
        carrier.submit(w.PingRequest(), got.append)
        assert isinstance(got[3], ConnectionLost)
        with pytest.raises(ConnectionLost):
            await carrier.call(w.PingRequest())
        await carrier.close()
        handler.answer()
        assert len(got) == 4


@both
async def test_goaway_is_not_answered(kind: str) -> None:
    handler = Scripted()
    async with reaching(kind, handler) as carrier:
        got: list[Answer] = []
        await carrier.call(w.PingRequest())
        carrier.submit(w.GoAway(), got.append)
        await carrier.call(w.PingRequest())
        assert got == []


@both
async def test_submitting_from_inside_a_reply(kind: str) -> None:
    async with reaching(kind, Scripted()) as carrier:
        got: list[Answer] = []

        def again(answer: Answer) -> None:
            got.append(answer)
            if len(got) < 50:
                carrier.submit(w.PingRequest(b"", b"%d" % len(got)), again)

        carrier.submit(w.PingRequest(b"", b"0"), again)
        await until(lambda: len(got) == 50)
        assert got == [w.PingResponse(b"", b"%d" % k) for k in range(50)]


@both
async def test_entries_arrive_as_they_were_sent(kind: str) -> None:
    handler = Scripted()
    async with reaching(kind, handler) as carrier:
        got: list[Answer] = []
        sizes = [0, 1, 1000, 70_000, 3_000_000]
        sent = [pack_entry(1, 2, 3, k, 1, 5, bytes([k]) * size) for k, size in enumerate(sizes)]
        carrier.submit(w.AppendRequest(7, sent), got.append)
        carrier.submit(w.AppendRequest(7, sent[4:]), got.append)
        await until(lambda: len(handler.kept) == 2)
        for entries, (request, reply) in zip([sent, sent[4:]], handler.kept, strict=True):
            assert isinstance(request, w.AppendRequest)
            assert request.timeout_ms == 7
            for expected, entry in zip(entries, request.entries, strict=True):
                assert bytes(entry.prefix) == bytes(expected.prefix)
                assert entry.payload == expected.payload
            reply(w.AppendResponse(results=[w.AppendResult(w.Status(), k) for k in range(len(entries))]))
        await until(lambda: len(got) == 2)
        assert isinstance(got[0], w.AppendResponse)
        assert [result.timestamp_ms for result in got[0].results] == [0, 1, 2, 3, 4]


def raising(*_: object) -> None:
    raise RuntimeError("a defect of the caller's")


@both
async def test_a_reply_that_raises_costs_nobody_else_an_answer(kind: str) -> None:
    handler = Scripted()
    async with reaching(kind, handler) as carrier:
        got: list[Answer] = []
        for reply in (got.append, raising, got.append):
            carrier.submit(w.PingRequest(), reply)
        await until(lambda: len(got) == 2)
        assert got == [w.PingResponse()] * 2, "whose answers come in one turn"
        for reply in (raising, got.append):
            carrier.submit(w.DescribeStreamRequest(1), reply, 0.01)
        await until(lambda: len(got) == 3)
        for reply in (raising, got.append):
            carrier.submit(w.DescribeStreamRequest(1), reply)
        await until(lambda: len(handler.kept) == 4)
        assert await carrier.call(w.PingRequest()) == w.PingResponse(), "the connection is the same"
        await carrier.close()
        assert isinstance(got[3], ConnectionLost)


@both
async def test_a_handler_that_raises_answers_its_request_all_the_same(kind: str) -> None:
    handler = Scripted()
    async with reaching(kind, handler) as carrier:
        handler.kept = None  # type: ignore[assignment]
        answer = await carrier.call(w.DescribeStreamRequest(1))
        assert isinstance(answer, w.SystemErrorResponse)
        assert answer.status.code == ErrorCode.RS_INTERNAL_SERVER_ERROR
        assert await carrier.call(w.PingRequest()) == w.PingResponse()


# --- TCP ------------------------------------------------------------------------------------------------------------


class Peer:
    """A server under the test's control, one frame at a time."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> int:
        self._server = await asyncio.start_server(self._serve, LOCAL, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        frames = Frames()
        try:
            while data := await reader.read(65536):
                for frame in frames.feed(data):
                    self.frames.put_nowait(frame)
        except ConnectionError:
            pass
        writer.close()

    def send(self, connection: int, *parts: bytes) -> None:
        self.writers[connection].write(b"".join(parts))

    def echo(self, connection: int, frame: Frame) -> None:
        parts = encode_frame(frame.opcode, RESPONSE_FLAGS, frame.stream_id, frame.header, [frame.payload])
        self.send(connection, *(bytes(part) for part in parts))

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for writer in self.writers:
            try:
                await writer.wait_closed()
            except ConnectionError:
                continue


@asynccontextmanager
async def peer_and_carrier(
    options: TcpOptions | None = None, dialect: str = "sbp-0.2"
) -> AsyncIterator[tuple[Peer, TcpCarrier]]:
    peer = Peer()
    options = options or TcpOptions(backoff_first=0.001)
    carrier = TcpCarrier(LOCAL, await peer.start(), DIALECTS[dialect], options)
    yield peer, carrier
    await carrier.close()
    await peer.stop()


async def test_stream_ids_start_at_one_and_grow() -> None:
    async with peer_and_carrier() as (peer, carrier):
        for k in range(3):
            carrier.submit(w.PingRequest(b"%d" % k), lambda _: None)
        frames = [await peer.frames.get() for _ in range(3)]
        assert [(frame.stream_id, frame.header, frame.flags) for frame in frames] == [
            (1, b"0", 0),
            (2, b"1", 0),
            (3, b"2", 0),
        ]
        assert peer.connections == 1


async def test_death_of_the_connection_answers_what_is_in_flight() -> None:
    async with peer_and_carrier() as (peer, carrier):
        got: list[Answer] = []
        for _ in range(5):
            carrier.submit(w.PingRequest(), got.append)
        for _ in range(5):
            await peer.frames.get()
        peer.cut()
        await until(lambda: len(got) == 5)
        assert all(isinstance(answer, ConnectionLost) for answer in got)
        again = asyncio.ensure_future(carrier.call(w.PingRequest(b"again")))
        frame = await peer.frames.get()
        assert frame.stream_id == 1, "ids are per connection"
        peer.echo(1, frame)
        assert await again == w.PingResponse(b"again")


async def test_a_server_that_is_not_there_yet() -> None:
    peer = Peer()
    port = await peer.start()
    await peer.stop()
    carrier = TcpCarrier(LOCAL, port, options=TcpOptions(backoff_first=0.001, backoff_limit=0.01))
    for _ in range(3):
        with pytest.raises(ConnectionLost, match="cannot connect"):
            await carrier.call(w.PingRequest())
    peer = Peer()
    await peer.start(port)
    answer = asyncio.ensure_future(carrier.call(w.PingRequest(b"there")))
    peer.echo(0, await peer.frames.get())
    assert await answer == w.PingResponse(b"there")
    await carrier.close()
    await peer.stop()


async def test_requests_wait_for_the_connection_no_longer_than_their_time() -> None:
    carrier = TcpCarrier(LOCAL, 9, options=TcpOptions(backoff_first=30, backoff_limit=30))
    with pytest.raises(ConnectionLost, match="cannot connect"):
        await carrier.call(w.PingRequest())
    with pytest.raises(ConnectionLost, match="in time"):
        await carrier.call(w.PingRequest(), 0.01)
    await carrier.close()


@pytest.mark.parametrize("flags", [0, GOAWAY_MAINTENANCE])
async def test_goaway_finishes_what_is_in_flight_and_connects_anew(flags: int) -> None:
    async with peer_and_carrier() as (peer, carrier):
        old = asyncio.ensure_future(carrier.call(w.PingRequest(b"old")))
        first = await peer.frames.get()
        peer.send(0, *(bytes(part) for part in encode_frame(w.Opcode.GOAWAY, flags, 0)))
        await until(lambda: not carrier.connected)
        new = asyncio.ensure_future(carrier.call(w.PingRequest(b"new")))
        second = await peer.frames.get()
        assert peer.connections == 2
        peer.echo(1, second)
        assert await new == w.PingResponse(b"new")
        assert not old.done()
        peer.echo(0, first)
        assert await old == w.PingResponse(b"old")
        await until(lambda: peer.writers[0].is_closing())


async def test_goaway_of_a_draining_listener() -> None:
    handler = Scripted()
    listener = Listener(handler, DIALECT, LOCAL, 0)
    await listener.start()
    carrier = TcpCarrier(*listener.address)
    got: list[Answer] = []
    carrier.submit(w.DescribeStreamRequest(5), got.append)
    await until(lambda: len(handler.kept) == 1)
    draining = asyncio.ensure_future(listener.drain())
    await until(lambda: not carrier.connected)
    handler.answer()
    await draining
    assert got == [w.StreamResponse(w.Status(ErrorCode.NOT_FOUND, "5"))]
    await carrier.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"this is not a frame at all, whatever one may think of it",
        b"".join(bytes(p) for p in encode_frame(w.Opcode.DESCRIBE_STREAM, RESPONSE_FLAGS, 1, b"\xff" * 40)),
    ],
)
async def test_malformed_answers_cost_the_connection(reply: bytes) -> None:
    async with peer_and_carrier() as (peer, carrier):
        got: list[Answer] = []
        carrier.submit(w.DescribeStreamRequest(1), got.append)
        carrier.submit(w.DescribeStreamRequest(2), got.append)
        await peer.frames.get()
        peer.send(0, reply)
        await until(lambda: len(got) == 2)
        assert all(isinstance(answer, ConnectionLost) and "malformed" in answer.message for answer in got)
        assert not carrier.connected


DIALECT_NAMES = ["sbp-0.2", "sbp-v0.1", "sbp-v0.1-april"]


@pytest.mark.parametrize("opcode", [w.Opcode.APPEND, w.Opcode.HEARTBEAT, w.Opcode.DESCRIBE_PD])
@pytest.mark.parametrize("dialect", DIALECT_NAMES)
async def test_an_answer_of_another_opcode_costs_the_connection(dialect: str, opcode: w.Opcode) -> None:
    """An empty header would pass for anybody's answer."""
    async with peer_and_carrier(dialect=dialect) as (peer, carrier):
        got: list[Answer] = []
        carrier.submit(w.PingRequest(b"first"), got.append)
        carrier.submit(w.PingRequest(b"second"), got.append)
        frames = [await peer.frames.get() for _ in range(2)]
        peer.send(0, *(bytes(p) for p in encode_frame(opcode, RESPONSE_FLAGS, frames[0].stream_id)))
        await until(lambda: len(got) == 2)
        assert all(isinstance(answer, ConnectionLost) and "malformed" in answer.message for answer in got)
        assert not carrier.connected
        again = asyncio.ensure_future(carrier.call(w.PingRequest(b"again")))
        peer.echo(1, await peer.frames.get())
        assert await again == w.PingResponse(b"again")


@pytest.mark.parametrize("opcode", [w.Opcode.PING, w.Opcode.APPEND, 0, 0x7777])
@pytest.mark.parametrize("dialect", DIALECT_NAMES)
async def test_a_system_error_answers_under_any_opcode(dialect: str, opcode: int) -> None:
    async with peer_and_carrier(dialect=dialect) as (peer, carrier):
        answer = asyncio.ensure_future(carrier.call(w.PingRequest()))
        frame = await peer.frames.get()
        error = w.SystemErrorResponse(w.Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "broken"))
        flags, header, _ = DIALECTS[dialect].encode_response(w.Opcode.PING, error)
        peer.send(0, *(bytes(p) for p in encode_frame(opcode, flags, frame.stream_id, header)))
        assert await answer == error


@pytest.mark.parametrize("dialect", ["sbp-v0.1", "sbp-v0.1-april"])
async def test_frames_of_an_unknown_opcode_are_discarded_by_the_documents_client(dialect: str) -> None:
    """The document: "Implementations MUST ignore and discard any frame with an unknown opcode"."""
    async with peer_and_carrier(dialect=dialect) as (peer, carrier):
        answer = asyncio.ensure_future(carrier.call(w.PingRequest(b"ours")))
        ours = await peer.frames.get()
        for opcode in (0, 0x5001, 0x7777):
            peer.send(0, *(bytes(p) for p in encode_frame(opcode, RESPONSE_FLAGS, ours.stream_id, b"theirs")))
        peer.echo(0, ours)
        assert await answer == w.PingResponse(b"ours")
        assert peer.connections == 1


@pytest.mark.parametrize(("opcode", "good"), [(0x2005, True), (0x2004, True), (0x2002, False)])
async def test_both_opcodes_of_describe_ranges_answer_it(opcode: int, good: bool) -> None:
    """The document names 0x2005 in its table and 0x2004 in the section (docs/protocols/sbp.md, "Contradictions of the
    document", 1)."""
    async with peer_and_carrier(dialect="sbp-v0.1") as (peer, carrier):
        got: list[Answer] = []
        carrier.submit(m.DescribeRangesRequest(ranges=[m.RangeId(1, 2)]), got.append)
        frame = await peer.frames.get()
        assert frame.opcode == 0x2005
        response = m.DescribeRangesResponse(results=[m.RangeItemResult(1, m.DocumentRange(1, 2))])
        _, header, _ = V01.encode_response(w.Opcode.DESCRIBE_RANGE, response)
        peer.send(0, *(bytes(p) for p in encode_frame(opcode, RESPONSE_FLAGS, frame.stream_id, header)))
        await until(lambda: len(got) == 1)
        assert (got == [response]) is good
        assert isinstance(got[0], ConnectionLost) is not good


async def test_an_introduction_that_fails_unexpectedly_fails_what_waits_and_is_tried_again() -> None:
    peer = Peer()
    asked: list[int] = []

    async def introduce(ask: object) -> str | None:
        asked.append(1)
        if len(asked) == 1:
            raise RuntimeError("a defect of ours")
        return None

    options = TcpOptions(backoff_first=0.001)
    carrier = TcpCarrier(LOCAL, await peer.start(), DIALECT, options, introduce)
    with pytest.raises(ConnectionLost, match="unexpected"):
        await carrier.call(w.PingRequest())
    answer = asyncio.ensure_future(carrier.call(w.PingRequest(b"again")))
    peer.echo(1, await peer.frames.get())
    assert await answer == w.PingResponse(b"again")
    await carrier.close()
    await peer.stop()


async def test_answers_nobody_asked_for_are_ignored() -> None:
    async with peer_and_carrier() as (peer, carrier):
        answer = asyncio.ensure_future(carrier.call(w.PingRequest()))
        frame = await peer.frames.get()
        peer.send(0, *(bytes(p) for p in encode_frame(w.Opcode.PING, RESPONSE_FLAGS, 99)))
        peer.echo(0, frame)
        assert await answer == w.PingResponse()


@pytest.mark.parametrize("dialect", ["sbp-0.2", "sbp-v0.1"])
async def test_a_ping_of_the_server_is_answered(dialect: str) -> None:
    """PING frames can be sent from any endpoint; the server's stream ids are not ours."""
    async with peer_and_carrier(dialect=dialect) as (peer, carrier):
        answer = asyncio.ensure_future(carrier.call(w.PingRequest(b"ours")))
        ours = await peer.frames.get()
        for payload in (b"", b"and more"):
            peer.send(0, *(bytes(p) for p in encode_frame(w.Opcode.PING, 0, ours.stream_id, b"theirs", [payload])))
            pong = await peer.frames.get()
            assert (pong.opcode, pong.flags, pong.stream_id) == (w.Opcode.PING, RESPONSE_FLAGS, ours.stream_id)
            assert (pong.header, bytes(pong.payload)) == (b"theirs", payload)
        assert not answer.done()
        peer.echo(0, ours)
        assert await answer == w.PingResponse(b"ours")


async def test_frames_of_another_magic_number_are_discarded_by_the_documents_client() -> None:
    async with peer_and_carrier(dialect="sbp-v0.1") as (peer, carrier):
        answer = asyncio.ensure_future(carrier.call(w.PingRequest(b"ours")))
        ours = await peer.frames.get()
        foreign = bytearray(b"".join(bytes(p) for p in encode_frame(w.Opcode.PING, RESPONSE_FLAGS, ours.stream_id)))
        foreign[4] = 24
        peer.send(0, bytes(foreign))
        peer.echo(0, ours)
        assert await answer == w.PingResponse(b"ours")
        assert peer.connections == 1


async def test_idle_connections_send_heartbeats() -> None:
    options = TcpOptions(heartbeat_idle=0.02, heartbeat_timeout=30, client_id="me")
    async with peer_and_carrier(options) as (peer, carrier):
        answer = asyncio.ensure_future(carrier.call(w.PingRequest()))
        peer.echo(0, await peer.frames.get())
        await answer
        for _ in range(3):
            frame = await peer.frames.get()
            assert DIALECT.decode_request(frame.opcode, frame.header, frame.payload) == w.HeartbeatRequest("me")
            header = DIALECT.encode_response(w.Opcode.HEARTBEAT, w.HeartbeatResponse("me"))[1]
            peer.send(0, *(bytes(p) for p in encode_frame(frame.opcode, RESPONSE_FLAGS, frame.stream_id, header)))
        assert peer.connections == 1


async def test_an_unanswered_heartbeat_means_the_peer_is_gone() -> None:
    async with peer_and_carrier(TcpOptions(heartbeat_idle=0.02, heartbeat_timeout=0.02)) as (peer, carrier):
        got: list[Answer] = []
        carrier.submit(w.PingRequest(), got.append)  # its own time is 30 s
        assert (await peer.frames.get()).opcode == w.Opcode.PING
        assert (await peer.frames.get()).opcode == w.Opcode.HEARTBEAT
        await until(lambda: len(got) == 1)
        assert isinstance(got[0], ConnectionLost)


async def test_a_peer_that_is_never_heard_is_dropped_however_much_is_sent_to_it() -> None:
    """A half-open connection takes everything and brings nothing, until the kernel gives it up minutes later."""
    async with peer_and_carrier(TcpOptions(heartbeat_idle=0.05, heartbeat_timeout=0.05)) as (peer, carrier):
        got: list[Answer] = []
        loop = asyncio.get_running_loop()

        def send() -> None:
            # More often than a heartbeat is due by what is sent, and with plenty of time.
            carrier.submit(w.PingRequest(b"anybody there?"), got.append, 60)
            if not got:
                loop.call_later(0.01, send)

        send()
        await until(lambda: len(got) > 1)
        assert all(isinstance(answer, ConnectionLost) for answer in got)
        assert "heard" in str(got[0])
        answer = asyncio.ensure_future(carrier.call(w.PingRequest(b"again")))
        await until(lambda: peer.connections == 2)
        while (frame := await peer.frames.get()).header != b"again":
            pass
        peer.echo(1, frame)
        assert await answer == w.PingResponse(b"again")


async def test_a_peer_that_is_heard_may_leave_a_heartbeat_unanswered() -> None:
    async with peer_and_carrier(TcpOptions(heartbeat_idle=0.05, heartbeat_timeout=0.02)) as (peer, carrier):
        got: list[Answer] = []
        carrier.submit(w.DescribeStreamRequest(1), got.append, 60)
        assert (await peer.frames.get()).opcode == w.Opcode.DESCRIBE_STREAM
        for _ in range(5):
            # When one comes the time of the one before it was up.
            assert (await peer.frames.get()).opcode == w.Opcode.HEARTBEAT
            peer.send(0, *(bytes(p) for p in encode_frame(w.Opcode.PING, 0, 7, b"busy")))
            assert (await peer.frames.get()).flags == RESPONSE_FLAGS
        assert (peer.connections, got) == (1, [])
        await until(lambda: len(got) == 1)
        assert isinstance(got[0], ConnectionLost), "silent since, so it is gone"


async def test_a_heartbeat_asks_for_a_sign_of_life_though_requests_are_sent_all_the_time() -> None:
    """A peer whose answers take long is told from one that is gone."""
    async with peer_and_carrier(TcpOptions(heartbeat_idle=0.05, heartbeat_timeout=30)) as (peer, carrier):
        loop = asyncio.get_running_loop()
        got: list[Answer] = []
        heartbeats = 0

        def send() -> None:
            carrier.submit(w.DescribeStreamRequest(1), got.append, 60)
            if heartbeats < 3:
                loop.call_later(0.01, send)

        send()
        while heartbeats < 3:
            frame = await peer.frames.get()
            if frame.opcode == w.Opcode.HEARTBEAT:
                heartbeats += 1
                header = DIALECT.encode_response(w.Opcode.HEARTBEAT, w.HeartbeatResponse())[1]
                peer.send(0, *(bytes(p) for p in encode_frame(frame.opcode, RESPONSE_FLAGS, frame.stream_id, header)))
        assert (peer.connections, got) == (1, [])


async def test_in_flight_bytes_are_bounded() -> None:
    options = TcpOptions(max_inflight_bytes=100_000, max_queued_bytes=50_000)
    async with peer_and_carrier(options) as (peer, carrier):
        got: list[Answer] = []
        body = bytes(30_000)
        await_connection = asyncio.ensure_future(carrier.call(w.PingRequest(b"first")))
        peer.echo(0, await peer.frames.get())
        await await_connection
        for k in range(6):
            carrier.submit(w.PingRequest(b"%d" % k, body), got.append)
        assert got == [
            w.SystemErrorResponse(w.Status(ErrorCode.TOO_MANY_REQUESTS, got[0].status.message))  # type: ignore[union-attr]
            for _ in range(2)
        ]
        frames = [await peer.frames.get() for _ in range(3)]
        assert peer.frames.empty()
        assert [frame.header for frame in frames] == [b"0", b"1", b"2"]
        peer.echo(0, frames[0])
        frames.append(await peer.frames.get())
        assert frames[3].header == b"3"
        for frame in frames[1:]:
            peer.echo(0, frame)
        await until(lambda: len(got) == 6)


async def test_a_request_larger_than_the_bound_goes_alone() -> None:
    async with peer_and_carrier(TcpOptions(max_inflight_bytes=1000)) as (peer, carrier):
        answer = asyncio.ensure_future(carrier.call(w.PingRequest(b"", bytes(100_000))))
        peer.echo(0, await peer.frames.get())
        assert await answer == w.PingResponse(b"", bytes(100_000))


async def test_what_no_frame_can_carry_is_refused() -> None:
    async with peer_and_carrier() as (peer, carrier):
        answer = await carrier.call(w.PingRequest(b"", bytes(16 * 1024 * 1024)))
        assert isinstance(answer, w.SystemErrorResponse)
        assert answer.status.code == ErrorCode.PAYLOAD_TOO_LARGE
        assert peer.connections == 0


async def test_a_peer_that_does_not_read_stops_the_writing() -> None:
    """What it has not taken waits in the carrier, bounded, and times out there."""
    accepted: list[asyncio.StreamWriter] = []

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        accepted.append(writer)

    server = await asyncio.start_server(deaf, LOCAL, 0, limit=1)
    port = server.sockets[0].getsockname()[1]
    carrier = TcpCarrier(LOCAL, port, options=TcpOptions(max_inflight_bytes=1 << 40, max_queued_bytes=4_000_000))
    got: list[Answer] = []
    submitted = 0
    async with asyncio.timeout(20):
        while not got:
            carrier.submit(w.PingRequest(b"", bytes(1_000_000)), got.append)
            submitted += 1
            await asyncio.sleep(0)
    assert isinstance(got[0], w.SystemErrorResponse)
    assert got[0].status.code == ErrorCode.TOO_MANY_REQUESTS
    await carrier.close()
    assert len(got) == submitted
    server.close()
    for writer in accepted:
        writer.transport.abort()


def test_an_address_without_host_and_port_is_refused() -> None:
    assert parse_address("host:80") == ("host", 80)
    assert parse_address("[::1]:80") == ("::1", 80)
    for bad in ("", "host", "host:", ":80", "host:0", "host:65536", "host:x", "host:-1"):
        with pytest.raises(ValueError, match="is not host:port"):
            parse_address(bad)
        with pytest.raises(ValueError, match="is not host:port"):
            tcp_connector()(w.RangeServerInfo(1, bad))
    with pytest.raises(ValueError, match="outside"):
        TcpCarrier("host", 0)
