"""Producer ids that are unique across all processes and runs of the node (docs/protocols/kafka.md, rule 29)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridges.catalog.topics.catalog import Catalog

_BLOCK = 1000
"""Ids taken from the catalog at once. The rest of a block is never used when the node ends."""


class ProducerIds:
    """A source of producer ids that are unique across all processes and runs of the node."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """Return a new producer id. Raises an error of the database."""
        async with self._lock:
            if self._next == self._end:
                self._next = await self._catalog.counters.allocate_producer_ids(_BLOCK)
                self._end = self._next + _BLOCK
            self._next += 1
            return self._next - 1
