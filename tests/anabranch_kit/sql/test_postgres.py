"""PostgreSQL as an engine, where it is not like SQLite: connections break, servers stop, others are there."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from anabranch_kit.errors import StoreCorrupt, StoreError, StoreVersionError
from anabranch_kit.sql import dialect
from anabranch_kit.sql import postgres as engine
from anabranch_kit.sql.postgres import PostgresEngine, Silent, patient
from bridges.catalog.database.sql import Connection, Database, DatabaseError
from tests.postgres import Postgres

NAME = ".s.PGSQL.5432"


def table(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT) STRICT, WITHOUT ROWID")


def column(connection: Connection) -> None:
    connection.execute("ALTER TABLE t ADD COLUMN w BLOB NOT NULL DEFAULT x'00ff'")


def insert(key: int, value: str = "v"):
    return lambda c: c.execute("INSERT INTO t (k, v) VALUES (?, ?)", (key, value)).rowcount


def keys(connection: Connection) -> list[int]:
    return [k for (k,) in connection.execute("SELECT k FROM t ORDER BY k")]


def session_of(engine: PostgresEngine) -> Any:
    """Return the engine's own session at the server, to do there what its process may do at any moment."""
    assert engine._db is not None
    return engine._db


async def opened(
    url: str, schema: str, migrations=(table,), patience_s: float = 5.0, application_id: int = 1
) -> Database:
    engine = PostgresEngine(url, migrations, schema=schema, application_id=application_id, patience_s=patience_s)
    db = Database(engine)
    await db.open()
    return db


FATAL = b"SFATAL\0VFATAL\0C08P01\0Mserver conn crashed?\0\0"
POOLER = b"E" + (len(FATAL) + 4).to_bytes(4) + FATAL + b"Z\0\0\0\5I"
"""What a pooler says for a server that it has lost, and goes on."""


class Wire:
    """A way to the server that breaks as a certain text comes by, and how; ``broken`` counts that.

    ``breaks`` are pairs, worked off in order: the text, and "before" the server has it, "after" the server has it and
    has answered, or "fatal": after, but FATAL is the answer and the connection stays open.
    """

    def __init__(self, server: Postgres, directory: Path) -> None:
        self.url = f"postgresql://anabranch@/postgres?host={directory}"
        self.breaks: list[tuple[bytes, str]] = []
        self.broken = 0
        self._there = str(server.directory / NAME)
        self._here = str(directory / NAME)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Wire]:
        async with await asyncio.start_unix_server(self._serve, self._here):
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self._there)
        back = asyncio.create_task(self._pump(far_reader, writer))
        try:
            while data := await reader.read(65536):
                how = self.breaks.pop(0)[1] if self.breaks and self.breaks[0][0] in data else ""
                if how:
                    self.broken += 1
                    back.cancel()
                    await asyncio.wait([back])
                if how == "before":
                    break
                far_writer.write(data)
                if how:
                    await far_reader.read(65536)  # it has answered
                if how == "fatal":
                    writer.write(POOLER)
                    await reader.read(65536)  # until the client has given it up, or goes on
                if how:
                    break
        finally:
            back.cancel()
            far_writer.close()
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


QUESTION = b"infinity"
BREAKS = {
    "before": [(b"COMMIT", "before")],
    "after": [(b"COMMIT", "after")],
    "fatal": [(b"COMMIT", "fatal")],
    "before, and the question's answer is lost": [(b"COMMIT", "before"), (QUESTION, "after")],
    "before, and the question is answered by FATAL": [(b"COMMIT", "before"), (QUESTION, "fatal")],
    "after, and questions are lost in all ways": [
        (b"COMMIT", "after"),
        (QUESTION, "before"),
        (QUESTION, "fatal"),
        (QUESTION, "after"),
    ],
}


@pytest.mark.parametrize("how", BREAKS)
async def test_a_commit_whose_connection_breaks_takes_effect_once(postgres: Postgres, tmp_path: Path, how: str) -> None:
    async with Wire(postgres, tmp_path).open() as wire:
        db = await opened(wire.url, f"broken_{list(BREAKS).index(how)}")
        await db.run(insert(1))
        for round_ in range(3):
            wire.breaks = list(BREAKS[how])
            together = [db.submit(insert(10 * round_ + key)) for key in range(2, 6)]
            assert await asyncio.wait_for(asyncio.gather(*together), 30) == [1, 1, 1, 1]
            assert not wire.breaks
        assert wire.broken == 3 * len(BREAKS[how])
        assert await db.run(keys) == [1, *(10 * round_ + key for round_ in range(3) for key in range(2, 6))]
        await db.close()


