"""Internal producers of transactions that are coordinated here: a transaction writes with an id in an epoch of its own,
and its marker has the next epoch, from which on logs refuse late batches."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridges.catalog.topics.catalog import Catalog

_BLOCK = 64
"""Ids that are taken from the catalog at a time, since each time costs a commit."""
_LAST_EPOCH = 2**15 - 2
"""The highest epoch of a transaction: its marker still needs a higher one."""
_MOST_FREE = 10_000


class Producers:
    """The free producer ids, each with its next epoch. They are not kept over a restart."""

    __slots__ = ("_catalog", "_free", "_taking")

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._free: deque[tuple[int, int]] = deque()
        self._taking = asyncio.Lock()

    async def take(self) -> tuple[int, int]:
        """Return an unused pair of producer id and epoch. Raises LogError."""
        async with self._taking:  # else a thousand concurrent callers would take a block each
            if not self._free:
                first = await self._catalog.counters.allocate_producer_ids(_BLOCK)
                self._free.extend((first + number, 0) for number in range(_BLOCK))
            return self._free.popleft()

    def give(self, producer_id: int, epoch: int) -> None:
        """Take back the id of a transaction that has ended, for its next epoch."""
        if epoch < _LAST_EPOCH and len(self._free) < _MOST_FREE:
            self._free.append((producer_id, epoch + 1))

    def give_unused(self, producer_id: int, epoch: int) -> None:
        """Take back an id and epoch that were not used."""
        self._free.append((producer_id, epoch))
