"""Import of another cluster's batches into a partition's log, each at its original offset.

Offsets that the other log lacks (removed by compaction, or below its log start) become a batch without records, as
compaction leaves one. A batch whose offsets are in the log already is compared with the stored bytes before it counts
as written, because a client's claim is no proof.
"""

from __future__ import annotations

import asyncio
from collections import deque

from anabranch_kit.memory.buffers import fresh
from anabranch_kit.run.turns import Turns
from bridges.errors import BatchInvalid, LogError, LogUnavailable
from bridges.formats.kafka import encode, marker
from bridges.formats.producer import InTransaction
from bridges.formats.records import StoredBatch
from bridges.log.interfaces import Appended, Batch, Guard
from bridges.log.partition.partition_log import PartitionLog
from spark_pipeline.node.intake_forms import Brought, Form, KafkaForm

_KAFKA = KafkaForm()
_MOST_GAP = (1 << 31) - 1
"""Most offsets that one batch can span."""
IN_FLIGHT_BYTES = 16 * 1024 * 1024
_COMPARED_BYTES = 1024 * 1024


class ImportConflict(LogError):
    """The log and the migration have different data at ``offset``."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class Intake:
    """A writer of batches to one partition for one run of a migration, with many appends in flight.

    Call :meth:`take` with pieces of a record set as they arrive, in buffers from :meth:`buffer`, and :meth:`finish` at
    the end. Both raise the first error of any batch so far: BatchInvalid, BatchTooLarge, ImportConflict, ImportFenced,
    LogUnavailable, StorageFull.
    """

    def __init__(self, log: PartitionLog, epoch: int, form: Form = _KAFKA) -> None:
        self._log = log
        self._epoch = epoch
        self._form = form
        self._rest = memoryview(b"")
        self._in_flight = 0
        self._error: LogError | None = None
        self._wake = asyncio.Event()
        self._stored: deque[StoredBatch] = deque()
        self.appended = 0
        """Number of batches that are durable now."""
        self.offsets = 0
        """Offsets of the appended batches that the client sent; filled gaps do not count."""
        self.compared = 0
        """Number of batches that were in the log already, and are equal."""
        self.bytes = 0
        self.missing = 0
        """Bytes that are missing from the last, incomplete batch."""

    def buffer(self, size: int) -> tuple[bytearray, int]:
        """Return a buffer for the next ``size`` bytes of the record set, and the position in it at which they begin.

        In front of that position is the incomplete rest of the previous buffer, so that only this rest is copied.
        """
        rest = self._rest
        data = fresh(len(rest) + size)
        data[: len(rest)] = rest
        return data, len(rest)

    async def take(self, data: bytearray) -> None:
        """Append the whole batches of a filled buffer from :meth:`buffer`; on return they are on their way to disk."""
        # Batches are views that keep this buffer alive: do not reuse it.
        self._rest = memoryview(b"")
        view = memoryview(data)
        self.missing = 0
        at = 0
        turns = Turns()
        while len(view) - at >= self._form.head_bytes:
            size = self._form.size(view, at)
            if len(view) - at < size:
                self.missing = size - (len(view) - at)
                break
            await self._batch(self._form.open(view[at : at + size]))
            at += size
            await turns.rest()
        self._rest = view[at:]

    async def finish(self) -> None:
        """Return when all taken batches are durable."""
        if self._rest and self._error is None:
            self._error = BatchInvalid(f"the last {len(self._rest)} bytes are no whole batch")
        await self.wait_until_quiet()
        if self._error is not None:
            raise self._error

    async def wait_until_quiet(self) -> None:
        """Return when nothing is in flight any more."""
        await self._room(0)

    async def fill(self, until: int) -> None:
        """Extend a log that ends before ``until`` with offsets without records; durable after :meth:`finish`."""
        while self._log.next_offset < until:
            base = self._log.next_offset
            count = min(until - base, _MOST_GAP)
            await self._append(Batch(encode([], base, count=count), count, _KAFKA.flags), base)

    async def abort_open(self) -> int:
        """Abort all open transactions and return their number; their producers no longer exist."""
        opened = list(self._log.state.transactions.open)
        for producer in opened:
            part = InTransaction(producer, -1, False)
            batch = Batch(marker(part, 0), 1, _KAFKA.flags, transaction=part)
            await self._append(batch, self._log.next_offset)
        return len(opened)

    # --- one batch --------------------------------------------------------------------------------------------------

    async def _batch(self, brought: Brought) -> None:
        base = brought.base
        if base > self._log.next_offset:
            await self.fill(base)
        if base < self._log.next_offset:
            await self._compare(brought.payload, base, base + brought.span)
            return
        batch = Batch(
            brought.payload,
            brought.span,
            self._form.flags,
            brought.newest,
            brought.producer,
            transaction=brought.transaction,
        )
        await self._append(batch, base, brought.span)

    async def _append(self, batch: Batch, base: int, brought: int = 0) -> None:
        size = len(batch.payload)
        await self._room(size)
        if self._error is not None:
            raise self._error
        if not self._log.is_open:
            raise LogUnavailable(f"{self._log.topic}-{self._log.partition} is being opened anew")
        batch.guard = Guard(base)
        batch.import_epoch = self._epoch
        self._in_flight += size

        def done(appended: Appended, error: LogError | None) -> None:
            self._in_flight -= size
            if error is None:
                self.appended += 1
                self.offsets += brought
                self.bytes += size
            elif self._error is None:
                self._error = error
            self._wake.set()

        self._log.append(batch, done)

    async def _room(self, size: int) -> None:
        """Return when ``size`` more bytes may be in flight; with 0, when nothing is in flight."""
        while self._in_flight and (not size or self._in_flight + size > IN_FLIGHT_BYTES):
            self._wake.clear()
            await self._wake.wait()

    # --- what is there already --------------------------------------------------------------------------------------

    async def _compare(self, payload: memoryview, base: int, end: int) -> None:
        log = self._log
        place = f"{log.topic}-{log.partition}"
        if end > log.next_offset:
            raise ImportConflict(f"{place} ends at {log.next_offset}, within the batch [{base}, {end})", base)
        await log.until(lambda: log.high_watermark >= end or not log.is_open)
        await log.ready()
        if log.high_watermark < end:
            raise LogUnavailable(f"{place} ends at {log.high_watermark} now")
        if end <= log.log_start_offset:
            return  # trimmed: it cannot be read any more, so there is nothing to compare
        stored = await self._find(base, len(payload))
        if stored is None or stored.base_offset != base or stored.end_offset != end:
            raise ImportConflict(f"offset {base} of {place} holds another batch than the migration copies there", base)
        there = memoryview(stored.payload)
        if len(there) != len(payload) or not self._form.same(there, payload):
            raise ImportConflict(f"{place} has other bytes at offset {base} than the migration brings", base)
        self.compared += 1

    async def _find(self, base: int, size: int) -> StoredBatch | None:
        """Return the stored batch that contains ``base``; keep those behind it, which are usually compared next."""
        stored = self._stored
        while stored and stored[0].end_offset <= base:
            stored.popleft()
        if not stored or stored[0].base_offset > base:
            stored.clear()
            stored.extend(await self._log.read_batches(base, max(size, _COMPARED_BYTES)))
            while stored and stored[0].end_offset <= base:
                stored.popleft()
        return stored[0] if stored else None
