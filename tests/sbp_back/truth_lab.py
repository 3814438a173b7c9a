"""A placement driver and range servers in this process, where each way between two of them can fail by itself.

A server that one cannot reach may well be reached by another: what readers were shown then must hold for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from sbp_back.client.client import Client, ClientOptions
from sbp_back.client.control import ControlOptions
from sbp_back.client.replica import RetryOptions, TellOptions
from sbp_back.client.stream_writer import WriterOptions
from sbp_back.errors import ConnectionLost
from sbp_back.placement_driver.pd_service import PlacementDriverService, PlacementDriverSetup, start_placement_driver
from sbp_back.range_server.fetches import FetchLimits
from sbp_back.range_server.range_server_service import (
    RangeServerService,
    RangeServerSetup,
    open_store,
    start_range_server,
)
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.carrier import AnswerTo, Carrier
from sbp_back.transport.handler import Handler
from sbp_back.wire.model import GoAway, RangeServerInfo, Request, Response
from tests.kit.waiting import until

PD = -1
LOST = ConnectionLost("lost")
STORE = StoreOptions(segment_bytes=64 << 10, durability="os", low_water_bytes=0, maintenance_seconds=3600.0)
CONTROL = ControlOptions(timeout=1, tries=3, delay_first=0.0005, delay_limit=0.002)

Fate = Callable[[Request], str]
"""What becomes of a request: "arrives", "request lost", "answer lost", or "held" until :meth:`World.release`."""


def arrives(request: Request) -> str:
    return "arrives"


def request_lost(request: Request) -> str:
    return "request lost"


def answer_lost(request: Request) -> str:
    return "answer lost"


class Link(Carrier):
    """The way of ``who`` to a server; :attr:`World.fates` says what happens on it."""

    def __init__(self, world: World, who: str, where: int) -> None:
        self._world = world
        self._who = who
        self._where = where
        self._closed = False

    def submit(self, request: Request, reply: AnswerTo, timeout: float | None = None) -> None:
        fate = self._world.fates.get((self._who, self._where), arrives)(request)
        if fate == "held" and not self._closed:
            self._world.held.append(lambda: self.submit(request, reply, timeout))
            return
        handler = self._world.handlers.get(self._where)
        if self._closed or handler is None or fate == "request lost":
            if not isinstance(request, GoAway):
                asyncio.get_running_loop().call_soon(reply, LOST)
            return
        life = self._world.lives.get(self._where, 0)

        def answered(response: Response) -> None:
            alive = self._world.lives.get(self._where, 0) == life
            reply(response if fate == "arrives" and alive else LOST)

        handler.handle(request, answered)

    async def close(self) -> None:
        self._closed = True


class World:
    """``fates``: by who asks and which server is asked (``PD`` or a range server's number)."""

    def __init__(self, path: Path, fetch: FetchLimits | None = None) -> None:
        self.path = path
        self.fetch = fetch or FetchLimits()
        self.fates: dict[tuple[str, int], Fate] = {}
        self.handlers: dict[int, Handler] = {}
        self.lives: dict[int, int] = {}
        self.held: list[Callable[[], None]] = []
        self.pd: PlacementDriverService
        self.servers: dict[int, RangeServerService] = {}
        self.clients: list[Client] = []

    async def start(self, servers: int) -> None:
        await self.start_pd()
        for number in range(servers):
            await self.start_server(number)
        await self.reported(servers)

    async def reported(self, servers: int) -> None:
        await until(lambda: len(self.pd.driver.servers.alive()) >= servers)

    async def start_pd(self) -> None:
        self.pd = await start_placement_driver(
            self.path / "pd", PlacementDriverSetup(), lambda info: Link(self, "pd", info.server_id)
        )
        self.handlers[PD] = self.pd.driver

    async def stop_pd(self) -> None:
        del self.handlers[PD]
        await self.pd.close()

    async def start_server(self, number: int) -> None:
        store = await open_store(self.path / f"rs{number}", STORE)
        setup = RangeServerSetup(self.fetch, heartbeat_seconds=0.01, wait_for_id=True, retry_seconds=0.001)
        service = await start_range_server(store, Link(self, f"rs{number}", PD), setup)
        assert service.server.info.server_id == number
        self.servers[number] = service
        self.handlers[number] = service.server

    async def stop_server(self, number: int) -> None:
        del self.handlers[number]
        self.lives[number] = self.lives.get(number, 0) + 1
        await self.servers.pop(number).close()

    def client(self, who: str, *, range_tries: int = 3, tell: TellOptions | None = None) -> Client:
        retry = RetryOptions(tries=2, delay_first=0.0005, delay_limit=0.002)
        writer = WriterOptions(range_tries=range_tries, control=CONTROL, retry=retry, tell=tell or TellOptions())
        options = ClientOptions(CONTROL, writer, poll_seconds=0.05, look_again_seconds=0.01)
        client = Client(Link(self, who, PD), lambda info: self.connect(who, info), options)
        self.clients.append(client)
        return client

    def release(self) -> None:
        """What was held goes its way, as fates are now."""
        held, self.held = self.held, []
        for again in held:
            again()

    def connect(self, who: str, info: RangeServerInfo) -> Link:
        return Link(self, who, info.server_id)

    async def stop(self) -> None:
        self.fates.clear()
        self.release()
        for client in self.clients:
            await client.close()
        for number in list(self.servers):
            await self.stop_server(number)
        await self.stop_pd()


@asynccontextmanager
async def world(path: Path, servers: int = 1, fetch: FetchLimits | None = None) -> AsyncIterator[World]:
    made = World(path, fetch)
    await made.start(servers)
    try:
        yield made
    finally:
        await made.stop()
