"""Queries of sinks on a node among others: each has one owner, and its transactions end wherever they write.

A query, whatever it writes to, is of the node that owns the slot its name lies in: that begins its attempts and
decides its batches, and who gets the slot reads what was decided and carries it on. Sinks that ask another node are
told where the owner is. Its batches go to the owners of partitions as forwarded appends do; for markers these are
asked, and believe nobody: whoever writes one looks up in the database that this was decided and is not carried out yet,
and that the partition is still its own.

An attempt's producer is used again, in the epoch of its marker. So no marker may come late: of one producer in one
partition they are written one after the other, each only while the attempt is in the database and the log is in the
epoch in which it was before that was looked up. And no batch may come behind a marker of which its new coordinator does
not know that it was under way: where an attempt is aborted it gets a marker in each partition that the database names,
also where nothing of it is open, so the log refuses what comes later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.one_at_a_time import OneAtATime
from bridges.cluster.owned import OwnedNames
from bridges.errors import LogDeleted, LogUnavailable, NotOwner, PartitionSealed
from bridges.log.transactions.ends import all_of
from spark_pipeline.node.write_messages import MARKERS, WHOLE, Mark, Missing, Place, Whole, query_slot
from spark_pipeline.node.write_tables import AttemptState, state_of

if TYPE_CHECKING:
    from bridges.catalog.sql import Connection
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Ownership
    from bridges.cluster.peers import Peers
    from bridges.log.interfaces import Appended
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.node.front import NodeServices
    from spark_pipeline.node.write_attempts import Attempt


class Owned(Protocol):
    """What is used of :class:`spark_pipeline.node.writes.Writes`."""

    async def read(self, wanted: Callable[[str], bool]) -> None: ...

    def surrender(self, gone: Callable[[str], bool]) -> None: ...


class Queries(OwnedNames):
    """Those that this node owns, and what it does for other nodes' queries."""

    what = "query of a sink"

    def __init__(self, node: NodeServices, owners: Ownership, peers: Peers, writes: Owned) -> None:
        super().__init__(owners)
        self._node = node
        self._peers = peers
        self._writes = writes
        self._alone: OneAtATime[tuple[int, int]] = OneAtATime()

    def begin(self) -> None:
        """Read those that this node has already: it may have got them long before a sink came."""
        self._gained(self._owners.mine)

    def slot(self, name: str) -> int:
        return query_slot(self._owners, name)

    async def read(self, wanted: Callable[[str], bool]) -> None:
        await self._writes.read(wanted)

    async def give_up(self, slots: Collection[int], in_order: bool) -> None:
        self._writes.surrender(lambda query: self.slot(query) in slots)
        if in_order:
            # What is on its way is there before the next owner reads.
            await self._node.db.run(_nothing)

    def owner(self, query: str) -> Member | None:
        """Whose it is; None: this node's, and all of it is known here. Raises NotOwner where it is nobody's now."""
        if self.owns(query):
            return None
        slot = self.slot(query)
        owner = None if self._owners.is_mine(slot) else self._owners.owner(slot)
        if owner is None or owner.node_id == self._node.node_id:
            raise NotOwner(f"query {query}", -1)
        return owner

    # --- ends -------------------------------------------------------------------------------------------------------

    async def mark(self, attempt: Attempt, places: Sequence[Place]) -> None:
        """See that an attempt has ended in some partitions, whosever they are. Raises LogError."""
        here, elsewhere = self._shared_out(places)

        def asked_for(some: list[Place]) -> Mark:
            return Mark(attempt.producer_id, attempt.row.epoch, attempt.commits, some)

        works: list[Awaitable[object]] = [self.mark_here(asked_for(here))]
        works += [self._peers.ask(to, MARKERS, asked_for(some), Missing) for to, some in elsewhere]
        await all_of(works)

    async def mark_here(self, asked: Mark) -> Missing:
        """Asked by whoever decided it. Raises LogError where one of the partitions is not this node's."""
        await all_of(self._end(asked, place) for place in asked.places)
        return Missing()

    async def _end(self, asked: Mark, place: Place) -> None:
        to = await self._log(place)
        if to is None:
            return  # deleted meanwhile
        hold = self._owners.holding(self._owners.slot_of(*place))
        decided = AttemptState.COMMITTING if asked.commit else AttemptState.ABORTING

        def is_due(connection: Connection) -> bool:
            hold(connection)
            return state_of(connection, asked.producer_id, asked.epoch) == decided

        try:
            async with self._alone.of((to.stream_id, asked.producer_id)):
                await to.ready()
                opened = to.epoch
                if not await self._node.db.run(is_due):
                    return  # it has ended
                if not to.is_open or to.epoch != opened:
                    raise LogUnavailable(f"{to.topic}-{to.partition} was another node's meanwhile")
                if asked.producer_id in to.state.transactions.open or not asked.commit:
                    marked: Awaitable[Appended] = awaited(
                        partial(to.append_marker, asked.producer_id, asked.epoch + 1, asked.commit)
                    )
                    await marked
        except (LogDeleted, PartitionSealed):
            return  # deleted, or sealed with nothing of it open

    # --- whether all is there ---------------------------------------------------------------------------------------

    async def missing(self, attempt: Attempt) -> list[Place]:
        """Where something of an attempt is not that was acknowledged. Raises LogError."""
        here, elsewhere = self._shared_out(attempt.places_in_order())
        found = (await self.whole_here(Whole(attempt.producer_id, here))).places
        for to, some in elsewhere:
            found += (await self._peers.ask(to, WHOLE, Whole(attempt.producer_id, some), Missing)).places
        return [place for place in found if attempt.writes_to(place)]

    async def whole_here(self, asked: Whole) -> Missing:
        """Asked by the owner of its query. Raises LogError."""
        found: list[Place] = []
        for place in asked.places:
            to = await self._log(place)
            if to is None:
                continue  # deleted meanwhile, and all of it is
            await to.ready()
            if asked.producer_id not in to.state.transactions.open:
                found.append(place)
        return Missing(found)

    # --- where partitions are ---------------------------------------------------------------------------------------

    def _shared_out(self, places: Iterable[Place]) -> tuple[list[Place], list[tuple[Member, list[Place]]]]:
        """Those of this node, and those of others. Raises NotOwner where one is nobody's."""
        here: list[Place] = []
        elsewhere: dict[int, tuple[Member, list[Place]]] = {}
        for place in places:
            slot = self._owners.slot_of(*place)
            if slot < 0 or self._owners.is_mine(slot):
                here.append(place)  # or deleted
                continue
            owner = self._owners.owner(slot)
            if owner is None:
                raise NotOwner(f"{place[0]}-{place[1]}", -1)
            elsewhere.setdefault(owner.start, (owner, []))[1].append(place)
        return here, list(elsewhere.values())

    async def _log(self, place: Place) -> PartitionLog | None:
        found = self._node.logs.get(*place)
        if found is None:
            # What has a topic in memory may be some moments old.
            await self._node.db.changes.catch_up()
            found = self._node.logs.get(*place)
        return found


def _nothing(connection: Connection) -> None:
    """Changes nothing: it was done once all that was submitted before is durable."""
