"""Partitions of any node: reads, waits and appends reach the owner of a partition, this node or another.

A front whose clients connect to any node needs nothing else of the log. Who knows that this node owns a partition, or
has to, uses its log (:class:`bridges.log.partition.partition_log.PartitionLog`), which can do more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from bridges.cluster.at_owner import patiently
from bridges.errors import LogDeleted
from bridges.log.interfaces import NOT_APPENDED
from bridges.log.partition.waiters import until

if TYPE_CHECKING:
    from bridges.formats.records import StoredBatch
    from bridges.log.interfaces import AppendDone, Batch
    from bridges.log.logs import Logs
    from bridges.log.remote.readable import ReadableLog

T = TypeVar("T")


class Elsewhere(Protocol):
    """The way to other nodes."""

    def takes(self, topic: str, partition: int) -> bool:
        """Return whether another node must append a batch for the partition, or the batch must wait behind a forwarded
        one."""

    def append(self, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
        """Append through the owner; see :meth:`Partitions.append`."""

    async def close(self) -> None:
        """Stop sending."""


class Partitions:
    """The partitions of all nodes: those in this node's ``logs``, and through ``elsewhere`` those of other nodes.

    ``catch_up`` reads the changes that other nodes have made to the catalog.
    """

    def __init__(self, logs: Logs, elsewhere: Elsewhere, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._logs = logs
        self._elsewhere = elsewhere
        self._catch_up = catch_up

    async def find(self, topic: str, partition: int) -> Partition | None:
        """Return a partition, also if another node has just made it; None when there is no such partition."""
        log = self._logs.to_read(topic, partition)
        if log is None:
            await self._catch_up()
            log = self._logs.to_read(topic, partition)
        return None if log is None else Partition(self, self._logs, topic, partition, log.stream_id)

    def append(self, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
        """Append a batch to a partition of any node, in the order of these calls.

        ``done`` is called exactly once, on the event loop. Errors given to it: those of :meth:`.AppendPath.append`, and
        NotOwner if no node owns the partition. The owner recognises repetitions; for a batch without a producer,
        LogUnavailable may mean that it was appended.
        """
        if self._elsewhere.takes(topic, partition):
            self._elsewhere.append(topic, partition, batch, done)
        else:
            append_here(self._logs, topic, partition, batch, done)

    async def close(self) -> None:
        """Stop sending, and refuse the waiting appends because the node is stopping."""
        await self._elsewhere.close()


class Partition:
    """One partition, whichever node owns it.

    While it has no owner, because its node has just ended, reads and waits retry for 15 s, and then raise NotOwner or
    PeerUnreachable, which are retriable. All raise LogDeleted when the topic was deleted or recreated meanwhile.
    """

    __slots__ = ("_all", "_logs", "partition", "stream_id", "topic")

    def __init__(self, partitions: Partitions, logs: Logs, topic: str, partition: int, stream_id: int) -> None:
        self.topic = topic
        self.partition = partition
        self.stream_id = stream_id
        """The identity of its records for the translator."""
        self._all = partitions
        self._logs = logs

    def append(self, batch: Batch, done: AppendDone) -> None:
        """Append a batch; see :meth:`Partitions.append`."""
        self._all.append(self.topic, self.partition, batch, done)

    async def state(self) -> ReadableLog:
        """Return the log with its present start, high watermark and last stable offset, as its owner knows them."""

        async def refreshed(log: ReadableLog) -> ReadableLog:
            await log.refresh()
            return log

        return await self._at_owner(refreshed)

    async def read_committed(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Return batches of committed records from ``offset`` on, whose last one may exceed ``max_bytes``; none at the
        end of the log. Raises OffsetOutOfRange."""
        return await self._at_owner(lambda log: log.read_committed(offset, max_bytes))

    async def await_record(self, offset: int) -> None:
        """Return once the committed records reach beyond ``offset``, or the partition has ended for good."""
        while True:
            log = await self.state()
            await until(log, partial(_is_over, log, offset))
            if log.is_open:
                return

    async def _at_owner(self, ask: Callable[[ReadableLog], Awaitable[T]]) -> T:
        async def once() -> T:
            log = self._logs.to_read(self.topic, self.partition)
            if log is None or log.stream_id != self.stream_id:
                raise LogDeleted(f"{self.topic}-{self.partition} was deleted")
            return await ask(log)

        return await patiently(once)


def _is_over(log: ReadableLog, offset: int) -> bool:
    """Return whether a wait for ``offset`` is over at this log: it is there, comes no more, or has perhaps another
    owner."""
    final = log.final_offset
    return not log.is_open or log.committed_limit(offset) > offset or (final is not None and offset >= final)


def append_here(logs: Logs, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
    """Append a batch to this node's log."""
    log = logs.get(topic, partition) or logs.hidden(topic, partition)
    if log is None:
        done(NOT_APPENDED, LogDeleted(f"{topic}-{partition} is not served any more"))
    else:
        log.append(batch, done)
