"""What is measured of topics and consumers, by what it is about: counted and bounded, since clients choose how many."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from anabranch_kit.memory.budget import Kind
from ydb_topic_front.session.measured import ReadMeasure, RecentMost

if TYPE_CHECKING:
    import uuid

    from anabranch_kit.memory.budget import Account, MemoryBudget
    from bridges.catalog.topic import Topic
    from ydb_topic_front.service.topics.settings import TopicSettings

READ_BYTES = 1200
"""What is kept of a consumer in a partition takes so much."""
WRITE_BYTES = 400
"""The same of what is written to a partition."""
_PART = 64
"""Each kind may take one part in so many of the node's budget; what was not used for longest goes then."""
_DAY_MS = 24 * 3_600_000
_MINUTE_MS = 60_000


class _Dated(Protocol):
    @property
    def last_ms(self) -> int:
        """When it was last told something."""


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=_Dated)


class _Recent(Generic[K, V]):
    """Measures of one kind in the order of their last use, at most ``most`` of them, each of so many ``size`` bytes."""

    __slots__ = ("_account", "_found", "_make", "_most", "_size")

    def __init__(self, make: Callable[[], V], size: int, account: Account, most: int) -> None:
        self._make = make
        self._size = size
        self._account = account
        self._most = max(1, most)
        self._found: dict[K, V] = {}

    def __iter__(self) -> Iterator[K]:
        return iter(self._found)

    def get(self, key: K) -> V | None:
        return self._found.get(key)

    def use(self, key: K) -> V:
        """The measure of ``key``, made if there is none."""
        found = self._found.pop(key, None)
        if found is None:
            if len(self._found) >= self._most:
                self.drop(next(iter(self._found)))
            found = self._make()
            self._account.take(Kind.REQUESTS, self._size)
        self._found[key] = found
        return found

    def drop(self, key: K) -> None:
        del self._found[key]
        self._account.give(Kind.REQUESTS, self._size)

    def expire(self, before_ms: int) -> None:
        """Drop those that were last used before then."""
        while self._found:
            key, oldest = next(iter(self._found.items()))
            if oldest.last_ms >= before_ms:
                return
            self.drop(key)


class Measures:
    """Of consumers in partitions, and of what YDB's clients write to partitions."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._account = budget.account(lambda: None)
        limit = budget.total // _PART
        self._read: _Recent[tuple[uuid.UUID, str, int], ReadMeasure] = _Recent(
            ReadMeasure, READ_BYTES, self._account, limit // READ_BYTES
        )
        self._written: _Recent[tuple[uuid.UUID, int], RecentMost] = _Recent(
            RecentMost, WRITE_BYTES, self._account, limit // WRITE_BYTES
        )

    @property
    def held(self) -> int:
        """Bytes."""
        return self._account.held

    def read(
        self, topic: Topic, consumer: str, partition: int, size: int, offset: int, written_ms: int, write_lag: int
    ) -> None:
        """A consumer was sent ``size`` bytes of a partition (see :meth:`ReadMeasure.read`)."""
        self._read.use((topic.topic_id, consumer, partition)).read(_now(), size, offset, written_ms, write_lag)

    def of_consumer(self, topic: Topic, consumer: str, partition: int) -> ReadMeasure | None:
        """What is known of a consumer in a partition."""
        return self._read.get((topic.topic_id, consumer, partition))

    def of_topic(self, topic: Topic) -> Iterator[tuple[str, ReadMeasure]]:
        """Of each consumer in each partition of a topic where it has read; what is told meanwhile may be missing."""
        for key in list(self._read):
            if key[0] == topic.topic_id and (found := self._read.get(key)) is not None:
                yield key[1], found

    def written(self, topic: Topic, partition: int, created_ms: int) -> None:
        """Something that was created at ``created_ms`` was written to a partition now."""
        now = _now()
        self._written.use((topic.topic_id, partition)).tell(now, now - created_ms)

    def write_lag(self, topic: Topic, partition: int) -> int:
        """The most ms that went by between the creation and the writing of what was written within the last minute."""
        lag = self._written.get((topic.topic_id, partition))
        return 0 if lag is None else lag.most(_now())

    async def expire(self, now_ms: int) -> None:
        """Forget what says nothing any more."""
        self._read.expire(now_ms - _DAY_MS)
        self._written.expire(now_ms - _MINUTE_MS)

    def settings_changed(self, topic: Topic, settings: TopicSettings) -> None:
        """Consumers that the topic has no more are forgotten: one that is added again begins anew."""
        for key in [key for key in self._read if key[0] == topic.topic_id and key[1] not in settings.consumers]:
            self._read.drop(key)


def _now() -> int:
    return time.time_ns() // 1_000_000
