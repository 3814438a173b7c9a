"""The tables of a database."""

from __future__ import annotations

import sqlite3

from anabranch_kit.sql.connection import Connection
from anabranch_kit.sql.row_sums import unwatch

_IN_SQLITE = "SELECT name, tbl_name, coalesce(sql, '') FROM sqlite_schema"
_IN_POSTGRES = """
    SELECT t.relname, t.relname, (
        SELECT string_agg(format('%s %s %s', a.attname, a.atttypid, a.attnotnull), ', ')
        FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
    )
    FROM pg_class t WHERE t.relnamespace = current_schema()::regnamespace AND t.relkind = 'r'
    UNION ALL
    SELECT c.relname, t.relname, CASE WHEN EXISTS (SELECT 1 FROM pg_constraint k WHERE k.conindid = c.oid) THEN ''
        ELSE pg_get_indexdef(c.oid) END
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
    WHERE c.relnamespace = current_schema()::regnamespace
"""
_NAMES_IN_POSTGRES = """
    SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
"""


def definitions(connection: Connection) -> list[tuple[str, str, str]]:
    """Return (name, table that it belongs to, definition) of all tables and indexes; the definition is empty for
    indexes that the engine has made by itself.
    """
    in_sqlite = isinstance(connection, sqlite3.Connection)
    return connection.execute(_IN_SQLITE if in_sqlite else _IN_POSTGRES).fetchall()


def names(connection: Connection) -> list[str]:
    in_sqlite = isinstance(connection, sqlite3.Connection)
    query = "SELECT name FROM sqlite_schema WHERE type = 'table'" if in_sqlite else _NAMES_IN_POSTGRES
    return [name for (name,) in connection.execute(query)]


def about_to_change(connection: Connection) -> None:
    """Prepare for a change of a table's definition; call it before."""
    if isinstance(connection, sqlite3.Connection):
        unwatch(connection)
