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
    """Of one node. ``elsewhere`` is None of a node by itself: then everything is appended here."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self.elsewhere: Elsewhere | None = None

    def append(self, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
        """Append a batch to a partition, wherever that is, in the order of these calls.

        ``done`` is called exactly once, on the event loop. Errors given to it: those of
        :meth:`.AppendPath.append`, and NotOwner where nobody has the partition. Repetitions
        are its owner's to recognise; of a batch without a producer LogUnavailable may mean that it was appended.
        """
        elsewhere = self.elsewhere
        if elsewhere is not None and elsewhere.takes(topic, partition):
            elsewhere.append(topic, partition, batch, done)
        else:
            self.append_here(topic, partition, batch, done)

    def append_here(self, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
        """Append it to this node's log."""
        log = self._logs.get(topic, partition) or self._logs.hidden(topic, partition)
        if log is None:
            done(NOT_APPENDED, LogDeleted(f"{topic}-{partition} is not served any more"))
        else:
            log.append(batch, done)

    async def close(self) -> None:
        """Send nothing more; whoever waits is told that the node is stopping."""
        if self.elsewhere is not None:
            await self.elsewhere.close()
