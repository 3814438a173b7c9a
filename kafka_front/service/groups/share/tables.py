"""The database tables of share groups: their names, and each share partition's start offset with the finished and
delivered records behind it.

Each row of a partition has an *epoch*, which rises when a node takes the partition over or an admin request changes it.
A writer names the epoch in which it has read the row; in another epoch it is fenced and changes nothing. So a share
partition has one owner at a time, whatever nodes believe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from bridges.catalog.database.sql import Connection, upsert
from kafka_front.service.groups.share.partition import StoredSpan

_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(list[tuple[int, int, int, int]])

_KEY = "grp = ? AND topic_id = ? AND partition = ?"
_ADD_GROUP = upsert("front_kafka_share_groups", "grp")
_STORE = upsert("front_kafka_share_partitions", "grp topic_id partition", "topic epoch start state")

Place = tuple[bytes, int]
"""Topic id and partition."""


class Fenced(Exception):
    """Another owner has the share partition, or it is gone."""


def create(connection: Connection) -> None:
    for columns in (
        "share_groups (grp TEXT PRIMARY KEY)",
        "share_partitions (grp TEXT, topic_id BLOB, partition INTEGER, topic TEXT NOT NULL, epoch INTEGER NOT NULL, "
        "start INTEGER NOT NULL, state BLOB NOT NULL, PRIMARY KEY (grp, topic_id, partition))",
        "group_configs (grp TEXT, name TEXT, value TEXT NOT NULL, PRIMARY KEY (grp, name))",
    ):
        connection.execute(f"CREATE TABLE front_kafka_{columns} STRICT")
    connection.execute("CREATE INDEX front_kafka_share_topics ON front_kafka_share_partitions (topic)")


def erase_topic(connection: Connection, topic: str) -> None:
    connection.execute("DELETE FROM front_kafka_share_partitions WHERE topic = ?", (topic,))


def read_groups(connection: Connection) -> list[str]:
    """Return the names of all share groups."""
    return [str(row[0]) for row in connection.execute("SELECT grp FROM front_kafka_share_groups")]


def add_group(connection: Connection, group: str) -> None:
    """Store a group."""
    connection.execute(_ADD_GROUP, (group,))


def remove_group(connection: Connection, group: str) -> list[Place]:
    """Delete a group and its share partitions; return these."""
    connection.execute("DELETE FROM front_kafka_share_groups WHERE grp = ?", (group,))
    return _remove(connection, "grp = ?", group)


Taken = tuple[int, int, list[StoredSpan]]
"""Epoch, start offset, spans."""


def find(connection: Connection, group: str, place: Place) -> Taken | None:
    """Return a share partition as it is stored, None if it is not."""
    query = f"SELECT epoch, start, state FROM front_kafka_share_partitions WHERE {_KEY}"
    row = connection.execute(query, (group, *place)).fetchone()
    return None if row is None else (row[0], row[1], _decoder.decode(row[2]))


def take(connection: Connection, group: str, place: Place) -> Taken | None:
    """Take over a share partition, in a new epoch; return None if it is not stored."""
    found = find(connection, group, place)
    if found is None:
        return None
    epoch, start, spans = found
    raised = f"UPDATE front_kafka_share_partitions SET epoch = ? WHERE {_KEY}"
    connection.execute(raised, (epoch + 1, group, *place))
    return epoch + 1, start, spans


def begin(connection: Connection, group: str, place: Place, topic: str, start: int) -> Taken:
    """Take over a share partition, or store a new one that begins at ``start``. Raises Fenced if the group does not
    exist."""
    if connection.execute("SELECT grp FROM front_kafka_share_groups WHERE grp = ?", (group,)).fetchone() is None:
        raise Fenced(f"there is no share group {group!r}")
    found = take(connection, group, place)
    if found is not None:
        return found
    return put(connection, group, place, topic, start)


def put(connection: Connection, group: str, place: Place, topic: str, start: int) -> Taken:
    """Set a share partition's start offset; its present owner is fenced."""
    before = take(connection, group, place)
    epoch = 0 if before is None else before[0]
    connection.execute(_STORE, (group, *place, topic, epoch, start, _encode([])))
    return epoch, start, []


def save(connection: Connection, group: str, place: Place, epoch: int, start: int, spans: Sequence[StoredSpan]) -> None:
    """Store the state of a share partition. Raises Fenced."""
    changed = connection.execute(
        f"UPDATE front_kafka_share_partitions SET start = ?, state = ? WHERE {_KEY} AND epoch = ?",
        (start, _encode(spans), group, *place, epoch),
    )
    if changed.rowcount != 1:
        raise Fenced(f"another owner has partition {place[1]} of share group {group!r}")


def forget_topic(connection: Connection, group: str, topic_id: bytes) -> list[Place]:
    """Delete a group's share partitions of a topic; return them."""
    return _remove(connection, "grp = ? AND topic_id = ?", group, topic_id)


def _remove(connection: Connection, condition: str, *values: object) -> list[Place]:
    query = f"DELETE FROM front_kafka_share_partitions WHERE {condition} RETURNING topic_id, partition"
    return [(bytes(topic_id), number) for topic_id, number in connection.execute(query, values).fetchall()]


def all_places(connection: Connection) -> list[tuple[str, bytes, int]]:
    """Return group, topic id and number of all share partitions."""
    rows = connection.execute("SELECT grp, topic_id, partition FROM front_kafka_share_partitions")
    return [(group, bytes(topic_id), number) for group, topic_id, number in rows]


Row = tuple[bytes, int, int, list[StoredSpan]]
"""Topic id, partition, start offset, spans."""


def of_group(connection: Connection, group: str) -> list[Row]:
    return [
        (bytes(topic_id), partition, start, _decoder.decode(state))
        for topic_id, partition, start, state in connection.execute(
            "SELECT topic_id, partition, start, state FROM front_kafka_share_partitions WHERE grp = ?", (group,)
        )
    ]


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (create,)
ERASERS: tuple[Callable[[Connection, str], None], ...] = (erase_topic,)
