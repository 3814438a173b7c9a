"""How transactions have ended is remembered for all streams together, a bounded number of them."""

from __future__ import annotations

import sqlite3
from uuid import uuid4

from pravega_front.service.transactions.outcomes import keep, outcome, outcomes
from pravega_front.tables import MIGRATIONS
from pravega_front.wire.controller import TxnState


def test_those_of_all_streams_share_one_bound_and_the_oldest_go_first() -> None:
    connection = sqlite3.connect(":memory:")
    for migration in MIGRATIONS:
        migration(connection)
    streams = [uuid4() for _ in range(5)]
    for number in range(100):
        state = TxnState.ABORTED if number % 3 else TxnState.COMMITTED
        keep(connection, streams[number % 5], 1 << 32, number, state, most=20)
        assert connection.execute("SELECT count(*) FROM front_pravega_outcomes").fetchone()[0] <= 20
    assert outcome(connection, streams[4], 1 << 32, 99) is TxnState.COMMITTED
    assert outcome(connection, streams[3], 1 << 32, 98) is TxnState.ABORTED
    assert outcome(connection, streams[3], 1 << 32, 99) is None, "of another stream"
    assert outcome(connection, streams[0], 1 << 32, 75) is None, "forgotten"
    assert outcomes(connection, streams[0]) == [
        (1 << 32, number, TxnState.ABORTED if number % 3 else TxnState.COMMITTED) for number in (95, 90, 85, 80)
    ]
    connection.close()
