"""Tables of the Pravega front in the node's database. A topic's rows are deleted in the transaction that deletes the
topic."""

from __future__ import annotations

import json
from collections.abc import Callable

from anabranch_kit.sql.connection import migration
from bridges.catalog.database.sql import Connection, Migration, upsert


def _first(connection: Connection) -> None:
    for columns in (
        "scopes (name TEXT PRIMARY KEY)",
        # Configurations of the streams that clients created, as the controller's messages.
        "streams (topic TEXT PRIMARY KEY, config BLOB NOT NULL)",
        # Loose segments, which belong to no stream, by name, with the hidden topics that hold them.
        "segments (name TEXT PRIMARY KEY, topic TEXT NOT NULL UNIQUE, sealed INTEGER NOT NULL DEFAULT 0)",
        "attributes (topic TEXT, partition INTEGER, id BLOB, value INTEGER NOT NULL, "
        "PRIMARY KEY (topic, partition, id))",
        # ``length`` is the length in bytes that the table's log would have: versions are positions in it.
        "tables (segment TEXT PRIMARY KEY, length INTEGER NOT NULL, key_length INTEGER NOT NULL, "
        "bytes INTEGER NOT NULL)",
        "entries (segment TEXT, key BLOB, version INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (segment, key))",
        "groups (scope TEXT, name TEXT, id TEXT NOT NULL, generation INTEGER NOT NULL, config BLOB NOT NULL, "
        "PRIMARY KEY (scope, name))",
    ):
        connection.execute(f"CREATE TABLE front_pravega_{columns} STRICT")
    connection.execute("CREATE INDEX front_pravega_versions ON front_pravega_entries (segment, version)")


def _bounded_tables(connection: Connection) -> None:
    # ``stored`` is the table's name in ``entries`` and ``removed``: a recreated table gets another one. Rows there
    # whose name is in ``dropped`` belong to deleted tables, and are removed a slice at a time.
    connection.execute("CREATE TABLE front_pravega_dropped (stored TEXT PRIMARY KEY) STRICT")
    connection.execute("ALTER TABLE front_pravega_tables ADD COLUMN stored TEXT NOT NULL DEFAULT ''")
    connection.execute("ALTER TABLE front_pravega_tables ADD COLUMN entries INTEGER NOT NULL DEFAULT 0")
    count = "SELECT count(*) FROM front_pravega_entries AS one WHERE one.segment = front_pravega_tables.segment"
    connection.execute(f"UPDATE front_pravega_tables SET stored = segment, entries = ({count})")
    connection.execute("CREATE TABLE front_pravega_table_count (tables INTEGER NOT NULL) STRICT")
    connection.execute("INSERT INTO front_pravega_table_count SELECT count(*) FROM front_pravega_tables")


def _default_scope(connection: Connection) -> None:
    # The scope of topics whose names have no dot: clients find it before there are any.
    connection.execute(upsert("front_pravega_scopes", "name"), ("default",))


