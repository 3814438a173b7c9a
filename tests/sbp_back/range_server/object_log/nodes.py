"""Nodes over a store and a database, in the world of :mod:`.world`: they append to the partitions they own, end the
logs of those that seem dead, hand partitions over, and rewrite old objects.

What is the product's (:mod:`sbp_back.range_server.object_log`) is used as it is. What will be the database's
transactions is written here as functions of its tables, each of which takes effect as a whole. ``Rules`` leaves
safeguards out, one at a time, so that a test can tell whether they are noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sbp_back.range_server.object_log.objects.content import ObjectHead, ObjectKind, decode_head
from sbp_back.range_server.object_log.ownership.takeover import Takeover
from sbp_back.range_server.object_log.writer import Group, LogWriter, Put
from tests.sbp_back.range_server.object_log.checker import Checker
from tests.sbp_back.range_server.object_log.world import Service, Store, World

LEASE = 2.0
BEAT = 0.5


@dataclass
class Rules:
    """Safeguards; each is needed, which the tests show."""

    writer: Callable[..., LogWriter[Any]] = LogWriter
    takeover: Callable[..., Takeover] = Takeover
    put_if_absent: bool = True
    fence_before_reading: bool = True
    first_with_the_mark: bool = True
    """The first number that counts is read in the transaction that writes down that the log is being ended."""
    own_objects_only_while_open: bool = True
    """A server whose log is being ended gives up no objects of it."""
    fences_stay: bool = True
    commit_before_deleting: bool = True
    hand_over_when_decided: bool = True
    """A partition is handed over when nothing of it is in flight."""
    hand_over_by_version: bool = True
    """A handing-over that comes late finds that its sender has gone on."""
    end_once: bool = True
    """What ends a log changes nothing when that was done already."""
    show_what_is_acknowledged: bool = True
    given_stays_given: bool = True
    """What the database said before a partition was given away does not bring it back."""


@dataclass
class Range:
    """A range of a partition; ``end`` is -1 while it is open. ``moved``: entries that lie in objects of their own."""

    epoch: int
    start: int
    incarnation: int
    end: int = -1
    moved: list[str] = field(default_factory=list)
    moved_end: int = -1


@dataclass
class Incarnation:
    """One life of a node's server."""

    node: int
    lease: float
    state: str = "open"  # then "ending", then "ended"
    first: int = 0
    """Objects from here on are read as they are; those below were rewritten."""
    end: int = -1


@dataclass
class Partition:
    """Its ranges, the last of which is open; ``version`` grows with each change of who has it."""

    ranges: list[Range]
    version: int = 0


