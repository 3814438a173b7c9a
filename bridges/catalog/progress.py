"""Committed positions of every front's groups, and the state that a front keeps about a group.

A group is known by its space and its name. Protocols that mean the same group by the same name use the same space, and
so share positions: a Kafka consumer group and a YDB consumer with one name are both in ``CONSUMERS``. A protocol whose
groups are something else has a space of its own.

Shared positions still have an owner. A position belongs to the front that committed it last, and only that front may
let it expire. A group's state belongs to the front that stored it, by (front, space, group). While it is stored, that
front *holds* the group, and no other front can expire or delete any of the group's positions. These rules are enforced
here, in the database's own thread, and not left to the fronts: a front's view of a group may be out of date.

A position may also be committed on condition that the present one has an expected offset, or with a transaction: then
it is pending (bridges/catalog/pending_positions.py) until the front ends the transaction.

Reads are answered from memory; commits return once they are durable. Commits of different callers that wait at the same
time share one flush (bridges/catalog/database/sql.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from anabranch_kit.run.turns import Many, collected, in_turns
from anabranch_kit.sql.connection import among
from bridges.catalog import pending_positions
from bridges.catalog.database.sql import Connection, Database, upsert
from bridges.catalog.group_names import GroupNames
from bridges.catalog.pending_positions import Pending, PendingPositions, Valid
from bridges.catalog.views.groups import (
    CONSUMERS,
    GroupDirectory,
    GroupName,
    GroupSummary,
    GroupView,
    Place,
    occupied,
)
from bridges.errors import GroupHeld, LogUnavailable


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed position: the offset of the next record to read.

    ``leader_epoch`` and ``metadata`` are returned as they came (-1 and "" when unknown). ``commit_ms`` is when the
    position was committed and ``expire_ms`` when it may expire (-1: by the group's own retention), both in ms since the
    epoch. ``front`` is the front that committed it; :meth:`FrontProgress.commit` fills it in.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1
    front: str = field(default="", compare=False)


Holding = Callable[[Connection], None]
"""A check that runs first in a transaction that changes a group's data; it raises if this node may not."""

Move = tuple[str, int, int, int]
"""Topic, partition, the offset where the position must be, and the offset where it goes. No position is at 0."""
_Group = tuple[GroupName, dict[Place, Committed]]
_Positions = Many[GroupName, dict[Place, Committed]]
_EMPTY: Mapping[Place, Committed] = MappingProxyType({})
_NOBODY: frozenset[str] = frozenset()
_Condition = tuple[str, list[int]]
"""A condition on rows, and its values."""
_ALL: _Condition = ("TRUE", [])
_COMMITTED = "offset, leader_epoch, metadata, commit_ms, expire_ms, front"
_SLOTS_AT_ONCE = 256
_SAVE = upsert("groups", "space grp front", "state slot")
SlotOf = Callable[[str, str], int]
"""Returns the slot of a group by its space and name, or -1."""


