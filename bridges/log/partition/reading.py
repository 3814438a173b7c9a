"""Reads of a partition, from memory or the backend, and facts about a read that need no reading."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bridges.errors import DataCorrupt, LogError, LogUnavailable, OffsetOutOfRange
from bridges.formats import FormatId
from bridges.log.damage.skips import next_after, past
from bridges.log.interfaces import Phase, Place
from bridges.log.streams import stored_batches
from bridges.log.transactions.partition_transactions import NEVER
from sbp_back.errors import ErrorCode, Lost, Reclaimed, SbpError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridges.formats.records import StoredBatch
    from bridges.log.interfaces import ReadDone
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog
    from sbp_back.wire.model import Entry

_MAX_DISTRUSTED = 100
_AS_STORED = 1 << FormatId.KAFKA
"""Formats whose readers get the stored bytes: only for these the size of an answer is known before the batches are
read."""


class Reading:
    """The readers' view of one partition's log."""

    __slots__ = ("_barrier", "_distrusted", "_log", "_logs", "locatable")

    def __init__(self, log: PartitionLog, logs: Logs) -> None:
        self._log = log
        self._logs = logs
        self._barrier = logs.barrier
        self._distrusted: set[int] = set()
        #: Whether readers get batches with the bytes that the log has: no longer once other formats were seen.
        self.locatable = True

    def read(self, offset: int, max_bytes: int, done: ReadDone, limit: int = NEVER) -> None:
        """Read whole batches from the one that contains ``offset``, of those that begin below ``limit``: at least one,
        unless all that remain are skipped.

        From a skipped offset on, it reads what follows the span. ``done`` may be called before this returns. Errors:
        OffsetOutOfRange, DataCorrupt, LogUnavailable, LogDeleted.
        """
        log = self._log
        if log.phase is not Phase.OPEN:
            log.when_open(lambda error: self._read_when_open(offset, max_bytes, done, limit, error))
            return
        answer = self.at_hand(offset, max_bytes, limit)
        if answer is not None:
            done(*answer)
            return
        offset, limit = self.within(offset, limit)

        def fetched(answer: list[Entry] | SbpError) -> None:
            failure: LogError | None = None
            batches: list[StoredBatch] = []
            if isinstance(answer, Reclaimed) and offset >= log.log_start_offset:
                self._read_reclaimed(offset, done)
                return
            if isinstance(answer, Lost):
                self._read_lost(answer, lambda: self.read(answer.end, max_bytes, done, limit), done)
                return
            if isinstance(answer, SbpError):
                failure = read_error(answer)
            else:
                try:
                    batches = stored_batches(answer)
                except Exception as error:  # noqa: BLE001 - logged, counted and answered
                    failure = self._read_failed(error)
            # The backend calls this, and has other requests to answer: hence the barrier.
            self._barrier.call("read answer", done, batches, failure, topic=log.topic, partition=log.partition)

        self._logs.client.fetch(log.stream_id, offset, max_bytes, fetched, limit=limit)

    def at_hand(self, offset: int, max_bytes: int, limit: int) -> tuple[list[StoredBatch], LogError | None] | None:
        """Return the answer to such a read of an open log if it needs no backend, or None."""
        log = self._log
        if offset < log.log_start_offset or offset > log.high_watermark:
            span = f"[{log.log_start_offset}, {log.high_watermark}]"
            return [], OffsetOutOfRange(f"offset {offset} of {log.topic}-{log.partition} is outside {span}")
        offset, limit = self.within(offset, limit)
        if offset >= limit:
            return [], None
        cached = log.tail.read(offset, max_bytes)
        if cached is None:
            return None
        while cached[-1].base_offset >= limit:
            cached.pop()
        return cached, None

    def _read_reclaimed(self, offset: int, done: ReadDone) -> None:
        """Answer once the log start is raised to the backend's data, so that the client's next request for the start
        finds some."""
        log = self._log

        def answer(task: asyncio.Task[LogError | None]) -> None:
            failure = None if task.cancelled() else task.result()
            if failure is None:
                failure = OffsetOutOfRange(f"offset {offset} of {log.topic}-{log.partition} is gone from the backend")
            self._barrier.call("read answer", done, [], failure, topic=log.topic, partition=log.partition)

        self._logs.missing.reclaimed(log, offset).add_done_callback(answer)

    def _read_lost(self, lost: Lost, read_on: Callable[[], None], done: ReadDone) -> None:
        """Answer with the batches after a lost span, once the span is declared lost."""
        log = self._log

        def answer(task: asyncio.Task[LogError | None]) -> None:
            failure = LogUnavailable("the node is stopping") if task.cancelled() else task.result()
            if failure is None:
                self._barrier.call("read", read_on, topic=log.topic, partition=log.partition)
            else:
                self._barrier.call("read answer", done, [], failure, topic=log.topic, partition=log.partition)

        self._logs.missing.lost(log, (lost.offset, lost.end)).add_done_callback(answer)

    def _read_when_open(self, offset: int, max_bytes: int, done: ReadDone, limit: int, error: LogError | None) -> None:
        if error is None:
            answered = False

            def answer(batches: list[StoredBatch], error: LogError | None) -> None:
                nonlocal answered
                answered = True
                done(batches, error)

            try:
                self.read(offset, max_bytes, answer, limit)
                return
            except Exception as failure:
                if answered:
                    raise  # by the reader's callback
                error = self._read_failed(failure)
        done([], error)

    def _read_failed(self, error: Exception) -> LogError:
        log = self._log
        self._barrier.caught("read", error, topic=log.topic, partition=log.partition)
        return LogError(f"reading {log.topic}-{log.partition} failed unexpectedly")

    def locate(self, offset: int, max_bytes: int, limit: int = NEVER) -> Place | None:
        """Return the place and size of the batches that such a read would find, at least one, without reading them.

        None when that is not known without reading: the batches may still be readable.
        """
        log = self._log
        if not self.locatable or log.state.formats & ~_AS_STORED:
            return None
        offset, limit = self.within(offset, limit)
        if offset >= limit:
            return None
        for distrusted in self._distrusted:
            if offset < distrusted < limit:
                limit = distrusted
        changing = log.replacing
        if changing is not None and offset < changing.end:
            if offset >= changing.start:
                return None  # its size is about to change
            limit = min(limit, changing.start)
        place = log.tail.measure(offset, max_bytes, limit) or self._logs.client.locate(
            log.stream_id, offset, max_bytes, limit
        )
        return None if place is None or place[0] in self._distrusted else Place(*place)

    def measure(self, offset: int, max_bytes: int, limit: int = NEVER) -> int:
        """Return the stored bytes that a read of ``max_bytes`` would get: at least one batch; 0 when that is not known
        without reading."""
        log = self._log
        offset, limit = self.within(offset, limit)
        if offset >= limit:
            return 0
        place = log.tail.measure(offset, max_bytes, limit) or self._logs.client.locate(
            log.stream_id, offset, max_bytes, limit
        )
        return 0 if place is None else place[2]

    def within(self, offset: int, limit: int) -> tuple[int, int]:
        """Return where a read from ``offset`` begins and must end; an empty range when the log is not open, or starts
        above."""
        log = self._log
        if log.phase is not Phase.OPEN or offset < log.log_start_offset:
            return offset, offset
        limit = min(limit, log.high_watermark)
        if log.skipped:
            offset = past(log.skipped, offset)
            limit = next_after(log.skipped, offset, limit)
        return offset, limit

    def distrust(self, offset: int) -> None:
        """Stop locating the batch at ``offset``, because it could not be read."""
        self._distrusted.add(offset)
        if len(self._distrusted) > _MAX_DISTRUSTED:
            self.locatable = False

    def available(self, offset: int, enough: int, limit: int = NEVER) -> int:
        """Return the bytes that a read from ``offset`` up to ``limit`` would find, counted only as far as
        ``enough``."""
        log = self._log
        if log.skipped:
            offset = past(log.skipped, offset)
        if offset >= min(limit, log.high_watermark):
            return 0
        cached = log.tail.bytes_from(offset, enough, limit)
        return enough if cached is None else cached


def read_error(error: SbpError) -> LogError:
    """Translate the backend's error for a reader."""
    if error.code == ErrorCode.RS_DATA_CORRUPTED:
        return DataCorrupt(str(error))
    if error.code in (ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, ErrorCode.OFFSET_OVERFLOW):
        return OffsetOutOfRange(str(error))
    return LogUnavailable(str(error))
