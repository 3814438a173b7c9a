"""The assembly of a node: all its parts, in the order in which they are started, drained and stopped.

Start: data directory, database and backend, catalog and positions, partition logs, fronts, console, ready file. Stop:
fronts accept nothing new and finish requests in flight, then console, partition logs (which save snapshots), catalog,
backend, database, data directory.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.address import WILDCARDS, Address
from anabranch_kit.run.rounds import Rounds
from anabranch_kit.run.sliced import SlicedWorks
from anabranch_kit.run.stalls import LoopStalls
from anabranch_kit.run.watchdog import SlowThreads
from bridges.auth import Authorizer, Everybody
from bridges.auth.authenticator import Authenticator
from bridges.catalog.client_quotas import ClientQuotas
from bridges.catalog.group_view import GroupDirectory
from bridges.catalog.job_view import JobDirectory
from bridges.catalog.progress import Progress
from bridges.catalog.sql import Database
from bridges.catalog.topic import Change, ChangeKind
from bridges.catalog.topic_config import node_config_of
from bridges.catalog.topics import Catalog
from bridges.catalog.transaction_view import TransactionDirectory
from bridges.console.door import ConsoleDoor
from bridges.console.group_states import GroupStates
from bridges.console.history import FINE_S
from bridges.console.sampling import Recorder
from bridges.console.topic_sizes import TopicSizes
from bridges.formats import FormatTaken, Translator, register
from bridges.log.compaction.cleaner import Cleaner
from bridges.log.logs import Logs
from bridges.log.remote.partitions import Partitions
from bridges.metrics import Metrics
from bridges.net.quotas import Quotas
from bridges.node import backend, floors, promises
from bridges.node.by_itself import ByItself
from bridges.node.config import Settings
from bridges.node.data_dir import write_ready_file
from bridges.node.front import (
    Front,
    FrontError,
    NodeFacts,
    NodeServices,
    SbpPlace,
    check,
    group_directories,
)
from bridges.node.listening import CLUSTER, CONSOLE, CONSOLE_PORT, Listening
from bridges.node.memory import FreeMemory
from bridges.node.sections import LimitSettings
from bridges.node.spent import SpentPartitions
from bridges.node.stopping import Stopping
from bridges.node.worker import Worker
from bridges.version import VERSION

if TYPE_CHECKING:
    import ssl

    from prometheus_client.core import Metric

    from bridges.catalog.access_rules import AccessRules
    from bridges.cluster.ownership import Membership, Others
    from bridges.log.streams import Streams
    from bridges.node.worker_metrics import WorkerMetrics
    from sbp_back.embedded import Embedded

_OWNERS_S = 10.0
"""Seconds for which a node that joins a cluster waits until every slot has an owner."""
_USERS_CHECK_MS = 1000
"""Interval at which the file of users is checked: a removed user keeps access for at most so long."""

_log = structlog.get_logger("anabranch.node")


class Phase(Enum):
    """The phases of a node's life; ``/readyz`` answers 200 in SERVING only."""

    NEW = "new"
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class Node(Stopping):
    """A node, made from its settings. :meth:`start` and :meth:`stop` belong to one event loop.

    ``fronts``: the fronts that serve; None: those with which the settings were loaded. ``on_failed`` is called with a
    sentence when the node can no longer serve and must end; the process's entry point then stops it with a non-zero
    exit code. ``worker``: this process's place among the workers of a node, if there are several.
    """

    _ground: floors.Ground
    _log: floors.Log
    budget: MemoryBudget
    place: ByItself
    """The node's place in the cluster."""
    cluster: Membership
    """The owners of slots, and this node's membership."""
    peers: Others
    """The client and server for requests between nodes."""
    group_states: GroupStates
    topic_sizes: TopicSizes
    client: Streams
    db: Database
    catalog: Catalog
    progress: Progress
    logs: Logs
    partitions: Partitions
    cleaner: Cleaner
    translator: Translator
    client_quotas: ClientQuotas
    quotas: Quotas
    recorder: Recorder

    def __init__(
        self,
        settings: Settings,
        *,
        fronts: Sequence[type[Front]] | None = None,
        on_failed: Callable[[str], None] | None = None,
        worker: Worker | None = None,
    ) -> None:
        self.settings = settings
        self._worker = worker
        self.node_id = settings.node.id
        self.metrics = Metrics()
        self.stalls = LoopStalls()
        self.works = SlicedWorks()
        self.phase = Phase.NEW
        self.fronts: list[Front] = []
        self.addresses: dict[str, Address] = {}
        """Bound address of every open listener, by name."""
        self.static_config: dict[str, str] = {}
        """Node-level configuration, by key: defaults of topics, and the values that fronts report."""
        self.authenticator = Authenticator(settings.auth_options, barrier=self.metrics.barrier)
        self.authorizer: Authorizer = Everybody()
        self.access_rules: AccessRules | None = None
        """The access rules; None where everybody may do everything."""
        self.denied = 0
        self.started_ms = 0
        self._backend: backend.Backend | None = None
        self._stack = AsyncExitStack()
        self._reload: Callable[[], None] = lambda: None
        self._served = False
        self._drains = False
        self._kinds = settings.fronts if fronts is None else tuple(fronts)
        self._listening = Listening(settings, self._kinds)
        self._on_failed = on_failed
        self._chores: list[asyncio.Task[None]] = []
        self._rounds: list[Rounds[Any]] = []
        self._ready_file: Path | None = None
        self._hurry = asyncio.Event()
        self._retiring = False

    @property
    def limits(self) -> LimitSettings:
        """The bounds shared by all listeners."""
        return self.settings.limits

    @property
    def group_directories(self) -> dict[str, GroupDirectory]:
        """The groups of each front that has groups, by the front's name."""
        return group_directories(self.fronts)

    @property
    def job_directories(self) -> dict[str, JobDirectory]:
        """The jobs that report to each front, by the front's name."""
        return {front.name: directory for front in self.fronts if (directory := front.jobs) is not None}

    @property
    def transaction_directories(self) -> dict[str, TransactionDirectory]:
        """The transactional ids that each front coordinates, by the front's name."""
        return {front.name: directory for front in self.fronts if (directory := front.transactions) is not None}

    @property
    def worker_metrics(self) -> WorkerMetrics | None:
        """The metrics of all workers, on the first worker; otherwise None."""
        return self.place.worker_metrics

    @property
    def embedded(self) -> Embedded | None:
        """The backend inside this node; None before it starts, and with an external backend."""
        return None if self._backend is None else self._backend.embedded

    @property
    def cluster_id(self) -> str:
        """The id of the cluster: 22 characters that stay the same for the life of the data."""
        return self.catalog.cluster_id

    @property
    def is_serving(self) -> bool:
        """Return whether the node accepts clients now."""
        return self.phase is Phase.SERVING

    def advertised(self, listener: str) -> Address | None:
        """Return the address that clients of a listener are told; None if it listens on every interface and none was
        set.

        With None, the address to which the client itself has connected is the right one.
        """
        told = self.settings.advertise.get(listener)
        if told is not None:
            return Address.parse(told)
        address = self.addresses.get(listener)
        return None if address is None or address.host in WILDCARDS else address

    def tls(self, listener: str) -> ssl.SSLContext | None:
        """Return the TLS context of a listener, None without TLS."""
        return self._ground.tls.listeners.get(listener)

    def reload(self) -> None:
        """Read the certificates of all listeners again, for new connections; after an error the old ones stay."""
        self._reload()

    # --- start ------------------------------------------------------------------------------------------------------

    async def start(self, ready_file: Path | None = None) -> None:
        """Start everything. On return every listener serves, and ``ready_file`` has their addresses.

        Raises StoreError (data directory locked, damaged, of another version), SettingsError (an unknown listener, a
        malformed address), OSError (an address is taken). Then everything that was started is stopped again.
        """
        self.phase = Phase.STARTING
        try:
            await self._start(self._stack)
            if ready_file is not None:
                write_ready_file(ready_file, {name: str(address) for name, address in self.addresses.items()})
                self._ready_file = ready_file
        except BaseException:
            await self.stop(drain=False)
            raise
        self.phase = Phase.SERVING
        listening = {name: str(address) for name, address in self.addresses.items()}
        _log.info("serving", node_id=self.node_id, cluster_id=self.cluster_id, **listening)

    async def _start(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        self._check_fronts()
        listen = self._listening.addresses()
        self._listening.check_authentication(listen, self.authenticator.required_at)
        promises.tell(promises.of_node(settings.sbp), _log)
        self.stalls.start(asyncio.get_running_loop())
        stack.callback(self.stalls.stop)
        plan = floors.Plan(
            settings,
            self._kinds,
            self._worker,
            self._listening,
            listen,
            self.metrics,
            self.works,
            self.authenticator,
            self.static_config,
            self._step,
            self.fail,
        )
        enter = stack.enter_async_context
        ground = self._ground = await enter(floors.ground(plan))
        self.budget, self.db, self._reload = ground.budget, ground.db, ground.tls.reload
        place = self.place = await enter(floors.cluster(plan, ground))
        self.cluster, self.peers = place.cluster, place.peers
        storage = self._backend = await enter(floors.storage(plan, ground, self._backend_failed))
        self.client = storage.client
        self.addresses.update(storage.addresses)
        stack.push_async_callback(self._retire)
        known = await enter(floors.metadata(plan, ground, place, storage, self))
        self.catalog, self.progress, self.authorizer = known.catalog, known.progress, known.authorizer
        self.quotas, self.client_quotas, self.access_rules = known.quotas, known.client_quotas, known.access_rules
        log = self._log = await enter(floors.log(plan, ground, place, storage, known))
        self.logs, self.partitions = log.logs, log.partitions
        self.cleaner, self.translator = log.cleaner, log.translator
        self.addresses.update(log.addresses)
        self.group_states = GroupStates(self, self.cluster, self.peers)
        self.topic_sizes = TopicSizes(self, self.cluster, self.peers)
        self.recorder = Recorder(self, settings.limits.history_bytes)
        self.catalog.on_change.append(self._catalog_changed)
        self._tell_configuration(listen)
        self.metrics.add_source(self._families)
        place.count(self.metrics)
        await enter(self._fronts_open(listen))
        await enter(self._console_open(listen))
        if CLUSTER in listen:
            self.addresses[CLUSTER] = await place.listen(listen[CLUSTER], self.tls(CLUSTER), ground.tls.peers)
        await enter(self._membership())
        self.started_ms = _now_ms()
        self._begin_upkeep(listen)

    @asynccontextmanager
    async def _fronts_open(self, listen: Mapping[str, Address]) -> AsyncIterator[None]:
        try:
            for kind in self._kinds:
                own = [listener.name for listener in kind.listeners]
                wanted = {name: address for name, address in listen.items() if self._listening.kind(name) in own}
                if wanted or not kind.listeners:
                    front = kind(self.services(kind))
                    self.fronts.append(front)
                    self.addresses.update(await front.start(wanted))
            await self.db.changes.follow(self.metrics.barrier)
            self._tell_configuration(self.addresses)
            yield
        finally:
            for front in self.fronts:
                await self._step(f"stopping {front.name}", front.stop())

    @asynccontextmanager
    async def _console_open(self, listen: Mapping[str, Address]) -> AsyncIterator[None]:
        if CONSOLE not in listen:
            yield
            return
        settings = self.settings
        console = ConsoleDoor(self, settings.own_names(CONSOLE), open_health=settings.auth.open_health)
        try:
            self.addresses[CONSOLE] = await console.start(listen[CONSOLE], self.tls(CONSOLE))
            yield
        finally:
            await self._step("stopping the console", console.stop())

    @asynccontextmanager
    async def _membership(self) -> AsyncIterator[None]:
        """Own a share of the slots while inside; at the end, finish what is in flight."""
        server_id = -1 if self.embedded is None else self.embedded.range_server.info.server_id
        await self.cluster.join(server_id, self._told_addresses(), self.settings.node.rack)
        await self.cluster.await_owners(_OWNERS_S)
        yield
        await self._step("ending compaction", self.cleaner.close())
        if self._drains and self.failure is None:
            # Workers stop together, or restart at once: nothing is handed over.
            if self._worker is None:
                leaving = self.cluster.leave(self.settings.node.drain_timeout_ms / 1000)
                await self._step("handing over", self._unless_hurried(leaving))
            await self._drain()

    async def _retire(self) -> None:
        """Have another node take over, as this one appends no more; until then others read from this range server."""
        if self.failure is None and self._worker is None:
            self._retiring = True
            seconds = self.settings.node.drain_timeout_ms / 1000 if self._served else 0.0
            await self._step("having others take over", self._unless_hurried(self.cluster.retire(seconds)))

    def _begin_upkeep(self, listen: Mapping[str, Address]) -> None:
        settings = self.settings
        self.every(FreeMemory.LOOK_MS, FreeMemory(settings.limits.connections_memory_bytes).look, "free memory")
        self.every(settings.log.retention_check_interval_ms, self._enforce_retention, "retention")
        self.every(settings.log.cleaner_interval_ms, self._compact, "compaction")
        spent = SpentPartitions(self.catalog, self.logs, self.rounds("sealed partitions that are given back"))
        self.every(settings.log.retention_check_interval_ms, spent.look, "sealed partitions that are given back")
        self.every(settings.node.check_interval_ms, self._expire_producers, "producer expiry")
        self.every(_USERS_CHECK_MS, self._refresh_users, "users")
        if settings.node.stall_ms:
            self.every(settings.node.stall_ms // 10, self._slow_threads().look, "slow threads")
        if CONSOLE in listen:
            self.every(FINE_S * 1000, self.recorder.look, "history")

    def _told_addresses(self) -> dict[str, str]:
        """Return the address of each listener that this node, and other nodes on its behalf, tell clients."""
        told: dict[str, str] = {}
        for name, address in self.addresses.items():
            host = socket.gethostname()
            if self._worker is not None:
                # A client knows this machine by the name under which it has reached another worker. Workers know it as
                # the local host.
                here = "::1" if address.host == "::" else "127.0.0.1"
                host = here if name == CLUSTER else address.host
            advertised = self.advertised(name) or Address(host, address.port)
            told[name] = str(advertised)
        return told

    def count_denial(self) -> None:
        """Count an operation that the access rules have denied."""
        self.denied += 1

    def _families(self) -> Iterator[Metric]:
        from bridges.node.node_metrics import of_node  # imported only in a node that is scraped

        return of_node(self)

    def _check_fronts(self) -> None:
        """Check that the fronts fit into this node, and register their formats. Raises FrontError."""
        own = {**backend.listeners(self.settings), CONSOLE: CONSOLE_PORT, CLUSTER: 0}
        check(self._kinds, Settings.__struct_fields__, own)
        for kind in self._kinds:
            for plug in kind.formats:
                try:
                    register(plug)
                except FormatTaken as error:
                    raise FrontError(f"front {kind.name}: {error}") from None

    def services(self, kind: type[Front]) -> NodeServices:
        """Return what a front gets from this node; call once logs and catalog are usable."""
        settings = self.settings
        return NodeServices(
            settings=settings.of(kind),
            limits=settings.limits,
            node_id=self.node_id,
            rack=settings.node.rack,
            cluster_id=self.cluster_id,
            data_dir=settings.data_dir,
            catalog=self.catalog,
            partitions=self.partitions,
            logs=self.logs,
            owners=self.cluster,
            peers=self.peers,
            progress=self.progress.front(kind.name, kind.group_space),
            db=self.db,
            works=self.works,
            translator=self.translator,
            budget=self.budget,
            authenticator=self.authenticator,
            authorizer=self.authorizer,
            access_rules=self.access_rules,
            client_quotas=self.client_quotas,
            quotas=self.quotas,
            metrics=self.metrics.front(kind.name),
            barrier=self.metrics.barrier,
            every=self.every,
            rounds=self.rounds,
            is_kept=self._log.handed_over.holds,
            advertised=self.advertised,
            own_names=self.settings.own_names,
            tls=self.tls,
            sbp=self._sbp_place,
            tickets=self._ground.tickets,
        )

    def _sbp_place(self) -> SbpPlace:
        assert self._backend is not None, "started before the fronts"
        sbp, identity = self.settings.sbp, self._backend.home.identity
        if self.embedded is None:
            # External servers that demand no tickets give all rights to everybody who reaches them, so they are not
            # shown to clients that must log in. A listener of this node is different: the operator has opened it
            # deliberately.
            closed = self._listening.asks_who and not self._backend.demands_tickets
            nodes = () if closed else tuple(Address.parse(one) for one in sbp.pd.split(","))
            return SbpPlace(nodes, sbp.dialect, sbp.flavor, sbp.tls, identity, sbp.tickets)
        told = self.settings.advertise.get(backend.PD)
        found = self.addresses.get(backend.PD) if told is None else Address.parse(told)
        is_open = {backend.PD, backend.RANGE_SERVER} <= self.addresses.keys()
        open_to_others = (found,) if is_open and found is not None else ()
        return SbpPlace(open_to_others, "0.2", "anabranch", self.tls(backend.PD) is not None, identity, sbp.tickets)

    def _tell_configuration(self, addresses: Mapping[str, Address]) -> None:
        """Update the node-level configuration with what is known now; ``addresses`` by listener. Raises FrontError."""
        settings = self.settings
        told = node_config_of(settings.topic_defaults)
        for kind in self._kinds:
            facts = NodeFacts(
                settings.of(kind),
                settings.node,
                settings.log,
                settings.data_dir,
                addresses,
                self._listening.advertised(addresses),
                self.authenticator.takes_oauth,
            )
            values = kind.node_configuration(facts)
            if twice := sorted(told.keys() & values.keys()):
                raise FrontError(f"front {kind.name} tells of {twice[0]}, which somebody else tells already")
            told.update(values)
        self.static_config.update(told)

    @property
    def not_promised(self) -> list[tuple[str, bool]]:
        """The promises that the node does not make, as sentences, and whether only because of a setting."""
        return [(limit.sentence, limit.chosen) for limit in promises.of_node(self.settings.sbp)]

    def describe(self) -> dict[str, object]:
        """Return the node's identity, its addresses, and how it stores data."""
        return {
            "version": VERSION,
            "pid": os.getpid(),
            "node_id": self.node_id,
            "cluster_id": self.cluster_id,
            "listeners": {name: str(address) for name, address in self.addresses.items()},
            "uptime_ms": max(0, _now_ms() - self.started_ms),
            "data_dir": str(self.settings.data_dir),
            "durability": self.settings.sbp.durability,
        }

    # --- stop -------------------------------------------------------------------------------------------------------

    async def stop(self, *, drain: bool = True) -> None:
        """Stop everything in order. With ``drain``, fronts first finish requests in flight, for a limited time.

        May be called in any phase, also after a failed start; later calls do nothing.
        """
        if self.phase is Phase.STOPPED:
            return
        served = self._served = self.phase is Phase.SERVING
        self._drains = drain
        self.phase = Phase.DRAINING
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)
        # Fronts start chores before the upkeep floor exists, so all chores are cancelled here.
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, *(one.close() for one in self._rounds), return_exceptions=True)
        await self._stack.aclose()
        self.phase = Phase.STOPPED
        if served:
            _log.info("stopped", failure=self.failure)

    def hurry(self) -> None:
        """Have a stop in progress no longer wait for requests in flight."""
        self._hurry.set()

    async def _unless_hurried(self, work: Awaitable[None]) -> None:
        """Await ``work``, and cancel it when the stop must be quick."""
        task, hurry = asyncio.ensure_future(work), asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({task, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _drain(self) -> None:
        seconds = self.settings.node.drain_timeout_ms / 1000
        named = {front.name: front.drain() for front in self.fronts} | {CLUSTER: self.peers.drain()}
        drains = asyncio.gather(*named.values(), return_exceptions=True)
        hurry = asyncio.ensure_future(self._hurry.wait())
        waiting: set[asyncio.Future[Any]] = {drains, hurry}
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if drains.done():
            for name, error in zip(named, drains.result(), strict=True):
                if isinstance(error, BaseException):
                    _log.error("draining failed", front=name, exc_info=error)
        else:
            _log.warning("requests in flight were given up", waited_up_to_seconds=seconds)
            drains.cancel()
            await asyncio.wait({drains})
            if not drains.cancelled():
                drains.exception()  # retrieve the cancellation, or asyncio logs an error that was never retrieved

    def fail(self, reason: str) -> None:
        """Record that the node cannot go on, and have it stopped. Only the first reason counts."""
        if self.failure is not None:
            return
        self.failure = reason
        _log.critical("the node cannot go on", reason=reason)
        if self._on_failed is not None:
            self._on_failed(reason)

    def _backend_failed(self, reason: str) -> None:
        if self._retiring:
            _log.info("the range server writes nothing any more", reason=reason)  # another node has taken over
        else:
            self.fail(reason)

    # --- chores -----------------------------------------------------------------------------------------------------

    def _slow_threads(self) -> SlowThreads:
        waits = {"the node's database": lambda: self.db.busy_seconds}
        if self.embedded is not None:
            store = self.embedded.store
            waits["the log's disk or object storage"] = lambda: store.stuck_seconds
        return SlowThreads(self.settings.node.stall_ms / 1000, waits)

    def every(self, interval_ms: int, chore: Callable[[int], Awaitable[object]], what: str) -> None:
        """Call ``chore`` with the wall clock (ms) every ``interval_ms`` until the node stops.

        A run ends before the next begins. An error is logged, and the chore is called again at its next time.
        """
        self._chores.append(asyncio.create_task(self._repeat(interval_ms / 1000, chore, what), name=what))

    def rounds(self, what: str) -> Rounds[Any]:
        """Return a runner for a chore over many items; it ends when the node stops."""
        made: Rounds[Any] = Rounds(self.metrics.barrier, what)
        self._rounds.append(made)
        return made

    async def _repeat(self, seconds: float, chore: Callable[[int], Awaitable[object]], what: str) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await chore(_now_ms())
            except Exception:  # noqa: BLE001 - logged; a chore must not end with its first failure
                _log.exception("a chore failed", chore=what)

    async def _enforce_retention(self, now_ms: int) -> None:
        topics = self._log.handed_over.others(self.catalog.topics.values(), now_ms)
        places = ((topic.name, index) for topic in topics for index in range(len(topic.partitions)))
        trimmed = await self._log.retention.enforce(places, now_ms)
        if trimmed:
            _log.info("retention applied", partitions=trimmed)

    async def _compact(self, now_ms: int) -> None:
        topics = list(self.catalog.topics.values())  # topics come and go during the look
        await self.cleaner.look(((topic.name, n) for topic in topics for n in range(len(topic.partitions))), now_ms)

    async def _refresh_users(self, now_ms: int) -> None:
        directory = self._ground.directory
        if await asyncio.to_thread(directory.is_held):
            await self.authenticator.refresh()
        else:
            self.fail(f"data directory {directory.path} was removed, or another one put in its place")

    async def _expire_producers(self, now_ms: int) -> None:
        await self.logs.expire_producers(now_ms)

    def _catalog_changed(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            name = change.topic.name
            self.logs.topic_deleted(name, range(len(change.topic.partitions)))
            self.progress.topic_gone(name)
            self.metrics.topic_deleted(name)
            self.recorder.topic_gone(name, len(change.topic.partitions))
        elif change.kind is ChangeKind.PARTITIONS and change.topic is not None:
            for partition in change.topic.partitions:
                if not partition.is_active:
                    self.logs.sealed(change.topic.name, partition.index, partition.children)
        elif change.kind is ChangeKind.SEALED and change.topic is not None:
            for partition in change.topic.partitions:
                if partition.end is not None:
                    self.logs.ended(change.topic.name, partition.index, partition.end)
        elif change.kind is ChangeKind.IMPORT and change.topic is not None:
            self.logs.importing(change.topic.name, range(len(change.topic.partitions)), change.topic.import_epoch)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
