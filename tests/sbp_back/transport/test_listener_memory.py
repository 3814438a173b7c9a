"""What clients make a listener hold is bounded, for each connection and for all together, and nobody is cut for it."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.net.framing import ReceiveBuffer
from anabranch_kit.run import turns
from sbp_back.errors import ErrorCode
from sbp_back.range_server.store import Files, StoreOptions
from sbp_back.range_server.store.gather import MAX_ENTRIES
from sbp_back.transport.handler import Reply
from sbp_back.transport.listener import Listener, ListenerOptions
from sbp_back.transport.tcp_carrier import TcpCarrier, TcpOptions
from sbp_back.wire import model as w
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.frame import FRAMING, encode_frame, parse_frame
from sbp_back.wire.v02 import MAX_APPEND_ENTRIES, DialectV02
from sbp_document.server import controls
from sbp_document.wire import messages as m
from sbp_document.wire.record_batch import RECORDS_IN_A_TURN
from tests.kit.sbp_frames import Frames
from tests.kit.waiting import until
from tests.sbp_document.document_lab import DIALECTS, appended, ask, batch, carrier, created, running, write

DIALECT = DialectV02()
MIB = 1024 * 1024
STORE = StoreOptions(segment_bytes=64 * MIB, low_water_bytes=0)


class Watched(MemoryBudget):
    """Remembers the most that was held."""

    peak = 0

    def _change(self, account, size: int) -> None:  # type: ignore[no-untyped-def]
        super()._change(account, size)
        self.peak = max(self.peak, self.held)


def budget(total: int) -> Watched:
    return Watched(total, asyncio.get_running_loop().call_soon)


class Stalled:
    """A handler that answers appends when the test says so, pings at once."""

    def __init__(self) -> None:
        self.appends: list[tuple[w.AppendRequest, Reply]] = []
        self.pings = 0
        self.heartbeats = 0

    def handle(self, request: w.Request, reply: Reply) -> None:
        if isinstance(request, w.AppendRequest):
            self.appends.append((request, reply))
        elif isinstance(request, w.PingRequest):
            self.pings += 1
            reply(w.PingResponse(request.header, request.payload))
        elif isinstance(request, w.HeartbeatRequest):
            self.heartbeats += 1
            reply(w.HeartbeatResponse(request.client_id, request.role))

    @property
    def held(self) -> int:
        return sum(entry.size for request, _ in self.appends for entry in request.entries)

    def answer(self) -> None:
        appends, self.appends = self.appends, []
        for request, reply in appends:
            reply(w.AppendResponse(results=[w.AppendResult(w.Status(), 1) for _ in request.entries]))


class Client:
    """A bare socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dialect: str = "sbp-0.2") -> None:
        self.dialect = DIALECTS[dialect]
        self.reader = reader
        self.writer = writer
        self._frames = Frames()
        self._received: list[tuple[int, w.Response]] = []
        self._last = 0

    def send(self, request: w.Request) -> None:
        self._last += 1
        opcode, header, payload = self.dialect.encode_request(request)
        self.writer.writelines(encode_frame(opcode, 0, self._last, header, payload))

    async def response(self) -> tuple[int, w.Response]:
        while not self._received:
            data = await self.reader.read(1 << 18)
            assert data, "the connection was cut"
            self._received = [
                (frame.stream_id, self.dialect.decode_response(frame.opcode, frame.flags, frame.header, frame.payload))
                for frame in self._frames.feed(data)
            ]
        return self._received.pop(0)

    async def close(self) -> None:
        self.writer.transport.abort()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


async def connect(address: tuple[str, int], dialect: str = "sbp-0.2") -> Client:
    return Client(*await asyncio.open_connection(*address), dialect)


@asynccontextmanager
async def served(total: int, **options: object) -> AsyncIterator[tuple[Listener, Stalled, Watched]]:
    handler = Stalled()
    shared = budget(total)
    listener = Listener(handler, DIALECT, "127.0.0.1", 0, ListenerOptions(**options), shared)  # type: ignore[arg-type]
    await listener.start()
    try:
        yield listener, handler, shared
        handler.answer()
    finally:
        await listener.close()
    assert (shared.held, shared.accounts, shared.waiting) == (0, 0, 0), "everything was given back"


