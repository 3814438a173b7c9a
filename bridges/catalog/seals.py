"""Sealing partitions at their logs, after the catalog has decided it: repeated until each log has confirmed its end.

The queue is durable: a partition that is sealed in the catalog and whose end is not known there is still to be sealed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from bridges.errors import LogError

if TYPE_CHECKING:
    from bridges.barrier import Barrier
    from bridges.catalog.lineage import PartitionInfo
    from bridges.catalog.sql import Database
    from bridges.catalog.topic import Topic

_log = structlog.get_logger("anabranch.catalog")

Sealer = Callable[[str, int], Awaitable[int]]
"""Makes the end of a partition (topic, number) final and gives it. Raises LogError; may be asked again."""

_CONCURRENCY = 32
_RETRY_FIRST_S = 1.0
_RETRY_LAST_S = 60.0


class Seals:
    """Carries out seals. ``confirmed`` is called when a partition's end is known durably."""

    def __init__(self, db: Database, barrier: Barrier, confirmed: Callable[[Topic, int, int], None]) -> None:
        self._db = db
        self._barrier = barrier
        self._confirmed = confirmed
        # By stream, since numbers come again when a topic is deleted and made anew.
        self._waiting: dict[int, tuple[Topic, int]] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Partitions whose end is not final yet."""
        return len(self._waiting)

    def want(self, topic: Topic, partition: PartitionInfo) -> None:
        """Have a partition sealed whose seal is durable in the catalog."""
        self._waiting[partition.stream_id] = (topic, partition.index)
        self._wake.set()

    def forget(self, partition: PartitionInfo) -> None:
        """Its topic is no more."""
        self._waiting.pop(partition.stream_id, None)

    def start(self, seal: Sealer) -> None:
        """Begin, now that there are logs."""
        self._task = asyncio.create_task(self._run(seal), name="catalog-sealer")

    async def close(self) -> None:
        """Stop; what is left is done after the next start."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self, seal: Sealer) -> None:
        delay = _RETRY_FIRST_S
        while True:
            self._wake.clear()
            tried = list(self._waiting)
            for start in range(0, len(tried), _CONCURRENCY):
                await asyncio.gather(*(self._one(seal, stream) for stream in tried[start : start + _CONCURRENCY]))
            if self._waiting.keys().isdisjoint(tried):
                delay = _RETRY_FIRST_S
                await self._wake.wait()
                continue
            with suppress(TimeoutError):  # new ones need not wait for those that fail
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            delay = min(2 * delay, _RETRY_LAST_S)

    async def _one(self, seal: Sealer, stream: int) -> None:
        wanted = self._waiting.get(stream)
        if wanted is None:
            return
        topic, number = wanted
        try:
            end = await seal(topic.name, number)
            # Before anybody is told, and whatever the durability: those who read on elsewhere never come back to it.
            await self._db.run(
                lambda connection: connection.execute(
                    "UPDATE partitions SET sealed_end = ? WHERE stream_id = ?", (end, stream)
                ),
                flush=True,
            )
        except LogError as error:
            if stream in self._waiting:
                _log.warning("a partition is not sealed yet", topic=topic.name, partition=number, error=str(error))
        except Exception as error:  # noqa: BLE001 - logged, counted and tried again; the others must go on
            self._barrier.caught("sealing", error, topic=topic.name, partition=number)
        else:
            if self._waiting.pop(stream, None) is not None:
                self._confirmed(topic, number, end)