async def test_a_commit_that_is_lost_each_time_is_not_told_as_done(postgres: Postgres, tmp_path: Path) -> None:
    async with Wire(postgres, tmp_path).open() as wire:
        db = await opened(wire.url, "always_lost")
        await db.run(insert(1))
        wire.breaks = [(b"COMMIT", "before")] * 10
        with pytest.raises(DatabaseError, match="COMMIT was answered by an error"):
            await asyncio.wait_for(db.run(insert(2)), 30)
        assert not wire.breaks
        assert await db.run(keys) == [1]
        await db.close()


async def test_who_asks_about_a_commit_keeps_it_from_happening_later(postgres: Postgres) -> None:
    """The transaction is still under way at the server when it is asked for, and ends after that."""
    db = await opened(postgres.url(), "late")
    engine = db.engine
    assert isinstance(engine, PostgresEngine)
    late = PostgresEngine(postgres.url(), (), schema="late_lock")
    late.open()
    late_session = session_of(late)
    late_session.execute("SET search_path = late")
    late_session.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
    late_session.execute("INSERT INTO t VALUES (7, 'v')")
    await db.run(
        lambda c: c.execute("INSERT INTO sql_commits (session, number) VALUES (?, ?) ON CONFLICT DO NOTHING", ("s", 3))
    )
    with pytest.raises(Exception, match=r"sql_commits_pkey|serialize"):
        late_session.execute("INSERT INTO sql_commits (session, number) VALUES ('s', 3)")
    late.close()
    assert await db.run(keys) == []
    await db.close()


async def test_a_server_that_stops_and_starts_again_is_told_as_retriable(tmp_path: Path) -> None:
    server = Postgres()
    try:
        db = await opened(server.url(), "stops")
        await db.run(insert(1))
        server.stop()
        for key in (2, 3):
            with pytest.raises(DatabaseError) as told:
                await db.run(insert(key))
            assert told.value.retriable
        assert (db.refused, db.waiting) == (2, 0)
        server.start()
        async with asyncio.timeout(10):
            while True:
                try:
                    await db.run(insert(4))
                    break
                except DatabaseError:
                    await asyncio.sleep(0.05)
        assert await db.run(keys) == [1, 4]
        await db.close()
    finally:
        server.close()


async def test_a_server_that_does_not_answer_is_given_up_and_used_again(tmp_path: Path) -> None:
    server = Postgres()
    try:
        db = await opened(server.url(), "hangs", patience_s=0.5)
        await db.run(insert(1))
        (backend,) = await db.run(lambda c: c.execute("SELECT pg_backend_pid()").fetchone())
        os.kill(backend, signal.SIGSTOP)
        try:
            with pytest.raises(DatabaseError, match=r"cannot be reached|not answered|in use"):
                await asyncio.wait_for(db.run(insert(2)), 10)
        finally:
            os.kill(backend, signal.SIGCONT)
        async with asyncio.timeout(20):
            while True:
                try:
                    await db.run(insert(3))
                    break
                except DatabaseError:
                    await asyncio.sleep(0.05)
        assert await db.run(keys) == [1, 3]
        await db.close()
    finally:
        server.close()


async def test_no_statement_is_compiled(postgres: Postgres) -> None:
    """What is asked several times a second reads tables of one row, and tables of which it needs all."""
    db = await opened(postgres.url(), "compiled")
    for statement in ("SELECT k, v FROM t", "SELECT a.k, b.v FROM t a LEFT JOIN t b ON TRUE"):
        rows = await db.run(lambda c, asked=f"EXPLAIN {statement}": c.execute(asked).fetchall())  # type: ignore[misc]
        assert not [line for (line,) in rows if "JIT" in line], rows
    await db.close()


