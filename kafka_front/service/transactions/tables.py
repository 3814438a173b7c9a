"""The database tables of transactional ids: a row for each, and the places of its transaction while one is open.

A place is stored before the first batch of its transaction is in a log, and the decision before the first marker. So
whenever the process is killed, the next start knows each transaction that must be ended, and how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from bridges.catalog.database.sql import Connection, upsert
from bridges.errors import LogError
from bridges.log.transactions.open_transaction import Place
from kafka_front.service.transactions.transaction import DECIDED, Row, TxnState
from kafka_front.wire.errors import ErrorCode

MANY = 0.8
"""Part of ``kafka.transactional_ids`` above which operators are warned."""

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
    """Delete the places of a deleted topic: no transaction must be ended there."""
    connection.execute("DELETE FROM front_kafka_places WHERE topic = ?", (topic,))


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_create,)
"""Migrations from each version to the next; never change a released one."""
ERASERS: tuple[Callable[[Connection, str], None], ...] = (_erase_topic,)


def save(connection: Connection, row: Row, places: Iterable[Place], groups: Iterable[str], *, anew: bool) -> None:
    """Store a row and the places and groups that its transaction adds; ``anew``: after removing those of the last
    one."""
    name = row.transactional_id
    if anew:
        _forget_parts(connection, name)
    store(connection, [row])
    connection.executemany(_ADD_PLACE, [(name, *place) for place in places])
    connection.executemany(_ADD_GROUP, [(name, group) for group in groups])


def store(connection: Connection, rows: Iterable[Row]) -> None:
    connection.executemany(_STORE, rows)


def settle(connection: Connection, rows: Sequence[Row]) -> None:
    """Store the rows of ended transactions, and delete their places and groups."""
    for row in rows:
        _forget_parts(connection, row.transactional_id)
    store(connection, rows)


def forget(connection: Connection, rows: Sequence[Row]) -> None:
    """Delete ids."""
    for row in rows:
        _forget_parts(connection, row.transactional_id)
    connection.executemany(
        "DELETE FROM front_kafka_transactions WHERE transactional_id = ?", [(row.transactional_id,) for row in rows]
    )


def forget_unused(connection: Connection, rows: Iterable[Row]) -> None:
    """Delete resting ids, except those used since their rows were read."""
    connection.executemany(
        "DELETE FROM front_kafka_transactions WHERE transactional_id = ? AND epoch = ? AND updated_ms = ?",
        [(row.transactional_id, row.epoch, row.updated_ms) for row in rows],
    )


def count(connection: Connection) -> int:
    """Return the number of ids."""
    found: int = connection.execute("SELECT count(*) FROM front_kafka_transactions").fetchone()[0]
    return found


def names(connection: Connection) -> list[str]:
    """Return all ids."""
    return [name for (name,) in connection.execute("SELECT transactional_id FROM front_kafka_transactions")]


def after(connection: Connection, name: str, most: int) -> list[Row]:
    """Return the next rows by name."""
    query = f"SELECT {_COLUMNS} FROM front_kafka_transactions WHERE transactional_id > ? ORDER BY transactional_id"
    return [Row(*row) for row in connection.execute(f"{query} LIMIT {most}", (name,))]


def _forget_parts(connection: Connection, name: str) -> None:
    for table in ("places", "offsets"):
        connection.execute(f"DELETE FROM front_kafka_{table} WHERE transactional_id = ?", (name,))


Stored = tuple[list[Row], dict[str, list[Place]], dict[str, list[str]]]


def read(connection: Connection, idle: int, wanted: Callable[[str], bool] | None = None) -> Stored:
    """Return rows, and by transactional id the places and groups of open transactions. Only ``wanted`` ids; of those
    without an open transaction the ``idle`` last used ones."""
    select = f"SELECT {_COLUMNS} FROM front_kafka_transactions WHERE state"
    rows: list[Row] = []
    for query, most in (
        (f"{select} IN {_OPEN}", -1),
        (f"{select} NOT IN {_OPEN} ORDER BY updated_ms DESC", idle),
    ):
        found = (Row(*row) for row in connection.execute(query))
        some = (row for row in found if wanted is None or wanted(row.transactional_id))
        rows += some if most < 0 else islice(some, most)
    rows.reverse()  # the last used ones come last
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


# --- what other nodes ask of it ---------------------------------------------------------------------------------------


class NotAsBelieved(LogError):
    """A transaction is not in the required state; ``code`` is the error for its producer."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(f"the transaction is not as it was believed to be: {code.name}")
        self.code = code


