"""What retention must not take yet: what consumers have not read for whom a topic waits.

A topic names them in its configuration (:mod:`bridges.catalog.retained_for`). They hold back retention by age and by
size, so what bounds a partition then is only their progress, the time given with their names, and the disk: below
``sbp.low_water_bytes`` of free space the node refuses appends, and beyond ``sbp.retention_bytes`` the oldest data of
all topics goes, whoever waits for it. What somebody deletes on purpose goes, too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bridges.catalog import retained_for
from bridges.catalog.group_view import CONSUMERS
from bridges.catalog.topic_config import RETAINED_FOR

if TYPE_CHECKING:
    from bridges.catalog.progress import Progress
    from bridges.catalog.topics import Catalog
    from bridges.log.partition_log import PartitionLog

_AT_ONCE = 1000
"""Consumers looked at in one turn of the event loop."""


class NeededByConsumers:
    """Tells what consumers still need, by their committed positions."""

    def __init__(self, catalog: Catalog, progress: Progress) -> None:
        self._catalog = catalog
        self._progress = progress

    async def first(self, log: PartitionLog, now_ms: int) -> int | None:
        """The first offset that somebody is to read yet, None if retention waits for nobody. Raises TopicNotFound."""
        needed: int | None = None
        consumers = retained_for.parse(self._catalog.effective(log.topic, RETAINED_FOR))
        for number, (name, keep_ms) in enumerate(consumers, 1):
            committed = self._progress.committed((CONSUMERS, name), log.topic, log.partition)
            position = max(log.log_start_offset, 0 if committed is None else committed.offset)
            if keep_ms:
                position = max(position, log.retention_offset(keep_ms, -1, now_ms) or 0)
            needed = position if needed is None else min(needed, position)
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        return needed
