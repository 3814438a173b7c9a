"""What the rest of a node asks about who owns what.

A node by itself is a cluster of one (:mod:`bridges.cluster.alone`). Nothing of this is asked for an append: a log asks
when it is opened, and is closed when its slot is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from bridges.cluster.members import Member, State
from bridges.errors import NotOwner

if TYPE_CHECKING:
    from bridges.catalog.sql import Connection
    from bridges.cluster.keeper import Keeper
    from bridges.cluster.peer_stream import PeerStream

Q = TypeVar("Q", bound=Struct)
A = TypeVar("A", bound=Struct)

Lost = Callable[[Collection[int], bool], Awaitable[None]]
"""Called with slots that this node acts for no more; the second argument is true when they are about to be handed over:
then it returns when nothing of theirs is under way here."""
Gained = Callable[[Collection[int]], None]
"""Called with slots that this node acts for from now on."""
Gone = Callable[[], None]
"""Called when members have ended for good: what only they could serve is served by others now."""


class Ownership(Protocol):
    """Who owns partitions, and coordinates what has one coordinator (groups, transactional ids)."""

    on_lost: list[Lost]
    on_gained: list[Gained]
    on_gone: list[Gone]

    @property
    def nodes(self) -> Sequence[Member]:
        """Those that serve, in the order of their ids."""
        ...

    async def known(self) -> None:
        """Return when this node has seen at its start who owns what; from then on at once. Clients that are told
        before that there is nobody believe it for long."""
        ...

    def slot_of(self, topic: str, partition: int) -> int:
        """The slot of a partition; -1 of an unknown topic."""
        ...

    def slot_of_key(self, kind: str, key: str) -> int:
        """The slot of what has one coordinator, by its ``kind`` (of what, a front's own word) and name."""
        ...

    def owner(self, slot: int) -> Member | None:
        """Who acts for a slot, as far as is known here; None: nobody does."""
        ...

    def is_heard(self, member: Member) -> bool:
        """Whether a member has shown a moment ago that it lives."""
        ...

    def is_mine(self, slot: int) -> bool:
        """Whether this node acts for it."""
        ...

    @property
    def mine(self) -> Collection[int]:
        """The slots that this node acts for now."""
        ...

    @property
    def is_sure(self) -> bool:
        """Whether nobody can have taken over from this node: so recently was it heard of."""
        ...

    async def sure(self) -> None:
        """Return when what this node owns was still its own after this was asked. Raises NotOwner where that cannot be
        found out for a lease: clients are to ask others, or again."""
        ...

    def epoch(self, slot: int) -> int:
        """The epoch in which its owner has it, as far as is known here."""
        ...

    def holding(self, slot: int) -> Callable[[Connection], None]:
        """What a transaction of the node's database calls first that is the owner's of a slot to make: it raises
        NotOwner where this start of the node is not, and lets nobody become it before the transaction has ended."""
        ...

    async def raise_epoch(self, slot: int) -> int:
        """A higher epoch for a slot of this node. Raises NotOwner, and errors of the database."""
        ...


class Membership(Ownership, Protocol):
    """A node's part in its cluster: what the node itself asks beside who owns what."""

    @property
    def node_id(self) -> int: ...
    @property
    def keeper(self) -> Keeper:
        """What is known of the members. Raises CannotMove where there is no cluster."""

    async def join(self, server_id: int, addresses: Mapping[str, str], rack: str) -> None: ...
    async def await_owners(self, seconds: float) -> None: ...
    async def drain(self, node_id: int) -> None: ...
    async def undrain(self, node_id: int) -> None: ...
    async def move(self, slots: Collection[int], node_id: int) -> None: ...
    async def unpin(self, slots: Collection[int] | None = None, node_id: int | None = None) -> None: ...
    async def leave(self, seconds: float) -> None: ...
    async def retire(self, seconds: float) -> None: ...
    async def close(self) -> None: ...


class Others(Protocol):
    """How other nodes are asked, and answered (see :class:`bridges.cluster.peers.Peers`)."""

    def serve(self, kind: str, message: type[Q], answer: Callable[[Q], Awaitable[Struct]]) -> None: ...
    def serve_stream(self, kind: str, opening: type[Q], serve: Callable[[Q, PeerStream], Awaitable[None]]) -> None: ...
    async def ask(self, member: Member, kind: str, message: Struct, answer: type[A], patience_s: float = ...) -> A: ...
    async def stream(self, member: Member, kind: str, opening: Struct) -> PeerStream: ...
    def left_stream(self, member: Member, stream: PeerStream) -> None: ...
    async def drain(self) -> None: ...
    async def close(self) -> None: ...


SERVING = frozenset({State.UP, State.LEAVING})
"""What members do of which clients are told."""

PATIENCE_S = 15.0
"""So long it is waited for somebody to own something: who ends without a word is followed within a lease."""
_LOOK_S = 0.05


async def owner_of(
    owners: Ownership, node_id: int, slot: Callable[[], int], patience_s: float = PATIENCE_S
) -> Member | None:
    """Who owns a slot, which is asked for again and again, as soon as somebody serves it; None: this node does.

    That node may have ended a moment ago: then it is unreachable, and whoever asks comes back here. Raises NotOwner
    when nobody has it for so long.
    """
    until = time.monotonic() + patience_s
    while True:
        number = slot()
        if owners.is_mine(number):
            return None
        owner = owners.owner(number)
        if owner is not None and owner.state in SERVING and owner.node_id != node_id:
            return owner
        if time.monotonic() > until:
            raise NotOwner("what is asked for", -1)
        await asyncio.sleep(_LOOK_S)
