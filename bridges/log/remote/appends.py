"""Appends to partitions wherever they are: to this node's own log, or by way of the node that owns it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bridges.errors import LogDeleted
from bridges.log.interfaces import NOT_APPENDED

if TYPE_CHECKING:
    from bridges.log.interfaces import AppendDone, Batch
    from bridges.log.logs import Logs


class Elsewhere(Protocol):
    """What leads to other nodes."""

    def takes(self, topic: str, partition: int) -> bool:
        """Whether a batch for the partition is not this node's to append, or must wait behind one that was not."""

    def append(self, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
        """See :meth:`Appends.append`."""

    async def close(self) -> None:
        """Send nothing more."""


class Appends:
    """Of one node: its own logs, and what leads elsewhere."""

    def __init__(self, logs: Logs, elsewhere: Elsewhere) -> None:
        self._logs = logs
        self._elsewhere = elsewhere

    def append(self, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
        """Append a batch to a partition, wherever that is, in the order of these calls.

        ``done`` is called exactly once, on the event loop. Errors given to it: those of
        :meth:`.AppendPath.append`, and NotOwner where nobody has the partition. Repetitions
        are its owner's to recognise; of a batch without a producer LogUnavailable may mean that it was appended.
        """
        if self._elsewhere.takes(topic, partition):
            self._elsewhere.append(topic, partition, batch, done)
        else:
            append_here(self._logs, topic, partition, batch, done)

    async def close(self) -> None:
        """Send nothing more; whoever waits is told that the node is stopping."""
        await self._elsewhere.close()


def append_here(logs: Logs, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
    """Append a batch to this node's log."""
    log = logs.get(topic, partition) or logs.hidden(topic, partition)
    if log is None:
        done(NOT_APPENDED, LogDeleted(f"{topic}-{partition} is not served any more"))
    else:
        log.append(batch, done)