MIGRATIONS: tuple[Migration, ...] = (
    _first,
    migration(
        # ``hidden`` is the topic that holds the transaction's segments: partition n belongs to the nth of ``parents``.
        "CREATE TABLE front_pravega_transactions (topic TEXT, high INTEGER, low INTEGER, state INTEGER NOT NULL, "
        "lease_ms INTEGER NOT NULL, created_ms INTEGER NOT NULL, hidden TEXT NOT NULL, parents TEXT NOT NULL, "
        "PRIMARY KEY (topic, high, low)) STRICT",
    ),
    migration(
        # ``config`` is the controller's message; the table segments are rows of ``tables``.
        "CREATE TABLE front_pravega_key_value_tables (scope TEXT, name TEXT, config BLOB NOT NULL, "
        "PRIMARY KEY (scope, name)) STRICT",
        # Removed keys of tables, the latest ones only; ``version`` is the position of the removal.
        "CREATE TABLE front_pravega_removed (segment TEXT, key BLOB, version INTEGER NOT NULL, "
        "PRIMARY KEY (segment, key)) STRICT",
        "CREATE INDEX front_pravega_removals ON front_pravega_removed (segment, version)",
    ),
    migration(
        # The ends of transactions are carried out in the order in which they were decided.
        "ALTER TABLE front_pravega_transactions ADD COLUMN decided INTEGER NOT NULL DEFAULT 0",
    ),
    migration(
        # Merges in pieces, by the topics that hold their sources: topic, partition and backend stream of the target,
        # and the producer ids of the present attempt and of the previous one.
        "CREATE TABLE front_pravega_merges (topic TEXT PRIMARY KEY, target TEXT NOT NULL, partition INTEGER NOT NULL, "
        "stream INTEGER NOT NULL, attempt INTEGER NOT NULL, stale INTEGER NOT NULL) STRICT",
    ),
    _bounded_tables,
    migration(
        # Writers' notes of time: positions by segment id, as JSON, and the wall clock (ms) at the note.
        "CREATE TABLE front_pravega_noted (topic TEXT, writer TEXT, time INTEGER NOT NULL, position TEXT NOT NULL, "
        "alive INTEGER NOT NULL, noted_ms INTEGER NOT NULL, PRIMARY KEY (topic, writer)) STRICT",
    ),
    migration(
        # Number of the table's first segment (bridges/catalog/topics/former.py).
        "ALTER TABLE front_pravega_key_value_tables ADD COLUMN first INTEGER NOT NULL DEFAULT 0",
    ),
    migration(
        # Attributes of the target updated with the decision: id in hexadecimal, new value, old value, as JSON.
        "ALTER TABLE front_pravega_merges ADD COLUMN undo TEXT NOT NULL DEFAULT '[]'",
    ),
    migration(
        # Outcomes of ended transactions, by stream id, in the order of their ends; ``transactions`` has the open ones.
        "CREATE TABLE front_pravega_outcomes (number INTEGER PRIMARY KEY AUTOINCREMENT, stream BLOB NOT NULL, "
        "high INTEGER NOT NULL, low INTEGER NOT NULL, state INTEGER NOT NULL, UNIQUE (stream, high, low)) STRICT",
    ),
    migration(
        # State of a transaction that the nodes of a cluster share: the places of the segments that a commit has
        # appended, as JSON, and the number of pings at nodes that do not end its lease.
        "ALTER TABLE front_pravega_transactions ADD COLUMN merged TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE front_pravega_transactions ADD COLUMN pings INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX front_pravega_hidden ON front_pravega_transactions (hidden)",
        # Latest rates of the segments of streams with scaling by rate, published by their owners.
        "CREATE TABLE front_pravega_loads (topic TEXT, partition INTEGER, rate REAL NOT NULL, hot INTEGER NOT NULL, "
        "cold INTEGER NOT NULL, seen_ms INTEGER NOT NULL, PRIMARY KEY (topic, partition)) STRICT",
    ),
    migration(
        # The segments to which a commit appends those of ``parents`` (which are sealed), as JSON; empty: ``parents``.
        "ALTER TABLE front_pravega_transactions ADD COLUMN targets TEXT NOT NULL DEFAULT ''",
    ),
    _default_scope,
)
"""Migrations, each from one version to the next. Never change one that was released."""


def _erase(connection: Connection, topic: str) -> None:
    for table in ("streams", "segments", "attributes", "transactions", "merges", "noted", "loads"):
        connection.execute(f"DELETE FROM front_pravega_{table} WHERE topic = ?", (topic,))


def _is_promised(connection: Connection, topic: str, partition: int) -> bool:
    query = "SELECT 1 FROM front_pravega_merges WHERE target = ? AND partition = ?"
    if connection.execute(query, (topic, partition)).fetchone() is not None:
        return True
    query = "SELECT parents, targets, merged FROM front_pravega_transactions WHERE topic = ? AND state = ?"
    return any(
        number == partition and place not in json.loads(merged)
        for parents, targets, merged in connection.execute(query, (topic, COMMITTING)).fetchall()
        for place, number in enumerate(json.loads(targets or parents))
    )


COMMITTING = 2
"""State of a transaction whose commit is decided (:class:`pravega_front.wire.controller.TxnState`, whose module takes
long to import)."""
PROMISES: tuple[Callable[[Connection, str, int], bool], ...] = (_is_promised,)
ERASERS: tuple[Callable[[Connection, str], None], ...] = (_erase,)
