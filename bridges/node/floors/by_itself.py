"""The place of a single node in its cluster of one; :mod:`bridges.node.floors.among_others` has that of a node among
others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.errors import StoreError
from bridges.catalog.database.counters import Counters, identify
from bridges.cluster.alone import Alone, NoPeers
from bridges.errors import LogError
from bridges.log.remote.nowhere import Nowhere
from bridges.node.storage import backend

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Callable

    from anabranch_kit.net.address import Address
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.database.sql import Database
    from bridges.catalog.topics.catalog import Catalog
    from bridges.cluster.marks import Marks
    from bridges.cluster.ownership import Membership, Others
    from bridges.log.logs import Logs
    from bridges.log.remote.partitions import Elsewhere
    from bridges.log.remote.readable import ReadableElsewhere
    from bridges.metric_text import Shows
    from bridges.node.floors.plan import Ground, Plan
    from sbp_back.embedded import Embedded

_log = structlog.get_logger("anabranch.node")


class ByItself:
    """Ownership and access to other nodes, for a node that shares its database with no other node."""

    cluster: Membership
    peers: Others
    scrape_workers: Callable[[Shows], AsyncGenerator[bytes, None]] | None = None
    """Returns the metrics of all workers, on the first worker."""

    marks: Marks | None = None
    """The marks of a single node's database, if its data is in a bucket."""

    def __init__(self, plan: Plan, db: Database) -> None:
        self.cluster = self._alone = Alone(plan.settings.node.id, Counters(db).next_epoch)
        self.peers = NoPeers()
        self._db = db
        self._life = plan.life

    async def mark(self) -> None:
        """Write a mark of the database. Raises StoreError if the database or the bucket has gone back."""
        marks = self.marks
        if marks is None:
            return
        from bridges.cluster.marks import next_mark  # imported only with a bucket

        is_first = marks.others is None
        try:
            if is_first:
                await marks.begin(self._db)
            await marks.keep(await self._db.run(next_mark, flush=True, frees=True))
            if is_first:
                await asyncio.to_thread(marks.forget, ())
        except (OSError, LogError) as error:
            _log.warning("how far the database is could not be written down", error=str(error))

    async def mark_again(self, now_ms: int) -> None:
        """Write a mark while the node serves; the node ends if the bucket has gone back."""
        try:
            await self.mark()
        except StoreError as error:
            self._life.fail(str(error))

    async def close(self) -> None:
        """Leave the cluster. Raises StoreError."""
        if self._life.failure is None:
            await self.mark()

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


async def enter(plan: Plan, ground: Ground) -> ByItself:
    """Become the only member; check that neither the database nor the bucket, if there is one, has gone back.

    Raises StoreError, errors of the database.
    """
    place = ByItself(plan, ground.db)
    bucket = backend.bucket_of(plan.settings.sbp)
    if bucket is not None:
        from bridges.cluster.marks import Marks  # imported only with a bucket

        place.marks = Marks(ground.directory.mark, bucket, await ground.db.run(identify))
        await place.mark()
    return place
