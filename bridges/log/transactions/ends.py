"""The ends of transactions, carried out as decided: a marker (:mod:`.marking`) in every partition, with retries.

The database has the decided ends; this module only carries them out, a bounded number at the same time, and the next
start continues. A partition in which nothing of the transaction is open needs no marker, or has it: so repeating an end
makes no difference.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from anabranch_kit.run.task_set import TaskSet
from bridges.errors import LogError
from bridges.log.transactions.open_transaction import OpenTransaction, Place

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.cluster.members import Member
    from bridges.log.transactions.marking import Markers

log = structlog.get_logger(__name__)

_AT_ONCE = 64
"""Transactions whose ends are carried out at the same time."""
TOGETHER = 64
"""Markers of one transaction in flight at the same time."""
_AGAIN_S, _AGAIN_MOST_S = 0.1, 10.0

T = TypeVar("T", bound=OpenTransaction)


class TransactionEnds(Generic[T]):
    """The ends of one coordinator's transactions. ``finish`` does the rest of an end once its markers are everywhere,
    and is repeated with them if it raises. ``ended`` is called for each end that is done. ``what`` names the
    transactions in log lines. ``ask`` makes another node write the markers of its partitions. Belongs to the event
    loop."""

    def __init__(
        self,
        markers: Markers,
        barrier: Barrier,
        what: str,
        finish: Callable[[T], Awaitable[object]],
        ended: Callable[[T], None],
        ask: Callable[[T, Member, list[Place]], Awaitable[object]],
    ) -> None:
        self._markers = markers
        self._barrier = barrier
        self._what = what
        self._finish = finish
        self._ended = ended
        self._ask = ask
        self._due: deque[tuple[T, float]] = deque()
        self._working = 0
        self._tasks = TaskSet()

    def begin(self, transactions: Iterable[T]) -> None:
        """Carry out the ends of ``transactions``, which were decided durably."""
        for transaction in transactions:
            if transaction.is_busy:
                # What is in flight comes first: no batch, and no row, may follow the end.
                self._tasks.spawn(self._when_quiet(transaction))
            else:
                self._enqueue(transaction, _AGAIN_S)

    async def close(self) -> None:
        """Stop; the next start continues."""
        await self._tasks.close()

    def _enqueue(self, transaction: T, delay: float) -> None:
        self._due.append((transaction, delay))
        if self._working < _AT_ONCE:
            self._working += 1
            self._tasks.spawn(self._work())

    async def _when_quiet(self, transaction: T) -> None:
        await transaction.await_quiet()
        self._enqueue(transaction, _AGAIN_S)

    async def _later(self, transaction: T, delay: float) -> None:
        await asyncio.sleep(delay)
        self._enqueue(transaction, min(2 * delay, _AGAIN_MOST_S))

    async def _work(self) -> None:
        try:
            while self._due:
                transaction, delay = self._due.popleft()
                if transaction.given_up:
                    continue
                done = await self._carry_out(transaction)
                if transaction.given_up:
                    continue
                if done:
                    self._ended(transaction)
                else:
                    self._tasks.spawn(self._later(transaction, delay))
        finally:
            self._working -= 1

    async def _carry_out(self, transaction: T) -> bool:
        try:
            places = transaction.places_in_order()
            for start in range(0, len(places), TOGETHER):
                some = places[start : start + TOGETHER]
                await self._markers.mark(transaction, some, partial(self._ask, transaction))
            await self._finish(transaction)
        except LogError as error:
            log.warning(f"{self._what} is ended later", reason=str(error), **transaction.about)
            return False
        except Exception as error:  # noqa: BLE001 - logged, counted and tried again
            self._barrier.caught(f"end of {self._what}", error, **transaction.about)
            return False
        return True
