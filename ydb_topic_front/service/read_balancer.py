"""Who of a consumer's readers reads which partition of a topic; no I/O.

A partition is read by one session at a time. Sessions that named partitions come before those that take any, among
which the others are shared evenly. A partition moves when its reader has let go of it, which it is asked for first.
Children of a split or merged partition are given out when their parents are done: all of them committed, or read to the
end by the same session, which then still has all in its hands.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from typing import Generic, Protocol, TypeVar

from bridges.catalog.lineage import PartitionInfo


class Member(Protocol):
    """A session that reads."""

    def start(self, topic: str, partition: int) -> None:
        """The partition is this session's from now on, until it says that it has let go, or leaves."""

    def let_go(self, topic: str, partition: int) -> None:
        """Somebody else is to read the partition: let go of it soon."""

    def has_read_all(self, topic: str, partition: int) -> bool:
        """Whether it has sent everything of a partition that has ended, to a client that knows of such."""


M = TypeVar("M", bound="Member")


class Share(Generic[M]):
    """One topic as one consumer's sessions share it.

    ``partitions`` tells which there are now, ``done`` whether one has ended and all of it is committed.
    """

    __slots__ = ("_any", "_destined", "_done", "_loads", "_named", "_owners", "_partitions", "topic")

    def __init__(
        self, topic: str, partitions: Callable[[], Collection[PartitionInfo]], done: Callable[[PartitionInfo], bool]
    ) -> None:
        self.topic = topic
        self._partitions = partitions
        self._done = done
        self._any: dict[M, None] = {}
        self._named: dict[int, dict[M, None]] = {}
        self._owners: dict[int, M] = {}
        # Partitions whose readers were asked to let go of them, and for whom.
        self._destined: dict[int, M] = {}
        self._loads: dict[M, int] = {}

    @property
    def members(self) -> Collection[M]:
        """The sessions, in the order in which they came."""
        return self._loads.keys()

    @property
    def owners(self) -> Mapping[int, M]:
        """Who has which partition."""
        return self._owners

    def join(self, member: M, partitions: Collection[int]) -> None:
        """A session begins: it reads these partitions, or any if there are none. Call :meth:`balance` after it."""
        self._loads[member] = 0
        if not partitions:
            self._any[member] = None
        for partition in partitions:
            self._named.setdefault(partition, {})[member] = None

    def leave(self, member: M) -> None:
        """A session has ended. Call :meth:`balance` after it."""
        self._loads.pop(member, None)
        self._any.pop(member, None)
        for partition in [partition for partition, named in self._named.items() if member in named]:
            del self._named[partition][member]
            if not self._named[partition]:
                del self._named[partition]
        for partition in [partition for partition, owner in self._owners.items() if owner is member]:
            del self._owners[partition]
            self._destined.pop(partition, None)
        for partition in [partition for partition, target in self._destined.items() if target is member]:
            # Its reader lets go all the same; who gets it is decided then.
            self._destined[partition] = self._owners[partition]

    def released(self, member: M, partition: int) -> None:
        """A session has let go of a partition. Call :meth:`balance` after it."""
        if self._owners.get(partition) is member:
            del self._owners[partition]
            self._destined.pop(partition, None)

    def balance(self) -> None:
        """Give out what nobody reads, and have sessions let go of what others should."""
        if not self._loads:
            return
        partitions = {info.index: info for info in self._partitions()}
        loads = dict.fromkeys(self._loads, 0)
        finished = {index for index, info in partitions.items() if self._done(info)}
        for index, owner in self._owners.items():
            if index not in finished:
                loads[self._destined.get(index, owner)] += 1
        self._loads = loads
        free = _Lightest(loads, self._any)
        for index, info in partitions.items():
            if index not in self._owners and index not in finished:
                self._give(info, partitions, free)
        for index, owner in list(self._owners.items()):
            named = self._named.get(index)
            if index not in self._destined and named and owner not in named:
                self._take(index, min(named, key=loads.__getitem__))
        # What must be read by one session stays in its hands: children whose parents are not done, and those.
        bound = {one.index for one in partitions.values() if not finished.issuperset(one.parents)}
        bound.update(parent for index in bound & self._owners.keys() for parent in partitions[index].parents)
        self._even_out(finished | bound, free)

    def _give(self, info: PartitionInfo, partitions: Mapping[int, PartitionInfo], free: _Lightest[M]) -> None:
        named = self._named.get(info.index)
        candidates = named or self._any
        parents = [partitions[index] for index in info.parents if index in partitions]
        waited = [parent.index for parent in parents if not self._done(parent)]
        if waited:
            # Whoever has read all of the parents may go on; for others the order would be lost.
            owner = self._owners.get(waited[0])
            if owner is None or owner not in candidates:
                return
            if not all(self._owners.get(i) is owner and owner.has_read_all(self.topic, i) for i in waited):
                return
            chosen = owner
        elif named:
            chosen = min(named, key=self._loads.__getitem__)
        elif self._any:
            chosen = free.member()
        else:
            return
        self._owners[info.index] = chosen
        self._loads[chosen] += 1
        chosen.start(self.topic, info.index)

    def _take(self, index: int, target: M) -> None:
        owner = self._owners[index]
        self._loads[owner] -= 1
        self._loads[target] += 1
        self._destined[index] = target
        owner.let_go(self.topic, index)

    def _even_out(self, fixed: Collection[int], free: _Lightest[M]) -> None:
        """Of those that take any partition none has two more than another, as far as partitions are not ``fixed``."""
        if len(self._any) < 2:
            return
        loads = self._loads
        movable: dict[M, list[int]] = {}
        for index, owner in self._owners.items():
            if index not in self._destined and index not in fixed and index not in self._named:
                movable.setdefault(owner, []).append(index)
        for heaviest in sorted(movable, key=loads.__getitem__, reverse=True):
            for index in reversed(movable[heaviest]):
                lightest = free.member()
                if loads[heaviest] - loads[lightest] < 2:
                    break
                self._take(index, lightest)
            free.lighter(heaviest)


class _Lightest(Generic[M]):
    """The one with the least load of some members, the first to come of several."""

    __slots__ = ("_heap", "_loads", "_order")

    def __init__(self, loads: Mapping[M, int], members: Collection[M]) -> None:
        self._loads = loads
        self._order = {member: order for order, member in enumerate(members)}
        self._heap = [(loads[member], order, member) for member, order in self._order.items()]
        heapq.heapify(self._heap)

    def member(self) -> M:
        """The lightest. Loads that have grown are noticed."""
        while True:
            known, order, member = self._heap[0]
            load = self._loads[member]
            if load == known:
                return member
            heapq.heapreplace(self._heap, (load, order, member))

    def lighter(self, member: M) -> None:
        """The load of ``member`` has become less."""
        order = self._order.get(member)
        if order is not None:
            heapq.heappush(self._heap, (self._loads[member], order, member))
