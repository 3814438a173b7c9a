"""The contract for fronts: what is refused before a node serves with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch_kit.errors import StoreError, StoreVersionError
from bridges.auth import ANONYMOUS, NODE, Everybody, Operation
from bridges.catalog.database.front_tables import migrate
from bridges.formats import FORMATS, FormatTaken, format_of, register
from bridges.formats.raw import RawFormat
from bridges.log.ledger.rules import SeqNoRule
from bridges.node.assembly import Node
from bridges.node.front import Front, FrontError, Listener, check
from bridges.node.settings.config import load
from bridges.node.settings.sections import SettingsError
from bridges.node.settings.setting import Section, setting
from tests.bridges.node.test_node import PuppetFront, settings_of


class ThingSettings(Section):
    size: int = setting(3, ge=1, description="How large.")


def front(called: str, *listeners: str, **attributes: Any) -> type[Front]:
    """A front of that name; its listeners have any ports."""
    ports = tuple(Listener(name, 5000 + index) for index, name in enumerate(listeners))
    return type("Made", (PuppetFront,), {"name": called, "listeners": ports, **attributes})


@pytest.fixture(autouse=True)
def formats() -> Iterator[None]:
    """Takes back what a test made known."""
    before = dict(FORMATS)
    yield
    FORMATS.clear()
    FORMATS.update(before)


@pytest.mark.parametrize(
    ("fronts", "complaint"),
    [
        ([front("Upper")], "cannot be called 'Upper'"),
        ([front("two_words")], "cannot be called"),
        ([front("log")], "the name 'log' of a front is taken"),
        ([front("a"), front("a")], "the name 'a' of a front is taken"),
        ([front("a", "x"), front("b", "x")], "front b: there is a listener 'x' already"),
        ([front("a", ledger_rules={3: SeqNoRule()})], "front a: 3 is no free kind of writers"),
        ([front("a", ledger_rules={256: SeqNoRule()})], "front a: 256 is no free kind of writers"),
        ([front(one, ledger_rules={128: SeqNoRule()}) for one in "ab"], "front b: 128 is no free kind of writers"),
        ([front("a", "console")], "there is a listener 'console' already"),
    ],
)
def test_fronts_that_do_not_go_together(fronts: list[type[Front]], complaint: str) -> None:
    with pytest.raises(FrontError, match=complaint):
        check(fronts, ["log"], ["console"])


def test_fronts_that_go_together() -> None:
    rules = {128: SeqNoRule(), 255: SeqNoRule()}
    check([front("a", "x", "y", ledger_rules=rules), front("b")], ["log"], ["console"])


def test_a_front_brings_a_section_of_settings(tmp_path: Path) -> None:
    thing = front("thing", settings=ThingSettings)
    loaded = load({"thing.size": "5"}, environ={}, directory=tmp_path, fronts=[thing])
    assert loaded.settings.find_section(thing) == ThingSettings(size=5)
    assert [(row.value, row.default) for row in loaded.table() if row.key == "thing.size"] == [("5", "3")]
    with pytest.raises(SettingsError, match=r"command line: thing\.size = '0'"):
        load({"thing.size": "0"}, environ={}, directory=tmp_path, fronts=[thing])
    with pytest.raises(SettingsError, match=r"unknown setting 'thing\.size'"):
        load({"thing.size": "5"}, environ={}, directory=tmp_path, fronts=[])
    with pytest.raises(FrontError, match="the name 'limits' of a front is taken"):
        load({}, environ={}, directory=tmp_path, fronts=[front("limits", settings=ThingSettings)])


def test_a_field_that_is_no_setting_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Wrong\.count is no setting"):

        class Wrong(Section):
            size: int = setting(3, description="How large.")
            count: int = 5


class Eight(RawFormat):
    id = 8  # type: ignore[assignment]
    name = "eight"


class AlsoEight(Eight):
    name = "also-eight"


class Four(RawFormat):
    id = 4  # type: ignore[assignment]
    name = "four"


def test_a_number_is_one_format_s() -> None:
    eight = Eight()
    register(eight)
    register(Eight())  # of a second node in this process
    assert format_of(8) is eight
    with pytest.raises(FormatTaken, match="'eight' and 'also-eight' both have number 8"):
        register(AlsoEight())
    with pytest.raises(FormatTaken, match="'four' has number 4; fronts' formats have 8 to 15"):
        register(Four())


async def test_a_node_does_not_start_with_two_formats_of_one_number(tmp_path: Path) -> None:
    fronts = [front("a", formats=(Eight(),)), front("b", formats=(AlsoEight(),))]
    with pytest.raises(FrontError, match="front b: stored formats"):
        await Node(settings_of(tmp_path), fronts=fronts).start()


async def test_a_node_does_not_start_when_two_tell_the_same_of_it(tmp_path: Path) -> None:
    def told(cls: type[Front], facts: object) -> dict[str, str]:
        return {"key": cls.name}

    fronts = [front(name, node_configuration=classmethod(told)) for name in ("a", "b")]
    with pytest.raises(FrontError, match="front b sets key"):
        await Node(settings_of(tmp_path), fronts=fronts).start()


# --- tables ---------------------------------------------------------------------------------------------------------


def statement(text: str) -> Callable[[sqlite3.Connection], None]:
    def migration(connection: sqlite3.Connection) -> None:
        connection.execute(text)

    return migration


ONE = statement("CREATE TABLE front_a_things (id INTEGER PRIMARY KEY, name TEXT UNIQUE) STRICT")
TWO = statement("CREATE INDEX front_a_by_name ON front_a_things (name)")


@pytest.fixture
def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE front_versions (front TEXT PRIMARY KEY, version INTEGER NOT NULL)")
    connection.execute("CREATE TABLE topics (name TEXT)")
    return connection


def test_tables_have_a_version_for_each_front(database: sqlite3.Connection) -> None:
    migrate(database, "a", [ONE])
    migrate(database, "a", [ONE])
    migrate(database, "a", [ONE, TWO])
    migrate(database, "b", [])
    assert database.execute("SELECT * FROM front_versions").fetchall() == [("a", 2)]
    with pytest.raises(StoreVersionError, match="tables of front a have version 2"):
        migrate(database, "a", [ONE])


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE things (id INTEGER)",
        "CREATE TABLE front_b_things (id INTEGER)",
        "CREATE INDEX front_a_names ON topics (name)",
        "CREATE INDEX names ON front_a_things (name)",
        "DROP TABLE topics",
        "ALTER TABLE topics ADD COLUMN more TEXT",
    ],
)
def test_a_front_keeps_to_its_own_tables(database: sqlite3.Connection, text: str) -> None:
    with pytest.raises(StoreError, match="which is not its own"):
        migrate(database, "a", [ONE, statement(text)])


@pytest.mark.parametrize("what", ["stored format 8", "kind of writers 128"])
async def test_numbers_that_the_data_has_from_one_front_are_taken_over_by_no_other(tmp_path: Path, what: str) -> None:
    """Also when the front whose they are is not installed any more."""
    numbers: dict[str, Any] = {"formats": [Eight()]} if "format" in what else {"ledger_rules": {128: SeqNoRule()}}
    for fronts in ([front("a", **numbers)], [], [front("a", **numbers)]):
        FORMATS.pop(8, None)
        node = Node(settings_of(tmp_path), fronts=fronts)
        await node.start()
        await node.stop()
    FORMATS.pop(8, None)
    complaint = f"{what} is that of front a, so front b, which has the same number, cannot be used"
    with pytest.raises(StoreError, match=complaint):
        await Node(settings_of(tmp_path), fronts=[front("b", **numbers)]).start()


async def test_tables_that_are_too_new_keep_a_node_from_starting(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[front("a", migrations=(ONE, TWO))])
    await node.start()
    await node.stop()
    with pytest.raises(StoreVersionError, match="install the newer release again"):
        await Node(settings_of(tmp_path), fronts=[front("a", migrations=(ONE,))]).start()


def test_everybody_may_do_everything() -> None:
    assert all(Everybody().allows(ANONYMOUS, operation, NODE) for operation in Operation)
