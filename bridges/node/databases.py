"""Where a node's metadata is: in a file of SQLite's in its data directory, or in the PostgreSQL of a cluster."""

from __future__ import annotations

from bridges.catalog.schema import APPLICATION_ID, HAS_CHECKSUMS, MIGRATIONS
from bridges.node.config import Settings
from bridges.node.data_dir import DataDirectory
from sbp_back.errors import StoreError
from sbp_back.sql.engine import Engine
from sbp_back.sql.sqlite import SqliteEngine

SCHEMA = "anabranch"
"""Where the tables are in PostgreSQL."""

_RESERVE_BYTES = 8 * 1024 * 1024
"""Of disk, for the commits that delete topics when all of it is full."""


def engine_of(settings: Settings, directory: DataDirectory) -> Engine:
    """The engine of the node's database, not open yet.

    Raises StoreError where the directory has the metadata of a node that was none of a cluster's.
    """
    url = settings.cluster.database
    if not url:
        return SqliteEngine(
            directory.database,
            MIGRATIONS,
            application_id=APPLICATION_ID,
            synchronous="NORMAL" if settings.sbp.durability == "os" else "FULL",
            unwatched=HAS_CHECKSUMS,
            reserve_bytes=_RESERVE_BYTES,
        )
    if directory.database.exists():
        raise StoreError(
            f"{directory.database} has the metadata of a node by itself, and cluster.database leads to other metadata: "
            "give the node an empty data_dir, or start it without cluster.database"
        )
    from sbp_back.sql.postgres import PostgresEngine  # few nodes have one

    return PostgresEngine(url, MIGRATIONS, schema=SCHEMA, application_id=APPLICATION_ID)
