"""Who of a consumer's readers reads which partition of a topic; no I/O.

A partition is read by one session at a time. Sessions that named partitions come before those that take any, among
which the others are shared evenly. A partition moves when its reader has let go of it, which it is asked for first.
Children of a split or merged partition are given out when their parents are done: all of them committed, or read to the
end by the same session, which then still has all in its hands.

What happens is noted at once. What follows from it is done by :meth:`Share.balance` in steps, between which anything
may happen: each leaves everything as it should be, but for what has happened since the first one, for which it is done
once more.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
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

STEP = 200
"""Partitions that one step looks at, gives out or takes away: some microseconds each."""


class Share(Generic[M]):
    """One topic as one consumer's sessions share it.

    ``partitions`` tells which there are now, ``done`` whether one has ended and all of it is committed.
    """

    __slots__ = (
        "_any",
        "_destined",
        "_done",
        "_finished",
        "_left",
        "_loads",
        "_named",
        "_names",
        "_owned",
        "_owners",
        "_partitions",
        "topic",
    )

    def __init__(
        self, topic: str, partitions: Callable[[], Collection[PartitionInfo]], done: Callable[[PartitionInfo], bool]
    ) -> None:
        self.topic = topic
        self._partitions = partitions
        self._done = done
        self._any: dict[M, None] = {}
        self._named: dict[int, dict[M, None]] = {}
        self._names: dict[M, Collection[int]] = {}
        # Partitions by who has them, also of sessions that have ended until these are cleared away.
        self._owners: dict[int, M] = {}
        self._owned: dict[M, dict[int, None]] = {}
        self._left: deque[dict[int, None]] = deque()
        # Partitions whose readers were asked to let go of them, and for whom.
        self._destined: dict[int, M] = {}
        # Partitions of which there is nothing more to read, as far as the last look.
        self._finished: set[int] = set()
        # How many partitions each session has or is to get, without the finished ones.
        self._loads: dict[M, int] = {}

    @property
    def members(self) -> Collection[M]:
        """The sessions, in the order in which they came."""
        return self._loads.keys()

    def owner(self, partition: int) -> M | None:
        """Who has a partition."""
        owner = self._owners.get(partition)
        return owner if owner is not None and owner in self._loads else None

    def join(self, member: M, partitions: Collection[int]) -> None:
        """A session begins: it reads these partitions, or any if there are none. Call :meth:`balance` after it."""
        self._loads[member] = 0
        self._owned[member] = {}
        self._names[member] = partitions
        if not partitions:
            self._any[member] = None
        for partition in partitions:
            self._named.setdefault(partition, {})[member] = None

    def leave(self, member: M) -> None:
        """A session has ended. Call :meth:`balance` after it."""
        self._loads.pop(member, None)
        self._any.pop(member, None)
        for partition in self._names.pop(member, ()):
            named = self._named.get(partition, {})
            named.pop(member, None)
            if not named:
                self._named.pop(partition, None)
        owned = self._owned.pop(member, None)
        if owned:
            self._left.append(owned)

    def released(self, member: M, partition: int) -> None:
        """A session has let go of a partition. Call :meth:`balance` after it."""
        owned = self._owned.get(member, {})
        if partition in owned:
            del owned[partition]
            self._free(partition)

    def balance(self) -> Iterator[None]:
        """Give out what nobody reads, and have sessions let go of what others should; once more for what happens before
        this has ended."""
        yield from self._clear_away()
        if not self._loads:
            return
        infos = tuple(self._partitions())
        partitions: dict[int, PartitionInfo] = {}
        for number, info in enumerate(infos, 1):
            partitions[info.index] = info
            self._look(info)
            if not number % STEP:
                yield
        free = _Lightest(self._loads, self._any)
        bound: set[int] = set()
        for number, info in enumerate(infos, 1):
            if info.index not in self._owners and info.index not in self._finished:
                self._give(info, partitions, free)
            if info.parents and not self._finished.issuperset(info.parents):
                # What must be read by one session stays in its hands: children whose parents are not done, and those.
                bound.add(info.index)
                if info.index in self._owners:
                    bound.update(info.parents)
            if not number % STEP:
                yield
        for number, index in enumerate(list(self._named), 1):
            self._give_to_named(index)
            if not number % STEP:
                yield
        yield from self._even_out(bound, free)

    def _clear_away(self) -> Iterator[None]:
        """What sessions had that have ended is nobody's."""
        while self._left:
            for number, index in enumerate(self._left.popleft(), 1):
                self._free(index)
                if not number % STEP:
                    yield

    def _free(self, index: int) -> None:
        self._count(index, -1)
        del self._owners[index]
        self._destined.pop(index, None)

    def _count(self, index: int, by: int) -> None:
        """A partition is a load of who is to get it, or else of who has it, as long as there is something to read."""
        if index not in self._finished:
            holder = self._destined.get(index, self._owners.get(index))
            if holder is not None and holder in self._loads:
                self._loads[holder] += by

    def _look(self, info: PartitionInfo) -> None:
        """See whether there is anything more to read of a partition."""
        index = info.index
        if self._done(info):
            self._count(index, -1)
            self._finished.add(index)
        elif index in self._finished:
            self._finished.remove(index)
            self._count(index, 1)

    def _give(self, info: PartitionInfo, partitions: Mapping[int, PartitionInfo], free: _Lightest[M]) -> None:
        named = self._named.get(info.index)
        candidates = named or self._any
        chosen: M | None
        waited = [index for index in info.parents if index in partitions and not self._done(partitions[index])]
        if waited:
            # Whoever has read all of the parents may go on; for others the order would be lost.
            chosen = self._owners.get(waited[0])
            if chosen is None or chosen not in candidates:
                return
            if not all(self._owners.get(i) is chosen and chosen.has_read_all(self.topic, i) for i in waited):
                return
        elif named:
            chosen = min(named, key=self._loads.__getitem__)
        else:
            chosen = free.member()
            if chosen is None:
                return
        self._owners[info.index] = chosen
        self._owned[chosen][info.index] = None
        self._count(info.index, 1)
        chosen.start(self.topic, info.index)

    def _give_to_named(self, index: int) -> None:
        """Who has named a partition comes before one who has not."""
        owner, named = self.owner(index), self._named.get(index)
        if owner is not None and index not in self._destined and named and owner not in named:
            self._take(index, min(named, key=self._loads.__getitem__))

    def _take(self, index: int, target: M) -> None:
        self._count(index, -1)
        self._destined[index] = target
        self._count(index, 1)
        self._owners[index].let_go(self.topic, index)

    def _even_out(self, bound: Collection[int], free: _Lightest[M]) -> Iterator[None]:
        """Of those that take any partition none has two more than another, as far as partitions are not ``bound``."""
        if len(self._any) < 2:
            return
        loads, steps = self._loads, count(1)
        for heaviest in sorted(self._any, key=loads.__getitem__, reverse=True):
            for index in reversed(list(self._owned.get(heaviest, ()))):
                if not next(steps) % STEP:
                    yield
                lightest = free.member()
                if heaviest not in loads or lightest is None or loads[heaviest] - loads[lightest] < 2:
                    break
                if index in self._destined or index in self._finished or index in bound or index in self._named:
                    continue
                if self._owners.get(index) is heaviest:
                    self._take(index, lightest)
            free.lighter(heaviest)


class _Lightest(Generic[M]):
    """The one with the least load of some members, the first to come of several.

    Of loads that become less without :meth:`lighter` it may hear late.
    """

    __slots__ = ("_heap", "_loads", "_order")

    def __init__(self, loads: Mapping[M, int], members: Collection[M]) -> None:
        self._loads = loads
        self._order = {member: order for order, member in enumerate(members)}
        self._heap = [(loads[member], order, member) for member, order in self._order.items()]
        heapq.heapify(self._heap)

    def member(self) -> M | None:
        """The lightest, None if all have left. Loads that have grown are noticed."""
        while self._heap:
            known, order, member = self._heap[0]
            load = self._loads.get(member)
            if load == known:
                return member
            if load is None:
                heapq.heappop(self._heap)
            else:
                heapq.heapreplace(self._heap, (load, order, member))
        return None

    def lighter(self, member: M) -> None:
        """The load of ``member`` has become less."""
        if member in self._order and member in self._loads:
            heapq.heappush(self._heap, (self._loads[member], self._order[member], member))
