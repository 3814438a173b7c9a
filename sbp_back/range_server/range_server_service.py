"""A range server that runs: its store, the server, its listener, and its id from the placement driver."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec import Struct, field

from anabranch_kit.errors import StoreError
from anabranch_kit.run.barrier import Barrier
from sbp_back.client.control import TRANSIENT_CODES
from sbp_back.errors import ConnectionLost, SbpError
from sbp_back.range_server.fetches import FetchLimits
from sbp_back.range_server.home import StoreHome
from sbp_back.range_server.server import RangeServer, RangeServerOptions
from sbp_back.range_server.store import Store, StoreOptions
from sbp_back.transport.carrier import Carrier
from sbp_back.transport.listener import Listener
from sbp_back.transport.serving import ListenAt, advertised, listen, run_all
from sbp_back.wire.model import AllocateIdRequest, AllocateIdResponse

logger = logging.getLogger(__name__)


class RangeServerSetup(Struct):
    """Setup of a range server. ``listen``: None for one that only its own process reaches. ``wait_for_id``: whether a
    server without an id waits for a placement driver that does not answer, or gives up. ``home``: also checks every
    connection to the placement driver, which has ``meet_seconds`` (None: ``heartbeat_seconds``) to identify itself at
    the start. ``serve_strange``: whether a store that belongs to another placement driver is served nevertheless,
    without any contact to this one. Times in seconds.
    """

    fetch: FetchLimits = field(default_factory=FetchLimits)
    heartbeat_seconds: float = 3.0
    listen: ListenAt | None = None
    wait_for_id: bool = False
    retry_seconds: float = 1.0
    home: StoreHome | None = None
    meet_seconds: float | None = None
    serve_strange: bool = False
    barrier: Barrier = field(default_factory=Barrier)


def recover_store(data_dir: Path, options: StoreOptions) -> Store:
    """Recover the store in ``data_dir``, wherever its log is. Blocks. Raises ``StoreError`` and ``OSError``."""
    if options.durability == "object":
        from sbp_back.range_server.object_log.object_store import ObjectStore  # few nodes have one

        return ObjectStore.open(data_dir, options)
    if options.local_bytes is not None and not options.moves:
        raise StoreError(
            "local_bytes needs objects and durability fsync: it bounds the disk of a log that moves old data there"
        )
    if options.moves:
        from sbp_back.range_server.object_log.range_objects.offload_store import OffloadStore

        return OffloadStore.open(data_dir, options)
    return Store.open(data_dir, options)


async def open_store(data_dir: Path, options: StoreOptions) -> Store:
    """Recover and start the store in ``data_dir`` (created when absent); its lock guards the whole directory.

    Raises ``StoreError`` and ``OSError``.
    """

    store = await asyncio.to_thread(recover_store, data_dir, options)
    for message in store.messages:
        logger.warning("store %s: %s", data_dir, message)
    store.start(asyncio.get_running_loop())
    return store


async def close_store(store: Store) -> None:
    """Close the store. Blocks the loop, on which the store's callbacks run: by now it serves nobody."""
    store.close()


class RangeServerService:
    """A running range server, made by :func:`start_range_server`."""

    def __init__(self, server: RangeServer, store: Store, listener: Listener | None) -> None:
        self.server = server
        self.store = store
        self.listener = listener
        self._closed = False

    async def drain(self) -> None:
        """Take no more clients and finish requests in flight, for a limited time; fetches that wait for data are
        answered at once.
        """
        self.server.stop_waiting()
        if self.listener is not None:
            await self.listener.drain()

    async def close(self) -> None:
        """Drain, then stop, and close the store with a checkpoint. Idempotent."""
        if self._closed:
            return
        self._closed = True

        async def store_closed() -> None:
            await close_store(self.store)

        await run_all([self.drain, self.server.close, store_closed])


async def start_range_server(
    store: Store,
    pd: Carrier,
    setup: RangeServerSetup,
    on_failed: Callable[[str], None] | None = None,
    made: Callable[[RangeServer], None] | None = None,
) -> RangeServerService:
    """Serve ``store``, which is open and started and belongs to the service from now on (closed if this fails).

    The id that the placement driver behind ``pd`` gave at the first start is kept with the store. ``on_failed`` is
    called once, with a sentence, when the store can no longer promise durability; ``made`` with the server before the
    placement driver hears of it. Raises ``StoreError`` (no id available; the stored data belongs to another placement
    driver) and ``OSError`` (the address is taken).
    """
    async with AsyncExitStack() as undo:
        undo.push_async_callback(close_store, store)
        stranger = await _stranger(setup.home or StoreHome(store), pd, setup)
        if stranger is not None and not setup.serve_strange:
            raise StoreError(stranger)
        server_id = await _server_id(store, pd, setup)

        def failed(error: StoreError) -> None:
            if on_failed is not None:
                on_failed(str(error))

        options = RangeServerOptions(server_id, "", setup.heartbeat_seconds, setup.fetch)
        server = RangeServer(store, options, asyncio.get_running_loop(), on_failed=failed, barrier=setup.barrier)
        undo.push_async_callback(server.close)
        if made is not None:
            made(server)
        listener = None
        if setup.listen is not None:
            listener = await listen(server, setup.listen, setup.barrier)
            undo.push_async_callback(listener.close)
            server.advertise_addr = advertised(listener, setup.listen.advertise)
        if stranger is None:
            await server.start(pd)
        undo.pop_all()
        return RangeServerService(server, store, listener)


async def _stranger(home: StoreHome, pd: Carrier, setup: RangeServerSetup) -> str | None:
    """Return why the placement driver is not the one that the store belongs to; None if it is, or does not answer
    now.
    """
    seconds = setup.heartbeat_seconds if setup.meet_seconds is None else setup.meet_seconds
    try:
        await home.introduce(lambda request: pd.call(request, seconds))
    except SbpError as error:
        logger.info("the placement driver does not say which one it is: %s", error.message)
    return home.refusal


async def _server_id(store: Store, pd: Carrier, setup: RangeServerSetup) -> int:
    told = False
    while store.server_id < 0:
        reason = ""
        try:
            response = await pd.call(AllocateIdRequest(host=socket.gethostname()))
            if isinstance(response, AllocateIdResponse) and response.status.ok:
                # Store the id before its first use: a store with two ids would be two servers to all others.
                await asyncio.to_thread(store.assign_server_id, response.id)
                break
            reason = f"{response.status.code} {response.status.message}"
            passing = response.status.code in TRANSIENT_CODES
        except ConnectionLost as error:
            reason, passing = error.message, True
        if not passing or not setup.wait_for_id:
            raise StoreError(f"the placement driver gave the range server no id: {reason}")
        if not told:
            logger.warning("waiting for the placement driver to give this range server an id: %s", reason)
            told = True
        await asyncio.sleep(setup.retry_seconds)
    return store.server_id
