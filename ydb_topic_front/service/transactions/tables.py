"""Rows of transactions that are being committed, in the node's database.

An open transaction has no row: it ends with its node. A row is stored before the first batch is in a log, and deleted
when the transaction has ended everywhere. So after a crash at any moment, the next coordinator knows what to end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

from bridges.catalog.database.sql import Connection, upsert
from bridges.log.transactions.open_transaction import Place

Hold = Callable[[Connection], None]
"""Ownership check that begins each transaction of the database about a session."""
Reader = tuple[str, str, int]
"""Consumer, topic and partition of a position."""


class State(IntEnum):
    """The decision about a transaction; stored, so never renumber."""

    OPEN = 0
    COMMITTING = 1
    ABORTING = 2


class Row(NamedTuple):
    """A transaction; ``readers`` are the positions that its commit has moved, as JSON."""

    id: str
    session: str
    producer_id: int
    epoch: int
    state: int
    readers: str = "[]"


class Part(NamedTuple):
    """The writes of a transaction to a partition for one of YDB's producers, with the last seq_no (0: no producer)."""

    topic: str
    partition: int
    producer: bytes
    last: int


_SAVE = upsert("front_ydb_transactions", "id", "session producer_id epoch state readers")


def create(connection: Connection) -> None:
    """Create the tables, as a migration."""
    connection.execute(
        "CREATE TABLE front_ydb_transactions (id TEXT PRIMARY KEY, session TEXT NOT NULL, "
        "producer_id INTEGER NOT NULL, epoch INTEGER NOT NULL, state INTEGER NOT NULL, readers TEXT NOT NULL) "
        "STRICT, WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE front_ydb_transaction_parts (topic TEXT, partition INTEGER, producer BLOB, id TEXT, "
        "last INTEGER NOT NULL, PRIMARY KEY (topic, partition, producer, id)) STRICT, WITHOUT ROWID"
    )
    connection.execute("CREATE INDEX front_ydb_parts_of ON front_ydb_transaction_parts (id)")


def read(connection: Connection, wanted: Callable[[str], bool]) -> list[tuple[Row, list[Part]]]:
    """Return the transactions of the sessions for which ``wanted`` is true."""
    columns = ", ".join(Row._fields)
    rows = [Row(*row) for row in connection.execute(f"SELECT {columns} FROM front_ydb_transactions")]
    of_id = "SELECT topic, partition, producer, last FROM front_ydb_transaction_parts WHERE id = ?"
    return [
        (row, [Part(*part) for part in connection.execute(of_id, (row.id,))]) for row in rows if wanted(row.session)
    ]


def committer(connection: Connection, place: Place, producer: bytes) -> str | None:
    """Return the transaction with writes of a producer to a partition that is being committed, None if there is
    none."""
    query = "SELECT id FROM front_ydb_transaction_parts WHERE topic = ? AND partition = ? AND producer = ? LIMIT 1"
    row = connection.execute(query, (*place, producer)).fetchone()
    return None if row is None else str(row[0])


def begin(connection: Connection, row: Row, parts: Iterable[Part], hold: Hold) -> str | None:
    """Store an undecided transaction with its parts, unless another one with writes of the same producer is being
    committed: return that one. Their seq_nos can be compared only with what is decided."""
    hold(connection)
    parts = list(parts)
    for part in parts:
        other = committer(connection, part[:2], part.producer) if part.producer else None
        if other is not None:
            return other
    connection.execute(_SAVE, row)
    connection.executemany(
        "INSERT INTO front_ydb_transaction_parts (topic, partition, producer, last, id) VALUES (?, ?, ?, ?, ?)",
        [(*part, row.id) for part in parts],
    )
    return None


def decided(connection: Connection, id: str) -> State | None:
    """Return the stored decision about a transaction; None if it has no row."""
    row = connection.execute("SELECT state FROM front_ydb_transactions WHERE id = ?", (id,)).fetchone()
    return None if row is None else State(row[0])


def decide(connection: Connection, row: Row) -> None:
    """Store a decision."""
    connection.execute(_SAVE, row)


def forget(connection: Connection, id: str, hold: Hold) -> None:
    """Delete a transaction that has ended everywhere."""
    hold(connection)
    for table in ("transactions", "transaction_parts"):
        connection.execute(f"DELETE FROM front_ydb_{table} WHERE id = ?", (id,))


def encode_readers(readers: Iterable[Reader]) -> str:
    """Encode positions for a row."""
    return json.dumps(list(readers))


def decode_readers(raw: str) -> list[Reader]:
    """Decode positions of a row."""
    return [(str(consumer), str(topic), int(partition)) for consumer, topic, partition in json.loads(raw)]
