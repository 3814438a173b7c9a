"""Positions that become valid with a transaction, as the database keeps them until its end.

A pending position is durable and shown to nobody. When its transaction is committed it becomes the position of its
group; when the transaction is aborted it is deleted. A position that was committed, or deleted, after the pending one
was made stays: it removes the pending one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bridges.catalog.database.sql import Connection, upsert
from bridges.catalog.views.groups import GroupName, Place

Transaction = tuple[str, str]
"""A front and its name for the transaction."""
Pending = tuple[str, str, str, str, str, int]
"""One pending position: front, transaction, space, group, topic, partition."""
Valid = tuple[str, str, str, int, int, int, str, int, int, str, int]
"""A row of the table of positions; the last column is the slot of the group."""

_KEY = "front, txn, space, grp, topic, partition"
_VALUE = "offset, leader_epoch, metadata, commit_ms, expire_ms"


class PendingPositions:
    """The index of pending positions, in memory."""

    __slots__ = ("_places", "_topics", "_transactions")

    def __init__(self) -> None:
        self._places: dict[GroupName, dict[Place, set[Transaction]]] = {}
        self._transactions: dict[Transaction, int] = {}
        self._topics: dict[str, dict[GroupName, int]] = {}

    def load(self, rows: Iterable[Pending]) -> None:
        """Start with the rows of :func:`all_pending`."""
        self._places, self._transactions, self._topics = {}, {}, {}
        self.add(rows)

    def add(self, rows: Iterable[Pending]) -> None:
        """Add pending positions; a position that is pending already stays once."""
        for front, txn, space, group, topic, partition in rows:
            name, transaction = (space, group), (front, txn)
            waiting = self._places.setdefault(name, {}).setdefault((topic, partition), set())
            if transaction not in waiting:
                waiting.add(transaction)
                self._transactions[transaction] = self._transactions.get(transaction, 0) + 1
                of_topic = self._topics.setdefault(topic, {})
                of_topic[name] = of_topic.get(name, 0) + 1

    def remove(self, rows: Iterable[Pending]) -> None:
        for front, txn, space, group, topic, partition in rows:
            name, transaction = (space, group), (front, txn)
            places = self._places.get(name, {})
            waiting = places.get((topic, partition), set())
            if transaction not in waiting:
                continue
            waiting.remove(transaction)
            if not waiting:
                del places[topic, partition]
                if not places:
                    del self._places[name]
            self._transactions[transaction] -= 1
            if not self._transactions[transaction]:
                del self._transactions[transaction]
            self._topics[topic][name] -= 1
            if not self._topics[topic][name]:
                del self._topics[topic][name]
                if not self._topics[topic]:
                    del self._topics[topic]

    def all(self) -> list[Pending]:
        return [
            (*transaction, *name, *place)
            for name, places in self._places.items()
            for place, waiting in places.items()
            for transaction in waiting
        ]

    def has_topic(self, topic: str) -> bool:
        return bool(self._topics.get(topic))

    def of_topic(self, topic: str) -> list[Pending]:
        return [
            (*transaction, *name, *place)
            for name in self._topics.get(topic, ())
            for place, waiting in self._places[name].items()
            if place[0] == topic
            for transaction in waiting
        ]

    def has(self, name: GroupName, place: Place) -> bool:
        """Return whether a transaction still has to decide a group's position in a partition."""
        places = self._places.get(name)
        return places is not None and place in places

    def has_group(self, name: GroupName) -> bool:
        return name in self._places

    def transactions(self, front: str) -> list[str]:
        return [txn for owner, txn in self._transactions if owner == front]


# --- in the database's thread -----------------------------------------------------------------------------------------


STORE = upsert("positions", "space grp topic partition", "offset leader_epoch metadata commit_ms expire_ms front slot")


def all_pending(connection: Connection) -> list[Pending]:
    return list(connection.execute(f"SELECT {_KEY} FROM pending_positions"))


def of_group(connection: Connection, name: GroupName) -> set[Pending]:
    """Return a group's pending positions."""
    return set(connection.execute(f"SELECT {_KEY} FROM pending_positions WHERE space = ? AND grp = ?", name))


def put(connection: Connection, txn: str, rows: Iterable[Valid]) -> list[Pending]:
    """Store positions, as rows that become valid with a transaction; a later row replaces an earlier one of the same
    place."""
    added: list[Pending] = []
    for row in rows:
        *position, front, _ = row
        connection.execute(
            "DELETE FROM pending_positions WHERE front = ? AND txn = ? AND space = ? AND grp = ? AND topic = ? "
            "AND partition = ?",
            (front, txn, *row[:4]),
        )
        connection.execute(
            f"INSERT INTO pending_positions ({_KEY}, {_VALUE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (front, txn, *position),
        )
        added.append((front, txn, row[0], row[1], row[2], row[3]))
    return added


def overtake(connection: Connection, name: GroupName, places: Iterable[Place] | None) -> list[Pending]:
    """Delete a group's pending positions in ``places`` (None: everywhere), because a later commit or deletion decided
    them."""
    found = connection.execute(
        f"SELECT {_KEY}, seq FROM pending_positions WHERE space = ? AND grp = ?", name
    ).fetchall()
    wanted = set(places) if found and places is not None else None
    return _drop(connection, [row for row in found if wanted is None or (row[4], row[5]) in wanted])


def end(
    connection: Connection,
    transaction: Transaction,
    commit: bool,
    slot_of: Callable[[str, str], int],
    group: GroupName | None = None,
) -> tuple[list[Pending], list[Valid]]:
    """End a transaction: return the positions that are no longer pending, and those that became valid. With ``group``,
    end only that group's part. Runs inside a transaction of the database.

    A position that becomes valid removes older pending positions of other transactions in its place.
    """
    found = connection.execute(
        f"SELECT {_KEY}, seq, {_VALUE} FROM pending_positions WHERE front = ? AND txn = ?", transaction
    ).fetchall()
    if group is not None:
        found = [row for row in found if row[2:4] == group]
    gone = _drop(connection, [row[:7] for row in found])
    if not commit:
        return gone, []
    for row in found:
        older = connection.execute(
            f"SELECT {_KEY}, seq FROM pending_positions "
            "WHERE space = ? AND grp = ? AND topic = ? AND partition = ? AND seq < ?",
            row[2:7],
        )
        gone += _drop(connection, older.fetchall())
    valid: list[Valid] = [(*row[2:6], *row[7:], row[0], slot_of(row[2], row[3])) for row in found]
    connection.executemany(STORE, valid)
    return gone, valid


def _drop(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> list[Pending]:
    """Delete ``rows`` (key and number) and return their keys."""
    connection.executemany("DELETE FROM pending_positions WHERE seq = ?", [row[6:7] for row in rows])
    return [(row[0], row[1], row[2], row[3], row[4], row[5]) for row in rows]
