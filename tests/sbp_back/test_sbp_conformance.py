"""The whole backend through its client and its carriers: the same promises in this process and over TCP.

Real placement driver, range server and store; the TCP half goes through real listeners in dialect sbp-0.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from sbp_back.client.client import Client, ClientOptions, StreamWriter
from sbp_back.client.control import ControlOptions
from sbp_back.client.stream_writer import WriterOptions
from sbp_back.errors import ConnectionLost, ErrorCode, FencedError, SbpError
from sbp_back.placement_driver.driver import PlacementDriver, PlacementDriverOptions
from sbp_back.range_server.server import RangeServer, RangeServerOptions
from sbp_back.range_server.store import Store, StoreOptions
from sbp_back.transport.carrier import Answer, Carrier, InProcessCarrier
from sbp_back.transport.handler import Handler
from sbp_back.transport.listener import Listener, ListenerOptions
from sbp_back.transport.tcp_carrier import TcpCarrier, TcpOptions, tcp_connector
from sbp_back.wire import model as m
from sbp_back.wire.entry import entry_crc, pack_entry
from sbp_back.wire.frame import crc32
from sbp_back.wire.v02 import DialectV02
from tests.databases import pd_state
from tests.kit.waiting import until
from tests.sbp_document.document_lab import write

DIALECT = DialectV02()
LOCAL = "127.0.0.1"
SERVER_ID = 0
T = TypeVar("T", bound=m.Response)


class Backend:
    """One placement driver and one range server in ``path``, reached as ``kind`` says."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.kind = kind
        self.tcp = TcpOptions(backoff_first=0.001, backoff_limit=0.02)
        self.carriers: list[Carrier] = []
        self.clients: list[Client] = []
        self.addresses: dict[str, tuple[str, int]] = {}
        self.listeners: dict[str, Listener] = {}

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        options = StoreOptions(segment_bytes=1024 * 1024, durability="os")
        self.store = await asyncio.to_thread(Store.open, self.path / "store", options)
        self.store.start(loop)
        self.state = pd_state(self.path / "pd.sqlite", loop)
        self.pd = PlacementDriver(self.state, PlacementDriverOptions(name="pd-0"), connect=lambda _: self.to_server())
        self.server_options = RangeServerOptions(SERVER_ID, "in-process:1", heartbeat_seconds=60)
        self.server = RangeServer(self.store, self.server_options, loop)
        if self.kind == "tcp":
            await self.listen("pd")
            await self.listen("rs")
            self.pd.advertise_addr = "{}:{}".format(*self.addresses["pd"])
            self.server_options.advertise_addr = "{}:{}".format(*self.addresses["rs"])
        await self.server.start(self.to_pd())

    async def listen(self, name: str) -> None:
        handler: Handler = self.pd if name == "pd" else self.server
        options = ListenerOptions.placement_driver() if name == "pd" else ListenerOptions()
        listener = Listener(handler, DIALECT, *self.addresses.get(name, (LOCAL, 0)), options)
        await listener.start()
        self.listeners[name] = listener
        self.addresses[name] = listener.address

    def carrier(self, name: str) -> Carrier:
        if self.kind == "tcp":
            return TcpCarrier(*self.addresses[name], DIALECT, self.tcp)
        return InProcessCarrier(self.pd if name == "pd" else self.server)

    def to_pd(self) -> Carrier:
        self.carriers.append(self.carrier("pd"))
        return self.carriers[-1]

    def to_server(self) -> Carrier:
        self.carriers.append(self.carrier("rs"))
        return self.carriers[-1]

    def client(self) -> Client:
        if self.kind == "tcp":
            connect: Callable[[m.RangeServerInfo], Carrier] = tcp_connector(self.tcp)
        else:

            def connect(_: m.RangeServerInfo) -> Carrier:
                return self.carrier("rs")

        control = ControlOptions(delay_first=0.005)
        client = Client(self.carrier("pd"), connect, ClientOptions(control, WriterOptions(control=control)))
        self.clients.append(client)
        return client

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        await self.server.close()
        await self.pd.close()
        for carrier in self.carriers:
            await carrier.close()
        for listener in self.listeners.values():
            await listener.close()
        await asyncio.to_thread(self.store.close)


