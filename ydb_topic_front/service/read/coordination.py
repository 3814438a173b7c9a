"""Each consumer is coordinated by one node: the owner of the slot that its name lies in, as Kafka's groups are.

There its partitions are shared out, and its positions are stored. Sessions that come elsewhere are passed on to it;
when the slot goes to another node they end, and their clients come again and find that one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from anabranch_kit.run.turns import in_turns
from bridges.cluster.forwarded_grpc import Opening
from bridges.cluster.owned import OwnedNames
from ydb_topic_front.wire.statuses import Status, YdbError

if TYPE_CHECKING:
    from bridges.catalog.group_view import Place
    from bridges.cluster.ownership import Ownership
    from bridges.net.grpc_server import GrpcCall
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.forwarding import Forwarding
    from ydb_topic_front.service.read.readers import Readers

_KNOWN_S = 10.0
"""So long a session waits until this node has read what the consumer's former one has stored."""
_LOOK_S = 0.02
_FORGET = "forget positions"
"""A call between nodes: a consumer and places, in JSON."""


class Coordination(OwnedNames):
    """Of which consumers this node is the coordinator."""

    what = "consumer"

    def __init__(self, service: YdbService, readers: Readers, owners: Ownership, forwarding: Forwarding) -> None:
        super().__init__(owners)
        self._readers = readers
        self._progress = service.node.progress
        self._progress.holding = self.holding
        self._forwarding = forwarding
        forwarding.led_call(_FORGET, lambda raw: self.finding(json.loads(raw)[0]))(self._forgotten)

    def slot(self, name: str) -> int:
        return self._owners.slot_of_key(self._progress.space, name)

    def finding(self, consumer: str) -> Callable[[], int]:
        """How a consumer's slot is found."""
        return lambda: self.slot(consumer)

    def is_elsewhere(self, consumer: str) -> bool:
        """Whether another node coordinates it."""
        return not self._owners.is_mine(self.slot(consumer))

    async def read(self, wanted: Callable[[str], bool]) -> None:
        await self._progress.reload(wanted)

    async def give_up(self, slots: Collection[int], in_order: bool) -> None:
        async for consumer in in_turns(self._readers.consumers()):
            if self.slot(consumer) in slots:
                self._readers.end_all(consumer, _elsewhere(consumer))
        if in_order:
            await self._progress.settled()

    async def known(self, consumer: str) -> None:
        """Return when all that is stored of a consumer is known here. Raises YdbError where it is not this node's."""
        until = asyncio.get_running_loop().time() + _KNOWN_S
        while not self.owns(consumer):
            if self.is_elsewhere(consumer) or asyncio.get_running_loop().time() > until:
                raise _elsewhere(consumer)
            await asyncio.sleep(_LOOK_S)

    def require(self, consumer: str) -> None:
        """Raises YdbError where this node does not coordinate the consumer, or not any more."""
        if not self.owns(consumer):
            raise _elsewhere(consumer)

    async def forget(self, consumer: str, places: Iterable[Place]) -> None:
        """Delete a consumer's positions, where they are known. Raises LogError, GrpcRefusal."""
        raw = json.dumps([consumer, list(places)]).encode()
        opening = Opening(_FORGET, {}, "", "", "")
        if await self._forwarding.ask(self.finding(consumer), opening, raw) is None:
            await self._delete(raw)

    async def _forgotten(self, raw: bytes, call: GrpcCall) -> bytes:
        await self._delete(raw)
        return b""

    async def _delete(self, raw: bytes) -> None:
        consumer, places = json.loads(raw)
        await self._progress.delete(consumer, [(topic, partition) for topic, partition in places])


def _elsewhere(consumer: str) -> YdbError:
    return YdbError(Status.UNAVAILABLE, f"another node coordinates the consumer '{consumer}' now")
