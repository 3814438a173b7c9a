"""Queue of items to be written, in which each stream has a fair turn. Sans-IO.

While no more waits than is taken at once, the order is that of arrival. Beyond that it is start-time fair queueing
(Goyal, Vin, Cheng, SIGCOMM 1996): on a scale of bytes, an item begins where the last one of its streams ends, but not
before what is being taken now, and the item that begins first is taken first. So an item of a stream with little
traffic is taken next, however much others have queued; busy streams get as many bytes as each other; and items of each
stream are taken in the order in which they came, also those of several streams.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from sbp_back.range_server.store.writing.wal_items import Item, bytes_by_stream

_SPARE = 1024
"""Streams that are remembered before those without waiting items are forgotten."""


class FairQueue:
    """A queue of one thread. ``few``: bytes that may wait in the order of arrival."""

    __slots__ = ("_few", "_few_bytes", "_many", "_most_ends", "_now", "_number", "ends", "few")

    def __init__(self, few: int) -> None:
        self.few = few
        self._few: deque[Item] = deque()
        self._few_bytes = 0
        # Heap of (begin on the scale of bytes, number, item); empty while all items are in ``_few``.
        self._many: list[tuple[int, int, Item]] = []
        self._number = 0
        self._now = 0
        """Begin of the item that was taken last."""
        self.ends: dict[int, int] = {}
        """End of each stream's last item."""
        self._most_ends = _SPARE

    def __len__(self) -> int:
        return len(self._few) + len(self._many)

    def put(self, item: Item) -> None:
        if self._many:
            self._place(item)
            return
        self._few.append(item)
        self._few_bytes += item.bytes
        if self._few_bytes > self.few:
            for waiting in self._few:
                self._place(waiting)
            self._few.clear()
            self._few_bytes = 0

    def take(self) -> Item | None:
        """Return the next item; None when there is none."""
        if self._few:
            item = self._few.popleft()
            self._few_bytes -= item.bytes
            return item
        if not self._many:
            return None
        self._now, _, item = heappop(self._many)
        if not self._many:
            self.ends.clear()  # the queue is empty: no stream is owed a turn
        return item

    def _place(self, item: Item) -> None:
        ends = self.ends
        sizes = bytes_by_stream(item)
        begin = max([self._now, *(ends.get(stream, 0) for stream in sizes)])
        for stream, size in sizes.items():
            ends[stream] = begin + size
        self._number += 1
        heappush(self._many, (begin, self._number, item))
        if len(ends) > self._most_ends:
            self.ends = {stream: end for stream, end in ends.items() if end > self._now}
            self._most_ends = 2 * len(self.ends) + _SPARE
