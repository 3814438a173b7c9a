"""The contract for fronts: what a front brings, and what a node gives it (docs/fronts.md).

A front speaks one protocol. It is a class found through the entry-point group ``anabranch.fronts``; nothing else in
this package knows which fronts there are. What it brings stands in class attributes, which are looked at before any
node exists (settings are read, the command line shows them), so the module of the class should import little; what
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
from bridges.catalog.group_view import CONSUMERS, GroupDirectory
from bridges.entry_points import entry_points
from bridges.formats.producer import FIRST_KIND_OF_FRONTS, LAST_KIND
from bridges.node.sections import LimitSettings, LogSettings, NodeSettings, SettingsError
from bridges.node.setting import Section

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
    from bridges.catalog.job_view import JobDirectory
    from bridges.catalog.names import Names
    from bridges.catalog.progress import FrontProgress
    from bridges.catalog.sql import Connection, Database
    from bridges.catalog.topic import Topic
    from bridges.catalog.topics import Catalog
    from bridges.catalog.transaction_view import TransactionDirectory
    from bridges.cluster.ownership import Others, Ownership
    from bridges.formats import StoredFormat, Translator
    from bridges.log.ledger.rules import Rule
    from bridges.log.logs import Logs
    from bridges.log.remote.appends import Appends
    from bridges.metrics import FrontMetrics
    from bridges.net.own_names import OwnNames
    from bridges.net.quotas import Quotas
    from bridges.node.finding import Finding

ENTRY_POINTS = "anabranch.fronts"

_NAME = re.compile(r"[a-z][a-z0-9]*")
_FURTHER = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

S = TypeVar("S", bound=Section)


class FrontError(SettingsError):
    """A front that is installed cannot be part of a node: it, or two of them together, break the contract."""


class Listener(Struct, frozen=True):
    """Something a front listens on: ``port`` is the usual one. Operators may open further ones of the kind, under
    names that go on from this one: ``kafka-external``.

    ``tls`` tells whether it may be given certificates, ``authentication`` in which ways clients can say who they are.
    """

    name: str
    port: int
    tls: bool = False
    authentication: tuple[str, ...] = ()


def listener_kind(name: str, kinds: Iterable[str]) -> str | None:
    """Which of ``kinds`` a listener is: the one of its name, or the longest that its name goes on from.

    ``kafka-external`` is a further listener of the kind ``kafka``, ``pravega-segmentstore`` one of its own kind.
    """
    found = [kind for kind in kinds if name == kind or (name.startswith(f"{kind}-") and _FURTHER.fullmatch(name))]
    return max(found, key=len, default=None)


class NodeFacts(Struct, frozen=True):
    """What a front's node-level configuration and its checks may tell of: ``settings`` are its own, addresses are by
    listener. ``takes_oauth``: whether users may show tokens of a server of logins."""

    settings: Section | None
    node: NodeSettings
    log: LogSettings
    data_dir: Path
    listening: Mapping[str, Address]
    advertised: Mapping[str, Address]
    takes_oauth: bool = False


class SbpPlace(Struct, frozen=True):
    """Where other programs read the node's streams over SBP, beside the node; nothing when that is not open to them.

    ``pd``: addresses of the placement driver's nodes, which lead to the range servers; a host of a wildcard means the
    host by which the node is reached. ``identity`` is what the placement driver has to say of itself, empty if it says
    nothing. ``tls`` tells whether these addresses want TLS, ``tickets`` whether what listens there wants those that
    :attr:`NodeServices.tickets` makes.
    """

    pd: tuple[Address, ...]
    dialect: str
    flavor: str
    tls: bool
    identity: str
    tickets: bool = False


class NodeServices(Struct, frozen=True):
    """What a node gives a front. Everything here may be used from :meth:`Front.start` until the end of ``stop``."""

    settings: Section | None
    """The front's own section; see :meth:`section`."""
    limits: LimitSettings
    node_id: int
    rack: str
    cluster_id: str
    """22 characters that stay the same for the life of the data."""
    data_dir: Path
    catalog: Catalog
    logs: Logs
    owners: Ownership
    """Which node owns which partition, and coordinates what."""
    peers: Others
    """How the other nodes are asked, and answered."""
    appends: Appends
    """Appends to partitions wherever they are, for what comes to a node that does not own them."""
    progress: FrontProgress
    """Positions of this front's groups."""
    db: Database
    """The node's database, for the front's own tables."""
    works: SlicedWorks
    """Where long work on records is done in slices."""
    translator: Translator
    budget: MemoryBudget
    """The one bound on memory for all fronts: requests in flight, unsent answers, reads."""
    authenticator: Authenticator
    """Tells who has a name and password, or a token; whether clients of a listener must have them (``required_at``)."""
    authorizer: Authorizer
    """To be asked on every operation."""
    access_rules: AccessRules | None
    """Who may do what; None where everybody may do everything."""
    client_quotas: ClientQuotas
    """How much whom may do, as it is kept."""
    quotas: Quotas
    """The same as it is kept to: to be asked before what a client sends is taken, and what it wants is read."""
    metrics: FrontMetrics
    barrier: Barrier
    """Through which others' callbacks are called."""
    every: Callable[[int, Callable[[int], Awaitable[object]], str], None]
    """``every(interval_ms, chore, what)``: have ``chore`` called with the wall clock (ms) until the node stops."""
    rounds: Callable[[str], Rounds[Any]]
    """``rounds(what)``: for chores over many, of which none is to hold up the others; ends with the chores."""
    is_kept: Callable[[Topic], bool]
    """Whether retention of any kind must not act on a topic now, since a migration is bringing it or only just did."""
    advertised: Callable[[str], Address | None]
    """The address clients of a listener are told; None: that which the client itself connected to."""
    own_names: Callable[[str], OwnNames]
    """By which names the clients of a listener of HTTP may ask for it."""
    tls: Callable[[str], ssl.SSLContext | None]
    """What a listener is to be opened with (``ssl`` of asyncio's ``create_server``); None: without TLS."""
    sbp: Callable[[], SbpPlace]
    """Where other programs find the streams of partitions, for fronts that lead their clients there."""
    tickets: TicketOffice | None
    """Makes what these have to show there; None where they need nothing."""

    def section(self, kind: type[S]) -> S:
        """The front's settings, which are of the class it declared."""
        if not isinstance(self.settings, kind):
            raise TypeError(f"the front's settings are a {type(self.settings).__name__}, not a {kind.__name__}")
        return self.settings


