"""Exceptions from retention and compaction: topics that were just imported, and records that a topic keeps for named
consumers.

A topic that a migration or a replay imports is compared with its source until it is handed over. Afterwards, an
operator may still check that everything, including its settings, has arrived unchanged. So retention waits for
``migrate.grace_ms`` longer, and the log says when it begins to act.

A topic names its consumers in its configuration (:data:`bridges.catalog.topics.config.RETAINED_FOR`). They hold back
retention by age and by size. A partition is then bounded only by their progress, by the time given with their names,
and by the disk: below ``sbp.low_water_bytes`` of free space the node refuses appends, and beyond
``sbp.retention_bytes`` the oldest data
of all topics is dropped, even if a consumer has not read it. Explicit deletions are not held back either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import in_turns
from bridges.catalog.topics.config import RETAINED_FOR, parse_retained_for
from bridges.catalog.views.groups import CONSUMERS
from bridges.errors import LogError
from bridges.log.compaction.cleaner import CompactionPolicy

if TYPE_CHECKING:
    from bridges.catalog.progress import Progress
    from bridges.catalog.topics.catalog import Catalog
    from bridges.catalog.topics.topic import Import, Topic
    from bridges.log.partition.partition_log import PartitionLog

_log = structlog.get_logger(__name__)

_NAMED = 20
"""Most topics that a log line names."""


def limits_of(catalog: Catalog, topic: str) -> tuple[int, int]:
    """Return (milliseconds, bytes) to keep of a topic, -1 for no limit."""
    with suppress(LogError):  # the topic was just deleted
        if "delete" in catalog.effective(topic, "cleanup.policy"):
            return catalog.effective(topic, "retention.ms"), catalog.effective(topic, "retention.bytes")
    return -1, -1


class HandedOver:
    """Keeps retention away from topics that were imported too short a while ago."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._told: set[tuple[str, int]] = set()

    def find_released(self, topics: Iterable[Topic], now_ms: int) -> list[Topic]:
        """Return the topics on which retention may act.

        For each topic that was just handed over, log once when retention will act on it; a restarted node logs it
        again.
        """
        found: list[Topic] = []
        waiting: set[tuple[str, int]] = set()
        for topic in topics:
            if topic.imported is None:
                found.append(topic)
            elif not topic.imported.is_running:
                until = self._until_ms(topic.imported)
                if until <= now_ms:
                    found.append(topic)
                else:
                    waiting.add((topic.name, until))
        new = sorted(waiting - self._told)
        self._told = waiting
        if new:
            _log.info(
                "retention does not act yet on topics that were handed over",
                topics=len(new),
                named=[name for name, _ in new[:_NAMED]],
                acts_from=_moment(min(until for _, until in new)),
                on_all_from=_moment(max(until for _, until in new)),
            )
        return found

    def holds(self, topic: Topic) -> bool:
        """Return whether retention must not act on a topic now, because it is being imported or has just been."""
        imported = topic.imported
        if imported is None:
            return False
        return imported.is_running or self._until_ms(imported) > now_ms()

    def _until_ms(self, imported: Import) -> int:
        return (imported.handed_over_ms or 0) + self._grace_ms


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


class NeededByConsumers:
    """Finds the records that named consumers still need, by their committed positions."""

    def __init__(self, catalog: Catalog, progress: Progress) -> None:
        self._catalog = catalog
        self._progress = progress

    async def first(self, log: PartitionLog, now_ms: int) -> int | None:
        """Return the first offset that a named consumer has yet to read, None without consumers. Raises
        TopicNotFound.
        """
        needed: int | None = None
        consumers = parse_retained_for(self._catalog.effective(log.topic, RETAINED_FOR))
        async for name, keep_ms in in_turns(consumers):
            committed = await self._progress.durable((CONSUMERS, name), log.topic, log.partition)
            position = max(log.log_start_offset, 0 if committed is None else committed.offset)
            if keep_ms:
                position = max(position, log.upkeep.retention_offset(keep_ms, -1, now_ms) or 0)
            needed = position if needed is None else min(needed, position)
        return needed


class Policies:
    """The compaction policies of all topics.

    ``holds``: whether a topic must stay as it is for now (:class:`HandedOver`).
    """

    def __init__(self, catalog: Catalog, holds: Callable[[Topic], bool]) -> None:
        self._catalog = catalog
        self._holds = holds

    def find_policy(self, name: str) -> CompactionPolicy | None:
        """Return the policy of a topic, None if it is not compacted, or not now. Raises TopicNotFound."""
        effective = self._catalog.effective
        if "compact" not in effective(name, "cleanup.policy") or self._holds(self._catalog.topic(name)):
            return None
        return CompactionPolicy(
            effective(name, "min.cleanable.dirty.ratio"),
            effective(name, "min.compaction.lag.ms"),
            effective(name, "max.compaction.lag.ms"),
            effective(name, "delete.retention.ms"),
        )
