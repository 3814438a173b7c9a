"""The transactions of a cluster: who is a member, who owns which slot. Each is a closure for its database's thread.

Nothing here is believed that was read in another transaction: whoever wants something says what he believes (a counter,
an epoch), and nothing happens where that is not so any more. So a transaction whose answer is lost may be repeated.

They are not serializable: heartbeats and looks, which are most, would meet one another all the time. What changes more
than its own row locks the one row of ``cluster_state`` first, so of these one comes after the other, and each sees what
those before it have done; a member's counter, which needs no lock, is compared in the statement that ends the member.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from bridges.catalog.counters import advance
from bridges.catalog.sql import Connection, upsert
from bridges.cluster import versions
from bridges.cluster.marks import Totals, totals
from bridges.cluster.members import Member, State
from bridges.cluster.slots import NOBODY, SLOTS, Slot, pins_of, plan, sizes_of
from bridges.cluster.versions import OURS, Version

_MEMBER = "start, node_id, state, beats, ended_by, server_id, addresses, rack, drained, version, stores"
_STATE = "SELECT slots, version FROM cluster_state"
_LOCK = "UPDATE cluster_state SET slots = slots RETURNING next_start"


class Look(Struct, frozen=True):
    """What the database says at ``version``, which grows with every change of members' states and slots' owners;
    ``slots`` is None where the one who asks has those of this version; then ``beats`` tells the members' counters, by
    start, and nothing else, for it is asked all the time by everybody about everybody. ``drained``: ids of nodes that
    are to own nothing, whether they are there or not. ``level``: see :mod:`bridges.cluster.versions`; ``totals``: see
    :mod:`bridges.cluster.marks`."""

    version: int
    members: tuple[Member, ...]
    slots: tuple[Slot, ...] | None
    drained: frozenset[int] = frozenset()
    level: Version = Version()
    beats: Mapping[int, int] | None = None
    totals: Totals = Totals()

    def beats_of(self, start: int) -> int | None:
        """A member's counter; None: it is none."""
        if self.beats is not None:
            return self.beats.get(start)
        return next((member.beats for member in self.members if member.start == start), None)


def make(connection: Connection, slots: int = SLOTS, version: Version = OURS) -> None:
    """Make the cluster with so many slots, unless there is one."""
    if connection.execute(_STATE).fetchone() is not None:
        return
    # Of nodes that start together the second fails here, and finds the cluster made when it tries again.
    connection.execute(
        "INSERT INTO cluster_state (one, slots, version, next_start, says, stores) VALUES (1, ?, 0, 1, ?, ?)",
        (slots, version.says, version.stores),
    )
    rows = [(slot, NOBODY, -1) for slot in range(slots)]
    connection.executemany(upsert("cluster_slots", "slot", "owner epoch"), rows)


def lock(connection: Connection) -> int:
    """Be the only one to change more than a row of one's own, until the transaction has ended; the number of the next
    start."""
    (start,) = connection.execute(_LOCK).fetchone()
    return int(start)


def enter(connection: Connection, node_id: int, version: Version = OURS, server_id: int = -1) -> int | Member:
    """A new start of a node, JOINING: its number. If the node is a member already, or another node has the log of range
    server ``server_id``, which this one is about to open (-1: nobody has), that member: it has to be ended first
    (:func:`claim`, by nobody). Those that are ENDING, and that no other member is ending, are the new start's to end:
    it may go on with their log. Raises StoreVersionError where the others are of versions that ``version`` is no
    neighbour of."""
    start = lock(connection)
    versions.check(connection, node_id, version)
    former = "(node_id = ? OR server_id = ? AND server_id >= 0)"
    found = connection.execute(
        f"SELECT {_MEMBER} FROM cluster_nodes WHERE {former} AND state <> 'ending'", (node_id, server_id)
    ).fetchone()
    if found is not None:
        return _member(found)
    connection.execute("UPDATE cluster_state SET next_start = ?, version = version + 1", (start + 1,))
    _begin(connection, start, node_id, version, server_id)
    connection.execute(
        f"UPDATE cluster_nodes SET ended_by = ? WHERE {former} AND state = 'ending' AND ended_by NOT IN "
        "(SELECT start FROM cluster_nodes WHERE state <> 'ending')",
        (start, node_id, server_id),
    )
    return start


