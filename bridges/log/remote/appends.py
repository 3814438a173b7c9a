"""Appends to partitions of any node: to this node's own log, or through the partition's owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bridges.errors import LogDeleted
from bridges.log.interfaces import NOT_APPENDED

if TYPE_CHECKING:
    from bridges.log.interfaces import AppendDone, Batch
    from bridges.log.logs import Logs


class Elsewhere(Protocol):
    """The way to other nodes."""

    def takes(self, topic: str, partition: int) -> bool:
        """Return whether another node must append a batch for the partition, or the batch must wait behind a forwarded
        one."""

    def append(self, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
        """Append through the owner; see :meth:`Appends.append`."""

    async def close(self) -> None:
        """Stop sending."""


class Appends:
    """The appends of one node: to its own logs, and through ``elsewhere`` to other nodes."""

    def __init__(self, logs: Logs, elsewhere: Elsewhere) -> None:
        self._logs = logs
        self._elsewhere = elsewhere

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


def append_here(logs: Logs, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
    """Append a batch to this node's log."""
    log = logs.get(topic, partition) or logs.hidden(topic, partition)
    if log is None:
        done(NOT_APPENDED, LogDeleted(f"{topic}-{partition} is not served any more"))
    else:
        log.append(batch, done)
