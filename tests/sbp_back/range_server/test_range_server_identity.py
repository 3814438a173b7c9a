"""Which range server is found at an address: nothing is made there, told to it or believed of it before it has said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sbp_back.client.client import Client, ClientOptions
from sbp_back.client.control import ControlOptions
from sbp_back.client.replica import RetryOptions
from sbp_back.client.stream_writer import WriterOptions
from sbp_back.errors import ConnectionLost, ErrorCode, SbpError
from sbp_back.placement_driver.pd_service import PlacementDriverService, PlacementDriverSetup, start_placement_driver
from sbp_back.range_server.range_server_service import (
    RangeServerService,
    RangeServerSetup,
    open_store,
    start_range_server,
)
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.carrier import InProcessCarrier
from sbp_back.transport.serving import ListenAt
from sbp_back.transport.tcp_carrier import TcpCarrier, TcpOptions, tcp_connector
from sbp_back.wire import model as m
from sbp_back.wire.identity import RangeServerCheck, ask_who, range_server_name
from tests.kit.waiting import until, until_asked
from tests.sbp_document.document_lab import write

STORE = StoreOptions(segment_bytes=64 << 10, durability="os", low_water_bytes=0)
TCP = TcpOptions(backoff_first=0.001, backoff_limit=0.01)
UNSERVED = m.SystemErrorResponse(m.Status(ErrorCode.UNSUPPORTED_OPERATION))


class Backend:
    """Two range servers that listen, and may change their addresses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pd: PlacementDriverService
        self.servers: dict[int, RangeServerService] = {}
        self.clients: list[Client] = []

    async def start(self) -> None:
        check = RangeServerCheck(strangers=True, identity=lambda: self.pd.driver.identity)
        connect = tcp_connector(options=TCP, check=check)
        self.pd = await start_placement_driver(self.path / "pd", PlacementDriverSetup(), connect)
        for number in range(2):
            await self.start_server(number, ("127.0.0.1", 0))
        await self.reported()

    async def start_server(self, number: int, address: tuple[str, int]) -> None:
        store = await open_store(self.path / f"rs{number}", STORE)
        setup = RangeServerSetup(heartbeat_seconds=0.02, listen=ListenAt(address))
        self.servers[number] = await start_range_server(store, InProcessCarrier(self.pd.driver), setup)

    async def reported(self) -> None:
        await until(lambda: len(self.pd.driver.servers.alive()) >= 2)

    def address(self, number: int) -> tuple[str, int]:
        listener = self.servers[number].listener
        assert listener is not None
        return listener.address

    async def swap(self) -> None:
        addresses = [self.address(number) for number in range(2)]
        for service in self.servers.values():
            await service.close()
        for number in range(2):
            await self.start_server(number, addresses[1 - number])

    def client(self) -> Client:
        control = ControlOptions(timeout=2, tries=8, delay_first=0.002, delay_limit=0.02)
        retry = RetryOptions(tries=3, delay_first=0.002, delay_limit=0.02, append_timeout=2)
        options = ClientOptions(control, WriterOptions(control=control, retry=retry))
        self.clients.append(Client(InProcessCarrier(self.pd.driver), tcp_connector(options=TCP), options))
        return self.clients[-1]

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        for service in self.servers.values():
            await service.close()
        await self.pd.close()


@asynccontextmanager
async def backend(path: Path) -> AsyncIterator[Backend]:
    made = Backend(path)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def test_servers_that_swapped_their_addresses_are_not_taken_for_each_other(tmp_path: Path) -> None:
    async with backend(tmp_path) as both:
        client = both.client()
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        assert await write(writer, b"first") == 0
        home = writer.ranges[0].servers[0].server_id
        await both.swap()
        # The writer still knows the old addresses: the other server would make the range anew and take the batch.
        assert await write(writer, b"second") == 1
        assert both.servers[1 - home].server.state_of(stream_id, 0) is None, "it was never given that range"
        for reader in (both.client(), client):
            found = await reader.fetch_entries(stream_id, 0, 1000)
            while found[-1].end_offset < 2:
                found += await reader.fetch_entries(stream_id, found[-1].end_offset, 1000)
            assert [bytes(entry.payload) for entry in found] == [b"first", b"second"]


