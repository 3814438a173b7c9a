"""Recent measurements per consumer and per partition for the Describe calls. Clients choose how many there are, so
memory is counted and bounded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run import clock
from ydb_topic_front.session.measured import ReadMeasure, RecentMost

if TYPE_CHECKING:
    import uuid

    from anabranch_kit.memory.budget import Account, MemoryBudget
    from bridges.catalog.topics.topic import Topic
    from ydb_topic_front.service.topics.settings import TopicSettings

READ_BYTES = 1200
"""Memory for one consumer's measure in one partition."""
WRITE_BYTES = 400
"""Memory for the measure of one partition's writes."""
_PART = 64
"""Each kind of measure may hold 1/64 of the node's budget; beyond that the least recently used are evicted."""
_DAY_MS = 24 * 3_600_000
_MINUTE_MS = 60_000


class _Dated(Protocol):
    @property
    def last_ms(self) -> int:
        """Return the time of the last measurement, in ms since the epoch."""


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=_Dated)


class _Recent(Generic[K, V]):
    """LRU table of measures of one kind: at most ``most`` entries of ``size`` bytes each, in the order of their last
    use."""

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
        """Return the measure of ``key``, creating it if missing, and mark it as the most recently used."""
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
        """Drop the measures that were last used before ``before_ms``."""
        while self._found:
            key, oldest = next(iter(self._found.items()))
            if oldest.last_ms >= before_ms:
                return
            self.drop(key)


class Measures:
    """Measures of consumers' reads per partition and of YDB clients' writes per partition."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._account = budget.account(lambda: None)
        limit = budget.total // _PART
        self._read: _Recent[tuple[uuid.UUID, str, int], ReadMeasure] = _Recent(
            ReadMeasure, READ_BYTES, self._account, limit // READ_BYTES
        )
        self._written: _Recent[tuple[uuid.UUID, int], RecentMost] = _Recent(
            RecentMost, WRITE_BYTES, self._account, limit // WRITE_BYTES
        )

    def read(
        self, topic: Topic, consumer: str, partition: int, size: int, offset: int, written_ms: int, write_lag: int
    ) -> None:
        """Record that a consumer was sent ``size`` bytes of a partition (see :meth:`ReadMeasure.read`)."""
        self._read.use((topic.topic_id, consumer, partition)).read(clock.now_ms(), size, offset, written_ms, write_lag)

    def of_consumer(self, topic: Topic, consumer: str, partition: int) -> ReadMeasure | None:
        """Return the measure of a consumer in a partition; None if it has not read there lately."""
        return self._read.get((topic.topic_id, consumer, partition))

    def of_topic(self, topic: Topic) -> Iterator[tuple[str, ReadMeasure]]:
        """Yield (consumer, measure) for each consumer and partition of a topic that was read lately; measures added
        during the iteration may be missing."""
        for key in list(self._read):
            if key[0] == topic.topic_id and (found := self._read.get(key)) is not None:
                yield key[1], found

    def written(self, topic: Topic, partition: int, created_ms: int) -> None:
        """Record that a message created at ``created_ms`` was written to a partition now."""
        now = clock.now_ms()
        self._written.use((topic.topic_id, partition)).tell(now, now - created_ms)

    def write_lag(self, topic: Topic, partition: int) -> int:
        """Return the longest time from creation to writing among the last minute's messages of a partition, in ms."""
        lag = self._written.get((topic.topic_id, partition))
        return 0 if lag is None else lag.most(clock.now_ms())

    async def expire(self, now_ms: int) -> None:
        """Drop read measures older than a day and write measures older than a minute: they are outside all windows."""
        self._read.expire(now_ms - _DAY_MS)
        self._written.expire(now_ms - _MINUTE_MS)

    def settings_changed(self, topic: Topic, settings: TopicSettings) -> None:
        """Drop the measures of consumers that the topic no longer has: a consumer that is added again begins at
        zero."""
        for key in [key for key in self._read if key[0] == topic.topic_id and key[1] not in settings.consumers]:
            self._read.drop(key)
