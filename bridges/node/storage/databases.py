"""The database of a node's metadata: a SQLite file in its data directory, or the PostgreSQL database of a cluster."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path

from anabranch_kit.errors import StoreError
from anabranch_kit.sql.engine import Engine
from anabranch_kit.sql.sqlite import SqliteEngine
from bridges.catalog.database.counters import identify
from bridges.catalog.database.schema import APPLICATION_ID, HAS_CHECKSUMS, MIGRATIONS
from bridges.catalog.database.sql import Connection, Database, DatabaseError
from bridges.node.settings.config import Settings
from bridges.node.storage.data_dir import BACKUP, DataDirectory, write_file
from bridges.node.workers.worker import Worker

Admit = Callable[[Connection, int], None]
"""Called with the version of the existing tables before anything is changed; raises StoreVersionError."""

SCHEMA = "anabranch"
"""PostgreSQL's schema of the tables."""

_TRIES = 20
_AGAIN_S = 0.1
_RESERVE_BYTES = 8 * 1024 * 1024
"""Reserved disk space, for the commits that delete topics when the disk is full."""


def engine_of(
    settings: Settings, directory: DataDirectory, worker: Worker | None = None, *, second: bool = False
) -> Engine:
    """Return the engine of the node's database, not yet open.

    A ``second`` engine, in a process that has opened one already, is for transactions that lock the rows they decide
    by. Raises StoreError if the directory has the metadata of a node outside of a cluster, or is a backup.
    """
    if (directory.path / BACKUP).exists():
        raise StoreError(
            f"{directory.path} is a backup, or was not restored to the end: 'anabranch restore BACKUP --data DIR' "
            "makes a data directory of a backup, in an empty one"
        )
    if directory.database.exists() and directory.cluster.exists():
        raise StoreError(
            f"{directory.path} is on its way into cluster {told_by(directory.cluster)}: run 'anabranch "
            "upgrade-to-cluster' with the same settings again, which finishes that"
        )
    url = settings.cluster.database
    if not url:
        if directory.cluster.exists():
            raise StoreError(
                f"{directory.path} is of a node of cluster {told_by(directory.cluster)}, whose metadata is in "
                "PostgreSQL: start the node with cluster.database"
            )
        return in_file(settings, directory, worker, second=second)
    if directory.database.exists():
        raise StoreError(
            f"{directory.database} has the metadata of a node by itself, and cluster.database leads to other metadata: "
            "give the node an empty data_dir, start it without cluster.database, or have its data taken along by "
            "'anabranch upgrade-to-cluster'"
        )
    from bridges.cluster import versions  # imported only in a cluster

    admit = partial(versions.admit, node_id=settings.node.id, ours=versions.OURS)
    # Heartbeats queue behind a transaction that waits for a lock: others must not take this node for dead meanwhile.
    waits_s = settings.cluster.lease_s / 2 if second else math.inf
    return in_postgres(url, second=second, admit=admit, waits_s=waits_s)


def in_file(
    settings: Settings, directory: DataDirectory, worker: Worker | None = None, *, second: bool = False
) -> Engine:
    """Return the engine of the database in a data directory; see :func:`engine_of`."""
    return SqliteEngine(
        directory.database,
        MIGRATIONS,
        application_id=APPLICATION_ID,
        # The second engine gives out epochs, none of which may be given out twice, whatever is lost.
        synchronous="NORMAL" if settings.sbp.durability == "os" and not second else "FULL",
        unwatched=HAS_CHECKSUMS,
        reserve_bytes=_RESERVE_BYTES,
        shared=worker is not None,
        notices=None if worker is None else worker.notices,
        checked=second,
    )


def in_postgres(
    url: str, schema: str = SCHEMA, *, second: bool = False, admit: Admit | None = None, waits_s: float = math.inf
) -> Engine:
    """Return the engine of a cluster's database, or of one to be created in another schema; see :func:`engine_of`.

    Raises StoreError for an invalid URL.
    """
    from anabranch_kit.sql.postgres import PostgresEngine  # imported only in a cluster

    return PostgresEngine(
        url,
        MIGRATIONS,
        schema=schema,
        application_id=APPLICATION_ID,
        serializable=not second,
        admit=admit,
        waits_s=waits_s,
    )


async def check_cluster(db: Database, directory: DataDirectory) -> None:
    """Raise StoreError if the directory belongs to another cluster than the database. Raises errors of the database."""
    cluster_id = await db.run(identify)
    known = await asyncio.to_thread(told_by, directory.cluster)
    if known not in ("", cluster_id):
        raise StoreError(
            f"{directory.path} is of a node of cluster {known}, and cluster.database leads to cluster {cluster_id}: "
            "lead the node to its own database, or give it an empty data_dir"
        )


async def join_cluster(db: Database, directory: DataDirectory) -> None:
    """Record in the directory that it belongs to the database's cluster. Raises OSError, and errors of the database."""
    await asyncio.to_thread(write_file, directory.cluster, f"{await db.run(identify)}\n")


def told_by(path: Path) -> str:
    """Return the cluster id in a file of a data directory, empty without the file."""
    try:
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        return ""


async def inherit(db: Database, nodes: Collection[int], node: int) -> None:
    """Assign unfinished work on streams of nodes that are not among ``nodes`` to ``node``. Raises errors of the
    database.

    To be called where it is certain that no process of those nodes is alive.
    """

    await db.run(lambda connection: take_over(connection, nodes, node))


def take_over(connection: Connection, nodes: Collection[int], node: int) -> None:
    """Do the work of :func:`inherit` in the database's thread."""
    marks = ", ".join("?" * len(nodes))
    connection.execute(f"UPDATE stream_intents SET node = ? WHERE node NOT IN ({marks})", (node, *nodes))


async def repeated(work: Callable[[], Awaitable[None]], *, shared: bool) -> None:
    """Run ``work``, which defines tables; if ``shared``, retry after errors. Raises an error of the database.

    Nodes that start together conflict here; one after the other, they find the tables made.
    """
    for _ in range(_TRIES if shared else 0):
        try:
            await work()
            return
        except DatabaseError:
            await asyncio.sleep(_AGAIN_S)
    await work()
