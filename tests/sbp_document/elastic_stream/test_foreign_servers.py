"""The client at servers with the faults of elastic-stream's (tests/sbp_document/elastic_stream/servers.py)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sbp_back.client.client import Client, ClientOptions, StreamWriter
from sbp_back.client.control import ControlOptions
from sbp_back.client.replica import RetryOptions
from sbp_back.client.stream_writer import WriterOptions
from sbp_back.embedded import PD_LISTENER, RANGE_SERVER_LISTENER, EmbeddedOptions, start_embedded
from sbp_back.errors import ConnectionLost, ErrorCode, SbpError
from sbp_back.placement_driver.driver import PlacementDriver
from sbp_back.range_server.range_server_service import RangeServerSetup, open_store, start_range_server
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.carrier import InProcessCarrier
from sbp_back.transport.serving import ListenAt
from sbp_back.transport.tcp_carrier import TcpCarrier, tcp_connector
from sbp_back.wire import model as m
from sbp_document.elastic_stream.client import ForeignClient
from tests.databases import pd_state
from tests.kit.waiting import until
from tests.sbp_document.elastic_stream.servers import ForeignCluster, ForeignPlacementDriver, Panic


class World(ForeignCluster):
    """A cluster reached in this process."""

    def client(self, *, foreign: bool = True) -> Client:
        def connect(info: m.RangeServerInfo) -> InProcessCarrier:
            return InProcessCarrier(self.servers[info.server_id])

        control = ControlOptions(delay_first=0.001)
        retry = RetryOptions(delay_first=0.001, delay_limit=0.001, append_timeout=0.05)
        options = ClientOptions(control, WriterOptions(retry=retry, control=control), fetch_timeout=0.05)
        kind = ForeignClient if foreign else Client
        return kind(InProcessCarrier(self.handler), connect, options)

    @property
    def fetches(self) -> list[m.FetchRequest]:
        return [request for server in self.servers for request in server.fetches]


@pytest.fixture
async def world() -> World:
    made = World()
    await made.enlist()
    return made


@pytest.fixture
async def mixed(tmp_path: Path) -> AsyncIterator[World]:
    """Foreign range servers of a placement driver of ours."""
    state = pd_state(tmp_path / "pd.sqlite", asyncio.get_running_loop())
    pd = PlacementDriver(state, connect=lambda server: InProcessCarrier(made.servers[server.server_id]))
    made = World(pd=pd)
    await made.enlist()
    yield made
    await pd.close()


async def append(writer: StreamWriter, payload: bytes, count: int) -> int:
    future: asyncio.Future[SbpError | None] = asyncio.get_running_loop().create_future()
    base = writer.append(payload, count, 0, 1, future.set_result)
    error = await future
    if error is not None:
        raise error
    return base


async def filled(world: World, counts: list[int], epochs: int = 1, size: int = 100) -> tuple[int, dict[int, bytes]]:
    """A stream of batches with ``counts`` records each, in as many ranges as epochs: id and offset -> payload."""
    client = world.client()
    stream_id = (await client.create_stream()).stream_id
    expected: dict[int, bytes] = {}
    for epoch in range(epochs):
        writer = await client.open(stream_id, epoch)
        for count in counts:
            payload = b"%d/" % len(expected) + bytes(size)
            base = await append(writer, payload, count)
            expected.update(dict.fromkeys(range(base, base + count), payload))
    return stream_id, expected


@pytest.mark.parametrize("epochs", [1, 3])
async def test_every_offset_leads_to_its_batch(world: World, epochs: int) -> None:
    stream_id, expected = await filled(world, [1, 7, 2, 30, 1, 100], epochs)
    end = len(expected)
    for known in (True, False):
        client = world.client()
        for offset in random.Random(epochs).sample(range(end), end):
            if not known:
                client = world.client()  # one that has read nothing yet
            entries = await client.fetch_entries(stream_id, offset, 150, limit=end)
            assert entries[0].base_offset <= offset < entries[0].end_offset, offset
            assert bytes(entries[0].payload) == expected[offset]
        assert await client.fetch_entries(stream_id, end, 150, limit=end) == []


async def test_without_the_work_around_the_last_batch_has_a_blind_side(world: World) -> None:
    stream_id, _ = await filled(world, [10])
    assert await world.client(foreign=False).fetch_entries(stream_id, 5, 1000, limit=10) == []


async def test_the_byte_budget_is_where_the_server_looks_for_it(world: World) -> None:
    stream_id, _ = await filled(world, [1] * 50, size=1000)
    client = world.client()
    for max_bytes, expected in ((1, 1), (10_000, 10), (1 << 20, 50)):
        entries = await client.fetch_entries(stream_id, 0, max_bytes, max_wait_ms=5, limit=50)
        assert len(entries) == expected
        request = world.servers[0].fetches[-1] if world.servers[0].fetches else world.servers[1].fetches[-1]
        assert request.max_bytes == request.max_wait_ms == max_bytes
    assert len(await client.fetch_entries(stream_id, 0, 1 << 20)) == 50, "no limit is no limit"


async def test_waiting_for_data_is_done_here(world: World) -> None:
    client = world.client()
    stream_id = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 0)
    await append(writer, b"first", 1)
    waiting = asyncio.ensure_future(world.client().fetch_entries(stream_id, 1, 1000, max_wait_ms=60_000))
    await until(lambda: any(request.offset == 1 for server in world.servers for request in server.fetches))
    await append(writer, b"second", 1)
    assert [bytes(entry.payload) for entry in await waiting] == [b"second"]
    assert await client.fetch_entries(stream_id, 2, 1000, max_wait_ms=1) == []


async def test_a_server_that_forgot_what_is_committed_loses_nothing(world: World) -> None:
    stream_id, expected = await filled(world, [3, 1, 40], size=1000)
    for server in world.servers:
        server.restart()
    writer = await world.client().open(stream_id, 1)
    assert writer.next_offset == 44
    assert await append(writer, b"next", 1) == 44
    entries = await world.client().fetch_entries(stream_id, 0, 1 << 20)
    assert [entry.base_offset for entry in entries] == [0, 3, 4, 44]
    assert bytes(entries[2].payload) == expected[10]


async def test_believing_it_would_have(world: World) -> None:
    stream_id, _ = await filled(world, [3, 1, 40])
    for server in world.servers:
        server.restart()
    writer = await world.client(foreign=False).open(stream_id, 1)
    assert writer.next_offset == 0


async def test_a_reader_that_waits_follows_into_the_next_range(world: World) -> None:
    client = world.client()
    stream_id = (await client.create_stream()).stream_id
    await append(await client.open(stream_id, 0), b"first", 1)
    waiting = asyncio.ensure_future(world.client().fetch_entries(stream_id, 1, 1000, max_wait_ms=60_000))
    await until(lambda: any(request.offset == 1 for request in world.fetches))
    # Another client: what the reader's knows of ranges is old now.
    await append(await world.client().open(stream_id, 1), b"second", 1)
    assert [bytes(entry.payload) for entry in await waiting] == [b"second"]


@pytest.mark.parametrize("seed", range(20))
async def test_the_end_of_a_range_is_found_without_reading_it(world: World, seed: int) -> None:
    rng = random.Random(seed)
    counts = [rng.choice([1, 1, 2, 7, 500, 100_000]) for _ in range(rng.randrange(1, 60))]
    stream_id, _ = await filled(world, counts, size=1)
    for server in world.servers:
        server.restart()
        server.fetches.clear()
        if seed % 2:
            server.reclaimed = rng.randrange(sum(counts[:-1]) + 1)
    writer = await world.client().open(stream_id, 1)
    assert writer.next_offset == sum(counts)
    assert len(world.fetches) < 60
    assert all(request.max_wait_ms == request.max_bytes == 1 for request in world.fetches), "no answer may be too long"


async def test_a_range_of_which_nothing_is_left_goes_on_where_no_offset_was_ever_given(world: World) -> None:
    stream_id, _ = await filled(world, [3, 1, 40])
    for server in world.servers:
        server.reclaimed = 44
        server.restart()
    writer = await world.client().open(stream_id, 1)
    assert writer.next_offset >= 44
    base = await append(writer, b"next", 1)
    assert base >= 44
    client = world.client()
    for offset in (0, 3, 4, 20, 43, base - 1):
        with pytest.raises(SbpError) as gone:
            await client.fetch_entries(stream_id, offset, 1 << 20, limit=base + 1)
        assert gone.value.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, offset
    assert [e.base_offset for e in await client.fetch_entries(stream_id, base, 1 << 20)] == [base]


@pytest.mark.parametrize("epochs", [1, 3])
async def test_what_was_reclaimed_is_gone_and_what_is_left_is_found_from_everywhere_in_it(
    world: World, epochs: int
) -> None:
    counts = [1, 7, 2, 30, 1, 100]
    stream_id, expected = await filled(world, counts, epochs)
    end = len(expected)
    starts = {0}
    for count in counts * epochs:
        starts.add(max(starts) + count)
    for reclaimed in sorted(starts):
        for server in world.servers:
            server.reclaimed = reclaimed
        for known in (True, False):
            client = world.client()
            for offset in random.Random(reclaimed).sample(range(end), min(end, 60)):
                if not known:
                    client = world.client()
                if offset >= reclaimed:
                    entries = await client.fetch_entries(stream_id, offset, 150, limit=end)
                    assert entries[0].base_offset <= offset < entries[0].end_offset, (reclaimed, offset)
                    assert bytes(entries[0].payload) == expected[offset]
                else:
                    with pytest.raises(SbpError) as gone:
                        await client.fetch_entries(stream_id, offset, 150, limit=end)
                    assert gone.value.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, (reclaimed, offset)


MIB = 1024 * 1024


async def read_all(client: Client, stream_id: int, max_bytes: int, limit: int = -1) -> list[int]:
    """The base offsets of all batches."""
    found: list[int] = []
    offset = 0
    while entries := await client.fetch_entries(stream_id, offset, max_bytes, limit=limit):
        found += [entry.base_offset for entry in entries]
        offset = entries[-1].end_offset
    return found


async def written(world: World, sizes: list[int]) -> int:
    """A stream with one batch of each size, written as one record."""
    client = world.client()
    stream_id = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 0)
    for size in sizes:
        await append(writer, bytes(size), 1)
    return stream_id


async def test_large_fetches_are_asked_for_in_answers_that_fit_a_frame(world: World) -> None:
    stream_id = await written(world, [MIB] * 30)
    assert await read_all(world.client(), stream_id, 20 * MIB) == list(range(30))
    assert max(request.max_bytes for request in world.fetches) <= 8 * MIB
    assert not any(server.dropped for server in world.servers)


async def test_a_fetch_that_is_not_answered_is_asked_again_with_the_smallest_budget(world: World) -> None:
    stream_id = await written(world, [600 * 1024, 15 * MIB + 900 * 1024, 1000])
    entries = await world.client().fetch_entries(stream_id, 0, MIB)
    assert [entry.base_offset for entry in entries] == [0]
    assert [request.max_bytes for request in world.fetches] == [MIB, 1]
    assert sum(server.dropped for server in world.servers) == 1


async def test_a_long_batch_costs_one_answer_however_many_short_ones_lie_before_it(world: World) -> None:
    long = 15 * MIB + 900 * 1024
    stream_id = await written(world, [4000] * 300 + [long] + [4000] * 300 + [long] + [1000])
    client = world.client()
    expected = list(range(603))
    assert await read_all(client, stream_id, 20 * MIB) == expected
    assert sum(server.dropped for server in world.servers) == 2
    # Where they lie is known from now on, also when reading begins elsewhere.
    fetches = len(world.fetches)
    assert await read_all(client, stream_id, 20 * MIB) == expected
    assert (await client.fetch_entries(stream_id, 299, 20 * MIB))[0].base_offset == 299
    assert sum(server.dropped for server in world.servers) == 2
    assert len(world.fetches) - fetches < 12


async def test_an_unanswered_fetch_of_short_batches_slows_nothing_down_for_long(world: World) -> None:
    """The server was away for a moment, nothing else."""
    stream_id = await written(world, [MIB] * 40)
    client = world.client()
    assert await client.fetch_entries(stream_id, 0, 1)
    for server in world.servers:
        server.silent = 1
    assert await read_all(client, stream_id, 8 * MIB) == list(range(40))
    assert world.fetches[-2].max_bytes == 8 * MIB


async def test_a_server_that_stays_silent_is_given_up(world: World) -> None:
    stream_id = await written(world, [1000])
    for server in world.servers:
        server.silent = 1000
        server.fetches.clear()
    with pytest.raises(ConnectionLost):
        await world.client().fetch_entries(stream_id, 0, MIB)
    assert [request.max_bytes for request in world.fetches] == [MIB, 1]


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("forgets", [False, True])
async def test_a_range_that_is_given_up_loses_and_doubles_nothing(world: World, forgets: bool, swallows: bool) -> None:
    """Its server says that it ends where it begins, once it has forgotten what is committed there."""
    client = world.client()
    stream_id = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 0)
    for n in range(3):
        await append(writer, b"%d" % n, 1)
    server = next(server for server in world.servers if server.ranges)
    last = asyncio.ensure_future(append(writer, b"3", 1))
    if swallows:
        server.swallows = 1
        await until(lambda: not server.swallows)
    server.broken = True
    if forgets:
        server.restart()
    assert await last == 3
    assert await append(writer, b"4", 1) == 4
    assert len(world.pd.ranges[stream_id]) == 2
    reader = world.client()
    found: list[bytes] = []
    while entries := await reader.fetch_entries(stream_id, len(found), MIB):
        found += [bytes(entry.payload) for entry in entries]
    assert found == [b"0", b"1", b"2", b"3", b"4"]
    assert (await reader.open(stream_id, 1)).next_offset == 5


async def test_no_stream_that_has_ranges_is_deleted_at_a_foreign_placement_driver(world: World) -> None:
    client = world.client()
    stream_id, expected = await filled(world, [3, 1])
    unused = (await client.create_stream()).stream_id
    writer = await client.open(stream_id, 1)
    with pytest.raises(SbpError, match="has ranges") as kept:
        await client.delete_stream(stream_id)
    assert kept.value.code == ErrorCode.UNSUPPORTED_OPERATION
    assert world.pd.asked(m.DeleteStreamRequest) == 0
    assert isinstance(writer.failed, SbpError), "nobody writes to it any more"
    await client.delete_stream(unused)
    assert world.pd.asked(m.DeleteStreamRequest) == 1
    with pytest.raises(SbpError) as gone:
        await client.delete_stream(unused)
    assert gone.value.code == ErrorCode.NOT_FOUND
    await world.start_again()
    assert bytes((await client.fetch_entries(stream_id, 0, 1 << 20))[0].payload) == expected[0]


async def test_a_range_made_while_its_stream_is_deleted_brings_the_stream_back(world: World) -> None:
    """The request of a writer that was on its way. Without the stream the range server would not start again."""
    client = world.client()
    stream = await client.create_stream(retention_ms=5)

    def overtake(request: m.Request) -> None:
        if isinstance(request, m.DeleteStreamRequest):
            world.pd.before = lambda _: None
            world.pd.serve(m.CreateRangeRequest(m.RangeInfo(stream.stream_id, 1, 0, 0)))

    world.pd.before = overtake
    with pytest.raises(SbpError, match="has ranges"):
        await client.delete_stream(stream.stream_id)
    assert world.pd.streams[stream.stream_id] == stream
    assert world.pd.asked(m.UpdateStreamRequest) == 1
    await world.start_again()


async def test_the_stand_in_panics_where_the_real_server_does(world: World) -> None:
    stream_id, _ = await filled(world, [1])
    await world.client(foreign=False).delete_stream(stream_id)
    with pytest.raises(Panic):
        await world.start_again()
    client = world.client()
    assert isinstance(client, ForeignClient)
    await client.restore_stream(m.StreamInfo(stream_id))
    await world.start_again()
    assert (await client.fetch_entries(stream_id, 0, 1))[0].base_offset == 0


async def test_a_foreign_placement_driver_is_not_asked_to_trim(world: World) -> None:
    stream_id, _ = await filled(world, [3, 1])
    with pytest.raises(SbpError) as refused:
        await world.client().trim(stream_id, 3)
    assert refused.value.code == ErrorCode.UNSUPPORTED_OPERATION
    assert world.pd.asked(m.TrimStreamRequest) == 0


async def test_a_placement_driver_of_ours_trims_and_deletes_before_foreign_range_servers(mixed: World) -> None:
    client = mixed.client()
    stream_id, _ = await filled(mixed, [3, 1])
    assert await client.trim(stream_id, 3) == 3
    with pytest.raises(SbpError) as below:
        await client.fetch_entries(stream_id, 0, 1)
    assert below.value.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
    await client.delete_stream(stream_id)
    with pytest.raises(SbpError) as gone:
        await client.describe_stream(stream_id)
    assert gone.value.code == ErrorCode.NOT_FOUND


async def test_range_servers_of_ours_serve_a_foreign_placement_driver(tmp_path: Path) -> None:
    pd = ForeignPlacementDriver()
    store = StoreOptions(segment_bytes=1 << 20, allocate_step_bytes=1 << 20, zero_ahead_bytes=0, low_water_bytes=0)
    setup = RangeServerSetup(listen=ListenAt(("127.0.0.1", 0)), heartbeat_seconds=0.02)
    stream_id = -1
    for epoch in range(3):
        service = await start_range_server(await open_store(tmp_path, store), InProcessCarrier(pd), setup)
        client = ForeignClient(InProcessCarrier(pd), tcp_connector())
        if not epoch:
            stream_id = (await client.create_stream()).stream_id
        assert service.listener is not None
        host, port = service.listener.address
        while pd.servers.get(0) != m.RangeServerInfo(0, f"{host}:{port}"):
            await asyncio.sleep(0)
        writer = await client.open(stream_id, epoch)
        assert writer.next_offset == 5 * epoch
        await append(writer, b"five", 5)
        assert await read_all(client, stream_id, MIB, limit=writer.next_offset) == list(range(0, 5 * epoch + 5, 5))
        with pytest.raises(SbpError, match="does not trim"):
            await client.trim(stream_id, 5)
        await client.close()
        await service.close()
    assert pd.asked(m.TrimStreamRequest) == 0


async def test_range_servers_of_ours_are_understood_where_elastic_streams_are_expected(tmp_path: Path) -> None:
    """They say 1461 and 1463 where those say 1204: ends, not failures."""
    store = StoreOptions(segment_bytes=1 << 20, allocate_step_bytes=1 << 20, zero_ahead_bytes=0, low_water_bytes=0)
    listen = {PD_LISTENER: ("127.0.0.1", 0), RANGE_SERVER_LISTENER: ("127.0.0.1", 0)}
    stream_id = -1
    for epoch in range(3):
        embedded = await start_embedded(tmp_path, EmbeddedOptions(store=store, listen=listen))
        host, port = embedded.addresses[PD_LISTENER]
        client = ForeignClient(TcpCarrier(host, port), tcp_connector())
        if not epoch:
            stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, epoch)
        assert writer.next_offset == 5 * epoch
        await append(writer, b"five", 5)
        for offset in range(writer.next_offset):
            entries = await client.fetch_entries(stream_id, offset, 1, limit=writer.next_offset)
            assert entries[0].base_offset == offset - offset % 5
        await client.close()
        await embedded.close()