def read_row(connection: Connection, name: str) -> Row | None:
    """Return the row of an id."""
    found = connection.execute(
        f"SELECT {_COLUMNS} FROM front_kafka_transactions WHERE transactional_id = ?", (name,)
    ).fetchone()
    return None if found is None else Row(*found)


def whole(connection: Connection, name: str) -> tuple[Row, list[Place], list[str]] | None:
    """Return an id with the places and groups of its transaction."""
    row = read_row(connection, name)
    return None if row is None else (row, *parts_of(connection, name))


def parts_of(connection: Connection, name: str) -> tuple[list[Place], list[str]]:
    """Return the places and groups of an id's open transaction."""
    places = connection.execute(
        "SELECT topic, partition FROM front_kafka_places WHERE transactional_id = ?", (name,)
    ).fetchall()
    groups = connection.execute("SELECT grp FROM front_kafka_offsets WHERE transactional_id = ?", (name,)).fetchall()
    return [(topic, partition) for topic, partition in places], [group for (group,) in groups]


def require_place(connection: Connection, name: str, producer_id: int, epoch: int, place: Place) -> None:
    """Check that a producer's open transaction includes a place. Raises NotAsBelieved."""
    _require_open(read_row(connection, name), producer_id, epoch)
    _require_part(
        connection, "front_kafka_places WHERE transactional_id = ? AND topic = ? AND partition = ?", name, *place
    )


def require_group(connection: Connection, name: str, producer_id: int, epoch: int, group: str) -> None:
    """Check that a producer's open transaction includes a group, and keep it open until the calling database
    transaction has ended. Raises NotAsBelieved."""
    _lock(connection, name)
    _require_open(read_row(connection, name), producer_id, epoch)
    _require_part(connection, "front_kafka_offsets WHERE transactional_id = ? AND grp = ?", name, group)


def is_decided(connection: Connection, name: str, producer_id: int, epoch: int, commit: bool) -> bool:
    """Return whether the transaction has this decision, and the database does not have its end yet."""
    row = read_row(connection, name)
    state = TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT
    return row is not None and (row.producer_id, row.epoch, row.state) == (producer_id, epoch, state)


def _lock(connection: Connection, name: str) -> None:
    # A write, so that a concurrent decision waits or conflicts. Serializable isolation alone could order that decision
    # after this transaction, since it reads none of the rows written here.
    connection.execute(
        "UPDATE front_kafka_transactions SET updated_ms = updated_ms WHERE transactional_id = ?", (name,)
    )


def _require_open(row: Row | None, producer_id: int, epoch: int) -> None:
    if row is None or row.producer_id != producer_id:
        raise NotAsBelieved(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if row.epoch != epoch:
        raise NotAsBelieved(ErrorCode.PRODUCER_FENCED)
    if row.state in DECIDED:
        raise NotAsBelieved(ErrorCode.CONCURRENT_TRANSACTIONS)
    if row.state != TxnState.ONGOING:
        raise NotAsBelieved(ErrorCode.INVALID_TXN_STATE)


def _require_part(connection: Connection, where: str, *key: object) -> None:
    if connection.execute(f"SELECT 1 FROM {where}", key).fetchone() is None:
        raise NotAsBelieved(ErrorCode.INVALID_TXN_STATE)
