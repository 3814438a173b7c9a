"""Emptying of topics: all records that there are at the request are deleted, at the owners of the partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.run.turns import gathered
from bridges.catalog.topics.topic import TopicNotFound
from bridges.cluster.at_owner import patiently, share_out
from bridges.errors import NotOwner

if TYPE_CHECKING:
    from bridges.catalog.topics.catalog import Catalog
    from bridges.catalog.topics.topic import Topic
    from bridges.cluster.ownership import Membership, Others
    from bridges.log.logs import Logs

_KIND = "topic trims"
_PARTITIONS_PER_MESSAGE = 1_000


class Trims(Struct, array_like=True):
    """New starts of partitions of a topic, as (partition, offset). They may be set again."""

    topic: str
    topic_id: str
    starts: Sequence[tuple[int, int]]


class _Done(Struct, array_like=True):
    pass


class TopicTrims:
    """Deletes the first records of partitions, at whichever node owns them."""

    def __init__(self, catalog: Catalog, logs: Logs, owners: Membership, peers: Others) -> None:
        self._catalog = catalog
        self._logs = logs
        self._owners = owners
        self._peers = peers
        peers.serve(_KIND, Trims, self._trim_here)

    async def empty(self, topic: Topic) -> int:
        """Delete all records that a topic has now; return their number, counted in offsets. Raises LogError."""
        found = [log for one in topic.partitions if (log := self._logs.to_read(topic.name, one.index)) is not None]
        await gathered(log.refresh() for log in found)
        left = {log.partition: log.high_watermark for log in found}
        deleted = sum(log.high_watermark - log.log_start_offset for log in found)

        async def trim_rest() -> None:
            here, elsewhere = share_out(
                self._owners, list(left), lambda partition: self._owners.slot_of(topic.name, partition)
            )

            def trims(partitions: Sequence[int]) -> Trims:
                return Trims(topic.name, str(topic.topic_id), [(one, left[one]) for one in partitions])

            await self._trim_here(trims(here))
            for done in here:
                del left[done]
            for owner, some in elsewhere:
                for first in range(0, len(some), _PARTITIONS_PER_MESSAGE):
                    part = some[first : first + _PARTITIONS_PER_MESSAGE]
                    await self._peers.ask(owner, _KIND, trims(part), _Done)
                    for done in part:
                        del left[done]

        await patiently(trim_rest)
        return deleted

    async def _trim_here(self, asked: Trims) -> _Done:
        topic = self._catalog.topics.get(asked.topic)
        if topic is None or str(topic.topic_id) != asked.topic_id:
            raise TopicNotFound(f"there is no topic {asked.topic!r}")

        async def trim(partition: int, offset: int) -> None:
            log = self._logs.get(asked.topic, partition)
            if log is None:
                raise NotOwner(f"{asked.topic}-{partition}", -1)
            await log.trim(offset)

        await gathered(trim(*one) for one in asked.starts)
        return _Done()