async def test_a_deletion_is_not_told_to_whoever_is_at_the_address(tmp_path: Path) -> None:
    async with backend(tmp_path) as both:
        client = both.client()
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        await write(writer, b"data")
        home = writer.ranges[0].servers[0].server_id
        address = both.address(home)
        await both.servers[home].close()
        await both.servers[1 - home].close()
        await both.start_server(1 - home, address)
        await client.delete_stream(stream_id)
        both.pd.driver.tell_servers([home])
        assert await both.pd.driver.run(lambda tx: tx.deletions_of_server(home, 10)) == [stream_id], "still to be told"
        await both.start_server(home, ("127.0.0.1", 0))
        await until(lambda: not any(key[0] == stream_id for key in both.servers[home].store.ranges))
        await until_asked(
            lambda: both.pd.driver.run(lambda tx: tx.deletions_of_server(home, 10)), lambda found: not found
        )


async def test_a_connection_to_another_server_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async with backend(tmp_path) as both:
        address = "{}:{}".format(*both.address(0))
        wrong = tcp_connector(options=TCP)(m.RangeServerInfo(1, address))
        with pytest.raises(ConnectionLost, match="this is range server 0, not 1"):
            await wrong.call(m.DescribePdRequest())
        await wrong.close()
        strange = RangeServerCheck(strangers=True, identity=lambda: "x" * 22)
        other = tcp_connector(options=TCP, check=strange)(m.RangeServerInfo(0, address))
        with pytest.raises(ConnectionLost, match=f"belongs to placement driver {both.pd.driver.identity}"):
            await other.call(m.DescribePdRequest())
        await other.close()
        plain = TcpCarrier(*both.address(0), options=TCP)
        with pytest.raises(SbpError, match="this is a range server"):
            await ask_who(plain.call)
        await plain.close()


def answering(*answers: m.Response) -> object:
    left = list(answers)

    async def call(request: m.Request) -> m.Response:
        return left.pop(0)

    return call


@pytest.mark.parametrize("strangers", [False, True])
@pytest.mark.parametrize(
    ("answers", "refused"),
    [
        ([m.DescribePdResponse(nodes=[m.PdNode(range_server_name(3, ""), "", False)])], None),
        ([m.DescribePdResponse(nodes=[m.PdNode(range_server_name(3, "p" * 22), "", False)])], None),
        ([m.DescribePdResponse(nodes=[m.PdNode(range_server_name(4, "p" * 22), "", False)])], "range server 4, not 3"),
        ([m.DescribePdResponse(nodes=[m.PdNode(range_server_name(3, "q" * 22), "", False)])], "belongs to"),
        ([UNSERVED, m.ListRangeResponse()], None),  # ours, of an older release
    ],
)
async def test_who_is_taken_for_range_server_3(strangers: bool, answers: list[m.Response], refused: str | None) -> None:
    check = RangeServerCheck(strangers=strangers, identity=lambda: "p" * 22)
    reason = await check.meet(3, answering(*answers))  # type: ignore[arg-type]
    assert (reason is None) == (refused is None)
    assert refused is None or (reason is not None and refused in reason)


async def test_a_foreign_server_tells_nothing_and_is_taken_by_those_who_take_strangers() -> None:
    taken = RangeServerCheck(strangers=True)
    assert await taken.meet(3, answering(UNSERVED)) is None  # type: ignore[arg-type]
    strict = RangeServerCheck(strangers=False)
    assert "none of Anabranch's" in str(await strict.meet(3, answering(UNSERVED, UNSERVED)))  # type: ignore[arg-type]
