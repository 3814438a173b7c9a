"""A placement driver that runs: its state, the driver, its listener, and its carriers to the range servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec import Struct, field

from anabranch_kit.disk.files import Files, make_directories
from anabranch_kit.disk.held import HeldFile
from anabranch_kit.errors import StoreError, StoreLocked
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.task_set import TaskSet
from sbp_back.placement_driver.driver import PlacementDriver, PlacementDriverOptions
from sbp_back.placement_driver.state import PdState, StateError, StateVersionError, in_postgres, in_sqlite
from sbp_back.transport.carrier import Carrier
from sbp_back.transport.listener import Listener
from sbp_back.transport.serving import ListenAt, advertised, listen, run_all
from sbp_back.wire.model import RangeServerInfo

STATE_FILE = "pd.sqlite"
LOCK_FILE = "pd.lock"


class PlacementDriverSetup(Struct):
    """Setup of a placement driver. ``listen``: None for one that only its own process reaches. ``database``: URL of a
    PostgreSQL that has the state in the schema ``anabranch_pd``; empty: an SQLite file has it, in the data directory or
    at ``state``, which other processes of this machine share.
    """

    driver: PlacementDriverOptions = field(default_factory=PlacementDriverOptions)
    listen: ListenAt | None = None
    database: str = ""
    state: Path | None = None
    barrier: Barrier = field(default_factory=Barrier)


def hold_state(data_dir: Path, state: Path | None = None) -> HeldFile:
    """Lock a placement driver's state for this process; of a state that several share (``state``), this process's part.

    Raises ``StoreLocked`` and ``StoreError``. A store may lie in the same directory; it has a lock of its own.
    """
    try:
        for path in (data_dir, *([] if state is None else [state.parent])):
            make_directories(Files(), path)
        return HeldFile(data_dir / LOCK_FILE)
    except BlockingIOError as error:
        raise StoreLocked(f"{data_dir} is in use by another placement driver") from error
    except OSError as error:
        raise StoreError(f"cannot use data directory {data_dir}: {error.strerror}") from error


class ServerCarriers:
    """Carriers to range servers, one for each server and address, made when first asked for.

    A server that moved leaves the carrier to its old address behind; it is closed when the next one is made.
    """

    def __init__(self, connect: Callable[[RangeServerInfo], Carrier]) -> None:
        self._connect = connect
        self._carriers: dict[int, tuple[str, Carrier]] = {}
        self._closing = TaskSet()

    def __call__(self, server: RangeServerInfo) -> Carrier:
        """Return the carrier to a server. Raises ``ValueError`` for an invalid address."""
        known = self._carriers.get(server.server_id)
        if known is not None:
            address, carrier = known
            if address == server.advertise_addr:
                return carrier
            self._closing.spawn(carrier.close())
        carrier = self._connect(server)
        self._carriers[server.server_id] = (server.advertise_addr, carrier)
        return carrier

    async def close(self) -> None:
        """Close all of them. Idempotent."""
        carriers, self._carriers = self._carriers, {}
        for _, carrier in carriers.values():
            await carrier.close()
        await self._closing.drain()


class PlacementDriverService:
    """A running placement driver, made by :func:`start_placement_driver`."""

    def __init__(
        self, driver: PlacementDriver, listener: Listener | None, servers: ServerCarriers, lock: HeldFile
    ) -> None:
        self.driver = driver
        self.listener = listener
        self._servers = servers
        self._lock = lock
        self._closed = False

    def is_held(self) -> bool:
        """Return whether the state's directory is still the one that was locked: it may have been removed."""
        return self._lock.is_there()

    async def drain(self) -> None:
        """Take no more clients and finish the requests in flight, for a limited time."""
        if self.listener is not None:
            await self.listener.drain()

    async def close(self) -> None:
        """Drain, then stop. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            await run_all([self.drain, self._servers.close, self.driver.close])
        finally:
            self._lock.release()


async def start_placement_driver(
    data_dir: Path, setup: PlacementDriverSetup, connect: Callable[[RangeServerInfo], Carrier]
) -> PlacementDriverService:
    """Start a placement driver with its state in ``data_dir`` (created when absent), or a database.

    ``connect`` makes carriers to range servers, which the driver tells of deleted streams. Raises ``StoreError``
    (``StoreLocked``: another process has the directory; the state is of another version, or damaged) and ``OSError``
    (the address is taken); nothing is left running then.
    """
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as undo:
        lock = await asyncio.to_thread(hold_state, data_dir, setup.state)
        undo.callback(lock.release)
        try:
            if setup.database:
                engine = in_postgres(setup.database)
            else:
                engine = in_sqlite(setup.state or data_dir / STATE_FILE, shared=setup.state is not None)
            state = await asyncio.to_thread(PdState, engine, loop)
        except (StateError, StateVersionError) as error:
            raise StoreError(str(error)) from error
        servers = ServerCarriers(connect)
        undo.push_async_callback(servers.close)
        driver = PlacementDriver(state, setup.driver, connect=servers, barrier=setup.barrier)
        undo.push_async_callback(driver.close)
        listener = None
        if setup.listen is not None:
            listener = await listen(driver, setup.listen, setup.barrier)
            driver.advertise_addr = advertised(listener, setup.listen.advertise)
        undo.pop_all()
        return PlacementDriverService(driver, listener, servers, lock)