class Tables:
    """What the database holds. Its methods are transactions."""

    def __init__(self, world: World, partitions: int, rules: Rules) -> None:
        self.world = world
        self.rules = rules
        self.incarnations: list[Incarnation] = [Incarnation(-1, -1.0, "ended", 0, 0)]
        # They begin with nobody: their first range is one of an incarnation that has ended.
        self.partitions = [Partition([Range(0, 0, 0)]) for _ in range(partitions)]
        self.skew = 0.0

    def clock(self) -> float:
        """The database's, which may jump."""
        return self.world.now + self.skew

    def register(self, node: int) -> int:
        self.incarnations.append(Incarnation(node, self.clock() + LEASE))
        return len(self.incarnations) - 1

    def beat(self, number: int) -> tuple[bool, list[int], dict[int, tuple[int, int, int]], list[int]]:
        """(Whether the log of ``number`` is open, logs that have to be ended, own partitions with epoch, start and
        version, nodes' logs that are open)."""
        own = self.incarnations[number]
        if own.state == "open":
            own.lease = self.clock() + LEASE
        now = self.clock()
        late = [
            other
            for other, one in enumerate(self.incarnations)
            if other != number and (one.state == "ending" or (one.state == "open" and one.lease < now))
        ]
        if any(partition.ranges[-1].incarnation == 0 for partition in self.partitions):
            late.append(0)
        mine = {
            index: (partition.ranges[-1].epoch, partition.ranges[-1].start, partition.version)
            for index, partition in enumerate(self.partitions)
            if partition.ranges[-1].incarnation == number
        }
        there = [other for other, one in enumerate(self.incarnations) if one.state == "open"]
        return own.state == "open", late, mine, there

    def begin_ending(self, number: int, wrongly: bool) -> int:
        """Mark a log as being ended; the first of its objects that count as they are. -1: it is not to be ended.
        ``wrongly``: whoever asks does not care whether its lease has run out."""
        one = self.incarnations[number]
        if one.state == "open" and one.lease >= self.clock() and not wrongly:
            return -1
        if one.state == "open":
            one.state = "ending"
        return one.first

    def first_of(self, number: int) -> int:
        return self.incarnations[number].first

    def finish_ending(self, number: int, end: int, ends: dict[tuple[int, int], int], mine: int) -> bool:
        """Write down where a log and its open ranges end, and go on with these in ``mine``."""
        one = self.incarnations[number]
        if one.state == "ended" and number and self.rules.end_once:
            return False
        if self.incarnations[mine].state != "open":
            return False
        one.state = "ended"
        one.end = end
        for index, partition in enumerate(self.partitions):
            last = partition.ranges[-1]
            if last.incarnation != number and (
                self.rules.end_once or number not in [r.incarnation for r in partition.ranges]
            ):
                continue
            if last.incarnation == number:
                last.end = max(last.start, last.moved_end, ends.get((index, last.epoch), -1))
            else:  # only without the safeguard
                last.end = max(last.start, ends.get((index, last.epoch), -1))
            self._go_on(partition, last.end, mine)
        return True

    def _go_on(self, partition: Partition, start: int, incarnation: int) -> None:
        partition.ranges.append(Range(partition.ranges[-1].epoch + 1, start, incarnation))
        partition.version += 1

    def hand_over(self, index: int, version: int, mine: int, end: int, other: int) -> bool:
        """Give a partition that ends at ``end`` to another's log, unless anything has changed."""
        partition = self.partitions[index]
        last = partition.ranges[-1]
        if self.rules.hand_over_by_version and partition.version != version:
            return False
        if last.incarnation != mine or self.incarnations[other].state != "open":
            return False
        # That its own log may be ending does no harm: nothing of the partition is in flight, and what is
        # acknowledged lies below any fence.
        last.end = end
        self._go_on(partition, end, other)
        return True

    def keep(self, index: int, mine: int) -> tuple[int, int, int] | None:
        """Say that a handing-over that may still be under way is not meant any more; None: it has taken place."""
        partition = self.partitions[index]
        last = partition.ranges[-1]
        if last.incarnation != mine or self.incarnations[mine].state != "open":
            return None
        partition.version += 1
        return last.epoch, last.start, partition.version

    def give_up(self, number: int, by: int, first: int, upto: int, moved: dict[tuple[int, int], list[str]]) -> bool:
        """Objects from ``first`` up to ``upto`` have been rewritten: they may be deleted if this is true."""
        one = self.incarnations[number]
        allowed = one.state == "ended" or (
            number == by and (one.state == "open" or not self.rules.own_objects_only_while_open)
        )
        if not allowed or one.first != first or upto < first:
            return False
        one.first = upto
        for (index, epoch), values in moved.items():
            for part in self.partitions[index].ranges:
                if part.epoch == epoch and part.incarnation == number:
                    if part.moved_end < 0:
                        part.moved_end = part.start
                    part.moved += values
                    part.moved_end += len(values)
        return True


Entry = tuple[int, int, int, str]
"""Partition, epoch, offset, value."""


class Stored:
    """An object: its head as bytes, and what is in it."""

    __slots__ = ("entries", "head", "size")

    def __init__(self, head: bytes, entries: list[Entry]) -> None:
        self.head = head
        self.entries = entries
        self.size = len(head) + len(entries)


