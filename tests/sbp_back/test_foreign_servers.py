"""The client at range servers with the faults of elastic-stream's (reference/sbp.md, sections 2.3 and 2.9)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbp_back.carrier import InProcessCarrier
from sbp_back.client import Client, ClientOptions, StreamWriter
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.handler import Reply
from sbp_back.model import (
    AppendRequest,
    AppendResponse,
    AppendResult,
    ClientRole,
    CreateRangeRequest,
    Entry,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    RangeInfo,
    RangeResponse,
    RangeServerInfo,
    Request,
    Response,
    SealRangeRequest,
    Status,
    SystemErrorResponse,
)
from sbp_back.placement_driver.driver import PlacementDriver
from sbp_back.placement_driver.sqlite import SqliteState


class FaultyRange:
    def __init__(self, info: RangeInfo) -> None:
        self.info = replace(info, servers=[])
        self.entries: list[Entry] = []
        self.committed: int | None = None
        self.sealed_at = -1

    @property
    def next(self) -> int:
        return self.entries[-1].end_offset if self.entries else self.info.start


class FaultyServer:
    """As elastic-stream's HEAD behaves towards one client, faults 1, 2 and 7 included."""

    def __init__(self) -> None:
        self.ranges: dict[tuple[int, int], FaultyRange] = {}
        self.fetches: list[FetchRequest] = []

    def restart(self) -> None:
        """What was committed is forgotten until the next append; seals, too."""
        for known in self.ranges.values():
            known.committed = None
            known.sealed_at = -1

    def handle(self, request: Request, reply: Reply) -> None:
        reply(self.serve(request))

    def serve(self, request: Request) -> Response:
        match request:
            case CreateRangeRequest():
                key = (request.range.stream_id, request.range.index)
                self.ranges.setdefault(key, FaultyRange(request.range))
                return RangeResponse(range=request.range)
            case AppendRequest():
                return AppendResponse(results=[self.append(entry) for entry in request.entries])
            case SealRangeRequest():
                wanted = request.range
                known = self.ranges.setdefault((wanted.stream_id, wanted.index), FaultyRange(wanted))
                if known.sealed_at < 0:
                    known.sealed_at = known.info.start if known.committed is None else known.committed
                end = known.sealed_at
                return RangeResponse(range=RangeInfo(wanted.stream_id, wanted.epoch, wanted.index, wanted.start, end))
            case FetchRequest():
                self.fetches.append(request)
                return self.fetch(request)
        return SystemErrorResponse(Status(ErrorCode.UNSUPPORTED_OPERATION))

    def append(self, entry: Entry) -> AppendResult:
        known = self.ranges.get((entry.stream_id, entry.range_index))
        if known is None:
            return AppendResult(Status(ErrorCode.RANGE_NOT_FOUND))
        if known.sealed_at >= 0:
            return AppendResult(Status(ErrorCode.RANGE_ALREADY_SEALED))
        assert entry.base_offset == known.next
        known.entries.append(entry)
        known.committed = entry.end_offset
        return AppendResult(Status(), 1)

    def fetch(self, request: FetchRequest) -> FetchResponse:
        known = self.ranges.get((request.range.stream_id, request.range.index))
        if known is None:
            return FetchResponse(Status(ErrorCode.RANGE_NOT_FOUND))
        nothing = FetchResponse(Status(ErrorCode.NO_NEW_RECORD))
        if not known.entries or request.offset > known.entries[-1].base_offset:
            return nothing
        first = max((k for k, entry in enumerate(known.entries) if entry.base_offset <= request.offset), default=0)
        found: list[Entry] = []
        size = 0
        for entry in known.entries[first:]:
            if entry.base_offset >= request.limit or size >= request.max_wait_ms:
                break
            found.append(entry)
            size += entry.size
        return FetchResponse(Status(), found) if found else nothing


class World:
    def __init__(self, pd: PlacementDriver, servers: int = 2) -> None:
        self.pd = pd
        self.servers = [FaultyServer() for _ in range(servers)]

    def client(self, *, foreign: bool = True) -> Client:
        def connect(info: RangeServerInfo) -> InProcessCarrier:
            return InProcessCarrier(self.servers[info.server_id])

        return Client(InProcessCarrier(self.pd), connect, ClientOptions(foreign=foreign))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    pd = PlacementDriver(SqliteState(tmp_path / "pd.sqlite", asyncio.get_running_loop()))
    made = World(pd)
    for server_id in range(len(made.servers)):
        info = RangeServerInfo(server_id, f"s{server_id}:1")
        await InProcessCarrier(pd).call(HeartbeatRequest("", ClientRole.RANGE_SERVER, info))
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
    while not any(request.offset == 1 for server in world.servers for request in server.fetches):
        await asyncio.sleep(0)
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
