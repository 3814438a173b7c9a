"""Aborted ranges of all partitions except the latest of each: blocks in the node's database, sorted by their markers.

A block is durable before memory releases its ranges. A snapshot says up to which marker blocks are valid: later ones
belong to a run that died before its next snapshot, and their ranges are found in the log again. Readers get windows,
parts of a log with all their aborted ranges in memory; one cache of a bounded size holds all windows.
"""

from __future__ import annotations

import asyncio
import zlib
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Sequence
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import structlog

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.shared import SharedWorks
from bridges.catalog.database.sql import Connection, Database
from bridges.errors import DataCorrupt, LogError, LogUnavailable
from bridges.log.state.stream_rows import StreamRows
from bridges.log.transactions.partition_transactions import (
    MOST_TOLD,
    NEVER,
    Aborted,
    Block,
    Transactions,
    packed,
    unpacked,
)

if TYPE_CHECKING:
    from bridges.log.partition.partition_log import PartitionLog

_log = structlog.get_logger("anabranch.aborted")

CACHE_BYTES = 16 * 1024 * 1024
"""Bytes of the windows of all partitions together."""
_CRC_BYTES = 4
_RANGE_BYTES = 4 * 8
_WINDOW_BYTES = 500
"""Bytes of an empty window."""
_LOADS = 4
"""Windows loaded at the same time: other work of the database's thread runs in between."""
_AGAIN_S = 1.0
"""Seconds after which readers request a window again that could not be loaded."""


class Window(NamedTuple):
    """All aborted ranges of blocks with a part in ``[start, end)``, in the order of their markers."""

    start: int
    end: int
    producers: array[int]
    firsts: array[int]
    lasts: array[int]
    lowest: array[int]
    """For each range: the lowest beginning of it and those after it."""

    def aborted(self, start: int, end: int) -> list[Aborted]:
        """Return the ranges with a part in ``[start, end)``, which lies in the window."""
        found: list[Aborted] = []
        lasts, firsts, lowest = self.lasts, self.firsts, self.lowest
        for at in range(bisect_left(lasts, start), len(lasts)):
            if lowest[at] >= end:
                break
            if firsts[at] < end:
                found.append(Aborted(self.producers[at], firsts[at], lasts[at]))
        return found

    @property
    def size(self) -> int:
        """Return the bytes of memory."""
        return _WINDOW_BYTES + _RANGE_BYTES * len(self.lasts)


