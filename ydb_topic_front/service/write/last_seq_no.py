"""The last seq_no of a producer in a partition of any node, once nothing of the producer is in flight there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bridges.cluster.at_owner import at_owner
from bridges.errors import LogUnavailable
from bridges.formats.producer import LedgerKind

if TYPE_CHECKING:
    from bridges.cluster.members import Member
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.node.front import NodeServices

_SEQ_NO = int(LedgerKind.SEQ_NO)
_LAST = "ydb last seq_no"


async def _decided_there(log: PartitionLog) -> None:
    """Wait until nothing is in flight in a sealed partition: its ledger is durable then. Raises LogError."""
    while True:
        await log.ready()
        if log.next_offset == log.high_watermark:
            return
        await log.until(lambda: not log.is_open or log.next_offset == log.high_watermark)


class LastAsked(msgspec.Struct, array_like=True, frozen=True):
    """Request to a partition's owner for the last seq_no of the producer ``key``."""

    topic: str
    partition: int
    key: bytes


class LastTold(msgspec.Struct, array_like=True, frozen=True):
    number: int | None


async def decided_last(node: NodeServices, topic: str, partition: int, key: bytes) -> int | None:
    """Return a producer's last seq_no in a partition once nothing is in flight there; None if the partition does not
    know it. Asks the partition's owner. Raises LogError."""
    owners, asked = node.owners, LastAsked(topic, partition, key)

    async def there(owner: Member) -> int | None:
        return (await node.peers.ask(owner, _LAST, asked, LastTold)).number

    return await at_owner(owners, lambda: owners.slot_of(topic, partition), lambda: _last_here(node, asked), there)


async def _last_here(node: NodeServices, asked: LastAsked) -> int | None:
    log = node.logs.get(asked.topic, asked.partition)
    if log is None:
        raise LogUnavailable(f"{asked.topic}-{asked.partition} is not known here yet, or not any more")
    await _decided_there(log)
    last = log.last(_SEQ_NO, asked.key)
    return None if last is None else last.number


def answer_others(node: NodeServices) -> None:
    """Answer other nodes' requests for producers' last seq_no in partitions of this node."""

    async def answer(asked: LastAsked) -> LastTold:
        return LastTold(await _last_here(node, asked))

    node.peers.serve(_LAST, LastAsked, answer)
