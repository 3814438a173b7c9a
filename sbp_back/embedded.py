"""Range server and placement driver in this process, with a client that reaches them without a socket.

The data directory holds the store (``wal``, ``ckpt``, ``LOCK``) and the placement driver's state (``pd.sqlite``); the
store's lock keeps a second process away from both.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sbp_back.carrier import Carrier, InProcessCarrier, tcp_connector
from sbp_back.client import Client, ClientOptions
from sbp_back.dialects import DIALECTS
from sbp_back.errors import StoreError
from sbp_back.listener import Listener, ListenerOptions
from sbp_back.model import AllocateIdRequest, AllocateIdResponse, RangeServerInfo
from sbp_back.placement_driver.driver import PlacementDriver, PlacementDriverOptions
from sbp_back.placement_driver.sqlite import SqliteState
from sbp_back.placement_driver.state import StateError, StateVersionError
from sbp_back.range_server.fetches import FetchLimits
from sbp_back.range_server.server import RangeServer, RangeServerOptions
from sbp_back.range_server.store import Store, StoreOptions

logger = logging.getLogger(__name__)

PD_LISTENER = "sbp-pd"
RANGE_SERVER_LISTENER = "sbp-range-server"

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})


@dataclass(slots=True)
class EmbeddedOptions:
    """``listen``: (host, port) of the TCP listeners wanted, by name (``sbp-pd``, ``sbp-range-server``); port 0 lets
    the system choose. ``advertise``: by the same names, the "host:port" that clients are told, where it is not the
    one listened at. ``dialect``: what the listeners speak."""

    store: StoreOptions = field(default_factory=StoreOptions)
    client: ClientOptions = field(default_factory=ClientOptions)
    fetch: FetchLimits = field(default_factory=FetchLimits)
    listen: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    advertise: Mapping[str, str] = field(default_factory=dict)
    dialect: str = "sbp-0.2"
    pd_listener: ListenerOptions = field(default_factory=ListenerOptions.placement_driver)
    range_server_listener: ListenerOptions = field(default_factory=ListenerOptions)
    heartbeat_seconds: float = 3.0


@dataclass(slots=True)
class Embedded:
    """What :func:`start_embedded` started. ``listeners``: by name, those that were asked for."""

    client: Client
    range_server: RangeServer
    placement_driver: PlacementDriver
    store: Store
    listeners: dict[str, Listener] = field(default_factory=dict)
    _carriers: list[Carrier] = field(default_factory=list)
    _closed: bool = False

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """Where the listeners listen."""
        return {name: listener.address for name, listener in self.listeners.items()}

    async def close(self) -> None:
        """Stop in the order that loses nothing: clients from outside, our own, the range server, the store (with a
        checkpoint), the placement driver. A step that fails does not keep the later ones from happening; its error
        is raised in the end. Idempotent."""
        if self._closed:
            return
        self._closed = True
        # Nobody shall wait for a reader that waits for data.
        self.range_server.stop_waiting()
        steps: list[Callable[[], Awaitable[object]]] = [
            partial(asyncio.gather, *(listener.drain() for listener in self.listeners.values())),
            self.client.close,
            self.range_server.close,
            partial(_close_store, self.store),
            *(carrier.close for carrier in self._carriers),
            self.placement_driver.close,
        ]
        failures: list[Exception] = []
        for step in steps:
            try:
                await step()
            except Exception as error:
                logger.exception("a step of stopping the backend failed")
                failures.append(error)
        if failures:
            raise failures[0]


async def start_embedded(
    data_dir: Path, options: EmbeddedOptions | None = None, on_failed: Callable[[str], None] | None = None
) -> Embedded:
    """Start everything over ``data_dir`` (created when absent).

    ``on_failed`` is called once, with a sentence, when the store can no longer promise durability; everything is then
    refused and the process should stop. Raises ``StoreError`` (``StoreLocked``: another process has the directory;
    ``StoreVersionError``; ``StoreCorrupt``) and ``OSError`` (an address is taken); nothing is left running then.
    """
    return await _Start(data_dir, options or EmbeddedOptions(), on_failed).run()


class _Start:
    """The steps of starting, so that one that fails can take back those before it."""

    def __init__(self, data_dir: Path, options: EmbeddedOptions, on_failed: Callable[[str], None] | None) -> None:
        self._data_dir = data_dir
        self._options = options
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._undo: list[Callable[[], Awaitable[object]]] = []

    async def run(self) -> Embedded:
        try:
            return await self._run()
        except BaseException:
            for undo in reversed(self._undo):
                await undo()
            raise

    async def _run(self) -> Embedded:
        options = self._options
        self._data_dir.mkdir(parents=True, exist_ok=True)
        # The store first: its lock guards the whole directory.
        store = await asyncio.to_thread(Store.open, self._data_dir, options.store)
        self._undo.append(partial(_close_store, store))
        for message in store.messages:
            logger.warning("store %s: %s", self._data_dir, message)
        store.start(self._loop)
        try:
            state = SqliteState(self._data_dir / "pd.sqlite", self._loop)
        except (StateError, StateVersionError) as error:
            raise StoreError(str(error)) from error
        # Filled in below, before anything can ask for it: driver and server need each other.
        to_range_server: list[Carrier] = []
        driver = PlacementDriver(
            state, PlacementDriverOptions(name="embedded"), connect=lambda _server: to_range_server[0]
        )
        self._undo.append(driver.close)
        pd = InProcessCarrier(driver)
        server_id = await self._server_id(store, pd)
        server = RangeServer(
            store,
            RangeServerOptions(server_id, "", options.heartbeat_seconds, options.fetch),
            self._loop,
            on_failed=self._store_failed,
        )
        self._undo.append(server.close)
        to_range_server.append(InProcessCarrier(server))
        listeners = {}
        dialect = DIALECTS[options.dialect]
        for name, handler, listener_options in (
            (PD_LISTENER, driver, options.pd_listener),
            (RANGE_SERVER_LISTENER, server, options.range_server_listener),
        ):
            if name in options.listen:
                listener = Listener(handler, dialect, *options.listen[name], listener_options)
                self._undo.append(listener.close)
                await listener.start()
                listeners[name] = listener
        driver.advertise_addr = self._advertised(PD_LISTENER, listeners)
        server.advertise_addr = self._advertised(RANGE_SERVER_LISTENER, listeners)
        await server.start(pd)
        elsewhere = tcp_connector(dialect)

        def connect(info: RangeServerInfo) -> Carrier:
            return InProcessCarrier(server) if info.server_id == server_id else elsewhere(info)

        client = Client(InProcessCarrier(driver), connect, options.client)
        return Embedded(client, server, driver, store, listeners, [pd, *to_range_server])

    async def _server_id(self, store: Store, pd: Carrier) -> int:
        if store.server_id < 0:
            response = await pd.call(AllocateIdRequest(host=socket.gethostname()))
            if not isinstance(response, AllocateIdResponse) or not response.status.ok:
                raise StoreError(f"the placement driver gave the range server no id: {response.status.message}")
            await asyncio.to_thread(store.assign_server_id, response.id)
        return store.server_id

    def _advertised(self, name: str, listeners: Mapping[str, Listener]) -> str:
        told = self._options.advertise.get(name)
        if told is not None:
            return told
        listener = listeners.get(name)
        if listener is None:
            return ""
        host, port = listener.address
        if host in _WILDCARDS:
            host = socket.gethostname()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _store_failed(self, error: StoreError) -> None:
        if self._on_failed is not None:
            self._on_failed(str(error))


async def _close_store(store: Store) -> None:
    """Blocks the loop: the store's callbacks run on it, and by now nobody is left to serve."""
    store.close()
