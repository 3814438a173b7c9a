"""Owners of segments in a cluster: only a segment's owner appends to it and reads it for clients.

A stream's segment belongs to the owner of its partition. Segments beside it (of a transaction, a large event or
watermarks) always have the same owner (:class:`bridges.catalog.topics.topic.Beside`), because clients expect them where
their parent is. Tables are in the database, so any node serves them. The controller names its own node for them: Rust's
client asks only once in its life where a table is.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec import Struct

from bridges.catalog.topics.topic import Beside
from bridges.cluster.at_owner import at_owner, find_owner, patiently
from bridges.errors import NotOwner

if TYPE_CHECKING:
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Others, Ownership

_NAMED = "pravega segment"
PATIENCE_S = 10.0
"""How long a request waits for a slot to get an owner. Java's client retries after 1, 10, 100, 1000 and 10,000 ms, so
waiting for the owner is better than a quick refusal."""
_TRIES = 1000
_ANSWER_S = 1.0
_ALIVE = "pravega are you there"


class Alive(Struct):
    """Liveness probe of the owner of a slot, and its answer; -1 of former releases is any node."""

    slot: int = -1


class Owners:
    """Owners of the slots of a cluster."""

    def __init__(self, owners: Ownership, node_id: int, peers: Others) -> None:
        self._owners = owners
        self._node_id = node_id
        self._peers = peers
        self.is_stopping = False
        """Whether the node's listeners are closed, or about to be."""
        peers.serve(_ALIVE, Alive, self._answer)

    async def _answer(self, question: Alive) -> Alive:
        # A node that stops answers other nodes for longer than it listens. The asker may not know yet that it has
        # handed over the slot.
        if self.is_stopping or (question.slot >= 0 and not self._owners.is_mine(question.slot)):
            raise NotOwner("what is asked for", -1)
        return question

    @property
    def nodes(self) -> list[Member]:
        """Return all nodes that serve, this one included."""
        return list(self._owners.nodes)

    @property
    def mine(self) -> Collection[int]:
        """Return the slots that this node acts for now."""
        return self._owners.mine

    def slot_of(self, topic: str, partition: int) -> int:
        return self._owners.slot_of(topic, partition)

    def beside_own(self) -> Beside | None:
        """Return a placement for a new topic in a slot of this node; None if no such slot was found."""
        for _ in range(_TRIES):
            key = uuid.uuid4().hex
            if self._owners.is_mine(self._owners.slot_of_key(_NAMED, key)):
                return Beside(f"{_NAMED}\0{key}".encode(), (0,))  # hashes to the same slot
        return None

    def is_mine(self, topic: str, partition: int) -> bool:
        """Return whether this node owns a partition."""
        return self._owners.is_mine(self._owners.slot_of(topic, partition))

    async def require(self, slot: int, what: str) -> None:
        """Raise NotOwner unless this node acts for a slot. Waits while the slot has no owner."""

        async def find() -> Member | None:
            return find_owner(self._owners, slot, what)

        owner = await patiently(find, PATIENCE_S if slot >= 0 else 0)
        if owner is not None:
            raise NotOwner(what, owner.node_id)

    async def find_reachable(self, slot: int) -> Member | None:
        """Return the owner of a slot once it has just answered; None if it is this node, or for a negative slot, which
        nobody has. Rust's client asks once where a segment is and retries there for ever, so it must not get the
        address of a node that has just stopped, or is about to. Raises NotOwner or PeerUnreachable, which clients
        retry, after :data:`PATIENCE_S`."""

        async def here() -> None:
            return None

        async def probe(owner: Member) -> Member:
            await self._peers.ask(owner, _ALIVE, Alive(slot), Alive, _ANSWER_S)
            return owner

        if slot < 0:
            return None
        return await at_owner(self._owners, lambda: slot, here, probe, PATIENCE_S)

    def address(self, member: Member, listener: str) -> tuple[str, int] | None:
        """Return the address for clients of another node's listener; None if it has no listener of that name."""
        address = None if member.node_id == self._node_id else member.address(listener, socket.gethostname())
        return None if address is None else (address.host, address.port)

    def find(self, node_id: int, listener: str) -> tuple[str, int] | None:
        """Return the address for clients of a node's listener, by the node's id; None if it is not known."""
        found = next((one for one in self.nodes if one.node_id == node_id), None)
        return None if found is None else self.address(found, listener)
