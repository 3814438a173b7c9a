"""Which versions of nodes may be members of one cluster at the same time: neighbouring ones.

A node has a number for what it *says* to others (:mod:`bridges.cluster.peers`) and one for what it *stores* in the
database and in the data. A release that changes either so that the one before it would not understand it raises the
number, and does the new thing only when the cluster's *level* has reached it: that is the lowest of its members', is
raised by the transactions in which members come, and is never lowered. So the release before can be started again until
its last node has been replaced, also when that has died, and not any more afterwards.

Tables are brought up to date by the first node of a newer release, and the one before goes on with them: what a
migration adds it does not touch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from anabranch_kit.errors import StoreVersionError
from anabranch_kit.sql.sqlite import check_version
from bridges.catalog.schema import MIGRATIONS, extend_cluster
from bridges.catalog.sql import Connection


class Version(Struct, frozen=True):
    """Of what a node says, and of what it stores; or the level of a cluster."""

    says: int = 1
    stores: int = 1

    def __str__(self) -> str:
        return f"{self.says}.{self.stores}"

    def parts(self) -> Iterable[tuple[str, int]]:
        """Each with what it is of."""
        return ("says", self.says), ("stores", self.stores)


OURS = Version(says=1, stores=2)
"""Of this release. Stores: 2 pins slots to nodes."""
PINS = 2
"""Whose balance leaves pinned slots where they are; that of nodes before it does not."""

_SINCE = MIGRATIONS.index(extend_cluster) + 1
"""The version of the tables in which members tell theirs; before it all are the first."""


def level(connection: Connection) -> Version:
    """What may be said and stored."""
    says, stores = connection.execute("SELECT says, stores FROM cluster_state").fetchone()
    return Version(says, stores)


def raise_level(connection: Connection) -> None:
    """Part of a transaction that has locked the cluster: the level is the lowest of the members', or what it was."""
    says, stores = connection.execute("SELECT min(version), min(stores) FROM cluster_nodes").fetchone()
    now = level(connection)
    if says is None or (says <= now.says and stores <= now.stores):
        return
    connection.execute("UPDATE cluster_state SET says = ?, stores = ?", (max(says, now.says), max(stores, now.stores)))


def check(connection: Connection, node_id: int, ours: Version) -> None:
    """Raises StoreVersionError where a node of our version cannot be a member now. Its own former self is past."""
    rows = connection.execute(
        "SELECT node_id, version, stores FROM cluster_nodes WHERE node_id <> ? AND state <> 'ending' ORDER BY node_id",
        (node_id,),
    )
    _check(level(connection), [(other, Version(says, stores)) for other, says, stores in rows], ours)


def check_level(connection: Connection, ours: Version) -> None:
    """As :func:`check`, of a node that has no others: only what is stored counts."""
    _check_needed(level(connection), ours)


def admit(connection: Connection, tables: int, node_id: int, ours: Version) -> None:
    """Before anything is changed in the database, whose tables have the version ``tables``: whether this node may use
    it. Raises StoreVersionError."""
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


def told(version: Version) -> dict[str, Any]:
    """As the JSON interface tells it."""
    return dict(version.parts())
