"""How transactions have ended, for those who ask later: in the database alone, a number of all streams together.

Rows are of streams by their ids: another stream of the name has none of them, and those of a deleted one go as they get
old.
"""

from __future__ import annotations

from uuid import UUID

from bridges.catalog.sql import Connection
from pravega_front.wire.controller import TxnState

MOST = 100_000
"""Transactions that have ended and whose fate can still be asked for."""
_TOLD = 1000


def keep(connection: Connection, topic_id: UUID, high: int, low: int, state: TxnState, most: int = MOST) -> None:
    """A transaction has ended, inside the transaction of the database that says so."""
    key = (topic_id.bytes, high, low)
    connection.execute("DELETE FROM front_pravega_outcomes WHERE stream = ? AND high = ? AND low = ?", key)
    query = "INSERT INTO front_pravega_outcomes (stream, high, low, state) VALUES (?, ?, ?, ?) RETURNING number"
    (number,) = connection.execute(query, (*key, int(state))).fetchone()
    connection.execute("DELETE FROM front_pravega_outcomes WHERE number <= ?", (number - most,))


def outcome(connection: Connection, topic_id: UUID, high: int, low: int) -> TxnState | None:
    """How a transaction of a stream has ended."""
    query = "SELECT state FROM front_pravega_outcomes WHERE stream = ? AND high = ? AND low = ?"
    row = connection.execute(query, (topic_id.bytes, high, low)).fetchone()
    return None if row is None else TxnState(row[0])


def outcomes(connection: Connection, topic_id: UUID) -> list[tuple[int, int, TxnState]]:
    """The last thousand of a stream, the latest first: (high, low, how it has ended)."""
    query = "SELECT high, low, state FROM front_pravega_outcomes WHERE stream = ? ORDER BY number DESC LIMIT ?"
    return [(high, low, TxnState(state)) for high, low, state in connection.execute(query, (topic_id.bytes, _TOLD))]
