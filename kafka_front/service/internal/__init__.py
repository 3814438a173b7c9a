"""Kafka's internal topics, in which a broker's coordinators keep their state, for tools that read it there.

The state lies in the node's database. ``topic_copy`` copies it to a topic, which only nodes write to; ``offsets``,
``transactions`` and ``shares`` say what each topic has of it, in Kafka's record formats. A topic is made when a client
first asks for it by name: until then nothing is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from bridges.catalog.topics.topic import ChangeKind
from kafka_front.service.internal.offsets import GroupOffsets
from kafka_front.service.internal.shares import ShareState, share_name
from kafka_front.service.internal.topic_copy import Names, TopicCopy
from kafka_front.service.internal.transactions import TransactionState

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Change
    from bridges.cluster.members import Member
    from bridges.node.front import NodeServices
    from kafka_front.service.groups.share.service import ShareService
    from kafka_front.service.transactions.service import Transactions

_KIND = "kafka internal topic"


class Changed(Struct, array_like=True, frozen=True):
    """News for the owner of a partition of an internal topic: names whose state has changed, with the places of the
    positions if only these have."""

    topic: str
    partition: int
    names: dict[str, list[tuple[str, int]] | None]


class Taken(Struct, array_like=True, frozen=True):
    """The answer: the owner will look."""


class InternalTopics:
    """The internal topics of a node, by name."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._offsets = TopicCopy(node, GroupOffsets(node.progress), self._tell)
        self._transactions = TopicCopy(node, TransactionState(), self._tell)
        self._shares = TopicCopy(node, ShareState(), self._tell)
        self._copies = {copy.topic: copy for copy in (self._offsets, self._transactions, self._shares)}
        node.peers.serve(_KIND, Changed, self._take_news)

    def get(self, topic: str | None) -> TopicCopy | None:
        return self._copies.get(topic or "")

    def start(self, transactions: Transactions, share: ShareService) -> None:
        """Copy what has changed while this node was away, and all changes from now on."""
        for copy in self._copies.values():
            copy.start()
        self._node.progress.follow(self._offsets.changed)
        transactions.changed = self._transactions.changed
        share.changed = lambda *place: self._shares.changed(share_name(*place))
        self._node.catalog.on_change.append(self._topic_deleted)

    def _topic_deleted(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED:  # with its share partitions, which this node may not know
            self._shares.compare()

    async def close(self) -> None:
        """Stop copying; the next start finds what has changed."""
        for copy in self._copies.values():
            await copy.close()

    async def _tell(self, topic: str, partition: int, names: Names, owner: Member) -> object:
        plain = {name: None if places is None else list(places) for name, places in names.items()}
        return await self._node.peers.ask(owner, _KIND, Changed(topic, partition, plain), Taken)

    async def _take_news(self, news: Changed) -> Taken:
        if (copy := self.get(news.topic)) is not None:
            copy.changed_in(news.partition, news.names)
        return Taken()