@pytest.fixture(params=["in-process", "tcp"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    backend = Backend(tmp_path, request.param)
    await backend.start()
    yield backend
    await backend.stop()


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Backend]:
    backend = Backend(tmp_path, "tcp")
    await backend.start()
    yield backend
    await backend.stop()


async def ask(carrier: Carrier, request: m.Request, kind: type[T], code: int = ErrorCode.OK) -> T:
    """The answer, which must be of the given kind and have the given code."""
    response = await carrier.call(request)
    assert isinstance(response, kind), response
    assert response.status.code == code, response.status
    return response


def append(writer: StreamWriter, payload: bytes, count: int = 1) -> asyncio.Future[int]:
    """The base offset, once durable."""
    return write(writer, payload, count, flags=7)


async def read_all(client: Client, stream_id: int, offset: int = 0) -> list[tuple[int, int, bytes]]:
    found: list[tuple[int, int, bytes]] = []
    while entries := await client.fetch_entries(stream_id, offset, 5000):
        found += [(entry.base_offset, entry.count, bytes(entry.payload)) for entry in entries]
        offset = entries[-1].end_offset
    return found


# --- session level --------------------------------------------------------------------------------------------------


async def test_ping(backend: Backend) -> None:
    for carrier in (backend.to_pd(), backend.to_server()):
        assert await carrier.call(m.PingRequest(b"head", b"body")) == m.PingResponse(b"head", b"body")


async def test_heartbeat(backend: Backend) -> None:
    for carrier in (backend.to_pd(), backend.to_server()):
        answer = await ask(carrier, m.HeartbeatRequest("somebody", m.ClientRole.FRONTEND), m.HeartbeatResponse)
        assert (answer.client_id, answer.role) == ("somebody", m.ClientRole.FRONTEND)
    assert 17 not in backend.pd.servers.alive()
    server = m.RangeServerInfo(17, "somewhere:1")
    answer = await ask(
        backend.to_pd(), m.HeartbeatRequest("rs", m.ClientRole.RANGE_SERVER, server), m.HeartbeatResponse
    )
    assert (answer.role, answer.range_server) == (m.ClientRole.RANGE_SERVER, server)
    assert 17 in backend.pd.servers.alive()


async def test_allocate_id(backend: Backend) -> None:
    pd = backend.to_pd()
    first = await ask(pd, m.AllocateIdRequest(0, "host"), m.AllocateIdResponse)
    second = await ask(pd, m.AllocateIdRequest(0, "host"), m.AllocateIdResponse)
    assert SERVER_ID < first.id < second.id
    await ask(
        backend.to_server(), m.AllocateIdRequest(0, "host"), m.SystemErrorResponse, ErrorCode.UNSUPPORTED_OPERATION
    )


async def test_report_metrics(backend: Backend) -> None:
    server = m.RangeServerInfo(17, "somewhere:1")
    request = m.ReportMetricsRequest(server, m.RangeServerMetrics(disk_free_space=1 << 40, range_active_cnt=3))
    answer = await ask(backend.to_pd(), request, m.ReportMetricsResponse)
    assert answer.range_server == server
    assert backend.pd.servers.alive() == [SERVER_ID, 17]


async def test_commit_object(backend: Backend) -> None:
    known = await a_range(backend)
    pd = backend.to_pd()
    told = m.ObjectInfo(known.stream_id, 0, 1, 0, 5, 100, b"")
    await ask(pd, m.CommitObjectRequest(told), m.CommitObjectResponse)
    told.index = 7
    await ask(pd, m.CommitObjectRequest(told), m.CommitObjectResponse, ErrorCode.RANGE_NOT_FOUND)
    refused = ErrorCode.UNSUPPORTED_OPERATION
    await ask(backend.to_server(), m.CommitObjectRequest(told), m.SystemErrorResponse, refused)


async def test_adopt_server(backend: Backend) -> None:
    await ask(backend.to_pd(), m.ReportMetricsRequest(m.RangeServerInfo(17, "somewhere:1")), m.ReportMetricsResponse)
    request = m.AdoptServerRequest(17, SERVER_ID, [(1, 0, 5)])
    answer = await ask(backend.to_pd(), request, m.AdoptServerResponse)
    assert answer.server_id == SERVER_ID
    assert backend.pd.servers.alive() == [SERVER_ID]
    # A log on a disk is nobody else's to read.
    await ask(backend.to_server(), m.AdoptServerRequest(18), m.AdoptServerResponse, ErrorCode.BAD_REQUEST)


async def test_tickets_that_are_not_demanded(backend: Backend) -> None:
    for carrier in (backend.to_pd(), backend.to_server()):
        await ask(carrier, m.ShowTicketRequest("ticket"), m.SystemErrorResponse, ErrorCode.UNSUPPORTED_OPERATION)
        await ask(carrier, m.DescribePdRequest(), m.DescribePdResponse)


async def test_describe_pd(backend: Backend) -> None:
    answer = await ask(backend.to_pd(), m.DescribePdRequest(), m.DescribePdResponse)
    assert answer.nodes == [m.PdNode("pd-0", backend.pd.advertise_addr, True)]


async def test_requests_for_the_other_server(backend: Backend) -> None:
    unsupported = ErrorCode.UNSUPPORTED_OPERATION
    await ask(backend.to_pd(), m.FetchRequest(m.RangeInfo(0), 0), m.SystemErrorResponse, unsupported)
    await ask(backend.to_server(), m.CreateStreamRequest(m.StreamInfo()), m.SystemErrorResponse, unsupported)


# --- streams --------------------------------------------------------------------------------------------------------


async def test_streams(backend: Backend) -> None:
    pd = backend.to_pd()
    first = (await ask(pd, m.CreateStreamRequest(m.StreamInfo(-1, 1, 1, 60_000)), m.StreamResponse)).stream
    second = (await ask(pd, m.CreateStreamRequest(m.StreamInfo()), m.StreamResponse)).stream
    assert first is not None
    assert second is not None
    assert first.stream_id != second.stream_id
    assert first == m.StreamInfo(first.stream_id, 1, 1, 60_000)
    assert (await ask(pd, m.DescribeStreamRequest(first.stream_id), m.StreamResponse)).stream == first
    changed = m.StreamInfo(first.stream_id, 1, 1, 5)
    await ask(pd, m.UpdateStreamRequest(changed), m.StreamResponse)
    assert (await ask(pd, m.DescribeStreamRequest(first.stream_id), m.StreamResponse)).stream == changed
    await ask(pd, m.DeleteStreamRequest(first.stream_id), m.StreamResponse)
    for request in (
        m.DescribeStreamRequest(first.stream_id),
        m.DeleteStreamRequest(first.stream_id),
        m.UpdateStreamRequest(changed),
        m.TrimStreamRequest(first.stream_id, 0),
        m.DescribeStreamRequest(999),
    ):
        await ask(pd, request, m.StreamResponse, ErrorCode.NOT_FOUND)
    await ask(pd, m.CreateStreamRequest(m.StreamInfo(-1, 1, 2)), m.StreamResponse, ErrorCode.BAD_REQUEST)


# --- ranges ---------------------------------------------------------------------------------------------------------


async def a_range(backend: Backend, start: int = 0) -> m.RangeInfo:
    """An open range of a new stream, on the placement driver and the range server."""
    pd = backend.to_pd()
    stream = (await ask(pd, m.CreateStreamRequest(m.StreamInfo()), m.StreamResponse)).stream
    assert stream is not None
    wanted = m.RangeInfo(stream.stream_id, 1, 0, start)
    created = (await ask(pd, m.CreateRangeRequest(wanted), m.RangeResponse)).range
    assert created is not None
    await ask(backend.to_server(), m.CreateRangeRequest(created), m.RangeResponse)
    return created


def entries_of(known: m.RangeInfo, base: int, counts: list[int]) -> list[m.Entry]:
    entries = []
    for count in counts:
        entries.append(pack_entry(known.stream_id, known.index, 3, base, count, 99, b"%d" % base * 20))
        base += count
    return entries


async def codes(carrier: Carrier, entries: list[m.Entry]) -> list[int]:
    answer = await ask(carrier, m.AppendRequest(1000, entries), m.AppendResponse)
    return [result.status.code for result in answer.results]


async def test_ranges_on_the_placement_driver(backend: Backend) -> None:
    pd = backend.to_pd()
    known = await a_range(backend)
    assert known.servers == [backend.server.info]
    assert (known.replica_count, known.ack_count, known.end) == (1, 1, -1)
    stream_id = known.stream_id
    again = m.RangeInfo(stream_id, 1, 1, 0)
    await ask(pd, m.CreateRangeRequest(again), m.RangeResponse, ErrorCode.CREATE_RANGE_BEFORE_SEAL)
    seal = m.SealRangeRequest(m.RangeInfo(stream_id, 2, 0, 0, 10), m.SealKind.PLACEMENT_DRIVER)
    wrong = m.SealRangeRequest(m.RangeInfo(stream_id, 2, 0, 0, 10), m.SealKind.RANGE_SERVER)
    old = m.SealRangeRequest(m.RangeInfo(stream_id, 0, 0, 0, 10), m.SealKind.PLACEMENT_DRIVER)
    await ask(pd, wrong, m.RangeResponse, ErrorCode.BAD_REQUEST)
    await ask(pd, old, m.RangeResponse, ErrorCode.EXPIRED_RANGE_EPOCH)
    sealed = (await ask(pd, seal, m.RangeResponse)).range
    assert sealed is not None
    assert (sealed.epoch, sealed.start, sealed.end) == (2, 0, 10)
    await ask(pd, seal, m.RangeResponse, ErrorCode.RANGE_ALREADY_SEALED)
    await ask(
        pd, m.CreateRangeRequest(m.RangeInfo(stream_id, 1, 1, 10)), m.RangeResponse, ErrorCode.EXPIRED_RANGE_EPOCH
    )
    await ask(pd, m.CreateRangeRequest(m.RangeInfo(stream_id, 2, 1, 11)), m.RangeResponse, ErrorCode.BAD_REQUEST)
    await ask(pd, m.CreateRangeRequest(m.RangeInfo(stream_id, 2, 1, 10)), m.RangeResponse)
    for request in (m.ListRangeRequest(stream_id=stream_id), m.ListRangeRequest(server_id=SERVER_ID)):
        listed = (await ask(pd, request, m.ListRangeResponse)).ranges
        assert [(r.index, r.start, r.end) for r in listed] == [(0, 0, 10), (1, 10, -1)]
    assert (await ask(pd, m.ListRangeRequest(), m.ListRangeResponse)).ranges == []


async def test_listing_ranges(backend: Backend) -> None:
    """By stream, by server, by both; the range server lists what it holds itself, with what it knows better."""
    first, second = await a_range(backend), await a_range(backend)
    await codes(backend.to_server(), entries_of(first, 0, [3]))
    ids = [first.stream_id, second.stream_id]
    for carrier in (backend.to_pd(), backend.to_server()):
        for wanted, expected in (
            (m.ListRangeRequest(stream_id=ids[0]), ids[:1]),
            (m.ListRangeRequest(server_id=SERVER_ID), ids),
            (m.ListRangeRequest(server_id=SERVER_ID, stream_id=ids[1]), ids[1:]),
            (m.ListRangeRequest(server_id=5, stream_id=ids[1]), []),
            (m.ListRangeRequest(server_id=5), []),
            (m.ListRangeRequest(stream_id=4711), []),
            (m.ListRangeRequest(), []),
        ):
            listed = (await ask(carrier, wanted, m.ListRangeResponse)).ranges
            assert [(one.stream_id, one.index, one.start, one.end) for one in listed] == [
                (stream_id, 0, 0, -1) for stream_id in expected
            ], wanted
    # Sealed on the server, the placement driver not told yet.
    await ask(backend.to_server(), m.SealRangeRequest(m.RangeInfo(ids[0], 1, 0, 0)), m.RangeResponse)
    ends = [
        [one.end for one in (await ask(carrier, m.ListRangeRequest(stream_id=ids[0]), m.ListRangeResponse)).ranges]
        for carrier in (backend.to_pd(), backend.to_server())
    ]
    assert ends == [[-1], [3]]


async def test_the_append_window(backend: Backend) -> None:
    known = await a_range(backend)
    server = backend.to_server()
    assert await codes(server, entries_of(known, 0, [3, 1, 2])) == [ErrorCode.OK] * 3
    assert await codes(server, entries_of(known, 0, [3])) == [ErrorCode.APPEND_TO_COMMITTED_OFFSET]
    assert await codes(server, entries_of(known, 7, [1])) == [ErrorCode.APPEND_TO_OVERTAKEN_OFFSET]
    assert await codes(server, [*entries_of(known, 6, [1]), *entries_of(known, 6, [1])]) == [
        ErrorCode.OK,
        ErrorCode.APPEND_TO_PENDING_OFFSET,
    ], "results are positional, and all entries pass the window before one is stored"
    stranger = m.RangeInfo(known.stream_id, 1, 5)
    mixed = [*entries_of(stranger, 0, [1]), *entries_of(known, 7, [1])]
    assert await codes(server, mixed) == [ErrorCode.RANGE_NOT_FOUND, ErrorCode.OK]
    # A base inside a batch is not a repetition of it.
    assert await codes(server, entries_of(known, 1, [1])) == [ErrorCode.BAD_REQUEST]
    await ask(server, m.SealRangeRequest(m.RangeInfo(known.stream_id, 1, 0, 0)), m.RangeResponse)
    assert await codes(server, entries_of(known, 8, [1])) == [ErrorCode.RANGE_ALREADY_SEALED]


async def test_fetching(backend: Backend) -> None:
    known = await a_range(backend)
    server = backend.to_server()
    sent = entries_of(known, 0, [3, 1, 2, 4])
    await codes(server, sent)
    answer = await ask(server, m.FetchRequest(known, 4, max_bytes=100_000), m.FetchResponse)
    assert [(e.base_offset, e.count, e.flags, e.timestamp) for e in answer.entries] == [(4, 2, 3, 99), (6, 4, 3, 99)]
    for expected, entry in zip(sent[2:], answer.entries, strict=True):
        assert bytes(entry.prefix) + bytes(entry.payload) == bytes(expected.prefix) + bytes(expected.payload)
        assert entry_crc(entry) == crc32(bytes(entry.prefix) + bytes(entry.payload))
    answer = await ask(server, m.FetchRequest(known, 2, max_bytes=1), m.FetchResponse)
    assert [e.base_offset for e in answer.entries] == [0], "at least one batch, the one that contains the offset"
    answer = await ask(server, m.FetchRequest(known, 0, limit=4, max_bytes=100_000), m.FetchResponse)
    assert [e.base_offset for e in answer.entries] == [0, 3]
    answer = await ask(server, m.FetchRequest(known, 0, max_bytes=0), m.FetchResponse)
    assert (answer.entries, answer.objects) == ([], []), "objects only, of which there are none"
    await ask(server, m.FetchRequest(known, 10), m.FetchResponse, ErrorCode.NO_NEW_RECORD)
    await ask(server, m.FetchRequest(known, 11), m.FetchResponse, ErrorCode.OFFSET_OVERFLOW)
    await ask(server, m.FetchRequest(m.RangeInfo(known.stream_id, 1, 9), 0), m.FetchResponse, ErrorCode.RANGE_NOT_FOUND)
    await ask(server, m.SealRangeRequest(m.RangeInfo(known.stream_id, 1, 0, 0)), m.RangeResponse)
    await ask(server, m.FetchRequest(known, 10), m.FetchResponse, ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS)
    assert len((await ask(server, m.FetchRequest(known, 0, max_bytes=100_000), m.FetchResponse)).entries) == 4


async def test_long_poll(backend: Backend) -> None:
    known = await a_range(backend)
    server = backend.to_server()
    got: list[Answer] = []
    server.submit(m.FetchRequest(known, 0, max_wait_ms=20_000, min_bytes=1, max_bytes=1000), got.append)
    assert (await ask(server, m.PingRequest(), m.PingResponse)) == m.PingResponse()
    assert got == [], "it waits, and holds up nobody"
    await codes(server, entries_of(known, 0, [1]))
    await until(lambda: bool(got))
    assert isinstance(got[0], m.FetchResponse)
    assert [e.base_offset for e in got[0].entries] == [0]
    await ask(server, m.FetchRequest(known, 1, max_wait_ms=5), m.FetchResponse, ErrorCode.NO_NEW_RECORD)
    server.submit(m.FetchRequest(known, 1, max_wait_ms=20_000), got.append)
    await ask(server, m.SealRangeRequest(m.RangeInfo(known.stream_id, 1, 0, 0)), m.RangeResponse)
    await until(lambda: len(got) == 2)
    assert isinstance(got[1], m.FetchResponse)
    assert got[1].status.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, "a seal ends the wait"


async def test_timeout_of_a_request(backend: Backend) -> None:
    known = await a_range(backend)
    server = backend.to_server()
    with pytest.raises(ConnectionLost):
        await server.call(m.FetchRequest(known, 0, max_wait_ms=60_000), 0.02)
    assert await codes(server, entries_of(known, 0, [1])) == [ErrorCode.OK]


async def test_sealing_on_the_range_server(backend: Backend) -> None:
    known = await a_range(backend)
    server = backend.to_server()
    await codes(server, entries_of(known, 0, [3, 2]))

    def seal(epoch: int, end: int = -1, index: int = 0) -> m.SealRangeRequest:
        return m.SealRangeRequest(m.RangeInfo(known.stream_id, epoch, index, 0, end))

    await ask(server, seal(0), m.RangeResponse, ErrorCode.EXPIRED_RANGE_EPOCH)
    for _ in range(2):
        sealed = (await ask(server, seal(4), m.RangeResponse)).range
        assert sealed is not None
        assert (sealed.end, sealed.epoch) == (5, 4)
    cut = (await ask(server, seal(4, end=3), m.RangeResponse)).range
    assert cut is not None
    assert cut.end == 3, "an end the placement driver decided on"
    answer = await ask(server, m.FetchRequest(known, 0, max_bytes=1000), m.FetchResponse)
    assert [e.base_offset for e in answer.entries] == [0]
    never_seen = (await ask(server, seal(4, index=7), m.RangeResponse)).range
    assert never_seen is not None
    assert never_seen.end == 0


# --- the client -----------------------------------------------------------------------------------------------------


async def test_write_and_read(backend: Backend) -> None:
    client = backend.client()
    stream_id = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 0)
    futures = [append(writer, b"%d" % k * 50, k % 3 + 1) for k in range(500)]
    bases = await asyncio.gather(*futures)
    expected = []
    base = 0
    for k in range(500):
        expected.append((base, k % 3 + 1, b"%d" % k * 50))
        base += k % 3 + 1
    assert bases == [base for base, _, _ in expected]
    assert writer.confirm_offset == writer.next_offset == base
    assert await read_all(client, stream_id) == expected
    assert await read_all(backend.client(), stream_id) == expected
    (entry,) = await client.fetch_entries(stream_id, 0, 1)
    assert (entry.flags, entry.timestamp, entry.stream_id) == (7, 1_700_000_000_000, stream_id)


