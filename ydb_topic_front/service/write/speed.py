"""Write speeds: a session that writes to a partition faster than its topic allows waits, and back-pressure slows its
client.

A topic may set ``partition_write_speed_bytes_per_second``, for each of its partitions, and
``partition_write_burst_bytes``. The sessions of a partition share both, and wait in the order of arrival; while one
waits, nothing is read from its stream. Topics without a speed are not limited, and neither are writers of other
protocols.

A waiting session holds its request in memory. While the node is short of memory, sessions that have waited too long end
with OVERLOADED, and their clients retry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from anabranch_kit.run.bucket import UNLIMITED, Bucket, Speed
from bridges.catalog.topics.topic import ChangeKind
from bridges.net.quotas import turn
from ydb_topic_front.wire.statuses import Status, YdbError

if TYPE_CHECKING:
    from bridges.auth import Principal
    from bridges.catalog.topics.topic import Change, Topic
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.topics.settings import TopicSettings
    from ydb_topic_front.service.write.writers import Writer

_LONGEST_WAIT_S = 3600.0
"""Longest timeout of one wait; the loop then waits again."""


def speed_of(settings: TopicSettings) -> Speed:
    """Return a topic's speed per partition. Without a burst, one second's worth may be written at once, as in YDB."""
    rate = settings.wanted.partition_write_speed_bytes_per_second
    return Speed(rate, settings.wanted.partition_write_burst_bytes or rate) if rate else UNLIMITED


class _Partition:
    """Writers of one partition: the first waits for the bucket, the others for their turn."""

    __slots__ = ("bucket", "changed", "turn")

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.turn = asyncio.Lock()
        self.changed = asyncio.Event()
        """Set when the speed changes."""


class WriteSpeeds:
    """Partitions with writers, of topics that have a speed. ``clock`` returns seconds."""

    def __init__(self, service: YdbService, clock: Callable[[], float] = time.monotonic) -> None:
        self._topics = service.topics
        self._clock = clock
        self._partitions: dict[str, dict[int, _Partition]] = {}
        self.waiting: dict[Writer, float] = {}  # since when
        self._budget = service.node.budget
        self._quota = service.node.quotas.produce
        self._barrier = service.node.barrier
        self._patience = service.settings.writer_patience_ms / 1000
        service.node.every(max(100, service.settings.writer_patience_ms // 5), self.cut_waiting, "writers that wait")
        service.topics.on_change.append(self._changed)
        service.catalog.on_change.append(self._catalog_changed)

    def limits(self, topic: Topic) -> bool:
        return bool(self._topics.get_settings(topic.name).wanted.partition_write_speed_bytes_per_second)

    @property
    def has_quotas(self) -> bool:
        """Return whether any principal has a quota of bytes to produce."""
        return self._quota.in_force

    async def admit(self, topic: Topic, partition: int, size: int, writer: Writer) -> float:
        """Wait until ``writer`` may write ``size`` bytes to the partition, count them, and return the seconds waited.

        A writer that waits too long while memory is short is ended (:meth:`cut_waiting`); its stream then cancels this
        call.
        """
        speed = speed_of(self._topics.get_settings(topic.name))
        partitions = self._partitions.setdefault(topic.name, {})
        found = partitions.get(partition)
        if found is None:
            found = partitions[partition] = _Partition(Bucket(speed, self._clock))
        began = self.waiting[writer] = self._clock()
        try:
            async with found.turn:
                while (wait := found.bucket.wait()) > 0:
                    found.changed.clear()
                    try:
                        async with asyncio.timeout(min(wait, _LONGEST_WAIT_S)):
                            await found.changed.wait()
                    except TimeoutError:
                        continue
                found.bucket.take(size)
        finally:
            del self.waiting[writer]
        return self._clock() - began

    async def admit_writer(self, principal: Principal, size: int, writer: Writer) -> float:
        """Wait for the principal's quota, whatever topic it writes to, and return the seconds waited."""
        began = self.waiting[writer] = self._clock()
        try:
            await turn(self._quota.bucket(principal.name, None), size)
        finally:
            del self.waiting[writer]
        return self._clock() - began

    async def cut_waiting(self, now_ms: int) -> None:
        """End the sessions that have waited for longer than ``writer_patience_ms``, while memory is short."""
        if self._budget.scarce or self._budget.waiting:
            since = self._clock() - self._patience
            for writer in [writer for writer, began in self.waiting.items() if began < since]:
                message = "the node is short of memory, and the partition's speed would hold the request up for long"
                self._barrier.call("writer that waits", writer.end, YdbError(Status.OVERLOADED, message))

    def _changed(self, topic: Topic) -> None:
        speed = speed_of(self._topics.get_settings(topic.name))
        for one in self._partitions.get(topic.name, {}).values():
            one.bucket.change(speed)
            one.changed.set()

    def _catalog_changed(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            self._partitions.pop(change.topic.name, None)  # its waiting sessions end with the topic
