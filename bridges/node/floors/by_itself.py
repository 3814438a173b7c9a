"""The place of a single node in its cluster of one; :mod:`bridges.node.floors.among_others` has that of a node among
others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridges.catalog.database.counters import Counters
from bridges.cluster.alone import Alone, NoPeers
from bridges.log.remote.nowhere import Nowhere

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Callable

    from anabranch_kit.net.address import Address
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.database.sql import Database
    from bridges.catalog.topics.catalog import Catalog
    from bridges.cluster.ownership import Membership, Others
    from bridges.log.logs import Logs
    from bridges.log.remote.partitions import Elsewhere
    from bridges.log.remote.readable import ReadableElsewhere
    from bridges.metric_text import Shows
    from sbp_back.embedded import Embedded


class ByItself:
    """Ownership and access to other nodes, for a node that shares its database with no other node."""

    cluster: Membership
    peers: Others
    scrape_workers: Callable[[Shows], AsyncGenerator[bytes, None]] | None = None
    """Returns the metrics of all workers, on the first worker."""

    def __init__(self, db: Database, node_id: int) -> None:
        self.cluster = self._alone = Alone(node_id, Counters(db).next_epoch)
        self.peers = NoPeers()

    async def begin(self, catalog: Catalog, object_log: Embedded | None) -> None:
        """Complete the place once the catalog is loaded. Raises errors of the database.

        ``object_log``: the backend whose object log other nodes may take over; None: they may not.
        """
        await self._alone.begin()

    def elsewhere(self, catalog: Catalog, barrier: Barrier, logs: Logs) -> ReadableElsewhere:
        """Return the access for readers to other nodes' logs, and for other nodes to ``logs``."""
        return Nowhere()

    def forwarding(self, catalog: Catalog, barrier: Barrier, logs: Logs) -> Elsewhere:
        """Return the access for appends to other nodes, and for other nodes' appends to ``logs``."""
        return Nowhere()

    async def listen(self, at: Address, tls: ssl.SSLContext | None, towards: ssl.SSLContext | None) -> Address:
        """Listen for other nodes' requests, and return the bound address. Raises OSError."""
        return at
