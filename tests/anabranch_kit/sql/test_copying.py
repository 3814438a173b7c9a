"""Tables on their way from SQLite to PostgreSQL: all rows, compared, and counters that give no number twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from anabranch_kit.sql import copying
from anabranch_kit.sql.connection import Connection
from anabranch_kit.sql.copying import TablesDiffer
from anabranch_kit.sql.engine import Engine
from anabranch_kit.sql.postgres import PostgresEngine
from anabranch_kit.sql.row_sums import make_table
from anabranch_kit.sql.sqlite import SqliteEngine
from tests.postgres import Postgres


def _tables(connection: Connection) -> None:
    for statement in (
        "CREATE TABLE upper (name TEXT PRIMARY KEY, more INTEGER) STRICT, WITHOUT ROWID",
        "CREATE TABLE counted (id INTEGER PRIMARY KEY, value TEXT NOT NULL) STRICT",
        "CREATE TABLE given (id INTEGER PRIMARY KEY AUTOINCREMENT, value TEXT NOT NULL) STRICT",
        "CREATE TABLE one (value INTEGER NOT NULL) STRICT",
        # Before the other one in the order of names.
        "CREATE TABLE beneath (owner TEXT NOT NULL REFERENCES upper (name), n INTEGER NOT NULL, value BLOB NOT NULL, "
        "PRIMARY KEY (owner, n)) STRICT, WITHOUT ROWID",
        "INSERT INTO one VALUES (7)",
    ):
        connection.execute(statement)


MIGRATIONS = (make_table, _tables)
NAMES = ("", "a", "Z", "\x00", "nul\x00l", "\ue000", "\U0001f600", "ü'\"?")


def _fill(connection: Connection) -> None:
    connection.executemany("INSERT INTO upper VALUES (?, ?)", [(name, None) for name in NAMES])
    for owner in NAMES:
        rows = [(owner, number - 50, bytes([number % 256]) * (number * 37 % 5000)) for number in range(400)]
        connection.executemany("INSERT INTO beneath VALUES (?, ?, ?)", rows)
    connection.execute("INSERT INTO counted VALUES (41, 'x')")
    connection.executemany("INSERT INTO given (value) VALUES (?)", [(str(number),) for number in range(30)])
    connection.execute("DELETE FROM given WHERE id > 10")
    connection.execute("UPDATE one SET value = -(1 << 62)")


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Engine]:
    engine = SqliteEngine(tmp_path / "source.db", MIGRATIONS)
    engine.open()
    with closing(engine):
        copying.run(engine, _fill)
        yield engine


@pytest.fixture
def target(postgres: Postgres) -> Iterator[Engine]:
    engine = PostgresEngine(postgres.made(), MIGRATIONS, schema="copied")
    engine.open()
    with closing(engine):
        yield engine


def _new(connection: Connection) -> list[int]:
    return [
        connection.execute(f"INSERT INTO {table} (value) VALUES ('new') RETURNING id").fetchone()[0]
        for table in ("counted", "given")
    ]


def test_all_rows_are_there_and_counters_go_on_above_all_that_were_given(source: Engine, target: Engine) -> None:
    for _ in range(2):  # what an earlier run left is replaced
        found = copying.copy(source, target, lambda _: None)
        assert {name: digest.rows for name, digest in found.items()} == {
            "upper": len(NAMES),
            "beneath": 400 * len(NAMES),
            "counted": 1,
            "given": 10,
            "one": 1,
        }
    for table in ("upper", "beneath", "counted", "given", "one"):
        query = f"SELECT * FROM {table}"

        def rows(connection: Connection, query: str = query) -> list[Any]:
            return connection.execute(query).fetchall()

        assert sorted(copying.run(source, rows), key=repr) == sorted(copying.run(target, rows), key=repr)
    assert copying.run(target, _new) == [42, 31]


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM beneath WHERE n = 7",
        "UPDATE beneath SET n = 1000 WHERE n = 7",
        "UPDATE upper SET more = 1 WHERE name = 'a'",
        "INSERT INTO counted VALUES (2, 'y')",
        "UPDATE one SET value = 8",
    ],
)
def test_a_copy_that_is_not_the_same_is_noticed(
    source: Engine, target: Engine, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    restart = copying.restart_counters

    def damaged(*arguments: Any) -> None:
        restart(*arguments)
        copying.run(target, lambda connection: connection.execute(damage).rowcount)

    monkeypatch.setattr(copying, "restart_counters", damaged)
    with pytest.raises(TablesDiffer, match=f"table {damage.split()[2 if damage[0] in 'DI' else 1]} has"):
        copying.copy(source, target, lambda _: None)


def test_tables_of_one_side_only_are_refused(source: Engine, target: Engine) -> None:
    copying.run(source, lambda connection: connection.execute("CREATE TABLE more (a INTEGER PRIMARY KEY)").rowcount)
    with pytest.raises(TablesDiffer, match="table more is on one side only"):
        copying.copy(source, target, lambda _: None)