def paused(listener: Listener) -> int:
    return sum(1 for one in listener.connections if not one.reading)


def append(size: int) -> w.AppendRequest:
    return w.AppendRequest(0, [pack_entry(1, 0, 0, 0, 1, 5, bytes(size))])


# --- what is received -----------------------------------------------------------------------------------------------


async def test_many_appending_connections_before_a_stalled_store_hold_no_more_than_the_budget() -> None:
    async with served(16 * MIB) as (listener, handler, shared):
        clients = [await connect(listener.address) for _ in range(40)]
        for client in clients:
            for _ in range(4):
                client.send(append(MIB))
        await until(lambda: paused(listener) == 40)
        assert shared.peak <= 16 * MIB + 40 * 4096, "beyond it what came unasked, in small pieces"
        assert 4 * MIB < handler.held <= shared.by_kind[Kind.REQUESTS], "but what there is is made use of"

        answered = 0

        async def read(client: Client) -> None:
            nonlocal answered
            for _ in range(4):
                _, response = await client.response()
                assert isinstance(response, w.AppendResponse)
                answered += 1

        reading = asyncio.gather(*(read(client) for client in clients))
        while not reading.done():
            handler.answer()
            await asyncio.sleep(0)
        await reading
        assert answered == 160
        assert shared.peak <= 16 * MIB + 40 * 4096
        for client in clients:
            await client.close()


async def test_a_connection_that_holds_all_it_may_leaves_room_for_others() -> None:
    async with served(16 * MIB) as (listener, handler, _):
        greedy = [await connect(listener.address) for _ in range(8)]
        for client in greedy:
            for _ in range(8):
                client.send(append(MIB))
        await until(lambda: paused(listener) == 8)
        modest = await connect(listener.address)
        held = len(handler.appends)
        modest.send(append(30_000))
        await until(lambda: len(handler.appends) > held)
        assert handler.appends[-1][0].entries[0].size < 31_000
        for client in [*greedy, modest]:
            await client.close()


async def test_appends_of_a_connection_that_is_gone_count_until_they_are_stored() -> None:
    async with served(64 * MIB) as (listener, handler, shared):
        client = await connect(listener.address)
        client.send(append(MIB))
        await until(lambda: len(handler.appends) == 1)
        await client.close()
        await until(lambda: len(listener.connections) == 0)
        assert shared.by_kind[Kind.REQUESTS] > MIB
        handler.answer()
        assert shared.held == 0


async def test_heartbeats_are_heard_behind_a_store_that_stalls() -> None:
    """Or its clients would take the server for gone and send everything again."""
    async with served(256 * MIB) as (listener, handler, _):
        to = TcpCarrier(*listener.address, options=TcpOptions(heartbeat_idle=0.02, heartbeat_timeout=60))
        got: list[object] = []
        for _ in range(80):
            to.submit(append(MIB), got.append)
        await until(lambda: handler.heartbeats >= 5)
        assert handler.held > 8 * MIB
        while len(got) < 80:
            handler.answer()
            await asyncio.sleep(0)
        assert all(isinstance(answer, w.AppendResponse) for answer in got)
        await to.close()


