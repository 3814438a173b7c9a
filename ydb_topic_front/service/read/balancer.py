"""Balancer that assigns the partitions of one topic to the read sessions of one consumer; no I/O.

One session at a time reads a partition. Sessions that named partitions take precedence; the other partitions are shared
evenly among the sessions that take any. A partition moves only after its session was asked for it and has let go. The
children of a split or merged partition are assigned when their parents are done: all committed, or read to the end by
one session that still holds all of them.

Events are recorded at once. :meth:`Share.balance` then works in steps, and events may come between steps. Each step
leaves a consistent state, except for events since the first step; a further balance handles those. It visits only the
partitions that may have changed: those that a session named or held, those that have to move, and the sealed ones,
since no event reports that they are done. It visits all partitions after a change of partitions, and when the first
session that takes any partition joins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from typing import Generic, Protocol, TypeVar

from bridges.catalog.topics.lineage import PartitionInfo


class Member(Protocol):
    """A read session, as the balancer sees it."""

    def start(self, topic: str, partition: int) -> None:
        """Take the partition: it is this session's until it reports that it has let go, or leaves."""

    def let_go(self, topic: str, partition: int) -> None:
        """Let go of the partition soon: another session is to read it."""

    def has_read_all(self, topic: str, partition: int) -> bool:
        """Return whether the session has sent all of a partition that has ended, to a client that supports such
        partitions."""


M = TypeVar("M", bound="Member")

STEP = 200
"""Partitions that one step of a balance visits, some microseconds each."""


