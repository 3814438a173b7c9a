"""Queries of sinks on a node among others: each has one owner, and its transactions end wherever they write.

A query, whatever it writes to, is of the node that owns the slot its name lies in: that begins its attempts and
decides its batches, and who gets the slot reads what was decided and carries it on. Sinks that ask another node are
told where the owner is. Its batches go to the owners of partitions as forwarded appends do; for markers these are
asked, and believe nobody (:mod:`bridges.log.transactions.marking`). That is needed more than anywhere: an attempt's
producer is used again, in the epoch of its marker.

No batch may come behind a marker of which its new coordinator does not know that it was under way: where an attempt is
aborted it gets a marker in each partition that the database names, also where nothing of it is open, so the log refuses
what comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Protocol

from bridges.cluster.owned import OwnedNames
from bridges.errors import NotOwner
from bridges.log.transactions.marking import End, Markers
from spark_pipeline.node.write_messages import MARKERS, WHOLE, Mark, Missing, Place, Whole, query_slot
from spark_pipeline.node.write_tables import is_decided

if TYPE_CHECKING:
    from bridges.catalog.sql import Connection
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Others, Ownership
    from bridges.node.front import NodeServices
    from spark_pipeline.node.write_attempts import Attempt


class Owned(Protocol):
    """What is used of :class:`spark_pipeline.node.writes.Writes`."""

    async def read(self, wanted: Callable[[str], bool]) -> None: ...

    def surrender(self, gone: Callable[[str], bool]) -> None: ...


class Queries(OwnedNames):
    """Those that this node owns, and what it does for other nodes' queries."""

    what = "query of a sink"

    def __init__(self, node: NodeServices, owners: Ownership, peers: Others, writes: Owned) -> None:
        super().__init__(owners)
        self._node = node
        self._peers = peers
        self._writes = writes
        self.markers = Markers(node.logs, node.db, owners)

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

    async def ask_to_mark(self, attempt: Attempt, owner: Member, places: list[Place]) -> None:
        """Have the owner of partitions write the markers of an attempt. Raises LogError."""
        asked = Mark(attempt.producer_id, attempt.row.epoch, attempt.commits, places)
        await self._peers.ask(owner, MARKERS, asked, Missing)

    async def mark_here(self, asked: Mark) -> Missing:
        """Asked by whoever decided it. Raises LogError where one of the partitions is not this node's."""
        end = End(asked.producer_id, asked.epoch + 1, asked.commit, fences=True)
        is_due = partial(is_decided, producer_id=asked.producer_id, epoch=asked.epoch, commit=asked.commit)
        await self.markers.write(end, asked.places, is_due)
        return Missing()

    # --- whether all is there ---------------------------------------------------------------------------------------

    async def missing(self, attempt: Attempt) -> list[Place]:
        """Where something of an attempt is not that was acknowledged. Raises LogError."""
        here, elsewhere = await self.markers.share_out(attempt.places_in_order())
        found = (await self.whole_here(Whole(attempt.producer_id, here))).places
        for to, some in elsewhere:
            found += (await self._peers.ask(to, WHOLE, Whole(attempt.producer_id, some), Missing)).places
        return [place for place in found if attempt.writes_to(place)]

    async def whole_here(self, asked: Whole) -> Missing:
        """Asked by the owner of its query. Raises LogError."""
        found: list[Place] = []
        for place in asked.places:
            to = await self.markers.find(place)
            if to is None:
                continue  # deleted meanwhile, and all of it is
            await to.ready()
            if asked.producer_id not in to.state.transactions.open:
                found.append(place)
        return Missing(found)


def _nothing(connection: Connection) -> None:
    """Changes nothing: it was done once all that was submitted before is durable."""
