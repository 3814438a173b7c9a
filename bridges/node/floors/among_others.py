"""A node's place in a cluster of several nodes, or among the workers of a node."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from bridges.catalog.database.counters import identify
from bridges.catalog.database.sql import Database
from bridges.cluster import versions
from bridges.cluster.marks import Marks
from bridges.cluster.members import Patience
from bridges.cluster.peers.peers import Peers, secret
from bridges.cluster.service import Cluster
from bridges.log.remote.forwarded_appends import ForwardedAppends
from bridges.log.remote.log_elsewhere import LogsElsewhere
from bridges.log.remote.partitions import append_here
from bridges.node.floors.by_itself import ByItself
from bridges.node.node_metrics import cluster_metrics
from bridges.node.storage import backend, databases
from bridges.node.workers.metrics import STREAM, Opening, WorkerMetrics
from bridges.node.workers.worker import LEASE_S, add_number

if TYPE_CHECKING:
    import ssl

    from anabranch_kit.net.address import Address
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.topics.catalog import Catalog
    from bridges.log.logs import Logs
    from bridges.log.remote.partitions import Elsewhere
    from bridges.log.remote.readable import ReadableElsewhere
    from bridges.node.floors.plan import Ground, Plan
    from sbp_back.embedded import Embedded


class AmongOthers(ByItself):
    """The place of a node that has entered a cluster (:func:`enter`); see :class:`ByItself`."""

    def __init__(self, cluster: Cluster, peers: Peers, workers: WorkerMetrics | None) -> None:
        """``workers``: the metrics of all workers, on the first of them."""
        self.cluster = self._cluster = cluster
        self.peers = self._peers = peers
        self.scrape_workers = None if workers is None else workers.rendered

    async def begin(self, catalog: Catalog, object_log: Embedded | None) -> None:
        cluster = self._cluster
        cluster.place = catalog.place_of
        if object_log is not None:
            cluster.adopt, cluster.fenced = object_log.adopt, object_log.is_fenced

    def elsewhere(self, catalog: Catalog, barrier: Barrier, logs: Logs) -> ReadableElsewhere:
        cluster = self._cluster
        cluster.open_logs = logs.opener.count_taken
        return LogsElsewhere(self._peers, cluster, logs, catalog.id_of, barrier)

    def forwarding(self, catalog: Catalog, barrier: Barrier, logs: Logs) -> Elsewhere:
        return ForwardedAppends(self._peers, self._cluster, partial(append_here, logs), catalog.id_of, barrier)

    async def close(self) -> None:
        await self._cluster.close()

    async def listen(self, at: Address, tls: ssl.SSLContext | None, towards: ssl.SSLContext | None) -> Address:
        return await self._peers.listen(at, tls, towards)


async def enter(plan: Plan, ground: Ground) -> AmongOthers:
    """Become a member, before the log is opened: opening it fences any node that has it."""
    settings, worker, main = plan.settings, plan.worker, ground.db
    lease_s = settings.cluster.lease_s if worker is None else max(settings.cluster.lease_s, LEASE_S)
    patience = Patience(settings.cluster.heartbeat_ms / 1000, lease_s)
    # A connection of its own, because heartbeats must not wait behind other transactions.
    db = Database(databases.engine_of(settings, ground.directory, worker, second=True))
    cluster = Cluster(db, settings.node.id, patience, plan.metrics.barrier, plan.life.fail, versions.OURS)
    try:
        bucket = backend.bucket_of(settings.sbp)
        if worker is None or bucket is not None:
            path = ground.directory.mark
            path = path.with_name(add_number(path.name, 0 if worker is None else worker.number))
            cluster.marks = Marks(path, bucket, await main.run(identify))
        if worker is None:
            await cluster.enter(server_id=await asyncio.to_thread(backend.server_of_log, settings.sbp))
        else:
            await cluster.enter(plan.nodes_of_file)
        shared = await main.run(secret)
    except BaseException:
        await cluster.close()
        raise
    peers = Peers(cluster.start, shared, plan.metrics.barrier, ground.budget)
    cluster.on_gone.append(lambda: peers.keep_only(cluster.keeper.members))
    workers = None
    if worker is None:
        cluster.is_past = peers.is_past  # a worker restarts at once, before another worker could take over
    else:
        workers = WorkerMetrics(peers, cluster, plan.metrics, worker.number, plan.nodes_of_file)
        peers.serve_stream(STREAM, Opening, workers.serve)
    plan.metrics.add_source(lambda: cluster_metrics(cluster))
    return AmongOthers(cluster, peers, workers if worker is not None and worker.number == 0 else None)