async def test_large_batches(backend: Backend) -> None:
    client = backend.client()
    stream_id = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 0)
    payloads = [bytes([k]) * 500_000 for k in range(1, 6)]
    await asyncio.gather(*(append(writer, payload) for payload in payloads))
    found = []
    for offset in range(5):
        found += await client.fetch_entries(stream_id, offset, 1)
    assert [bytes(entry.payload) for entry in found] == payloads


async def test_done_in_order_and_never_early(backend: Backend) -> None:
    client = backend.client()
    writer = await client.open((await client.create_stream()).stream_id, 0)
    order: list[int] = []
    for k in range(200):
        base = writer.append(b"x", 1, 0, 0, lambda error, k=k: order.append(k if error is None else -1))  # type: ignore[misc]
        assert base == k
        assert k not in order
        if k % 7 == 0:
            await asyncio.sleep(0)
    await until(lambda: len(order) == 200)
    assert order == list(range(200))


async def test_fencing(backend: Backend) -> None:
    client = backend.client()
    stream_id = (await client.create_stream()).stream_id
    old = await client.open(stream_id, 1)
    await asyncio.gather(*(append(old, b"old %d" % k) for k in range(10)))
    unfinished = [append(old, b"perhaps %d" % k) for k in range(10)]
    new = await backend.client().open(stream_id, 2)
    outcomes = await asyncio.gather(*unfinished, return_exceptions=True)
    good = [base for base in outcomes if isinstance(base, int)]
    assert all(isinstance(outcome, FencedError) for outcome in outcomes[len(good) :])
    assert new.next_offset >= 10 + len(good)
    with pytest.raises(FencedError):
        await append(old, b"too late")
    base = await append(new, b"new")
    assert base == new.next_offset - 1
    found = await read_all(backend.client(), stream_id)
    assert [offset for offset, _, _ in found] == list(range(base + 1))
    assert found[-1] == (base, 1, b"new")
    with pytest.raises(FencedError):
        await backend.client().open(stream_id, 1)


