"""Appends of attempts' batches: the database knows the partitions first, and appends keep the order of the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from bridges.errors import LogUnavailable
from spark_pipeline.node.sinks.attempts import WriteRefused
from spark_pipeline.node.sinks.tables import add_places

if TYPE_CHECKING:
    from bridges.log.interfaces import AppendDone
    from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
    from bridges.log.remote.partitions import Partitions
    from bridges.node.front import NodeServices
    from spark_pipeline.node.settings import PipelineSettings
    from spark_pipeline.node.sinks.attempts import Attempt, Attempts

_HANDED_OVER_AT_ONCE = 100
"""Most batches that are handed to their logs in one turn of the event loop."""


class _Place:
    """A partition of any owner."""

    __slots__ = ("_log", "_partitions")

    def __init__(self, partitions: Partitions, log: PartitionLog) -> None:
        self._partitions = partitions
        self._log = log

    def append(self, batch: Batch, done: AppendDone) -> None:
        self._partitions.append(self._log.topic, self._log.partition, batch, done)


class Appends:
    """Appender to the transactions of attempts. Use it on the event loop only."""

    def __init__(self, node: NodeServices, settings: PipelineSettings, attempts: Attempts) -> None:
        self._node = node
        self._settings = settings
        self._attempts = attempts

    async def append(self, attempt: Attempt, batches: Sequence[tuple[PartitionLog, Batch]]) -> list[Appended]:
        """Append batches to an attempt's transaction; return when all are durable.

        Raises AttemptGone, TooManyPlaces, and the logs' errors. Batches appended before an error stay; a repeated
        request finds them stored.
        """
        # The lock keeps the order of the requests: the log refuses sequence numbers out of order.
        async with attempt.lock:
            attempt.session.touch()
            futures: list[asyncio.Future[Appended]] = []
            partitions = self._node.partitions
            await self._known(attempt, batches)
            for start in range(0, len(batches), _HANDED_OVER_AT_ONCE):
                # No await between this check and the appends, so the attempt's end comes before or after both.
                self._open(attempt)
                some = batches[start : start + _HANDED_OVER_AT_ONCE]
                futures += [attempt.appended(_Place(partitions, one), batch) for one, batch in some]
                if start + len(some) < len(batches):
                    await asyncio.sleep(0)
            results = await asyncio.gather(*futures, return_exceptions=True)
        attempt.session.touch()
        appended: list[Appended] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            appended.append(result)
        return appended

    async def _known(self, attempt: Attempt, batches: Sequence[tuple[PartitionLog, Batch]]) -> None:
        """Store the attempt's new partitions in the database, before it writes to them. The caller holds the attempt's
        lock.
        """
        new = {place for one, _ in batches if not attempt.writes_to(place := (one.topic, one.partition))}
        if not new:
            return
        self._open(attempt)
        most = self._settings.partitions_per_attempt
        if len(new) + attempt.place_count > most:
            raise WriteRefused(f"one attempt of a task may write to {most} partitions")
        with self._attempts.places.promised(len(new)):
            hold = self._attempts.holding(attempt.row.query)
            add = partial(add_places, attempt=attempt.row, places=new, hold=hold)
            await self._node.db.run(add, flush=True)
            if not attempt.given_up:
                self._attempts.places.write_to(attempt, new)

    def _open(self, attempt: Attempt) -> None:
        """Raise AttemptGone if the attempt takes no batches, or LogUnavailable if another node owns its query now."""
        if attempt.given_up:
            raise LogUnavailable(f"query {attempt.row.query} is another node's meanwhile")
        self._attempts.open(attempt.row.owner, attempt.key)
