"""Durable assignment of producers to partitions (docs/protocols/ydb.md, "Partition of a producer").

A producer stays in the partition of its first session, whatever becomes of the number of partitions, since only that
partition knows what it has written. Its row is deleted after it was idle for as long as partitions remember producers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import md5
from typing import TYPE_CHECKING

from anabranch_kit.run import clock
from bridges.catalog.database.sql import upsert
from bridges.catalog.topics.lineage import KEY_SPACE, Takers
from bridges.errors import PartitionSealed
from bridges.formats.producer import SeqNoStamp
from ydb_topic_front.failures import translate_error
from ydb_topic_front.wire.statuses import bad_request

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection, Database
    from bridges.catalog.topics.lineage import PartitionInfo
    from bridges.catalog.topics.topic import Topic

_REFRESHED_MS = 3_600_000
"""Age after which a row in use is written again, so that it does not expire."""
_USE = upsert("front_ydb_producers", "topic producer", "partition used_ms")
_ROWS_PER_TRANSACTION = 1_000
"""Rows deleted in one transaction, which blocks others."""


def place_of(producer: bytes, takers: Takers) -> PartitionInfo:
    """Choose the partition of a new producer: by its key if partitions have key ranges, else by its hash. Raises
    YdbError."""
    partitions = takers.partitions
    if not partitions:
        raise translate_error(PartitionSealed("the topic", ()))
    number = int.from_bytes(md5(producer, usedforsecurity=False).digest(), "big")
    return takers.at(number % KEY_SPACE) or partitions[number % len(partitions)]


class Producers:
    """The table ``front_ydb_producers``. ``idle_ms`` is how long a producer is remembered, ``most`` how many are;
    ``clock`` returns ms since the epoch."""

    def __init__(self, db: Database, idle_ms: int, most: int, clock: Callable[[], int] = clock.now_ms) -> None:
        self._db = db
        self._idle_ms = idle_ms
        self._most = most
        self._clock = clock

    def keep(self, used_ms: int) -> bool:
        """Return whether a producer last used at ``used_ms`` is still remembered."""
        return self._clock() - used_ms <= self._idle_ms

    async def knows(self, topic: Topic, producer: bytes) -> bool:
        """Return whether the table has a row of the producer for the topic."""
        key = SeqNoStamp(producer, ()).key

        def find(connection: Connection) -> bool:
            query = "SELECT 1 FROM front_ydb_producers WHERE topic = ? AND producer = ?"
            return connection.execute(query, (topic.name, key)).fetchone() is not None

        return await self._db.run(find)

    async def partition_of(self, topic: Topic, producer: bytes, wanted: int | None, written: int | None = None) -> int:
        """Return the partition that a producer writes to. A new producer gets ``wanted``, else the partition it has
        ``written`` to in another cluster, else one by its name.

        Durable when this returns. A producer whose partition was split continues in the child that has its key. Raises
        YdbError if the producer is in another partition than ``wanted``.
        """
        key = SeqNoStamp(producer, ()).key
        partitions = topic.partitions  # by number; replaced as a whole, so the database thread sees a consistent state
        fresh = wanted if wanted is not None else written
        if fresh is None:
            fresh = place_of(producer, topic.takers).index
        now = self._clock()

        def find(connection: Connection) -> int:
            query = "SELECT partition, used_ms FROM front_ydb_producers WHERE topic = ? AND producer = ?"
            row = connection.execute(query, (topic.name, key)).fetchone()
            found, used = row or (fresh, 0)
            if not 0 <= found < len(partitions):
                found, used = fresh, 0
            here = descendant(partitions, found, producer, wanted)
            if (wanted is None or here == wanted) and (here != found or now - used > _REFRESHED_MS):
                connection.execute(_USE, (topic.name, key, here, now))
            return here

        here = await self._db.run(find)
        if wanted is not None and here != wanted:
            raise bad_request(f"the producer is already bound to partition {here}, not {wanted}")
        return here

    async def expire(self, now_ms: int) -> None:
        """Delete the producers that were idle for long, and the oldest if there are too many."""

        def remove(connection: Connection) -> int:
            oldest = "SELECT topic, producer FROM front_ydb_producers INDEXED BY front_ydb_producers_used"
            chosen = f"{oldest} WHERE used_ms < ? ORDER BY used_ms LIMIT ?"
            delete = f"DELETE FROM front_ydb_producers WHERE (topic, producer) IN ({chosen})"
            idle = connection.execute(delete, (now_ms - self._idle_ms, _ROWS_PER_TRANSACTION)).rowcount
            if idle:
                return idle
            (count,) = connection.execute("SELECT count(*) FROM front_ydb_producers").fetchone()
            return connection.execute(delete, (now_ms, max(0, min(count - self._most, _ROWS_PER_TRANSACTION)))).rowcount

        while await self._db.run(remove):
            pass


def descendant(numbers: Sequence[PartitionInfo], found: int, producer: bytes, wanted: int | None) -> int:
    """Return the active partition that replaces ``found`` for a producer, ``wanted`` if that is one of its descendants.
    Raises YdbError when there is none."""
    at = numbers[found]
    while not at.is_active:
        children = [numbers[child] for child in at.children]
        if wanted is not None and any(child.index == wanted for child in children):
            at = numbers[wanted]
        else:
            at = place_of(producer, Takers(children))
    return at.index