async def test_sealing_with_the_client(backend: Backend) -> None:
    client, other = backend.client(), backend.client()
    stream_id = (await client.create_stream()).stream_id
    assert await client.seal(stream_id, 0) == 0, "there is nothing yet"
    writer = await client.open(stream_id, 3)
    await asyncio.gather(*(append(writer, b"%d" % k, 2) for k in range(4)))
    with pytest.raises(FencedError):
        await other.seal(stream_id, 2)
    assert await append(writer, b"still there") == 8, "an older epoch has no say"
    for _ in range(2):
        assert await other.seal(stream_id, 4) == 9
    with pytest.raises(FencedError):
        await append(writer, b"too late")
    assert [(r.start, r.end, r.epoch) for r in await client.list_ranges(stream_id)] == [(0, 9, 4)]
    with pytest.raises(FencedError):
        await client.open(stream_id, 3)
    # A client's own writer is shut out as well, at once.
    writer = await client.open(stream_id, 5)
    await append(writer, b"on")
    assert await client.seal(stream_id, 5) == 10
    assert isinstance(writer.failed, FencedError)
    assert [base for base, _, _ in await read_all(other, stream_id)] == [0, 2, 4, 6, 8, 9]
    with pytest.raises(SbpError) as caught:
        await client.seal(4711, 1)
    assert caught.value.code == ErrorCode.NOT_FOUND


