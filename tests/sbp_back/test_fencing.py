"""A writer whose range was sealed in a newer epoch never gets an acknowledgement again (docs/protocols/sbp.md,
"Writers").

Every combination of: the carrier, what is restarted after the seal and how it ended, and what the old writer was doing.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sbp_back.client.client import Client, ClientOptions
from sbp_back.client.control import ControlOptions
from sbp_back.client.replica import RetryOptions
from sbp_back.client.stream_writer import WriterOptions
from sbp_back.errors import FencedError
from sbp_back.placement_driver.driver import PlacementDriverOptions
from sbp_back.placement_driver.pd_service import PlacementDriverService, PlacementDriverSetup, start_placement_driver
from sbp_back.range_server.range_server_service import (
    RangeServerService,
    RangeServerSetup,
    open_store,
    start_range_server,
)
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.carrier import Carrier, InProcessCarrier
from sbp_back.transport.handler import Reply
from sbp_back.transport.serving import ListenAt
from sbp_back.transport.tcp_carrier import TcpCarrier, TcpOptions, tcp_connector
from sbp_back.wire.model import AppendRequest, GoAway, RangeServerInfo, Request, Status, SystemErrorResponse
from tests.kit.waiting import until
from tests.sbp_back.tries import Tries

LOCAL = ("127.0.0.1", 0)
STORE = StoreOptions(segment_bytes=1 << 20, allocate_step_bytes=1 << 20, zero_ahead_bytes=0, low_water_bytes=0)
TCP = TcpOptions(backoff_first=0.001, backoff_limit=0.01)


class Door:
    """Leads to a server that may be replaced; while ``held``, appends wait in front of it, in order."""

    def __init__(self) -> None:
        self.server: object = None
        self.held: list[tuple[Request, Reply]] | None = None

    def handle(self, request: Request, reply: Reply) -> None:
        if self.held is not None and isinstance(request, AppendRequest):
            self.held.append((request, reply))
        elif self.server is None:
            if not isinstance(request, GoAway):
                reply(SystemErrorResponse(Status(1500, "between two lives")))
        else:
            self.server.handle(request, reply)  # type: ignore[attr-defined]

    def release(self) -> None:
        held, self.held = self.held, None
        for request, reply in held or []:
            self.handle(request, reply)


class Backend:
    """Placement driver and range server, each of which can be restarted while clients hold on to it."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.kind = kind
        self.pd_door, self.server_door = Door(), Door()
        self.pd: PlacementDriverService
        self.server: RangeServerService
        self.addresses: dict[str, tuple[str, int]] = {}
        self.to_pd: list[Carrier] = []
        self.clients: list[Client] = []

    async def start(self) -> None:
        await self.start_pd()
        await self.start_server()

    async def start_pd(self) -> None:
        listen = ListenAt(self.addresses.get("pd", LOCAL)) if self.kind == "tcp" else None
        setup = PlacementDriverSetup(PlacementDriverOptions(), listen)
        self.pd = await start_placement_driver(self.path / "pd", setup, lambda _: self.carrier("rs"))
        if self.pd.listener is not None:
            self.addresses["pd"] = self.pd.listener.address
        self.pd_door.server = self.pd.driver

    async def start_server(self) -> None:
        store = await open_store(self.path / "rs", STORE)
        listen = ListenAt(self.addresses.get("rs", LOCAL)) if self.kind == "tcp" else None
        self.to_pd.append(self.carrier("pd"))
        setup = RangeServerSetup(heartbeat_seconds=0.02, listen=listen)
        self.server = await start_range_server(store, self.to_pd[-1], setup)
        if self.server.listener is not None:
            self.addresses["rs"] = self.server.listener.address
        self.server_door.server = self.server.server

    async def stop_pd(self) -> None:
        self.pd_door.server = None
        if self.pd.listener is not None:
            await self.pd.listener.close()
        await self.pd.close()

    async def stop_server(self) -> None:
        self.server_door.server = None
        if self.server.listener is not None:
            await self.server.listener.close()
        await self.server.close()

    async def restart(self, what: str) -> None:
        if "pd" in what:
            await self.stop_pd()
        if "rs" in what:
            await self.stop_server()
        if "pd" in what:
            await self.start_pd()
        if "rs" in what:
            await self.start_server()
        await until(self.pd.driver.servers.alive)

    def carrier(self, name: str) -> Carrier:
        if self.kind == "tcp":
            return TcpCarrier(*self.addresses[name], options=TCP)
        return InProcessCarrier(self.pd_door if name == "pd" else self.server_door)

    def client(self) -> Client:
        def in_process(_: RangeServerInfo) -> Carrier:
            return self.carrier("rs")

        control = ControlOptions(timeout=2, tries=8, delay_first=0.002, delay_limit=0.02)
        retry = RetryOptions(tries=6, delay_first=0.002, delay_limit=0.02, append_timeout=2)
        connect = tcp_connector(options=TCP) if self.kind == "tcp" else in_process
        options = ClientOptions(control, WriterOptions(control=control, retry=retry))
        self.clients.append(Client(self.carrier("pd"), connect, options))
        return self.clients[-1]

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        await self.stop_server()
        for carrier in self.to_pd:
            await carrier.close()
        await self.stop_pd()