class Progress:
    """Committed positions by group, topic and partition. Call :meth:`load` before anything else.

    Any caller may read; changes go through :meth:`front`. ``directories`` returns the groups that clients have joined,
    by front. ``slot_of`` returns the slot to store with what is kept of a group; without it none is.
    """

    def __init__(
        self,
        db: Database,
        directories: Callable[[], Mapping[str, GroupDirectory]] = dict,
        slot_of: SlotOf = lambda space, group: -1,
    ) -> None:
        self._db = db
        self._slot_of = slot_of
        self._directories = directories
        self._groups: _Positions = Many()
        self.listed = GroupNames()
        """The groups with positions, and those that clients joined through the fronts."""
        self._holders: Many[GroupName, set[str]] = Many()
        self._pending = PendingPositions()
        # Groups that have only pending positions.
        self._only_pending: set[GroupName] = set()
        # Number of positions of each group in a topic: deleting a topic must not search all positions.
        self._readers: dict[str, dict[GroupName, int]] = {}
        self.on_change: list[Callable[[GroupName, Collection[Place] | None], None]] = []
        """Called after each durable change of a group that this node acts for, with the places of the positions that
        changed, or None: what a front keeps about the group. Also called for what has not changed."""

    async def load(self) -> None:
        """Read all positions into memory."""

        (self._groups, held, pending), self.listed = await self._db.run(_read_all)
        self._pending.load(pending)
        self._only_pending = {row[2:4] for row in pending} - self._groups.keys()
        self._holders = Many()
        for front, space, group in held:
            self._holders.setdefault((space, group), set()).add(front)
        self._readers = {}
        for name in self._groups:
            for topic, _ in self._groups[name]:
                self._count(topic, name, 1)

    async def reload(self, wanted: Callable[[GroupName], bool], slots: Collection[int]) -> None:
        """Read the groups that are ``wanted``, all of which are in ``slots``, from the database again, because another
        node may have acted for them. ``wanted`` is also called in the database's thread. Raises an error of the
        database."""
        if not self._db.engine.shared:
            return

        # Collected before the read: ``take`` must run in one step. Memory already holds later changes as the database
        # does.
        known = await collected(self._groups, wanted)
        held = await collected(self._holders, wanted)

        def read(
            connection: Connection,
        ) -> tuple[list[_Group], list[tuple[str, str, str]], list[Pending]]:
            for name in _unplaced(connection, wanted):
                if (slot := self._slot_of(*name)) >= 0:
                    for table in ("positions", "groups"):
                        connection.execute(f"UPDATE {table} SET slot = ? WHERE space = ? AND grp = ?", (slot, *name))
            groups, holders, pending = _read(connection, list(_in_slots(slots)))
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
                self.store(name, [(*place, committed) for place, committed in positions.items()])
            for front, space, group in holders:
                self._holders.setdefault((space, group), set()).add(front)
            self._began(pending)

        await self._db.run(read, then=take)

    def front(self, front: str, space: str = CONSUMERS) -> FrontProgress:
        """Return the view of one front; fronts with the same ``space`` share their groups."""
        return FrontProgress(self, front, space)

    # --- reading ----------------------------------------------------------------------------------------------------

    def committed(self, name: GroupName, topic: str, partition: int) -> Committed | None:
        """Return the durable position of a group in a partition, or None."""
        positions = self._groups.get(name)
        return None if positions is None else positions.get((topic, partition))

    async def durable(self, name: GroupName, topic: str, partition: int) -> Committed | None:
        """Return the same as :meth:`committed`, for a group that another node may act for. Raises an error of the
        database."""
        if not self._db.engine.shared:
            return self.committed(name, topic, partition)
        return await self._db.run(lambda connection: _position(connection, name, (topic, partition)))

    def has_positions(self, name: GroupName) -> bool:
        return name in self._groups

    def names(self) -> Iterator[GroupName]:
        """Return the groups that have committed positions; groups may come and go during the iteration."""
        return iter(self._groups)

    def readers_of(self, topic: str) -> list[GroupName]:
        """Return the groups that have committed positions in a topic."""
        return [*self._readers.get(topic, ())]

    def of_group(self, name: GroupName) -> Mapping[Place, Committed]:
        """Return all positions of a group (a live view; empty for an unknown group)."""
        positions = self._groups.get(name)
        return _EMPTY if positions is None else MappingProxyType(positions)

    def holders(self, name: GroupName) -> Iterable[str]:
        return self._holders.get(name, _NOBODY)

    def summaries(self, name: GroupName) -> dict[str, GroupSummary]:
        """Return the line of a group in each front that has it, by front."""
        space, group = name
        return {
            front: summary
            for front, directory in self._directories().items()
            if directory.space == space and (summary := directory.summary(group)) is not None
        }

    def views(self, name: GroupName) -> dict[str, GroupView]:
        """Return each front's view of a group and its members, by front, for the fronts in which the group has a
        view."""
        space, group = name
        return {
            front: view
            for front, directory in self._directories().items()
            if directory.space == space and (view := directory.view(group)) is not None
        }

    # --- a log that lost its end ------------------------------------------------------------------------------------

    async def not_beyond(self, topic: str, partition: int, end: int) -> list[GroupName]:
        """Lower positions above the ``end`` of a partition to it, durably, and return the groups concerned. Raises an
        error of the database.

        A loss of power may have shortened the log. Later appends reuse the lost offsets, and a position above the end
        would skip them.
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
                    self.store(name, [(*place, replace(self._groups[name][place], offset=end))])
        return groups

    def _is_beyond(self, name: GroupName, place: Place, end: int) -> bool:
        position = self._groups.get(name, {}).get(place)
        return position is not None and position.offset > end

    # --- topics -----------------------------------------------------------------------------------------------------

    async def forget_topic(self, topic: str) -> None:
        """Delete every group's positions in a topic."""
        await self._db.run(lambda connection: erase_topic(connection, topic), then=lambda _: self.topic_gone(topic))

    def topic_gone(self, topic: str) -> None:
        """Forget a topic in memory, after :func:`erase_topic` deleted its positions in the database."""
        for name in list(self._readers.get(topic, ())):
            self._forget(name, [place for place in self._groups[name] if place[0] == topic])
        self._ended(self._pending.of_topic(topic))

    # --- memory -----------------------------------------------------------------------------------------------------

    def _tell(self, name: GroupName, places: Collection[Place] | None) -> None:
        for changed in self.on_change:
            changed(name, places)

    def store(self, name: GroupName, positions: Sequence[tuple[str, int, Committed]]) -> None:
        if name not in self._groups:
            self.listed.add(name)
        stored = self._groups.setdefault(name, {})
        for topic, partition, committed in positions:
            if (topic, partition) not in stored:
                self._count(topic, name, 1)
            stored[topic, partition] = committed
        self._only_pending.discard(name)
        if self.on_change:
            self._tell(name, [(topic, partition) for topic, partition, _ in positions])

    def _began(self, pending: Sequence[Pending]) -> None:
        self._pending.add(pending)
        self._only_pending.update(row[2:4] for row in pending if row[2:4] not in self._groups)

    def _ended(self, pending: Sequence[Pending]) -> None:
        self._pending.remove(pending)
        if self._only_pending:
            self._only_pending.difference_update(row[2:4] for row in pending if not self._pending.has_group(row[2:4]))

    def _forget(self, name: GroupName, places: Collection[Place]) -> None:
        positions = self._groups.get(name)
        if positions is None:
            return
        for place in places:
            if positions.pop(place, None) is not None:
                self._count(place[0], name, -1)
        self._tell(name, places)
        if not positions:
            del self._groups[name]
            self._unlist(name)
            if self._pending.has_group(name):
                self._only_pending.add(name)

    def _unlist(self, name: GroupName) -> None:
        """Remove a group from the list unless it has positions, or is in a front's directory."""
        space, group = name
        if name not in self._groups and not any(
            one.space == space and group in one for one in self._directories().values()
        ):
            self.listed.discard(name)

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
    """The positions as one front sees them: the groups of its space, by name."""

    def __init__(self, progress: Progress, front: str, space: str) -> None:
        self.name = front
        self.space = space
        self._all = progress
        self._db = progress._db
        self.holding: Callable[[str], Holding] = lambda group: _anybody
        """Returns, by group, a check that this node may still act for the group. It runs inside each transaction that
        changes the group. A front sets it when each of its groups has one coordinator: a paused node may wake up with a
        request in hand."""

    # --- reading ----------------------------------------------------------------------------------------------------

    def committed(self, group: str, topic: str, partition: int) -> Committed | None:
        """Return the durable position of a group in a partition, or None."""
        return self._all.committed((self.space, group), topic, partition)

    async def reload(self, wanted: Callable[[str], bool], slots: Collection[int]) -> None:
        """Reload groups of this space (see :meth:`Progress.reload`)."""
        await self._all.reload(lambda name: name[0] == self.space and wanted(name[1]), slots)

    def follow(self, changed: Callable[[str, Collection[Place] | None], None]) -> None:
        """Have ``changed`` called as :attr:`Progress.on_change` says, for groups of this space. It must not raise."""
        space = self.space
        self._all.on_change.append(lambda name, places: changed(name[1], places) if name[0] == space else None)

    async def await_writes(self) -> None:
        """Return once the database has decided everything that was queued before. Raises an error of the database."""
        await self._db.run(lambda connection: None)

    def of_group(self, group: str) -> Mapping[Place, Committed]:
        """Return all positions of a group (a live view; empty for an unknown group)."""
        return self._all.of_group((self.space, group))

    @property
    def group_count(self) -> int:
        """Return the number of groups of all fronts and spaces with committed or pending positions: they share the
        memory."""
        return len(self._all._groups) + len(self._all._only_pending)

    def held_elsewhere(self, group: str) -> bool:
        """Return whether another front holds the group, or has members in it."""
        kept = any(front != self.name for front in self._all.holders((self.space, group)))
        return kept or self._reader(group) is not None

    def names(self, after: str | None = None) -> Iterator[str]:
        """Return the groups of the space that have positions or were joined through any front, in order: all, or those
        behind ``after``. Groups may come and go during the iteration."""
        begin = None if after is None else (self.space, after)
        return (group for space, group in self._all.listed.walk(begin) if space == self.space)

    def came(self, group: str) -> None:
        """List a group that is now in this front's directory."""
        self._all.listed.add((self.space, group))

    def went(self, group: str) -> None:
        """Tell that a group is no longer in this front's directory."""
        self._all._unlist((self.space, group))

    # --- members that read through other fronts ----------------------------------------------------------------------

    def _other_fronts(self) -> Iterator[tuple[str, GroupDirectory]]:
        for front, directory in self._all._directories().items():
            if front != self.name and directory.space == self.space:
                yield front, directory

    def _reader(self, group: str) -> tuple[str, GroupDirectory] | None:
        for front, directory in self._other_fronts():
            summary = directory.summary(group)
            if summary is not None and summary.members:
                return front, directory
        return None

    def other_summary(self, group: str) -> GroupSummary | None:
        """Return the line of a group that has members in another front, or None."""
        reader = self._reader(group)
        return None if reader is None else reader[1].summary(group)

    def other_view(self, group: str) -> GroupView | None:
        """Return the view of a group by the other front in which it has members, or None."""
        reader = self._reader(group)
        return None if reader is None else reader[1].view(group)

    def require_free(self, group: str) -> None:
        """Raise GroupHeld if the group has members in another front, LogUnavailable if that front has not read the
        group yet. The group's coordinator calls it in the step in which a member joins."""
        for front, directory in self._other_fronts():
            if not directory.knows(group):
                raise LogUnavailable(f"group {group!r} has just come to this node: {front} has not read it yet")
        reader = self._reader(group)
        view = None if reader is None else reader[1].view(group)
        if reader is not None and view is not None and view.members:
            raise GroupHeld(
                f"{occupied(group, {reader[0]: view})}: a group is read through one protocol at a time. Stop its "
                "members, or use another group"
            )

    def is_pending(self, group: str, topic: str, partition: int) -> bool:
        """Return whether a transaction of any front still has to decide the group's position in a partition."""
        return self._all._pending.has((self.space, group), (topic, partition))

    def transactions(self) -> list[str]:
        """Return this front's transactions, in all its spaces, that have pending positions: their end must still be
        reported."""
        return self._all._pending.transactions(self.name)

    # --- changing ---------------------------------------------------------------------------------------------------

    def _rows(self, group: str, positions: Iterable[tuple[str, int, Committed]]) -> Iterator[Valid]:
        space, front, slot = self.space, self.name, self._all._slot_of(self.space, group)
        return (
            (space, group, topic, index, c.offset, c.leader_epoch, c.metadata, c.commit_ms, c.expire_ms, front, slot)
            for topic, index, c in positions
        )

    async def commit(self, group: str, positions: Sequence[tuple[str, int, Committed]]) -> None:
        """Store positions; all of them are durable when this returns. Raises an error of the database."""
        if positions:
            await self.commit_if(group, {}, positions)

    async def commit_if(
        self, group: str, expected: Mapping[Place, int | None], positions: Sequence[tuple[str, int, Committed]]
    ) -> dict[Place, Committed | None]:
        """Commit like :meth:`commit`, if in every ``expected`` place the position has this offset (None: no position),
        whichever front committed it. Return the places that differ, with their positions; then nothing is stored. If
        several callers try at the same time, one of them finds what it expects."""
        name, front, hold = (self.space, group), self.name, self.holding(group)

        # Positions are unbounded in number, so the database's thread turns them into rows, not the event loop.
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
                self._all.store(name, stored)
            if gone:
                self._all._ended(gone)

        differing, _, _ = await self._db.run(write, then=remember)
        return differing

    def move(self, connection: Connection, group: str, moves: Sequence[Move], now_ms: int) -> Place | None:
        """Move positions within a transaction of the database that decides more than them, at any node. Return a place
        whose position is not where its move begins; then nothing is stored. Afterwards the group's coordinator must
        :meth:`refresh` the places."""
        name = (self.space, group)
        for topic, index, begin, _ in moves:
            found = _position(connection, name, (topic, index))
            if begin != (0 if found is None else found.offset):
                return topic, index
        positions = [(topic, index, Committed(end, commit_ms=now_ms)) for topic, index, _, end in moves]
        connection.executemany(pending_positions.STORE, self._rows(group, positions))
        pending_positions.overtake(connection, name, [move[:2] for move in moves])
        return None

    async def refresh(self, group: str, places: Sequence[Place]) -> dict[Place, int]:
        """Read positions that another transaction may have moved (:meth:`move`) into memory; return their offsets.
        Raises an error of the database."""
        name, hold = (self.space, group), self.holding(group)

        def read(connection: Connection) -> tuple[list[tuple[str, int, Committed]], set[Pending]]:
            hold(connection)
            found = [(*place, position) for place in places if (position := _position(connection, name, place))]
            return found, pending_positions.of_group(connection, name)

        def take(read: tuple[list[tuple[str, int, Committed]], set[Pending]]) -> None:
            found, pending = read
            if found:
                self._all.store(name, found)
            wanted = set(places)
            known = [row for topic, _ in wanted for row in self._all._pending.of_topic(topic) if row[2:4] == name]
            self._all._ended([row for row in known if row[4:] in wanted and row not in pending])

        found, _ = await self._db.run(read, then=take)
        return {(topic, index): committed.offset for topic, index, committed in found}

    async def commit_with(
        self,
        transaction: str,
        group: str,
        positions: Sequence[tuple[str, int, Committed]],
        check: Callable[[Connection], None] = _anybody,
    ) -> None:
        """Store positions that become valid when this front's ``transaction`` is committed; durable when this returns.

        Until then they are shown to nobody. A position that is committed, or deleted, meanwhile in another way stays
        so. ``check`` runs inside the same transaction of the database, and may raise.
        """
        hold = self.holding(group)

        def write(connection: Connection) -> list[Pending]:
            hold(connection)
            check(connection)
            return pending_positions.put(connection, transaction, self._rows(group, positions))

        if positions:
            await self._db.run(write, then=self._all._began)

    async def end_transaction(self, transaction: str, *, commit: bool) -> int:
        """End this front's ``transaction``: its pending positions become valid together, or are deleted.

        Return the number that became valid, once this is durable. Repeating it makes no difference, so a caller that
        does not know whether the end was stored calls again (:meth:`transactions` lists these transactions, also after
        a restart). Afterwards the name may be used again.
        """

        _, valid = await self._db.run(
            lambda connection: pending_positions.end(connection, (self.name, transaction), commit, self._all._slot_of),
            then=self._end_seen,
        )
        return len(valid)

    async def end_transaction_of(
        self, transaction: str, group: str, check: Callable[[Connection], None], *, commit: bool
    ) -> None:
        """End the part of a transaction that concerns one group, which this node coordinates (see
        :meth:`end_transaction`). ``check`` runs inside the same transaction of the database, and may raise."""
        hold = self.holding(group)

        def write(connection: Connection) -> tuple[list[Pending], list[Valid]]:
            hold(connection)
            check(connection)
            ended = (self.name, transaction)
            return pending_positions.end(connection, ended, commit, self._all._slot_of, (self.space, group))

        await self._db.run(write, then=self._end_seen)

    def _end_seen(self, ended: tuple[list[Pending], list[Valid]]) -> None:
        gone, valid = ended
        for row in valid:
            self._all.store(row[:2], [(row[2], row[3], Committed(*row[4:10]))])
        if gone:
            self._all._ended(gone)

    async def delete(self, group: str, places: Iterable[Place] | None = None) -> None:
        """Delete a group's positions in ``places``, or all of them, pending ones too, whichever front committed them.

        Raises GroupHeld if another front holds the group or has members in it; nothing is deleted then.
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
        """Delete the positions of a group that are still as they were ``seen``, and return how many were deleted.

        Only this front's own positions expire, and none while another front holds the group: a position that is old to
        the front that committed it may be in use by another. Positions that a transaction is about to change stay, too.
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

    # --- the database's own view, of groups of any node -------------------------------------------------------------

    def stored_names(self, connection: Connection) -> set[str]:
        """Return the groups with positions, and those that this front keeps something about."""
        query = "SELECT grp FROM positions WHERE space = ? UNION SELECT grp FROM groups WHERE space = ? AND front = ?"
        return {group for (group,) in connection.execute(query, (self.space, self.space, self.name))}

    def stored(
        self, connection: Connection, group: str, places: Collection[Place] | None = None
    ) -> Iterator[tuple[Place, Committed]]:
        """Yield a group's positions in ``places``, or all."""
        name = (self.space, group)
        if places is None:
            query = f"SELECT topic, partition, {_COMMITTED} FROM positions WHERE space = ? AND grp = ?"
            for topic, partition, *rest in connection.execute(query, name):
                yield (topic, partition), Committed(*rest)
        for place in places or ():
            if (found := _position(connection, name, place)) is not None:
                yield place, found

    def stored_state(self, connection: Connection, group: str) -> bytes | None:
        """Return what this front keeps about a group (:meth:`save_group`)."""
        query = "SELECT state FROM groups WHERE front = ? AND space = ? AND grp = ?"
        row = connection.execute(query, (self.name, self.space, group)).fetchone()
        return None if row is None else row[0]

    # --- what the front keeps about groups --------------------------------------------------------------------------

    async def load_groups(self, slots: Collection[int] | None = None) -> dict[str, bytes]:
        """Return the states that this front stored with :meth:`save_group`, by group: all, or of a node that shares its
        database those of groups in ``slots``, which :meth:`reload` has read."""
        own = (self.name, self.space)
        conditions = [_ALL] if slots is None or not self._db.engine.shared else list(_in_slots(slots))

        def read(connection: Connection) -> dict[str, bytes]:
            query = "SELECT grp, state FROM groups WHERE front = ? AND space = ? AND "
            return {
                group: state
                for condition, values in conditions
                for group, state in connection.execute(query + condition, (*own, *values))
            }

        return await self._db.run(read)

    async def save_group(self, group: str, state: bytes | None) -> None:
        """Store this front's state of a group, opaque here; None removes it. Durable when this returns.

        While the state is stored, this front holds the group.
        """
        key, hold = (self.name, self.space, group), self.holding(group)

        def write(connection: Connection) -> None:
            hold(connection)
            if state is None:
                connection.execute("DELETE FROM groups WHERE front = ? AND space = ? AND grp = ?", key)
            else:
                slot = self._all._slot_of(self.space, group)
                connection.execute(_SAVE, (self.space, group, self.name, state, slot))

        await self._db.run(write)
        self._all._tell((self.space, group), None)
        holders = self._all._holders
        if state is not None:
            holders.setdefault((self.space, group), set()).add(self.name)
        elif (held := holders.get((self.space, group))) is not None:
            held.discard(self.name)
            if not held:
                del holders[self.space, group]


