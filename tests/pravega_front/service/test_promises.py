"""A sealed partition waits for the commits and merges that were decided, and for nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from bridges.catalog.database.sql import Connection
from pravega_front.front import PravegaFront
from pravega_front.tables import COMMITTING, MIGRATIONS
from pravega_front.wire.controller import TxnState
from tests.databases import database, on_each_engine


@on_each_engine
async def test_decided_commits_and_merges_are_promised_to_their_targets(tmp_path: Path) -> None:
    assert COMMITTING == TxnState.COMMITTING
    (promise,) = PravegaFront.promises
    rows: tuple[tuple[str, TxnState, list[int], list[int], list[int]], ...] = (
        ("open", TxnState.OPEN, [0, 1], [], []),
        ("plain", TxnState.COMMITTING, [0, 1], [], [0]),
        ("scaled", TxnState.COMMITTING, [0, 1], [4, 1], []),
        ("aborted", TxnState.ABORTING, [0, 1], [], []),
    )
    insert = (
        "INSERT INTO front_pravega_transactions (topic, high, low, state, lease_ms, created_ms, hidden, parents, "
        "targets, merged) VALUES (?, 0, 0, ?, 1, 1, ?, ?, ?, ?)"
    )

    def promised(db: Connection) -> dict[str, list[int]]:
        for topic, state, parents, targets, merged in rows:
            stored = json.dumps(targets) if targets else ""
            db.execute(insert, (topic, int(state), topic, json.dumps(parents), stored, json.dumps(merged)))
        db.execute("INSERT INTO front_pravega_merges VALUES ('source', 'merged', 2, 7, 1, -1, '[]')")
        topics = [*(row[0] for row in rows), "merged"]
        return {topic: [number for number in range(6) if promise(db, topic, number)] for topic in topics}

    db = database(tmp_path / "tables.db", MIGRATIONS, application_id=1)
    await db.open()
    found = await db.run(promised)
    await db.close()
    assert found == {"open": [], "plain": [1], "scaled": [1, 4], "aborted": [], "merged": [2]}
