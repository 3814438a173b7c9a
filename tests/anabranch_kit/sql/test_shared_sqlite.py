"""Several processes have one file of SQLite's."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from anabranch_kit.errors import StoreCorrupt
from anabranch_kit.sql.connection import Connection
from anabranch_kit.sql.engine import Job, SqlFailed
from anabranch_kit.sql.notices import Notices, mailboxes
from anabranch_kit.sql.row_sums import make_table
from anabranch_kit.sql.sqlite import SqliteEngine
from tests.kit.waiting import until

PROCESSES = 4
EACH = 60


def tables(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER NOT NULL)")
    connection.execute("INSERT INTO t VALUES (0, 0)")


def opened(path: Path, patience_s: float = 5.0, notices: Notices | None = None) -> SqliteEngine:
    engine = SqliteEngine(path, (tables, make_table), shared=True, patience_s=patience_s, notices=notices)
    engine.open()
    return engine


def ran(engine: SqliteEngine, *statements: str) -> Job:
    def work(connection: Connection) -> object:
        found = None
        for statement in statements:
            found = connection.execute(statement).fetchone()
        return found

    job = Job(work, False, False)
    engine.execute([job], lambda failure: None)
    return job


def counts(path: Path, number: int) -> None:
    """One of the processes."""
    engine = opened(path, 60.0)
    for index in range(EACH):
        job = ran(
            engine, "UPDATE t SET v = v + 1 WHERE k = 0", f"INSERT INTO t VALUES ({1 + number * EACH + index}, 1)"
        )
        assert job.error is None, job.error
    engine.close()


def test_what_processes_do_at_once_is_all_there_and_its_sums_are_right(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    program = "import sys; from pathlib import Path; from tests.anabranch_kit.sql.test_shared_sqlite import counts; "
    program += "counts(Path(sys.argv[1]), int(sys.argv[2]))"
    command = [sys.executable, "-c", program, str(path)]
    # They make the file and its tables at once, too.
    running = [subprocess.Popen([*command, str(number)]) for number in range(PROCESSES)]
    assert [one.wait(120) for one in running] == [0] * PROCESSES
    engine = opened(path)  # compares the sums
    assert ran(engine, "SELECT v FROM t WHERE k = 0").result == (PROCESSES * EACH,)
    assert ran(engine, "SELECT count(*) FROM t").result == (1 + PROCESSES * EACH,)
    engine.close()


def test_a_process_that_is_killed_in_its_turn_leaves_it_to_others(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    engine = opened(path)
    program = (
        "import sys, time; from pathlib import Path; from tests.anabranch_kit.sql.test_shared_sqlite import *; "
        "e = opened(Path(sys.argv[1])); e.connection.execute('BEGIN IMMEDIATE'); "
        "e.connection.execute('UPDATE t SET v = 7'); print('here', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"here\n"
        impatient = opened(path, 0.2)
        began = time.monotonic()
        refused = ran(impatient, "UPDATE t SET v = 1")
        assert isinstance(refused.error, SqlFailed)
        assert 0.2 <= time.monotonic() - began < 5
        impatient.close()
        killing = threading.Timer(0.3, os.kill, (other.pid, signal.SIGKILL))
        killing.start()
        assert ran(engine, "UPDATE t SET v = v + 1 WHERE k = 0 RETURNING v").result == (1,)
    engine.close()
    opened(path).close()


def test_tables_that_another_process_makes_have_sums(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    first, second = opened(path), opened(path)
    assert ran(first, "CREATE TABLE more (k INTEGER PRIMARY KEY)").error is None
    assert ran(second, "INSERT INTO more VALUES (5)").error is None
    assert ran(first, "INSERT INTO more VALUES (6)").error is None
    first.close()
    second.close()
    opened(path).close()
    # What is changed behind their backs is found all the same.
    with sqlite3.connect(path) as behind:
        behind.execute("UPDATE more SET k = 8 WHERE k = 5")
    behind.close()
    with pytest.raises(StoreCorrupt, match="table more"):
        opened(path)


async def test_others_are_told_of_what_was_committed_and_of_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    boxes = mailboxes(2)
    writing = [box for _, box in boxes]
    mine, others = (Notices(box, writing) for box, _ in boxes)
    engine = opened(path, notices=mine)
    told = 0

    async def listen() -> None:
        nonlocal told
        async for _ in others.listen():
            told += 1

    listening = asyncio.create_task(listen())
    await until(lambda: told)  # it has begun
    assert ran(engine, "UPDATE t SET v = 3", "SELECT tell_others('x')").error is None
    await until(lambda: told >= 2)
    assert ran(engine, "UPDATE t SET v = 4").error is None
    undone = ran(engine, "UPDATE t SET v = 9", "SELECT tell_others('x')", "INSERT INTO t VALUES (0, 0)")
    assert isinstance(undone.error, sqlite3.IntegrityError)
    assert ran(engine, "UPDATE t SET v = 5").error is None
    await asyncio.sleep(0.05)  # nothing is told within this time
    assert told == 2
    # Who does not read keeps nobody from writing.
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening
    for _ in range(2000):
        mine.tell()
    engine.close()
    for pair in boxes:
        for box in pair:
            box.close()
