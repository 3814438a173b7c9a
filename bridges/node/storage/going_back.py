"""Recovery after a database, or its bucket, has gone back (bridges/cluster/marks.py) and no newer one exists.

A node or cluster can go on with a database that is older than the bucket: what the database does not know stays in the
bucket unused, and numbers that may have been given out are skipped. It cannot go on with a bucket that is older than
the database if the database has ranges in logs that the bucket does not know. Then the database has to go back to
before the bucket as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from anabranch_kit.disk.files import Files
from anabranch_kit.errors import StoreError
from bridges.catalog.database.counters import identify
from bridges.catalog.database.sql import Connection, Database
from bridges.cluster import tables
from bridges.cluster.marks import Marks, WentBackError, totals
from bridges.node.settings.config import Settings
from bridges.node.storage import backend, databases
from bridges.node.storage.data_dir import DATABASE, DataDirectory
from bridges.node.workers.worker import add_number, left_behind, store_of
from sbp_back.placement_driver.pd_service import STATE_FILE
from sbp_back.placement_driver.state import in_postgres, in_sqlite, skip_numbers
from sbp_back.range_server.object_log.ownership.logs import Logs
from sbp_back.range_server.object_log.range_objects.moved import go_back
from sbp_back.range_server.store.options import MOVED

STREAMS_AHEAD = 100_000
"""Ids of streams and range servers to skip. They may have been given out, and a stream with a reused id would find the
objects of another topic in the bucket.
"""


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[tuple[DataDirectory, Database, Marks]]:
    directory = DataDirectory(settings.data_dir)
    try:
        db = Database(databases.engine_of(settings, directory, second=True))
        await db.open()
        try:
            await databases.check_cluster(db, directory)
            yield directory, db, Marks(directory.mark, backend.bucket_of(settings.sbp), await db.run(identify))
        finally:
            await db.close()
    finally:
        directory.release()


async def describe_loss(settings: Settings) -> str:
    """Return what has gone back, as a sentence; empty if nothing has, or can. Changes nothing.

    Raises StoreError, OSError, and errors of the database.
    """
    has_file = (settings.data_dir / DATABASE).exists() and backend.bucket_of(settings.sbp) is not None
    if not settings.cluster.database and not has_file:
        return ""
    async with _opened(settings) as (_, db, marks):
        try:
            await marks.begin(db)
        except WentBackError as error:
            return str(error)
    return ""


async def accept(settings: Settings) -> None:
    """Have the nodes go on with the database and the bucket as they are: lost data is lost, and no number is reused.

    Raises as :func:`describe_loss` does, and StoreError if a node runs.
    """
    url = settings.cluster.database
    async with _opened(settings) as (directory, db, marks):
        await asyncio.to_thread(marks.load)
        driver = Database(in_postgres(url) if url else in_sqlite(store_of(directory, 0) / STATE_FILE))
        await driver.open()
        try:
            await driver.run(partial(_require_logs, settings))
            await (_accept_in_cluster(settings, db, marks) if url else db.run(marks.accept))
            await driver.run(lambda connection: skip_numbers(connection, STREAMS_AHEAD))
            await asyncio.to_thread(_open_disks, settings, directory)
        finally:
            await driver.close()
        await asyncio.to_thread(marks.begin_anew, await db.run(totals))


def _open_disks(settings: Settings, directory: DataDirectory) -> None:
    """Let the logs on the disk be opened, whose old data is in the bucket, though they may have gone back."""
    bucket = backend.bucket_of(settings.sbp)
    if bucket is None:
        return
    for number in (0, *left_behind(directory, 0, 1)):
        name = add_number(settings.sbp.object_log, number)
        go_back(store_of(directory, number) / MOVED, Files(), bucket.below(f"disks/{name}"))


async def _accept_in_cluster(settings: Settings, db: Database, marks: Marks) -> None:
    before = await db.run(lambda connection: tables.read_cluster(connection, -1))
    await asyncio.sleep(settings.cluster.lease_s)

    def go_on(connection: Connection) -> None:
        tables.lock(connection)
        for member in tables.read_cluster(connection, -1).members:
            if before.beats_of(member.start) != member.beats:
                raise StoreError(f"node {member.node_id} of this cluster runs: stop all of its nodes first")
        marks.accept(connection)
        tables.empty(connection)

    await db.run(go_on)


def _require_logs(settings: Settings, connection: Connection) -> None:
    bucket = backend.bucket_of(settings.sbp)
    if bucket is None or settings.sbp.durability != "object":
        return
    logs = Logs(bucket)
    for query, is_adopted in (("SELECT DISTINCT server_id FROM replicas", False), (_ADOPTED, True)):
        for (server_id,) in connection.execute(query).fetchall():
            name = logs.of_server(server_id)
            if name is None or (is_adopted and not logs.last_claim(name).by):
                raise StoreError(
                    f"{bucket.url} does not know of range server {server_id} what the database does: have the database "
                    "go back as well, to what it was before this bucket, and accept that"
                )


_ADOPTED = "SELECT server_id FROM adopted"
