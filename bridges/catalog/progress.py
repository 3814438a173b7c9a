"""How far consumers have read: committed positions of every front's groups, and what a front keeps about a group.

A group is known by its space and its name. Protocols that mean the same group by the same name use the same space, and
that is how they share positions: a Kafka consumer group and a YDB consumer of one name are both in ``CONSUMERS``. A
protocol whose groups are something else takes a space of its own, and meets nobody there.

What is shared still has an owner. A position belongs to the front that committed it last, and only that front may let
it expire. A group's state belongs to the front that stored it, by (front, space, group); as long as it is there, that
front *holds* the group, and no other one can expire or delete any of the group's positions. These rules are kept here,
in the database's own thread, and not left to the fronts: what a front believes about a group may be out of date.

A position may also be committed on condition that the present one is what it is taken for, and with a transaction: it
is then pending (bridges/catalog/pending_positions.py) until the front tells the transaction's end.

Reads are answered from memory; commits return once they are durable. Commits of different callers that wait at the
same time share one flush (bridges/catalog/sql.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from anabranch_kit.run.turns import Many, collected, in_turns
from bridges.catalog import pending_positions
from bridges.catalog.group_view import CONSUMERS, GroupDirectory, GroupName, GroupSummary, GroupView, Place
from bridges.catalog.pending_positions import Pending, PendingPositions, Valid
from bridges.catalog.sql import Connection, Database, upsert
from bridges.errors import GroupHeld, LogUnavailable


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed position: the offset of the next record to read.

    ``leader_epoch`` and ``metadata`` are given back as they came (-1 and "" when unknown). ``commit_ms`` is when it
    was committed and ``expire_ms`` when it may be forgotten (-1: by the group's own retention), both since the epoch.
    ``front`` committed it; :meth:`FrontProgress.commit` fills it in.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1
    front: str = field(default="", compare=False)


Holding = Callable[[Connection], None]
"""Called first in a transaction that changes something of a group; it raises where this node may not."""

_Group = tuple[GroupName, dict[Place, Committed]]
_Positions = Many[GroupName, dict[Place, Committed]]
_EMPTY: Mapping[Place, Committed] = MappingProxyType({})
_NOBODY: frozenset[str] = frozenset()
_SAVE = upsert("groups", "space grp front", "state")


class Progress:
    """Committed positions by group, topic and partition. Call :meth:`load` before anything else.

    Looking is for everybody; what changes anything goes through :meth:`front`. ``directories`` gives the groups that
    clients have joined, by front.
    """

    def __init__(self, db: Database, directories: Callable[[], Mapping[str, GroupDirectory]] = dict) -> None:
        self._db = db
        self._directories = directories
        self._groups: _Positions = Many()
        self._holders: Many[GroupName, set[str]] = Many()
        self._pending = PendingPositions()
        # Groups that have nothing but pending positions.
        self._only_pending: set[GroupName] = set()
        # How many positions each group has in a topic: deleting one must not look at all positions there are.
        self._readers: dict[str, dict[GroupName, int]] = {}

    async def load(self) -> None:
        """Read all positions into memory."""

        self._groups, held, pending = await self._db.run(_read)
        self._pending.load(pending)
        self._only_pending = {row[2:4] for row in pending} - self._groups.keys()
        self._holders = Many()
        for front, space, group in held:
            self._holders.setdefault((space, group), set()).add(front)
        self._readers = {}
        for name in self._groups:
            for topic, _ in self._groups[name]:
                self._count(topic, name, 1)

    async def reload(self, wanted: Callable[[GroupName], bool]) -> None:
        """Know of the groups that are ``wanted`` (asked in the database's thread, too) what the database does: another
        node may have acted for them. Raises an error of the database."""
        if not self._db.engine.shared:
            return

        # Looked for before: what is done with what was read must be done in one step. What comes meanwhile is known as
        # the database has it.
        known = await collected(self._groups, wanted)
        held = await collected(self._holders, wanted)

        def read(
            connection: Connection,
        ) -> tuple[list[_Group], list[tuple[str, str, str]], list[Pending]]:
            groups, holders, pending = _read(connection)
            return (
                [(name, positions) for name, positions in groups.items() if wanted(name)],
                [row for row in holders if wanted((row[1], row[2]))],
                [row for row in pending if wanted((row[2], row[3]))],
            )

        def take(found: tuple[list[_Group], list[tuple[str, str, str]], list[Pending]]) -> None:
            groups, holders, pending = found
            for name in known:
                self._forget(name, list(self._groups.get(name, ())))
            for name in held:
                self._holders.pop(name, None)
            self._ended([row for row in self._pending.all() if wanted((row[2], row[3]))])
            for name, positions in groups:
                self._store(name, [(*place, committed) for place, committed in positions.items()])
            for front, space, group in holders:
                self._holders.setdefault((space, group), set()).add(front)
            self._began(pending)

        await self._db.run(read, then=take)

    def front(self, front: str, space: str = CONSUMERS) -> FrontProgress:
        """What the front of that name sees and may do; ``space`` says with whom it shares its groups."""
        return FrontProgress(self, front, space)

    # --- reading ----------------------------------------------------------------------------------------------------

    def committed(self, name: GroupName, topic: str, partition: int) -> Committed | None:
        """The durable position of a group in a partition."""
        positions = self._groups.get(name)
        return None if positions is None else positions.get((topic, partition))

    async def durable(self, name: GroupName, topic: str, partition: int) -> Committed | None:
        """As :meth:`committed`, of a group that another node may act for. Raises an error of the database."""
        if not self._db.engine.shared:
            return self.committed(name, topic, partition)
        return await self._db.run(lambda connection: _position(connection, name, (topic, partition)))

    def has_positions(self, name: GroupName) -> bool:
        """Whether a group has committed positions."""
        return name in self._groups

    def names(self) -> Iterator[GroupName]:
        """Groups that have committed positions; they may come and go while they are gone through."""
        return iter(self._groups)

    @property
    def group_count(self) -> int:
        """How many :meth:`names` there are."""
        return len(self._groups)

    def readers_of(self, topic: str) -> list[GroupName]:
        """Groups that have committed positions in a topic."""
        return [*self._readers.get(topic, ())]

    def of_group(self, name: GroupName) -> Mapping[Place, Committed]:
        """All positions of a group (a live view; empty for an unknown group)."""
        positions = self._groups.get(name)
        return _EMPTY if positions is None else MappingProxyType(positions)

    def holders(self, name: GroupName) -> Iterable[str]:
        """Fronts that keep a state of the group."""
        return self._holders.get(name, _NOBODY)

    def views(self, name: GroupName) -> dict[str, GroupView]:
        """What each front in which a group lives says of it and its members, by front."""
        space, group = name
        return {
            front: view
            for front, directory in self._directories().items()
            if directory.space == space and (view := directory.view(group)) is not None
        }

    # --- a log that lost its end ------------------------------------------------------------------------------------

    async def not_beyond(self, topic: str, partition: int, end: int) -> list[GroupName]:
        """Take positions behind the ``end`` of a partition back to it, durably; gives whose. Raises an error of the
        database.

        For a log that a loss of power may have shortened: what is appended next gets offsets that a position behind
        its end takes for read.
        """
        place = (topic, partition)
        groups = []
        async for name in in_turns(list(self._readers.get(topic, ()))):
            if self._is_beyond(name, place, end):
                groups.append(name)

        def take_back(connection: Connection) -> None:
            for table in ("positions", "pending_positions"):
                connection.execute(
                    f"UPDATE {table} SET offset = ? WHERE topic = ? AND partition = ? AND offset > ?",
                    (end, topic, partition, end),
                )

        if groups or self._pending.has_topic(topic):
            await self._db.run(take_back, flush=True)
            for name in groups:
                if self._is_beyond(name, place, end):
                    self._groups[name][place] = replace(self._groups[name][place], offset=end)
        return groups

    def _is_beyond(self, name: GroupName, place: Place, end: int) -> bool:
        position = self._groups.get(name, {}).get(place)
        return position is not None and position.offset > end

    # --- topics -----------------------------------------------------------------------------------------------------

    async def forget_topic(self, topic: str) -> None:
        """Forget every group's positions in a topic."""
        await self._db.run(lambda connection: erase_topic(connection, topic), then=lambda _: self.topic_gone(topic))

    def topic_gone(self, topic: str) -> None:
        """Forget a topic in memory, after :func:`erase_topic` did so in the database."""
        for name in list(self._readers.get(topic, ())):
            self._forget(name, [place for place in self._groups[name] if place[0] == topic])
        self._ended(self._pending.of_topic(topic))

    # --- memory -----------------------------------------------------------------------------------------------------

    def _store(self, name: GroupName, positions: Iterable[tuple[str, int, Committed]]) -> None:
        stored = self._groups.setdefault(name, {})
        for topic, partition, committed in positions:
            if (topic, partition) not in stored:
                self._count(topic, name, 1)
            stored[topic, partition] = committed
        self._only_pending.discard(name)

    def _began(self, pending: Sequence[Pending]) -> None:
        self._pending.add(pending)
        self._only_pending.update(row[2:4] for row in pending if row[2:4] not in self._groups)

    def _ended(self, pending: Sequence[Pending]) -> None:
        self._pending.remove(pending)
        if self._only_pending:
            self._only_pending.difference_update(row[2:4] for row in pending if not self._pending.has_group(row[2:4]))

    def _forget(self, name: GroupName, places: Iterable[Place]) -> None:
        positions = self._groups.get(name)
        if positions is None:
            return
        for place in places:
            if positions.pop(place, None) is not None:
                self._count(place[0], name, -1)
        if not positions:
            del self._groups[name]
            if self._pending.has_group(name):
                self._only_pending.add(name)

    def _count(self, topic: str, name: GroupName, change: int) -> None:
        readers = self._readers.setdefault(topic, {})
        left = readers.get(name, 0) + change
        if left:
            readers[name] = left
            return
        del readers[name]
        if not readers:
            del self._readers[topic]


def _anybody(connection: Connection) -> None:
    pass


class FrontProgress:
    """Progress as one front sees it: the groups of its space, by name."""

    def __init__(self, progress: Progress, front: str, space: str) -> None:
        self.name = front
        self.space = space
        self._all = progress
        self._db = progress._db
        self.holding: Callable[[str], Holding] = lambda group: _anybody
        """What is asked, by group, in the very transaction that changes anything: whether this node still may. Of a
        front whose groups have one node each (a paused one may wake up with a request in its hands)."""

    # --- reading ----------------------------------------------------------------------------------------------------

    def committed(self, group: str, topic: str, partition: int) -> Committed | None:
        """The durable position of a group in a partition."""
        return self._all.committed((self.space, group), topic, partition)

    async def reload(self, wanted: Callable[[str], bool]) -> None:
        """See :meth:`Progress.reload`, of groups of this space."""
        await self._all.reload(lambda name: name[0] == self.space and wanted(name[1]))

    async def settled(self) -> None:
        """Return when everything that was asked of the database until now is decided. Raises an error of it."""
        await self._db.run(lambda connection: None)

    def groups(self) -> Iterator[str]:
        """Groups that have committed positions; see :meth:`Progress.names`."""
        return (group for space, group in self._all._groups if space == self.space)

    def of_group(self, group: str) -> Mapping[Place, Committed]:
        """All positions of a group (a live view; empty for an unknown group)."""
        return self._all.of_group((self.space, group))

    @property
    def group_count(self) -> int:
        """How many groups of all fronts and spaces have committed or pending positions: they share the memory."""
        return len(self._all._groups) + len(self._all._only_pending)

    def held_elsewhere(self, group: str) -> bool:
        """Whether another front keeps a state of the group, or has members in it."""
        kept = any(front != self.name for front in self._all.holders((self.space, group)))
        return kept or self._reader(group) is not None

    # --- members that read through other fronts ----------------------------------------------------------------------

    def _others(self) -> Iterator[tuple[str, GroupDirectory]]:
        for front, directory in self._all._directories().items():
            if front != self.name and directory.space == self.space:
                yield front, directory

    def _reader(self, group: str) -> tuple[str, GroupDirectory] | None:
        for front, directory in self._others():
            summary = directory.summary(group)
            if summary is not None and summary.members:
                return front, directory
        return None

    def read_elsewhere(self) -> Iterator[str]:
        """Groups that have members in other fronts; they may come and go while they are gone through."""
        return (one.group_id for _, directory in self._others() for one in directory.summaries() if one.members)

    def other_summary(self, group: str) -> GroupSummary | None:
        """The line of a group that has members in another front."""
        reader = self._reader(group)
        return None if reader is None else reader[1].summary(group)

    def other_view(self, group: str) -> GroupView | None:
        """A group as the front sees it in which it has members, where that is another one."""
        reader = self._reader(group)
        return None if reader is None else reader[1].view(group)

    def require_free(self, group: str) -> None:
        """Raise GroupHeld if the group has members in another front, LogUnavailable where that front does not know yet.
        To be asked by the group's coordinator, in the step in which a member comes in."""
        for front, directory in self._others():
            if not directory.knows(group):
                raise LogUnavailable(f"group {group!r} has just come to this node: {front} has not read it yet")
        reader = self._reader(group)
        view = None if reader is None else reader[1].view(group)
        if reader is not None and view is not None and view.members:
            first, many = view.members[0], len(view.members)
            count = "a member" if many == 1 else f"{many} members"
            raise GroupHeld(
                f"group {group!r} has {count} through {reader[0]} ({first.client_id or first.member_id} at "
                f"{first.client_host.lstrip('/')}): a group is read through one protocol at a time. Stop its members, "
                "or use another group"
            )

    def is_pending(self, group: str, topic: str, partition: int) -> bool:
        """Whether a transaction of any front is still to tell the group's position in a partition."""
        return self._all._pending.has((self.space, group), (topic, partition))

    def transactions(self) -> list[str]:
        """Transactions of this front, in all its spaces, whose end is to be told: they have pending positions."""
        return self._all._pending.transactions(self.name)

    # --- changing ---------------------------------------------------------------------------------------------------

    def _rows(self, group: str, positions: Iterable[tuple[str, int, Committed]]) -> Iterator[Valid]:
        space, front = self.space, self.name
        return (
            (space, group, topic, index, c.offset, c.leader_epoch, c.metadata, c.commit_ms, c.expire_ms, front)
            for topic, index, c in positions
        )

    async def commit(self, group: str, positions: Sequence[tuple[str, int, Committed]]) -> None:
        """Store positions; all of them are durable when this returns. Raises an error of the database."""
        if positions:
            await self.commit_if(group, {}, positions)

    async def commit_if(
        self, group: str, expected: Mapping[Place, int | None], positions: Sequence[tuple[str, int, Committed]]
    ) -> dict[Place, Committed | None]:
        """Like :meth:`commit`, if in all ``expected`` places the position's offset is the one given (None: there is no
        position), whoever committed it. Gives the places where it is another, with what is there; then nothing is
        stored. Several callers may try at the same time: one of them finds what it expects."""
        name, front, hold = (self.space, group), self.name, self.holding(group)

        # There may be any number of them, and the event loop need not turn them into rows.
        def write(
            connection: Connection,
        ) -> tuple[dict[Place, Committed | None], list[tuple[str, int, Committed]], list[Pending]]:
            hold(connection)
            differing: dict[Place, Committed | None] = {}
            for place, offset in expected.items():
                found = _position(connection, name, place)
                if (None if found is None else found.offset) != offset:
                    differing[place] = found
            if differing:
                return differing, [], []
            connection.executemany(pending_positions.STORE, self._rows(group, positions))
            gone = pending_positions.overtake(connection, name, ((topic, index) for topic, index, _ in positions))
            stored = [
                (topic, index, Committed(c.offset, c.leader_epoch, c.metadata, c.commit_ms, c.expire_ms, front))
                for topic, index, c in positions
            ]
            return differing, stored, gone

        def remember(
            written: tuple[dict[Place, Committed | None], list[tuple[str, int, Committed]], list[Pending]],
        ) -> None:
            _, stored, gone = written
            if stored:
                self._all._store(name, stored)
            if gone:
                self._all._ended(gone)

        differing, _, _ = await self._db.run(write, then=remember)
        return differing

    async def commit_with(
        self,
        transaction: str,
        group: str,
        positions: Sequence[tuple[str, int, Committed]],
        check: Callable[[Connection], None] = _anybody,
    ) -> None:
        """Store positions that become valid when this front's ``transaction`` is committed; durable when this returns.

        Until then nobody is shown them. A position that is committed, or deleted, meanwhile in another way stays so.
        ``check`` is asked in the same transaction of the database, and may raise.
        """
        hold = self.holding(group)

        def write(connection: Connection) -> list[Pending]:
            hold(connection)
            check(connection)
            return pending_positions.put(connection, transaction, self._rows(group, positions))

        if positions:
            await self._db.run(write, then=self._all._began)

    async def end_transaction(self, transaction: str, *, commit: bool) -> int:
        """The end of this front's ``transaction``: all its pending positions become valid together, or are forgotten.

        Durable when this returns the number that became valid. Repeating it makes no difference, so whoever does not
        know whether it was told tells it again (:meth:`transactions` says of which, also after a restart); a name may
        be used again once it was.
        """

        _, valid = await self._db.run(
            lambda connection: pending_positions.end(connection, (self.name, transaction), commit),
            then=self._end_seen,
        )
        return len(valid)

    async def end_transaction_of(
        self, transaction: str, group: str, check: Callable[[Connection], None], *, commit: bool
    ) -> None:
        """As :meth:`end_transaction`, of one group, which this node coordinates; ``check`` is asked in the same
        transaction of the database, and may raise."""
        hold = self.holding(group)

        def write(connection: Connection) -> tuple[list[Pending], list[Valid]]:
            hold(connection)
            check(connection)
            return pending_positions.end(connection, (self.name, transaction), commit, (self.space, group))

        await self._db.run(write, then=self._end_seen)

    def _end_seen(self, ended: tuple[list[Pending], list[Valid]]) -> None:
        gone, valid = ended
        for row in valid:
            self._all._store(row[:2], [(row[2], row[3], Committed(*row[4:]))])
        if gone:
            self._all._ended(gone)

    async def delete(self, group: str, places: Iterable[Place] | None = None) -> None:
        """Forget a group's positions in ``places``, or all of them, pending ones too, whoever committed them.

        Raises GroupHeld if another front keeps a state of the group or has members in it; nothing is deleted then.
        """
        self.require_free(group)
        name, hold = (self.space, group), self.holding(group)
        rows = None if places is None else [(*name, topic, partition) for topic, partition in places]

        def write(connection: Connection) -> list[Pending]:
            hold(connection)
            if self._is_held(connection, group):
                raise GroupHeld(f"group {group!r} is in use through another protocol")
            if rows is None:
                connection.execute("DELETE FROM positions WHERE space = ? AND grp = ?", name)
            else:
                connection.executemany(
                    "DELETE FROM positions WHERE space = ? AND grp = ? AND topic = ? AND partition = ?", rows
                )
            return pending_positions.overtake(connection, name, None if rows is None else [row[2:] for row in rows])

        def forget(pending: list[Pending]) -> None:
            all_of_it = list(self._all.of_group(name)) if rows is None else []
            self._all._forget(name, all_of_it + [(topic, partition) for *_, topic, partition in rows or ()])
            self._all._ended(pending)

        await self._db.run(write, then=forget)

    async def expire(self, group: str, seen: Mapping[Place, Committed]) -> int:
        """Forget those of a group's positions that are still as they were ``seen``; returns how many went.

        Only this front's own go, and none of them while another front holds the group: a position may be old to those
        who committed it, and dear to those who read on from it. Nor do those that a transaction is about to change.
        """
        space, front, hold = self.space, self.name, self.holding(group)
        rows = [(space, group, *place, front, c.offset, c.commit_ms) for place, c in seen.items() if c.front == front]

        def write(connection: Connection) -> list[Place]:
            hold(connection)
            if self._is_held(connection, group):
                return []
            return [
                (row[2], row[3])
                for row in rows
                if connection.execute(
                    "DELETE FROM positions WHERE space = ? AND grp = ? AND topic = ? AND partition = ? AND front = ? "
                    "AND offset = ? AND commit_ms = ? AND NOT EXISTS (SELECT 1 FROM pending_positions AS p WHERE "
                    "p.space = positions.space AND p.grp = positions.grp AND p.topic = positions.topic "
                    "AND p.partition = positions.partition)",
                    row,
                ).rowcount
            ]

        if not rows or self._reader(group) is not None:
            return 0
        gone: list[Place] = await self._db.run(write, then=lambda gone: self._all._forget((space, group), gone))
        return len(gone)

    def _is_held(self, connection: Connection, group: str) -> bool:
        found = connection.execute(
            "SELECT 1 FROM groups WHERE space = ? AND grp = ? AND front <> ? LIMIT 1", (self.space, group, self.name)
        )
        return found.fetchone() is not None

    # --- what the front keeps about groups --------------------------------------------------------------------------

    async def load_groups(self) -> dict[str, bytes]:
        """Everything this front stored with :meth:`save_group`, by group."""
        own = (self.name, self.space)
        return await self._db.run(
            lambda connection: dict(
                connection.execute("SELECT grp, state FROM groups WHERE front = ? AND space = ?", own)
            )
        )

    async def save_group(self, group: str, state: bytes | None) -> None:
        """Store this front's state of a group, opaque here; None removes it. Durable when this returns.

        While it is stored, this front holds the group.
        """
        key, hold = (self.name, self.space, group), self.holding(group)

        def write(connection: Connection) -> None:
            hold(connection)
            if state is None:
                connection.execute("DELETE FROM groups WHERE front = ? AND space = ? AND grp = ?", key)
            else:
                connection.execute(_SAVE, (self.space, group, self.name, state))

        await self._db.run(write)
        holders = self._all._holders
        if state is not None:
            holders.setdefault((self.space, group), set()).add(self.name)
        elif (held := holders.get((self.space, group))) is not None:
            held.discard(self.name)
            if not held:
                del holders[self.space, group]


def _position(connection: Connection, name: GroupName, place: Place) -> Committed | None:
    row = connection.execute(
        "SELECT offset, leader_epoch, metadata, commit_ms, expire_ms, front FROM positions "
        "WHERE space = ? AND grp = ? AND topic = ? AND partition = ?",
        (*name, *place),
    ).fetchone()
    return None if row is None else Committed(*row)


def _read(connection: Connection) -> tuple[_Positions, list[tuple[str, str, str]], list[Pending]]:
    """All positions, who holds groups, and what is pending."""
    groups: _Positions = Many()
    for space, group, topic, partition, *rest in connection.execute(
        "SELECT space, grp, topic, partition, offset, leader_epoch, metadata, commit_ms, expire_ms, front "
        "FROM positions"
    ):
        groups.setdefault((space, group), {})[topic, partition] = Committed(*rest)
    holders = list(connection.execute("SELECT front, space, grp FROM groups"))
    return groups, holders, pending_positions.all_pending(connection)


def erase_topic(connection: Connection, topic: str) -> None:
    """Part of the transaction that deletes a topic (see :class:`bridges.catalog.topics.Catalog`)."""
    connection.execute("DELETE FROM positions WHERE topic = ?", (topic,))
    connection.execute("DELETE FROM pending_positions WHERE topic = ?", (topic,))