def _begin(connection: Connection, start: int, node_id: int, version: Version, server_id: int = -1) -> None:
    connection.execute(
        f"INSERT INTO cluster_nodes ({_MEMBER}) VALUES (?, ?, 'joining', 0, 0, ?, '{{}}', '', 0, ?, ?)",
        (start, node_id, server_id, version.says, version.stores),
    )


def succeed(connection: Connection, node_id: int, workers: Collection[int], version: Version = OURS) -> int:
    """A new start of one of ``workers`` that has all its former self had: its number. To be called where it is certain
    that no process of that self lives, nor of any node that is none of the workers: these are members no more.

    Who was UP stays so, at the addresses that others know: it serves there in a moment, and clients that were told
    meanwhile that there is no such node would forget it. Raises StoreVersionError where a newer release has stored what
    ``version`` does not know.
    """
    start = lock(connection)
    versions.check_level(connection, version)
    connection.execute("UPDATE cluster_state SET next_start = ?", (start + 1,))
    _begin(connection, start, node_id, version)
    members = connection.execute("SELECT start, node_id FROM cluster_nodes WHERE start <> ?", (start,)).fetchall()
    epoch = next_epoch(connection)
    for former, whose in members:
        if whose == node_id:
            connection.execute(
                "UPDATE cluster_nodes SET (state, server_id, addresses, rack) = "
                "(SELECT state, server_id, addresses, rack FROM cluster_nodes WHERE start = ?) "
                "WHERE start = ? AND EXISTS (SELECT 1 FROM cluster_nodes WHERE start = ? AND state = 'up')",
                (former, start, former),
            )
            moved = "UPDATE cluster_slots SET owner = ?, epoch = ? WHERE owner = ?"
            connection.execute(moved, (start, epoch, former))
        elif whose not in workers:
            connection.execute("UPDATE cluster_slots SET owner = ? WHERE owner = ?", (NOBODY, former))
        else:
            continue
        connection.execute("DELETE FROM cluster_nodes WHERE start = ?", (former,))
    _changed(connection)
    return start


def join(connection: Connection, start: int, server_id: int, addresses: Mapping[str, str], rack: str) -> bool:
    """A JOINING member serves: it is UP, and gets its share of what nobody has; a drained one gives away what it has
    from its former self. The level is raised if it can be: only here, since who has died, the last of its release
    perhaps, may be started again as it was. False: it is a member no more."""
    lock(connection)
    wish = "SELECT 1 FROM cluster_drained JOIN cluster_nodes USING (node_id) WHERE start = ?"
    drained = connection.execute(wish, (start,)).fetchone() is not None
    changed = connection.execute(
        "UPDATE cluster_nodes SET state = ?, drained = ?, server_id = ?, addresses = ?, rack = ? "
        "WHERE start = ? AND state IN ('joining', 'up')",
        (
            (State.LEAVING if drained else State.UP).value,
            int(drained),
            server_id,
            json.dumps(dict(addresses), sort_keys=True),
            rack,
            start,
        ),
    )
    if not changed.rowcount:
        return False
    versions.raise_level(connection)
    spread(connection)
    return True


def beat(connection: Connection, start: int) -> bool:
    """A heartbeat. False: others have ended this start."""
    changed = connection.execute(
        "UPDATE cluster_nodes SET beats = beats + 1 WHERE start = ? AND state <> 'ending'", (start,)
    )
    return bool(changed.rowcount)


def look(connection: Connection, known: int) -> Look:
    """Members and slots; ``known`` is the version of the slots that the one who asks has (-1: none)."""
    found = totals(connection)
    query = "SELECT cluster_state.version, start, beats FROM cluster_state LEFT JOIN cluster_nodes ON TRUE"
    beats = connection.execute(query).fetchall()
    if beats[0][0] == known:
        counts = {start: count for _, start, count in beats if start is not None}
        return Look(known, (), None, beats=counts, totals=found)
    now = version(connection)
    members = tuple(map(_member, connection.execute(f"SELECT {_MEMBER} FROM cluster_nodes ORDER BY start")))
    drained = frozenset(node_id for (node_id,) in connection.execute("SELECT node_id FROM cluster_drained"))
    return Look(now, members, tuple(_slots(connection)), drained, versions.level(connection), totals=found)