async def test_watching(backend: Backend) -> None:
    """Batches in order as they come, over ranges and writers, until the stream is gone."""
    client, reader = backend.client(), backend.client()
    stream_id = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 1)
    await append(writer, b"first", 3)
    watched = aiter(reader.watch(stream_id, 1, wait_ms=500))
    assert bytes((await anext(watched)).payload) == b"first"
    for epoch in range(2, 5):
        coming = asyncio.ensure_future(anext(watched))
        await asyncio.sleep(0)
        assert not coming.done()
        await append(writer, b"epoch %d" % epoch)
        entry = await coming
        assert (bytes(entry.payload), entry.end_offset) == (b"epoch %d" % epoch, writer.next_offset)
        writer = await backend.client().open(stream_id, epoch)
    await client.delete_stream(stream_id)
    for gone in (watched, aiter(reader.watch(4711, 0))):
        with pytest.raises(SbpError) as caught:
            await anext(gone)
        assert caught.value.code == ErrorCode.NOT_FOUND


async def test_a_watch_that_a_trim_overtook(backend: Backend) -> None:
    client = backend.client()
    stream_id = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 1)
    await asyncio.gather(*(append(writer, b"x") for _ in range(4)))
    watched = aiter(backend.client().watch(stream_id, 0, max_bytes=1))
    assert (await anext(watched)).base_offset == 0
    await client.trim(stream_id, 3)
    with pytest.raises(SbpError) as caught:
        await anext(watched)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS


