"""Batches of attempts on their way into the logs: known to the database before, and in the order of the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from bridges.errors import LogUnavailable
from spark_pipeline.node.write_attempts import WriteRefused
from spark_pipeline.node.write_tables import add_places

if TYPE_CHECKING:
    from bridges.log.interfaces import AppendDone
    from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
    from bridges.log.remote.appends import Appends as NodeAppends
    from bridges.node.front import NodeServices
    from spark_pipeline.node.settings import PipelineSettings
    from spark_pipeline.node.write_attempts import Attempt, Attempts

_HANDED_OVER_AT_ONCE = 100
"""Batches that are handed to their logs in one turn of the event loop."""


class _Place:
    """A partition, whosever it is."""

    __slots__ = ("_appends", "_log")

    def __init__(self, appends: NodeAppends, log: PartitionLog) -> None:
        self._appends = appends
        self._log = log

    def append(self, batch: Batch, done: AppendDone) -> None:
        self._appends.append(self._log.topic, self._log.partition, batch, done)


class Appends:
    """Appends to the transactions of attempts. Belongs to the event loop."""

    def __init__(self, node: NodeServices, settings: PipelineSettings, attempts: Attempts) -> None:
        self._node = node
        self._settings = settings
        self._attempts = attempts

    async def append(self, attempt: Attempt, batches: Sequence[tuple[PartitionLog, Batch]]) -> list[Appended]:
        """Append to an attempt's transaction; returns when all is durable.

        Raises AttemptGone, TooManyPlaces, and what the logs refuse batches with. What was appended before stays; who
        repeats all of it finds that stored.
        """
        # In the order of the requests: sequence numbers must not overtake one another.
        async with attempt.lock:
            attempt.session.touch()
            futures: list[asyncio.Future[Appended]] = []
            appends = self._node.appends
            await self._known(attempt, batches)
            for start in range(0, len(batches), _HANDED_OVER_AT_ONCE):
                # In one step with the look at its state: who ends the attempt does it before or after that.
                self._open(attempt)
                some = batches[start : start + _HANDED_OVER_AT_ONCE]
                futures += [attempt.appended(_Place(appends, one), batch) for one, batch in some]
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
        """Have the database know where the attempt writes, before it does. The attempt's lock is held."""
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
        """Raises AttemptGone, or LogUnavailable where another node knows better."""
        if attempt.given_up:
            raise LogUnavailable(f"query {attempt.row.query} is another node's meanwhile")
        self._attempts.open(attempt.row.owner, attempt.key)