def _position(connection: Connection, name: GroupName, place: Place) -> Committed | None:
    row = connection.execute(
        f"SELECT {_COMMITTED} FROM positions WHERE space = ? AND grp = ? AND topic = ? AND partition = ?",
        (*name, *place),
    ).fetchone()
    return None if row is None else Committed(*row)


def _read(
    connection: Connection, conditions: Sequence[_Condition] = (_ALL,)
) -> tuple[_Positions, list[tuple[str, str, str]], list[Pending]]:
    """Return the positions of groups, and the fronts that hold them, in rows that meet any of ``conditions``; and all
    pending positions, which are those of open transactions."""
    groups: _Positions = Many()
    holders: list[tuple[str, str, str]] = []
    for condition, values in conditions:
        for space, group, topic, partition, *rest in connection.execute(
            f"SELECT space, grp, topic, partition, {_COMMITTED} FROM positions WHERE {condition}",
            values,
        ):
            groups.setdefault((space, group), {})[topic, partition] = Committed(*rest)
        holders += connection.execute(f"SELECT front, space, grp FROM groups WHERE {condition}", values)
    return groups, holders, pending_positions.all_pending(connection)


def _read_all(
    connection: Connection,
) -> tuple[tuple[_Positions, list[tuple[str, str, str]], list[Pending]], GroupNames]:
    found = _read(connection)
    return found, GroupNames(list(found[0]))


def _in_slots(slots: Collection[int]) -> Iterator[_Condition]:
    """Yield conditions on the rows of groups in ``slots``, or in none that is stored, for some slots each."""
    known = [-1, *slots]
    for first in range(0, len(known), _SLOTS_AT_ONCE):
        yield among("slot", known[first : first + _SLOTS_AT_ONCE])


def _unplaced(connection: Connection, wanted: Callable[[GroupName], bool]) -> list[GroupName]:
    """Return the ``wanted`` groups that are stored without their slot."""
    query = "SELECT space, grp FROM positions WHERE slot = -1 UNION SELECT space, grp FROM groups WHERE slot = -1"
    return [(space, group) for space, group in connection.execute(query).fetchall() if wanted((space, group))]


def erase_topic(connection: Connection, topic: str) -> None:
    """Delete a topic's positions, inside the transaction that deletes the topic (see
    :class:`bridges.catalog.topics.catalog.Catalog`)."""
    connection.execute("DELETE FROM positions WHERE topic = ?", (topic,))
    connection.execute("DELETE FROM pending_positions WHERE topic = ?", (topic,))
