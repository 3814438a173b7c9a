"""A node's place in a cluster of several nodes, or among the workers of a node."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from bridges.catalog.counters import identify
from bridges.catalog.sql import Database
from bridges.cluster import versions
from bridges.cluster.marks import Marks
from bridges.cluster.members import Patience
from bridges.cluster.peers import Peers, secret
from bridges.cluster.service import Cluster
from bridges.log.remote.forwarded_appends import ForwardedAppends
from bridges.log.remote.log_elsewhere import LogsElsewhere
from bridges.log.remote.partitions import append_here
from bridges.node import backend, databases
from bridges.node.by_itself import ByItself
from bridges.node.node_metrics import cluster_metrics
from bridges.node.worker import LEASE_S
from bridges.node.worker_metrics import STREAM, Opening, WorkerMetrics

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from anabranch_kit.memory.budget import MemoryBudget
    from anabranch_kit.net.address import Address
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.topics import Catalog
    from bridges.log.logs import Logs
    from bridges.log.remote.partitions import Elsewhere
    from bridges.log.remote.readable import ReadableElsewhere
    from bridges.metrics import Metrics
    from bridges.node.config import Settings
    from bridges.node.data_dir import DataDirectory
    from bridges.node.worker import Worker
    from sbp_back.embedded import Embedded


class AmongOthers(ByItself):
    """The place of a node that has entered a cluster (:func:`enter`); see :class:`ByItself`."""

    def __init__(self, cluster: Cluster, peers: Peers) -> None:
        self.cluster = self._cluster = cluster
        self.peers = self._peers = peers

    async def begin(self, catalog: Catalog, object_log: Embedded | None) -> None:
        cluster = self._cluster
        cluster.place = catalog.place_of
        if object_log is not None:
            cluster.adopt, cluster.fenced = object_log.adopt, object_log.is_fenced

    def elsewhere(self, catalog: Catalog, barrier: Barrier, logs: Logs) -> ReadableElsewhere:
        cluster = self._cluster
        cluster.open_logs = logs.opener.count_taken
        return LogsElsewhere(self._peers, cluster, cluster.node_id, logs, catalog.id_of, barrier)

    def forwarding(self, catalog: Catalog, barrier: Barrier, logs: Logs) -> Elsewhere:
        node_id, here = self._cluster.node_id, partial(append_here, logs)
        return ForwardedAppends(self._peers, self._cluster, node_id, here, catalog.id_of, barrier)

    def count(self, metrics: Metrics) -> None:
        metrics.add_source(lambda: cluster_metrics(self._cluster))

    async def listen(self, at: Address, tls: ssl.SSLContext | None, towards: ssl.SSLContext | None) -> Address:
        return await self._peers.listen(at, tls, towards)


async def enter(
    settings: Settings,
    directory: DataDirectory,
    main: Database,
    worker: Worker | None,
    ids: Sequence[int],
    metrics: Metrics,
    budget: MemoryBudget,
    fail: Callable[[str], None],
) -> AmongOthers:
    """Become a member, before the log is opened: opening it fences any node that has it. ``ids``: of all workers."""
    told = settings.cluster
    lease = told.lease_s if worker is None else max(told.lease_s, LEASE_S)
    patience = Patience(told.heartbeat_ms / 1000, lease)
    # A connection of its own, because heartbeats must not wait behind other transactions.
    db = Database(databases.engine_of(settings, directory, worker, second=True))
    cluster = Cluster(db, settings.node.id, patience, metrics.barrier, fail, versions.OURS)
    try:
        if worker is None:
            bucket = backend.bucket_of(settings.sbp)
            cluster.marks = Marks(directory.mark, bucket, await main.run(identify))
            await cluster.enter(server_id=await asyncio.to_thread(backend.server_of_log, settings.sbp))
        else:
            await cluster.enter(ids)
        shared = await main.run(secret)
    except BaseException:
        await cluster.close()
        raise
    peers = Peers(cluster.start, shared, metrics.barrier, budget)
    cluster.on_gone.append(lambda: peers.left(cluster.keeper.members))
    joined = AmongOthers(cluster, peers)
    if worker is None:
        cluster.is_past = peers.is_past  # a worker restarts at once, before another worker could take over
    else:
        counted = WorkerMetrics(peers, cluster, metrics, worker.number, ids)
        peers.serve_stream(STREAM, Opening, counted.serve)
        joined.worker_metrics = counted if worker.number == 0 else None
    return joined
