"""Positions in bytes of a node's partitions: counted when somebody asks, kept from then on
(bridges/log/byte_column.py).

Only what is decided is counted: up to the last stable offset. Counting decodes the records of every batch once, slice
by slice (bridges/sliced.py) and for all who ask; later lookups read one interval of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from bridges.errors import BatchInvalid, DataCorrupt, LogError, LogUnavailable, OffsetOutOfRange
from bridges.formats import format_of
from bridges.formats.compression import DEFAULT_LIMIT
from bridges.formats.records import StoredBatch
from bridges.log.byte_column import EVENT_HEADER, ByteColumn, BytePlace
from bridges.log.skips import past
from bridges.sliced import Sliced, SlicedWorks

if TYPE_CHECKING:
    from bridges.barrier import Barrier
    from bridges.log.partition_log import PartitionLog

_READ_BYTES = 256 * 1024
_AT_ONCE = 100
"""Records that are decoded in one go."""


class ByteSearch:
    """The positions in bytes of one node's partitions."""

    __slots__ = ("_barrier", "_counting", "_inflated_bytes", "_snapshot", "_works")

    def __init__(
        self,
        works: SlicedWorks,
        barrier: Barrier,
        snapshot: Callable[[PartitionLog], Awaitable[LogError | None]],
        inflated_bytes: int = DEFAULT_LIMIT,
    ) -> None:
        self._works = works
        self._barrier = barrier
        self._snapshot = snapshot
        self._inflated_bytes = inflated_bytes
        self._counting: dict[PartitionLog, asyncio.Task[None]] = {}

    async def end(self, log: PartitionLog) -> BytePlace:
        """Where the next event will begin. Raises DataCorrupt, LogUnavailable, LogDeleted, like all of these."""
        await log.ready()
        return (await self._counted(log, log.last_stable_offset)).end

    async def position_of(self, log: PartitionLog, offset: int) -> int:
        """Where the record at ``offset``, or the next one if that is a gap, begins. Raises OffsetOutOfRange for one
        that was trimmed, or lies beyond the last stable offset."""
        await log.ready()
        while True:
            if not log.log_start_offset <= offset <= log.last_stable_offset:
                raise OffsetOutOfRange(f"offset {offset} of {log.topic}-{log.partition} has no position in bytes")
            start = log.log_start_offset
            column = await self._counted(log, offset)
            row = column.before(offset)
            try:
                if row is not None:
                    return row.position + await self._between(log, row.offset, offset)
                row = column.after(offset)
                position = row.position - await self._between(log, offset, row.offset)
            except OffsetOutOfRange:
                if log.log_start_offset == start:
                    raise
                continue  # the row was trimmed meanwhile
            if log.log_start_offset == offset and log.state.index.column is column:
                column.begin(BytePlace(offset, position))
            return position

    async def find(self, log: PartitionLog, position: int) -> BytePlace:
        """The record whose bytes include the one at ``position``, and where it begins; the end for the end's position.

        Raises OffsetOutOfRange for what was trimmed, or lies beyond the end.
        """
        end = await self.end(log)
        while position < end.position:
            start = log.log_start_offset
            column = await self._counted(log, end.offset)
            row = column.before_position(position)
            try:
                if row is None:
                    row = BytePlace(start, await self.position_of(log, start))
                if position < row.position:
                    break
                return await self._find_from(log, row, position)
            except OffsetOutOfRange:
                if log.log_start_offset == start:
                    raise
        if position == end.position:
            return end
        raise OffsetOutOfRange(
            f"position {position} of {log.topic}-{log.partition} was trimmed, or lies beyond its end"
        )

    async def keep_below(self, log: PartitionLog, offset: int) -> None:
        """Count what lies below ``offset``, which is to be trimmed, if positions of the log were ever asked for: it may
        have been told before the node was started anew. What cannot be read for good is not waited for."""
        column = log.state.index.column
        if column is not None and column.end.offset < offset:
            with suppress(DataCorrupt):
                await self._counted(log, offset)

    # --- counting -----------------------------------------------------------------------------------------------

    async def _counted(self, log: PartitionLog, target: int) -> ByteColumn:
        """The log's column, counted as far as ``target`` at least."""
        while True:
            column = log.state.index.column
            if (
                column is not None
                and column.saved_offset >= 0
                and column.end.offset >= min(target, log.last_stable_offset)
            ):
                return column
            task = self._counting.get(log)
            if task is None:
                task = self._counting[log] = asyncio.create_task(self._count(log))
                task.add_done_callback(partial(self._ended, log))
            await asyncio.shield(task)  # others may wait for it as well

    def _ended(self, log: PartitionLog, task: asyncio.Task[None]) -> None:
        del self._counting[log]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, LogError):
            self._barrier.caught("counting bytes", error, topic=log.topic, partition=log.partition)

    async def _count(self, log: PartitionLog) -> None:
        await log.ready()
        await log.trimmed()
        index = log.state.index
        if index.column is None:
            index.column = ByteColumn(log.log_start_offset)
        column = index.column
        while column.saved_offset < 0 and log.state.index is index:
            # Where counting begins has to be known even if nothing of it is left in the log.
            error = await self._snapshot(log)
            if error is not None:
                raise LogUnavailable(f"{log.topic}-{log.partition}: {error}") from error
        target = log.last_stable_offset
        while log.state.index is index and column.end.offset < target:
            start = column.end.offset
            try:
                batches = await log.read_committed(start, _READ_BYTES)
            except OffsetOutOfRange:
                if column.end.offset == start and log.log_start_offset <= start:
                    raise
                continue
            if not batches:
                behind = min(past(log.skipped, start), target)
                if behind == start:
                    raise LogUnavailable(f"{log.topic}-{log.partition} has nothing at {start}, below its end {target}")
                await log.trimmed()
                if log.state.index is index and column.end.offset == start:
                    column.add(behind, 0, 0)  # the rest cannot be read
            for batch in batches:
                events = await self._works.run(
                    partial(_events, batch, start, batch.end_offset, self._inflated_bytes),
                    batch.end_offset - batch.base_offset,
                )
                await log.trimmed()
                if log.state.index is not index or column.end.offset != start:
                    break
                column.add(batch.end_offset, events, len(batch.payload))
                start = batch.end_offset
                if start >= target:
                    break
                await asyncio.sleep(0)

    async def _batches(self, log: PartitionLog, start: int, end: int) -> AsyncIterator[StoredBatch]:
        while start < end:
            batches = await log.read_committed(start, _READ_BYTES)
            if not batches:
                return
            for batch in batches:
                if batch.base_offset >= end:
                    return
                yield batch
                start = batch.end_offset
                await asyncio.sleep(0)

    async def _between(self, log: PartitionLog, start: int, end: int) -> int:
        """Bytes of the records in ``[start, end)``."""
        total = 0
        async for batch in self._batches(log, start, end):
            work = partial(_events, batch, start, end, self._inflated_bytes)
            total += await self._works.run(work, batch.end_offset - batch.base_offset)
        return total

    async def _find_from(self, log: PartitionLog, row: BytePlace, position: int) -> BytePlace:
        at = row.position
        async for batch in self._batches(log, row.offset, log.last_stable_offset):
            span = batch.end_offset - batch.base_offset
            count = partial(_events, batch, row.offset, batch.end_offset, self._inflated_bytes)
            events = await self._works.run(count, span)
            if at + events > position:
                find = partial(_record_at, batch, row.offset, at, position, self._inflated_bytes)
                return await self._works.run(find, span)
            at += events
        raise OffsetOutOfRange(f"nothing of {log.topic}-{log.partition} lies at position {position} any more")

    async def close(self) -> None:
        """Give up what is being counted."""
        tasks = list(self._counting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _events(batch: StoredBatch, start: int, end: int, limit: int) -> Sliced[int]:
    """Bytes of the records of ``batch`` in ``[start, end)``: none if any of its records cannot be read."""
    total = 0
    try:
        for count, record in enumerate(format_of(batch.flags).records(batch, limit), 1):
            if record is None or not count % _AT_ONCE:
                yield None
            if record is not None and start <= record.offset < end:
                total += EVENT_HEADER + len(record.value or b"")
    except BatchInvalid:
        return 0
    return total


def _record_at(batch: StoredBatch, start: int, at: int, position: int, limit: int) -> Sliced[BytePlace]:
    """The record at ``position``, which is one of ``batch``, whose first one from ``start`` on lies ``at``."""
    for count, record in enumerate(format_of(batch.flags).records(batch, limit), 1):
        if record is None or not count % _AT_ONCE:
            yield None
        if record is not None and record.offset >= start:
            behind = at + EVENT_HEADER + len(record.value or b"")
            if behind > position:
                return BytePlace(record.offset, at)
            at = behind
    raise BatchInvalid(f"the batch at {batch.base_offset} has fewer records than were counted")
