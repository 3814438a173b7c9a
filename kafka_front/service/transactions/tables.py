"""What the database keeps of transactional ids: a row of each, and where its transaction writes while one is open.

A place is there before the first batch of its transaction is in a log, and the decision before the first marker. So
whatever the process is killed in, the next start knows each transaction that somebody has to end, and how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bridges.catalog.sql import Connection, upsert
from bridges.log.open_transaction import Place
from kafka_front.service.transactions.transaction import DECIDED, Row, TxnState

_COLUMNS = ", ".join(Row._fields)
_STORE = upsert("front_kafka_transactions", Row._fields[0], " ".join(Row._fields[1:]))
_ADD_PLACE = upsert("front_kafka_places", "transactional_id topic partition")
_ADD_GROUP = upsert("front_kafka_offsets", "transactional_id grp")
_OPEN = (int(TxnState.ONGOING), *map(int, DECIDED))


def _create(connection: Connection) -> None:
    for columns in (
        "transactions (transactional_id TEXT PRIMARY KEY, producer_id INTEGER NOT NULL, epoch INTEGER NOT NULL, "
        "last_epoch INTEGER NOT NULL, previous_id INTEGER NOT NULL, next_id INTEGER NOT NULL, "
        "timeout_ms INTEGER NOT NULL, state INTEGER NOT NULL, started_ms INTEGER NOT NULL, "
        "updated_ms INTEGER NOT NULL)",
        "places (transactional_id TEXT, topic TEXT, partition INTEGER, "
        "PRIMARY KEY (transactional_id, topic, partition))",
        "offsets (transactional_id TEXT, grp TEXT, PRIMARY KEY (transactional_id, grp))",
    ):
        connection.execute(f"CREATE TABLE front_kafka_{columns} STRICT")
    connection.execute("CREATE INDEX front_kafka_places_of_topics ON front_kafka_places (topic)")


def _erase_topic(connection: Connection, topic: str) -> None:
    """A topic is deleted: no transaction has to be ended there."""
    connection.execute("DELETE FROM front_kafka_places WHERE topic = ?", (topic,))


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_create,)
"""What brings each version to the next; never change one that was released."""
ERASERS: tuple[Callable[[Connection, str], None], ...] = (_erase_topic,)


def save(connection: Connection, row: Row, places: Iterable[Place], groups: Iterable[str], *, anew: bool) -> None:
    """Keep a row and what its transaction adds; ``anew``: to nothing, whatever is left of the last one."""
    name = row.transactional_id
    if anew:
        _forget_parts(connection, name)
    store(connection, [row])
    connection.executemany(_ADD_PLACE, [(name, *place) for place in places])
    connection.executemany(_ADD_GROUP, [(name, group) for group in groups])


def store(connection: Connection, rows: Iterable[Row]) -> None:
    """Keep rows as they are now."""
    connection.executemany(_STORE, rows)


def settle(connection: Connection, rows: Sequence[Row]) -> None:
    """Transactions have ended as their rows say: nothing of them is open."""
    for row in rows:
        _forget_parts(connection, row.transactional_id)
    store(connection, rows)


def forget(connection: Connection, rows: Sequence[Row]) -> None:
    """Forget ids."""
    for row in rows:
        _forget_parts(connection, row.transactional_id)
    connection.executemany(
        "DELETE FROM front_kafka_transactions WHERE transactional_id = ?", [(row.transactional_id,) for row in rows]
    )


def _forget_parts(connection: Connection, name: str) -> None:
    for table in ("places", "offsets"):
        connection.execute(f"DELETE FROM front_kafka_{table} WHERE transactional_id = ?", (name,))


Stored = tuple[list[Row], dict[str, list[Place]], dict[str, list[str]]]


def read(connection: Connection) -> Stored:
    """Rows, and by transactional id the places and groups of those that have something open."""
    rows = [Row(*row) for row in connection.execute(f"SELECT {_COLUMNS} FROM front_kafka_transactions")]
    is_open = {row.transactional_id for row in rows if row.state in _OPEN}
    places: dict[str, list[Place]] = {}
    for name, topic, partition in connection.execute(
        "SELECT transactional_id, topic, partition FROM front_kafka_places"
    ):
        if name in is_open:
            places.setdefault(name, []).append((topic, partition))
    groups: dict[str, list[str]] = {}
    for name, group in connection.execute("SELECT transactional_id, grp FROM front_kafka_offsets"):
        if name in is_open:
            groups.setdefault(name, []).append(group)
    return rows, places, groups
