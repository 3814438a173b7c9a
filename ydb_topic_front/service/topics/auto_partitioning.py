"""Auto-partitioning: splits partitions with a high write rate and merges neighbours with a low one, for topics that
ask for it (docs/ydb.md).

Writers of a sealed partition get an error, reconnect, and continue in the partition that has their producer's key.
Readers are told of the end and of the children if their SDK supports that.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.turns import in_turns
from bridges.catalog.topics.lineage import KeyRange, PartitionInfo
from bridges.errors import LogError
from bridges.log.state.growth import Growth
from ydb_topic_front.service.topics.calls import halved
from ydb_topic_front.service.topics.settings import Thresholds, TopicSettings, thresholds

if TYPE_CHECKING:
    from anabranch_kit.run.rounds import Rounds
    from bridges.catalog.topics.topic import Topic
    from bridges.log.partition.partition_log import PartitionLog
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService

_log = structlog.get_logger("anabranch.ydb")


Loads = dict[int, tuple[int, bool]]
"""By partition: bytes written within a window, and whether the whole window was observed."""


class AutoPartitioning:
    """Checks the topics with auto-partitioning; :meth:`check_all` is a chore."""

    def __init__(self, service: YdbService) -> None:
        self._service = service
        self._growth: dict[PartitionLog, Growth] = {}
        self._began_ms: int | None = None
        # One topic's change may wait, for appends that other protocols have promised; other topics go on meanwhile.
        self._rounds: Rounds[str] = service.node.rounds("auto-partitioning")
        interval_ms = service.settings.auto_partitioning_interval_ms
        service.node.every(interval_ms, self.check_all, "auto-partitioning of YDB's topics")

    async def check_all(self, now_ms: int) -> None:
        """Check all topics with auto-partitioning, and split or merge their partitions as needed."""
        if self._began_ms is None or now_ms < self._began_ms:
            self._began_ms = now_ms
        growth: dict[PartitionLog, Growth] = {}
        await self._rounds.each(self._service.topics.scaled(), lambda name: self._check(name, now_ms, growth))
        self._growth = growth  # drops the partitions that are sealed or deleted by now

    async def _check(self, name: str, now_ms: int, growth: dict[PartitionLog, Growth]) -> None:
        topic = self._service.catalog.topics.get(name)
        if topic is None:
            return
        settings = self._service.topics.get_settings(topic.name)
        bounds = thresholds(settings)
        loads = await self._loads(topic, bounds.window_ms, now_ms, growth)
        hot = [number for number, (grown, _) in loads.items() if grown >= bounds.hot]
        for number in hot:
            await self._change(topic, [number])
        if settings.scales_down and not hot:
            for pair in cold_neighbours(topic.active, loads, bounds):
                await self._change(topic, list(pair))

    async def _loads(self, topic: Topic, window_ms: int, now_ms: int, growth: dict[PartitionLog, Growth]) -> Loads:
        assert self._began_ms is not None
        loads: Loads = {}
        async for one in in_turns(topic.active):
            log = self._service.logs.find_used(topic.name, one.index)
            if log is None or not log.is_open:
                # No client has used the partition since the node started.
                loads[one.index] = 0, self._began_ms <= now_ms - window_ms
                continue
            seen = growth[log] = self._growth.get(log) or Growth()
            grown = seen.seen(now_ms, log.state.index.taken_in, window_ms)
            loads[one.index] = grown, seen.covers(now_ms, window_ms)
        return loads

    async def _change(self, topic: Topic, numbers: list[int]) -> None:
        """Split one partition, or merge two."""
        service = self._service
        async with service.topics.changing(topic.name):
            # The topic may have changed meanwhile, and of several partitions only some may be allowed to change.
            settings = service.topics.get_settings(topic.name)
            found = [one for one in topic.active if one.index in numbers]
            if len(found) < len(numbers) or not _may_change(topic, settings, merge=len(found) > 1):
                return
            try:
                if len(found) == 1:
                    ranges = halved(found, 2)[numbers[0]]
                else:
                    ranges = [KeyRange(min(one.keys.low for one in found), max(one.keys.high for one in found))]
                await service.catalog.change_partitions(topic.name, numbers, ranges)
            except LogError as error:
                _log.warning("partitions are not changed", topic=topic.name, partitions=numbers, reason=str(error))
            else:
                _log.info("partitions were changed by their rate", topic=topic.name, sealed=numbers, made=len(ranges))


def _may_change(topic: Topic, settings: TopicSettings, merge: bool) -> bool:
    """Return whether the topic's settings still allow the split or merge, and its limits have room for it."""
    wanted, active = settings.wanted.partitioning_settings, len(topic.active)
    if merge:
        return settings.scales_down and active > max(1, wanted.min_active_partitions)
    after = len(topic.partitions) - topic.spent + 2
    many = after <= (wanted.partition_count_limit or after)
    return settings.scales_up and many and active < (wanted.max_active_partitions or active + 1)


def cold_neighbours(active: Iterable[PartitionInfo], loads: Loads, bounds: Thresholds) -> list[tuple[int, int]]:
    """Return disjoint pairs of partitions to merge: adjacent by key range, cold for a whole window, and together not
    hot."""
    pairs: list[tuple[int, int]] = []
    taken: set[int] = set()
    for one, after in pairwise(sorted(active, key=lambda info: info.keys.low)):
        if one.keys.high != after.keys.low or one.index in taken:
            continue
        (first, whole), (second, all_of_it) = loads.get(one.index, (0, False)), loads.get(after.index, (0, False))
        if whole and all_of_it and max(first, second) <= bounds.cold and first + second < bounds.hot:
            pairs.append((one.index, after.index))
            taken.add(after.index)
    return pairs


def register(registry: Registry, service: YdbService) -> None:
    """Start auto-partitioning. It has no methods of its own."""
    AutoPartitioning(service)