async def test_long_frames_half_received_do_not_wait_for_each_other() -> None:
    async with served(16 * MIB, idle_seconds=0) as (listener, handler, shared):
        frames = []
        clients = [await connect(listener.address) for _ in range(20)]
        opcode, header, payload = DIALECT.encode_request(append(4 * MIB))
        frame = b"".join(bytes(part) for part in encode_frame(opcode, 0, 1, header, payload))
        for client in clients:
            frames.append(frame)
            client.writer.write(frame[: len(frame) // 2])
        await until(lambda: shared.waiting > 0)
        assert shared.peak <= 16 * MIB + 20 * 2 * 65536
        for client in clients:
            client.writer.write(frame[len(frame) // 2 :])

        async def read(client: Client) -> None:
            await client.response()

        reading = asyncio.gather(*(read(client) for client in clients))
        while not reading.done():
            handler.answer()
            await asyncio.sleep(0)
        await reading
        for client in clients:
            await client.close()


@pytest.mark.parametrize(("size", "sent", "held"), [(2 * MIB, 100_000, 2 * MIB), (15_000, 5_000, 5_000)])
async def test_a_frame_that_does_not_come_to_its_end_costs_its_connection(size: int, sent: int, held: int) -> None:
    async with served(16 * MIB, stall_seconds=60, idle_seconds=0) as (listener, _, shared):
        client = await connect(listener.address)
        opcode, header, payload = DIALECT.encode_request(append(size))
        frame = b"".join(bytes(part) for part in encode_frame(opcode, 0, 1, header, payload))
        client.writer.write(frame[:sent])
        (connection,) = await held_connections(listener)
        await until(lambda: connection.receiving_since < float("inf"))  # type: ignore[attr-defined]
        assert shared.held >= held
        now = asyncio.get_running_loop().time()
        connection.look_after(now + 20)  # type: ignore[attr-defined]
        assert len(listener.connections) == 1
        connection.look_after(now + 61)  # type: ignore[attr-defined]
        await until(lambda: len(listener.connections) == 0)
        await client.close()


async def held_connections(listener: Listener) -> list[object]:
    await until(lambda: len(listener.connections) > 0)
    return list(listener.connections)


async def test_small_frames_that_are_not_complete_are_counted() -> None:
    async with served(16 * MIB, idle_seconds=0) as (listener, _, shared):
        clients = [await connect(listener.address) for _ in range(10)]
        opcode, header, payload = DIALECT.encode_request(append(15_000))
        frame = b"".join(bytes(part) for part in encode_frame(opcode, 0, 1, header, payload))
        for client in clients:
            client.writer.write(frame[:12_000])
        await until(lambda: shared.by_kind[Kind.REQUESTS] == 120_000)
        for client in clients:
            await client.close()
        await until(lambda: len(listener.connections) == 0)
        assert shared.held == 0


async def test_one_turn_of_the_loop_serves_a_bounded_number_of_frames() -> None:
    async with served(64 * MIB) as (listener, handler, _):
        client = await connect(listener.address)
        total = 6000
        opcode, header, payload = DIALECT.encode_request(w.PingRequest())
        client.writer.write(
            b"".join(bytes(p) for k in range(total) for p in encode_frame(opcode, 0, k + 1, header, payload))
        )
        most = before = 0
        while handler.pings < total:
            await asyncio.sleep(0)
            most = max(most, handler.pings - before)
            before = handler.pings
        assert most <= 1024, "a read and what was left of the one before"
        for _ in range(total):
            await client.response()
        await client.close()


def test_readers_that_share_a_buffer_keep_their_bytes_apart() -> None:
    shared = ReceiveBuffer()
    readers = [FRAMING.framer(shared) for _ in range(3)]
    sizes = [0, 1, 30_000, 65_000, 70_000, 300_000, 5]
    streams = []
    for number in range(3):
        parts = [
            part
            for k, size in enumerate(sizes)
            for part in encode_frame(1, 0, k, b"head %d" % number, [bytes([number + k]) * size])
        ]
        streams.append(b"".join(bytes(part) for part in parts))
    got: list[list[tuple[int, bytes, int]]] = [[], [], []]
    at = [0, 0, 0]
    steps = [7, 4096, 33_333]
    while any(at[n] < len(streams[n]) for n in range(3)):
        for n in range(3):
            piece = streams[n][at[n] : at[n] + steps[n]]
            at[n] += len(piece)
            while piece:
                target = readers[n].space()
                count = min(len(target), len(piece))
                target[:count] = piece[:count]
                piece = piece[count:]
                frames = map(parse_frame, readers[n].received(count))
                got[n] += [(frame.stream_id, frame.header, len(frame.payload)) for frame in frames]
                readers[n].retry()
    for n in range(3):
        assert got[n] == [(k, b"head %d" % n, size) for k, size in enumerate(sizes)]
        assert readers[n].partial == 0


# --- what is answered -----------------------------------------------------------------------------------------------


def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in the page cache."""

    def nothing(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(Files, "scatter_cached", nothing)


@pytest.mark.parametrize("max_wait_ms", [0, 5000])
async def test_three_hundred_catch_up_fetches_of_cold_data_over_one_connection_are_all_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_wait_ms: int
) -> None:
    cold(monkeypatch)
    shared = budget(64 * MIB)
    async with running(tmp_path, budget=shared, store=STORE) as embedded:
        stream = (await embedded.client.create_stream()).stream_id
        writer = await embedded.client.open(stream, 1)
        for _ in range(4):
            await write(writer, bytes(MIB - 1000))
        (wanted,) = await embedded.client.list_ranges(stream)
        client = await connect(embedded.addresses["sbp-range-server"])
        for k in range(300):
            client.send(w.FetchRequest(wanted, k % 4, max_bytes=MIB, max_wait_ms=max_wait_ms))
        await client.writer.drain()
        await until(lambda: shared.by_kind[Kind.RESPONSES] > MIB)
        seen = set()
        for _ in range(300):
            number, response = await client.response()
            assert isinstance(response, w.FetchResponse)
            assert [entry.base_offset for entry in response.entries] == [(number - 1) % 4]
            seen.add(number)
        assert len(seen) == 300
        assert shared.peak <= 10 * MIB, "what one connection may have read and not taken, and some requests"
        await client.close()
        await until(lambda: shared.held == 0)


async def test_slow_readers_together_hold_no_more_than_the_budget(tmp_path: Path) -> None:
    shared = budget(16 * MIB)
    async with running(tmp_path, budget=shared, store=STORE) as embedded:
        stream = (await embedded.client.create_stream()).stream_id
        writer = await embedded.client.open(stream, 1)
        for _ in range(16):
            await write(writer, bytes(60_000))
        (wanted,) = await embedded.client.list_ranges(stream)
        clients = [await connect(embedded.addresses["sbp-range-server"]) for _ in range(30)]
        for client in clients:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(40):
                client.send(w.FetchRequest(wanted, 0, max_bytes=16 * 60_000, max_wait_ms=1000))
        await until(lambda: shared.waiting > 0)
        for client in clients:
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]

        async def read(client: Client) -> None:
            for _ in range(40):
                _, response = await client.response()
                assert isinstance(response, w.FetchResponse)
                assert response.entries[0].base_offset == 0

        await asyncio.gather(*(read(client) for client in clients))
        assert shared.peak <= 17 * MIB
        for client in clients:
            await client.close()
        await until(lambda: shared.held == 0)


async def test_fetches_that_wait_for_data_hold_nothing_and_end_with_their_connection(tmp_path: Path) -> None:
    shared = budget(16 * MIB)
    async with running(tmp_path, budget=shared, store=STORE) as embedded:
        stream = (await embedded.client.create_stream()).stream_id
        writer = await embedded.client.open(stream, 1)
        await write(writer, b"first")
        (wanted,) = await embedded.client.list_ranges(stream)
        clients = [await connect(embedded.addresses["sbp-range-server"]) for _ in range(2)]
        for client in clients:
            for _ in range(1000):
                client.send(w.FetchRequest(wanted, 1, max_bytes=16 * MIB, max_wait_ms=300_000))
        await until(lambda: embedded.range_server.waiting_fetches == 2000)
        assert shared.held < MIB
        await clients[0].close()
        await until(lambda: embedded.range_server.waiting_fetches == 1000)
        await write(writer, b"second")
        for _ in range(1000):
            _, response = await clients[1].response()
            assert isinstance(response, w.FetchResponse)
            assert [bytes(entry.payload) for entry in response.entries] == [b"second"]
        await clients[1].close()
        await until(lambda: shared.held == 0)


async def test_what_is_asked_inside_the_process_waits_for_no_room(tmp_path: Path) -> None:
    """Whoever asks has counted it already: a front whose requests fill the budget must not wait for itself."""
    shared = budget(16 * MIB)
    async with running(tmp_path, budget=shared, store=STORE) as embedded:
        front = shared.account(lambda: None)
        front.take(Kind.REQUESTS, 16 * MIB)
        stream = (await embedded.client.create_stream()).stream_id
        writer = await embedded.client.open(stream, 1)
        await write(writer, bytes(3 * MIB))
        (entry,) = await embedded.client.fetch_entries(stream, 0, 4 * MIB)
        assert len(entry.payload) == 3 * MIB
        assert shared.held == 16 * MIB
        (wanted,) = await embedded.client.list_ranges(stream)
        client = await connect(embedded.addresses["sbp-range-server"])
        client.send(w.FetchRequest(wanted, 0, max_bytes=1000))
        await until(lambda: shared.waiting == 1)
        front.give(Kind.REQUESTS, 16 * MIB)
        _, response = await client.response()
        assert isinstance(response, w.FetchResponse)
        assert len(response.entries) == 1
        await client.close()
        await until(lambda: shared.held == 0)


async def test_an_entry_longer_than_a_connections_part_is_fetched_when_it_is_its_turn(tmp_path: Path) -> None:
    shared = budget(24 * MIB)
    async with running(tmp_path, budget=shared, store=STORE) as embedded:
        stream = (await embedded.client.create_stream()).stream_id
        writer = await embedded.client.open(stream, 1)
        await write(writer, bytes(12 * MIB))
        (wanted,) = await embedded.client.list_ranges(stream)
        clients = [await connect(embedded.addresses["sbp-range-server"]) for _ in range(6)]

        async def read(client: Client) -> None:
            client.send(w.FetchRequest(wanted, 0, max_bytes=1000))
            client.send(w.FetchRequest(wanted, 0, max_bytes=1000, max_wait_ms=1000))
            for _ in range(2):
                _, response = await client.response()
                assert isinstance(response, w.FetchResponse)
                assert len(response.entries[0].payload) == 12 * MIB

        await asyncio.gather(*(read(client) for client in clients))
        assert shared.peak <= 24 * MIB + MIB
        for client in clients:
            await client.close()
        await until(lambda: shared.held == 0)


async def test_catch_up_fetches_of_the_document_are_all_answered_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold(monkeypatch)
    shared = budget(64 * MIB)
    async with running(tmp_path, budget=shared, store=STORE) as embedded:
        to = carrier(embedded, "in-process")
        stream = await created(to)
        for _ in range(4):
            await appended(to, stream, bytes(MIB // 2))
        client = await connect(embedded.addresses["sbp-v0.1"], "sbp-v0.1")
        items = [m.FetchItem(stream, k, k % 4, MIB // 2) for k in range(10)]
        for _ in range(30):
            client.send(m.FetchBatchRequest(5000, 1, items))
        await client.writer.drain()
        await until(lambda: shared.by_kind[Kind.RESPONSES] > MIB)
        results = 0
        while results < 300:
            _, response = await client.response()
            assert isinstance(response, m.FetchBatchResponse)
            for result in response.results:
                assert result.status == w.Status()
                assert result.size > MIB // 2
                results += 1
        assert shared.peak <= 28 * MIB, "a frame's worth of results more than its own part"
        await client.close()
        await until(lambda: shared.held == 0)


async def test_batches_of_the_document_count_with_the_copy_that_gets_their_offset() -> None:
    request = m.AppendBatchRequest(0, [m.AppendItem(1, 0, batch(bytes(1000))), m.AppendItem(1, 1, batch(b"x"))])
    assert request.working_bytes == sum(len(item.batch) for item in request.items)


# --- work by numbers ------------------------------------------------------------------------------------------------


async def test_an_append_of_more_entries_than_a_turn_should_cost_is_refused_and_the_connection_goes_on() -> None:
    async with served(64 * MIB) as (listener, handler, _):
        client = await connect(listener.address)
        entries = [pack_entry(1, 0, 0, k, 1, 5, b"") for k in range(MAX_APPEND_ENTRIES + 1)]
        client.send(w.AppendRequest(0, entries))
        _, response = await client.response()
        assert isinstance(response, w.SystemErrorResponse)
        assert response.status.code == ErrorCode.PAYLOAD_TOO_LARGE
        client.send(w.AppendRequest(0, entries[:-1]))
        await until(lambda: len(handler.appends) == 1)
        assert len(handler.appends[0][0].entries) == MAX_APPEND_ENTRIES
        handler.answer()
        _, response = await client.response()
        assert isinstance(response, w.AppendResponse)
        await client.close()


async def test_a_read_returns_a_bounded_number_of_small_entries(tmp_path: Path) -> None:
    async with running(tmp_path, store=STORE) as embedded:
        stream = (await embedded.client.create_stream()).stream_id
        writer = await embedded.client.open(stream, 1)
        total = MAX_ENTRIES + 1000
        await asyncio.gather(*(write(writer, b"") for _ in range(total)))
        first = await embedded.client.fetch_entries(stream, 0, 16 * MIB)
        assert len(first) == MAX_ENTRIES
        rest = await embedded.client.fetch_entries(stream, first[-1].end_offset, 16 * MIB)
        assert [entry.base_offset for entry in first + rest] == list(range(total))


async def test_a_long_listing_is_made_and_written_beside_the_loop() -> None:
    """Others are answered meanwhile."""
    ranges = [w.RangeInfo(k, 1, 0, 0, -1, [w.RangeServerInfo(1, "host:1")], 1, 1) for k in range(20_000)]
    writing = threading.Event()
    loop_thread = threading.get_ident()
    threads = set()

    class Recorded(type(DIALECT)):  # type: ignore[misc]
        def encode_response(self, opcode, response):  # type: ignore[no-untyped-def]
            if isinstance(response, w.ListRangeResponse):
                threads.add(threading.get_ident())
                assert writing.wait(30)
            return super().encode_response(opcode, response)

    class Listing(Stalled):
        def handle(self, request: w.Request, reply: Reply) -> None:
            if isinstance(request, w.ListRangeRequest):
                reply(w.ListRangeResponse(ranges=ranges))
            else:
                super().handle(request, reply)

    shared = budget(64 * MIB)
    listener = Listener(Listing(), Recorded(), "127.0.0.1", 0, None, shared)
    await listener.start()
    client = await connect(listener.address)
    client.send(w.ListRangeRequest(server_id=1))
    client.send(w.PingRequest(b"", b"meanwhile"))
    assert await client.response() == (2, w.PingResponse(b"", b"meanwhile"))
    writing.set()
    number, response = await client.response()
    assert number == 1
    assert isinstance(response, w.ListRangeResponse)
    assert len(response.ranges) == 20_000
    assert threads
    assert loop_thread not in threads
    await client.close()
    await listener.close()
    assert shared.held == 0


def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is a millisecond after the one before."""
    now = 0.0

    def later() -> float:
        nonlocal now
        now += 0.001
        return now

    monkeypatch.setattr(turns, "monotonic", later)


async def test_a_servers_listing_is_collected_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, store=STORE) as embedded:
        server = embedded.range_server
        for k in range(1200):
            await embedded.client.channel(server.info).carrier.call(w.CreateRangeRequest(w.RangeInfo(k, 1, 0, 0)))
        got: list[w.Response] = []
        slow(monkeypatch)
        server.handle(w.ListRangeRequest(server_id=server.info.server_id), got.append)
        assert not got, "not in one go"
        await until(lambda: bool(got))
        assert isinstance(got[0], w.ListRangeResponse)
        assert sorted(known.stream_id for known in got[0].ranges) == list(range(1200))


async def test_the_documents_listings_share_what_a_frame_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "MAX_LISTED", 20)
    async with running(tmp_path, store=STORE) as embedded:
        to = carrier(embedded, "in-process")
        for _ in range(15):
            await created(to)
        server = w.RangeServerInfo(embedded.range_server.info.server_id)
        request = m.ListRangesRequest(0, [m.RangeOwner(server) for _ in range(1000)])
        response = await ask(to, request, m.ListRangesResponse)
        assert [len(result.ranges) for result in response.results] == [15, *[0] * 999]
        assert {result.status.code for result in response.results[1:]} == {ErrorCode.PAYLOAD_TOO_LARGE}


async def test_a_fetch_of_many_streams_begins_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, store=STORE) as embedded:
        to = carrier(embedded, "in-process")
        stream = await created(to)
        await appended(to, stream, b"body")
        assert len(await embedded.client.fetch_entries(stream, 0, 1)) == 1, "its ranges are known"
        server = embedded.document.server
        got: list[w.Response] = []
        items = [m.FetchItem(stream, k, 0, 1) for k in range(1000)]
        slow(monkeypatch)
        server.handle(m.FetchBatchRequest(0, 0, items), got.append)
        assert not got, "not in one go"
        await until(lambda: isinstance(got[-1], m.FetchBatchResponse) and got[-1].last if got else False)
        results = [one for part in got if isinstance(part, m.FetchBatchResponse) for one in part.results]
        assert sorted(one.request_index for one in results) == list(range(1000))
        assert server.waiting_fetches == 0


def short_records(count: int) -> bytearray:
    """A batch of records of one byte without a meta."""
    one = batch(b"x")
    head = 13 + int.from_bytes(one[9:13], "big")
    return one[:head] + (bytes(7) + b"\1x") * count


async def test_appends_of_many_batches_or_records_take_several_turns_and_keep_their_order(tmp_path: Path) -> None:
    async with running(tmp_path, store=STORE) as embedded:
        to = carrier(embedded, "in-process")
        stream = await created(to)
        await appended(to, stream, b"first")
        server = embedded.document.server
        got: dict[str, list[m.AppendItemResult]] = {"records": [], "batches": [], "last": []}

        def collect(name: str) -> Reply:
            def reply(part: w.Response) -> None:
                assert isinstance(part, m.AppendBatchResponse)
                got[name] += part.results

            return reply

        records = 3 * RECORDS_IN_A_TURN
        requests = {
            "records": [m.AppendItem(stream, 0, short_records(records))],
            "batches": [m.AppendItem(stream, k, batch(b"%d" % k)) for k in range(2000)],
            "last": [m.AppendItem(stream, 0, batch(b"last"))],
        }
        for name, items in requests.items():
            server.handle(m.AppendBatchRequest(0, items), collect(name))
        await until(lambda: bool(got["last"]))
        await until(lambda: len(got["batches"]) == 2000)
        assert [one.base_offset for one in got["records"]] == [1]
        in_order = sorted(got["batches"], key=lambda one: one.request_index)
        assert [one.base_offset for one in in_order] == [1 + records + k for k in range(2000)]
        assert [one.base_offset for one in got["last"]] == [1 + records + 2000]


async def test_a_request_of_thousands_of_elements_is_read_beside_the_loop_and_in_order(tmp_path: Path) -> None:
    async with running(tmp_path, store=STORE) as embedded:
        client = await connect(embedded.addresses["sbp-v0.1"], "sbp-v0.1")
        client.send(m.DescribeStreamsRequest(0, list(range(20_000))))
        client.send(w.PingRequest(b"", b"behind it"))
        answered = {}
        for _ in range(2):
            number, response = await client.response()
            answered[number] = response
        assert answered[2] == w.PingResponse(b"", b"behind it")
        described = answered[1]
        assert isinstance(described, m.DescribeStreamsResponse)
        assert len(described.results) == 20_000
        await client.close()


async def test_connections_that_are_ready_at_once_share_one_turn_of_the_loop() -> None:
    async with served(64 * MIB) as (listener, handler, _):
        clients = [await connect(listener.address) for _ in range(20)]
        opcode, header, payload = DIALECT.encode_request(w.PingRequest())
        frames = b"".join(bytes(p) for k in range(500) for p in encode_frame(opcode, 0, k + 1, header, payload))
        for client in clients:
            client.writer.write(frames)
        most = before = 0
        while handler.pings < 20 * 500:
            await asyncio.sleep(0)
            most = max(most, handler.pings - before)
            before = handler.pings
        assert most <= 1024, "not five hundred of each"
        for client in clients:
            for _ in range(500):
                await client.response()
            await client.close()


async def test_what_many_readers_have_read_in_one_turn_is_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, budget=budget(256 * MIB), store=STORE) as embedded:
        stream = (await embedded.client.create_stream()).stream_id
        writer = await embedded.client.open(stream, 1)
        await asyncio.gather(*(write(writer, bytes(60_000)) for _ in range(40)))
        (wanted,) = await embedded.client.list_ranges(stream)
        clients = [await connect(embedded.addresses["sbp-range-server"]) for _ in range(20)]
        for client in clients:
            for _ in range(10):
                client.send(w.FetchRequest(wanted, 0, max_bytes=MIB, max_wait_ms=1000))
        stats = embedded.store.stats
        most, before = 0, stats.read_bytes
        reading = asyncio.gather(*(client.response() for client in clients))
        while not reading.done():
            await asyncio.sleep(0)
            most = max(most, stats.read_bytes - before)
            before = stats.read_bytes
        await reading
        for client in clients:
            for _ in range(9):
                _, response = await client.response()
                assert isinstance(response, w.FetchResponse)
                assert len(response.entries) == 17
            await client.close()
        assert most <= 2 * 3 * MIB, "two turns, each a little more than its allowance"


