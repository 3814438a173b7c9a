"""Positions in bytes of a node's partitions: counted on the first request, and kept from then on
(bridges/log/byte_positions/column.py).

Only decided batches are counted: up to the last stable offset. Counting decodes the records of every batch once, slice
by slice (anabranch_kit/run/sliced.py) and for all callers together; later lookups read one interval of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from anabranch_kit.run.shared import SharedWorks
from anabranch_kit.run.sliced import SlicedWorks
from anabranch_kit.run.task_set import TaskSet
from anabranch_kit.run.turns import Turns
from bridges.errors import DataCorrupt, LogError, LogUnavailable, OffsetOutOfRange, PositionLost, PositionTrimmed
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.records import StoredBatch
from bridges.log.byte_positions.column import ByteColumn, BytePlace
from bridges.log.byte_positions.event_bytes import bytes_of, record_at
from bridges.log.byte_positions.starts import ByteStart, ByteStarts
from bridges.log.damage.skips import Span, past

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.log.partition.partition_log import PartitionLog

_READ_BYTES = 256 * 1024


class ByteSearch:
    """The positions in bytes of one node's partitions."""

    __slots__ = ("_asked", "_barrier", "_counting", "_idle_s", "_inflated_bytes", "_snapshot", "_starts", "_works")

    def __init__(
        self,
        works: SlicedWorks,
        barrier: Barrier,
        snapshot: Callable[[PartitionLog], Awaitable[LogError | None]],
        starts: ByteStarts,
        inflated_bytes: int = DEFAULT_LIMIT,
        idle_s: float = 3600,
    ) -> None:
        self._idle_s = idle_s
        self._works = works
        self._barrier = barrier
        self._snapshot = snapshot
        self._starts = starts
        self._inflated_bytes = inflated_bytes
        self._asked = TaskSet()
        self._counting: SharedWorks[PartitionLog, None] = SharedWorks(self._note_failure)

    # --- looking up ---------------------------------------------------------------------------------------------

    def length(self, log: PartitionLog) -> int | None:
        """Return the position after everything durable; None if it is not counted yet, or a transaction is open: then
        :meth:`end` may wait."""
        column = log.state.index.column
        if column is None or column.saved_offset < 0 or column.end.offset != log.high_watermark:
            return None
        return column.end.position

    async def end(self, log: PartitionLog) -> BytePlace:
        """Return the place of the next event. Raises DataCorrupt, LogUnavailable, LogDeleted, like all of these."""
        await log.ready()
        return (await self._count_to(log, log.last_stable_offset)).end

    async def start(self, log: PartitionLog) -> int:
        """Return the position of the first byte that readers get."""
        first = await self.position_of(log, None)
        truncated = self._starts.find(log.stream_id)
        return first if truncated is None else max(first, truncated.position)

    async def position_of(self, log: PartitionLog, offset: int | None) -> int:
        """Return the position of the record at ``offset`` (None: the log's start), or of the next record if that is a
        gap.

        Raises OffsetOutOfRange for a trimmed offset, or one beyond the last stable offset.
        """
        await log.ready()
        while True:
            start, replacements = log.log_start_offset, log.replacements
            wanted = start if offset is None else offset
            if not start <= wanted <= log.last_stable_offset:
                raise OffsetOutOfRange(f"offset {offset} of {log.topic}-{log.partition} has no position in bytes")
            wanted = past(log.skipped, wanted)
            column = await self._count_to(log, wanted)
            try:
                position = await self._position(log, column, wanted)
                if log.is_same(replacements) or wanted >= column.firm:
                    return position  # otherwise compaction has moved what was counted
            except OffsetOutOfRange:
                if log.log_start_offset == start:
                    raise  # otherwise what was read was trimmed meanwhile
            await log.trimmed()

    async def _position(self, log: PartitionLog, column: ByteColumn, offset: int) -> int:
        known = column.at(offset)
        if known is not None:
            return known
        row = column.before(offset)
        if row is not None:
            position = row.position
            async for batch, at, takes in self._walk(log, column, row, offset):
                position = at + takes
                if batch.end_offset > offset:
                    position = at + await self._bytes(batch, row.offset, offset)
            return position
        replacements = log.replacements
        position = await self._position_before(log, column.after(offset), offset)
        same = log.is_same(replacements) and log.state.index.column is column
        if log.log_start_offset == offset and same:
            column.begin(BytePlace(offset, position))
        return position

    async def _position_before(self, log: PartitionLog, row: BytePlace, offset: int) -> int:
        position = row.position
        async for batch in self._batches(log, offset, row.offset):
            position -= await self._bytes(batch, offset, row.offset)
        return position

    async def find(self, log: PartitionLog, position: int) -> BytePlace:
        """Return the record that contains the byte at ``position``, and where it begins; for the end's position, the
        end.

        Raises PositionTrimmed below the start, PositionLost for what was counted and then declared lost,
        OffsetOutOfRange beyond the end.
        """
        batch, place = await self._find(log, position)
        if batch is None:
            return place
        work = partial(record_at, batch, place.position, position, self._inflated_bytes)
        return await self._works.run(work, batch.end_offset - batch.base_offset)

    async def find_batch(self, log: PartitionLog, position: int) -> BytePlace:
        """Return the batch that contains the byte at ``position``: its base offset and where it begins, even if its
        first records are trimmed.

        After compaction, an old position may lie inside another record than the original one. Then PositionLost is
        raised, with the log's start.
        """
        batch, place = await self._find(log, position)
        column = log.state.index.column
        if batch is not None and column is not None and place.offset < column.firm:
            work = partial(record_at, batch, place.position, position, self._inflated_bytes)
            record = await self._works.run(work, batch.end_offset - batch.base_offset)
            if record.position != position:
                lost = f"position {position} of {log.topic}-{log.partition} was told before compaction took records"
                raise PositionLost(lost, log.log_start_offset, await self.start(log))
        return place

    async def _find(self, log: PartitionLog, position: int) -> tuple[StoredBatch | None, BytePlace]:
        end = await self.end(log)
        while True:
            first, replacements = log.log_start_offset, log.replacements
            start = position if self.is_readable(log, position) else await self.start(log)
            if position < start:
                place = f"{log.topic}-{log.partition}"
                raise PositionTrimmed(f"position {position} of {place} was trimmed: it begins at {start}", start)
            if position >= end.position:
                if position == end.position:
                    return None, end
                raise OffsetOutOfRange(f"position {position} of {log.topic}-{log.partition} lies beyond its end")
            try:
                column = await self._count_to(log, end.offset)
                found = await self._find_above(log, column, position)
                if log.is_same(replacements) or found[1].offset >= column.firm:
                    return found
            except PositionLost:
                if log.is_same(replacements):
                    raise
            except OffsetOutOfRange:
                if log.log_start_offset == first and log.is_same(replacements):
                    raise  # otherwise what was read was trimmed meanwhile, or moved
            await log.trimmed()

    async def _find_above(self, log: PartitionLog, column: ByteColumn, position: int) -> tuple[StoredBatch, BytePlace]:
        row = column.before_position(position)
        if row is None:
            first = log.log_start_offset
            row = BytePlace(first, await self.position_of(log, first))
        async for batch, at, takes in self._walk(log, column, row, log.last_stable_offset):
            if position < at:
                lost = f"position {position} of {log.topic}-{log.partition} was declared lost, up to {at}"
                raise PositionLost(lost, batch.base_offset, at)
            if position < at + takes:
                before = await self._bytes(batch, batch.base_offset, row.offset)
                return batch, BytePlace(batch.base_offset, at - before)
        behind = column.end
        if row.position <= position < behind.position and past(log.skipped, row.offset) >= behind.offset:
            raise PositionLost(f"position {position} of {log.topic}-{log.partition} was declared lost", *behind)
        raise OffsetOutOfRange(f"nothing of {log.topic}-{log.partition} lies at position {position} any more")

    def when_counted(self, log: PartitionLog, done: Callable[[LogError | None], None]) -> None:
        """Call back when everything that is decided now is counted, or with the error that prevents it."""

        def ended(task: asyncio.Task[BytePlace]) -> None:
            error = LogUnavailable("the node is stopping") if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, LogError):
                self._barrier.caught("counting bytes", error, topic=log.topic, partition=log.partition)
                error = LogUnavailable(f"{log.topic}-{log.partition}: counting bytes failed unexpectedly")
            self._barrier.call("counting bytes", done, error, topic=log.topic, partition=log.partition)

        self._asked.spawn(self.end(log)).add_done_callback(ended)

    # --- what is trimmed, or declared lost ------------------------------------------------------------------------

    async def trim(self, log: PartitionLog, position: int) -> int:
        """Make the bytes below ``position`` unreadable, durably, even inside a record; return the start.

        The record stays in the log for readers of other protocols, and is trimmed with the next one. Raises
        OffsetOutOfRange (beyond the end), and the errors of :meth:`.PartitionLog.trim`.
        """
        try:
            record = await self.find(log, position)
        except PositionTrimmed as error:
            return error.start
        except PositionLost as error:
            record, position = BytePlace(error.offset, error.position), error.position
        await self._starts.save(log.stream_id, ByteStart(position, record))
        await log.trim(record.offset, own=True)
        log.moved()
        return await self.start(log)

    async def keep_around(self, log: PartitionLog, span: Span) -> None:
        """Preserve, for good, the bytes that ``span`` was counted with; its batches are about to be declared lost.

        Raises LogUnavailable if that cannot be made durable now.
        """
        column = log.state.index.column
        first, end = span
        if not log.is_open or column is None:
            return
        # Positions that clients learned before a restart may not be counted yet.
        with suppress(DataCorrupt):
            await self._count_to(log, end)
        if column.end.offset <= first or log.state.index.column is not column:
            return  # it will be counted without them
        if column.end.offset < end:
            column.add(end, 0, 0)
        # Count the span's end backwards from the next row, because the span itself may be damaged. If there is damage
        # on that side as well, nothing can be counted any more.
        with suppress(DataCorrupt):
            column.pin(BytePlace(end, await self._position_before(log, column.after(end), end)))
        with suppress(DataCorrupt):
            first = max(first, log.log_start_offset)
            column.pin(BytePlace(first, await self._position(log, column, first)))
        error = await self._snapshot(log)
        if error is not None:
            raise LogUnavailable(f"{log.topic}-{log.partition}: {error}") from error

    def reads(self, log: PartitionLog, offset: int) -> None:
        """Note a reader that continues from ``offset``, by a position."""
        column = log.state.index.column
        if column is not None:
            column.lowest_read.note(offset, self._idle_s)

    def lowest_read(self, log: PartitionLog) -> int | None:
        """Return the lowest offset read lately by a position; None without reads."""
        column = log.state.index.column
        return None if column is None else column.lowest_read.lowest(self._idle_s)

    async def loosen(self, log: PartitionLog, offset: int) -> None:
        """Save the position of ``offset``, durably: compaction is about to remove records below it.

        Raises LogUnavailable if that cannot be made durable now, DataCorrupt.
        """
        if log.state.index.column is None:
            return
        column = await self._count_to(log, offset)
        if offset > column.firm:
            column.loosen(BytePlace(offset, await self.position_of(log, offset)))
        error = await self._snapshot(log)
        if error is not None:
            raise LogUnavailable(f"{log.topic}-{log.partition}: {error}") from error

    def is_readable(self, log: PartitionLog, position: int) -> bool:
        """Return whether ``position``, which does not lie beyond the end, certainly lies above the log's start. Then
        nothing below it need be counted."""
        column, truncated = log.state.index.column, self._starts.find(log.stream_id)
        row = None if column is None else column.before_position(position)
        above = truncated is None or position >= truncated.position
        return above and row is not None and row.offset >= past(log.skipped, log.log_start_offset)

    async def keep_below(self, log: PartitionLog, offset: int) -> None:
        """Count what lies below ``offset``, which is about to be trimmed, if the log has positions: clients may have
        learned them before a restart. Unreadable data is not counted."""
        column = log.state.index.column
        if column is not None and column.end.offset < offset:
            with suppress(DataCorrupt):
                await self._count_to(log, offset)

    # --- counting -----------------------------------------------------------------------------------------------

    async def _count_to(self, log: PartitionLog, target: int) -> ByteColumn:
        """Return the log's column, counted at least up to ``target``."""
        while True:
            column = log.state.index.column
            if (
                column is not None
                and column.saved_offset >= 0
                and column.end.offset >= min(target, log.last_stable_offset)
            ):
                return column
            await self._counting.wait(log, partial(self._count, log))

    def _note_failure(self, log: PartitionLog, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, LogError):
            self._barrier.caught("counting bytes", error, topic=log.topic, partition=log.partition)

    async def _count(self, log: PartitionLog) -> None:
        await log.ready()
        await log.trimmed()
        index = log.state.index
        if index.column is None:
            index.column = self._new_column(log)
        column = index.column
        while column.saved_offset < 0 and log.state.index is index:
            # The beginning of the count must be stored, because the log may lose all that it was counted from.
            if (unread := log.state.unread) >= 0:
                raise DataCorrupt(
                    f"{log.topic}-{log.partition} has no positions in bytes while the front that wrote the batch at "
                    f"offset {unread} is not installed"
                )
            await log.ready()  # a log that was closed meanwhile saves nothing
            error = await self._snapshot(log)
            if error is not None:
                raise LogUnavailable(f"{log.topic}-{log.partition}: {error}") from error
        target = log.last_stable_offset
        turns = Turns()
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
                events = await self._bytes(batch, start, batch.end_offset)
                await log.trimmed()
                if log.state.index is not index or column.end.offset != start:
                    break
                column.add(batch.end_offset, events, len(batch.payload))
                start = batch.end_offset
                if start >= target:
                    break
                if not self._counting.is_wanted(log):
                    return  # the next caller continues here: a log may take an hour
                await turns.rest()

    def _new_column(self, log: PartitionLog) -> ByteColumn:
        begin, truncated = log.log_start_offset, self._starts.find(log.stream_id)
        if truncated is None:
            return ByteColumn(begin)
        # Its snapshots are lost.
        offset, position = truncated.record
        if begin > offset:
            offset, position = begin, truncated.position
        return ByteColumn(offset, position=position)

    async def _batches(self, log: PartitionLog, start: int, end: int) -> AsyncIterator[StoredBatch]:
        turns = Turns()
        while start < end:
            batches = await log.read_committed(start, _READ_BYTES)
            if not batches:
                return
            for batch in batches:
                if batch.base_offset >= end:
                    return
                yield batch
                start = batch.end_offset
                await turns.rest()

    async def _walk(
        self, log: PartitionLog, column: ByteColumn, row: BytePlace, end: int
    ) -> AsyncIterator[tuple[StoredBatch, int, int]]:
        """Yield the batches from ``row`` on that begin below the offset ``end``: (batch, where it or the row begins,
        the bytes that it takes from there on)."""
        offset, at = row
        async for batch in self._batches(log, row.offset, end):
            if batch.base_offset > offset:
                # A lost span lies between. Each counted part of it is followed by a row.
                place = column.before(batch.base_offset)
                at = at if place is None else max(at, place.position)
            takes = await self._bytes(batch, row.offset, batch.end_offset)
            yield batch, at, takes
            offset, at = batch.end_offset, at + takes

    async def _bytes(self, batch: StoredBatch, start: int, end: int) -> int:
        """Return the bytes of the offsets of ``batch`` in ``[start, end)``."""
        if end <= batch.base_offset or end <= start:
            return 0
        work = partial(bytes_of, batch, start, end, self._inflated_bytes)
        return await self._works.run(work, batch.end_offset - batch.base_offset)

    async def close(self) -> None:
        await self._asked.close()
        tasks = self._counting.tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
