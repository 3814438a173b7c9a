"""The backend of a node, started from its settings: embedded in the node, or external over TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct
from msgspec.structs import replace

from anabranch_kit.net.address import Address
from bridges import backends
from bridges.node.settings.config import Settings
from bridges.node.settings.sections import SbpSettings
from bridges.node.storage.data_dir import DataDirectory
from bridges.node.workers import worker as workers
from bridges.node.workers.worker import Worker

if TYPE_CHECKING:
    import ssl

    from anabranch_kit.memory.budget import MemoryBudget
    from anabranch_kit.run.barrier import Barrier
    from bridges.auth.tickets import TicketOffice
    from bridges.catalog.database.pd_identity import StreamHome
    from bridges.catalog.topics.catalog import Catalog
    from bridges.log.logs import Logs
    from bridges.log.streams import Streams
    from bridges.node.settings.tls import Tls
    from sbp_back.client.client import ClientOptions
    from sbp_back.embedded import Embedded, Further
    from sbp_back.range_server.object_log.objects.bucket import Bucket
    from sbp_back.range_server.store.options import StoreOptions
    from sbp_back.transport.tickets import OwnTickets

PD = "sbp-pd"
RANGE_SERVER = "sbp-range-server"
LISTENERS: Mapping[str, int] = {PD: 12378, RANGE_SERVER: 10911}
"""Listeners of placement driver and range server, with their default ports."""

_LARGEST_BATCH = 64 * 1024**2
"""Largest batch, in bytes, that goes to a store in this process. The largest request of any protocol, a WriteRequest of
YDB's, is below. Copying more would take too long for a turn of the event loop.
"""

_log = structlog.get_logger("anabranch.backend")


class Backend(Struct):
    """A started backend. ``embedded`` is None when range servers and placement driver are external.

    ``home``: the placement driver to which the node's streams belong. ``tickets``: what the node shows to external
    servers; None: nothing. Call ``attach`` once there are partition logs.
    """

    client: Streams
    home: StreamHome
    embedded: Embedded | None = None
    tickets: OwnTickets | None = None
    attach: Callable[[Logs], None] = backends.detached

    @property
    def demands_tickets(self) -> bool:
        """Return whether the streams cannot be read without a ticket; for external servers, as far as this node has met
        them.
        """
        return self.tickets is not None and (self.embedded is not None or self.tickets.demanded)

    @property
    def addresses(self) -> dict[str, Address]:
        """The bound addresses of the backend's listeners."""
        if self.embedded is None:
            return {}
        return {name: Address(host, port) for name, (host, port) in self.embedded.addresses.items()}

    async def close(self) -> None:
        """Release everything; idempotent."""
        await (self.client.close() if self.embedded is None else self.embedded.close())


def listeners(settings: Settings) -> Mapping[str, int]:
    """Return the listeners, with default ports, that a node with these settings can open for its backend."""
    if settings.sbp.mode != "embedded":
        return {}
    return {**LISTENERS, **{name: kind.listeners[name] for name, kind in _of_others(settings).items()}}


def _of_others(settings: Settings) -> dict[str, backends.Backend]:
    """Return the listeners of other backends that have an address in the settings, each with its backend."""
    own = {*LISTENERS, "console", "cluster", *(one.name for front in settings.fronts for one in front.listeners)}
    if not settings.listen.keys() - own:
        return {}
    return {name: kind for kind in backends.installed() for name in kind.listeners if name in settings.listen}


async def serve_others(
    settings: Settings,
    embedded: Embedded,
    listen: Mapping[str, Address],
    catalog: Catalog,
    logs: Logs,
    budget: MemoryBudget,
) -> list[backends.Served]:
    """Open the listeners of other backends over the servers in this node. Raises OSError."""
    from sbp_back.transport.listener import ListenerOptions
    from sbp_back.transport.serving import ListenAt

    wanted: dict[backends.Backend, dict[str, ListenAt]] = {}
    for name, kind in _of_others(settings).items():
        if name in listen:
            options = replace(ListenerOptions.placement_driver(), max_connections=settings.sbp.max_connections)
            address = (listen[name].host, listen[name].port)
            at = ListenAt(address, settings.advertise.get(name), options=options, budget=budget)
            wanted.setdefault(kind, {})[name] = at
    served: list[backends.Served] = []
    try:
        for kind, places in wanted.items():
            served.append(await kind.serve(backends.Inside(embedded, catalog, logs, places)))
    except BaseException:
        for one in served:
            await one.close()
        raise
    return served


