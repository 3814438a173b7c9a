"""Spent partitions: sealed and completely trimmed. They stop counting against the limits of partitions.

Otherwise a topic that is split and merged again and again would reach its limit, however little it holds. The numbers
of spent partitions stay reserved, since readers may still ask where such a partition ended and what followed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_kit.run.rounds import Rounds
from anabranch_kit.run.turns import in_turns

if TYPE_CHECKING:
    from bridges.catalog.lineage import PartitionInfo
    from bridges.catalog.topic import Topic
    from bridges.catalog.topics import Catalog
    from bridges.log.logs import Logs


class SpentPartitions:
    """Reports spent partitions to the catalog; :meth:`look` is a chore."""

    def __init__(self, catalog: Catalog, logs: Logs, rounds: Rounds[Topic]) -> None:
        self._catalog = catalog
        self._logs = logs
        self._rounds = rounds

    async def look(self, now_ms: int) -> None:
        """Examine all topics that have sealed partitions, once."""
        scaled = []
        async for topic in in_turns(list(self._catalog.topics.values())):
            if len(topic.active) + topic.spent < len(topic.partitions):
                scaled.append(topic)
        await self._rounds.each(scaled, self._look_at)

    async def _look_at(self, topic: Topic) -> None:
        found = []
        async for partition in in_turns(list(topic.partitions)):
            if self._is_spent(topic, partition):
                found.append(partition.index)
        if found and self._catalog.topics.get(topic.name) is topic:
            await self._catalog.give_back(topic.name, found)

    def _is_spent(self, topic: Topic, partition: PartitionInfo) -> bool:
        if partition.spent or partition.end is None:
            return False
        # A partition that was not used since the start is reported once retention has opened it.
        log = self._logs.known(topic.name, partition.index)
        return log is not None and log.is_open and log.log_start_offset >= partition.end
