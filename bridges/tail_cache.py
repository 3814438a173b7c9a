"""The most recent batches of every partition, kept in memory so that consumers at the tail need no backend.

One budget for the whole node; when it is exceeded the batch appended longest ago goes first, whichever partition it
belongs to, so that busy partitions get the most room and idle ones cost nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from bridges.records import StoredBatch

_COMPACT_AFTER = 256


class TailCache:
    """The node-wide budget, in bytes of payload."""

    __slots__ = ("_order", "budget", "total")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.total = 0
        self._order: deque[Tail] = deque()

    def admit(self, tail: Tail, size: int) -> None:
        """Account for a batch just put into ``tail`` and evict what no longer fits."""
        self._order.append(tail)
        self.total += size
        while self.total > self.budget and self._order:
            self.total -= self._order.popleft().drop_oldest()


class Tail:
    """The cached batches of one partition: contiguous, ending at the high watermark."""

    __slots__ = ("_bases", "_batches", "_cache", "_cleared", "_head")

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._bases: list[int] = []
        self._batches: list[StoredBatch] = []
        self._head = 0
        # Sizes of batches cleared at once, which the budget's queue still counts one by one.
        self._cleared: deque[int] = deque()

    def append(self, batch: StoredBatch) -> None:
        """Add the next batch of the partition."""
        self._bases.append(batch.base_offset)
        self._batches.append(batch)
        self._cache.admit(self, len(batch.payload))

    def drop_oldest(self) -> int:
        """Forget the oldest batch; returns its size in bytes."""
        if self._cleared:
            return self._cleared.popleft()
        size = len(self._batches[self._head].payload)
        self._batches[self._head] = _GONE
        self._head += 1
        if self._head >= _COMPACT_AFTER and self._head * 2 >= len(self._bases):
            del self._bases[: self._head], self._batches[: self._head]
            self._head = 0
        return size

    def clear(self) -> None:
        """Forget everything (the partition was closed, or lost its owner)."""
        self._cleared.extend(len(batch.payload) for batch in self._batches[self._head :])
        self._bases.clear()
        self._batches.clear()
        self._head = 0

    def read(self, offset: int, max_bytes: int) -> list[StoredBatch] | None:
        """Batches from the one that contains ``offset`` on, at least one; None when it is not cached."""
        bases = self._bases
        if self._head >= len(bases) or offset < bases[self._head]:
            return None
        position = bisect_right(bases, offset, self._head) - 1
        batches = self._batches
        if offset >= batches[-1].end_offset:
            return None
        first = batches[position]
        found = [first]
        room = max_bytes - len(first.payload)
        for index in range(position + 1, len(batches)):  # not islice: it walks there from the first batch
            batch = batches[index]
            room -= len(batch.payload)
            if room < 0:
                break
            found.append(batch)
        return found

    def bytes_from(self, offset: int, enough: int) -> int | None:
        """Bytes from the batch that contains ``offset`` to the tail, counted up to ``enough``; None if not cached."""
        found = self.read(offset, enough)
        return None if found is None else sum(len(batch.payload) for batch in found)

    def measure(self, offset: int, max_bytes: int, limit: int) -> tuple[int, int, int] | None:
        """(start, end, bytes) of what :meth:`read` would find of batches that begin before ``limit``."""
        found = self.read(offset, max_bytes)
        if found is None:
            return None
        size = 0
        end = found[0].base_offset
        for batch in found:
            if batch.base_offset >= limit:
                break
            size += len(batch.payload)
            end = batch.end_offset
        return found[0].base_offset, end, size


_GONE = StoredBatch(-1, -1, 0, b"")
