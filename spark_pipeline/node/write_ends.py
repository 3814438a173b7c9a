"""Ends the transactions of attempts as it was decided: a marker in every partition, again until it is there.

What is to be ended stands in the database; this only carries it out, a bounded number at the same time, and the next
start goes on where this one ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

import structlog

from bridges.awaited import awaited
from bridges.errors import LogDeleted, LogError, PartitionSealed
from spark_pipeline.node.write_tables import AttemptState, forget_attempt

if TYPE_CHECKING:
    from bridges.log.partition_log import Appended, PartitionLog
    from bridges.node.front import NodeServices
    from spark_pipeline.node.write_attempts import Attempt, Place

log = structlog.get_logger(__name__)

_AT_ONCE = 64
"""Attempts whose ends are carried out at the same time."""
_TOGETHER = 64
"""Markers of one attempt that are under way at the same time."""
_AGAIN_S, _AGAIN_MOST_S = 0.1, 10.0


class Ends:
    """Carries out the ends of attempts; ``ended`` is called for each that is done. Belongs to the event loop."""

    def __init__(self, node: NodeServices, ended: Callable[[Attempt], None]) -> None:
        self._node = node
        self._ended = ended
        self._due: deque[tuple[Attempt, float]] = deque()
        self._working = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, attempts: Iterable[Attempt]) -> None:
        """What has become of them was decided: see that it happens."""
        for attempt in attempts:
            if attempt.is_busy:
                # What is still on its way comes first: a batch, or a row, must not come behind the end.
                self._spawn(self._when_quiet(attempt))
            else:
                self._enqueue(attempt, _AGAIN_S)

    async def close(self) -> None:
        """Carry on with nothing; the next start does."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _enqueue(self, attempt: Attempt, delay: float) -> None:
        self._due.append((attempt, delay))
        if self._working < _AT_ONCE:
            self._working += 1
            self._spawn(self._work())

    async def _when_quiet(self, attempt: Attempt) -> None:
        async with attempt.lock:
            await attempt.quiet.wait()
        self._enqueue(attempt, _AGAIN_S)

    async def _later(self, attempt: Attempt, delay: float) -> None:
        await asyncio.sleep(delay)
        self._enqueue(attempt, min(2 * delay, _AGAIN_MOST_S))

    async def _work(self) -> None:
        try:
            while self._due:
                attempt, delay = self._due.popleft()
                if await self._carried_out(attempt):
                    self._ended(attempt)
                else:
                    self._spawn(self._later(attempt, delay))
        finally:
            self._working -= 1

    async def _carried_out(self, attempt: Attempt) -> bool:
        try:
            await self._end_everywhere(attempt, attempt.state is AttemptState.COMMITTING)
            # Readers see it now: whoever waits for that need not wait until it is forgotten, too.
            attempt.ended.set()
            await self._node.db.run(lambda connection: forget_attempt(connection, attempt.key))
        except LogError as error:
            log.warning("a sink's transaction is ended later", query=attempt.row.query, reason=str(error))
            return False
        except Exception as error:  # noqa: BLE001 - logged, counted and tried again
            self._node.barrier.caught("end of a sink's transaction", error, query=attempt.row.query)
            return False
        return True

    async def _end_everywhere(self, attempt: Attempt, commit: bool) -> None:
        places = attempt.places_in_order()
        for start in range(0, len(places), _TOGETHER):
            some = places[start : start + _TOGETHER]
            results = await asyncio.gather(
                *(self._end(attempt, place, commit) for place in some), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def _end(self, attempt: Attempt, place: Place, commit: bool) -> None:
        to = self._node.logs.get(*place)
        if to is None:
            return  # deleted meanwhile
        try:
            await to.ready()
            if attempt.row.producer_id in to.state.transactions.open:
                await self._marked(to, attempt, commit)
        except (LogDeleted, PartitionSealed):
            return  # deleted, or sealed with nothing of it open

    async def _marked(self, to: PartitionLog, attempt: Attempt, commit: bool) -> None:
        # With the epoch that the producer gets next: from now on the log itself refuses what this one wrote.
        producer_id, epoch = attempt.row.producer_id, attempt.row.epoch + 1
        marked: asyncio.Future[Appended] = awaited(lambda done: to.append_marker(producer_id, epoch, commit, done))
        await marked
