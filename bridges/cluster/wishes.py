"""Operators' wishes for a cluster, as transactions (:mod:`bridges.cluster.tables`): pins of slots, and drained nodes.

A wish names a node by its id, so it outlives the node's starts. The owners of the slots carry it out, and it takes
precedence over balancing. While a node is down, its slots are balanced among the others.
"""

from __future__ import annotations

from collections.abc import Collection

from bridges.catalog.database.sql import Connection
from bridges.cluster import tables, versions
from bridges.cluster.slots import ANY
from bridges.errors import CannotMove


def pin(connection: Connection, slots: Collection[int], node_id: int) -> bool:
    """Pin slots to a node; return False if it does not serve, is about to stop, or is drained.

    Raises CannotMove if nodes of an older release would not leave the slots there.
    """
    tables.lock(connection)
    if versions.level(connection).stores < versions.PINS:
        raise CannotMove("a node of the cluster is of a release that cannot leave slots where they are moved")
    up = "SELECT 1 FROM cluster_nodes WHERE node_id = ? AND state = 'up'"
    if connection.execute(up, (node_id,)).fetchone() is None:
        return False
    rows = [(node_id, slot) for slot in slots]
    connection.executemany("UPDATE cluster_slots SET pin = ? WHERE slot = ?", rows)
    tables.spread(connection)
    return True


def unpin(connection: Connection, slots: Collection[int] | None = None, node_id: int | None = None) -> bool:
    """Remove the pins of these slots, of all slots pinned to the node, or of all slots."""
    tables.lock(connection)
    if slots is not None:
        connection.executemany("UPDATE cluster_slots SET pin = ? WHERE slot = ?", [(ANY, slot) for slot in slots])
    elif node_id is not None:
        connection.execute("UPDATE cluster_slots SET pin = ? WHERE pin = ?", (ANY, node_id))
    else:
        connection.execute("UPDATE cluster_slots SET pin = ?", (ANY,))
    tables.spread(connection)
    return True


def drain(connection: Connection, node_id: int) -> bool:
    """Have a node own nothing, in this start and later ones; return False if no other node could take over."""
    tables.lock(connection)
    others = "SELECT 1 FROM cluster_nodes WHERE node_id <> ? AND state = 'up' LIMIT 1"
    if connection.execute(others, (node_id,)).fetchone() is None:
        return False
    connection.execute("INSERT INTO cluster_drained VALUES (?) ON CONFLICT (node_id) DO NOTHING", (node_id,))
    connection.execute(
        "UPDATE cluster_nodes SET state = 'leaving', drained = 1 WHERE node_id = ? AND state = 'up'", (node_id,)
    )
    tables.spread(connection)
    return True


def undrain(connection: Connection, node_id: int) -> bool:
    """Have a drained node own its share again, unless it is about to stop; return False if it was not drained."""
    tables.lock(connection)
    gone = connection.execute("DELETE FROM cluster_drained WHERE node_id = ?", (node_id,))
    if not gone.rowcount:
        return False
    connection.execute(
        "UPDATE cluster_nodes SET state = 'up', drained = 0 WHERE node_id = ? AND state = 'leaving' AND drained = 1",
        (node_id,),
    )
    tables.spread(connection)
    return True
