"""Versions of nodes that may be members of one cluster at the same time: neighbouring ones.

A node has a version for what it *says* to other nodes (:mod:`bridges.cluster.peers.peers`), and one for what it
*stores* in the database and in the data. A release that changes either, so that the release before would not understand
it, raises the number. It does the new thing only when the cluster's *level* has reached that number. The level is the
lowest version of all members; the transactions in which members join raise it, and nothing lowers it. So the release
before can be started again until its last node has been replaced, even if that node has died, and not afterwards.

The first node of a newer release migrates the tables, and the release before goes on with them: it does not touch what
a migration has added.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from anabranch_kit.errors import StoreVersionError
from anabranch_kit.sql.sqlite import check_version
from bridges.catalog.database.schema import MIGRATIONS, extend_cluster
from bridges.catalog.database.sql import Connection


class Version(Struct, frozen=True):
    """The versions of what a node says and stores; also the level of a cluster."""

    says: int = 1
    stores: int = 1

    def __str__(self) -> str:
        return f"{self.says}.{self.stores}"

    def parts(self) -> Iterable[tuple[str, int]]:
        """Return each number with its name."""
        return ("says", self.says), ("stores", self.stores)


OURS = Version(says=1, stores=2)
"""The versions of this release. Stores 2: pins of slots to nodes, batches of YDB's transactions, repeated
partitions."""
PINS = 2
"""First ``stores`` version whose balancing leaves pinned slots alone."""
YDB_TRANSACTIONS = 2
"""First ``stores`` version that reads a batch of YDB's messages in a transaction."""
REPEATED_PARTITIONS = 2
"""First ``stores`` version that finds the owner of a repeated partition, and keeps promises to sealed ones."""

_SINCE = MIGRATIONS.index(extend_cluster) + 1
"""First version of the tables with members' versions; before it, all members have version 1."""


def level(connection: Connection) -> Version:
    """Return the cluster's level: what may be said and stored."""
    says, stores = connection.execute("SELECT says, stores FROM cluster_state").fetchone()
    return Version(says, stores)


def raise_level(connection: Connection) -> None:
    """Raise the level to the lowest version of the members, in a transaction that has locked the cluster."""
    says, stores = connection.execute("SELECT min(version), min(stores) FROM cluster_nodes").fetchone()
    now = level(connection)
    if says is None or (says <= now.says and stores <= now.stores):
        return
    connection.execute("UPDATE cluster_state SET says = ?, stores = ?", (max(says, now.says), max(stores, now.stores)))


def check(connection: Connection, node_id: int, ours: Version) -> None:
    """Raise StoreVersionError if a node of our version cannot be a member now. Former starts of the node do not
    count.
    """
    rows = connection.execute(
        "SELECT node_id, version, stores FROM cluster_nodes WHERE node_id <> ? AND state <> 'ending' ORDER BY node_id",
        (node_id,),
    )
    _check(level(connection), [(other, Version(says, stores)) for other, says, stores in rows], ours)


def check_level(connection: Connection, ours: Version) -> None:
    """Check as :func:`check` does for a node without other members: only what is stored counts."""
    _check_needed(level(connection), ours)


def admit(connection: Connection, tables: int, node_id: int, ours: Version) -> None:
    """Check that this node may use the database, before anything in it is changed. Raises StoreVersionError.

    ``tables``: version of the database's tables.
    """
    if tables < _SINCE:
        if ours.says > 2 or ours.stores > 2:
            _check(Version(), [], ours)
        return
    if connection.execute("SELECT 1 FROM cluster_state").fetchone() is None:
        check_version("the cluster's database", tables, len(MIGRATIONS))
        return
    check(connection, node_id, ours)


def _check(needed: Version, others: Iterable[tuple[int, Version]], ours: Version) -> None:
    _check_needed(needed, ours)
    for (what, own), (_, least) in zip(ours.parts(), needed.parts(), strict=True):
        if own > least + 1:
            raise StoreVersionError(
                f"this node {what} version {own}, and its cluster is at version {least}: first have all of its nodes "
                f"run a release of version {least + 1}"
            )
    for other, version in others:
        for (what, own), (_, theirs) in zip(ours.parts(), version.parts(), strict=True):
            if abs(own - theirs) > 1:
                raise StoreVersionError(
                    f"this node {what} version {own}, and node {other} of its cluster version {theirs}, which is more "
                    "than one away: start the release in between"
                )


def _check_needed(needed: Version, ours: Version) -> None:
    for (what, own), (_, least) in zip(ours.parts(), needed.parts(), strict=True):
        if own < least:
            raise StoreVersionError(
                f"this node {what} version {own}, and all nodes of its cluster were raised to version {least}: start "
                "the newer release again"
            )


def to_json(version: Version) -> dict[str, Any]:
    return dict(version.parts())
