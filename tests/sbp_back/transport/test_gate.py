"""Listeners that demand tickets: what is served to whom, and for how long; and how a client shows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from sbp_back.client.client import Client
from sbp_back.client.stream_writer import StreamWriter
from sbp_back.embedded import PD_LISTENER, RANGE_SERVER_LISTENER, Embedded, EmbeddedOptions, start_embedded
from sbp_back.errors import ConnectionLost, ErrorCode, SbpError
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.gate import MOST_STREAMS, Check, Gate, Grant
from sbp_back.transport.handler import Reply
from sbp_back.transport.tcp_carrier import TcpCarrier, TcpOptions, tcp_connector
from sbp_back.transport.tickets import GivenTickets, OwnTickets
from sbp_back.wire import model as m
from sbp_back.wire.v02 import REQUESTS

LOCAL = "127.0.0.1"
FAR = 4e9


def check(ticket: str) -> Grant:
    """``all UNTIL`` or ``STREAM,STREAM UNTIL``."""
    what, _, until = ticket.partition(" ")
    if what == "forged":
        raise SbpError(ErrorCode.UNAUTHORIZED, "the ticket's signature is wrong")
    return Grant(float(until), None if what == "all" else frozenset(map(int, what.split(","))))


class Served:
    """Remembers what came through."""

    def __init__(self) -> None:
        self.requests: list[m.Request] = []
        self.ended_sessions = 0

    def handle(self, request: m.Request, reply: Reply) -> None:
        self.requests.append(request)
        reply(m.PingResponse())


class Door:
    """A connection through a gate, at a time of its own."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.served = Served()
        self.session = Gate(self.served, check, lambda: self.now).session()

    def ask(self, request: m.Request) -> int:
        """The code of the answer."""
        answers: list[m.Response] = []
        self.session.handle(request, answers.append)
        (answer,) = answers
        return answer.status.code

    def show(self, ticket: str) -> int:
        return self.ask(m.ShowTicketRequest(ticket))


@pytest.fixture
def door() -> Door:
    return Door()


def fetch(stream: int, max_wait_ms: int = 0) -> m.FetchRequest:
    return m.FetchRequest(m.RangeInfo(stream, index=0), 0, max_wait_ms=max_wait_ms)


READING: Sequence[m.Request] = (
    fetch(7),
    m.ListRangeRequest(stream_id=7),
    m.DescribeStreamRequest(7),
    m.DescribePdRequest(),
    m.HeartbeatRequest("reader"),
)
SERVER = m.RangeServerInfo(1, "127.0.0.1:1")
CHANGING: Sequence[m.Request] = (
    m.AppendRequest(),
    m.SealRangeRequest(m.RangeInfo(7)),
    m.CreateRangeRequest(m.RangeInfo(7)),
    m.CreateStreamRequest(m.StreamInfo()),
    m.DeleteStreamRequest(7),
    m.UpdateStreamRequest(m.StreamInfo(7)),
    m.TrimStreamRequest(7, 1),
    m.AdoptServerRequest(1),
    m.CommitObjectRequest(m.ObjectInfo(7)),
    m.AllocateIdRequest(),
    m.ReportMetricsRequest(SERVER),
    m.HeartbeatRequest("server", m.ClientRole.RANGE_SERVER),
    m.HeartbeatRequest("server", m.ClientRole.FRONTEND, SERVER),
)


def test_every_request_is_either_reading_or_changing() -> None:
    """One that is added to the dialect is to be thought of here."""
    told = {type(one) for one in (*READING, *CHANGING)} | {m.ShowTicketRequest}
    assert {table.make for table in REQUESTS.values()} == told


@pytest.mark.parametrize("request_", [*READING, *CHANGING], ids=lambda one: type(one).__name__)
def test_without_a_ticket_nothing_is_served(door: Door, request_: m.Request) -> None:
    assert door.ask(request_) == ErrorCode.UNAUTHORIZED
    assert door.served.requests == []


@pytest.mark.parametrize("ticket", ["forged", "7 1000", "all 999"])
def test_with_a_ticket_that_is_none_nothing_is_served(door: Door, ticket: str) -> None:
    assert door.show(ticket) == ErrorCode.UNAUTHORIZED
    for one in (*READING, *CHANGING):
        assert door.ask(one) == ErrorCode.UNAUTHORIZED
    assert door.served.requests == []