async def test_many_epochs_read_as_one_stream(backend: Backend) -> None:
    stream_id = (await backend.client().create_stream()).stream_id
    for epoch in range(5):
        writer = await backend.client().open(stream_id, epoch)
        await asyncio.gather(*(append(writer, b"%d.%d" % (epoch, k)) for k in range(4)))
        await writer.close()
    client = backend.client()
    assert [p for _, _, p in await read_all(client, stream_id)] == [
        b"%d.%d" % (e, k) for e in range(5) for k in range(4)
    ]
    ranges = await client.list_ranges(stream_id)
    assert [(r.start, r.end) for r in ranges] == [(0, 4), (4, 8), (8, 12), (12, 16), (16, -1)]
    entries = await client.fetch_entries(stream_id, 2, 1_000_000)
    assert [entry.base_offset for entry in entries] == list(range(2, 20))


async def test_waiting_for_data_that_another_client_writes(backend: Backend) -> None:
    client = backend.client()
    stream_id = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 0)
    await append(writer, b"first")
    reader = backend.client()
    waiting = asyncio.ensure_future(reader.fetch_entries(stream_id, 1, 1000, min_bytes=1, max_wait_ms=20_000))
    assert len(await reader.fetch_entries(stream_id, 0, 1000)) == 1
    await append(writer, b"second")
    (entry,) = await waiting
    assert bytes(entry.payload) == b"second"
    # Over to the next writer's range, while waiting.
    waiting = asyncio.ensure_future(reader.fetch_entries(stream_id, 2, 1000, max_wait_ms=20_000))
    await append(await backend.client().open(stream_id, 1), b"third")
    (entry,) = await waiting
    assert bytes(entry.payload) == b"third"


