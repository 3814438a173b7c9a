"""Upkeep of a partition's log, which keeps it small and quick to open: trimming, retention, snapshots of its state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog

from bridges.errors import LogError, LogUnavailable, OffsetOutOfRange, StorageFull
from sbp_back.errors import SbpError

if TYPE_CHECKING:
    from bridges.log.interfaces import Rebuilt
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.state.partition_state import StateCapture

_log = structlog.get_logger("anabranch.logs")

_NEVER = 1 << 62
_SNAPSHOT_BATCH_COST = 2048
"""Bytes that a batch counts on top of its size when a snapshot is decided on: rebuilding also costs per batch."""


class Upkeep:
    """The trimming of one partition's log, and the decision when its next snapshot is due."""

    __slots__ = (
        "_log",
        "_logs",
        "_needed",
        "_snapshot_bytes",
        "_snapshot_offset",
        "_trimming",
        "since_snapshot",
        "snapshot_at",
    )

    def __init__(self, log: PartitionLog, logs: Logs) -> None:
        self._log = log
        self._logs = logs
        self._snapshot_bytes = logs.options.snapshot_bytes
        self._snapshot_offset = -1
        self._needed = 0  # callers that cannot continue without a snapshot
        self._trimming: asyncio.Future[None] | None = None
        # The cost of appends since the last saved snapshot (:func:`rebuild_cost`), and the cost at which the next one
        # is requested.
        self.since_snapshot = 0
        self.snapshot_at = self._snapshot_bytes

    def opened(self, found: Rebuilt) -> None:
        """Begin with the state ``found`` at the opening."""
        self._snapshot_offset = found.snapshot_offset
        # Count what was read at the opening: a node that crashes again and again must not read more each time.
        self.since_snapshot = found.cost
        self.snapshot_at = self._snapshot_bytes

    async def trim(self, offset: int) -> int:
        """Make everything below ``offset`` unreadable, durably, and release its space; return the log start.

        Raises OffsetOutOfRange (above the high watermark), LogUnavailable, LogDeleted.
        """
        log = self._log
        await log.ready()
        if offset > log.high_watermark or offset < 0:
            raise OffsetOutOfRange(f"cannot trim {log.topic}-{log.partition} at {offset}: it ends at {log.next_offset}")
        await self._logs.positions.keep_below(log, offset)
        await self.trimmed()
        if offset > log.log_start_offset:
            self._trimming = asyncio.get_running_loop().create_future()
            await self._logs.finishing.finish(self._trim(offset, self._trimming))
        return log.log_start_offset

    async def _trim(self, offset: int, trimming: asyncio.Future[None]) -> None:
        try:
            await self.keep_knowledge_below(offset)
            await self._logs.trims.trim(self._log.stream_id, offset)
            self.start_raised(offset)
        except SbpError as error:
            raise LogUnavailable(str(error)) from error
        finally:
            trimming.set_result(None)
            self._trimming = None

    async def trimmed(self) -> None:
        """Return when no trim is in flight: until then, positions that would be counted may be lost."""
        while self._trimming is not None:
            await asyncio.wait({self._trimming})

    def start_raised(self, offset: int) -> None:
        """Raise the log start to ``offset``; the caller has made that durable."""
        log = self._log
        log.log_start_offset = max(log.log_start_offset, offset)
        log.state.drop_before(offset)
        if log.state.transactions.persisted >= 0 and log.state.transactions.oldest_block < offset:
            self._logs.aborted.want(log)
        if offset == log.high_watermark:
            log.state.index.clear()
        log.moved()

    async def saved_behind(self, offset: int) -> None:
        """Save a snapshot at ``offset`` or behind it, of an open log, so that an opening need not read below.

        Raises LogUnavailable, also if the disk has no room for it.
        """
        log = self._log
        while log.is_open and self._snapshot_offset < offset:
            error = await self._snapshot_now()
            if error is not None:
                raise LogUnavailable(
                    f"what is known of {log.topic}-{log.partition} cannot be saved: {error}"
                ) from error

    async def _snapshot_now(self) -> LogError | None:
        """Take a snapshot, even of a log with unreadable batches; return its error, or None."""
        log = self._log
        if log.state.unread >= 0:
            _log.warning(
                "a snapshot has to be taken without the front that wrote some of a partition: what its writers repeat, "
                "and how its transactions end, will not be known",
                topic=log.topic,
                partition=log.partition,
                first_unread=log.state.unread,
            )
        self._needed += 1
        try:
            return await self._logs.snapshotter.take(log)
        finally:
            self._needed -= 1

    async def keep_knowledge_below(self, offset: int) -> None:
        """Save a snapshot with the producers and positions of what is about to be trimmed, or compacted: the log will
        not have them any more. Raises LogUnavailable."""
        log = self._log
        while log.is_open and self._unknown_below(offset):
            error = await self._snapshot_now()
            if isinstance(error, StorageFull):
                return  # trimming releases space
            if error is not None:
                reason = f"what is known of {log.topic}-{log.partition} below {offset} cannot be saved: {error}"
                raise LogUnavailable(reason) from error

    def _unknown_below(self, offset: int) -> bool:
        state = self._log.state
        if self._snapshot_offset < offset and len(state.ledger):
            return True
        column = state.index.column
        return column is not None and column.unsaved_below(offset)

    def ask_for_snapshot(self) -> None:
        """Request a snapshot soon; no other is requested until it is saved, or has failed."""
        self.snapshot_at = _NEVER
        self._logs.snapshotter.want(self._log)

    async def save_snapshot(self, save: Callable[[int, StateCapture], Awaitable[None]]) -> None:
        """Let ``save`` read out and store the durable state, so that the next opening reads less.

        Raises the errors of ``save``; then the next attempt is due when as much again was appended.
        """
        log = self._log
        if not log.is_open:
            return
        if log.state.unread >= 0 and not self._needed:
            # When the front is installed again, the log is read from the former snapshot on, with the front's batches.
            self.snapshot_at = self.since_snapshot + self._snapshot_bytes
            return
        state, since, offset = log.state, self.since_snapshot, log.high_watermark
        column = state.index.column
        counted = -1 if column is None else column.end.offset
        saved = False
        try:
            await save(log.stream_id, state.capture(offset, log.durable_rows()))
            saved = True
        finally:
            if log.state is state:  # the log was not opened again meanwhile
                if saved:
                    self.since_snapshot -= since
                    self._snapshot_offset = offset
                    state.all_read()
                    if column is not None:
                        column.saved_offset = counted
                self.snapshot_at = self._snapshot_bytes + (0 if saved else self.since_snapshot)

    def retention_offset(self, keep_ms: int, keep_bytes: int, now_ms: int) -> int | None:
        """Return the offset below which everything is older than ``keep_ms``, or beyond ``keep_bytes`` (-1: no
        limit)."""
        log = self._log
        index = log.state.index
        offsets = []
        if keep_ms >= 0:
            oldest = now_ms - keep_ms
            offsets.append(log.high_watermark if index.blocking(oldest) is None else index.older_than(oldest))
        if keep_bytes >= 0:
            offsets.append(index.beyond(keep_bytes))
        return max((offset for offset in offsets if offset is not None), default=None)


def rebuild_cost(size: int) -> int:
    """Return the cost of a batch of ``size`` bytes for the decision on a snapshot."""
    return size + _SNAPSHOT_BATCH_COST
