"""The transactions of a cluster's tables: members, and owners of slots. Each runs in the thread of its database.

No transaction relies on what was read in another one: the caller passes what it believes (a counter, an epoch), and the
transaction does nothing if that is outdated. So a transaction whose answer is lost may be repeated.

They are not serializable, because heartbeats and looks, which are most of them, would conflict all the time. A
transaction that changes more than its own row first locks the single row of ``cluster_state``. So these run one after
the other, and each sees the effects of those before. A member's counter needs no lock: the statement that ends the
member compares it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from bridges.catalog.database.counters import advance
from bridges.catalog.database.sql import Connection, upsert
from bridges.cluster import versions
from bridges.cluster.marks import Totals, totals
from bridges.cluster.members import Member, State
from bridges.cluster.slots import NOBODY, SLOTS, Slot, pins_of, plan, sizes_of
from bridges.cluster.versions import OURS, Version

_MEMBER = "start, node_id, state, beats, ended_by, server_id, addresses, rack, drained, version, stores"
_STATE = "SELECT slots, version FROM cluster_state"
_LOCK = "UPDATE cluster_state SET slots = slots RETURNING next_start"


class Look(Struct, frozen=True):
    """The state of the database at ``version``, which grows with every change of members' states and slots' owners.

    ``slots`` is None if the caller has those of this version. Then only ``beats`` has data, the members' counters by
    start, because all nodes ask this all the time. ``drained``: ids of nodes that should own nothing, whether they are
    there or not. ``level``: see :mod:`bridges.cluster.versions`. ``totals``: see :mod:`bridges.cluster.marks`.
    """

    version: int
    members: tuple[Member, ...]
    slots: tuple[Slot, ...] | None
    drained: frozenset[int] = frozenset()
    level: Version = Version()
    beats: Mapping[int, int] | None = None
    totals: Totals = Totals()

    def beats_of(self, start: int) -> int | None:
        """Return a member's counter, None if it is no member."""
        if self.beats is not None:
            return self.beats.get(start)
        return next((member.beats for member in self.members if member.start == start), None)


def make(connection: Connection, slots: int = SLOTS, version: Version = OURS) -> None:
    """Create the cluster with this many slots, unless it exists."""
    if connection.execute(_STATE).fetchone() is not None:
        return
    # If two nodes start together, the second fails here, and finds the cluster when it retries.
    connection.execute(
        "INSERT INTO cluster_state (one, slots, version, next_start, says, stores) VALUES (1, ?, 0, 1, ?, ?)",
        (slots, version.says, version.stores),
    )
    rows = [(slot, NOBODY, -1) for slot in range(slots)]
    connection.executemany(upsert("cluster_slots", "slot", "owner epoch"), rows)


def lock(connection: Connection) -> int:
    """Lock the cluster until the end of the transaction, and return the number of the next start.

    Needed for every change beyond the member's own row.
    """
    (start,) = connection.execute(_LOCK).fetchone()
    return int(start)