async def test_reading_a_range_that_its_server_has_not_heard_of_yet(backend: Backend) -> None:
    """A writer makes a range at the placement driver first: a reader that comes in between finds nothing, or waits."""
    pd, reader = backend.to_pd(), backend.client()
    stream = (await ask(pd, m.CreateStreamRequest(m.StreamInfo()), m.StreamResponse)).stream
    assert stream is not None
    stream_id = stream.stream_id
    made = (await ask(pd, m.CreateRangeRequest(m.RangeInfo(stream_id, 1, 0, 0)), m.RangeResponse)).range
    assert made is not None
    assert await reader.fetch_entries(stream_id, 0, 1000) == []
    with pytest.raises(SbpError) as caught:
        await reader.fetch_entries(stream_id, 1, 1000)
    assert caught.value.code == ErrorCode.RANGE_NOT_FOUND
    waiting = asyncio.ensure_future(reader.fetch_entries(stream_id, 0, 1000, min_bytes=1, max_wait_ms=20_000))
    await asyncio.sleep(0)
    await ask(backend.to_server(), m.CreateRangeRequest(made), m.RangeResponse)
    assert await codes(backend.to_server(), entries_of(made, 0, [1])) == [ErrorCode.OK]
    assert [entry.base_offset for entry in await waiting] == [0]


async def test_trim(backend: Backend) -> None:
    client = backend.client()
    stream_id = (await client.create_stream()).stream_id
    for epoch in range(3):
        writer = await client.open(stream_id, epoch)
        await asyncio.gather(*(append(writer, b"x", 2) for _ in range(5)))
    assert await client.trim(stream_id, 13) == 13
    assert writer.start_offset == 13
    assert await client.trim(stream_id, 5) == 13, "never back"
    for reader in (client, backend.client()):
        with pytest.raises(SbpError) as caught:
            await reader.fetch_entries(stream_id, 12, 1000)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
        assert [base for base, _, _ in await read_all(reader, stream_id, 13)] == [12, 14, 16, 18, 20, 22, 24, 26, 28]
    assert [r.index for r in await client.list_ranges(stream_id)] == [1, 2]
    assert [key for key in sorted(backend.store.ranges) if key[0] == stream_id] == [(stream_id, 1), (stream_id, 2)]
    again = await backend.client().open(stream_id, 9)
    assert (again.start_offset, again.next_offset) == (13, 30)


async def test_a_trim_beyond_the_end_leaves_later_appends_readable(backend: Backend) -> None:
    client = backend.client()
    stream_id = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 1)
    await write(writer, b"early", 5)
    for beyond in (1000, 1 << 62):
        answer = await client.pd.call(m.TrimStreamRequest(stream_id, beyond))
        assert isinstance(answer, m.StreamResponse)
        assert answer.range is not None
        assert answer.range.start == 5
    assert await client.trim(stream_id, 1000) == 5
    await write(writer, b"late", 3)
    assert [entry.base_offset for entry in await client.fetch_entries(stream_id, 5, 1000)] == [5]
    assert [entry.base_offset for entry in await backend.client().fetch_entries(stream_id, 6, 1000)] == [5]