class Owned:
    """A partition that this node may append to."""

    __slots__ = ("confirmed", "epoch", "in_flight", "leaving", "next", "start", "values", "version")

    def __init__(self, epoch: int, start: int, version: int) -> None:
        self.epoch = epoch
        self.start = start
        self.version = version
        self.next = start
        self.confirmed = start
        self.in_flight = 0
        self.leaving = False
        self.values: list[str] = []


class Append:
    """One in flight."""

    __slots__ = ("offset", "owned", "partition", "reply", "value")

    def __init__(self, owned: Owned, partition: int, offset: int, value: str, reply: Callable[[int], None]) -> None:
        self.owned = owned
        self.partition = partition
        self.offset = offset
        self.value = value
        self.reply = reply


class Node:
    """A process that may be killed and paused. Each start is another incarnation."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.world = cluster.world
        self.life = 0
        self.alive = False
        self.paused = False
        self._waiting: list[Callable[[], None]] = []
        self.incarnation = -1
        self.writer: LogWriter[Append] | None = None
        self.partitions: dict[int, Owned] = {}
        self._entries: dict[int, list[Entry]] = {}
        self._ending: set[int] = set()
        # The epoch in which a partition was given away, or found to be another's: the next one of ours is above.
        self._given: dict[int, int] = {}
        self._others: list[int] = []
        self._rewriting = False
        self._uniques = 0

    # --- its life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.alive = True
        self.life += 1
        self.writer = None
        self.incarnation = -1
        self.partitions = {}
        self._entries = {}
        self._ending = set()
        self._given = {}
        self._rewriting = False
        self._register()

    def kill(self) -> None:
        self.alive = False
        self.life += 1
        self._waiting = []
        self.paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        waiting, self._waiting = self._waiting, []
        for step in waiting:
            step()

    def mine(self, step: Callable[..., None]) -> Callable[..., None]:
        """A step of this life: not done after its end, and not while it is paused."""
        life = self.life

        def guarded(*arguments: Any) -> None:
            if life != self.life:
                return
            if self.paused:
                self._waiting.append(lambda: guarded(*arguments))
            else:
                step(*arguments)

        return guarded

    def _end(self, why: str) -> None:
        self.world.tell(f"n{self.number} ends: {why}")
        self.kill()
        self.world.after(0.3, self._again)

    def _again(self) -> None:
        if not self.alive:
            self.start()

    def _register(self) -> None:
        def done(answered: bool, number: int) -> None:
            if not answered:
                self.world.after(0.2, self.mine(self._register))
                return
            self.incarnation = number
            self.writer = self.cluster.rules.writer(number, self._unique, linger=0.05, most_under_way=3)
            self.world.tell(f"n{self.number} is {number}")
            self._beat()

        self.cluster.database.ask(lambda: self.cluster.tables.register(self.number), self.mine(done))

    def _unique(self) -> bytes:
        self._uniques += 1
        return b"%016d" % (self.number * 10_000_000 + self.life * 100_000 + self._uniques)

    def _beat(self) -> None:
        def done(answered: bool, told: Any) -> None:
            self.world.after(BEAT, self.mine(self._beat))
            if answered:
                self._told(*told)

        own = self.incarnation
        self.cluster.database.ask(lambda: self.cluster.tables.beat(own), self.mine(done))

    def _told(self, is_open: bool, late: list[int], mine: dict[int, tuple[int, int, int]], there: list[int]) -> None:
        if not is_open:
            self._end("its log was ended")
            return
        self._others = [other for other in there if other != self.incarnation]
        for index, (epoch, start, version) in mine.items():
            owned = self.partitions.get(index)
            known = self._given.get(index, -1) if owned is None else owned.epoch
            if known < epoch:
                self.partitions[index] = Owned(epoch, start, version)
        for number in late:
            if number not in self._ending:
                self._ending.add(number)
                self.world.after(
                    self.world.random.random() * 0.3, self.mine(lambda number=number: self._take_over(number))
                )
        self._maybe_rewrite()

    # --- appending ----------------------------------------------------------------------------------------------

    def append(self, partition: int, value: str, reply: Callable[[int], None]) -> None:
        """A client's request; ``reply`` gets the offset, or -1: not the owner."""
        owned = self.partitions.get(partition)
        writer = self.writer
        if owned is None or owned.leaving or writer is None or writer.fenced:
            reply(-1)
            return
        offset = owned.next
        owned.next += 1
        owned.in_flight += 1
        owned.values.append(value)
        quiet = writer.closes_at() is None
        writer.append(len(value), Append(owned, partition, offset, value, reply), self.world.now)
        number = writer.acknowledged + writer.pending - 1
        self._entries.setdefault(number, []).append((partition, owned.epoch, offset, value))
        closes_at = writer.closes_at()
        if quiet and closes_at is not None:
            self.world.after(closes_at - self.world.now + 0.001, self.mine(self._put))

    def _put(self) -> None:
        writer = self.writer
        if writer is None:
            return
        for group in writer.puts(self.world.now):
            entries = self._entries[group.number]
            head = bytes(writer.content(group, "".join(entry[3] for entry in entries).encode())[0])
            stored = Stored(head, entries)
            key = f"{self.incarnation}/{group.number}"
            put = self.cluster.store.put_absent if self.cluster.rules.put_if_absent else self.cluster.store.put_over
            put(key, stored, self.mine(lambda answered, there, group=group: self._was_put(group, answered, there)))

    def _was_put(self, group: Group[Append], answered: bool, there: Stored | None) -> None:
        writer = self.writer
        assert writer is not None
        if not answered:
            acknowledged = writer.put_ended(group, Put.UNKNOWN)
            self.world.after(0.1, self.mine(self._put))
        elif there is None:
            acknowledged = writer.put_ended(group, Put.CREATED)
        else:
            head = decode_head(there.head, self.incarnation, group.number)
            acknowledged = writer.put_ended(group, Put.TAKEN, head.unique)
        for append in acknowledged:
            append.owned.in_flight -= 1
            append.owned.confirmed = append.offset + 1
            append.reply(append.offset)
        if writer.fenced:
            self._end("it is fenced")
        else:
            self._put()

    # --- reading ------------------------------------------------------------------------------------------------

    def read(self, partition: int) -> list[tuple[int, str]]:
        """What a reader is shown of the open range."""
        owned = self.partitions.get(partition)
        if owned is None:
            return []
        upto = owned.confirmed if self.cluster.rules.show_what_is_acknowledged else owned.next
        return [(owned.start + index, value) for index, value in enumerate(owned.values[: upto - owned.start])]

    # --- ending another's log -----------------------------------------------------------------------------------

    def suspect(self) -> None:
        """End another's log for no reason: nothing but progress may depend on who is believed to be dead."""
        if self._others and self.writer is not None:
            self._take_over(self.world.random.choice(self._others), True)

    def _take_over(self, number: int, wrongly: bool = False) -> None:
        cluster = self.cluster

        def failed() -> None:
            self._ending.discard(number)

        def begun(answered: bool, first: int) -> None:
            if not answered or first < 0:
                failed()
                return
            cluster.store.listing(f"{number}/", self.mine(lambda answered, keys: listed(answered, keys, first)))

        def listed(answered: bool, keys: dict[str, int], first: int) -> None:
            told = keys if answered else {}
            numbers = {int(key.partition("/")[2]): size for key, size in told.items()}
            takeover = cluster.rules.takeover(number, first, self._unique(), numbers)
            if cluster.rules.fence_before_reading:
                fence(takeover, first)
            else:
                read(takeover.number, first, first, {})

        def fence(takeover: Takeover, first: int) -> None:
            stored = Stored(takeover.content(), [])
            key = f"{number}/{takeover.number}"
            cluster.store.put_absent(key, stored, self.mine(lambda *told: fenced(takeover, first, *told)))

        def fenced(takeover: Takeover, first: int, answered: bool, there: Stored | None) -> None:
            head: ObjectHead | None = None
            outcome = Put.UNKNOWN if not answered else Put.CREATED
            if answered and there is not None:
                outcome, head = Put.TAKEN, decode_head(there.head, number, takeover.number)
            if takeover.put_ended(outcome, head):
                read(takeover.end, first, first, {})
            else:
                self.world.after(0 if answered else 0.1, self.mine(lambda: fence(takeover, first)))

        def read(end: int, first: int, at: int, ends: dict[tuple[int, int], int]) -> None:
            if at >= end:
                finish(end, ends)
                return

            def got(answered: bool, stored: Stored | None) -> None:
                if answered and stored is not None:
                    for partition, epoch, offset, _ in stored.entries:
                        ends[partition, epoch] = max(ends.get((partition, epoch), 0), offset + 1)
                    read(end, first, at + 1, ends)
                elif answered:
                    failed()  # rewritten meanwhile: somebody else has ended it
                else:
                    self.world.after(0.1, self.mine(lambda: read(end, first, at, ends)))

            cluster.store.get(f"{number}/{at}", self.mine(got))

        def finish(end: int, ends: dict[tuple[int, int], int]) -> None:
            own = self.incarnation
            self.world.tell(f"n{self.number} ends {number} at {end}: {ends}")

            def done(answered: bool, took: bool) -> None:
                failed()

            cluster.database.ask(lambda: cluster.tables.finish_ending(number, end, ends, own), self.mine(done))

        if number == 0:
            finish(0, {})
            return
        if cluster.rules.first_with_the_mark:
            cluster.database.ask(lambda: cluster.tables.begin_ending(number, wrongly), self.mine(begun))
        else:

            def marked(answered: bool, first: int) -> None:
                mark = lambda answered, marked: begun(answered, -1 if marked == -1 else first)  # noqa: E731
                if not answered:
                    failed()
                    return
                cluster.database.ask(lambda: cluster.tables.begin_ending(number, wrongly), self.mine(mark))

            cluster.database.ask(lambda: cluster.tables.first_of(number), self.mine(marked))

    # --- handing over -------------------------------------------------------------------------------------------

    def hand_over(self, index: int) -> None:
        """Give one of its partitions to another node, in order."""
        owned = self.partitions.get(index)
        if owned is None or owned.leaving or not self._others:
            return
        owned.leaving = True
        self._hand_over(index, owned, self.world.random.choice(self._others))

    def _hand_over(self, index: int, owned: Owned, other: int) -> None:
        rules, tables, own = self.cluster.rules, self.cluster.tables, self.incarnation
        if owned.in_flight and rules.hand_over_when_decided:
            self.world.after(0.05, self.mine(lambda: self._hand_over(index, owned, other)))
            return
        end = owned.confirmed

        def done(answered: bool, gone: bool) -> None:
            if answered and gone:
                self.world.tell(f"n{self.number} gave {index} at {end} to {other}")
                self._gone(index, owned)
            else:
                self._keep(index, owned)

        version = owned.version
        self.cluster.database.ask(lambda: tables.hand_over(index, version, own, end, other), self.mine(done))

    def _gone(self, index: int, owned: Owned) -> None:
        if self.partitions.get(index) is owned:
            del self.partitions[index]
            if self.cluster.rules.given_stays_given:
                self._given[index] = owned.epoch

    def _keep(self, index: int, owned: Owned) -> None:
        """It did not take place, or nobody knows: ask, and see to it that it cannot later."""
        own, tables = self.incarnation, self.cluster.tables

        def done(answered: bool, told: tuple[int, int, int] | None) -> None:
            if not answered:
                self.world.after(0.2, self.mine(lambda: self._keep(index, owned)))
            elif self.partitions.get(index) is owned:
                if told is None or told[0] != owned.epoch:
                    self._gone(index, owned)
                else:
                    owned.version = told[2]
                    owned.leaving = False

        self.cluster.database.ask(lambda: tables.keep(index, own), self.mine(done))

    # --- rewriting ----------------------------------------------------------------------------------------------

    def _maybe_rewrite(self) -> None:
        """Put what lies in small objects of a log, its own or one that has ended, into objects of partitions."""
        if self._rewriting or self.world.random.random() > self.cluster.rewriting:
            return
        tables, own, writer = self.cluster.tables, self.incarnation, self.writer
        assert writer is not None
        ended = [number for number, one in enumerate(tables.incarnations) if one.state == "ended" and number]
        number = self.world.random.choice([own, *ended])
        self._rewriting = True
        upto = writer.acknowledged if number == own else -1

        def over(*_: Any) -> None:
            self._rewriting = False

        def begun(answered: bool, told: tuple[int, int]) -> None:
            if not answered:
                over()
                return
            first, end = told
            until = upto if number == own else end
            read(first, first, min(until, first + 8), {})

        def read(first: int, at: int, end: int, moved: dict[tuple[int, int], list[str]]) -> None:
            if at >= end:
                write(first, end, moved)
                return

            def got(answered: bool, stored: Stored | None) -> None:
                if not answered or stored is None:
                    over()
                    return
                for partition, epoch, _, value in stored.entries:
                    moved.setdefault((partition, epoch), []).append(value)
                read(first, at + 1, end, moved)

            self.cluster.store.get(f"{number}/{at}", self.mine(got))

        def write(first: int, end: int, moved: dict[tuple[int, int], list[str]]) -> None:
            keys = [f"{number}/{at}" for at in range(first, end)]
            if not self.cluster.rules.fences_stay and number != own:
                keys.append(f"{number}/{end}")
            if not keys:
                over()
                return
            if not self.cluster.rules.commit_before_deleting:
                self.cluster.store.delete(keys)

            def committed(answered: bool, done: bool) -> None:
                if answered and done and self.cluster.rules.commit_before_deleting:
                    self.cluster.store.delete(keys)
                over()

            give = lambda: tables.give_up(number, own, first, end, moved)  # noqa: E731
            self.cluster.database.ask(give, self.mine(committed))

        def told() -> tuple[int, int]:
            one = tables.incarnations[number]
            return one.first, one.end

        self.cluster.database.ask(told, self.mine(begun))


