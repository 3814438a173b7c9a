"""The one way in which markers of transactions get into logs: the writer of a marker trusts nobody.

A coordinator decides how a transaction ends, durably, and then has a marker written in each of its partitions, and
retries until it is there. The owner of a partition writes it, for itself or for a coordinator at another node that
asks. In between a coordinator, a partition or both may move, and the producer may begin its next transaction. So:

What could go wrong | why it does not:

* A coordinator asks after it has lost the transaction, or after the end was recorded as done.
  | The owner of the partition looks up that the end is due: decided as asked, and not recorded as done yet.
* The node that is asked has lost the partition.
  | The same lookup holds the partition's slot.
* The partition moves to another node after the lookup, or moves away and back.
  | The log is in the epoch in which it was *before* the lookup; otherwise the marker is refused, and asked for again.
* Two requests ask for one end. The first carries it out, and that is recorded. The second would end the next
  transaction.
  | A producer's markers in a partition come one at a time, and the lookup is made while that lock is held.
* A coordinator carries out its own decision, without a lookup, and loses the transaction meanwhile.
  | It gives the transaction up before the next coordinator reads it, and the step of the append checks that. A node
  that is cut off is fenced by its logs.
* A batch arrives after the marker.
  | Batches that the owner of the partition has admitted arrive first (``quiet``). Where it admits any batch (sinks),
  an abort writes its marker even if nothing is open (``fences``): the log then refuses earlier epochs.
* A topic that exists, but is new here, is taken for a deleted one.
  | The node catches up with the catalog before it believes that.

Operators' markers (WriteTxnMarkers, the console) end open transactions without a decision. Pravega's merges take the
log for themselves (``hold``) and need none of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from msgspec import Struct

from anabranch_kit.run.awaited import awaited
from bridges.cluster.at_owner import share_out
from bridges.errors import LogDeleted, LogUnavailable, PartitionSealed
from bridges.log.transactions.open_transaction import OpenTransaction, Place

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection, Database
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Ownership
    from bridges.log.interfaces import Appended
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog

IsDue = Callable[["Connection"], bool]
"""Returns whether the end was decided as the marker says, and is not recorded as done yet."""
Ask = Callable[["Member", list[Place]], Awaitable[object]]
"""Asks the owner of partitions to :meth:`Markers.write` there."""


class End(Struct, frozen=True):
    """The contents of a marker. Logs refuse the producer's batches of epochs before ``epoch``. ``fences``: an abort
    writes the marker even if nothing is open."""

    producer_id: int
    epoch: int
    commit: bool
    fences: bool = False


async def _nothing(to: PartitionLog, producer_id: int) -> None:
    """Wait for nothing: the coordinator awaits everything in flight."""


class Markers:
    """A writer of markers. ``quiet(log, producer_id)`` returns once no batch of a producer is in flight into a log, and
    keeps out batches that were admitted before. Belongs to the event loop."""

    def __init__(
        self,
        logs: Logs,
        db: Database,
        owners: Ownership,
        quiet: Callable[[PartitionLog, int], Awaitable[None]] = _nothing,
    ) -> None:
        self._logs = logs
        self._db = db
        self._owners = owners
        self._quiet = quiet
        self._alone: WeakValueDictionary[tuple[int, int], asyncio.Lock] = WeakValueDictionary()

    async def mark(self, transaction: OpenTransaction, places: Sequence[Place], ask: Ask) -> None:
        """End a transaction that this node coordinates in some partitions, whichever nodes own them. Raises
        LogError."""
        here, elsewhere = await self.share_out(places)
        end = End(transaction.producer_id, transaction.marker_epoch, transaction.commits, transaction.fences)
        await all_of(
            [
                self._write(end, here, None, lambda: not transaction.given_up),
                *(ask(owner, some) for owner, some in elsewhere),
            ]
        )

    async def write(self, end: End, places: Sequence[Place], is_due: IsDue) -> None:
        """Write a marker into partitions of this node for a coordinator; do nothing if the end is not due, because it
        was carried out. Raises LogError."""
        await self._write(end, places, is_due, lambda: True)

    async def _write(self, end: End, places: Sequence[Place], is_due: IsDue | None, still: Callable[[], bool]) -> None:
        logs = [to for place in places if (to := await self.find(place)) is not None]
        async with AsyncExitStack() as alone:
            for stream in sorted({to.stream_id for to in logs}):
                await alone.enter_async_context(self._alone.setdefault((stream, end.producer_id), asyncio.Lock()))
            opened = await asyncio.gather(*map(_opened, logs), return_exceptions=True)
            usable = [(to, epoch) for to, epoch in zip(logs, opened, strict=True) if isinstance(epoch, int)]
            if is_due is None or await self._db.run(self._checking([to for to, _ in usable], is_due)):
                await all_of(self._append(end, to, epoch, still) for to, epoch in usable)
        for error in opened:
            if isinstance(error, BaseException) and not isinstance(error, _ENDED):
                raise error

    def _checking(self, logs: Sequence[PartitionLog], is_due: IsDue) -> IsDue:
        owners = self._owners
        holds = [owners.holding(slot) for slot in sorted({owners.slot_of(to.topic, to.partition) for to in logs})]

        def check(connection: Connection) -> bool:
            for hold in holds:
                hold(connection)
            return is_due(connection)

        return check

    async def _append(self, end: End, to: PartitionLog, opened: int, still: Callable[[], bool]) -> None:
        await self._quiet(to, end.producer_id)
        # From here on nothing awaits.
        if not still() or not to.is_open or to.epoch != opened:
            raise LogUnavailable(f"{to.topic}-{to.partition} was another node's meanwhile")
        if end.producer_id not in to.state.transactions.open and (end.commit or not end.fences):
            return
        marked: asyncio.Future[Appended] = awaited(
            lambda done: to.append_marker(end.producer_id, end.epoch, end.commit, done)
        )
        try:
            await marked
        except _ENDED:
            return

    # --- where partitions are ---------------------------------------------------------------------------------------

    async def share_out(self, places: Iterable[Place]) -> tuple[list[Place], list[tuple[Member, list[Place]]]]:
        """Return the partitions of this node, and those of other nodes by owner; without deleted ones. Raises
        LogError."""
        present = [place for place in places if await self.find(place) is not None]
        return share_out(self._owners, present, lambda place: self._owners.slot_of(*place), "{0[0]}-{0[1]}".format)

    async def find(self, place: Place) -> PartitionLog | None:
        """Return the log of a partition, whichever node owns it; None if it was deleted. Raises LogError."""
        found = self._logs.get(*place)
        if found is None and self._db.changes.shared:
            await self._db.changes.catch_up()
            found = self._logs.get(*place)
        return found


_ENDED = (LogDeleted, PartitionSealed)
"""Errors that mean that there is nothing to end: deleted, or sealed with nothing open."""


async def _opened(to: PartitionLog) -> int:
    await to.ready()
    return to.epoch


async def all_of(works: Iterable[Awaitable[object]]) -> None:
    """Return when all works have ended. Raises the error of the first failed one."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
