"""Committed positions of a group that another node coordinates.

A group may move to another node between a client's JoinGroup and its OffsetFetch. librdkafka never asks again for
positions that were refused with NOT_COORDINATOR, and reads nothing of these partitions until the next rebalance. So the
node that is asked asks the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from bridges.catalog.progress import Committed
from bridges.cluster.at_owner import at_owner
from bridges.errors import LogError, NotOwner
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.views.groups import Place
    from bridges.cluster.ownership import Others, Ownership
    from kafka_front.service.groups.owned import OwnedGroups

MOST = 2_000
"""Most partitions in a message. Who asks for more must ask the coordinator itself."""
_KIND = "kafka positions"
_PATIENCE_S = 5.0
"""Seconds to wait for a coordinator. Other requests of the client wait behind this one."""


Rows = Sequence[tuple[str, int, Committed, int]]
"""Topic, partition, its position and its error."""


class Question(Struct, array_like=True, frozen=True):
    """A question for positions, of ``topics`` (None: all). ``member_id`` and ``epoch`` are what the client claims."""

    group: str
    topics: Sequence[tuple[str, Sequence[int]]] | None
    require_stable: bool
    member_id: str | None = None
    epoch: int = -1


class Found(Struct, array_like=True, frozen=True):
    """The answer: the code of a KafkaError, or rows."""

    code: int
    rows: Rows = ()


class PositionsElsewhere:
    """Asks other nodes for positions, and answers for the groups of this node by ``look``, which raises KafkaError."""

    def __init__(self, owned: OwnedGroups, owners: Ownership, peers: Others, look: Callable[[Question], Rows]) -> None:
        self._owned = owned
        self._owners = owners
        self._peers = peers
        self._look = look
        peers.serve(_KIND, Question, self._answer)

    async def find(self, asked: Question) -> Mapping[Place, tuple[Committed, int]] | None:
        """Return a group's positions and errors of partitions from its coordinator; None: this node is it. Raises
        KafkaError."""
        try:
            self._owned.require(asked.group)
        except KafkaError as refused:
            if refused.code != ErrorCode.NOT_COORDINATOR or sum(len(some) for _, some in asked.topics or ()) > MOST:
                raise
            try:
                found = await at_owner(
                    self._owners,
                    lambda: self._owned.slot(asked.group),
                    lambda: self._answer(asked),
                    lambda owner: self._peers.ask(owner, _KIND, asked, Found),
                    _PATIENCE_S,
                )
            except LogError:
                raise refused from None
            if found.code:
                raise KafkaError(found.code) from None
            return {(topic, partition): (position, error) for topic, partition, position, error in found.rows}
        return None

    async def _answer(self, asked: Question) -> Found:
        try:
            self._owned.require(asked.group)
        except KafkaError as refused:
            raise NotOwner(f"group {asked.group!r}", -1) from refused
        try:
            return Found(0, self._look(asked))
        except KafkaError as refused:
            return Found(refused.code)
