"""Outcomes of transactions that have ended, kept in the database for later queries. Their number is bounded over all
streams together.

Rows refer to streams by id, so a recreated stream has none of the former's. Rows of a deleted stream go as they get
old.
"""

from __future__ import annotations

from uuid import UUID

from bridges.catalog.database.sql import Connection
from pravega_front.wire.controller import TxnState

MOST = 100_000
"""Most ended transactions whose outcome is kept."""
_TOLD = 1000


def keep(connection: Connection, topic_id: UUID, high: int, low: int, state: TxnState, most: int = MOST) -> None:
    """Store the outcome of a transaction, within the database transaction that ends it."""
    key = (topic_id.bytes, high, low)
    connection.execute("DELETE FROM front_pravega_outcomes WHERE stream = ? AND high = ? AND low = ?", key)
    query = "INSERT INTO front_pravega_outcomes (stream, high, low, state) VALUES (?, ?, ?, ?) RETURNING number"
    (number,) = connection.execute(query, (*key, int(state))).fetchone()
    connection.execute("DELETE FROM front_pravega_outcomes WHERE number <= ?", (number - most,))


def outcome(connection: Connection, topic_id: UUID, high: int, low: int) -> TxnState | None:
    """Return the outcome of a stream's transaction; None if it is not known."""
    query = "SELECT state FROM front_pravega_outcomes WHERE stream = ? AND high = ? AND low = ?"
    row = connection.execute(query, (topic_id.bytes, high, low)).fetchone()
    return None if row is None else TxnState(row[0])


def outcomes(connection: Connection, topic_id: UUID) -> list[tuple[int, int, TxnState]]:
    """Return the last thousand outcomes of a stream, the latest first, as (high, low, state)."""
    query = "SELECT high, low, state FROM front_pravega_outcomes WHERE stream = ? ORDER BY number DESC LIMIT ?"
    return [(high, low, TxnState(state)) for high, low, state in connection.execute(query, (topic_id.bytes, _TOLD))]