class Share(Generic[M]):
    """Assignment of one topic's partitions to one consumer's sessions.

    ``partitions`` returns the current partitions, indexed by number; ``done`` returns whether one has ended and is
    fully committed.
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
        # Owners of partitions, including sessions that have left until _clear_away removes them.
        self._owners: dict[int, M] = {}
        self._owned: dict[M, dict[int, None]] = {}
        self._left: deque[dict[int, None]] = deque()
        # Partitions whose session was asked to let go, with the session that gets them next.
        self._destined: dict[int, M] = {}
        # Partitions with nothing left to read, as of the last _look.
        self._finished: set[int] = set()
        # Unfinished partitions that each session has or is to get; _any orders the sessions that take any by it.
        self._loads: dict[M, int] = {}
        self._any: _Levels[M] = _Levels()
        # Work of the next balance: all partitions, or only those that may be assigned and those that a session named.
        self._whole = True
        self._to_give: dict[int, None] = {}
        self._to_name: dict[int, None] = {}
        self._under_way = False
        self._sealed: list[int] = []

    @property
    def members(self) -> Collection[M]:
        """Return the sessions, in the order in which they joined."""
        return self._loads.keys()

    def owner(self, partition: int) -> M | None:
        """Return the session that has a partition, or None."""
        owner = self._owners.get(partition)
        return owner if owner is not None and owner in self._loads else None

    def join(self, member: M, partitions: Collection[int]) -> None:
        """Add a session that reads ``partitions``, or any if that is empty. Call :meth:`balance` after it."""
        self._loads[member] = 0
        self._owned[member] = {}
        self._names[member] = partitions
        self._enter(member)

    def _enter(self, member: M) -> None:
        """Let a session be assigned partitions from now on."""
        partitions = self._names[member]
        if not partitions:
            self._whole = self._whole or not self._any
            self._any.enter(member, self._loads[member])
        for partition in partitions:
            self._named.setdefault(partition, {})[member] = None
            self._to_name[partition] = self._to_give[partition] = None

    def _withdraw(self, member: M) -> None:
        """Assign a session no more partitions."""
        self._any.leave(member)
        for partition in self._names.get(member, ()):
            named = self._named.get(partition, {})
            named.pop(member, None)
            if not named:
                self._named.pop(partition, None)

    def demote(self, member: M) -> None:
        """Note that a session does not answer: until it is heard of again it gets only partitions that no other session
        can read."""
        if member in self._loads and member not in self._silent:
            self._withdraw(member)
            self._silent[member] = None

    def restore(self, member: M) -> None:
        """Note that a silent session has answered; does nothing for other sessions. Call :meth:`balance` after it."""
        if member in self._silent:
            del self._silent[member]
            self._enter(member)

    def leave(self, member: M) -> None:
        """Remove a session that has ended. Call :meth:`balance` after it."""
        self._loads.pop(member, None)
        self._silent.pop(member, None)
        self._withdraw(member)
        self._names.pop(member, None)
        owned = self._owned.pop(member, None)
        if owned:
            self._left.append(owned)

    def released(self, member: M, partition: int) -> None:
        """Note that a session has let go of a partition. Call :meth:`balance` after it."""
        owned = self._owned.get(member, {})
        if partition in owned:
            del owned[partition]
            self._free(partition)

    def changed(self) -> None:
        """Note that the topic's partitions have changed. Call :meth:`balance` after it."""
        self._whole = True

    def balance(self) -> Iterator[None]:
        """Assign free partitions, and ask sessions to let go of partitions that others should have; yields between
        steps. Balance again for events that come before it has ended."""
        steps = count(1)
        yield from self._clear_away(steps)
        if not self._loads:
            return
        whole = self._whole or self._under_way  # a balance that did not finish has left work undone
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
            self._refresh(infos[index])
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
        """Free the partitions of sessions that have left."""
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
        """Add ``by`` to the load of the session that is to get a partition, or else has it. Finished partitions are no
        load."""
        if index not in self._finished:
            holder = self._destined.get(index, self._owners.get(index))
            if holder is not None and holder in self._loads:
                load = self._loads[holder] = self._loads[holder] + by
                self._any.change(holder, load)

    def _refresh(self, info: PartitionInfo) -> None:
        """Update whether a partition is finished: it has ended and all of it is committed."""
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
            for member in list(self._silent):  # a silent session is better than none
                self.restore(member)
            named = self._named.get(info.index)
        if not named and not self._any:
            return  # it is visited again when a session joins that reads it
        chosen: M | None
        waited = [index for index in info.parents if index < len(infos) and not self._done(infos[index])]
        if waited:
            # Only the session that has read all parents may go on with the child; another would break the order.
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
        """Ask a session that did not name this partition to let go of it for one that did."""
        owner, named = self.owner(index), self._named.get(index)
        if owner is not None and index not in self._destined and named and owner not in named:
            self._take(index, min(named, key=self._loads.__getitem__))

    def _take(self, index: int, target: M) -> None:
        self._count(index, -1)
        self._destined[index] = target
        self._count(index, 1)
        self._owners[index].let_go(self.topic, index)

    def _even_out(self, infos: Sequence[PartitionInfo], steps: Iterator[int]) -> Iterator[None]:
        """Move partitions among the sessions that take any until their loads differ by at most one, as far as
        partitions may move."""
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
        """Return whether a partition may move between sessions that take any. One session has to read children whose
        parents are not finished, and these parents."""
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
    """Members grouped by load, to find the least and the most loaded without a scan. There are few distinct loads,
    since members share the partitions evenly."""

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
        self._loads[member] = load
        self._levels.setdefault(load, {})[member] = None

    def leave(self, member: M) -> None:
        """Remove a member; does nothing if it is none."""
        if member in self._loads:
            self._lift(member)
            del self._loads[member]

    def change(self, member: M, load: int) -> None:
        """Set a member's load; does nothing if it is none."""
        if member in self._loads:
            self._lift(member)
            self._loads[member] = load
            self._levels.setdefault(load, {})[member] = None

    def lightest(self) -> M | None:
        """Return a member with the lowest load, None if there is none."""
        return next(iter(self._levels[min(self._levels)])) if self._levels else None

    def heaviest(self) -> M | None:
        """Return a member with the highest load, None if there is none."""
        return next(iter(self._levels[max(self._levels)])) if self._levels else None

    def set_aside(self, member: M) -> None:
        """Exclude a member from :meth:`lightest` and :meth:`heaviest` until its load changes, or :meth:`restore`."""
        self._lift(member)
        self._aside[member] = None

    def restore(self) -> None:
        """Include the members that were set aside again."""
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