def version(connection: Connection) -> int:
    """Of members' states and slots' owners, as this transaction sees it."""
    _, found = connection.execute(_STATE).fetchone()
    return int(found)


def claim(connection: Connection, start: int, beats: int, by: int) -> bool:
    """Begin to end a member: from now on it is ENDING, and ``by`` takes over its log. Only one whose counter is still
    ``beats``, or that nobody, or somebody who has ended himself, is ending."""
    lock(connection)
    row = connection.execute("SELECT state, ended_by FROM cluster_nodes WHERE start = ?", (start,)).fetchone()
    if row is None or (by != NOBODY and state_of(connection, by) is None):
        return False
    state, ended_by = row
    if state == State.ENDING.value:
        if ended_by == by:
            return True
        if ended_by != NOBODY and state_of(connection, ended_by) not in (None, State.ENDING):
            return False
        beats = -1
    changed = connection.execute(
        "UPDATE cluster_nodes SET state = 'ending', ended_by = ? WHERE start = ? AND (state = 'ending' OR beats = ?)",
        (by, start, beats),
    )
    if changed.rowcount:
        _changed(connection)
    return bool(changed.rowcount)


def hand_on(connection: Connection, start: int, by: int, to: int) -> bool:
    """Have ``to`` end a member, that ``by`` was ending and may not take over from. Not where ``to`` is ended itself."""
    lock(connection)
    changed = connection.execute(
        "UPDATE cluster_nodes SET ended_by = ? WHERE start = ? AND state = 'ending' AND ended_by = ? AND EXISTS "
        "(SELECT 1 FROM cluster_nodes WHERE start = ? AND state <> 'ending')",
        (to, start, by, to),
    )
    if changed.rowcount:
        _changed(connection)
    return bool(changed.rowcount)


def finish(connection: Connection, start: int, by: int) -> bool:
    """The log of a member that ``by`` was ending is taken over: the member is no more, and its slots go to the others.
    False: somebody else has it, or has finished."""
    lock(connection)
    gone = connection.execute(
        "DELETE FROM cluster_nodes WHERE start = ? AND state = 'ending' AND ended_by = ?", (start, by)
    )
    if not gone.rowcount:
        return False
    connection.execute("UPDATE cluster_slots SET owner = ? WHERE owner = ?", (NOBODY, start))
    spread(connection)
    return True


def leave(connection: Connection, start: int) -> bool:
    """The member is about to stop in order, and gives away what it has."""
    lock(connection)
    changed = connection.execute(
        "UPDATE cluster_nodes SET state = 'leaving', drained = 0 WHERE start = ? AND state <> 'ending'",
        (start,),
    )
    if changed.rowcount:
        _changed(connection)
    return bool(changed.rowcount)


def left(connection: Connection, start: int) -> bool:
    """The member has closed everything: what it still has, and its log, is for whoever comes first."""
    lock(connection)
    changed = connection.execute("UPDATE cluster_nodes SET state = 'ending', ended_by = 0 WHERE start = ?", (start,))
    _changed(connection)
    return bool(changed.rowcount)


def give(connection: Connection, given: Iterable[tuple[int, int]], start: int, to: int) -> list[int]:
    """Hand slots over, (slot, epoch) each, from ``start`` to ``to``; those that were.

    Nothing goes to one that is not UP, nor what ``start`` has not, or has in another epoch. Unless the giver leaves,
    nothing goes elsewhere than where it is pinned to, and else nothing that would make the shares less alike.
    """
    lock(connection)
    giver = state_of(connection, start)
    if giver is None or state_of(connection, to) is not State.UP:
        return []
    slots = _slots(connection)
    pins = pins_of(slots, _up(connection))
    # What is on its way to where it is pinned counts there: a plan counts it so.
    sizes = sizes_of(pins.get(index, slot.owner) for index, slot in enumerate(slots))
    moved: list[int] = []
    for index, believed in given:
        slot = slots[index]
        if (slot.owner, slot.epoch) != (start, believed):
            continue
        if giver is not State.LEAVING and pins.get(index, to) != to:
            continue
        if index not in pins:
            # Of what two nodes give to a third at once, by plans of different times, no more than is its share.
            if giver is not State.LEAVING and sizes[start] - sizes[to] < 2:
                continue
            sizes[start] -= 1
            sizes[to] += 1
        moved.append(index)
    if moved:
        _assign(connection, [(slot, to) for slot in moved])
        _changed(connection)
    return moved


