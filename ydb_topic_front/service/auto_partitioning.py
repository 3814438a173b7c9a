"""Auto-partitioning: partitions that are written to fast are split, where a topic asks for it (docs/ydb.md).

Writers of a partition that is split are told so, come again, and go on in the half that has their producer's key.
Readers are told of the end, and of the children, if their SDK knows of such.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

import structlog

from bridges.errors import LogError
from bridges.log.growth import Growth
from ydb_topic_front.service.topic_settings import hot_at
from ydb_topic_front.service.topics import halved

if TYPE_CHECKING:
    from bridges.catalog.topics import Topic
    from bridges.log.partition_log import PartitionLog
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService

_log = structlog.get_logger("anabranch.ydb")

_AT_ONCE = 200
"""Partitions looked at in one turn of the event loop."""


class AutoPartitioning:
    """Looks at the topics that ask for it; :meth:`look` is a chore."""

    def __init__(self, service: YdbService) -> None:
        self._service = service
        self._growth: dict[PartitionLog, Growth] = {}
        self._steps = count(1)
        interval_ms = service.settings.auto_partitioning_interval_ms
        service.node.every(interval_ms, self.look, "auto-partitioning of YDB's topics")

    async def look(self, now_ms: int) -> None:
        """Look at all of them, and split what is to be split."""
        service = self._service
        growth: dict[PartitionLog, Growth] = {}
        for name in service.topics.scaled():
            topic = service.catalog.topics.get(name)
            if topic is None:
                continue
            for number in await self._hot(topic, now_ms, growth):
                await self._split(topic, number)
        self._growth = growth  # of partitions that are sealed by now, or deleted, nothing is kept

    async def _hot(self, topic: Topic, now_ms: int, growth: dict[PartitionLog, Growth]) -> list[int]:
        """The partitions that are written to fast. Those that nobody has used since the node started are not."""
        threshold = hot_at(self._service.topics.of(topic.name))
        hot = []
        for one in list(topic.active):
            if not next(self._steps) % _AT_ONCE:
                await asyncio.sleep(0)
            log = self._service.logs.known(topic.name, one.index)
            if log is None or not log.is_open:
                continue
            seen = growth[log] = self._growth.get(log) or Growth()
            if seen.seen(now_ms, log.state.index.taken_in, threshold.window_ms) >= threshold.grown:
                hot.append(one.index)
        return hot

    async def _split(self, topic: Topic, number: int) -> None:
        service = self._service
        async with service.topics.changing(topic.name):
            # It may have been changed meanwhile, or be one of several that are hot and may not all be split.
            settings, active = service.topics.of(topic.name), topic.active
            most = settings.wanted.partitioning_settings.max_active_partitions
            found = [one for one in active if one.index == number]
            if not settings.scales_up or not found or (most and len(active) >= most):
                return
            try:
                ranges = halved(found, 2)[number]
                await service.catalog.change_partitions(topic.name, [number], ranges)
            except LogError as error:
                _log.warning("a partition is not split", topic=topic.name, partition=number, reason=str(error))
            else:
                _log.info("a partition was split by its rate", topic=topic.name, partition=number)


def register(registry: Registry, service: YdbService) -> None:
    """It has no methods of its own."""
    AutoPartitioning(service)
