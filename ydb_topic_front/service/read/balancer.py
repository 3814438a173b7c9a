"""Who of a consumer's readers reads which partition of a topic; no I/O.

A partition is read by one session at a time. Sessions that named partitions come before those that take any, among
which the others are shared evenly. A partition moves when its reader has let go of it, which it is asked for first.
Children of a split or merged partition are given out when their parents are done: all of them committed, or read to the
end by the same session, which then still has all in its hands.

What happens is noted at once. What follows from it is done by :meth:`Share.balance` in steps, between which anything
may happen: each leaves everything as it should be, but for what has happened since the first one, for which it is done
once more. It looks at what may have changed: the partitions that a session has named, or had, those that have to move,
and those that are sealed, whose ends nobody tells. All partitions are looked at when there are others, and when the
first session comes that takes any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
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

    ``partitions`` tells which there are now, each at the place of its number, ``done`` whether one has ended and all of
    it is committed.
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
        "_sealed",
        "_silent",
        "_to_give",
        "_to_name",
        "_under_way",
        "_whole",
        "topic",
    )

    def __init__(
        self, topic: str, partitions: Callable[[], Sequence[PartitionInfo]], done: Callable[[PartitionInfo], bool]
    ) -> None:
        self.topic = topic
        self._partitions = partitions
        self._done = done
        self._named: dict[int, dict[M, None]] = {}
        self._names: dict[M, Collection[int]] = {}
        self._silent: dict[M, None] = {}
        # Partitions by who has them, also of sessions that have ended until these are cleared away.
        self._owners: dict[int, M] = {}
        self._owned: dict[M, dict[int, None]] = {}
        self._left: deque[dict[int, None]] = deque()
        # Partitions whose readers were asked to let go of them, and for whom.
        self._destined: dict[int, M] = {}
        # Partitions of which there is nothing more to read, as far as the last look.
        self._finished: set[int] = set()
        # How many partitions each session has or is to get, without the finished ones; those that take any by it.
        self._loads: dict[M, int] = {}
        self._any: _Levels[M] = _Levels()
        # What the next balance has to look at: everything, or partitions that may be given to somebody, and those that
        # somebody has named.
        self._whole = True
        self._to_give: dict[int, None] = {}
        self._to_name: dict[int, None] = {}
        self._under_way = False
        self._sealed: list[int] = []

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
        self._enter(member)

    def _enter(self, member: M) -> None:
        """It may be given partitions from now on."""
        partitions = self._names[member]
        if not partitions:
            self._whole = self._whole or not self._any
            self._any.enter(member, self._loads[member])
        for partition in partitions:
            self._named.setdefault(partition, {})[member] = None
            self._to_name[partition] = self._to_give[partition] = None

    def _withdraw(self, member: M) -> None:
        """It is given no more partitions."""
        self._any.leave(member)
        for partition in self._names.get(member, ()):
            named = self._named.get(partition, {})
            named.pop(member, None)
            if not named:
                self._named.pop(partition, None)

    def silent(self, member: M) -> None:
        """A session does not answer: it gets nothing more that others can read, until it is heard of again."""
        if member in self._loads and member not in self._silent:
            self._withdraw(member)
            self._silent[member] = None

    def heard(self, member: M) -> None:
        """A session that was silent is not any more; harmless of others. Call :meth:`balance` after it."""
        if member in self._silent:
            del self._silent[member]
            self._enter(member)

    def leave(self, member: M) -> None:
        """A session has ended. Call :meth:`balance` after it."""
        self._loads.pop(member, None)
        self._silent.pop(member, None)
        self._withdraw(member)
        self._names.pop(member, None)
        owned = self._owned.pop(member, None)
        if owned:
            self._left.append(owned)

    def released(self, member: M, partition: int) -> None:
        """A session has let go of a partition. Call :meth:`balance` after it."""
        owned = self._owned.get(member, {})
        if partition in owned:
            del owned[partition]
            self._free(partition)

    def changed(self) -> None:
        """There are other partitions. Call :meth:`balance` after it."""
        self._whole = True

    def balance(self) -> Iterator[None]:
        """Give out what nobody reads, and have sessions let go of what others should; once more for what happens before
        this has ended."""
        steps = count(1)
        yield from self._clear_away(steps)
        if not self._loads:
            return
        whole = self._whole or self._under_way  # one that did not come to its end has left things undone
        self._whole, self._under_way = False, True
        self._any.restore()
        infos = tuple(self._partitions()) if whole else self._partitions()
        if whole:
            sealed: list[int] = []
            for info in infos:
                if not info.is_active:
                    sealed.append(info.index)
                if not next(steps) % STEP:
                    yield
            self._sealed = sealed
        for index in self._sealed:
            self._look(infos[index])
            if not next(steps) % STEP:
                yield
        some, self._to_give = self._to_give, {}
        for index in range(len(infos)) if whole else some:
            if index < len(infos) and index not in self._owners and index not in self._finished:
                self._give(infos[index], infos)
            if not next(steps) % STEP:
                yield
        names, self._to_name = self._to_name, {}
        for index in list(self._named) if whole else names:
            self._give_to_named(index)
            if not next(steps) % STEP:
                yield
        yield from self._even_out(infos, steps)
        self._under_way = False

    def _clear_away(self, steps: Iterator[int]) -> Iterator[None]:
        """What sessions had that have ended is nobody's."""
        while self._left:
            for index in self._left.popleft():
                self._free(index)
                if not next(steps) % STEP:
                    yield

    def _free(self, index: int) -> None:
        self._count(index, -1)
        del self._owners[index]
        self._destined.pop(index, None)
        self._to_give[index] = None

    def _count(self, index: int, by: int) -> None:
        """A partition is a load of who is to get it, or else of who has it, as long as there is something to read."""
        if index not in self._finished:
            holder = self._destined.get(index, self._owners.get(index))
            if holder is not None and holder in self._loads:
                load = self._loads[holder] = self._loads[holder] + by
                self._any.change(holder, load)

    def _look(self, info: PartitionInfo) -> None:
        """See whether there is anything more to read of a partition."""
        index = info.index
        if self._done(info):
            self._count(index, -1)
            self._finished.add(index)
        elif index in self._finished:
            self._finished.remove(index)
            self._count(index, 1)
            self._to_give[index] = None

    def _give(self, info: PartitionInfo, infos: Sequence[PartitionInfo]) -> None:
        named = self._named.get(info.index)
        if not named and not self._any:
            for member in list(self._silent):  # better them than nobody
                self.heard(member)
            named = self._named.get(info.index)
        if not named and not self._any:
            return  # it is looked at again when somebody comes who reads it
        chosen: M | None
        waited = [index for index in info.parents if index < len(infos) and not self._done(infos[index])]
        if waited:
            # Whoever has read all of the parents may go on; for others the order would be lost.
            chosen = self._owners.get(waited[0])
            if (
                chosen is None
                or chosen not in (named or self._any)
                or not all(self._owners.get(i) is chosen and chosen.has_read_all(self.topic, i) for i in waited)
            ):
                self._to_give[info.index] = None
                return
        elif named:
            chosen = min(named, key=self._loads.__getitem__)
        else:
            chosen = self._any.lightest()
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

    def _even_out(self, infos: Sequence[PartitionInfo], steps: Iterator[int]) -> Iterator[None]:
        """Of those that take any partition none has two more than another, as far as partitions may move."""
        anybody, loads = self._any, self._loads
        rests: dict[M, Iterator[int]] = {}
        while (heaviest := anybody.heaviest()) is not None:
            lightest = anybody.lightest()
            if lightest is None or loads[heaviest] - loads[lightest] < 2:
                break
            rest = rests.get(heaviest)
            if rest is None:
                rest = rests[heaviest] = reversed(list(self._owned[heaviest]))
            index = next(rest, None)
            if index is None:
                anybody.set_aside(heaviest)
            elif self._owners.get(index) is heaviest and self._may_move(index, infos):
                self._take(index, lightest)
            if not next(steps) % STEP:
                yield
        anybody.restore()

    def _may_move(self, index: int, infos: Sequence[PartitionInfo]) -> bool:
        """Whether a partition may go from one who takes any to another. What must be read by one session stays in its
        hands: children whose parents are not done, and those."""
        if index in self._destined or index in self._finished or index in self._named or index >= len(infos):
            return False
        if self._awaits(infos[index]):
            return False
        children = infos[index].children
        return not any(
            child < len(infos) and child in self._owners and self._awaits(infos[child]) for child in children
        )

    def _awaits(self, info: PartitionInfo) -> bool:
        return bool(info.parents) and not self._finished.issuperset(info.parents)


