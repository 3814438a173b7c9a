"""Tables of the YDB front in the node's database.

Never change a released migration: append one.
"""

from __future__ import annotations

from anabranch_kit.sql.connection import migration
from bridges.catalog.database.sql import Connection
from ydb_topic_front.service.transactions import tables as transactions

MIGRATIONS = (
    migration(
        # Settings of a topic that only YDB's clients use, as one message (ydb_topic_front/service/topics/settings.py).
        # Topics of other protocols have no row.
        """CREATE TABLE front_ydb_topics (
            topic TEXT PRIMARY KEY, settings BLOB NOT NULL
        ) STRICT, WITHOUT ROWID""",
        # Directories that YDB's clients created, and the parents of their topics. Paths are below the database.
        """CREATE TABLE front_ydb_directories (
            path TEXT PRIMARY KEY, made_ms INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID""",
        # Each producer's partition (ydb_topic_front/service/write/producers.py); long names are stored as digests.
        """CREATE TABLE front_ydb_producers (
            topic TEXT, producer BLOB, partition INTEGER NOT NULL, used_ms INTEGER NOT NULL,
            PRIMARY KEY (topic, producer)
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX front_ydb_producers_used ON front_ydb_producers (used_ms)",
    ),
    transactions.create,
)


def erase_topic(connection: Connection, topic: str) -> None:
    """Delete a topic's rows, within the transaction that deletes the topic."""
    for table in ("topics", "producers", "transaction_parts"):
        connection.execute(f"DELETE FROM front_ydb_{table} WHERE topic = ?", (topic,))


ERASERS = (erase_topic,)