def enter(connection: Connection, node_id: int, version: Version = OURS, server_id: int = -1) -> int | Member:
    """Create a new start of a node, JOINING, and return its number.

    If the node is a member already, or another node has the log of range server ``server_id``, which this node is about
    to open (-1: none), return that member: it must be ended first (:func:`claim`, by NOBODY). ENDING members of this
    node or log that no live member is ending are assigned to the new start: it may go on with their log. Raises
    StoreVersionError if other members' versions are not neighbours of ``version``.
    """
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
    """Create a new start of one of ``workers`` with everything that its former start had, and return its number.

    To be called only where no process of the former start is alive, nor of any node that is not one of the workers:
    such nodes are removed.

    A worker that was UP stays UP, at the addresses that others know: it will serve there in a moment, and clients that
    learned meanwhile that the node is gone would forget it. Raises StoreVersionError if a newer release has stored data
    that ``version`` does not know.
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
    """Make a JOINING member UP, and give it its share of the slots without an owner; False if it is no member any more.

    A drained member becomes LEAVING instead, and gives away what its former start had. The level is raised here if
    possible, and only here: a member that has died, perhaps the last of its release, may be started again unchanged.
    """
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
    """Record a heartbeat; False if other members have ended this start."""
    changed = connection.execute(
        "UPDATE cluster_nodes SET beats = beats + 1 WHERE start = ? AND state <> 'ending'", (start,)
    )
    return bool(changed.rowcount)


def read_cluster(connection: Connection, known: int) -> Look:
    """Return the members and slots. ``known``: the version of the slots that the caller has (-1: none)."""
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
    """Return the version of members' states and slots' owners in this transaction."""
    _, found = connection.execute(_STATE).fetchone()
    return int(found)


def claim(connection: Connection, start: int, beats: int, by: int) -> bool:
    """Begin to end a member: it becomes ENDING, and ``by`` takes over its log.

    Succeeds only if the member's counter is still ``beats``, or the member is ENDING without a live ender.
    """
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
    """Have ``to`` end a member that ``by`` was ending and may not take over from; False if ``to`` has ended itself."""
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
    """Remove a member whose log ``by`` has taken over, and give its slots to the others.

    Return False if another member was assigned, or has finished.
    """
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
    """Mark a member that is about to stop in an orderly way as LEAVING: it gives away its slots."""
    lock(connection)
    changed = connection.execute(
        "UPDATE cluster_nodes SET state = 'leaving', drained = 0 WHERE start = ? AND state <> 'ending'",
        (start,),
    )
    if changed.rowcount:
        _changed(connection)
    return bool(changed.rowcount)


def mark_stopped(connection: Connection, start: int) -> bool:
    """Mark a member that has closed everything as ENDING: any other member may take over its slots and log."""
    lock(connection)
    changed = connection.execute("UPDATE cluster_nodes SET state = 'ending', ended_by = 0 WHERE start = ?", (start,))
    _changed(connection)
    return bool(changed.rowcount)


def give(connection: Connection, given: Iterable[tuple[int, int]], start: int, to: int) -> list[int]:
    """Hand slots, (slot, epoch) each, over from ``start`` to ``to``, and return those that were.

    A slot stays if ``to`` is not UP, or ``start`` does not own it in this epoch. Unless the giver is LEAVING, a slot
    also stays if it is pinned elsewhere, and an unpinned one if moving it would make the shares less equal.
    """
    lock(connection)
    giver = state_of(connection, start)
    if giver is None or state_of(connection, to) is not State.UP:
        return []
    slots = _slots(connection)
    pins = pins_of(slots, _up(connection))
    # A slot on its way to its pinned node counts there, as in a plan.
    sizes = sizes_of(pins.get(index, slot.owner) for index, slot in enumerate(slots))
    moved: list[int] = []
    for index, believed in given:
        slot = slots[index]
        if (slot.owner, slot.epoch) != (start, believed):
            continue
        if giver is not State.LEAVING and pins.get(index, to) != to:
            continue
        if index not in pins:
            # Two nodes with plans of different times may give to a third at once: it gets no more than its share.
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
    """Continue a slot in a new epoch above all earlier ones; return None if the member does not own it.

    Requests made in an earlier epoch, such as a handover, then have no effect any more.
    """
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
    """Check, as a part of another transaction, that ``start`` owns a slot and keeps it until the transaction has ended.

    Return None if it does, otherwise the id of the owning node, -1 without an owner.

    A start's number is never reused, and an ended start gets no slot again. So the slot's epoch need not be checked: it
    may have risen meanwhile because a log was opened. The row is locked, so that a new owner reads what this
    transaction has written; a serializable transaction that comes too late for that runs again, and finds the new
    owner.
    """
    (owner,) = connection.execute("SELECT owner FROM cluster_slots WHERE slot = ? /* FOR SHARE */", (slot,)).fetchone()
    if owner == start:
        return None
    row = connection.execute("SELECT node_id FROM cluster_nodes WHERE start = ?", (owner,)).fetchone()
    return -1 if row is None else int(row[0])


def empty(connection: Connection) -> None:
    """Remove all members and owners. To be called only where no process of any node is alive."""
    connection.execute("DELETE FROM cluster_nodes")
    connection.execute("UPDATE cluster_slots SET owner = ?", (NOBODY,))


def next_epoch(connection: Connection) -> int:
    """Return an epoch above all that were ever given out, for a partition's log or a slot."""
    return advance(connection, "next_epoch", 1)


def spread(connection: Connection) -> None:
    """Give the slots without an owner to the members that are UP, after members have come or gone."""
    slots, up = _slots(connection), _up(connection)
    owners = [slot.owner for slot in slots]
    moves = plan(up.values(), owners, pins=pins_of(slots, up))
    _assign(connection, [(move.slot, move.to) for move in moves if owners[move.slot] == NOBODY])
    _changed(connection)


def _slots(connection: Connection) -> list[Slot]:
    rows = connection.execute("SELECT owner, epoch, pin FROM cluster_slots ORDER BY slot")
    return [Slot(owner, epoch, pin) for owner, epoch, pin in rows]


def _up(connection: Connection) -> dict[int, int]:
    """Return the starts of nodes that are UP, by node id."""
    return dict(connection.execute("SELECT node_id, start FROM cluster_nodes WHERE state = 'up'").fetchall())


def _assign(connection: Connection, moves: Sequence[tuple[int, int]]) -> None:
    if moves:
        epoch = next_epoch(connection)
        rows = [(to, epoch, slot) for slot, to in moves]
        connection.executemany("UPDATE cluster_slots SET owner = ?, epoch = ? WHERE slot = ?", rows)


def _changed(connection: Connection) -> None:
    connection.execute("UPDATE cluster_state SET version = version + 1")


def state_of(connection: Connection, start: int) -> State | None:
    """Return the state of a member, None if it is no member."""
    row = connection.execute("SELECT state FROM cluster_nodes WHERE start = ?", (start,)).fetchone()
    return None if row is None else State(row[0])


def _member(row: Sequence[Any]) -> Member:
    start, node_id, state, beats, by, server_id, addresses, rack, drained, says, stores = row
    told = json.loads(addresses)
    version = Version(says, stores)
    return Member(start, node_id, State(state), beats, by, server_id, told, rack, bool(drained), version)