class _Levels(Generic[M]):
    """Members by their loads: who has the least, and who the most, is found however many there are. Different loads
    there are few of, as members share what they are made of."""

    __slots__ = ("_aside", "_levels", "_loads")

    def __init__(self) -> None:
        self._loads: dict[M, int] = {}
        self._levels: dict[int, dict[M, None]] = {}
        self._aside: dict[M, None] = {}

    def __len__(self) -> int:
        return len(self._loads)

    def __contains__(self, member: object) -> bool:
        return member in self._loads

    def enter(self, member: M, load: int) -> None:
        """One more."""
        self._loads[member] = load
        self._levels.setdefault(load, {})[member] = None

    def leave(self, member: M) -> None:
        """It is none of them any more; harmless of one that was none."""
        if member in self._loads:
            self._lift(member)
            del self._loads[member]

    def change(self, member: M, load: int) -> None:
        """It has another load now; harmless of one that is none of them."""
        if member in self._loads:
            self._lift(member)
            self._loads[member] = load
            self._levels.setdefault(load, {})[member] = None

    def lightest(self) -> M | None:
        """One of those that have the least."""
        return next(iter(self._levels[min(self._levels)])) if self._levels else None

    def heaviest(self) -> M | None:
        """One of those that have the most."""
        return next(iter(self._levels[max(self._levels)])) if self._levels else None

    def set_aside(self, member: M) -> None:
        """Neither the lightest nor the heaviest, until its load is another one, or :meth:`restore`."""
        self._lift(member)
        self._aside[member] = None

    def restore(self) -> None:
        """Nobody is set aside any more."""
        while self._aside:
            member, _ = self._aside.popitem()
            self._levels.setdefault(self._loads[member], {})[member] = None

    def _lift(self, member: M) -> None:
        if member in self._aside:
            del self._aside[member]
            return
        load = self._loads[member]
        level = self._levels[load]
        del level[member]
        if not level:
            del self._levels[load]
