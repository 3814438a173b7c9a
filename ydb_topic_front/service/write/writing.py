"""State shared by all write sessions."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from bridges.errors import PartitionSealed
from ydb_topic_front.failures import translate_error
from ydb_topic_front.service.transactions.staging import Staging
from ydb_topic_front.service.write.producers import Producers
from ydb_topic_front.service.write.speed import WriteSpeeds
from ydb_topic_front.service.write.writers import Writers

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Topic
    from ydb_topic_front.service.core import YdbService

_EXPIRY_MS = 600_000
_LOOKED_AT = 64
"""Most partitions examined in search of one that this node owns."""


class Writing:
    """The producers, the open write sessions, the write speeds and the metrics."""

    def __init__(self, service: YdbService) -> None:
        node = service.node
        self.service = service
        self.writers = Writers(service.catalog)
        self.producers = Producers(
            node.db, service.logs.options.seq_no_producer_idle_ms, service.settings.max_producers
        )
        self.speeds = WriteSpeeds(service)
        self.staging = Staging(service)
        self.counts = node.metrics.kind("WriteRequest")
        self._turn = count()
        node.every(_EXPIRY_MS, self.producers.expire, "expiry of YDB's producers")

    def any_partition(self, topic: Topic) -> int:
        """Choose a partition for a session without a producer, round robin, preferably one that this node owns. Raises
        YdbError."""
        active, owners = topic.active, self.service.node.owners
        if not active:
            raise translate_error(PartitionSealed(topic.name, ()))
        for _ in range(min(len(active), _LOOKED_AT)):
            found = active[next(self._turn) % len(active)].index
            if owners.is_mine(owners.slot_of(topic.name, found)):
                break
        return found
