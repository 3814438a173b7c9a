"""What tables a database has."""

from __future__ import annotations

from sbp_back.sql.connection import Connection
from sbp_back.sql.row_sums import unwatch


def definitions(connection: Connection) -> list[tuple[str, str, str]]:
    """(name, table that it belongs to, definition) of all tables and indexes; the definition is empty for what the
    engine has made for a table by itself."""
    return connection.execute("SELECT name, tbl_name, coalesce(sql, '') FROM sqlite_schema").fetchall()


def names(connection: Connection) -> list[str]:
    """The names of all tables."""
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]


def about_to_change(connection: Connection) -> None:
    """To be called before the definition of a table is changed."""
    unwatch(connection)
