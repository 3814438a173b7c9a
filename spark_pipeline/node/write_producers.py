"""Producer ids for attempts: one is taken again, in the next epoch, when all that its last attempt began has ended.

So the logs' ledgers remember as many of them as there were attempts at the same time, not as there ever were.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridges.catalog.topics import Catalog

_BLOCK = 64
"""Ids that are taken from the catalog at once: each time is a commit."""
_LAST_EPOCH = 2**15 - 2
"""The marker behind it still has an epoch above it."""
_MOST_FREE = 10_000


class Producers:
    """Ids that are free, each with the epoch that it has next. None is kept over a restart."""

    __slots__ = ("_catalog", "_free", "_taking")

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._free: deque[tuple[int, int]] = deque()
        self._taking = asyncio.Lock()

    async def take(self) -> tuple[int, int]:
        """A producer's id and epoch that nobody has used. Raises LogError."""
        async with self._taking:  # else a thousand who come at once would take a block each
            if not self._free:
                first = await self._catalog.allocate_producer_ids(_BLOCK)
                self._free.extend((first + number, 0) for number in range(_BLOCK))
            return self._free.popleft()

    def give(self, producer_id: int, epoch: int) -> None:
        """An attempt has ended."""
        if epoch < _LAST_EPOCH and len(self._free) < _MOST_FREE:
            self._free.append((producer_id, epoch + 1))

    def give_unused(self, producer_id: int, epoch: int) -> None:
        """It was taken for nothing."""
        self._free.append((producer_id, epoch))
