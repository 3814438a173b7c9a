"""The contract for fronts: what a front declares, and what a node gives it (docs/fronts.md).

A front speaks one protocol. It is a class found through the entry-point group ``anabranch.fronts``; the rest of this
package does not know which fronts there are. Class attributes declare its properties, and are read before any node
exists (to read settings, and for the command line). So the module of the class should import little; the code that
serves clients is imported when the front starts.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from msgspec import Struct

from anabranch_kit.net.address import Address
from bridges.auth.external.kerberos import KerberosOptions
from bridges.catalog.views.groups import CONSUMERS, GroupDirectory
from bridges.entry_points import entry_points
from bridges.formats.producer import FIRST_KIND_OF_FRONTS, LAST_KIND
from bridges.node.settings.sections import LimitSettings, LogSettings, NodeSettings, SettingsError
from bridges.node.settings.setting import Section

if TYPE_CHECKING:
    import ssl

    from anabranch_kit.memory.budget import MemoryBudget
    from anabranch_kit.run.barrier import Barrier
    from anabranch_kit.run.rounds import Rounds
    from anabranch_kit.run.sliced import SlicedWorks
    from bridges.auth import Authorizer
    from bridges.auth.authenticator import Authenticator
    from bridges.auth.tickets import TicketOffice
    from bridges.catalog.access_rules import AccessRules
    from bridges.catalog.client_quotas import ClientQuotas
    from bridges.catalog.database.sql import Connection, Database
    from bridges.catalog.progress import FrontProgress
    from bridges.catalog.topics.catalog import Catalog
    from bridges.catalog.topics.names import Names
    from bridges.catalog.topics.topic import Topic
    from bridges.catalog.views.jobs import JobDirectory
    from bridges.catalog.views.transactions import TransactionDirectory
    from bridges.clients import Clients
    from bridges.cluster.ownership import Others, Ownership
    from bridges.formats import StoredFormat, Translator
    from bridges.http.own_names import OwnNames
    from bridges.log.ledger.rules import Rule
    from bridges.log.logs import Logs
    from bridges.log.remote.partitions import Partitions
    from bridges.metrics import FrontMetrics
    from bridges.net.quotas import Quotas
    from bridges.node.finding import Finding

ENTRY_POINTS = "anabranch.fronts"

_NAME = re.compile(r"[a-z][a-z0-9]*")
_FURTHER = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

S = TypeVar("S", bound=Section)


class FrontError(SettingsError):
    """An installed front cannot be part of a node: it breaks the contract, alone or together with another front."""


class Listener(Struct, frozen=True):
    """A listener of a front; ``port`` is the default. Operators may open further listeners of the same kind.

    The names of these continue the name: ``kafka-external``. ``tls``: whether it may have certificates.
    ``authentication``: the ways in which clients can log in.
    """

    name: str
    port: int
    tls: bool = False
    authentication: tuple[str, ...] = ()


def listener_kind(name: str, kinds: Iterable[str]) -> str | None:
    """Return the one of ``kinds`` to which a listener belongs: its own name, or the longest that its name continues.

    ``kafka-external`` is a further listener of the kind ``kafka``; ``pravega-segmentstore`` is of its own kind.
    """
    found = [kind for kind in kinds if name == kind or (name.startswith(f"{kind}-") and _FURTHER.fullmatch(name))]
    return max(found, key=len, default=None)


class NodeFacts(Struct, frozen=True):
    """Facts about a node for a front's node-level configuration and its checks.

    ``settings`` are the front's own; addresses are by listener. ``takes_oauth``: whether tokens of an external issuer
    are accepted. ``kerberos``: the realm whose tickets are accepted.
    """

    settings: Section | None
    node: NodeSettings
    log: LogSettings
    data_dir: Path
    listening: Mapping[str, Address]
    advertised: Mapping[str, Address]
    takes_oauth: bool = False
    kerberos: KerberosOptions | None = None


class SbpPlace(Struct, frozen=True):
    """The place where other programs may read the node's streams over SBP, bypassing the node; empty if that is not
    allowed.

    ``pd``: addresses of the placement driver's nodes, from which clients learn the range servers; a wildcard host
    stands for the host under which the node is reached. ``identity``: the identity that the placement driver must
    report, empty if it reports none. ``tls``: whether these addresses use TLS. ``tickets``: whether their listeners
    demand tickets of :attr:`NodeServices.tickets`.
    """

    pd: tuple[Address, ...]
    dialect: str
    flavor: str
    tls: bool
    identity: str
    tickets: bool = False


class NodeServices(Struct, frozen=True):
    """The services of a node for a front. All may be used from :meth:`Front.start` until the end of ``stop``."""

    settings: Section | None
    """The front's own section; see :meth:`section`."""
    limits: LimitSettings
    node_id: int
    rack: str
    cluster_id: str
    """22 characters that stay the same for the life of the data."""
    data_dir: Path
    catalog: Catalog
    partitions: Partitions
    """The partitions of all nodes: reads, waits and appends, wherever the owner is."""
    logs: Logs
    """The logs of the partitions that this node owns, for fronts that send their clients to the owners."""
    owners: Ownership
    """The owners of partitions, and the coordinators."""
    peers: Others
    """Requests to other nodes, and answers to theirs."""
    progress: FrontProgress
    """Positions of this front's groups."""
    db: Database
    """The node's database, for the front's own tables."""
    works: SlicedWorks
    """Runs long work on records in slices."""
    translator: Translator
    budget: MemoryBudget
    """The memory bound shared by all fronts: requests in flight, unsent answers, reads."""
    authenticator: Authenticator
    """Checks passwords and tokens, and whether clients of a listener must log in (``required_at``)."""
    authorizer: Authorizer
    """To be asked before every operation."""
    access_rules: AccessRules | None
    """The access rules; None where everybody may do everything."""
    client_quotas: ClientQuotas
    """The quotas as configured."""
    quotas: Quotas
    """The quotas as enforced: to be asked before a client's request is accepted, and before a read."""
    metrics: FrontMetrics
    clients: Clients
    """The clients of all fronts, by name, with what they write and read. Connections of :mod:`bridges.net` enter
    themselves.
    """
    barrier: Barrier
    """Calls callbacks of other parts, so that their exceptions do no harm."""
    every: Callable[[int, Callable[[int], Awaitable[object]], str], None]
    """``every(interval_ms, chore, what)``: have ``chore`` called with the wall clock (ms) until the node stops."""
    rounds: Callable[[str], Rounds[Any]]
    """``rounds(what)``: a runner for a chore over many items, of which none may delay the others; it ends with the
    chores.
    """
    is_kept: Callable[[Topic], bool]
    """Returns whether retention must not act on a topic now, because a migration brings it, or has just done so."""
    advertised: Callable[[str], Address | None]
    """Returns the address that clients of a listener are told; None: the one to which the client has connected."""
    own_names: Callable[[str], OwnNames]
    """Returns the host names under which clients may ask an HTTP listener."""
    tls: Callable[[str], ssl.SSLContext | None]
    """Returns the TLS context of a listener (``ssl`` of asyncio's ``create_server``); None without TLS."""
    sbp: Callable[[], SbpPlace]
    """Returns where other programs find the streams of partitions, for fronts that refer their clients there."""
    tickets: TicketOffice | None
    """Issues tickets for these programs; None where none are demanded."""

    def section(self, kind: type[S]) -> S:
        """Return the front's settings, as the class that it has declared. Raises TypeError."""
        if not isinstance(self.settings, kind):
            raise TypeError(f"the front's settings are a {type(self.settings).__name__}, not a {kind.__name__}")
        return self.settings