def store_options(sbp: SbpSettings) -> StoreOptions:
    from sbp_back.range_server.store.options import StoreOptions

    return StoreOptions(
        segment_bytes=sbp.segment_bytes,
        durability=sbp.durability,
        objects=sbp.objects,
        object_log=sbp.object_log,
        object_linger_seconds=sbp.object_linger_ms / 1000,
        object_cache_bytes=sbp.object_cache_bytes,
        object_range_bytes=sbp.object_range_bytes,
        local_bytes=None if sbp.local_bytes < 0 else sbp.local_bytes,
        group_max_bytes=sbp.group_max_bytes,
        retention_bytes=None if sbp.retention_bytes < 0 else sbp.retention_bytes,
        low_water_bytes=None if sbp.low_water_bytes < 0 else sbp.low_water_bytes,
    )


def bucket_of(sbp: SbpSettings) -> Bucket | None:
    """Return the bucket of a store in this process, None if it has none. Raises StoreError."""
    if sbp.mode != "embedded" or not sbp.objects:
        return None
    from sbp_back.range_server.object_log.objects.bucket import Bucket

    return Bucket(sbp.objects)


def server_of_log(sbp: SbpSettings) -> int:
    """Return the range server whose object log this node would open, -1 without one or without a number.

    Blocks. Raises StoreError.
    """
    bucket = bucket_of(sbp)
    if bucket is None or sbp.durability != "object":
        return -1
    from anabranch_kit.errors import StoreError
    from sbp_back.range_server.object_log.ownership.logs import Logs

    try:
        return Logs(bucket).opened_by(sbp.object_log)
    except OSError as error:
        raise StoreError(f"the objects cannot be reached: {error}") from error


async def start_backend(
    settings: Settings,
    directory: DataDirectory,
    listen: Mapping[str, Address],
    on_failed: Callable[[str], None],
    home: StreamHome,
    budget: MemoryBudget,
    barrier: Barrier,
    tls: Tls,
    worker: Worker | None,
    office: TicketOffice | None = None,
) -> Backend:
    """Start the backend of ``settings``.

    Embedded: started in the node's ``directory``, reachable for other programs at ``listen``. ``on_failed`` is called
    once, with a sentence, when the store can no longer promise durability. Raises StoreError or OSError.

    External: nothing is started. If it does not answer now, that is only logged, because it may answer later. Raises
    StoreError if the placement driver is not the one that has the node's topics; one met later is refused then
    (``home``).

    ``worker``: as for the node. ``budget`` counts the memory of its listeners' connections, ``barrier`` the exceptions
    of all callbacks. ``tls`` is for its listeners and for external servers. ``office`` issues and checks the tickets
    that listeners demand; None: they demand none.
    """
    shown = None
    if office is not None:
        from sbp_back.transport.tickets import OwnTickets

        shown = OwnTickets(office.for_process)
    if settings.sbp.mode == "external":
        return await _external(settings, home, barrier, tls.peers, shown)
    from sbp_back.embedded import EmbeddedOptions, start_embedded
    from sbp_back.placement_driver.pd_service import STATE_FILE

    options = EmbeddedOptions(
        store=store_options(settings.sbp),
        client=_embedded_client(settings.sbp),
        listen={name: (address.host, address.port) for name, address in listen.items()},
        advertise={name: told for name, told in settings.advertise.items() if name in listen},
        max_connections=settings.sbp.max_connections,
        heartbeat_seconds=settings.sbp.heartbeat_ms / 1000,
        budget=budget,
        barrier=barrier,
        tls=tls.listeners,
        tls_elsewhere=tls.peers,
        database=settings.cluster.database,
        state=None if worker is None else workers.store_of(directory, 0) / STATE_FILE,
        further=await asyncio.to_thread(_further, settings, directory, listen.get(RANGE_SERVER), worker),
        check=None if office is None else office.check,
        tickets=shown,
    )
    own = workers.store_of(directory, 0 if worker is None else worker.number)
    embedded = await start_embedded(own, options, on_failed)
    try:
        await home.require(embedded.placement_driver.identity)
    except BaseException:
        await embedded.close()
        raise
    return Backend(embedded.client, home, embedded, tickets=shown)


