"""The most recent batches of every partition, kept in memory so that consumers at the tail need no backend.

One budget serves the whole node. When it is exceeded, the batch appended longest ago is evicted first, whichever
partition it belongs to. So busy partitions get the most room and idle ones cost nothing.

The budget counts the memory kept alive: a batch is a view of the network frame it came in, and keeps the whole frame. A
batch that is small beside its frame is copied out of it instead.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque

from bridges.formats.records import Buffer, StoredBatch

_COMPACT_AFTER = 256
OVERHEAD = 300
"""Bytes that a cached batch takes besides its payload."""


def _held_bytes(payload: Buffer) -> int:
    """Return the bytes that ``payload`` keeps alive."""
    return len(payload.obj) if type(payload) is memoryview else len(payload)  # type: ignore[arg-type]


class TailCache:
    """The node-wide budget, in bytes of memory."""

    __slots__ = ("_order", "budget", "total")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.total = 0
        self._order: deque[Tail] = deque()

    def admit(self, tail: Tail, size: int) -> None:
        """Count a batch just put into ``tail`` and evict what no longer fits."""
        self._order.append(tail)
        self.total += size
        while self.total > self.budget and self._order:
            self.total -= self._order.popleft().drop_oldest()


class Tail:
    """The cached batches of one partition: contiguous, ending at the high watermark."""

    __slots__ = ("_bases", "_batches", "_cache", "_cleared", "_ends", "_head")

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._bases: list[int] = []
        self._batches: list[StoredBatch] = []
        # Cumulative bytes of payload at the end of each batch.
        self._ends: list[int] = []
        self._head = 0
        # Sizes of batches that were cleared together; the budget's queue still counts them one by one.
        self._cleared: deque[int] = deque()

    def append(self, batch: StoredBatch) -> None:
        """Add the next batch of the partition."""
        base, end, flags, payload, written_ms = batch
        size = len(payload)
        kept = len(payload.obj) if type(payload) is memoryview else size  # type: ignore[arg-type]
        if size * 4 < kept * 3:
            batch = StoredBatch(base, end, flags, bytes(payload), written_ms)
            kept = size
        self._bases.append(base)
        self._batches.append(batch)
        ends = self._ends
        ends.append(ends[-1] + size if ends else size)
        self._cache.admit(self, kept + OVERHEAD)

    def drop_oldest(self) -> int:
        """Evict the oldest batch; return its size in bytes."""
        if self._cleared:
            return self._cleared.popleft()
        size = _held_bytes(self._batches[self._head].payload) + OVERHEAD
        self._batches[self._head] = _GONE
        self._head += 1
        if self._head >= _COMPACT_AFTER and self._head * 2 >= len(self._bases):
            del self._bases[: self._head], self._batches[: self._head], self._ends[: self._head]
            self._head = 0
        return size

    def clear(self) -> None:
        """Evict everything (the partition was closed, lost its owner, or continues with batches that are not
        cached)."""
        if not self._bases:
            return
        self._cleared.extend(_held_bytes(batch.payload) + OVERHEAD for batch in self._batches[self._head :])
        self._ends.clear()
        self._bases.clear()
        self._batches.clear()
        self._head = 0

    def reaches(self, start: int, end: int) -> bool:
        """Return whether a batch in ``[start, end)`` is cached."""
        bases = self._bases
        return self._head < len(bases) and bases[self._head] < end and start < self._batches[-1].end_offset

    def _position(self, offset: int) -> int:
        """Return the index of the batch that contains ``offset``; -1 when it is not cached."""
        bases = self._bases
        if self._head >= len(bases) or offset < bases[self._head] or offset >= self._batches[-1].end_offset:
            return -1
        return bisect_right(bases, offset, self._head) - 1

    def _until(self, position: int, max_bytes: int) -> int:
        """Return the index after the last batch from ``position`` on that fits; the first always does."""
        most = self._ends[position] - len(self._batches[position].payload) + max_bytes
        return max(position + 1, bisect_right(self._ends, most, position))

    def read(self, offset: int, max_bytes: int) -> list[StoredBatch] | None:
        """Return batches from the one that contains ``offset`` on, at least one; None when it is not cached."""
        position = self._position(offset)
        return None if position < 0 else self._batches[position : self._until(position, max_bytes)]

    def bytes_from(self, offset: int, enough: int, limit: int) -> int | None:
        """Return the bytes from the batch that contains ``offset`` to the last that begins below ``limit``, counted up
        to ``enough``; None if not cached."""
        position = self._position(offset)
        if position < 0:
            return None
        first = len(self._batches[position].payload)
        last = -1 if self._bases[-1] < limit else max(position, bisect_left(self._bases, limit, position) - 1)
        return max(first, min(enough, self._ends[last] - self._ends[position] + first))

    def measure(self, offset: int, max_bytes: int, limit: int) -> tuple[int, int, int, int] | None:
        """Return (start, end, bytes, batches) of what :meth:`read` would find of batches that begin before
        ``limit``."""
        position = self._position(offset)
        if position < 0 or self._bases[position] >= limit:
            return None
        last = min(self._until(position, max_bytes), bisect_left(self._bases, limit, position)) - 1
        first = self._batches[position]
        size = self._ends[last] - self._ends[position] + len(first.payload)
        return first.base_offset, self._batches[last].end_offset, size, last - position + 1


_GONE = StoredBatch(-1, -1, 0, b"")