class AbortedBlocks(StreamRows):
    """The blocks of one node's partitions. Without a database there are none: memory keeps all ranges."""

    __slots__ = ("_barrier", "_cached", "_db", "_gate", "_keeping", "_loading", "_locks", "_order", "_windows", "most")

    table = "aborted_blocks"
    columns = ("last_offset", "number", "behind", "epoch", "least_first", "ranges")

    def __init__(
        self, db: Database | None = None, barrier: Barrier | None = None, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._db = db
        self._barrier = barrier or Barrier()
        self.most = cache_bytes
        self._cached = 0
        # By stream: the cached windows in order, and their starts. And all of them, the longest unused first.
        self._windows: dict[int, list[Window]] = {}
        self._order: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._loading: SharedWorks[tuple[PartitionLog, int], LogError | None] = SharedWorks()
        self._gate = asyncio.Semaphore(_LOADS)
        self._keeping: SharedWorks[PartitionLog, None] = SharedWorks()
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    @property
    def cached_bytes(self) -> int:
        return self._cached

    # --- writing ----------------------------------------------------------------------------------------------------

    def want(self, log: PartitionLog) -> None:
        """Write the ranges that exceed memory's share soon, and delete trimmed blocks."""
        if self._db is not None:
            self._keeping.start(log, partial(self._keep, log))

    async def drain(self) -> None:
        """Return once nothing is being written or loaded."""
        await self._keeping.drain()
        await self._loading.drain()

    async def _keep(self, log: PartitionLog) -> None:
        transactions = log.state.transactions
        try:
            await self.keep(log.stream_id, log.epoch, transactions, log.log_start_offset)
        except LogError as error:
            transactions.put_off()
            _log.warning("aborted ranges not saved", topic=log.topic, partition=log.partition, error=str(error))
        except Exception as error:  # noqa: BLE001 - logged and counted; memory keeps the ranges
            transactions.put_off()
            self._barrier.caught("saving aborted ranges", error, topic=log.topic, partition=log.partition)

    async def keep(self, stream_id: int, epoch: int, transactions: Transactions, start: int) -> None:
        """Write the ranges that exceed memory's share, in the log's ``epoch``, and delete blocks below ``start``.

        Raises an error of the database, and LogUnavailable if the log has been opened in a later epoch.
        """
        if self._db is None:
            return
        async with self._lock(stream_id):
            if transactions.oldest_block < start and transactions.persisted >= 0:
                delete = "DELETE FROM aborted_blocks WHERE stream_id = ? AND last_offset < ?"
                await self._db.run(lambda connection: connection.execute(delete, (stream_id, start)))
                transactions.oldest_block = start
            while (block := transactions.surplus()) is not None:
                await self._db.run(partial(_write, stream_id, epoch, transactions.persisted, block))
                self._spilled(stream_id, min(block.firsts))
                transactions.is_persisted(block)

    async def forget(self, stream_id: int, transactions: Transactions, markers: Collection[int]) -> None:
        """Forget ranges like :meth:`.Transactions.forget`, durably if they are in blocks. Raises an error of the
        database."""
        async with self._lock(stream_id):
            transactions.forget(markers)
            persisted = transactions.persisted
            gone = sorted(marker for marker in markers if marker <= persisted)
            if self._db is not None and gone:
                await self._db.run(partial(_forget, stream_id, gone, persisted))
                self.drop(stream_id)

    def _lock(self, stream_id: int) -> asyncio.Lock:
        lock = self._locks.get(stream_id)
        if lock is None:
            lock = self._locks[stream_id] = asyncio.Lock()
        return lock

    # --- opening ----------------------------------------------------------------------------------------------------

    async def hold(self, stream_id: int, transactions: Transactions, start: int) -> bool:
        """Return whether all blocks that a snapshot relies on exist, for a log that starts at ``start``; drop the
        cached windows of a former opening. Raises an error of the database."""
        self.drop(stream_id)
        persisted, number = transactions.persisted, transactions.blocks - 1
        if persisted < start:
            return True
        if self._db is None:
            return False
        query = (
            "SELECT count(*), min(number), max(number), min(behind) FROM aborted_blocks "
            "WHERE stream_id = ? AND last_offset >= ? AND last_offset <= ?"
        )
        count, first, last, behind = await self._db.run(
            lambda connection: connection.execute(query, (stream_id, start, persisted)).fetchone()
        )
        return bool(count and last == number and count == last - first + 1 and behind < start)

    # --- reading ----------------------------------------------------------------------------------------------------

    def window(self, stream_id: int, offset: int) -> Window | None:
        """Return a cached window that contains ``offset``, or None."""
        windows = self._windows.get(stream_id)
        if windows is None:
            return None
        at = bisect_left(windows, offset + 1, key=_start) - 1
        if at < 0 or windows[at].end <= offset:
            return None
        self._order.move_to_end((stream_id, windows[at].start))
        return windows[at]

    def want_window(self, log: PartitionLog, offset: int) -> None:
        """Load a window that contains ``offset`` soon. The log's waiters are called when it is cached, or may be
        requested again."""
        self._loading.start((log, offset), partial(self._load, log, offset))

    async def load(self, log: PartitionLog, offset: int) -> LogError | None:
        """Load a window that contains ``offset``; return its error, or None."""
        return await self._loading.wait((log, offset), partial(self._load, log, offset))

    async def _load(self, log: PartitionLog, offset: int) -> LogError | None:
        transactions = log.state.transactions
        persisted = transactions.persisted
        try:
            async with self._gate:
                if self._db is None:
                    raise LogUnavailable("there is no database for aborted transactions")
                read = partial(read_window, log.stream_id, offset, persisted)
                window = await self._db.run(read)
        except LogError as error:
            failure: LogError = error
            _log.warning("aborted ranges not read", topic=log.topic, partition=log.partition, error=str(error))
        except Exception as error:  # noqa: BLE001 - logged, counted and answered
            self._barrier.caught("reading aborted ranges", error, topic=log.topic, partition=log.partition)
            failure = LogError(f"the aborted transactions of {log.topic}-{log.partition} cannot be told")
        else:
            # A block written meanwhile may begin in the window; the reader requests it again.
            if log.state.transactions is transactions and transactions.persisted == persisted:
                self._take(log.stream_id, window)
            log.moved()
            return None
        asyncio.get_running_loop().call_later(_AGAIN_S, log.moved)
        return failure

    def _take(self, stream_id: int, window: Window) -> None:
        windows = self._windows.setdefault(stream_id, [])
        at = bisect_left(windows, window.start, key=_start)
        if at < len(windows) and windows[at].start == window.start:
            self._cached -= windows[at].size
            windows[at] = window
        else:
            windows.insert(at, window)
        self._cached += window.size
        self._order[stream_id, window.start] = window.size
        self._order.move_to_end((stream_id, window.start))
        while self._cached > self.most and len(self._order) > 1:
            self._remove(*next(iter(self._order)))

    def _remove(self, stream_id: int, start: int) -> None:
        windows = self._windows[stream_id]
        del windows[bisect_left(windows, start, key=_start)]
        if not windows:
            del self._windows[stream_id]
        self._cached -= self._order.pop((stream_id, start))

    def drop(self, stream_id: int) -> None:
        for window in list(self._windows.get(stream_id, ())):
            self._remove(stream_id, window.start)

    def _spilled(self, stream_id: int, first: int) -> None:
        """Evict the windows that reach over ``first``: they lack the block just written, whose first range begins
        there."""
        for window in list(self._windows.get(stream_id, ())):
            if window.end > first:
                self._remove(stream_id, window.start)


def _start(window: Window) -> int:
    return window.start


# --- in the database's thread ---------------------------------------------------------------------------------------


def _encoded(block: Block) -> bytes:
    data = b"".join(map(packed, (block.producers, block.firsts, block.lasts)))
    return zlib.crc32(data).to_bytes(_CRC_BYTES, "big") + data


def _decoded(stream_id: int, last: int, data: bytes) -> Block:
    columns = data[_CRC_BYTES:]
    size = len(columns) // 3
    if len(columns) % 24 or zlib.crc32(columns).to_bytes(_CRC_BYTES, "big") != data[:_CRC_BYTES]:
        raise DataCorrupt(
            f"what the database has of aborted transactions of stream {stream_id} up to {last} is damaged"
        )
    return Block(unpacked(columns[:size]), unpacked(columns[size : 2 * size]), unpacked(columns[2 * size :]))


def _write(stream_id: int, epoch: int, persisted: int, block: Block, connection: Connection) -> None:
    later = "SELECT 1 FROM aborted_blocks WHERE stream_id = ? AND epoch > ? LIMIT 1"
    if connection.execute(later, (stream_id, epoch)).fetchone() is not None:
        raise LogUnavailable(f"stream {stream_id} was opened in a later epoch than {epoch}")
    # Later blocks belong to a run whose snapshot was never saved.
    connection.execute("DELETE FROM aborted_blocks WHERE stream_id = ? AND last_offset > ?", (stream_id, persisted))
    connection.execute(
        "INSERT INTO aborted_blocks (stream_id, last_offset, number, behind, epoch, least_first, ranges) "
        "SELECT stream_id, ?, ?, ?, ?, ?, ? FROM partitions WHERE stream_id = ?",
        (block.lasts[-1], block.number, persisted, epoch, min(block.firsts), _encoded(block), stream_id),
    )


def _forget(stream_id: int, markers: Sequence[int], persisted: int, connection: Connection) -> None:
    query = (
        "SELECT last_offset, ranges FROM aborted_blocks WHERE stream_id = ? AND last_offset >= ? AND last_offset <= ? "
        "ORDER BY last_offset LIMIT 1"
    )
    update = "UPDATE aborted_blocks SET least_first = ?, ranges = ? WHERE stream_id = ? AND last_offset = ?"
    at = 0
    while at < len(markers):
        row = connection.execute(query, (stream_id, markers[at], persisted)).fetchone()
        if row is None:
            return
        last, block = row[0], _decoded(stream_id, *row)
        end = bisect_left(markers, last + 1)
        gone = set(markers[at:end])
        kept = [marker not in gone for marker in block.lasts]
        producers, firsts, lasts = (array("q", compress(column, kept)) for column in block.columns)
        left = Block(producers, firsts, lasts)
        connection.execute(update, (min(left.firsts, default=NEVER), _encoded(left), stream_id, last))
        at = end


def read_window(stream_id: int, start: int, persisted: int, connection: Connection) -> Window:
    """Return the window from ``start`` on: about :data:`MOST_TOLD` ranges that end in it, and those that reach over its
    end.

    The number of blocks read does not depend on how many there are. Raises DataCorrupt.
    """
    following = (
        "SELECT last_offset, ranges FROM aborted_blocks WHERE stream_id = ? AND last_offset >= ? AND last_offset <= ? "
        "AND least_first < ? ORDER BY last_offset LIMIT 1"
    )
    producers, firsts, lasts = array("q"), array("q"), array("q")
    position, end = start, persisted + 1
    bound = NEVER
    while (row := connection.execute(following, (stream_id, position, persisted, bound)).fetchone()) is not None:
        position = row[0] + 1
        block = _decoded(stream_id, *row)
        at = bisect_left(block.lasts, start)
        for producer, first, last in zip(block.producers[at:], block.firsts[at:], block.lasts[at:], strict=True):
            if first < bound:
                producers.append(producer)
                firsts.append(first)
                lasts.append(last)
            if len(lasts) == MOST_TOLD and bound == NEVER:
                # A range that ends behind the window is part of it if it begins before its end.
                bound = end = last + 1
    lowest = array("q", firsts)
    for at in range(len(lowest) - 2, -1, -1):
        lowest[at] = min(lowest[at], lowest[at + 1])
    return Window(start, end, producers, firsts, lasts, lowest)
