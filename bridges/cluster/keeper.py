"""The state machine of a member: what it knows of the cluster, and what it must do next. No I/O, and no clock.

It takes the database's state as input. It decides which members to end, which slots to give away, and for which slots
this node acts. Its caller talks to the database (:mod:`bridges.cluster.service`).
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
    """Changes in the slots for which this node acts. A slot that returns in a higher epoch is in both lists."""

    gained: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)


class Keeper:
    """The view of the member ``start``.

    ``acting`` has the epoch of each slot for which this node acts. ``ended`` becomes true when other members have ended
    this start: it acts for no slot any more, and the node must come back with a new start.
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
        self.missing: dict[int, float] = {}
        """When each member that ended without leaving was seen to be gone, by node id, until that node comes back."""
        self._watch = Watch(patience or Patience())
        # Slots being given away, with the epoch in which this node had them: it never acts for a slot in that epoch
        # again.
        self.giving: dict[int, int] = {}
        # The last plan, and its inputs: the version of the slots, the members that take slots, those that leave.
        self._plan: tuple[tuple[object, ...], list[Move]] = ((), [])

    # --- input ---------------------------------------------------------------------------------------------------

    def take_in(self, look: Look, asked: float, answered: float) -> News:
        """Take in ``look``, the database's state; ``asked`` and ``answered`` are this node's monotonic times around the
        query.
        """
        if self.ended or look.version < self.version:
            return News()  # an older answer may arrive late
        members: Iterable[Member] = look.members
        if look.beats is not None:
            beats = look.beats
            members = [replace(one, beats=beats[one.start]) for one in self.members.values() if one.start in beats]
        before, self.members = self.members, {member.start: member for member in members}
        for start in before.keys() - self.members.keys():
            if before[start].state is not State.LEAVING:
                self.missing[before[start].node_id] = asked
        for member in self.members.values():
            self.missing.pop(member.node_id, None)
        self._watch.take_in(self.members.values(), asked, answered)
        own = self.members.get(self.start)
        if own is None or own.state is State.ENDING:
            return self.end()
        if look.slots is not None:
            if not self.slots:
                self.slots = [Slot()] * len(look.slots)
            for index, slot in enumerate(look.slots):
                # An epoch that this node has raised since the query is newer.
                if slot.epoch >= self.slots[index].epoch:
                    self.slots[index] = slot
            self.drained = look.drained
            self.level = look.level
            self.version = look.version
        return self._settle()

    def raised(self, slot: int, epoch: int | None) -> News:
        """Take in the new epoch of this node's slot; None: another member owns it, as the next look will show."""
        if self.ended or epoch is None:
            return News()
        if epoch > self.slots[slot].epoch:
            self.slots[slot] = Slot(self.start, epoch, self.slots[slot].pin)
        return self._settle()

    def past(self, member: Member) -> None:
        """Note that the process of a member from :meth:`doubtful` has ended."""
        self._watch.past(member.start, member.beats)

    def begin_giving(self, slots: Iterable[int]) -> None:
        """Stop acting for slots, before asking the database to give them to another member."""
        for slot in slots:
            epoch = self.acting.pop(slot, None)
            if epoch is not None:
                self.giving[slot] = epoch

    def end(self) -> News:
        """Note that other members have ended this start."""
        self.ended = True
        lost, self.acting = sorted(self.acting), {}
        return News(lost=lost)

    def _settle(self) -> News:
        news = News()
        for index, slot in enumerate(self.slots):
            given = self.giving.get(index)
            if given is not None and slot.epoch > given:
                del self.giving[index]
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

    # --- output -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of this node."""
        own = self.members.get(self.start)
        return State.ENDING if own is None or self.ended else own.state

    @property
    def is_drained(self) -> bool:
        """Return whether this node is drained: it serves but owns nothing."""
        own = self.members.get(self.start)
        return own is not None and own.drained and not self.ended

    def is_suspected(self, start: int) -> bool:
        """Return whether a member has shown no heartbeat for a lease."""
        return self._watch.is_suspected(start)

    def still(self, start: int) -> float:
        """Return the seconds for which a member has shown no heartbeat."""
        return self._watch.still(start)

    def doubtful(self) -> list[Member]:
        """Return the members whose processes may have ended, and should be probed."""
        return [
            member
            for member in self.members.values()
            if member.start != self.start and member.state is not State.ENDING and self._watch.is_doubtful(member.start)
        ]

    def to_end(self) -> list[Member]:
        """Return the members that this node should try to end now.

        These are suspected members, and ENDING members whose ender has ended. A drained node ends only its own former
        starts, which no other member would end.
        """
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
        """Return the start that should take over from a member instead of this node, whose range server was refused.

        ``server_id`` is the range server that has the member's log. If it belongs to a member, that member takes over.
        Otherwise it is the next other member, one after the other: a member that has taken over from that server has
        the log as well. Without other members it is this node.
        """
        others = [one for one in self.members.values() if one.state is State.UP and one.start != self.start]
        for one in others:
            if one.server_id == server_id:
                return one.start
        starts = [one.start for one in others]
        return min([start for start in starts if start > self.start] or starts, default=self.start)

    def to_give(self) -> list[Move]:
        """Return the slots of this node that should move to other members."""
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
        """Return the start that should own each pinned slot whose node is UP."""
        up = {one.node_id: one.start for one in self.members.values() if one.state is State.UP}
        return pins_of(self.slots, up)

    @property
    def unowned(self) -> int:
        """Return the number of slots whose owner is no member."""
        return sum(slot.owner not in self.members for slot in self.slots)

    def unsettled(self) -> list[int]:
        """Return the slots that may or may not have been given away."""
        return sorted(self.giving)

    def owner(self, slot: int) -> Member | None:
        """Return the member that acts for a slot, as far as this node knows.

        A JOINING worker that has inherited its former start's slots does not act for them yet.
        """
        if not self.slots or self.slots[slot].owner == NOBODY:
            return None
        member = self.members.get(self.slots[slot].owner)
        return None if member is None or member.state is State.JOINING else member