async def _beside_a_sleeper(postgres: Postgres, schema: str) -> None:
    """A process that was stopped before the end of what it sends: the server takes that for work without an end."""
    db = await opened(postgres.url(), schema, patience_s=1.0)
    await db.run(insert(1, "0"))
    stopped = PostgresEngine(postgres.url(), (), schema=f"{schema}_other", patience_s=1.0)
    stopped.open()
    sleeper = session_of(stopped)
    computing = PostgresEngine(postgres.url(), (), schema=f"{schema}_third", patience_s=10.0)
    computing.open()
    computing_session = session_of(computing)
    pid = computing_session.info.backend_pid
    work = asyncio.create_task(asyncio.to_thread(computing_session.execute, "SELECT pg_sleep(8)"))
    with suppress(psycopg.OperationalError), sleeper.pipeline():  # which is ended
        sleeper.execute("BEGIN")
        sleeper.execute(f"UPDATE {schema}.t SET v = '1' WHERE k = 1").rowcount  # noqa: B018
        sleeper.pgconn.send_flush_request()
        sleeper.pgconn.flush()
        query = "SELECT state FROM pg_stat_activity WHERE pid = ?"
        state = "idle"
        async with asyncio.timeout(20):  # until the server has read what it was sent, and waits for the rest
            while state == "idle":
                (state,) = await db.run(lambda c: c.execute(query, (sleeper.info.backend_pid,)).fetchone())
        assert state == "active", "what the server does not end by itself"
        update = "UPDATE t SET v = '2' WHERE k = 1 AND v = '0'"
        try:
            async with asyncio.timeout(20):
                assert await db.run(lambda c: c.execute(update).rowcount) == 1
            (state,) = await db.run(lambda c: c.execute(query, (pid,)).fetchone())
            assert state == "active", "others are left alone"
        finally:
            sleeper.close()
            computing_session.cancel()
            with suppress(psycopg.errors.QueryCanceled):
                await work
            computing.close()
            await db.close()


async def test_a_start_on_a_busy_machine_is_not_taken_for_a_client_that_sleeps(postgres: Postgres) -> None:
    def limit(connection: Connection) -> str:
        (found,) = connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
        return str(found)

    limits: list[str] = []
    db = await opened(postgres.url(), "busy", (table, lambda connection: limits.append(limit(connection))))
    limits.append(await db.run(limit))
    assert limits == ["1min", "4s"]
    await db.close()


async def test_who_stops_in_a_transaction_keeps_nobody_waiting(postgres: Postgres) -> None:
    await _beside_a_sleeper(postgres, "sleeper")


async def test_without_ending_who_has_stopped_others_wait(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresEngine, "_end_sleepers", lambda *_: 0)
    with pytest.raises(DatabaseError, match="others hold what it changes"):
        await _beside_a_sleeper(postgres, "sleepers_stay")


async def test_what_waits_for_others_at_work_is_told_so(postgres: Postgres) -> None:
    db = await opened(postgres.url(), "held", patience_s=0.5)
    await db.run(insert(1, "0"))
    other = PostgresEngine(postgres.url(), (), schema="held_other", patience_s=10.0)
    other.open()
    other_session = session_of(other)
    other_session.execute("BEGIN")
    other_session.execute("UPDATE held.t SET v = '1' WHERE k = 1")
    work = asyncio.create_task(asyncio.to_thread(other_session.execute, "SELECT pg_sleep(2)"))
    with pytest.raises(DatabaseError, match="others hold what it changes") as told:
        await asyncio.wait_for(db.run(lambda c: c.execute("UPDATE t SET v = '2' WHERE k = 1").rowcount), 10)
    assert told.value.retriable
    await work
    other_session.execute("COMMIT")
    assert await db.run(lambda c: c.execute("SELECT v FROM t").fetchone()[0]) == "1"
    other.close()
    await db.close()


async def test_what_meets_another_transaction_runs_again(postgres: Postgres) -> None:
    db = await opened(postgres.url(), "meets")
    await db.run(insert(1, "0"))
    other = PostgresEngine(postgres.url(), (), schema="meets_other")
    other.open()
    other_session = session_of(other)
    runs = 0

    def add(connection: Connection) -> None:
        nonlocal runs
        runs += 1
        (value,) = connection.execute("SELECT v FROM t WHERE k = ?", (1,)).fetchone()
        if runs == 1:
            other_session.execute("UPDATE meets.t SET v = '10' WHERE k = 1")
        connection.execute("UPDATE t SET v = ? WHERE k = ?", (str(int(value) + 1), 1))

    await db.run(add)
    assert runs == 2
    assert await db.run(lambda c: c.execute("SELECT v FROM t").fetchone()[0]) == "11"
    other.close()
    await db.close()


