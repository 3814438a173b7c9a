"""What one node knows of the cluster, and what it has to do next: no I/O, no clock of its own.

It is told what the database says, and says which members are to be ended, which slots to be given away, and which this
node acts for. The database is asked by whoever has the keeper (:mod:`bridges.cluster.service`).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from bridges.cluster.members import Member, Patience, State, Watch
from bridges.cluster.slots import NOBODY, Move, Slot, pins_of, plan
from bridges.cluster.tables import Look
from bridges.cluster.versions import Version


class News(Struct):
    """What a look has changed of what this node acts for. A slot that comes back in a higher epoch is in both."""

    gained: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)


class Keeper:
    """The view of the member ``start``.

    ``acting`` has the epoch of each slot this node acts for; ``ended`` is true once others have ended this start: it
    acts for nothing any more, and the node has to come again as a new one.
    """

    def __init__(self, start: int, patience: Patience | None = None) -> None:
        self.start = start
        self.version = -1
        self.members: dict[int, Member] = {}
        self.slots: list[Slot] = []
        self.drained: frozenset[int] = frozenset()
        self.level = Version()
        self.acting: dict[int, int] = {}
        self.ended = False
        self._watch = Watch(patience or Patience())
        # By slot that is being given away: the epoch in which this node had it. It acts for it in no such epoch again.
        self._giving: dict[int, int] = {}
        # The last plan, and what it was made of: the version of the slots, who takes some, who leaves.
        self._plan: tuple[tuple[object, ...], list[Move]] = ((), [])

    # --- what it is told ----------------------------------------------------------------------------------------

    def looked(self, look: Look, asked: float, answered: float) -> News:
        """The database said ``look``, asked between those times of this node's monotonic clock."""
        if self.ended or look.version < self.version:
            return News()  # answers may overtake each other
        members: Iterable[Member] = look.members
        if look.beats is not None:
            beats = look.beats
            members = [replace(one, beats=beats[one.start]) for one in self.members.values() if one.start in beats]
        self.members = {member.start: member for member in members}
        self._watch.looked(self.members.values(), asked, answered)
        own = self.members.get(self.start)
        if own is None or own.state is State.ENDING:
            return self.end()
        if look.slots is not None:
            if not self.slots:
                self.slots = [Slot()] * len(look.slots)
            for index, slot in enumerate(look.slots):
                # What this node has raised since it asked is newer.
                if slot.epoch >= self.slots[index].epoch:
                    self.slots[index] = slot
            self.drained = look.drained
            self.level = look.level
            self.version = look.version
        return self._settle()

    def raised(self, slot: int, epoch: int | None) -> News:
        """The database has given this node's slot a new epoch; None: it is another's, which the next look will tell."""
        if self.ended or epoch is None:
            return News()
        if epoch > self.slots[slot].epoch:
            self.slots[slot] = Slot(self.start, epoch, self.slots[slot].pin)
        return self._settle()

    def past(self, member: Member) -> None:
        """The process of a member has ended, as somebody has found who was told of it by :meth:`doubtful`."""
        self._watch.past(member.start, member.beats)

    def begin_giving(self, slots: Iterable[int]) -> None:
        """This node acts for these no more, before it asks that they be another's."""
        for slot in slots:
            epoch = self.acting.pop(slot, None)
            if epoch is not None:
                self._giving[slot] = epoch

    def end(self) -> News:
        """Others have ended this start."""
        self.ended = True
        lost, self.acting = sorted(self.acting), {}
        return News(lost=lost)

    def _settle(self) -> News:
        news = News()
        for index, slot in enumerate(self.slots):
            given = self._giving.get(index)
            if given is not None and slot.epoch > given:
                del self._giving[index]
                given = None
            mine = slot.epoch if slot.owner == self.start and given is None else None
            before = self.acting.get(index)
            if mine == before:
                continue
            if before is not None:
                del self.acting[index]
                news.lost.append(index)
            if mine is not None:
                self.acting[index] = mine
                news.gained.append(index)
        return news

    # --- what it says -------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """This node's own."""
        own = self.members.get(self.start)
        return State.ENDING if own is None or self.ended else own.state

    @property
    def is_drained(self) -> bool:
        """Whether this node serves, but is to own nothing."""
        own = self.members.get(self.start)
        return own is not None and own.drained and not self.ended

    def is_suspected(self, start: int) -> bool:
        """Whether a member has not been heard of for a lease."""
        return self._watch.is_suspected(start)

    def still(self, start: int) -> float:
        """Seconds for which a member has not been heard of."""
        return self._watch.still(start)

    def doubtful(self) -> list[Member]:
        """The members whose processes may have ended: it is worth looking for them."""
        return [
            member
            for member in self.members.values()
            if member.start != self.start and member.state is not State.ENDING and self._watch.is_doubtful(member.start)
        ]

    def to_end(self) -> list[Member]:
        """The members that this node should try to end now: suspected ones, and those that nobody goes on ending. One
        that was drained ends its former selves only, which are nobody else's to end."""
        if self.state is not State.UP:
            mine = [one for one in self.members.values() if one.state is State.ENDING and one.by == self.start]
            return mine if self.is_drained else []
        return [
            member
            for member in self.members.values()
            if member.start != self.start
            and (
                member.by == self.start or self._is_abandoned(member)
                if member.state is State.ENDING
                else self._watch.is_suspected(member.start)
            )
        ]

    def _is_abandoned(self, member: Member) -> bool:
        by = self.members.get(member.by)
        return by is None or by.state is State.ENDING

    def instead(self, server_id: int) -> int:
        """Who is to take over from a member in the place of this node, whose range server may not, since ``server_id``
        has its log: the member whose server that is; where it is nobody's, the next of the others, one after the other,
        since whoever has taken over from that server has the log as well. This one, where it is alone."""
        others = [one for one in self.members.values() if one.state is State.UP and one.start != self.start]
        for one in others:
            if one.server_id == server_id:
                return one.start
        starts = [one.start for one in others]
        return min([start for start in starts if start > self.start] or starts, default=self.start)

    def to_give(self) -> list[Move]:
        """What this node has and others should have."""
        takers, leaving = [], []
        for member in self.members.values():
            if member.state is State.UP and not self._watch.is_suspected(member.start):
                takers.append(member.start)
            elif member.state is State.LEAVING:
                leaving.append(member.start)
        if self.state is State.UP and self.start not in takers:
            takers.append(self.start)
        made_of = (self.version, tuple(takers), tuple(leaving))
        if made_of != self._plan[0]:
            self._plan = made_of, plan(takers, [slot.owner for slot in self.slots], leaving, self.pins())
        return [move for move in self._plan[1] if move.slot in self.acting and move.to != self.start]

    def pins(self) -> dict[int, int]:
        """Who is to have which slot, of those that are pinned to a node that is there."""
        up = {one.node_id: one.start for one in self.members.values() if one.state is State.UP}
        return pins_of(self.slots, up)

    def unsettled(self) -> list[int]:
        """Slots of which this node does not know whether they were given away."""
        return sorted(self._giving)

    def owner(self, slot: int) -> Member | None:
        """Who acts for a slot, as far as this node knows: not yet a worker that is back, and has what its former self
        had, but does not serve."""
        if not self.slots or self.slots[slot].owner == NOBODY:
            return None
        member = self.members.get(self.slots[slot].owner)
        return None if member is None or member.state is State.JOINING else member
