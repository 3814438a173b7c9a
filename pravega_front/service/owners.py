"""Whose a segment is, where several nodes share the work: its owner alone appends to it and reads it for clients.

A partition of a stream is its owner's. What is written beside it, for a transaction, as a large event or as watermarks,
has the same owner always (:class:`bridges.catalog.topic.Beside`), as clients take it to be where its parent is. Tables
lie in the database, so any node answers for them, and clients find them where they have found the controller: Rust's
ask only once where a table is, for as long as they live.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec import Struct

from bridges.catalog.topic import Beside
from bridges.cluster.ownership import SERVING
from bridges.errors import LogError, NotOwner

if TYPE_CHECKING:
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Others, Ownership

_NAMED = "pravega segment"
PATIENCE_S = 10.0
"""So long it is waited for somebody to own something. Java's client comes again after 1, 10, 100, 1000 and 10,000 ms,
so it is worth more to wait for the owner than to be quick."""
_LOOK_S = 0.05
_TRIES = 1000
_ANSWER_S = 1.0
_ALIVE = "pravega are you there"
LISTENER = "cluster"
"""What nodes ask each other by (:mod:`bridges.cluster.peers`, which only members of a cluster import)."""


class _Alive(Struct):
    """A question and its answer."""


async def _alive(question: _Alive) -> _Alive:
    return question


class Owners:
    """The owners of a cluster."""

    def __init__(self, owners: Ownership, node_id: int, peers: Others) -> None:
        self._owners = owners
        self._node_id = node_id
        self._peers = peers
        peers.serve(_ALIVE, _Alive, _alive)

    @property
    def nodes(self) -> list[Member]:
        """The nodes that serve, this one among them."""
        return list(self._owners.nodes)

    @property
    def mine(self) -> Collection[int]:
        """The slots that this node acts for now."""
        return self._owners.mine

    def slot_of(self, topic: str, partition: int) -> int:
        """The slot of a partition."""
        return self._owners.slot_of(topic, partition)

    def beside_own(self) -> Beside | None:
        """Where a topic lies that is to be this node's; None if this node owns nothing."""
        for _ in range(_TRIES):
            key = uuid.uuid4().hex
            if self._owners.is_mine(self._owners.slot_of_key(_NAMED, key)):
                return Beside(f"{_NAMED}\0{key}".encode(), (0,))  # which gives the same slot
        return None

    def is_this(self, member: Member) -> bool:
        """Whether it is this node."""
        return member.node_id == self._node_id

    def is_mine(self, topic: str, partition: int) -> bool:
        """Whether this node owns a partition."""
        return self._owners.is_mine(self._owners.slot_of(topic, partition))

    async def require(self, slot: int, what: str) -> None:
        """Raise NotOwner unless this node acts for a slot. While nobody does, it is waited for."""
        owner = await self.settled(slot)
        if not self._owners.is_mine(slot):
            raise NotOwner(what, -1 if owner is None or owner.node_id == self._node_id else owner.node_id)

    async def settled(self, slot: int) -> Member | None:
        """Who acts for a slot; None: nobody for long. While nobody seems to, or it was not
        heard of a moment ago, it is waited for."""
        owners = self._owners
        if slot < 0:
            return None  # of a topic that is gone there is nothing to wait for
        until = time.monotonic() + PATIENCE_S
        while True:
            owner = owners.owner(slot)
            if owner is not None and self._acts(owners, owner, slot):
                return owner
            if time.monotonic() > until:
                return owner
            await asyncio.sleep(_LOOK_S)

    async def reached(self, slot: int) -> Member | None:
        """As :meth:`settled`, of an owner that has just answered. Rust's clients ask once where a segment is and go
        there for as long as it takes, so they are not to be told of one that has just ended."""
        until = time.monotonic() + PATIENCE_S
        while True:
            owner = await self.settled(slot)
            if owner is None or self.is_this(owner) or await self._answers(owner) or time.monotonic() > until:
                return owner
            await asyncio.sleep(_LOOK_S)

    async def _answers(self, member: Member) -> bool:
        if LISTENER not in member.addresses:
            return True  # nothing is known of it but its heartbeats
        try:
            await self._peers.ask(member, _ALIVE, _Alive(), _Alive, _ANSWER_S)
        except LogError:
            return False
        return True

    def _acts(self, owners: Ownership, owner: Member, slot: int) -> bool:
        if owner.node_id == self._node_id:
            return owners.is_mine(slot)
        return owner.state in SERVING and owners.is_heard(owner)

    def address(self, member: Member, listener: str) -> tuple[str, int] | None:
        """Where clients are told that a listener of another node is; None if it has none of that name."""
        address = None if member.node_id == self._node_id else member.address(listener, socket.gethostname())
        return None if address is None else (address.host, address.port)

    def find(self, node_id: int, listener: str) -> tuple[str, int] | None:
        """As :meth:`address`, by the node's id."""
        found = next((one for one in self.nodes if one.node_id == node_id), None)
        return None if found is None else self.address(found, listener)