def test_a_ping_is_answered_to_everybody(door: Door) -> None:
    assert door.ask(m.PingRequest()) == m.OK


@pytest.mark.parametrize("request_", READING, ids=lambda one: type(one).__name__)
def test_a_reader_reads(door: Door, request_: m.Request) -> None:
    assert door.show("7 1010") == m.OK
    assert door.ask(request_) == m.OK
    assert door.served.requests == [request_]


@pytest.mark.parametrize("request_", CHANGING, ids=lambda one: type(one).__name__)
def test_a_reader_changes_nothing(door: Door, request_: m.Request) -> None:
    door.show("7 1010")
    assert door.ask(request_) == ErrorCode.FORBIDDEN
    assert door.served.requests == []


@pytest.mark.parametrize("stream", [8, -1])
def test_a_reader_reads_nothing_else(door: Door, stream: int) -> None:
    door.show("7 1010")
    for one in (fetch(stream), m.ListRangeRequest(stream_id=stream), m.DescribeStreamRequest(stream)):
        assert door.ask(one) == ErrorCode.FORBIDDEN
    assert door.ask(m.ListRangeRequest(server_id=0)) == ErrorCode.FORBIDDEN
    assert door.served.requests == []


def test_a_ticket_ends_while_its_reader_is_connected_and_another_one_goes_on(door: Door) -> None:
    door.show("7 1010")
    door.now = 1_010.0
    for one in READING:
        assert door.ask(one) == ErrorCode.UNAUTHORIZED
    door.show("7 1020")
    assert door.ask(fetch(7)) == m.OK


def test_each_stream_ends_with_its_own_ticket(door: Door) -> None:
    door.show("7,8 1010")
    door.show("8 1030")
    door.show("8 1020")  # a shorter one takes nothing away
    door.now = 1_025.0
    assert door.ask(fetch(7)) == ErrorCode.UNAUTHORIZED
    assert door.ask(fetch(8)) == m.OK
    door.show("9 1040")
    assert door.ask(fetch(7)) == ErrorCode.FORBIDDEN  # forgotten by now


def test_a_fetch_waits_no_longer_than_its_ticket_lasts(door: Door) -> None:
    door.show("7 1002.5")
    asked = fetch(7, max_wait_ms=60_000)
    door.ask(asked)
    assert asked.max_wait_ms == 2_500


def test_who_may_do_everything_may_as_long_as_he_is_connected(door: Door) -> None:
    door.show("all 1001")
    door.now = 5_000.0
    for one in (*READING, *CHANGING):
        assert door.ask(one) == m.OK
    assert door.show("7 6000") == m.OK
    assert door.ask(m.AppendRequest()) == m.OK


def test_what_a_connection_may_read_has_a_bound(door: Door) -> None:
    door.show("1 1010")
    for first in range(2, MOST_STREAMS + 2, 1_000):
        door.show(",".join(map(str, range(first, first + 1_000))) + " 1010")
    assert door.ask(fetch(1)) == ErrorCode.FORBIDDEN
    assert door.ask(fetch(MOST_STREAMS + 1)) == m.OK


def test_sessions_of_what_is_behind_it_end_with_their_connection() -> None:
    class Session(Served):
        def ended(self) -> None:
            self.ended_sessions += 1

    class Behind(Served):
        def session(self) -> Session:
            return session

    session = Session()
    watched = Gate(Behind(), check, lambda: 0.0).session()
    watched.handle(m.ShowTicketRequest("all 1"), lambda _: None)
    watched.handle(m.AppendRequest(), lambda _: None)
    watched.ended()
    assert (len(session.requests), session.ended_sessions) == (1, 1)


# --- over TCP -------------------------------------------------------------------------------------------------------


async def started(path: Path, of: Check | None) -> Embedded:
    store = StoreOptions(segment_bytes=1 << 20, allocate_step_bytes=1 << 20, zero_ahead_bytes=0, low_water_bytes=0)
    listen = {PD_LISTENER: (LOCAL, 0), RANGE_SERVER_LISTENER: (LOCAL, 0)}
    return await start_embedded(path, EmbeddedOptions(store=store, listen=listen, check=of))


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Embedded]:
    embedded = await started(tmp_path, check)
    yield embedded
    await embedded.close()


