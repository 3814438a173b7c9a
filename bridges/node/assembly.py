"""A node: the life of all its floors (:mod:`bridges.node.floors.lower`, :mod:`bridges.node.floors.upper`).

Start: data directory, database, place in the cluster, backend, catalog and positions, partition logs, fronts, console,
membership, chores, ready file. A stop takes the same way back: fronts finish requests in flight, then fronts, console,
partition logs (which save snapshots), catalog, backend, database and data directory are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.net.address import Address
from anabranch_kit.run.sliced import SlicedWorks
from anabranch_kit.run.stalls import LoopStalls
from bridges.auth import Authorizer, Everybody
from bridges.auth.authenticator import Authenticator
from bridges.catalog.views.groups import GroupDirectory
from bridges.catalog.views.jobs import JobDirectory
from bridges.catalog.views.transactions import TransactionDirectory
from bridges.console import FRONT as HTTP
from bridges.console.groups.members import GroupReaders
from bridges.formats import FormatTaken, register
from bridges.life import Life, Phase
from bridges.metrics import Metrics
from bridges.node import promises
from bridges.node.finding import Finding
from bridges.node.floors.lower import Floors
from bridges.node.floors.plan import Chores, Plan
from bridges.node.floors.upper import make_services, serve
from bridges.node.front import Front, FrontError, NodeServices, check, group_directories
from bridges.node.listening import CLUSTER, CONSOLE, CONSOLE_PORT, Listening
from bridges.node.settings.config import Settings
from bridges.node.storage import backend
from bridges.node.storage.data_dir import write_ready_file
from bridges.node.workers.worker import Worker
from bridges.version import VERSION, find_commit

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import MemoryBudget
    from bridges.catalog.database.sql import Database
    from bridges.catalog.progress import Progress
    from bridges.catalog.topics.catalog import Catalog
    from bridges.log.logs import Logs

_log = structlog.get_logger("anabranch.node")


class Node(Life):
    """A node, made from its settings. :meth:`start` and :meth:`stop` belong to one event loop.

    ``fronts``: the fronts that serve; None: those with which the settings were loaded. ``on_failed`` is called with a
    sentence when the node can no longer serve and must end; the process's entry point then stops it with a non-zero
    exit code. ``worker``: this process's place among the workers of a node, if there are several. ``checkup``: checks
    of the running node for its console, to be called in a thread.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        fronts: Sequence[type[Front]] | None = None,
        on_failed: Callable[[str], None] | None = None,
        worker: Worker | None = None,
        checkup: Callable[[Settings], Iterable[Finding]] = lambda settings: (),
    ) -> None:
        super().__init__(on_failed)
        self.settings = settings
        self.metrics = Metrics()
        self.stalls = LoopStalls()
        self.works = SlicedWorks()
        self.fronts: list[Front] = []
        self.group_readers = GroupReaders()
        self.addresses: dict[str, Address] = {}
        """Bound address of every open listener, by name."""
        self.authenticator = Authenticator(settings.auth_options, barrier=self.metrics.barrier)
        self.authorizer: Authorizer = Everybody()
        """The authorizer of a node without access rules."""
        self.chores = Chores(self.metrics.barrier)
        self._worker = worker
        self._checkup = checkup
        self._kinds = settings.fronts if fronts is None else tuple(fronts)
        self._listening = Listening(settings, self._kinds)
        self._reloads: list[Callable[[], None]] = []
        self._stack = AsyncExitStack()
        self._floors: Floors | None = None

    @property
    def floors(self) -> Floors:
        """The open floors of a node that has been started."""
        assert self._floors is not None, "start() has not returned"
        return self._floors

    @property
    def db(self) -> Database:
        return self.floors.ground.db

    @property
    def budget(self) -> MemoryBudget:
        return self.floors.ground.budget

    @property
    def catalog(self) -> Catalog:
        return self.floors.metadata.catalog

    @property
    def progress(self) -> Progress:
        return self.floors.metadata.progress

    @property
    def logs(self) -> Logs:
        return self.floors.log.logs

    @property
    def group_directories(self) -> dict[str, GroupDirectory]:
        """The groups of each front that has groups, and those that clients read over HTTP, by the front's name."""
        return {**group_directories(self.fronts), HTTP: self.group_readers}

    @property
    def job_directories(self) -> dict[str, JobDirectory]:
        """The jobs that report to each front, by the front's name."""
        return {front.name: directory for front in self.fronts if (directory := front.jobs) is not None}

    @property
    def transaction_directories(self) -> dict[str, TransactionDirectory]:
        """The transactional ids that each front coordinates, by the front's name."""
        return {front.name: directory for front in self.fronts if (directory := front.transactions) is not None}

    def services(self, kind: type[Front]) -> NodeServices:
        """Return what a front gets from this node, once it has been started."""
        return make_services(self.floors, kind)

    def reload(self) -> None:
        """Read the certificates of all listeners again, for new connections; after an error the old ones stay."""
        for reload in self._reloads:
            reload()

    async def start(self, ready_file: Path | None = None) -> None:
        """Start everything. On return every listener serves, and ``ready_file`` has their addresses.

        Raises StoreError (data directory locked, damaged, of another version), SettingsError (an unknown listener, a
        malformed address), OSError (an address is taken). Then everything that was started is stopped again.
        """
        self.phase = Phase.STARTING
        try:
            plan = self._plan()
            promises.tell(promises.of_node(self.settings.sbp), _log)
            self.stalls.start(asyncio.get_running_loop())
            self._stack.callback(self.stalls.stop)
            self._floors = await self._stack.enter_async_context(serve(plan))
            told = {name: str(address) for name, address in self.addresses.items()}
            if ready_file is not None:
                write_ready_file(ready_file, told)
                self._stack.callback(ready_file.unlink, missing_ok=True)
        except BaseException:
            await self.stop(drain=False)
            raise
        self.begin_serving()
        _log.info(
            "serving",
            version=VERSION,
            commit=find_commit(),
            node_id=self.settings.node.id,
            cluster_id=self.catalog.cluster_id,
            **told,
        )

    def _plan(self) -> Plan:
        """Return the plan of all floors. Raises SettingsError."""
        self._check_fronts()
        listen = self._listening.addresses()
        self._listening.check_authentication(listen, self.authenticator.required_at)
        return Plan(
            settings=self.settings,
            kinds=self._kinds,
            worker=self._worker,
            checkup=self._checkup,
            listening=self._listening,
            listen=listen,
            life=self,
            chores=self.chores,
            metrics=self.metrics,
            stalls=self.stalls,
            works=self.works,
            authenticator=self.authenticator,
            authorizer=self.authorizer,
            addresses=self.addresses,
            static_config={},
            reloads=self._reloads,
            fronts=self.fronts,
            group_directories=lambda: self.group_directories,
            group_readers=self.group_readers,
            job_directories=lambda: self.job_directories,
            transaction_directories=lambda: self.transaction_directories,
        )

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

    async def stop(self, *, drain: bool = True) -> None:
        """Stop everything in order. With ``drain``, fronts first finish requests in flight, for a limited time.

        May be called in any phase, also after a failed start; later calls do nothing.
        """
        if self.phase is Phase.STOPPED:
            return
        served, self.drains = self.is_serving, drain
        self.phase = Phase.DRAINING
        await self._stack.aclose()
        self.phase = Phase.STOPPED
        if served:
            _log.info("stopped", failure=self.failure)
