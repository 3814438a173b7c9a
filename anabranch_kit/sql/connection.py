"""The database as closures and migrations see it, whichever engine it is: statements in SQL that every engine takes.

That is SQLite's SQL with ``?`` for values, without SQLite's own extensions: ``ON CONFLICT`` instead of ``OR REPLACE``,
``RETURNING`` instead of the last row's id, aggregates but no ``max`` of two values, no ``rowid``. Types in migrations
are SQLite's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

V = TypeVar("V", int, str)


class Cursor(Protocol):
    """The rows of one statement; valid only within its closure."""

    @property
    def rowcount(self) -> int:
        """Return the number of rows that a change has changed."""
        ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """The transaction that a closure is a part of."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor: ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Cursor: ...


Migration = Callable[[Connection], None]


def among(column: str, wanted: Collection[V]) -> tuple[str, list[V]]:
    """Return the condition that ``column`` is one of ``wanted``, of which there is at least one, and its values.

    The number of values is a power of two, so that there are few such statements to prepare.
    """
    values = list(wanted)
    values += values[:1] * ((1 << (len(values) - 1).bit_length()) - len(values))
    return f"{column} IN ({', '.join('?' * len(values))})", values


def migration(*statements: str) -> Migration:
    """Return a migration that runs ``statements``."""

    def run(connection: Connection) -> None:
        for statement in statements:
            connection.execute(statement)

    return run


def upsert(table: str, key: str, rest: str = "", *, rows: int = 1) -> str:
    """Return the statement that writes ``rows`` rows: ``key`` and ``rest`` name the columns, in the order of each row's
    values. A row with that key is replaced; without ``rest`` it is left as it is.
    """
    keys, others = key.split(), rest.split()
    columns = ", ".join((*keys, *others))
    marks = ", ".join([f"({', '.join('?' * (len(keys) + len(others)))})"] * rows)
    changes = ", ".join(f"{column} = excluded.{column}" for column in others)
    then = f"UPDATE SET {changes}" if others else "NOTHING"
    return f"INSERT INTO {table} ({columns}) VALUES {marks} ON CONFLICT ({', '.join(keys)}) DO {then}"
