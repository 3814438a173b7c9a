"""Lookups of records by timestamp, and corrections of false claims in batch headers.

A partition's index stores the claims of batch headers (state/offset_index.py). A lookup takes the first row that claims
enough and reads the records of its batches. If no record matches, the claim is false, and the row is corrected: so a
claim misleads once. Retention uses the time of the append, and the claims of Kafka's batches. It believes times up to
``CLOCK_SKEW_MS`` ahead of the clock; a later claim that keeps a partition from being trimmed is checked.

Work runs slice by slice (anabranch_kit/run/sliced.py), and the searches of all clients take turns, read by read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.sliced import SLICE_RECORDS, Sliced, SlicedWorks
from anabranch_kit.run.turns import Turns
from bridges.errors import BatchInvalid, LogError, OffsetOutOfRange
from bridges.formats import APPEND_TIME, FORMAT_MASK, FormatId, format_of, records_of
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.columns import Unusual
from bridges.formats.records import StoredBatch
from bridges.log.state.offset_index import Row

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.log.partition.partition_log import PartitionLog

_log = structlog.get_logger("anabranch.time_search")

CLOCK_SKEW_MS = 3_600_000
"""How far ahead of the node's clock a timestamp may lie without a check; Kafka's default for records."""

Found = tuple[int, int]
"""(offset, timestamp in ms) of a record."""

_READ_BYTES = 256 * 1024
_AT_ONCE = 8
ROWS_PER_CHECK = 64
PATIENCE_S = 5.0
"""Seconds for which one partition's doubtful claims may hold up retention of the other partitions."""


