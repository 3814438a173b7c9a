"""What operators ask of a cluster: that a node has certain slots, that another one has none. Transactions, as in
:mod:`bridges.cluster.tables`.

A wish is of a node, by its id, and so outlives its starts; it is carried out by whoever owns the slots, and goes before
balance. A node that is not there has no say: its slots are balanced among the others until it comes back.
"""

from __future__ import annotations

from collections.abc import Collection

from bridges.catalog.sql import Connection
from bridges.cluster import tables, versions
from bridges.cluster.slots import ANY
from bridges.errors import CannotMove


def pin(connection: Connection, slots: Collection[int], node_id: int) -> bool:
    """The node is to have these slots. False: it does not serve, or is about to stop or drained. Raises CannotMove
    where nodes of an older release would not leave them there."""
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
    """Balance decides again of these slots, of all that the node is to have, or of all there are."""
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
    """The node is to own nothing, in this start and in those that come. False: nobody else could take it."""
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
    """The node is to have its share again; one that is about to stop still stops. False: it was not drained."""
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
