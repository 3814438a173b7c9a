"""The interfaces through which the rest of a node learns about ownership.

A single node is a cluster of one (:mod:`bridges.cluster.alone`). An append asks nothing here: a log asks when it is
opened, and is closed when its slot is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from bridges.cluster.members import Member, State

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection
    from bridges.cluster.keeper import Keeper
    from bridges.cluster.peers.stream import PeerStream

Q = TypeVar("Q", bound=Struct)
A = TypeVar("A", bound=Struct)

Lost = Callable[[Collection[int], bool], Awaitable[None]]
"""Called with slots for which this node does not act any more. The second argument is true when they are about to be
handed over: then it must return only when nothing of theirs is in flight here.
"""
Gained = Callable[[Collection[int]], None]
"""Called with slots for which this node acts from now on."""
Gone = Callable[[], None]
"""Called when members have been removed for good: other members serve now what only they could serve."""


class Ownership(Protocol):
    """The owners of partitions, and the coordinators of groups and transactional ids."""

    on_lost: list[Lost]
    on_gained: list[Gained]
    on_gone: list[Gone]

    @property
    def node_id(self) -> int: ...
    @property
    def nodes(self) -> Sequence[Member]:
        """The serving members, sorted by node id."""
        ...

    async def await_known(self) -> None:
        """Return once this node has learned at its start who owns what; later, at once.

        Clients that are told earlier that there is no owner believe it for long.
        """
        ...

    def slot_of(self, topic: str, partition: int) -> int:
        """Return the slot of a partition, -1 for an unknown topic."""
        ...

    def slot_of_key(self, kind: str, key: str) -> int:
        """Return the slot of a coordinated name. ``kind`` is the front's word for what the name is of."""
        ...

    def owner(self, slot: int) -> Member | None:
        """Return the member that acts for a slot, as far as this node knows; None if there is none."""
        ...

    def is_mine(self, slot: int) -> bool:
        """Return whether this node acts for the slot."""
        ...

    @property
    def mine(self) -> Collection[int]:
        """The slots for which this node acts now."""
        ...

    @property
    def is_sure(self) -> bool:
        """Return whether no other node can have taken over from this one, because its last heartbeat is recent
        enough.
        """
        ...

    async def sure(self) -> None:
        """Return once it is certain that this node owned its slots at some time after the call.

        Raises NotOwner if that cannot be found out within a lease: clients should ask other nodes, or retry.
        """
        ...

    def epoch(self, slot: int) -> int:
        """Return the epoch in which its owner has the slot, as far as this node knows."""
        ...

    def holding(self, slot: int) -> Callable[[Connection], None]:
        """Return the check that a transaction must call first if only the owner of a slot may make it.

        The check raises NotOwner if this start of the node does not own the slot, and keeps other members from becoming
        the owner before the transaction has ended.
        """
        ...

    async def raise_epoch(self, slot: int) -> int:
        """Return a higher epoch for a slot of this node. Raises NotOwner, and errors of the database."""
        ...


class Outages(Struct, frozen=True):
    """The outages of a cluster as one node sees them.

    ``silent``: seconds since the last heartbeat of each other node, by node id; nodes that were taken for dead count
    until they come back. ``taken_over``: dead nodes whose log this node has taken over since its start. ``unowned``:
    slots without an owner.
    """

    silent: Mapping[int, float] = {}
    taken_over: int = 0
    unowned: int = 0


class Membership(Ownership, Protocol):
    """A node's part in its cluster: ownership, and what the node itself needs besides."""

    @property
    def keeper(self) -> Keeper:
        """The state of the members. Raises CannotMove without a cluster."""

    def outages(self) -> Outages: ...
    async def join(self, server_id: int, addresses: Mapping[str, str], rack: str) -> None: ...
    async def await_owners(self, seconds: float) -> None: ...
    async def drain(self, node_id: int) -> None: ...
    async def undrain(self, node_id: int) -> None: ...
    async def move(self, slots: Collection[int], node_id: int) -> None: ...
    async def unpin(self, slots: Collection[int] | None = None, node_id: int | None = None) -> None: ...
    async def leave(self, seconds: float) -> None: ...
    async def retire(self, seconds: float) -> None: ...


class Others(Protocol):
    """Requests to other nodes, and answers to theirs (see :class:`bridges.cluster.peers.peers.Peers`)."""

    def serve(self, kind: str, message: type[Q], answer: Callable[[Q], Awaitable[Struct]]) -> None: ...
    def serve_stream(self, kind: str, opening: type[Q], serve: Callable[[Q, PeerStream], Awaitable[None]]) -> None: ...
    async def ask(self, member: Member, kind: str, message: Struct, answer: type[A], patience_s: float = ...) -> A: ...
    async def stream(self, member: Member, kind: str, opening: Struct) -> PeerStream: ...
    def close_stream(self, member: Member, stream: PeerStream) -> None: ...
    async def drain(self) -> None: ...
    async def close(self) -> None: ...


SERVING = frozenset({State.UP, State.LEAVING})
"""States of members that clients are told about."""