class TimeSearch:
    """The searches in one node's partitions."""

    __slots__ = ("_barrier", "_gate", "inflated_bytes", "settling", "works")

    def __init__(self, works: SlicedWorks, barrier: Barrier, inflated_bytes: int = DEFAULT_LIMIT) -> None:
        self._barrier = barrier
        self.settling: dict[PartitionLog, asyncio.Task[None]] = {}
        self.works = works
        self.inflated_bytes = inflated_bytes
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def first(self, log: PartitionLog, timestamp: int) -> Found | None:
        """Return the first record, in offset order, not older than ``timestamp``; None if none is.

        Raises DataCorrupt, LogUnavailable, LogDeleted.
        """
        while (row := log.state.index.seek(timestamp)) is not None:
            found = await self._search_row(log, row, timestamp, _claim)
            if found is not None:
                return found
        return None

    async def highest(self, log: PartitionLog) -> Found | None:
        """Return the earliest record with the highest timestamp kept; None if no record has one. Raises like
        :meth:`first`."""
        while (row := log.state.index.highest()) is not None:
            found = await self._search_row(log, row, row.highest, _claim)
            if found is not None:
                return found
        return None

    async def settle_ages(self, log: PartitionLog, oldest: int, now_ms: int) -> None:
        """Check claims that keep records older than ``oldest`` from being trimmed, a bounded number at a time.

        Returns when that is done or takes long: then it continues in the background, and the next call waits for it.
        """
        task = self.settling.get(log)
        if task is None:
            if self._doubtful(log, oldest, now_ms) is None:
                return
            task = self.settling[log] = asyncio.create_task(self._check_claims(log, oldest, now_ms))
            task.add_done_callback(partial(self._end_check, log))
        await asyncio.wait({task}, timeout=PATIENCE_S)

    def _doubtful(self, log: PartitionLog, oldest: int, now_ms: int) -> Row | None:
        index = log.state.index
        row = index.blocking(oldest)
        return None if row is None or row.highest <= now_ms + CLOCK_SKEW_MS or index.is_confirmed(row) else row

    async def _check_claims(self, log: PartitionLog, oldest: int, now_ms: int) -> None:
        for _ in range(ROWS_PER_CHECK):
            row = self._doubtful(log, oldest, now_ms)
            if row is None:
                return
            if await self._search_row(log, row, row.highest, _age) is not None:
                log.state.index.confirm(row)

    def _end_check(self, log: PartitionLog, task: asyncio.Task[None]) -> None:
        del self.settling[log]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, LogError):
            # The next check tries again.
            _log.warning("timestamps not looked into", topic=log.topic, partition=log.partition, error=str(error))
        elif error is not None:
            self._barrier.caught("looking into timestamps", error, topic=log.topic, partition=log.partition)

    async def close(self) -> None:
        """Stop the checks for retention."""
        tasks = list(self.settling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one row ------------------------------------------------------------------------------------------------

    async def _search_row(
        self, log: PartitionLog, row: Row, timestamp: int, time_of: Callable[[StoredBatch], int]
    ) -> Found | None:
        """Return the first record of ``row`` not older than ``timestamp``. Only batches with a sufficient ``time_of``
        are read. Without a match the row is corrected."""
        index = log.state.index
        async with aclosing(self._batches(log, row)) as batches:
            async for batch in batches:
                if time_of(batch) >= timestamp:
                    found, _ = await self._walk(log, batch, timestamp)
                    if found is not None:
                        return found
        # Correct the row by all its batches, so that its false claim misleads no other lookup.
        highest = counted = unreadable = -1
        async with aclosing(self._batches(log, row)) as batches:
            async for batch in batches:
                claim, age = _claim(batch), _age(batch)
                if claim > highest or age > counted:
                    _, of_records = await self._walk(log, batch, None)
                    if of_records is None:
                        unreadable = now_ms()
                    else:
                        highest = max(highest, min(claim, of_records))
                        counted = max(counted, min(age, of_records))
        index.correct(row.start, highest, counted, unreadable)
        return None

    async def _batches(self, log: PartitionLog, row: Row) -> AsyncGenerator[StoredBatch, None]:
        """Yield the batches of a row, and those that are appended to it meanwhile."""
        index = log.state.index
        position, turns = row.start, Turns()
        while True:
            position = max(position, log.log_start_offset)
            end = index.end_of(row.start)
            if position >= (log.high_watermark if end is None else end) or log.state.index is not index:
                return
            try:
                async with self._gate:
                    batches = await log.read_batches(position, _READ_BYTES)
            except OffsetOutOfRange:
                if position >= log.log_start_offset:
                    raise
                continue  # the log start has risen
            if not batches:
                return
            for batch in batches:
                if end is not None and batch.base_offset >= end:
                    return
                yield batch
                position = batch.end_offset
                await turns.rest()

    async def _walk(
        self, log: PartitionLog, batch: StoredBatch, timestamp: int | None
    ) -> tuple[Found | None, int | None]:
        """Return (the first record not older than ``timestamp``, None) or (None, the highest timestamp of all records).
        The latter is None if the records cannot be read."""
        work = partial(walk, batch, log.log_start_offset, timestamp, self.inflated_bytes)
        await asyncio.sleep(0)  # its first slice takes a whole turn
        try:
            return await self.works.run(work, batch.end_offset - batch.base_offset)
        except BatchInvalid:
            # No reader gets a record of it; a read reports whether it is damaged or too large.
            return None, None


def _claim(batch: StoredBatch) -> int:
    if batch.flags & APPEND_TIME:
        return batch.written_ms
    try:
        return format_of(batch.flags).describe(batch.payload).max_timestamp
    except BatchInvalid:
        return -1


def _age(batch: StoredBatch) -> int:
    """Return a batch's claim if it counts as the batch's age, as in Kafka (see :class:`.OffsetIndex`); else -1."""
    return _claim(batch) if batch.flags & FORMAT_MASK == FormatId.KAFKA else -1


def walk(batch: StoredBatch, start: int, timestamp: int | None, limit: int) -> Sliced[tuple[Found | None, int | None]]:
    highest = -1
    for count, record in enumerate(records_of(format_of(batch.flags), batch, limit, start), 1):
        if count == SLICE_RECORDS:
            # The first slice, which needs no thread, ends most searches. Columns read the whole batch.
            try:
                return (yield from _by_columns(batch, start, timestamp, limit))
            except (Unusual, BatchInvalid):
                pass
        if record is None or not count % SLICE_RECORDS:
            yield None
        if record is not None and record.timestamp > highest:
            highest = record.timestamp
            if timestamp is not None and highest >= timestamp:
                return (record.offset, highest), None
    return None, highest


def _by_columns(
    batch: StoredBatch, start: int, timestamp: int | None, limit: int
) -> Sliced[tuple[Found | None, int | None]]:
    yield None  # numpy may be imported below, which must not be on the event loop
    from bridges.formats.columns.translation import rows_of

    highest = -1
    for found in rows_of([batch], limit):
        yield None
        if found is not None:
            inside = found[1].offsets >= start
            offsets, times = found[1].offsets[inside], found[1].timestamps[inside]
            if timestamp is not None and (late := times >= max(timestamp, 0)).any():
                first = int(late.argmax())
                return (int(offsets[first]), int(times[first])), None
            highest = max(highest, int(times.max(initial=-1)))
    return None, highest