def client_of(backend: Embedded, tickets: OwnTickets | GivenTickets | None) -> Client:
    tcp = TcpOptions(backoff_first=0.001, tickets=tickets)
    return Client(TcpCarrier(*backend.addresses[PD_LISTENER], options=tcp), tcp_connector(tcp))


async def append(writer: StreamWriter, payload: bytes) -> None:
    done: asyncio.Future[SbpError | None] = asyncio.get_running_loop().create_future()
    writer.append(payload, 1, 0, 5, done.set_result)
    assert await done is None


async def written(backend: Embedded, *payloads: bytes) -> int:
    """A stream, written from inside of the process, where no ticket is demanded."""
    stream = (await backend.client.create_stream()).stream_id
    writer = await backend.client.open(stream, 1)
    for one in payloads:
        await append(writer, one)
    return stream


async def test_a_reader_shows_new_tickets_on_the_connections_it_has(backend: Embedded) -> None:
    first, second = await written(backend, b"one"), await written(backend, b"two")
    tickets = GivenTickets()
    reader = client_of(backend, tickets)
    tickets.give(first, f"{first} {FAR}", 60)
    (entry,) = await reader.fetch_entries(first, 0, 1 << 20, limit=1)
    assert bytes(entry.payload) == b"one"
    with pytest.raises(SbpError, match=f"1403 FORBIDDEN: the ticket is not for stream {second}"):
        await reader.fetch_entries(second, 0, 1 << 20, limit=1)
    tickets.give(second, f"{second} {FAR}", 60)
    (entry,) = await reader.fetch_entries(second, 0, 1 << 20, limit=1)
    assert bytes(entry.payload) == b"two"
    with pytest.raises(SbpError, match="1403"):
        await reader.open(first, 2)
    with pytest.raises(SbpError, match="1403"):
        await reader.create_stream()
    assert [len(listener.connections) for listener in backend.listeners.values()] == [1, 1]
    await reader.close()


@pytest.mark.parametrize("ticket", [None, "forged"])
async def test_who_has_no_ticket_is_told_so(backend: Embedded, ticket: str | None) -> None:
    stream = await written(backend, b"one")
    reader = client_of(backend, None if ticket is None else OwnTickets(lambda: ticket))
    with pytest.raises(SbpError, match=r"1401 UNAUTHORIZED: .*ticket"):
        await reader.fetch_entries(stream, 0, 1 << 20)
    await reader.close()
    server = backend.range_server.info
    connect: Callable[[m.RangeServerInfo], TcpCarrier] = tcp_connector()  # type: ignore[assignment]
    carrier = connect(server)
    with pytest.raises(ConnectionLost, match="this listener wants a ticket"):  # it is found out before anything is sent
        await carrier.call(fetch(stream))
    await carrier.close()


async def test_a_process_that_has_the_key_does_everything(backend: Embedded) -> None:
    made: list[str] = []

    def make() -> str:
        made.append(f"all {FAR}")
        return made[-1]

    tickets = OwnTickets(make)
    assert not tickets.demanded
    node = client_of(backend, tickets)
    stream = (await node.create_stream()).stream_id
    writer = await node.open(stream, 1)
    await append(writer, b"one")
    await append(writer, b"two")
    assert len(made) == 2  # one for each connection
    assert tickets.demanded
    await writer.close()
    await node.close()


async def test_a_server_that_demands_no_tickets_says_so_and_serves(tmp_path: Path) -> None:
    backend = await started(tmp_path, None)
    tickets = OwnTickets(lambda: f"all {FAR}")
    node = client_of(backend, tickets)
    await append(await node.open((await node.create_stream()).stream_id, 1), b"one")
    assert not tickets.demanded
    await node.close()
    await backend.close()


def test_tickets_that_a_reader_was_given() -> None:
    now = 0.0
    tickets = GivenTickets(lambda: now)
    assert tickets.is_due(1)
    tickets.give(1, "one", 10)
    tickets.give(2, "two", 20)
    assert tickets.since(0) == ["one", "two"]
    assert tickets.since(1) == ["two"]
    assert not tickets.is_due(1)
    now = 5.0
    assert tickets.is_due(1)
    assert not tickets.is_due(2)
    now = 10.0
    assert tickets.since(0) == ["two"]
    tickets.give(1, "another", 10)
    assert tickets.since(2) == ["another"]
    assert tickets.version == 3
