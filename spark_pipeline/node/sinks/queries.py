"""The owners of sinks' queries: each query has one, and its transactions end in partitions of any node.

A query is owned by the node that owns the slot of its name, whatever it writes to. The owner begins its attempts and
decides its batches; a node that gains the slot reads the decisions from the database and carries them out. Sinks that
ask another node are redirected to the owner. The owner forwards batches to the owners of partitions, as for any append.
For markers it asks these owners, which check the decision in the database themselves
(:mod:`bridges.log.transactions.marking`). That check matters more here than elsewhere: an attempt's producer is used
again, in the epoch of its marker.

A new owner does not know of batches that were in flight. A batch must not come behind such an unknown attempt's marker,
so an abort writes a marker to each partition that the database lists for the attempt, also where nothing of it is open.
The log then refuses late batches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from anabranch_kit.run.turns import in_turns
from bridges.cluster.at_owner import find_owner
from bridges.cluster.owned import OwnedNames
from bridges.errors import NotOwner
from bridges.log.transactions.marking import End, Markers
from spark_pipeline.node.messages import MARKERS, WHOLE, Mark, Missing, Place, Whole, query_slot
from spark_pipeline.node.sinks.tables import is_decided

if TYPE_CHECKING:
    from bridges.cluster.members import Member
    from bridges.node.front import NodeServices
    from spark_pipeline.node.sinks.attempts import Attempt


class Queries(OwnedNames):
    """The queries that this node owns, and this node's work for queries of other owners.

    ``read_queries`` reads the state of the queries for which a function is true, ``surrender`` forgets it.
    """

    what = "query of a sink"

    def __init__(
        self,
        node: NodeServices,
        read_queries: Callable[[Callable[[str], bool]], Awaitable[None]],
        surrender: Callable[[Callable[[str], bool]], None],
    ) -> None:
        super().__init__(node.owners)
        self._node = node
        self._read_queries = read_queries
        self._surrender = surrender
        self.markers = Markers(node.logs, node.db, node.owners)

    def slot(self, name: str) -> int:
        return query_slot(self._owners, name)

    async def read(self, wanted: Callable[[str], bool]) -> None:
        await self._read_queries(wanted)

    async def give_up(self, slots: Collection[int], in_order: bool) -> None:
        self._surrender(lambda query: self.slot(query) in slots)
        if in_order:
            # Writes submitted before are durable when the next owner reads.
            await self._node.db.await_writes()

    def owner(self, query: str) -> Member | None:
        """Return the owner of a query; None if it is this node, and this node has read the query's state.

        Raises NotOwner if the query has no owner at present.
        """
        if self.owns(query):
            return None
        owner = find_owner(self._owners, self.slot(query), f"query {query}")
        if owner is None:
            raise NotOwner(f"query {query}", -1)  # this node has not read the query's state yet
        return owner

    # --- ends -------------------------------------------------------------------------------------------------------

    async def ask_to_mark(self, attempt: Attempt, owner: Member, places: list[Place]) -> None:
        """Ask the owner of partitions to write the markers of an attempt. Raises LogError."""
        asked = Mark(attempt.producer_id, attempt.row.epoch, attempt.commits, places)
        await self._node.peers.ask(owner, MARKERS, asked, Missing)

    async def mark_here(self, asked: Mark) -> Missing:
        """Write markers for the owner of a query. Raises LogError if a partition is not owned by this node."""
        end = End(asked.producer_id, asked.epoch + 1, asked.commit, fences=True)
        is_due = partial(is_decided, producer_id=asked.producer_id, epoch=asked.epoch, commit=asked.commit)
        await self.markers.write(end, asked.places, is_due)
        return Missing()

    # --- whether all is there ---------------------------------------------------------------------------------------

    async def find_missing(self, attempt: Attempt) -> list[Place]:
        """Return the partitions that have lost acknowledged batches of an attempt. Raises LogError."""
        here, elsewhere = await self.markers.share_out(attempt.places_in_order())
        found = (await self.find_missing_here(Whole(attempt.producer_id, here))).places
        for to, some in elsewhere:
            found += (await self._node.peers.ask(to, WHOLE, Whole(attempt.producer_id, some), Missing)).places
        return [place for place in found if attempt.writes_to(place)]

    async def find_missing_here(self, asked: Whole) -> Missing:
        """Return the partitions of this node that lack an attempt's open transaction. Raises LogError."""
        found: list[Place] = []
        async for place in in_turns(asked.places):
            to = await self.markers.find(place)
            if to is None:
                continue  # the whole topic was deleted meanwhile
            await to.ready()
            if asked.producer_id not in to.state.transactions.open:
                found.append(place)
        return Missing(found)
