"""Placement driver and range server in processes of their own, from settings (``anabranch pd``, ``range-server``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.address import Address
from bridges.life import Life, Phase
from bridges.metrics import Metrics
from bridges.node import promises
from bridges.node.settings.config import Settings
from bridges.node.settings.sections import SettingsError
from bridges.node.settings.tls import Tls
from bridges.node.storage import backend
from bridges.node.storage.data_dir import write_ready_file
from bridges.version import VERSION, find_commit
from sbp_back.client.leader import pd_carrier
from sbp_back.placement_driver.driver import PlacementDriverOptions
from sbp_back.placement_driver.pd_service import PlacementDriverService, PlacementDriverSetup, start_placement_driver
from sbp_back.range_server.home import StoreHome
from sbp_back.range_server.range_server_service import (
    RangeServerService,
    RangeServerSetup,
    open_store,
    start_range_server,
)
from sbp_back.transport.carrier import Carrier
from sbp_back.transport.listener import Listener, ListenerOptions
from sbp_back.transport.serving import ListenAt
from sbp_back.transport.tcp_carrier import TcpOptions, tcp_connector
from sbp_back.transport.tickets import OwnTickets
from sbp_back.wire.identity import RangeServerCheck

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from bridges.auth.tickets import KeysOfOthers, TicketOffice
    from bridges.node.process.health import HealthServer

METRICS = "metrics"
"""Name of the listener for health and metrics."""
_LOOK_S = 1.0
"""Seconds between checks that the data directory is still there."""

_log = structlog.get_logger("anabranch.backend")


class _Process(Life):
    """The common base of both processes.

    ``kind`` is the name of the listener. ``give_up`` is called with a sentence when the process cannot go on.
    """

    kind: str

    def __init__(self, settings: Settings, give_up: Callable[[str], None]) -> None:
        super().__init__(give_up)
        self.settings = settings
        self._looking: asyncio.Task[None] | None = None
        self.addresses: dict[str, Address] = {}
        self.metrics = Metrics()
        self._health: HealthServer | None = None
        self._hurrying: asyncio.Future[None] | None = None
        self._ready_file: Path | None = None
        self._keys: KeysOfOthers | None = None
        self._office: TicketOffice | None = None
        # Read at once, so that errors in the files are reported before anything is started.
        self._tls = Tls(settings.tls, settings.sbp, backend.LISTENERS, [self.kind])

    def reload(self) -> None:
        """Read the certificates again, for new connections; after an error the old ones stay."""
        self._tls.reload()

    async def start(self, ready_file: Path | None = None) -> None:
        """Start everything. Raises SettingsError, StoreError, OSError, after stopping again what was started."""
        try:
            await self._start_all()
            if ready_file is not None:
                write_ready_file(ready_file, {name: str(address) for name, address in self.addresses.items()})
                self._ready_file = ready_file
        except BaseException:
            await self.stop()
            raise
        self.begin_serving()
        self._looking = asyncio.create_task(self._look_at_directory(), name="data directory")
        _log.info(
            "serving",
            kind=self.kind,
            version=VERSION,
            commit=find_commit(),
            **{name: str(address) for name, address in self.addresses.items()},
        )

    async def stop(self) -> None:
        """Finish requests in progress, for a limited time, and stop. Idempotent."""
        served, self.phase = self.is_serving, Phase.DRAINING
        if self._looking is not None:
            self._looking.cancel()
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)
            self._ready_file = None
        await self.step("stopping", self._stop())
        if self._health is not None:
            await self.step("stopping health and metrics", self._health.stop())
        self.phase = Phase.STOPPED
        if served:
            _log.info("stopped", kind=self.kind, failure=self.failure)

    async def _look_at_directory(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if not await asyncio.to_thread(self._is_held):
                self.fail(f"data directory {self.settings.data_dir} was removed, or another one put in its place")
                return
            if self._keys is not None:
                await asyncio.to_thread(self._keys.refresh)

    async def _read_keys(self) -> None:
        """Read the keys of the tickets that are demanded. Raises SettingsError."""
        from bridges.auth.tickets import KeysOfOthers, TicketOffice  # imported only with tickets
        from bridges.auth.tokens import KeysError

        try:
            keys = await asyncio.to_thread(KeysOfOthers, self.settings.auth_options.keys_file)
        except KeysError as error:
            raise SettingsError(f"sbp.tickets: {error}; auth.keys_file leads to the keys of the nodes") from None
        self._keys, self._office = keys, TicketOffice(lambda: keys.keys, self.settings.ticket_seconds)

    def _to_others(self, client_id: str, backoff_limit: float) -> TcpOptions:
        """Return the options for connections to other processes of the backend."""
        tickets = None if self._office is None else OwnTickets(self._office.for_process)
        return TcpOptions(client_id=client_id, backoff_limit=backoff_limit, tls=self._tls.peers, tickets=tickets)

    def hurry(self) -> None:
        """Have a stop in progress cut its connections."""
        listener = self._listener()
        if listener is not None:
            self._hurrying = asyncio.ensure_future(listener.close())

    async def _start_all(self) -> None:
        given = {name: text for name, text in self.settings.listen.items() if text != "off"}
        budget = MemoryBudget(self.settings.limits.connections_memory_bytes, asyncio.get_running_loop().call_soon)
        if unknown := sorted(set(given) - {self.kind, METRICS}):
            raise SettingsError(f"there is no listener {unknown[0]!r}; there are {self.kind}, {METRICS}")
        if METRICS in given:
            from bridges.node.process.health import HealthServer

            self.metrics.add_source(lambda: _of_process(budget))
            at = self._address(METRICS, given[METRICS])
            names, required = self.settings.own_names(METRICS), self.settings.auth.required
            self._health = HealthServer(self, self.metrics, names, tells=not required)
            # Started first, so that a long recovery can be watched.
            self.addresses[METRICS] = await self._health.start(at)
        if self.settings.sbp.tickets:
            await self._read_keys()
        port = backend.LISTENERS[self.kind]
        host = self.settings.default_host
        address = self._address(self.kind, given[self.kind]) if self.kind in given else Address(host, port)
        options = replace(
            self._listener_options(),
            max_connections=self.settings.sbp.max_connections,
            tls=self._tls.listeners.get(self.kind),
            drain_seconds=self.settings.node.drain_timeout_ms / 1000,
        )
        advertise = self.settings.advertise.get(self.kind)
        if advertise is not None:
            self._address(self.kind, advertise)
        check = None if self._office is None else self._office.check
        await self._start(
            ListenAt((address.host, address.port), advertise, options=options, budget=budget, check=check)
        )
        listener = self._listener()
        assert listener is not None
        self.addresses[self.kind] = Address(*listener.address)

    def _address(self, name: str, text: str) -> Address:
        try:
            return Address.parse(text, self.settings.default_host)
        except ValueError as error:
            raise SettingsError(f"{name}: {error}") from None

    def _is_held(self) -> bool:
        """Return whether this process still holds the data directory. Blocks."""
        raise NotImplementedError

    def _listener_options(self) -> ListenerOptions:
        raise NotImplementedError

    def _listener(self) -> Listener | None:
        raise NotImplementedError

    async def _start(self, listen: ListenAt) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError


class PdProcess(_Process):
    """A placement driver process."""

    kind = backend.PD

    def __init__(self, settings: Settings, give_up: Callable[[str], None]) -> None:
        super().__init__(settings, give_up)
        self._service: PlacementDriverService | None = None

    def _is_held(self) -> bool:
        return self._service is None or self._service.is_held()

    def _listener_options(self) -> ListenerOptions:
        return ListenerOptions.placement_driver()

    def _listener(self) -> Listener | None:
        return None if self._service is None else self._service.listener

    async def _start(self, listen: ListenAt) -> None:
        promises.tell(promises.of_placement_driver(), _log)
        driver = PlacementDriverOptions(alive_seconds=self.settings.sbp.alive_ms / 1000)
        setup = PlacementDriverSetup(driver, listen, self.settings.cluster.database, barrier=self.metrics.barrier)
        # The range server will get deletions, seals and trims, so it must be the intended one.
        check = RangeServerCheck(
            strangers=True, identity=lambda: self._service.driver.identity if self._service else ""
        )
        connect = tcp_connector(self._to_others("placement-driver", 2.0), check, self.metrics.barrier)
        self._service = await start_placement_driver(self.settings.data_dir, setup, connect)
        self.metrics.add_source(self._collect)

    async def _stop(self) -> None:
        if self._service is not None:
            await self._service.close()

    def _collect(self) -> Iterator[Metric]:
        from bridges.metric_text import value

        assert self._service is not None
        alive = len(self._service.driver.servers.alive())
        yield value("anabranch_pd_range_servers_alive", "Range servers that get new ranges.", alive)


class RangeServerProcess(_Process):
    """A range server process."""

    kind = backend.RANGE_SERVER

    def __init__(self, settings: Settings, give_up: Callable[[str], None]) -> None:
        super().__init__(settings, give_up)
        self._pd: Carrier | None = None
        self._service: RangeServerService | None = None

    def _is_held(self) -> bool:
        return self._service is None or self._service.store.is_held()

    def _listener_options(self) -> ListenerOptions:
        return ListenerOptions()

    def _listener(self) -> Listener | None:
        return None if self._service is None else self._service.listener

    async def _start(self, listen: ListenAt) -> None:
        sbp = self.settings.sbp
        if not sbp.pd:
            raise SettingsError("a range server needs sbp.pd (--pd), the address of the placement driver")
        promises.tell(promises.of_range_server(sbp), _log)
        store = await open_store(self.settings.data_dir, backend.store_options(sbp))
        home = StoreHome(store)
        tcp = self._to_others("range-server", 1.0)
        self._pd = pd_carrier(sbp.pd, options=tcp, introduce=home.introduce, barrier=self.metrics.barrier)
        setup = RangeServerSetup(
            heartbeat_seconds=sbp.heartbeat_ms / 1000,
            listen=listen,
            wait_for_id=True,
            home=home,
            meet_seconds=5.0,
            barrier=self.metrics.barrier,
        )
        self._service = await start_range_server(store, self._pd, setup, self.fail)
        self.metrics.add_source(self._collect)

    async def _stop(self) -> None:
        if self._service is not None:
            await self._service.close()
        if self._pd is not None:
            await self._pd.close()

    def _collect(self) -> Iterator[Metric]:
        from bridges.metric_text import value
        from bridges.node.node_metrics import store_metrics

        assert self._service is not None
        server = self._service.server
        number = server.info.server_id
        yield from store_metrics(self._service.store.stats)
        yield value(
            "anabranch_range_server_id", "Number that the placement driver assigned to this range server.", number
        )
        waiting = server.waiting_fetches
        yield value("anabranch_range_server_waiting_fetches", "Fetches that wait for a range to grow.", waiting)


def _of_process(budget: MemoryBudget) -> Iterator[Metric]:
    from bridges.node.node_metrics import budget_metrics, process_metrics  # imported only in a process that is scraped

    yield from process_metrics()
    yield from budget_metrics(budget)
