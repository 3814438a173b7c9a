"""The transfer of a single node's metadata, and its placement driver's state, into a cluster's PostgreSQL.

Both are copied into schemas of temporary names, compared, and prepared for a cluster. No node reads these schemas until
both get their final names in one transaction (:func:`switch`): a node finds nothing, or all of it. A run drops the
unfinished schemas of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct

from anabranch_kit.errors import StoreError
from anabranch_kit.sql import copying
from anabranch_kit.sql.copying import Digest
from anabranch_kit.sql.engine import Engine
from anabranch_kit.sql.schemas import Schemas
from bridges.catalog.database import front_tables
from bridges.catalog.database.counters import identify
from bridges.catalog.database.sql import Connection
from bridges.cluster import tables as cluster_tables
from bridges.node.settings.config import Settings
from bridges.node.storage import databases
from bridges.node.storage.data_dir import DataDirectory
from sbp_back.placement_driver import state as pd_state
from sbp_back.placement_driver.state import Transaction


class Metadata(Struct):
    """Both databases of a single node, open."""

    node: Engine
    state: Engine
    cluster_id: str
    placement_driver: str


class Names(Struct, frozen=True):
    """The names of the schemas in which the metadata is made."""

    node: str
    state: str

    @classmethod
    def for_cluster(cls, cluster_id: str) -> Names:
        """Return the names for a cluster; they differ by cluster, so that two upgrades at a time do not collide."""
        whose = blake2b(cluster_id.encode(), digest_size=8).hexdigest()
        return cls(f"{databases.SCHEMA}_upgrade_{whose}", f"{pd_state.SCHEMA}_upgrade_{whose}")


@contextmanager
def opened(settings: Settings, directory: DataDirectory, state: Path) -> Iterator[Metadata]:
    """Open the databases in ``directory`` and the placement driver's in the file ``state``, and migrate them.

    Raises StoreError if they are damaged, of another version, or do not belong together.
    """
    with ExitStack() as stack:
        node = _open(stack, databases.in_file(settings, directory))
        pd = _open(stack, pd_state.in_sqlite(state))
        copying.run(node, lambda connection: _bring_up(connection, settings))
        cluster_id = copying.run(node, identify)
        identity = _query_text(node, "SELECT identity FROM placement_driver")
        placement_driver = _query_text(pd, "SELECT value FROM identity")
        if not placement_driver:
            raise StoreError(f"{state} has lost its identity: restore a backup")
        if identity not in ("", placement_driver):
            raise StoreError(
                f"the topics of {directory.path} are in placement driver {identity}, somewhere else (sbp.mode, "
                f"sbp.pd), and not in its own, {placement_driver}: only what a node keeps itself can be taken along"
            )
        yield Metadata(node, pd, cluster_id, placement_driver)


def _open(stack: ExitStack, engine: Engine) -> Engine:
    engine.open()
    stack.callback(engine.close)
    return engine


def _bring_up(connection: Connection, settings: Settings) -> None:
    for kind in settings.fronts:
        front_tables.migrate(connection, kind.name, kind.migrations)
    known = {kind.name for kind in settings.fronts}
    for (front,) in connection.execute("SELECT front FROM front_versions ORDER BY front").fetchall():
        if front not in known:
            raise StoreError(
                f"front {front} has tables in the node's database and is not installed here: install it, so that they "
                "can be taken along"
            )


def _query_text(engine: Engine, query: str) -> str:
    row = copying.run(engine, lambda connection: connection.execute(query).fetchone())
    return "" if row is None else str(row[0])


def partition_of(metadata: Metadata, stream_id: int) -> str:
    """Return a stream's partition and topic, as text for people."""
    query = "SELECT topic, idx FROM partitions WHERE stream_id = ?"
    row = copying.run(metadata.node, lambda connection: connection.execute(query, (stream_id,)).fetchone())
    return f"stream {stream_id}" if row is None else f"partition {row[1]} of topic {row[0]}"


def make(
    settings: Settings, metadata: Metadata, servers: Sequence[int], told: Callable[[str], object]
) -> dict[str, Digest]:
    """Copy everything, compare it, and make it the metadata of a cluster without members.

    In it the first of the range ``servers`` has the ranges of all. Returns the digest of each table. Blocks. Raises
    StoreError, TablesDiffer and SqlFailed.
    """
    url, names = settings.cluster.database, Names.for_cluster(metadata.cluster_id)
    Schemas(url).drop(names.node, names.state)
    with ExitStack() as stack:
        node = _open(stack, databases.in_postgres(url, names.node))
        state = _open(stack, pd_state.in_postgres(url, names.state))
        copying.run(node, lambda connection: _bring_up(connection, settings))
        found = copying.copy(metadata.node, node, told)
        found |= {f"placement driver's {name}": one for name, one in copying.copy(metadata.state, state, told).items()}

        def ready(connection: Connection) -> None:
            cluster_tables.empty(connection)
            databases.take_over(connection, [settings.node.id], settings.node.id)

        def gather(connection: Connection) -> None:
            for server_id in servers[1:]:
                Transaction(connection).adopt_server(server_id, servers[0])

        copying.run(node, ready)
        copying.run(state, gather)
    return found


def switch(settings: Settings, cluster_id: str) -> None:
    """Make the prepared schemas the cluster's metadata. Blocks.

    Raises StoreError if that has failed, or if its outcome is unknown.
    """
    names = Names.for_cluster(cluster_id)
    Schemas(settings.cluster.database).rename({names.node: databases.SCHEMA, names.state: pd_state.SCHEMA})


def cluster_there(settings: Settings) -> str | None:
    """Return the cluster whose metadata the database has; None without metadata, empty if it names no cluster."""
    schemas = Schemas(settings.cluster.database)
    if not (schemas.exists(databases.SCHEMA) or schemas.exists(pd_state.SCHEMA)):
        return None
    return schemas.cluster_of(databases.SCHEMA)