async def test_who_may_use_a_schema(postgres: Postgres) -> None:
    db, other = await asyncio.gather(*(opened(postgres.url(), "whose", (table, column)) for _ in range(2)))
    await db.run(insert(1))
    assert await other.run(lambda c: c.execute("SELECT w FROM t").fetchone()) == (b"\x00\xff",)
    await other.close()
    await db.close()
    with pytest.raises(StoreVersionError, match="newer release"):
        await opened(postgres.url(), "whose", (table,))
    with pytest.raises(StoreCorrupt, match="another application"):
        await opened(postgres.url(), "whose", (table, column), application_id=2)
    with pytest.raises(StoreError, match="cannot use database nowhere"):
        await opened(postgres.url("nowhere"), "whose")


async def test_text_of_every_kind_comes_back(postgres: Postgres) -> None:
    db = await opened(postgres.url(), "text")
    texts = ["", "a\0b", "\ue000", "\ue0000", "\0\ue000\0", "?'\"%s\\", "\U0001f600"]
    for number, text in enumerate(texts):
        await db.run(insert(number, text))
        assert await db.run(lambda c, t=text: c.execute("SELECT k FROM t WHERE v = ?", (t,)).fetchall()) == [(number,)]
    assert await db.run(lambda c: [v for (v,) in c.execute("SELECT v FROM t ORDER BY k")]) == texts
    await db.close()


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (
            "SELECT offset FROM t WHERE a = ? AND b = '?' AND c = ?",
            "SELECT \"offset\" FROM t WHERE a = $1 AND b = '?' AND c = $2",
        ),
        ("DELETE FROM t INDEXED BY i LIMIT 1 OFFSET ?", "DELETE FROM t LIMIT 1 OFFSET $1"),
        (
            "CREATE TABLE t (a INTEGER PRIMARY KEY AUTOINCREMENT, end BLOB NOT NULL DEFAULT x'00', "
            "u TEXT DEFAULT 'user') STRICT, WITHOUT ROWID",
            'CREATE TABLE t (a BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, "end" BYTEA NOT NULL DEFAULT '
            "'\\x00'::bytea, u TEXT COLLATE \"C\" DEFAULT 'user')",
        ),
    ],
)
def test_statements_in_its_words(statement: str, told: str) -> None:
    assert dialect.translated(statement) == told


async def test_several_that_change_the_same_rows_all_get_their_turn(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conflicting transactions run again for a time, however many races a starved process loses, and without the
    statements that the driver prepared in a transaction that was rolled back.
    """
    monkeypatch.setattr(engine, "TRIES", 1)
    databases = [await opened(postgres.url(), "crowded") for _ in range(3)]
    await databases[0].run(insert(1, "0"))

    def count(connection: Connection) -> int:
        (value,) = connection.execute("SELECT v FROM t WHERE k = ?", (1,)).fetchone()
        connection.execute("UPDATE t SET v = ? WHERE k = ?", (str(int(value) + 1), 1))
        return int(value)

    async def often(db: Database) -> list[int]:
        return [await db.run(count) for _ in range(60)]

    found = await asyncio.gather(*map(often, databases))
    assert sorted(value for values in found for value in values) == list(range(180))
    for db in databases:
        await db.close()


class Answering:
    """A server's answer in parts, and a clock. ``hears``: for each look what the socket is ready for, and the seconds
    that passed before."""

    def __init__(self, hears: list[tuple[int, float]]) -> None:
        self.now = 100.0
        self.parts = sum(1 for ready, _ in hears if ready)
        self.hears = hears

    def clock(self) -> float:
        return self.now

    def answer(self):
        for _ in range(self.parts):
            while not (yield 1):
                pass
        return "answered"

    def wait(self, patience_s: float) -> str:
        gen = patient(self.answer(), patience_s, self.clock)
        next(gen)
        for ready, seconds in self.hears:
            self.now += seconds
            try:
                gen.send(ready)
            except StopIteration as ended:
                return ended.value
        raise AssertionError("it still waits")


def test_an_answer_in_many_parts_may_take_longer_than_a_server_may_be_silent() -> None:
    assert Answering([(1, 0.05)] * 400).wait(5.0) == "answered"


def test_a_server_that_is_silent_is_given_up() -> None:
    with pytest.raises(Silent):
        Answering([(0, 0.1)] * 60 + [(1, 0.1)]).wait(5.0)


def test_time_in_which_this_process_did_not_run_is_not_the_servers() -> None:
    assert Answering([(0, 0.1), (0, 20.0), (0, 7.0), (1, 0.1), (0, 20.0), (1, 0.0)]).wait(5.0) == "answered"
