"""Where the numbers of partitions begin for a protocol that never gives one twice under a name.

Pravega's clients know segments by the stream's name and a number, and remember positions in them: a reader group that
outlives its stream would begin in the middle of another one of that name. So a topic's partitions have numbers there
above all that former topics of the name had, through whichever protocol those were made and deleted. Other protocols
count from 0 and tell topics apart by their ids.

Names are remembered by the order of their last deletion, ``MOST`` of them; of those that are forgotten the highest
number is, below which no other name begins from then on.
"""

from __future__ import annotations

from bridges.catalog.sql import Connection, upsert

MOST = 100_000
"""Names of deleted topics whose numbers are remembered each by itself."""
PROTOCOL = "pravega"
"""Whose names these are."""
_FLOOR = "former_numbers_floor"


def first_number(connection: Connection, name: str) -> int:
    """What the first partition of something that is made as ``name`` counts as."""
    return _of(connection, name, _floor(connection))


def remember(connection: Connection, name: str, following: int, most: int = MOST) -> None:
    """What had numbers below ``following`` as ``name`` is deleted, inside the transaction that does so."""
    following = max(following, _of(connection, name, 0))
    connection.execute("DELETE FROM former_numbers WHERE name = ?", (name,))
    query = "INSERT INTO former_numbers (name, next) VALUES (?, ?) RETURNING deletion"
    (deletion,) = connection.execute(query, (name, following)).fetchone()
    old = "FROM former_numbers WHERE deletion <= ?"
    (highest,) = connection.execute(f"SELECT max(next) {old}", (deletion - most,)).fetchone()
    if highest is not None:
        floor = max(highest, _floor(connection))
        connection.execute(upsert("meta", "key", "value"), (_FLOOR, str(floor)))
        connection.execute(f"DELETE {old}", (deletion - most,))


def _of(connection: Connection, name: str, otherwise: int) -> int:
    row = connection.execute("SELECT next FROM former_numbers WHERE name = ?", (name,)).fetchone()
    return otherwise if row is None else int(row[0])


def _floor(connection: Connection) -> int:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (_FLOOR,)).fetchone()
    return 0 if row is None else int(row[0])
