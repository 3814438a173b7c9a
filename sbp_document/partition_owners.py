"""Appends of SBP's own document dialect into partitions that this node owns.

A partition has one writer. A batch that arrives over ``sbp-v0.1`` for the stream of a partition therefore goes to the
partition's log, like one from any front: consumers of all protocols see it at once, and no writer is fenced.
"""

from __future__ import annotations

from collections.abc import Callable

from bridges.catalog.topics.catalog import Catalog
from bridges.catalog.topics.topic import Change, ChangeKind
from bridges.errors import (
    BatchInvalid,
    BatchTooLarge,
    LogDeleted,
    LogError,
    OffsetOutOfRange,
    PartitionSealed,
    StorageFull,
    TopicImporting,
)
from bridges.formats import format_of
from bridges.log.logs import Logs
from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
from sbp_back.errors import ErrorCode, NoSpace, SbpError


class PartitionOwners:
    """Lookup of the partition log that writes a stream, if the stream is a partition's."""

    def __init__(self, catalog: Catalog, logs: Logs) -> None:
        self._catalog = catalog
        self._logs = logs
        self._partitions: dict[int, tuple[str, int]] | None = None
        catalog.on_change.append(self._changed)

    def _changed(self, change: Change) -> None:
        if self._partitions is None or change.topic is None:
            return
        for partition in change.topic.partitions:
            if change.kind is ChangeKind.DELETED:
                self._partitions.pop(partition.stream_id, None)
            else:
                self._partitions[partition.stream_id] = (change.topic.name, partition.index)

    def find(self, stream_id: int) -> PartitionOwner | None:
        """Return the owner of a stream's appends; None for a stream that is no partition's."""
        partitions = self._partitions
        if partitions is None:
            partitions = self._partitions = {
                partition.stream_id: (topic.name, partition.index)
                for topic in [*self._catalog.topics.values(), *self._catalog.hidden.values()]
                for partition in topic.partitions
            }
        place = partitions.get(stream_id)
        log = None if place is None else self._logs.get(*place) or self._logs.hidden(*place)
        return None if log is None else PartitionOwner(log)


class PartitionOwner:
    """A partition's log as the writer of a stream (:class:`sbp_document.server.lanes.StreamOwner`)."""

    __slots__ = ("_log",)

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def append(self, batch: bytearray, count: int, flags: int, done: Callable[[int, SbpError | None], None]) -> None:
        try:
            newest = format_of(flags).describe(batch).max_timestamp
        except BatchInvalid as error:
            done(-1, SbpError(ErrorCode.BAD_REQUEST, str(error)))
            return

        def stored(appended: Appended, error: LogError | None) -> None:
            done(appended.base, None if error is None else _sbp_error(error))

        self._log.append(Batch(batch, count, flags, newest), stored)


def _sbp_error(error: LogError) -> SbpError:
    """Translate an error of the log into one of the backend."""
    if isinstance(error, StorageFull):
        return NoSpace(str(error))
    if isinstance(error, BatchTooLarge):
        return SbpError(ErrorCode.PAYLOAD_TOO_LARGE, str(error))
    if isinstance(error, LogDeleted):
        return SbpError(ErrorCode.NOT_FOUND, str(error))
    if isinstance(error, PartitionSealed):
        return SbpError(ErrorCode.RANGE_ALREADY_SEALED, str(error))
    if isinstance(error, TopicImporting):
        return SbpError(ErrorCode.PRECONDITION_FAILED, str(error))
    if isinstance(error, OffsetOutOfRange | BatchInvalid):
        return SbpError(ErrorCode.BAD_REQUEST, str(error))
    return SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, str(error))