class Cluster:
    """Everything together, and what is in the partitions in the end."""

    def __init__(self, seed: int, nodes: int, partitions: int, rules: Rules) -> None:
        self.world = World(seed)
        self.rules = rules
        # Each schedule has speeds of its own: what is rare with one is usual with another.
        choice = self.world.random.choice
        self.rewriting = choice((0.1, 0.5, 1.0))
        self.store = Store(self.world, choice((0.005, 0.02, 0.2)))
        self.database = Service(self.world, "database", choice((0.002, 0.02, 0.2)))
        self.tables = Tables(self.world, partitions, rules)
        self.nodes = [Node(self, number) for number in range(nodes)]
        self.checker = Checker()

    def contents(self) -> dict[int, list[str]]:
        """What a reader who has all the time would read, range by range."""
        found: dict[int, list[str]] = {}
        for index, partition in enumerate(self.tables.partitions):
            values: list[str] = []
            for part in partition.ranges:
                values += self._range(index, part)
            found[index] = values
        return found

    def _range(self, index: int, part: Range) -> list[str]:
        if part.incarnation == 0:
            return []
        log = self.tables.incarnations[part.incarnation]
        values = list(part.moved)
        number = log.first
        while (stored := self.store.objects.get(f"{part.incarnation}/{number}")) is not None:
            if decode_head(stored.head, part.incarnation, number).kind is ObjectKind.FENCE:
                break
            values += [
                value for partition, epoch, _, value in stored.entries if (partition, epoch) == (index, part.epoch)
            ]
            number += 1
        return values if part.end < 0 else values[: part.end - part.start]