# --- all of it together ---------------------------------------------------------------------------------------------


class Moody(Stalled):
    """Answers in any order, some at once; reads for fetches as a range server does, some in a thread's time."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._later: list[Callable[[], None]] = []

    def handle(self, request: w.Request, reply: Reply) -> None:
        if isinstance(request, w.FetchRequest):
            self._fetch(request, reply)
        elif isinstance(request, w.AppendRequest):
            self.soon(lambda: reply(w.AppendResponse(results=[w.AppendResult(w.Status(), 1) for _ in request.entries])))
        else:
            super().handle(request, reply)

    def soon(self, step: Callable[[], None]) -> None:
        if self._rng.random() < 0.3:
            step()
        else:
            self._later.append(step)

    def step(self) -> bool:
        if self._later:
            self._later.pop(self._rng.randrange(len(self._later)))()
        return bool(self._later)

    def _fetch(self, request: w.FetchRequest, reply: Reply) -> None:
        room = request.room
        assert room is not None
        if room.gone:
            reply(w.FetchResponse(w.Status(ErrorCode.NO_NEW_RECORD)))
            return
        least = self._rng.choice([100, 10_000, MIB])
        most = max(least, request.max_bytes)
        granted = room.reserve(most, least)
        if not granted:
            room.wait(most, least, lambda: self._fetch(request, reply))
            return

        def read() -> None:
            size = self._rng.choice([0, min(granted, 5000), granted])
            room.settle(granted, size, 1)
            reply(w.FetchResponse(entries=[pack_entry(1, 0, 0, 0, 1, 5, bytes(size))] if size else []))

        self.soon(read)


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_clients_do_nothing_is_left_behind_and_nobody_waits_for_ever(seed: int) -> None:
    rng = random.Random(seed)
    total = rng.choice([4, 16, 64]) * MIB
    handler = Moody(rng)
    shared = budget(total)
    listener = Listener(handler, DIALECT, "127.0.0.1", 0, ListenerOptions(idle_seconds=0), shared)
    await listener.start()
    served_whole = 0

    async def run() -> None:
        nonlocal served_whole
        for _ in range(3):
            client = await connect(listener.address)
            count = rng.randrange(1, 40)
            for _ in range(count):
                kind = rng.randrange(3)
                if kind == 0:
                    client.send(append(rng.choice([10, 5000, 70_000, MIB])))
                elif kind == 1:
                    size = rng.choice([1000, 100_000, 2 * MIB])
                    client.send(w.FetchRequest(w.RangeInfo(1, 1, 0, 0), 0, max_bytes=size, max_wait_ms=100))
                else:
                    client.send(w.PingRequest(b"", bytes(rng.choice([0, 3000, 200_000]))))
            leaves = rng.random() < 0.3
            for _ in range(rng.randrange(count) if leaves else count):
                await client.response()
            served_whole += not leaves
            await client.close()

    running = asyncio.gather(*(run() for _ in range(12)))
    async with asyncio.timeout(100):
        # A connection that is not read from is found to have ended when what keeps it so is answered.
        while not running.done() or len(listener.connections):
            handler.step()
            await asyncio.sleep(0)
        await running
    while handler.step():
        pass
    assert served_whole > 0
    assert (shared.held, shared.by_kind, shared.accounts, shared.waiting) == (0, [0] * len(Kind), 0, 0)
    assert shared.peak <= total + 12 * (MIB + 128 * 1024), "what came unasked, and reads that could not be less"
    await listener.close()
