from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from anabranch_kit.errors import StoreCorrupt, StoreError, StoreVersionError
from anabranch_kit.sql import thread
from anabranch_kit.sql.engine import SqlFailed
from bridges.catalog.database.sql import Database, DatabaseClosed, DatabaseDamaged, DatabaseError
from bridges.errors import StorageFull
from tests.databases import database, on_each_engine

APP = 0x1234


def table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT)")


def add_column(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE t ADD COLUMN w TEXT DEFAULT 'w'")


async def opened(path: Path, migrations=(table,), **options) -> Database:
    db = database(path, migrations, application_id=APP, **options)
    await db.open()
    return db


def insert(key: int, value: str = "v"):
    return lambda c: c.execute("INSERT INTO t (k, v) VALUES (?, ?) RETURNING k", (key, value)).fetchone()[0]


def keys(connection: sqlite3.Connection) -> list[int]:
    return [k for (k,) in connection.execute("SELECT k FROM t ORDER BY k")]


@on_each_engine
async def test_values_survive_reopening(tmp_path: Path) -> None:
    db = await opened(tmp_path / "a.db")
    assert await db.run(insert(7)) == 7
    await db.close()
    db = await opened(tmp_path / "a.db")
    assert await db.run(keys) == [7]
    await db.close()


@on_each_engine
async def test_closures_that_wait_share_a_commit(tmp_path: Path) -> None:
    db = await opened(tmp_path / "a.db")
    entered, release = threading.Event(), threading.Event()

    def slow(connection: sqlite3.Connection) -> None:
        entered.set()
        release.wait()

    first = db.submit(slow)
    await asyncio.get_running_loop().run_in_executor(None, entered.wait)
    rest = [db.submit(insert(k)) for k in range(50)]
    before = db.commits
    release.set()
    await first
    await asyncio.gather(*rest)
    assert db.commits == before + 2  # the slow one's, and one for the fifty that waited for it
    await db.close()


@on_each_engine
async def test_a_failing_closure_undoes_only_itself(tmp_path: Path) -> None:
    db = await opened(tmp_path / "a.db")

    def half(connection: sqlite3.Connection) -> None:
        insert(2)(connection)
        raise ValueError("no")

    results = await asyncio.gather(
        db.run(insert(1)), db.run(half), db.run(insert(1)), db.run(insert(3)), return_exceptions=True
    )
    assert results[0] == 1
    assert isinstance(results[1], ValueError)
    assert isinstance(results[2], sqlite3.IntegrityError | psycopg.IntegrityError)
    assert results[3] == 3
    assert await db.run(keys) == [1, 3]
    await db.close()


@on_each_engine
async def test_order_of_effects_is_order_of_submission(tmp_path: Path) -> None:
    db = await opened(tmp_path / "a.db")
    await db.run(insert(1, ""))
    for part in "abcdefgh":
        db.submit(lambda c, part=part: c.execute("UPDATE t SET v = v || ?", (part,)))
    assert await db.run(lambda c: c.execute("SELECT v FROM t").fetchone()[0]) == "abcdefgh"
    await db.close()


@on_each_engine
async def test_cursors_do_not_leave_the_thread(tmp_path: Path) -> None:
    db = await opened(tmp_path / "a.db")
    assert await db.run(lambda c: c.execute("SELECT 1")) is None

    def fails_with_a_cursor_in_its_frame(connection: sqlite3.Connection) -> None:
        cursor = connection.execute("SELECT 1")
        raise ValueError(str(cursor.fetchone()[0]))

    with pytest.raises(ValueError, match="1") as caught:
        await db.run(fails_with_a_cursor_in_its_frame)
    frames = caught.traceback[-1].frame
    assert "cursor" not in frames.f_locals
    await db.close()


@on_each_engine
async def test_what_closures_give_is_not_kept_by_the_failure_of_another(tmp_path: Path) -> None:
    class Large:
        pass

    db = await opened(tmp_path / "a.db")
    together = threading.Event()
    first = db.submit(lambda c: together.wait())
    one, other = db.submit(lambda c: Large()), db.submit(insert("no number"))  # one group, behind the first
    together.set()
    await first
    with pytest.raises((sqlite3.Error, psycopg.Error)) as failure:
        await other
    given = weakref.ref(await one)
    del one, other
    assert await db.run(keys) == []
    assert given() is None, f"as long as {failure.value!r} is looked at"
    await db.close()


@on_each_engine
async def test_close_executes_what_is_queued_and_refuses_the_rest(tmp_path: Path) -> None:
    db = await opened(tmp_path / "a.db")
    waiting = [db.submit(insert(k)) for k in range(10)]
    await db.close()
    assert [future.result() for future in waiting] == list(range(10))
    with pytest.raises(DatabaseClosed):
        await db.run(insert(11))
    await db.close()


@on_each_engine
async def test_results_that_come_together_are_given_in_many_turns_in_the_order_of_submission(tmp_path: Path) -> None:
    db = await opened(tmp_path / "a.db")
    loop = asyncio.get_running_loop()
    release = threading.Event()
    first = db.submit(lambda c: release.wait())
    turn, given = 0, Counter[int]()
    order: list[int] = []

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(order) < 2000:
            loop.call_soon(count)

    async def caller(key: int) -> None:
        await db.run(insert(key))
        given[turn] += 1
        order.append(key)

    loop.call_soon(count)
    callers = [asyncio.create_task(caller(key)) for key in range(2000)]
    await asyncio.sleep(0)
    release.set()
    await first
    await asyncio.gather(*callers)
    assert order == list(range(2000))
    assert max(given.values()) < 100
    await db.close()


@on_each_engine
async def test_whoever_waits_has_an_answer_when_the_database_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "GIVEN_AT_ONCE", 1)
    db = await opened(tmp_path / "a.db")
    waiting = [db.submit(lambda c: None) for _ in range(1000)]
    await db.close()
    assert all(future.done() for future in waiting)


