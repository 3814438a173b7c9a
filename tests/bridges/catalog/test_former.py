"""Numbers of what was deleted are not given again, however many names come and go."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.catalog.database.schema import MIGRATIONS
from bridges.catalog.topics.former import first_number, remember


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with made() as connection:
        yield connection
    connection.close()


def made() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for migration in MIGRATIONS:
        migration(connection)
    return connection


def test_each_name_goes_on_where_it_was(db: sqlite3.Connection) -> None:
    assert first_number(db, "scope/a") == 0
    remember(db, "scope/a", 3)
    remember(db, "scope/b", 1)
    remember(db, "scope/a", 2)  # lower numbers were given meanwhile
    assert [first_number(db, name) for name in ("scope/a", "scope/b", "scope/c")] == [3, 1, 0]


def test_names_that_are_forgotten_leave_the_number_below_which_none_begins(db: sqlite3.Connection) -> None:
    remember(db, "long", 7, most=3)
    for number in range(5):
        remember(db, f"name-{number}", 1, most=3)
    assert db.execute("SELECT count(*) FROM former_numbers").fetchone() == (3,)
    assert first_number(db, "long") == first_number(db, "new") == 7
    assert first_number(db, "name-4") == 1


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 4)), max_size=60))
def test_no_number_is_ever_given_twice_under_a_name(lives: list[tuple[str, int]]) -> None:
    connection = made()
    given_so_far: dict[str, int] = {}
    for name, partitions in lives:
        first = first_number(connection, name)
        assert first >= given_so_far.get(name, 0)
        given_so_far[name] = first + partitions
        remember(connection, name, first + partitions, most=2)
        (count,) = connection.execute("SELECT count(*) FROM former_numbers").fetchone()
        assert count <= 2
    connection.close()