class Front(ABC):
    """A protocol served on one or more listeners. Class attributes declare what it brings besides code."""

    name: ClassVar[str]
    """Short name of the protocol: names its section of settings, is part of its tables' names, and a label in metrics
    and logs.
    """
    listeners: ClassVar[Sequence[Listener]]
    settings: ClassVar[type[Section] | None] = None
    """The class of its section of settings, which has the front's name; all its fields have defaults."""
    connection_bounds: ClassVar[Sequence[str]] = ()
    """Names of its settings that bound connections: they are lowered if the system has too few descriptors."""
    formats: ClassVar[Sequence[StoredFormat]] = ()
    """Its stored formats (numbers 8 to 15)."""
    ledger_rules: ClassVar[Mapping[int, Rule]] = {}
    """The ledger's rules for kinds of writers that only it has, by the kind in their stamps (128 to 255)."""
    migrations: ClassVar[Sequence[Callable[[Connection], None]]] = ()
    """Migrations of its tables in the node's database: ``migrations[i]`` takes them from version ``i`` to ``i + 1``.
    Names of tables and indexes begin with ``front_NAME_``. Never change a released one: append.
    """
    erasers: ClassVar[Sequence[Callable[[Connection, str], None]]] = ()
    """Functions that remove its rows of a topic, by name. Called inside the transaction that deletes the topic, even
    when the front's listeners are off.
    """
    promises: ClassVar[Sequence[Callable[[Connection, str, int], bool]]] = ()
    """Functions that return whether an append to a partition (topic, number) was decided that the partition has not got
    yet: if it is sealed, its end is not final before. Called even when the front's listeners are off.
    """
    checks: ClassVar[Sequence[Callable[[Connection, NodeFacts], Iterator[Finding]]]] = ()
    """Checks of the node's database for ``anabranch doctor``, read-only; also run while the node is stopped."""
    names: ClassVar[Names | None] = None
    """Its protocol's names of topics, if they differ from Kafka's: ``catalog.by_name(NAME, own)`` finds a topic."""
    group_space: ClassVar[str] = CONSUMERS
    """The space of its groups: groups of one space and name are the same group in every protocol."""

    @classmethod
    def node_configuration(cls, facts: NodeFacts) -> Mapping[str, str]:
        """Return the node-level configuration, as admin tools query it, that follows from the settings."""
        return {}

    @classmethod
    def connection_line(cls, settings: Section | None, addresses: Sequence[str], *, tls: bool, login: bool) -> str:
        """Return what a user configures a client with to connect to the nodes at ``addresses``, in one line.

        ``tls`` and ``login``: whether the listener has TLS, and whether clients must log in.
        """
        return addresses[0]

    @abstractmethod
    def __init__(self, node: NodeServices) -> None:
        """Called on the event loop when logs and catalog are usable. Must not do anything that has to be undone."""

    @abstractmethod
    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        """Listen on the given addresses, by name; return the bound ones. Raises OSError if an address is taken.

        There may be further listeners of the front's kinds (:func:`listener_kind`). Clients are referred to the address
        of the listener on which they came.
        """

    @abstractmethod
    async def drain(self) -> None:
        """Accept nothing new, and return when everything in flight is answered. May be cancelled after a time."""

    @abstractmethod
    async def stop(self) -> None:
        """Close every connection, and release everything. Called once, also when ``start`` failed."""

    @property
    def groups(self) -> GroupDirectory | None:
        """The groups that live in this front; None before it starts, and for a protocol without groups."""
        return None

    @property
    def jobs(self) -> JobDirectory | None:
        """The jobs that report to this front; None before it starts, and for a protocol without jobs."""
        return None

    @property
    def transactions(self) -> TransactionDirectory | None:
        """The transactional ids that this front coordinates; None before it starts, and for a protocol without
        transactions.

        As with groups, a name is the same transactional id in all fronts.
        """
        return None