@pytest.fixture(params=["in-process", "tcp"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    made = Backend(tmp_path, request.param)
    await made.start()
    yield made
    await made.stop()


async def read_all(client: Client, stream_id: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    offset = 0
    while entries := await client.fetch_entries(stream_id, offset, 1 << 20):
        assert all(entry.base_offset not in found for entry in entries)
        found.update({entry.base_offset: bytes(entry.payload) for entry in entries})
        offset = entries[-1].end_offset
    return found


DOING = ("idle", "appending", "in flight")


@pytest.mark.parametrize(("restarted", "doing"), list(itertools.product(["nothing", "rs", "pd", "pd and rs"], DOING)))
async def test_fenced_for_good(backend: Backend, restarted: str, doing: str) -> None:
    old_client, new_client = backend.client(), backend.client()
    stream_id = (await old_client.create_stream()).stream_id
    old = Tries(await old_client.open(stream_id, 3))
    for n in range(5):
        old.append(b"old %d" % n)
    await old.settled()
    assert sorted(old.acked) == list(range(5))
    fenced_from = 5
    if doing == "in flight":
        # Sent before the seal, arriving after it.
        door = backend.server_door
        if backend.kind == "tcp":
            # Connections go to the server itself: put the door before its entrance.
            server = backend.server.server
            door.server = SimpleNamespace(handle=server.handle)
            server.handle = door.handle  # type: ignore[method-assign]
        door.held = []
        old.append(b"in flight")
        await until(lambda: door.held)
    elif doing == "appending":
        for n in range(5, 50):
            old.append(b"old %d" % n)

    new = Tries(await new_client.open(stream_id, 4))
    sealed_at = new.writer.next_offset
    assert sealed_at >= fenced_from
    acked_before = set(old.acked)
    if doing == "in flight":
        backend.server_door.release()
    await backend.restart(restarted)

    # Whatever the old writer sends now, from its own range or from one it would like to have.
    for n in range(3):
        old.append(b"too late %d" % n)
    await old.settled()
    assert set(old.acked) <= set(range(sealed_at)), "acknowledged beyond where the range ends"
    assert isinstance(old.writer.failed, FencedError)
    with pytest.raises(FencedError):
        await old_client.open(stream_id, 3)

    for n in range(5):
        new.append(b"new %d" % n)
    await new.settled()
    assert not new.errors
    await backend.restart(restarted)
    found = await read_all(backend.client(), stream_id)
    assert all(found[base] == payload for base, payload in (old.acked | new.acked).items())
    assert acked_before <= set(found)
    assert sorted(found) == list(range(sealed_at + 5))
    assert not any(payload.startswith(b"too late") for payload in found.values())


@pytest.mark.parametrize("restarted", ["nothing", "rs", "pd", "pd and rs"])
async def test_a_chain_of_writers_with_restarts_between(backend: Backend, restarted: str) -> None:
    """Every one is fenced by the next; all of them keep trying to the end."""
    stream_id = (await backend.client().create_stream()).stream_id
    writers: list[Tries] = []
    expected: dict[int, bytes] = {}
    for epoch in range(1, 5):
        writers.append(Tries(await backend.client().open(stream_id, epoch)))
        for number, tries in enumerate(writers):
            tries.append(b"writer %d in epoch %d" % (number + 1, epoch))
        for tries in writers:
            await tries.settled()
        assert all(isinstance(tries.writer.failed, FencedError) for tries in writers[:-1])
        assert writers[-1].acked, "the newest writer writes"
        await backend.restart(restarted)
    for tries in writers:
        expected |= tries.acked
    assert await read_all(backend.client(), stream_id) == expected
    assert len(expected) == 4


async def test_a_writer_without_a_range_is_shut_out_as_well(backend: Backend) -> None:
    """It never created a range; the newer epoch did, and the placement driver knows no way back."""
    stream_id = (await backend.client().create_stream()).stream_id
    old = Tries(await backend.client().open(stream_id, 1))
    new = Tries(await backend.client().open(stream_id, 2))
    new.append(b"new")
    await new.settled()
    await backend.restart("pd and rs")
    old.append(b"old")
    await old.settled()
    assert isinstance(old.writer.failed, FencedError)
    assert not old.acked
    new.append(b"more")
    await new.settled()
    assert new.acked == {0: b"new", 1: b"more"}
    assert await read_all(backend.client(), stream_id) == new.acked