@on_each_engine
async def test_migrations_run_once_in_order(tmp_path: Path) -> None:
    db = await opened(tmp_path / "a.db")
    await db.run(insert(1))
    await db.close()
    db = await opened(tmp_path / "a.db", (table, add_column))
    assert await db.run(lambda c: c.execute("SELECT k, v, w FROM t").fetchall()) == [(1, "v", "w")]
    await db.close()
    db = await opened(tmp_path / "a.db", (table, add_column))
    await db.close()


@on_each_engine
async def test_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    db = await opened(tmp_path / "a.db", (table, add_column))
    await db.close()
    with pytest.raises(StoreVersionError, match="newer release"):
        await opened(tmp_path / "a.db", (table,))
    db = await opened(tmp_path / "a.db", (table, add_column))
    await db.close()


async def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    foreign = sqlite3.connect(tmp_path / "a.db")
    foreign.execute("CREATE TABLE x (y)")
    foreign.commit()
    foreign.close()
    with pytest.raises(StoreCorrupt, match="another application"):
        await opened(tmp_path / "a.db")


async def test_garbage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(StoreCorrupt, match="not a readable database"):
        await opened(tmp_path / "a.db")


async def test_a_path_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        await opened(tmp_path / "missing" / "a.db")


async def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    db = await opened(tmp_path / "a.db")
    (pages,) = await db.run(lambda c: c.execute("PRAGMA page_count").fetchone())
    await db.run(lambda c: c.execute(f"PRAGMA max_page_count = {pages + 2}").fetchone())
    with pytest.raises(StorageFull):
        await db.run(insert(1, "x" * 100_000))
    await db.run(insert(2))  # reading and small writes go on
    assert await db.run(keys) == [2]
    await db.close()


async def test_a_commit_that_fails_is_told_to_all_of_its_group(tmp_path: Path) -> None:
    failures: list[Exception] = []
    db = await opened(tmp_path / "a.db", on_failed=failures.append)
    good, bad = db.submit(insert(1)), db.submit(lambda c: c.execute("ROLLBACK"))
    with pytest.raises(DatabaseError):
        await bad
    if not (shared := good.exception()):
        assert await db.run(keys) == [1]  # they were not in one group
    else:
        assert isinstance(shared, DatabaseError)
    assert await db.run(insert(2)) == 2
    assert failures == []  # a defect of a closure says nothing about the disk
    await db.close()