def installed() -> tuple[type[Front], ...]:
    """Return the installed fronts, sorted by entry-point name. Raises FrontError."""
    found: list[type[Front]] = []
    for point in entry_points(ENTRY_POINTS):
        try:
            front = point.load()
        except (ImportError, AttributeError) as error:
            raise FrontError(f"the front {point.name!r} ({point.value}) cannot be loaded: {error}") from error
        if not (isinstance(front, type) and issubclass(front, Front)):
            raise FrontError(f"the front {point.name!r}: {point.value} is no class of fronts")
        found.append(front)
    return tuple(found)


def check(fronts: Iterable[type[Front]], reserved: Iterable[str], listeners: Iterable[str]) -> None:
    """Check that fronts are compatible with each other and with the node's own sections and listeners. Raises
    FrontError.
    """
    names, ports, kinds = set(reserved), set(listeners), set[int]()
    for front in fronts:
        if not _NAME.fullmatch(front.name):
            raise FrontError(f"a front cannot be called {front.name!r}: small letters and digits only")
        if front.name in names:
            raise FrontError(f"the name {front.name!r} of a front is taken")
        names.add(front.name)
        for listener in front.listeners:
            if listener.name in ports:
                raise FrontError(f"front {front.name}: there is a listener {listener.name!r} already")
            ports.add(listener.name)
        for kind in front.ledger_rules:
            if not FIRST_KIND_OF_FRONTS <= kind <= LAST_KIND or kind in kinds:
                raise FrontError(f"front {front.name}: {kind} is no free kind of writers for the ledger")
            kinds.add(kind)


def group_directories(fronts: Iterable[Front]) -> dict[str, GroupDirectory]:
    """Return the group directories of the fronts that have one now, by the front's name."""
    return {front.name: directory for front in fronts if (directory := front.groups) is not None}
