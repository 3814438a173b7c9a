"""The front's tables in the node's database. What belongs to a topic goes in the transaction that deletes it."""

from __future__ import annotations

from collections.abc import Callable

from bridges.catalog.sql import Connection


def _first(connection: Connection) -> None:
    for columns in (
        "scopes (name TEXT PRIMARY KEY)",
        # Of the streams that the controller made: what their makers said, as the controller's messages.
        "streams (topic TEXT PRIMARY KEY, config BLOB NOT NULL)",
        # Segments that are no partitions of a stream, by their names, with the hidden topics that hold them.
        "segments (name TEXT PRIMARY KEY, topic TEXT NOT NULL UNIQUE, sealed INTEGER NOT NULL DEFAULT 0)",
        "attributes (topic TEXT, partition INTEGER, id BLOB, value INTEGER NOT NULL, "
        "PRIMARY KEY (topic, partition, id))",
        # ``length`` is what the table's log would have as bytes: versions are positions in it.
        "tables (segment TEXT PRIMARY KEY, length INTEGER NOT NULL, key_length INTEGER NOT NULL, "
        "bytes INTEGER NOT NULL)",
        "entries (segment TEXT, key BLOB, version INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (segment, key))",
        "groups (scope TEXT, name TEXT, id TEXT NOT NULL, generation INTEGER NOT NULL, config BLOB NOT NULL, "
        "PRIMARY KEY (scope, name))",
    ):
        connection.execute(f"CREATE TABLE front_pravega_{columns} STRICT")
    connection.execute("CREATE INDEX front_pravega_versions ON front_pravega_entries (segment, version)")


def _transactions(connection: Connection) -> None:
    # ``hidden`` is the topic that holds the transaction's segments: partition n is that of the nth of ``parents``.
    connection.execute(
        "CREATE TABLE front_pravega_transactions (topic TEXT, high INTEGER, low INTEGER, state INTEGER NOT NULL, "
        "lease_ms INTEGER NOT NULL, created_ms INTEGER NOT NULL, hidden TEXT NOT NULL, parents TEXT NOT NULL, "
        "PRIMARY KEY (topic, high, low)) STRICT"
    )


def _key_value_tables(connection: Connection) -> None:
    # ``config`` is the controller's message; the table segments are those of ``tables``.
    connection.execute(
        "CREATE TABLE front_pravega_key_value_tables (scope TEXT, name TEXT, config BLOB NOT NULL, "
        "PRIMARY KEY (scope, name)) STRICT"
    )
    # Keys that tables had, as far back as they are remembered; ``version`` is where they were removed.
    connection.execute(
        "CREATE TABLE front_pravega_removed (segment TEXT, key BLOB, version INTEGER NOT NULL, "
        "PRIMARY KEY (segment, key)) STRICT"
    )
    connection.execute("CREATE INDEX front_pravega_removals ON front_pravega_removed (segment, version)")


def _decisions(connection: Connection) -> None:
    # The ends of transactions are carried out in the order in which they were decided.
    connection.execute("ALTER TABLE front_pravega_transactions ADD COLUMN decided INTEGER NOT NULL DEFAULT 0")


def _merges(connection: Connection) -> None:
    # Segments of no stream, by the topics that hold them, that are being appended to another one in pieces: its topic,
    # partition and stream, and the producer ids of the present attempt and of the one before.
    connection.execute(
        "CREATE TABLE front_pravega_merges (topic TEXT PRIMARY KEY, target TEXT NOT NULL, partition INTEGER NOT NULL, "
        "stream INTEGER NOT NULL, attempt INTEGER NOT NULL, stale INTEGER NOT NULL) STRICT"
    )