def _further(settings: Settings, directory: DataDirectory, at: Address | None, worker: Worker | None) -> list[Further]:
    """Return the stores of former workers that this node serves besides its own; ``at``: its own address."""
    from sbp_back.embedded import Further

    number, count = (0, 1) if worker is None else (worker.number, worker.count)
    found = []
    for gone in workers.left_behind(directory, number, count):
        steps, step = gone - number, settings.node.worker_port_step
        listen = None if at is None else workers.moved(at, steps, step)
        told = settings.advertise.get(RANGE_SERVER)
        sbp = settings.sbp
        # This worker's log already has a numbered name.
        first = sbp.object_log.removesuffix(f"-{number}") if number else sbp.object_log
        found.append(
            Further(
                workers.store_of(directory, gone),
                store_options(replace(sbp, object_log=workers.add_number(first, gone))),
                None if listen is None else (listen.host, listen.port),
                None if told is None else str(workers.moved(Address.parse(told), steps, step)),
            )
        )
    return found


def _embedded_client(sbp: SbpSettings) -> ClientOptions:
    """Return the options for the client of a store in this process: its appends pass through no frame."""
    from sbp_back.client.client import ClientOptions
    from sbp_back.client.stream_writer import WriterOptions
    from sbp_back.wire.entry import TELLING_PREFIX_BYTES

    fits = store_options(sbp).largest_entry - TELLING_PREFIX_BYTES
    if fits < _LARGEST_BATCH:
        return ClientOptions(writer=WriterOptions(max_payload=fits, bounded_by="what fits sbp.segment_bytes"))
    return ClientOptions(writer=WriterOptions(max_payload=_LARGEST_BATCH, bounded_by="what a node stores as one"))


def client_options(sbp: SbpSettings) -> ClientOptions:
    """Return the options for a client of an external backend: no step may take longer than the node's clients wait."""
    from sbp_back.client.client import ClientOptions
    from sbp_back.client.control import ControlOptions
    from sbp_back.client.replica import RetryOptions
    from sbp_back.client.stream_writer import WriterOptions

    seconds = sbp.timeout_ms / 1000
    control = ControlOptions(timeout=seconds / 3)
    retry = RetryOptions(append_timeout=seconds / 2, patience=seconds / 2)
    return ClientOptions(
        control,
        WriterOptions(patience=seconds, retry=retry, control=control),
        fetch_timeout=seconds / 2,
        open_timeout=seconds,
    )


async def _external(
    settings: Settings, home: StreamHome, barrier: Barrier, tls: ssl.SSLContext | None, shown: OwnTickets | None
) -> Backend:
    from anabranch_kit.errors import StoreError
    from sbp_back.errors import SbpError
    from sbp_back.transport.tcp_carrier import TcpOptions
    from sbp_back.wire.model import DescribePdRequest

    sbp = settings.sbp
    # A server that returns should be found soon, because clients of the node wait for it.
    tcp = TcpOptions(backoff_limit=0.5, connect_timeout=sbp.timeout_ms / 3000, tls=tls, tickets=shown)
    home.strangers = (sbp.flavor, sbp.dialect) != backends.OURS
    connecting = backends.Connecting(tcp, home.introduce, lambda: home.identity, client_options(sbp), barrier)
    made = backends.connect(backends.Servers(sbp.pd, sbp.dialect, sbp.flavor), connecting)
    backend = Backend(made.client, home, tickets=shown, attach=made.attach)
    try:
        described = await made.pd.call(DescribePdRequest(), timeout=min(5.0, sbp.timeout_ms / 3000))
        problem = None if described.status.ok else f"{described.status.code} {described.status.message}"
    except SbpError as error:
        problem = error.message
    if home.refusal is not None:
        await backend.close()
        raise StoreError(home.refusal)
    if problem is not None:
        _log.warning("the placement driver does not answer: partitions are unavailable until it does", error=problem)
    return backend
