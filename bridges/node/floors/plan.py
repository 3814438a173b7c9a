"""The inputs of all floors of a node, and what the floors collect while they are opened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog
from msgspec import Struct

from anabranch_kit.net.address import WILDCARDS, Address
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.rounds import Rounds
from anabranch_kit.run.task_set import TaskSet

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import MemoryBudget
    from anabranch_kit.run.barrier import Barrier
    from anabranch_kit.run.sliced import SlicedWorks
    from anabranch_kit.run.stalls import LoopStalls
    from bridges.auth import Authorizer
    from bridges.auth.authenticator import Authenticator
    from bridges.auth.tickets import TicketOffice
    from bridges.catalog.database.sql import Database
    from bridges.catalog.views.groups import GroupDirectory
    from bridges.catalog.views.jobs import JobDirectory
    from bridges.catalog.views.transactions import TransactionDirectory
    from bridges.console.groups.members import GroupReaders
    from bridges.life import Life
    from bridges.metrics import Metrics
    from bridges.node.finding import Finding
    from bridges.node.front import Front
    from bridges.node.listening import Listening
    from bridges.node.settings.config import Settings
    from bridges.node.settings.tls import Tls
    from bridges.node.storage.data_dir import DataDirectory, Restored
    from bridges.node.workers.worker import Worker

_log = structlog.get_logger("anabranch.node")


class Chores:
    """The periodic work of a node, all of which ends with :meth:`close`."""

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier
        self._tasks = TaskSet()
        self._rounds: list[Rounds[Any]] = []

    def every(self, interval_ms: int, chore: Callable[[int], Awaitable[object]], what: str) -> None:
        """Call ``chore`` with the wall clock (ms) every ``interval_ms`` until the node stops.

        A run ends before the next begins. An error is logged, and the chore is called again at its next time.
        """
        self._tasks.spawn(_repeat(interval_ms / 1000, chore, what), what)

    def rounds(self, what: str) -> Rounds[Any]:
        """Return a runner for a chore over many items; it ends when the node stops."""
        made: Rounds[Any] = Rounds(self._barrier, what)
        self._rounds.append(made)
        return made

    async def close(self) -> None:
        """Cancel all chores, and return when they have ended. Idempotent."""
        await asyncio.gather(self._tasks.close(), *(one.close() for one in self._rounds), return_exceptions=True)


async def _repeat(seconds: float, chore: Callable[[int], Awaitable[object]], what: str) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await chore(now_ms())
        except Exception:  # noqa: BLE001 - logged; a chore must not end with its first failure
            _log.exception("a chore failed", chore=what)


class Plan(Struct, frozen=True):
    """The inputs of all floors."""

    settings: Settings
    kinds: Sequence[type[Front]]
    worker: Worker | None
    """This process's place among the workers of a node, if there are several."""
    checkup: Callable[[Settings], Iterable[Finding]]
    """Checks of the running node for its console, to be called in a thread."""
    listening: Listening
    listen: Mapping[str, Address]
    life: Life
    chores: Chores
    metrics: Metrics
    stalls: LoopStalls
    works: SlicedWorks
    authenticator: Authenticator
    authorizer: Authorizer
    """The authorizer of a node without access rules."""
    addresses: dict[str, Address]
    """Bound address of every open listener, by name; each floor adds its own."""
    static_config: dict[str, str]
    """Node-level configuration, by key: defaults of topics, and the values that fronts report."""
    reloads: list[Callable[[], None]]
    """Called to read certificates again."""
    fronts: list[Front]
    """The fronts that serve; the floor of the fronts adds them."""
    group_directories: Callable[[], Mapping[str, GroupDirectory]]
    group_readers: GroupReaders
    job_directories: Callable[[], Mapping[str, JobDirectory]]
    transaction_directories: Callable[[], Mapping[str, TransactionDirectory]]

    @property
    def nodes_of_file(self) -> list[int]:
        """The ids of all nodes that may share this node's database, if that is a file."""
        node_id = self.settings.node.id
        if self.worker is None:
            return [node_id]
        first = node_id - self.worker.number
        return list(range(first, first + self.worker.count))

    @property
    def drain_s(self) -> float:
        """The longest time in seconds for requests in flight when the node stops."""
        return self.settings.node.drain_timeout_ms / 1000

    def find_advertised(self, listener: str) -> Address | None:
        """Return the address that clients of a listener are told; None if it listens on every interface and none was
        set.

        With None, the address to which the client itself has connected is the right one.
        """
        given = self.settings.advertise.get(listener)
        if given is not None:
            return Address.parse(given)
        address = self.addresses.get(listener)
        return None if address is None or address.host in WILDCARDS else address


class Ground(Struct, frozen=True):
    """The ground floor: the data directory, the database with all tables, the memory budget, TLS and tickets, and
    when the directory was restored from a backup.
    """

    directory: DataDirectory
    db: Database
    budget: MemoryBudget
    tls: Tls
    tickets: TicketOffice | None
    restored: Restored | None
