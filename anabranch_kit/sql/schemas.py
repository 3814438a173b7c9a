"""Operations on whole schemas of a PostgreSQL: a schema is made under another name and renamed in one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from psycopg import sql

from anabranch_kit.errors import StoreError


class Schemas:
    """The schemas of the database at ``url``. All methods block, and raise StoreError where the database fails."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection]:
        try:
            with psycopg.connect(self._url, connect_timeout=5) as connection:
                yield connection
        except psycopg.Error as error:
            raise StoreError(f"cannot use cluster.database: {str(error).strip()}") from None

    def exists(self, schema: str) -> bool:
        """Return whether there is a schema of that name."""
        with self._connected() as connection:
            query = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
            return connection.execute(query, (schema,)).fetchone() is not None

    def cluster_of(self, schema: str) -> str:
        """Return the cluster whose metadata a schema has; empty where it names none."""
        with self._connected() as connection:
            table = connection.execute("SELECT to_regclass(%s)", (f'"{schema}".meta',)).fetchone()
            if table is None or table[0] is None:
                return ""
            query = sql.SQL("SELECT value FROM {}.meta WHERE key = 'cluster_id'").format(sql.Identifier(schema))
            row = connection.execute(query).fetchone()
            return "" if row is None else str(row[0])

    def drop(self, *schemas: str) -> None:
        """Drop schemas with everything in them, if they exist."""
        with self._connected() as connection:
            for schema in schemas:
                connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename all of them or none, from the names to the others, which must be free."""
        with self._connected() as connection:
            for old, new in names.items():
                query = sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(sql.Identifier(old), sql.Identifier(new))
                connection.execute(query)