async def test_damage_is_told_to_the_node(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = await opened(path)
    await db.run(lambda c: c.executemany("INSERT INTO t VALUES (?, ?)", [(n, "x" * 1000) for n in range(5000)]))
    await db.close()
    failures: list[Exception] = []
    db = await opened(path, on_failed=failures.append)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(DatabaseDamaged):
        await db.run(lambda c: c.execute("SELECT sum(length(v)) FROM t").fetchone())
    assert len(failures) == 1
    assert isinstance(failures[0], DatabaseDamaged)
    await db.close()


CHILD = """
import asyncio, sqlite3, sys
from pathlib import Path
from tests.databases import database, on_each_engine

def table(c):
    c.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT)")

async def main():
    db = database(Path(sys.argv[1]), (table,), application_id=0x1234)
    await db.open()
    (start,) = await db.run(lambda c: c.execute("SELECT coalesce(max(k), -1) + 1 FROM t").fetchone())
    async def writer(lane):
        key = start + lane
        while True:
            await db.run(lambda c: c.execute("INSERT INTO t VALUES (?, 'v')", (key,)))
            print(key, flush=True)
            key += 8
    await asyncio.gather(*(writer(lane) for lane in range(8)))

asyncio.run(main())
"""


@on_each_engine
async def test_what_was_acknowledged_survives_kill(tmp_path: Path) -> None:
    acknowledged: set[int] = set()
    for round_ in range(4):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "a.db")], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(20 + 13 * round_):
            acknowledged.add(int(child.stdout.readline()))
        os.kill(child.pid, signal.SIGKILL)
        acknowledged.update(int(line) for line in child.stdout.read().splitlines() if line)
        child.wait()
    db = await opened(tmp_path / "a.db")
    assert acknowledged <= set(await db.run(keys))
    await db.close()


async def test_a_thread_that_meets_what_it_cannot_undo_answers_everybody_and_the_node_hears_of_it(
    tmp_path: Path,
) -> None:
    failures: list[DatabaseDamaged] = []

    def failed(error: DatabaseDamaged) -> None:
        failures.append(error)
        raise RuntimeError("a bug in whoever is told")

    db = await opened(tmp_path / "a.db", on_failed=failed)
    await db.run(insert(1))
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
    entered, release = threading.Event(), threading.Event()

    def break_it(connection: sqlite3.Connection) -> None:
        entered.set()
        release.wait()
        connection.close()

    together = [db.submit(break_it), db.submit(insert(2))]
    await asyncio.to_thread(entered.wait)
    later = db.submit(insert(3))
    release.set()
    for future in (*together, later, db.submit(insert(4))):
        with pytest.raises(DatabaseDamaged):
            await asyncio.wait_for(future, 10)
    assert failures
    assert told
    await db.close()
    db = await opened(tmp_path / "a.db")
    assert await db.run(keys) == [1]
    await db.close()


@on_each_engine
async def test_what_is_asked_at_a_start_is_asked_again_when_it_met_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = await opened(tmp_path / "node.db")
    execute, tries = db.engine.execute, []

    def meets_others(group, refuse) -> None:
        tries.append(len(group))
        if len(tries) > 3:
            execute(group, refuse)
            return
        for job in group:
            job.error = SqlFailed("it has met other transactions")

    monkeypatch.setattr(db.engine, "execute", meets_others)
    with pytest.raises(DatabaseError):
        await db.run(lambda connection: connection.execute("SELECT 1").fetchone())
    assert await db.surely(lambda connection: connection.execute("SELECT 1").fetchone()[0]) == 1
    assert len(tries) == 4
    assert db.refused == 3
    await db.close()


@on_each_engine
async def test_what_cannot_come_good_is_not_asked_again(tmp_path: Path) -> None:
    db = await opened(tmp_path / "node.db")
    asked = []

    def wrong(connection: sqlite3.Connection) -> None:
        asked.append(1)
        raise KeyError("wrong")

    with pytest.raises(KeyError, match="wrong"):
        await db.surely(wrong)
    await db.close()
    with pytest.raises(DatabaseClosed):
        await db.surely(wrong)
    assert asked == [1]
