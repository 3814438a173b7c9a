"""Snapshots of partition logs' state, taken in slices on the event loop: few at a time, and for each log one after the
other.

A snapshot describes the state at one offset exactly, even if the log grows while it is read out.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.shared import SharedWorks
from anabranch_kit.run.turns import in_turns
from bridges.errors import LogError

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.state.partition_state import StateCapture
    from bridges.log.state.snapshots import Snapshots

_log = structlog.get_logger("anabranch.snapshots")

_PARALLEL = 64
"""Snapshots taken at the same time, so that they share commits of the database."""
_LARGE_PRODUCERS = 4_000
"""From here on a snapshot is large. Only few large ones are taken at a time, because they are in memory meanwhile."""
_LARGE_PARALLEL = 4


class Snapshotter:
    """The snapshots of one node's logs."""

    def __init__(self, store: Snapshots, barrier: Barrier) -> None:
        self._store = store
        self._barrier = barrier
        self._gate = asyncio.Semaphore(_PARALLEL)
        self._large = asyncio.Semaphore(_LARGE_PARALLEL)
        self._taking: SharedWorks[PartitionLog, LogError | None] = SharedWorks()

    def want(self, log: PartitionLog) -> None:
        """Take and save a snapshot of ``log`` soon, unless one is being taken."""
        self._taking.start(log, partial(self._take, log))

    async def take(self, log: PartitionLog) -> LogError | None:
        """Take and save a snapshot of ``log``, or wait for the one being taken; return its error, or None."""
        return await self._taking.wait(log, partial(self._take, log))

    async def take_fresh(self, log: PartitionLog) -> LogError | None:
        """Take a snapshot that begins now, not an earlier one in progress; return its error, or None."""
        await self.wait(log)
        return await self.take(log)

    async def wait(self, log: PartitionLog) -> None:
        """Return once no snapshot of ``log`` is being taken: it is in the store, or never will be."""
        await self._taking.await_end(log)

    async def drain(self) -> None:
        """Return once no snapshot is being taken."""
        await self._taking.drain()

    async def _take(self, log: PartitionLog) -> LogError | None:
        try:
            async with self._gate:
                if len(log.state.ledger) < _LARGE_PRODUCERS:
                    await log.upkeep.save_snapshot(self.save)
                else:
                    async with self._large:
                        await log.upkeep.save_snapshot(self.save)
        except LogError as error:
            _log.warning("snapshot not saved", topic=log.topic, partition=log.partition, error=str(error))
            return error
        except Exception as error:  # noqa: BLE001 - logged and counted; the next opening is slower for it
            self._barrier.caught("snapshot", error, topic=log.topic, partition=log.partition)
            return LogError("a snapshot failed unexpectedly")
        return None

    async def save(self, stream_id: int, capture: StateCapture) -> None:
        """Read out ``capture``, close it, and save its contents. Raises an error of the store."""
        try:
            pieces = [piece async for piece in in_turns(capture.pieces())]
        finally:
            capture.close()
        await self._store.save(stream_id, capture.offset, pieces)