def _bounded_tables(connection: Connection) -> None:
    # ``stored`` is what ``entries`` and ``removed`` call the table: a new one of the same name has another. What lies
    # there under a name of ``dropped`` belongs to nobody any more, and is removed little by little.
    connection.execute("CREATE TABLE front_pravega_dropped (stored TEXT PRIMARY KEY) STRICT")
    connection.execute("ALTER TABLE front_pravega_tables ADD COLUMN stored TEXT NOT NULL DEFAULT ''")
    connection.execute("ALTER TABLE front_pravega_tables ADD COLUMN entries INTEGER NOT NULL DEFAULT 0")
    count = "SELECT count(*) FROM front_pravega_entries AS one WHERE one.segment = front_pravega_tables.segment"
    connection.execute(f"UPDATE front_pravega_tables SET stored = segment, entries = ({count})")
    connection.execute("CREATE TABLE front_pravega_table_count (tables INTEGER NOT NULL) STRICT")
    connection.execute("INSERT INTO front_pravega_table_count SELECT count(*) FROM front_pravega_tables")


def _noted(connection: Connection) -> None:
    # What writers noted of time: positions by the ids of segments, as JSON, and the wall clock (ms) then.
    connection.execute(
        "CREATE TABLE front_pravega_noted (topic TEXT, writer TEXT, time INTEGER NOT NULL, position TEXT NOT NULL, "
        "alive INTEGER NOT NULL, noted_ms INTEGER NOT NULL, PRIMARY KEY (topic, writer)) STRICT"
    )


def _numbered_tables(connection: Connection) -> None:
    # The number of the table's first segment (bridges/catalog/former.py).
    connection.execute("ALTER TABLE front_pravega_key_value_tables ADD COLUMN first INTEGER NOT NULL DEFAULT 0")


def _conditional_merges(connection: Connection) -> None:
    # Attributes of the target that were changed with the decision: id in hexadecimal, new value, old value, as JSON.
    connection.execute("ALTER TABLE front_pravega_merges ADD COLUMN undo TEXT NOT NULL DEFAULT '[]'")


def _outcomes(connection: Connection) -> None:
    # How transactions have ended, by the ids of their streams, in that order; ``transactions`` has those that have not.
    connection.execute(
        "CREATE TABLE front_pravega_outcomes (number INTEGER PRIMARY KEY AUTOINCREMENT, stream BLOB NOT NULL, "
        "high INTEGER NOT NULL, low INTEGER NOT NULL, state INTEGER NOT NULL, UNIQUE (stream, high, low)) STRICT"
    )


def _several_nodes(connection: Connection) -> None:
    # What the nodes of a cluster tell each other of a transaction: the places of the segments whose part of a commit is
    # done, as JSON, and how often it was pinged at nodes that do not end its lease.
    connection.execute("ALTER TABLE front_pravega_transactions ADD COLUMN merged TEXT NOT NULL DEFAULT '[]'")
    connection.execute("ALTER TABLE front_pravega_transactions ADD COLUMN pings INTEGER NOT NULL DEFAULT 0")
    connection.execute("CREATE INDEX front_pravega_hidden ON front_pravega_transactions (hidden)")
    # Rates of segments whose streams are scaled by them, as their owners have seen them last.
    connection.execute(
        "CREATE TABLE front_pravega_loads (topic TEXT, partition INTEGER, rate REAL NOT NULL, hot INTEGER NOT NULL, "
        "cold INTEGER NOT NULL, seen_ms INTEGER NOT NULL, PRIMARY KEY (topic, partition)) STRICT"
    )


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    _first,
    _transactions,
    _key_value_tables,
    _decisions,
    _merges,
    _bounded_tables,
    _noted,
    _numbered_tables,
    _conditional_merges,
    _outcomes,
    _several_nodes,
)
"""What brings each version to the next; never change one that was released."""


def _erase(connection: Connection, topic: str) -> None:
    for table in ("streams", "segments", "attributes", "transactions", "merges", "noted", "loads"):
        connection.execute(f"DELETE FROM front_pravega_{table} WHERE topic = ?", (topic,))


ERASERS: tuple[Callable[[Connection, str], None], ...] = (_erase,)
