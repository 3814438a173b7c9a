"""The sinks' tables in the node's database: committed batches of queries, attempts, and the partitions they write to.

The rows of an attempt are stored before its first batch is in a log, and are deleted when its transaction has ended in
all logs. So after a crash at any moment, the next start knows each transaction that must be ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from bridges.catalog.database.sql import Connection, upsert

Hold = Callable[[Connection], None]
"""The ownership check that begins each transaction about a query: it raises NotOwner if another node owns the query."""


class AttemptState(IntEnum):
    """The decision about an attempt; stored, so never renumber."""

    OPEN = 0
    COMMITTING = 1
    ABORTING = 2


UNTOLD = "*"
"""The target in rows of earlier versions, which knew a query by its owner and name only. It stands for every target,
and no topic has this name."""


class AttemptRow(NamedTuple):
    """An attempt of a task, identified by its producer id and epoch."""

    producer_id: int
    epoch: int
    owner: str
    query: str
    batch: int
    task: int
    state: int
    timeout_ms: int
    begun_ms: int
    target: str


class SinkRow(NamedTuple):
    """The last batch that a query has committed to a target. ``once``: the query writes a single batch.

    ``content`` is the batch's number, number of rows and digest of rows; "" if the sink sent none. It contains the
    number because a node of an earlier release moves ``batch`` on and leaves ``content`` as it is.
    """

    query: str
    target: str
    batch: int
    once: int
    used_ms: int
    content: str = ""


def create(connection: Connection) -> None:
    """Create the tables, as a migration."""
    for columns in (
        "sinks (owner TEXT, query TEXT, batch INTEGER NOT NULL, once INTEGER NOT NULL, used_ms INTEGER NOT NULL, "
        "PRIMARY KEY (owner, query))",
        "attempts (producer_id INTEGER, epoch INTEGER, owner TEXT NOT NULL, query TEXT NOT NULL, "
        "batch INTEGER NOT NULL, task INTEGER NOT NULL, state INTEGER NOT NULL, timeout_ms INTEGER NOT NULL, "
        "begun_ms INTEGER NOT NULL, PRIMARY KEY (producer_id, epoch))",
        "places (producer_id INTEGER, epoch INTEGER, topic TEXT, partition INTEGER, "
        "PRIMARY KEY (producer_id, epoch, topic, partition))",
    ):
        connection.execute(f"CREATE TABLE front_pipeline_{columns} STRICT")
    connection.execute("CREATE INDEX front_pipeline_places_of_topics ON front_pipeline_places (topic)")


def add_targets(connection: Connection) -> None:
    """Identify a query by its name and target instead of its owner; as a migration."""
    connection.execute(
        "CREATE TABLE front_pipeline_committed (query TEXT, target TEXT, batch INTEGER NOT NULL, "
        "once INTEGER NOT NULL, used_ms INTEGER NOT NULL, PRIMARY KEY (query, target)) STRICT"
    )
    connection.execute(
        "INSERT INTO front_pipeline_committed SELECT query, ?, max(batch), max(once), max(used_ms) "
        "FROM front_pipeline_sinks GROUP BY query",
        (UNTOLD,),
    )
    connection.execute("DROP TABLE front_pipeline_sinks")
    connection.execute(f"ALTER TABLE front_pipeline_attempts ADD COLUMN target TEXT NOT NULL DEFAULT '{UNTOLD}'")


def add_content(connection: Connection) -> None:
    """Add the digest with which repetitions are compared; as a migration."""
    connection.execute("ALTER TABLE front_pipeline_committed ADD COLUMN content TEXT NOT NULL DEFAULT ''")


def erase_topic(connection: Connection, topic: str) -> None:
    """Delete the places of a deleted topic: no transaction has to be ended there."""
    connection.execute("DELETE FROM front_pipeline_places WHERE topic = ?", (topic,))


def read(
    connection: Connection, wanted: Callable[[str], bool]
) -> tuple[list[SinkRow], list[AttemptRow], list[tuple[int, int, str, int]]]:
    """Return all rows of the queries for which ``wanted`` is true."""
    sinks = connection.execute(f"SELECT {', '.join(SinkRow._fields)} FROM front_pipeline_committed")
    known = [row for row in map(SinkRow._make, sinks) if wanted(row.query)]
    return known, *read_attempts(connection, wanted)


def read_attempts(
    connection: Connection, wanted: Callable[[str], bool]
) -> tuple[list[AttemptRow], list[tuple[int, int, str, int]]]:
    """Return the attempts of the queries for which ``wanted`` is true, and the partitions they write to."""
    query = f"SELECT {', '.join(AttemptRow._fields)} FROM front_pipeline_attempts ORDER BY producer_id"
    attempts = [row for row in map(AttemptRow._make, connection.execute(query)) if wanted(row.query)]
    keys = {(row.producer_id, row.epoch) for row in attempts}
    places = connection.execute("SELECT producer_id, epoch, topic, partition FROM front_pipeline_places")
    return attempts, [place for place in places if place[:2] in keys]


def is_decided(connection: Connection, producer_id: int, epoch: int, commit: bool) -> bool:
    """Return whether this end of an attempt was decided and has not been carried out everywhere."""
    query = "SELECT state FROM front_pipeline_attempts WHERE producer_id = ? AND epoch = ?"
    row = connection.execute(query, (producer_id, epoch)).fetchone()
    return row is not None and row[0] == (AttemptState.COMMITTING if commit else AttemptState.ABORTING)


def add_places(connection: Connection, attempt: AttemptRow, places: Iterable[tuple[str, int]], hold: Hold) -> None:
    """Store the partitions that an attempt is about to write to."""
    hold(connection)
    marks = ", ".join("?" * len(attempt))
    connection.execute(f"INSERT INTO front_pipeline_attempts VALUES ({marks}) ON CONFLICT DO NOTHING", attempt)
    rows = [(attempt.producer_id, attempt.epoch, *place) for place in places]
    connection.executemany("INSERT INTO front_pipeline_places VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", rows)


def decide(
    connection: Connection,
    sink: SinkRow | None,
    committed: Sequence[tuple[int, int]],
    aborted: Sequence[tuple[int, int]],
    hold: Hold,
) -> None:
    """Store the end of attempts, by producer id and epoch, and the query's last batch, in one transaction."""
    hold(connection)
    if sink is not None:
        connection.execute(upsert("front_pipeline_committed", "query target", "batch once used_ms content"), sink)
    query = "UPDATE front_pipeline_attempts SET state = ? WHERE producer_id = ? AND epoch = ?"
    connection.executemany(query, [(int(AttemptState.COMMITTING), *key) for key in committed])
    connection.executemany(query, [(int(AttemptState.ABORTING), *key) for key in aborted])


def forget_attempt(connection: Connection, key: tuple[int, int], hold: Hold) -> None:
    """Delete an attempt that has ended everywhere."""
    hold(connection)
    for table in ("places", "attempts"):
        connection.execute(f"DELETE FROM front_pipeline_{table} WHERE producer_id = ? AND epoch = ?", key)


def forget_sinks(connection: Connection, sinks: Sequence[SinkRow]) -> None:
    """Delete expired queries, unless they have committed something since."""
    query = "DELETE FROM front_pipeline_committed WHERE query = ? AND target = ? AND batch = ? AND used_ms = ?"
    connection.executemany(query, [(one.query, one.target, one.batch, one.used_ms) for one in sinks])
