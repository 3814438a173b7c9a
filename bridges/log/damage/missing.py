"""Places where the backend has no data: the beginning of a log that it has reclaimed, and spans that it has lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog

from bridges.errors import LogError, LogUnavailable
from bridges.log.state.log_starts import first_readable
from sbp_back.errors import SbpError

if TYPE_CHECKING:
    from bridges.log.damage.skips import Span
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog

_log = structlog.get_logger("anabranch.logs")


class MissingData:
    """Has readers of one node's logs pass over such places, durably."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._searches: dict[PartitionLog, asyncio.Task[LogError | None]] = {}

    def reclaimed(self, log: PartitionLog, offset: int) -> asyncio.Task[LogError | None]:
        """Handle a backend that has reclaimed ``offset``: find the log's new start and raise it. The task returns the
        error that prevented it, or None."""
        return self._handle(log, lambda: self._raise_start(log, offset))

    def lost(self, log: PartitionLog, span: Span) -> asyncio.Task[LogError | None]:
        """Handle a backend that has lost ``span`` on all servers: readers skip it from now on, for good. The task
        returns the error that prevented it, or None."""
        return self._handle(log, lambda: self.pass_over(log, span))

    def _handle(self, log: PartitionLog, handle: Callable[[], Awaitable[None]]) -> asyncio.Task[LogError | None]:
        """Return the task that handles a place: one at a time for each log, shared by all readers that meet such a
        place meanwhile."""
        task = self._searches.get(log)
        if task is None:
            task = self._searches[log] = self._logs.finishing.spawn(self._run(log, handle))
            task.add_done_callback(lambda _: self._searches.pop(log, None))
        return task

    async def _run(self, log: PartitionLog, handle: Callable[[], Awaitable[None]]) -> LogError | None:
        try:
            await handle()
        except SbpError as error:
            return LogUnavailable(f"{log.topic}-{log.partition}: {error}")
        except LogError as error:
            return error
        except Exception as error:  # noqa: BLE001 - logged, counted and answered
            self._logs.barrier.caught("look at a place without data", error, topic=log.topic, partition=log.partition)
            return LogUnavailable(f"{log.topic}-{log.partition}: unexpectedly, {type(error).__name__}")
        return None

    async def _raise_start(self, log: PartitionLog, offset: int) -> None:
        # A trim by this node determines the log start itself; no search finds a start inside a batch.
        await log.trimmed()
        if log.log_start_offset > offset:
            return
        start, end = log.log_start_offset, log.high_watermark
        first = await first_readable(self._logs.client, log.stream_id, max(offset, start), end)
        if first > start and log.is_open:
            await self.give_up_below(log, start, first)
            log.upkeep.start_raised(first)
            self._logs.snapshotter.want(log)  # the log no longer has the producers of the lost data

    async def give_up_below(self, log: PartitionLog, start: int, first: int) -> None:
        """Make ``first`` the durable start of a log that began at ``start``. Raises an error of the database."""
        await self._logs.stores.starts.save(log.stream_id, first)
        _log.warning(
            "the beginning of a partition is gone from the backend: its log starts later now",
            topic=log.topic,
            partition=log.partition,
            log_start=first,
            records_gone=first - start,
        )

    async def pass_over(self, log: PartitionLog, span: Span) -> None:
        """Declare ``span`` lost, because no server has it any more: readers find a gap there from now on, and an error
        is logged."""
        await self._logs.positions.keep_around(log, span)
        await self._logs.stores.skips.add(log.stream_id, span, "its range server has lost it")
        if log.is_open:
            log.skip(span)
        _log.error(
            "acknowledged records are lost: the backend has none where its ranges say so; readers pass over them",
            topic=log.topic,
            partition=log.partition,
            first=span[0],
            end=span[1],
        )
