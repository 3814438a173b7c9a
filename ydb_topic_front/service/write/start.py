"""Start of a StreamWrite session: its partition, and the sequence number it continues from (docs/protocols/ydb.md,
"Partition of a producer", "Last number" and "Takeover")."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.turns import gathered
from bridges.catalog.topics.topic import NOT_IMPORTING
from bridges.errors import PartitionSealed
from bridges.formats.producer import LedgerKind, SeqNoStamp
from bridges.log.interfaces import Appended, note
from ydb_topic_front.failures import translate_error
from ydb_topic_front.service.write.last_seq_no import decided_last
from ydb_topic_front.wire.statuses import bad_request

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Topic
    from bridges.log.partition.partition_log import PartitionLog
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.write.producers import Producers
    from ydb_topic_front.session.write_init import WriteInit

_SEQ_NO = int(LedgerKind.SEQ_NO)


def insisted_on(topic: Topic, init: WriteInit) -> int | None:
    """Return the partition that a client names, after checking that it is active; None if it names none. Raises
    YdbError."""
    wanted = init.partition
    if wanted is not None:
        found = topic.partitions[wanted] if wanted < len(topic.partitions) else None
        if found is None:
            raise bad_request(f"partition {wanted} does not exist")
        if not found.is_active:
            raise translate_error(PartitionSealed(f"{topic.name}-{wanted}", found.children))
    return wanted


async def bound_to(service: YdbService, producers: Producers, topic: Topic, producer: bytes, wanted: int | None) -> int:
    """Return the partition that a producer writes to, and bind the producer to it durably. Raises YdbError,
    LogError."""
    if topic.import_epoch >= 0:
        # The producer's partition is known only when all its messages are imported.
        raise service.log_of(topic, wanted or 0).not_importing(NOT_IMPORTING)
    written = None
    imported = topic.imported
    if (
        wanted is None
        and imported is not None
        and imported.handed_over_ms is not None
        and producers.keep(imported.handed_over_ms)
        and not await producers.knows(topic, producer)
    ):
        written = await _imported_to(service, topic, producer)
    return await producers.partition_of(topic, producer, wanted, written)


async def _imported_to(service: YdbService, topic: Topic, producer: bytes) -> int | None:
    """Return the partition to which a producer wrote before the topic was migrated to this cluster: the import copies
    messages with their numbers, but not the producer's partition. A split leaves several; the one with the latest
    number counts.

    This opens all logs of the topic, once in the node's life. It is no longer needed when producers that have not
    written since the hand-over would be forgotten anyway. Raises LogError.
    """
    key = SeqNoStamp(producer, ()).key
    found, latest = None, -1
    numbers = [one.index for one in topic.partitions]
    lasts = await gathered(decided_last(service.node, topic.name, number, key) for number in numbers)
    for number, last in zip(numbers, lasts, strict=True):
        if last is not None and last > latest:
            found, latest = number, last
    return found


async def last_seq_no(service: YdbService, topic: Topic, log: PartitionLog, producer: bytes) -> int:
    """Return a producer's last durable seq_no in a partition. If the partition has none, it inherits that of its
    ancestors, which is made durable in this partition first. Raises LogError."""
    key = SeqNoStamp(producer, ()).key
    last = log.last(_SEQ_NO, key)
    if last is not None:
        return last.number
    inherited = 0
    parents = list(topic.partitions[log.partition].parents)
    seen = set(parents)
    while parents:
        number = parents.pop()
        known = await decided_last(service.node, topic.name, number, key)
        if known is None:
            more = [one for one in topic.partitions[number].parents if one not in seen]
            seen.update(more)
            parents += more
        else:
            inherited = max(inherited, known)
    if inherited:
        known_here = note(SeqNoStamp(producer, (inherited,)))
        stored: asyncio.Future[Appended] = awaited(lambda done: log.append(known_here, done))
        await stored
    return inherited
