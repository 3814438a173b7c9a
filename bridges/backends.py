"""The contract for backends other than Anabranch's own (docs/sbp.md, "Backends of others").

A package registers a backend in the entry-point group ``anabranch.backends``. A backend brings servers that store a
node's streams, chosen by ``sbp.flavor`` and ``sbp.dialect``, and listeners that speak its dialect to the servers inside
a node. The rest of this package does not know which backends there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from msgspec import Struct

from bridges.entry_points import entry_points
from bridges.errors import LogError

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.topics.catalog import Catalog
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
    """A promise that a node does not make. ``chosen``: only because a setting gives it up."""

    sentence: str
    chosen: bool = False


class Servers(Struct, frozen=True):
    """Servers in other processes. ``addresses``: of placement drivers, "host:port", separated by commas."""

    addresses: str
    dialect: str
    flavor: str


def detached(logs: Logs) -> None:
    """Do nothing with the partition logs."""


class External(Struct):
    """A client of servers in other processes. ``client`` uses ``pd``, and closes it.

    ``attach`` is called with a node's partition logs once they exist.
    """

    client: Streams
    pd: PdCarrier
    attach: Callable[[Logs], None] = detached


class Connecting(Struct, frozen=True):
    """The options for connections to servers.

    ``introduce`` checks each new connection to a placement driver; ``identity`` returns the identity that range servers
    must report.
    """

    tcp: TcpOptions
    introduce: Introduce | None
    identity: Callable[[], str]
    options: ClientOptions
    barrier: Barrier


class Inside(Struct, frozen=True):
    """A node whose own servers a backend opens to clients of its dialect. ``listen``: addresses by listener."""

    embedded: Embedded
    catalog: Catalog
    logs: Logs
    listen: Mapping[str, ListenAt]


class Served(Protocol):
    """The open listeners of a backend."""

    @property
    def addresses(self) -> Mapping[str, tuple[str, int]]:
        """Return the bound host and port of each listener."""

    async def close(self) -> None:
        """Accept no more clients, finish requests in progress for a limited time, and stop. Idempotent."""


class Backend:
    """The base of a package's backend, for one kind of servers. The module of the class should import little."""

    speaks: ClassVar[tuple[str, str] | None] = None
    """The ``sbp.flavor`` and ``sbp.dialect`` of its servers; None if it has no client."""
    appends_move: ClassVar[bool] = True
    """Whether partitions accept appends while the range server of the last appends is down."""
    limits: ClassVar[Sequence[Limit]] = ()
    """Promises that a node does not make on these servers, besides those it makes on no servers in other processes."""
    listeners: ClassVar[Mapping[str, int]] = {}
    """Listeners for the servers inside a node, with their default ports; closed unless an address is set."""

    def connect(self, servers: Servers, connecting: Connecting) -> External:
        """Return a client of ``servers``. Raises ``ValueError`` for invalid addresses."""
        raise NotImplementedError(f"{type(self).__name__} is no client of servers")

    def adapt(self, client: Client) -> None:
        """Let a client of Anabranch's own servers in other processes read what this backend's clients stored there."""

    async def serve(self, node: Inside) -> Served:
        """Open the listeners of ``node.listen``. Raises ``OSError`` when an address is taken."""
        raise NotImplementedError(f"{type(self).__name__} serves no clients")


class BackendError(LogError):
    """An installed backend cannot be loaded, or no backend is installed for the settings."""


def installed() -> list[Backend]:
    """Return the installed backends, sorted by entry-point name. Raises BackendError."""
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
    """Return flavor and dialect of every kind of servers that a node can use."""
    return [OURS, *(kind.speaks for kind in installed() if kind.speaks is not None)]


def of_others(flavor: str, dialect: str) -> Backend | None:
    """Return the backend of such servers, None for Anabranch's own. Raises BackendError if none is installed."""
    if (flavor, dialect) == OURS:
        return None
    for kind in installed():
        if kind.speaks == (flavor, dialect):
            return kind
    raise BackendError(f"no backend is installed for sbp.flavor = {flavor} with sbp.dialect = {dialect}")


def connect(servers: Servers, connecting: Connecting) -> External:
    """Return a client of servers in other processes. Raises ``ValueError`` for invalid addresses, and BackendError."""
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