def raise_epoch(connection: Connection, slot: int, start: int) -> int | None:
    """Go on with a slot in an epoch above every one before, so that nothing which was asked for in an earlier one (to
    hand it over, say) happens any more. None: it is not the asking member's."""
    lock(connection)
    state = state_of(connection, start)
    row = connection.execute("SELECT owner FROM cluster_slots WHERE slot = ?", (slot,)).fetchone()
    if row is None or row[0] != start or state in (None, State.ENDING):
        return None
    epoch = next_epoch(connection)
    connection.execute("UPDATE cluster_slots SET epoch = ? WHERE slot = ?", (epoch, slot))
    _changed(connection)
    return epoch


def hold(connection: Connection, slot: int, start: int) -> int | None:
    """Part of another transaction: whether ``start`` owns a slot, and goes on owning it until that
    transaction has ended. None: it does; else the id of the node that does, -1 where nobody does.

    A start's number is never given again and who was ended gets no slot again, so the slot's epoch needs no look: it
    may have risen meanwhile as a log was opened. The row is locked, so that whoever becomes the owner reads what this
    transaction has written; a serializable one that comes too late for that runs again, and finds the new owner.
    """
    (owner,) = connection.execute("SELECT owner FROM cluster_slots WHERE slot = ? /* FOR SHARE */", (slot,)).fetchone()
    if owner == start:
        return None
    row = connection.execute("SELECT node_id FROM cluster_nodes WHERE start = ?", (owner,)).fetchone()
    return -1 if row is None else int(row[0])


def empty(connection: Connection) -> None:
    """Nobody is a member, and nobody has anything. To be called where it is certain that no process of any node
    lives."""
    connection.execute("DELETE FROM cluster_nodes")
    connection.execute("UPDATE cluster_slots SET owner = ?", (NOBODY,))


def next_epoch(connection: Connection) -> int:
    """Above every epoch that anybody was given before, a partition's log or a slot."""
    return advance(connection, "next_epoch", 1)


def spread(connection: Connection) -> None:
    """Members have come or gone: give what nobody has to those who are UP."""
    slots, up = _slots(connection), _up(connection)
    owners = [slot.owner for slot in slots]
    moves = plan(up.values(), owners, pins=pins_of(slots, up))
    _assign(connection, [(move.slot, move.to) for move in moves if owners[move.slot] == NOBODY])
    _changed(connection)


def _slots(connection: Connection) -> list[Slot]:
    rows = connection.execute("SELECT owner, epoch, pin FROM cluster_slots ORDER BY slot")
    return [Slot(owner, epoch, pin) for owner, epoch, pin in rows]


def _up(connection: Connection) -> dict[int, int]:
    """The starts of nodes that are UP, by their ids."""
    return dict(connection.execute("SELECT node_id, start FROM cluster_nodes WHERE state = 'up'").fetchall())


def _assign(connection: Connection, moves: Sequence[tuple[int, int]]) -> None:
    if moves:
        epoch = next_epoch(connection)
        rows = [(to, epoch, slot) for slot, to in moves]
        connection.executemany("UPDATE cluster_slots SET owner = ?, epoch = ? WHERE slot = ?", rows)


def _changed(connection: Connection) -> None:
    connection.execute("UPDATE cluster_state SET version = version + 1")


def state_of(connection: Connection, start: int) -> State | None:
    """What a member is doing; None: it is none."""
    row = connection.execute("SELECT state FROM cluster_nodes WHERE start = ?", (start,)).fetchone()
    return None if row is None else State(row[0])


def _member(row: Sequence[Any]) -> Member:
    start, node_id, state, beats, by, server_id, addresses, rack, drained, says, stores = row
    told = json.loads(addresses)
    version = Version(says, stores)
    return Member(start, node_id, State(state), beats, by, server_id, told, rack, bool(drained), version)