class Front(ABC):
    """One protocol, served on one or more listeners. What it brings besides code stands in class attributes."""

    name: ClassVar[str]
    """Short name of the protocol: its section of settings, part of its tables' names, label in metrics and logs."""
    listeners: ClassVar[Sequence[Listener]]
    settings: ClassVar[type[Section] | None] = None
    """The section of settings named like the front; all its fields have defaults."""
    connection_bounds: ClassVar[Sequence[str]] = ()
    """Those of its settings that bound connections: they are lowered where the system has too few descriptors."""
    formats: ClassVar[Sequence[StoredFormat]] = ()
    """Stored formats that come with it (numbers 8 to 15)."""
    ledger_rules: ClassVar[Mapping[int, Rule]] = {}
    """How the ledger decides for kinds of writers that only it has, by the kinds that its stamps name (128 to 255)."""
    migrations: ClassVar[Sequence[Callable[[Connection], None]]] = ()
    """Its tables in the node's database: ``migrations[i]`` brings their version ``i`` to ``i + 1``. Names of tables
    and indexes begin with ``front_NAME_``. Never change one that was released: append."""
    erasers: ClassVar[Sequence[Callable[[Connection, str], None]]] = ()
    """What to remove of a topic, by its name: called inside the transaction that deletes it, also when the front's
    listeners are off."""
    checks: ClassVar[Sequence[Callable[[Connection, NodeFacts], Iterator[Finding]]]] = ()
    """What ``anabranch doctor`` finds in the node's database, which it only reads; also of a node that does not run."""
    names: ClassVar[Names | None] = None
    """What its protocol calls topics, where that is not what Kafka does: ``catalog.by_name(NAME, own)`` finds one."""
    group_space: ClassVar[str] = CONSUMERS
    """With whom it shares groups: those of one space and name are the same group in every protocol."""

    @classmethod
    def node_configuration(cls, facts: NodeFacts) -> Mapping[str, str]:
        """Node-level configuration keys, as admin tools ask for them, that the settings determine."""
        return {}

    @abstractmethod
    def __init__(self, node: NodeServices) -> None:
        """Called on the event loop when logs and catalog can be used; does nothing yet that must be undone."""

    @abstractmethod
    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        """Listen on the given addresses, by name; returns the real ones (ports chosen). Raises OSError if one is taken.

        Besides the front's own listeners there may be further ones of their kinds (:func:`listener_kind`). What clients
        are told of where to go is the address of the listener that they came by.
        """

    @abstractmethod
    async def drain(self) -> None:
        """Accept nothing new and return when everything in flight is answered. May be cancelled after a time."""

    @abstractmethod
    async def stop(self) -> None:
        """Close every connection and release everything. Called once, also when ``start`` failed."""

    @property
    def groups(self) -> GroupDirectory | None:
        """The groups that live in this front; None while it is not started, and where a protocol has none."""
        return None

    @property
    def jobs(self) -> JobDirectory | None:
        """The jobs that tell this front of themselves; None while it is not started, and where there are none."""
        return None

    @property
    def transactions(self) -> TransactionDirectory | None:
        """The transactional ids that this front coordinates, whose names are those of all fronts, as groups' are; None
        while it is not started, and where a protocol has none."""
        return None


def installed() -> tuple[type[Front], ...]:
    """The fronts that are installed, by name. Raises FrontError."""
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
    """Whether fronts go together with each other and with a node's own sections and listeners. Raises FrontError."""
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
    """The directories of those fronts that have one now, by the front's name."""
    return {front.name: directory for front in fronts if (directory := front.groups) is not None}
