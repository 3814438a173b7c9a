"""Coordination of consumers: the owner of the slot that a consumer's name hashes to is its coordinator, as for Kafka's
groups.

The coordinator shares out the consumer's partitions and stores its positions. Sessions that connect to another node are
forwarded to it. When the slot moves to another node these sessions end, and their clients reconnect and are forwarded
to the new coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.run.turns import in_turns
from bridges.cluster.at_owner import at_owner
from bridges.cluster.owned import OwnedNames, Wanted
from ydb_topic_front.wire.statuses import Status, YdbError

if TYPE_CHECKING:
    from bridges.cluster.ownership import Others, Ownership
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.read.readers import Readers

_KNOWN_S = 10.0
"""How long a session waits for this node to read the positions that the consumer's former coordinator stored."""
_LOOK_S = 0.02
_FORGET = "ydb positions"


class Forget(Struct, frozen=True):
    """Request to a consumer's coordinator to delete its positions in partitions of a topic."""

    consumer: str
    topic: str
    partitions: list[int]


class Forgotten(Struct, frozen=True):
    """Answer to :class:`Forget`: the positions are deleted."""


class Coordination(OwnedNames):
    """The consumers that this node coordinates."""

    what = "consumer"

    def __init__(self, service: YdbService, readers: Readers, owners: Ownership, peers: Others) -> None:
        super().__init__(owners)
        self._readers = readers
        self._progress = service.node.progress
        self._progress.holding = self.holding
        self._peers = peers
        peers.serve(_FORGET, Forget, self._forget_here)

    def slot(self, name: str) -> int:
        return self._owners.slot_of_key(self._progress.space, name)

    def finding(self, consumer: str) -> Callable[[], int]:
        """Return a function that finds the consumer's slot."""
        return lambda: self.slot(consumer)

    def is_elsewhere(self, consumer: str) -> bool:
        """Return whether another node coordinates the consumer."""
        return not self._owners.is_mine(self.slot(consumer))

    async def read(self, wanted: Wanted) -> None:
        await self._progress.reload(wanted, wanted.slots)

    async def give_up(self, slots: Collection[int], in_order: bool) -> None:
        async for consumer in in_turns(self._readers.consumers()):
            if self.slot(consumer) in slots:
                self._readers.end_all(consumer, _elsewhere(consumer))
        if in_order:
            await self._progress.await_writes()

    async def await_known(self, consumer: str) -> None:
        """Wait until this node has read everything that is stored of a consumer. Raises YdbError if it does not
        coordinate it."""
        until = asyncio.get_running_loop().time() + _KNOWN_S
        while not self.owns(consumer):
            if self.is_elsewhere(consumer) or asyncio.get_running_loop().time() > until:
                raise _elsewhere(consumer)
            await asyncio.sleep(_LOOK_S)

    def require(self, consumer: str) -> None:
        """Raise YdbError unless this node coordinates the consumer."""
        if not self.owns(consumer):
            raise _elsewhere(consumer)

    async def forget(self, asked: Forget) -> None:
        """Delete positions of a consumer, at whichever node coordinates it. Raises LogError."""
        await at_owner(
            self._owners,
            self.finding(asked.consumer),
            lambda: self._forget_here(asked),
            lambda owner: self._peers.ask(owner, _FORGET, asked, Forgotten),
        )

    async def _forget_here(self, asked: Forget) -> Forgotten:
        await self._progress.delete(asked.consumer, [(asked.topic, number) for number in asked.partitions])
        return Forgotten()


def _elsewhere(consumer: str) -> YdbError:
    return YdbError(Status.UNAVAILABLE, f"another node coordinates the consumer '{consumer}' now")
