"""The contract for backends that are not Anabranch's own (docs/sbp.md, "Backends of others").

A package brings them through the entry-point group ``anabranch.backends``: servers that keep a node's streams and are
chosen by ``sbp.flavor`` and ``sbp.dialect``, and listeners in dialects of its own over the servers inside a node.
Nothing else in this package knows which there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from msgspec import Struct

from bridges.entry_points import entry_points
from bridges.errors import LogError

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.topics import Catalog
    from bridges.log.logs import Logs
    from bridges.log.streams import Streams
    from sbp_back.client.client import Client, ClientOptions
    from sbp_back.client.leader import PdCarrier
    from sbp_back.embedded import Embedded
    from sbp_back.transport.serving import ListenAt
    from sbp_back.transport.tcp_carrier import Introduce, TcpOptions

ENTRY_POINTS = "anabranch.backends"
OURS = ("anabranch", "0.2")
"""Flavor and dialect of Anabranch's own servers."""


class Limit(Struct, frozen=True):
    """Something that is not promised; ``chosen`` if only because a setting gives it up."""

    sentence: str
    chosen: bool = False


class Servers(Struct, frozen=True):
    """Servers in other processes. ``addresses``: of placement drivers, "host:port", separated by commas."""

    addresses: str
    dialect: str
    flavor: str


def detached(logs: Logs) -> None:
    """Want nothing of the partition logs."""


class External(Struct):
    """``client`` asks ``pd``, and closes it. ``attach`` is called with a node's partition logs, once there are some."""

    client: Streams
    pd: PdCarrier
    attach: Callable[[Logs], None] = detached


class Connecting(Struct, frozen=True):
    """How servers are reached. ``introduce`` looks at each connection to a placement driver; ``identity`` is what range
    servers must tell."""

    tcp: TcpOptions
    introduce: Introduce | None
    identity: Callable[[], str]
    options: ClientOptions
    barrier: Barrier


class Inside(Struct, frozen=True):
    """A node whose own servers a backend opens to clients of its dialect. ``listen``: where, by listener."""

    embedded: Embedded
    catalog: Catalog
    logs: Logs
    listen: Mapping[str, ListenAt]


class Served(Protocol):
    """Listeners that a backend has opened."""

    @property
    def addresses(self) -> Mapping[str, tuple[str, int]]:
        """Where they listen, by name."""

    async def close(self) -> None:
        """Take no more clients, finish what is under way for a limited time, and stop. Idempotent."""


class Backend:
    """What a package brings of one kind of servers. The module of the class imports little."""

    speaks: ClassVar[tuple[str, str] | None] = None
    """The ``sbp.flavor`` and ``sbp.dialect`` of its servers; None: it is no client of any."""
    appends_move: ClassVar[bool] = True
    """Whether partitions take appends while the range server of the last ones is down."""
    limits: ClassVar[Sequence[Limit]] = ()
    """What a node does not promise on its servers, besides what it does not on others in other processes."""
    listeners: ClassVar[Mapping[str, int]] = {}
    """Listeners over the servers inside a node, and their usual ports: closed unless they are given an address."""

    def connect(self, servers: Servers, connecting: Connecting) -> External:
        """A client of ``servers``. Raises ``ValueError`` for addresses that are none."""
        raise NotImplementedError(f"{type(self).__name__} is no client of servers")

    def adapt(self, client: Client) -> None:
        """Have a client of Anabranch's own servers in other processes read what this backend's clients stored there."""

    async def serve(self, node: Inside) -> Served:
        """Open listeners, of those in ``listeners``. Raises ``OSError`` when an address is taken."""
        raise NotImplementedError(f"{type(self).__name__} serves no clients")


class BackendError(LogError):
    """A backend that is installed cannot be loaded."""


def installed() -> list[Backend]:
    """The backends that are installed, by name. Raises BackendError."""
    found: list[Backend] = []
    for point in entry_points(ENTRY_POINTS):
        try:
            kind = point.load()
        except (ImportError, AttributeError) as error:
            raise BackendError(f"the backend {point.name!r} ({point.value}) cannot be loaded: {error}") from error
        if not (isinstance(kind, type) and issubclass(kind, Backend)):
            raise BackendError(f"the backend {point.name!r}: {point.value} is no class of backends")
        found.append(kind())
    return found


def spoken() -> list[tuple[str, str]]:
    """Flavor and dialect of every kind of servers that a node can use."""
    return [OURS, *(kind.speaks for kind in installed() if kind.speaks is not None)]


def of_others(flavor: str, dialect: str) -> Backend | None:
    """The backend of such servers; None: they are Anabranch's own. Raises BackendError where none is installed."""
    if (flavor, dialect) == OURS:
        return None
    for kind in installed():
        if kind.speaks == (flavor, dialect):
            return kind
    raise BackendError(f"no backend is installed for sbp.flavor = {flavor} with sbp.dialect = {dialect}")


def connect(servers: Servers, connecting: Connecting) -> External:
    """A client of servers in other processes. Raises ``ValueError`` for addresses that are none, BackendError."""
    kind = of_others(servers.flavor, servers.dialect)
    if kind is not None:
        return kind.connect(servers, connecting)
    from sbp_back.client.client import Client
    from sbp_back.client.leader import pd_carrier
    from sbp_back.transport.tcp_carrier import tcp_connector
    from sbp_back.wire.identity import RangeServerCheck

    tcp, barrier = connecting.tcp, connecting.barrier
    pd = pd_carrier(servers.addresses, None, tcp, connecting.introduce, barrier)
    check = RangeServerCheck(strangers=False, identity=connecting.identity)
    client = Client(pd, tcp_connector(tcp, check, barrier), connecting.options, barrier)
    for one in installed():
        one.adapt(client)
    return External(client, pd)
