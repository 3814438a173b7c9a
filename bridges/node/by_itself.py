"""A node's place in its cluster of one; :mod:`bridges.node.among_others` has that of a node among others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridges.catalog.counters import Counters
from bridges.cluster.alone import Alone, NoPeers
from bridges.log.remote.nowhere import Nowhere

if TYPE_CHECKING:
    import ssl

    from anabranch_kit.net.address import Address
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.sql import Database
    from bridges.catalog.topics import Catalog
    from bridges.cluster.ownership import Membership, Others
    from bridges.log.logs import Logs
    from bridges.log.remote.appends import Elsewhere
    from bridges.log.remote.readable import ReadableElsewhere
    from bridges.metrics import Metrics
    from bridges.node.worker_metrics import WorkerMetrics
    from sbp_back.embedded import Embedded


class ByItself:
    """Who owns what, and what leads to others, of a node that shares its database with nobody."""

    cluster: Membership
    peers: Others
    worker_metrics: WorkerMetrics | None = None
    """What all workers count, of the first one."""

    def __init__(self, db: Database, node_id: int) -> None:
        self.cluster = self._alone = Alone(node_id, Counters(db).next_epoch)
        self.peers = NoPeers()

    async def begin(self, catalog: Catalog, object_log: Embedded | None) -> None:
        """The catalog is loaded; ``object_log``: whose log others may take over. Raises an error of the database."""
        await self._alone.begin()

    def elsewhere(self, catalog: Catalog, barrier: Barrier, logs: Logs) -> ReadableElsewhere:
        """Return what leads readers to the logs of other nodes, and others to ``logs``."""
        return Nowhere()

    def forwarding(self, catalog: Catalog, barrier: Barrier, logs: Logs) -> Elsewhere:
        """Return what leads appends to other nodes, and those of others to ``logs``."""
        return Nowhere()

    def count(self, metrics: Metrics) -> None:
        """Have metrics tell of the cluster."""

    async def listen(self, at: Address, tls: ssl.SSLContext | None, towards: ssl.SSLContext | None) -> Address:
        """Answer other nodes there. Raises OSError."""
        return at
