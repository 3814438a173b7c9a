"""The first partition number of a topic, for a protocol that never reuses a number under a name.

Pravega's clients know a segment by its stream's name and a number, and remember positions in it. A reader group that
outlives its stream would begin in the middle of a new stream with that name. So the partitions of a topic get numbers
above those of all former topics with that name, through whichever protocol these were made and deleted. Other protocols
count from 0 and distinguish topics by their ids.

The ``MOST`` names that were deleted last are remembered. Of the forgotten names only the highest number is kept: from
then on no other name begins below it.
"""

from __future__ import annotations

from bridges.catalog.database.sql import Connection, upsert

MOST = 100_000
"""Names of deleted topics whose numbers are remembered one by one."""
PROTOCOL = "pravega"
"""The protocol of these names."""
_FLOOR = "former_numbers_floor"


def first_number(connection: Connection, name: str) -> int:
    """Return the number of the first partition of a topic that is made as ``name``."""
    return _find_number(connection, name, _floor(connection))


def remember(connection: Connection, name: str, following: int, most: int = MOST) -> None:
    """Note that ``name`` had numbers below ``following``, inside the transaction that deletes the topic."""
    following = max(following, _find_number(connection, name, 0))
    connection.execute("DELETE FROM former_numbers WHERE name = ?", (name,))
    query = "INSERT INTO former_numbers (name, next) VALUES (?, ?) RETURNING deletion"
    (deletion,) = connection.execute(query, (name, following)).fetchone()
    old = "FROM former_numbers WHERE deletion <= ?"
    (highest,) = connection.execute(f"SELECT max(next) {old}", (deletion - most,)).fetchone()
    if highest is not None:
        floor = max(highest, _floor(connection))
        connection.execute(upsert("meta", "key", "value"), (_FLOOR, str(floor)))
        connection.execute(f"DELETE {old}", (deletion - most,))


def _find_number(connection: Connection, name: str, otherwise: int) -> int:
    row = connection.execute("SELECT next FROM former_numbers WHERE name = ?", (name,)).fetchone()
    return otherwise if row is None else int(row[0])


def _floor(connection: Connection) -> int:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (_FLOOR,)).fetchone()
    return 0 if row is None else int(row[0])
