"""Tables that fronts bring into the node's database; each front's tables have their own version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anabranch_kit.errors import StoreError, StoreVersionError
from anabranch_kit.sql import tables
from bridges.catalog.database.sql import Connection, Migration, upsert

_CLAIM = "INSERT INTO front_numbers VALUES (?, ?, ?) ON CONFLICT DO NOTHING"


def migrate(connection: Connection, front: str, migrations: Sequence[Migration], *, newer: bool = False) -> None:
    """Bring the tables of ``front`` up to date, completely or not at all. Runs in the database's thread. With
    ``newer``, tables of a newer release are left as they are.

    Raises StoreVersionError (a newer release of the front wrote the tables) or StoreError (a migration touches a table
    or index whose name does not begin with ``front_NAME_``).
    """
    row = connection.execute("SELECT version FROM front_versions WHERE front = ?", (front,)).fetchone()
    version = 0 if row is None else row[0]
    if version > len(migrations) and not newer:
        raise StoreVersionError(
            f"the tables of front {front} have version {version}, and the one that is installed knows versions up to "
            f"{len(migrations)}: install the newer release again"
        )
    if version >= len(migrations):
        return
    tables.about_to_change(connection)
    before = _read_other_fronts(connection, front)
    for migration in migrations[version:]:
        migration(connection)
    if foreign := sorted(name for name, _ in before ^ _read_other_fronts(connection, front)):
        raise StoreError(f"front {front} changes {foreign[0]!r} in the node's database, which is not its own")
    connection.execute(upsert("front_versions", "front", "version"), (front, len(migrations)))


def claim_numbers(connection: Connection, front: str, formats: Iterable[int], kinds: Iterable[int]) -> None:
    """Record that these numbers of stored formats and kinds of writers belong to ``front``, for ever: stored data
    refers to them. Runs in the database's thread.

    Raises StoreError if a number belongs to another front.
    """
    for what, numbers in (("stored format", formats), ("kind of writers", kinds)):
        for number in numbers:
            connection.execute(_CLAIM, (what, number, front))
            row = connection.execute(
                "SELECT front FROM front_numbers WHERE what = ? AND number = ?", (what, number)
            ).fetchone()
            if row[0] != front:
                raise StoreError(
                    f"in this data directory {what} {number} is that of front {row[0]}, so front {front}, which has "
                    "the same number, cannot be used with it"
                )


def _read_other_fronts(connection: Connection, front: str) -> set[tuple[str, str]]:
    """Return name and definition of all tables and indexes that are not the front's. What SQLite makes for a table
    counts as the table's."""
    own = f"front_{front}_"
    return {
        (name, sql)
        for name, table, sql in tables.definitions(connection)
        if not table.startswith(own) or (sql and not name.startswith(own))
    }


def used(connection: Connection, front: str) -> bool:
    """Return whether any table of ``front`` has rows. Runs in the database's thread."""
    own = [name for name in tables.names(connection) if name.startswith(f"front_{front}_")]
    return any(connection.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone() is not None for name in own)