async def test_trim_of_everything(backend: Backend) -> None:
    """Nothing is left to read, and the stream goes on where it was."""
    client = backend.client()
    stream_id = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 0)
    await asyncio.gather(*(append(writer, b"x", 2) for _ in range(5)))
    assert await client.trim(stream_id, 10) == 10
    assert await client.fetch_entries(stream_id, 10, 1000) == []
    with pytest.raises(SbpError) as caught:
        await backend.client().fetch_entries(stream_id, 9, 1000)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
    assert backend.store.ranges[stream_id, 0].live_bytes == 0
    assert await append(writer, b"on", 2) == 10
    # The same for a range that is sealed: of the last one its place remains.
    assert await client.seal(stream_id, 1) == 12
    assert await client.trim(stream_id, 12) == 12
    assert backend.store.ranges[stream_id, 0].live_bytes == 0
    assert await append(await client.open(stream_id, 2), b"still on") == 12
    assert await read_all(backend.client(), stream_id, 12) == [(12, 1, b"still on")]


async def test_delete(backend: Backend) -> None:
    client = backend.client()
    stream_id = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 0)
    await append(writer, b"x")
    await client.delete_stream(stream_id)
    assert not [key for key in backend.store.ranges if key[0] == stream_id]
    with pytest.raises(SbpError):
        await append(writer, b"y")
    for action in (client.describe_stream(stream_id), client.open(stream_id, 1), client.delete_stream(stream_id)):
        with pytest.raises(SbpError) as caught:
            await action
        assert caught.value.code == ErrorCode.NOT_FOUND
    reader = backend.client()
    assert await reader.fetch_entries(stream_id, 0, 100) == []


async def test_everything_survives_a_restart(backend: Backend, tmp_path: Path) -> None:
    client = backend.client()
    stream_id = (await client.create_stream()).stream_id
    for epoch in range(2):
        writer = await client.open(stream_id, epoch)
        await asyncio.gather(*(append(writer, b"%d.%d" % (epoch, k)) for k in range(20)))
    before = await read_all(client, stream_id)
    await backend.stop()
    reborn = Backend(tmp_path, backend.kind)
    await reborn.start()
    try:
        assert await read_all(reborn.client(), stream_id) == before
        writer = await reborn.client().open(stream_id, 2)
        assert writer.next_offset == 40
        assert await append(writer, b"on") == 40
        with pytest.raises(FencedError):
            await reborn.client().open(stream_id, 1)
    finally:
        await reborn.stop()
        await backend.start()  # for the fixture to stop


# --- the network ----------------------------------------------------------------------------------------------------


async def write_through(network: Backend, trouble: Callable[[], object], count: int = 400) -> tuple[int, list[bytes]]:
    """Appends while ``trouble`` happens in the middle; all are acknowledged."""
    client = network.client()
    stream_id = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 0)
    payloads = [b"%d" % k * 30 for k in range(count)]
    futures: list[asyncio.Future[int]] = []
    for k, payload in enumerate(payloads):
        futures.append(append(writer, payload))
        if k % 10 == 0:
            await asyncio.sleep(0)
        if k == count // 2:
            outcome = trouble()
            if asyncio.iscoroutine(outcome):
                await outcome
    assert await asyncio.gather(*futures) == list(range(count))
    return stream_id, payloads


async def test_connections_cut_in_mid_flight(network: Backend) -> None:
    async def cut() -> None:
        await network.listeners["rs"].close()
        await network.listen("rs")

    stream_id, payloads = await write_through(network, cut)
    assert [p for _, _, p in await read_all(network.client(), stream_id)] == payloads


async def test_goaway_in_mid_flight(network: Backend) -> None:
    async def drain() -> None:
        await network.listeners["rs"].drain()
        await network.listen("rs")

    stream_id, payloads = await write_through(network, drain)
    assert [p for _, _, p in await read_all(network.client(), stream_id)] == payloads
    assert len(await network.client().list_ranges(stream_id)) == 1, "nothing was given up for it"


async def test_placement_driver_away_for_a_while(network: Backend) -> None:
    async def drain() -> None:
        await network.listeners["pd"].drain()

    stream_id, payloads = await write_through(network, drain)
    opening = asyncio.ensure_future(network.client().open(stream_id, 1))
    await asyncio.sleep(0)
    await network.listen("pd")
    assert (await opening).next_offset == len(payloads)
