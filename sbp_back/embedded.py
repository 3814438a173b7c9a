"""Range server and placement driver in this process, with a client that reaches them without a socket.

The data directory holds the store (``wal``, ``ckpt``, ``LOCK``) and the placement driver's state (``pd.sqlite``); the
store's lock keeps a second process away from both. Several processes of a machine may have a store each and share the
state; a process may also serve the store of one that has gone, beside its own (:class:`Further`). The parts also run as
processes of their own (``placement_driver/pd_service.py``, ``range_server/range_server_service.py``).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.run.barrier import Barrier
from sbp_back.client.client import Client, ClientOptions
from sbp_back.placement_driver.driver import PlacementDriver
from sbp_back.placement_driver.pd_service import PlacementDriverService, PlacementDriverSetup, start_placement_driver
from sbp_back.range_server.fetches import FetchLimits
from sbp_back.range_server.range_server_service import (
    RangeServerService,
    RangeServerSetup,
    close_store,
    open_store,
    start_range_server,
)
from sbp_back.range_server.server import RangeServer
from sbp_back.range_server.store import Store, StoreOptions
from sbp_back.transport.carrier import Carrier, InProcessCarrier
from sbp_back.transport.gate import Check
from sbp_back.transport.listener import Listener, ListenerOptions
from sbp_back.transport.serving import ListenAt, run_all
from sbp_back.transport.tcp_carrier import TcpOptions, tcp_connector
from sbp_back.transport.tickets import Tickets
from sbp_back.wire.identity import RangeServerCheck
from sbp_back.wire.model import RangeServerInfo

PD_LISTENER = "sbp-pd"
RANGE_SERVER_LISTENER = "sbp-range-server"


class Further(Struct, frozen=True):
    """The store in ``path`` of a process that has gone: it is read, sealed and trimmed, and gets no new ranges.
    ``listen``, ``advertise``: of its range server, where other nodes are to reach it.
    """

    path: Path
    store: StoreOptions
    listen: tuple[str, int] | None = None
    advertise: str | None = None


class EmbeddedOptions(Struct):
    """Options of :func:`start_embedded`. ``listen``: (host, port) of the TCP listeners to open, by name (``sbp-pd``,
    ``sbp-range-server``); port 0 lets the system choose. ``advertise``: by the same names, the "host:port" that clients
    are told, where it differs from ``listen``. ``max_connections``: of each listener. ``budget``: memory that the
    connections of all listeners share with the process's other users of it; callers inside the process count their own
    requests. ``barrier``: counts the exceptions of all callbacks. ``tls``: of listeners, by name; ``tls_elsewhere``:
    towards range servers in other processes. ``database``: URL of a PostgreSQL with the placement driver's state;
    empty: SQLite in the data directory, or in ``state``, a file that other processes share. ``further``: stores that
    are served besides. ``check``: reads the tickets that all listeners demand (None: they demand none), ``tickets``:
    shown to range servers in other processes.
    """

    store: StoreOptions = field(default_factory=StoreOptions)
    client: ClientOptions = field(default_factory=ClientOptions)
    fetch: FetchLimits = field(default_factory=FetchLimits)
    listen: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    advertise: Mapping[str, str] = field(default_factory=dict)
    range_server_listener: ListenerOptions = field(default_factory=ListenerOptions)
    max_connections: int = 2_000
    heartbeat_seconds: float = 3.0
    budget: MemoryBudget | None = None
    barrier: Barrier = field(default_factory=Barrier)
    tls: Mapping[str, ssl.SSLContext] = field(default_factory=dict)
    tls_elsewhere: ssl.SSLContext | None = None
    database: str = ""
    state: Path | None = None
    further: Sequence[Further] = ()
    check: Check | None = None
    tickets: Tickets | None = None


class Embedded(Struct):
    """The running parts that :func:`start_embedded` returns."""

    client: Client
    _pd: PlacementDriverService
    _server: RangeServerService
    _to_pd: Carrier
    _further: Sequence[RangeServerService] = ()
    _closed: bool = False

    @property
    def range_server(self) -> RangeServer:
        return self._server.server

    @property
    def placement_driver(self) -> PlacementDriver:
        return self._pd.driver

    @property
    def store(self) -> Store:
        return self._server.store

    @property
    def listeners(self) -> dict[str, Listener]:
        """Return the listeners that the options asked for, by name."""
        named = ((PD_LISTENER, self._pd.listener), (RANGE_SERVER_LISTENER, self._server.listener))
        return {name: listener for name, listener in named if listener is not None}

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        return {name: listener.address for name, listener in self.listeners.items()}

    async def adopt(self, server_id: int) -> None:
        """Take over the log of another range server, and serve its ranges; see :meth:`RangeServer.adopt`."""
        await self.range_server.adopt(server_id)

    async def is_fenced(self) -> bool:
        """Return whether another range server has taken over this one's log. Raises ``OSError`` when that cannot be
        known now.
        """
        return await asyncio.to_thread(self.store.is_fenced)

    async def close(self) -> None:
        """Stop in the order that loses nothing: clients from outside, our own, the range server, the store (with a
        checkpoint), the placement driver. A step that fails does not prevent the later ones; its error is raised in the
        end. Idempotent.
        """
        if self._closed:
            return
        self._closed = True

        servers = (self._server, *self._further)
        drains: list[Callable[[], Awaitable[None]]] = [*(one.drain for one in servers), self._pd.drain]
        closes = [self.client.close, *(one.close for one in servers), self._to_pd.close, self._pd.close]

        async def drained() -> None:
            await asyncio.gather(*(drain() for drain in drains))

        await run_all([drained, *closes])


async def start_embedded(
    data_dir: Path, options: EmbeddedOptions | None = None, on_failed: Callable[[str], None] | None = None
) -> Embedded:
    """Start everything over ``data_dir`` (created when absent).

    ``on_failed`` is called once, with a sentence, when the store can no longer promise durability; everything is then
    refused and the process should stop. Raises ``StoreError`` (``StoreLocked``: another process has the directory;
    ``StoreVersionError``; ``StoreCorrupt``) and ``OSError`` (an address is taken); nothing is left running then.
    """
    options = options or EmbeddedOptions()
    barrier = options.barrier
    own: list[RangeServer] = []
    drivers: list[PlacementDriver] = []

    def identity() -> str:
        return drivers[0].identity if drivers else ""

    tcp = TcpOptions(tls=options.tls_elsewhere, tickets=options.tickets)
    memory = options.range_server_listener.memory_bytes
    budget = options.budget or MemoryBudget(memory, asyncio.get_running_loop().call_soon)

    def own_of(info: RangeServerInfo) -> RangeServer | None:
        return next((one for one in own if one.info.server_id == info.server_id), None)

    def connector(*, strangers: bool) -> Callable[[RangeServerInfo], Carrier]:
        elsewhere = tcp_connector(tcp, RangeServerCheck(strangers=strangers, identity=identity), barrier)

        def connect(info: RangeServerInfo) -> Carrier:
            found = own_of(info)
            return elsewhere(info) if found is None else InProcessCarrier(found, barrier)

        return connect

    def listen_at(
        name: str, listener: ListenerOptions, address: tuple[str, int] | None, told: str | None
    ) -> ListenAt | None:
        if address is None:
            return None
        listener = replace(listener, max_connections=options.max_connections, tls=options.tls.get(name))
        return ListenAt(address, told, options=listener, budget=budget, check=options.check)

    def own_at(name: str, listener: ListenerOptions) -> ListenAt | None:
        return listen_at(name, listener, options.listen.get(name), options.advertise.get(name))

    # The store first: its lock guards the whole directory.
    store = await open_store(data_dir, options.store)
    async with AsyncExitStack() as undo:
        undo.push_async_callback(close_store, store)
        setup = PlacementDriverSetup(
            listen=own_at(PD_LISTENER, ListenerOptions.placement_driver()),
            database=options.database,
            state=options.state,
            barrier=barrier,
        )
        pd = await start_placement_driver(data_dir, setup, connector(strangers=True))
        undo.push_async_callback(pd.close)
        drivers.append(pd.driver)
        to_pd = InProcessCarrier(pd.driver, barrier)

        async def serve(store: Store, at: ListenAt | None) -> RangeServerService:
            store.count_memory(partial(budget.attach, kind=Kind.OBJECTS))
            setup = RangeServerSetup(
                options.fetch,
                options.heartbeat_seconds,
                at,
                # A placement driver that lost its state must not hide what is stored. In a cluster the state is
                # elsewhere, so a stranger is another cluster's placement driver.
                serve_strange=not options.database and options.state is None,
                barrier=barrier,
            )
            service = await start_range_server(store, to_pd, setup, on_failed, made=own.append)
            undo.push_async_callback(service.close)
            return service

        server = await serve(store, own_at(RANGE_SERVER_LISTENER, options.range_server_listener))
        further = []
        for one in options.further:
            at = listen_at(RANGE_SERVER_LISTENER, options.range_server_listener, one.listen, one.advertise)
            further.append(await serve(await open_store(one.path, one.store), at))
            pd.driver.servers.pass_over(further[-1].server.info.server_id)
        client = Client(InProcessCarrier(pd.driver, barrier), connector(strangers=False), options.client, barrier)
        client.store = store
        server.server.local.timeout = options.client.writer.retry.append_timeout
        client.local = lambda info: own[0].local if own_of(info) is own[0] else None
        undo.pop_all()
        return Embedded(client, pd, server, to_pd, further)
