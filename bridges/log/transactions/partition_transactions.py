"""Transactions of one partition: the open ones, and the ranges of the log that belong to aborted ones (docs/design.md,
"Transactions").

Batches of an open transaction lie in the log like others; its marker, a batch of its own, decides them. This is pure
state, fed with durable batches in offset order, at run time and when rebuilding.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

from bridges.errors import BatchInvalid
from bridges.formats import FormatId, format_of
from bridges.formats.kafka import encode
from bridges.formats.producer import InTransaction
from bridges.formats.records import StoredBatch
from sbp_back.errors import DecodeError

NEVER = 1 << 62
"""An offset behind every log."""
MOST_TOLD = 1_000
"""Most aborted ranges in one read: its answer lists each."""
KEPT = 1_000
"""The latest aborted ranges of a partition, which stay in memory."""
IN_BLOCK = 1_000
"""Aborted ranges written together (:mod:`bridges.log.transactions.aborted_blocks`)."""
MOST_UNSAVED = 100_000
"""Most aborted ranges in memory while they cannot be written."""

_COUNTS = struct.Struct(">II")
"""Numbers of open transactions and aborted ranges; their columns follow, 64 bits a number."""
_OPEN_COLUMNS = 2
_ABORTED_COLUMNS = 4
_BLOCKS = struct.Struct(">qQ")
"""The last marker in blocks, and the number of blocks so far; behind the columns, and missing in captures from before
blocks."""


class Aborted(NamedTuple):
    """An aborted transaction: its data begins at ``first_offset``, its marker lies at ``last_offset``."""

    producer_id: int
    first_offset: int
    last_offset: int


class Block(NamedTuple):
    """Aborted ranges in the order of their markers; ``number`` counts a partition's blocks."""

    producers: array[int]
    firsts: array[int]
    lasts: array[int]
    number: int = 0

    @property
    def columns(self) -> tuple[array[int], array[int], array[int]]:
        return self.producers, self.firsts, self.lasts


class Transactions:
    """The transactions of one partition. ``most`` limits the open ones: beyond it none may begin until one ends.

    An aborted transaction cannot be forgotten while its batches are kept: readers would take them for committed. The
    latest are in memory; earlier ones are in blocks, which :class:`.AbortedBlocks` writes and reads.
    """

    __slots__ = (
        "_firsts",
        "_lasts",
        "_most",
        "_producers",
        "_spill_at",
        "_stables",
        "blocks",
        "first_open",
        "full",
        "oldest_block",
        "open",
        "persisted",
    )

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self.open: dict[int, int] = {}
        """The first offset of each open transaction, by producer, in ascending order."""
        self.first_open = NEVER
        """The first offset of the first open transaction."""
        self.persisted = -1
        """The marker up to which aborted ranges are in blocks, durably, and not here; -1: none."""
        self.blocks = 0
        """Number of blocks so far."""
        self.oldest_block = -1
        """Blocks that end below this offset are deleted."""
        self.full = False
        """Whether memory holds more than it should, enough to write a block."""
        self._spill_at = KEPT + IN_BLOCK
        # Aborted ranges, in the order of their markers. A number of ``_stables`` is the last stable offset behind the
        # marker: every range that ends later begins there or behind.
        self._producers = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        self._stables = array("q")

    def __len__(self) -> int:
        """Return the number of open transactions, and aborted ones in memory."""
        return len(self.open) + len(self._lasts)

    def has_room(self, part: InTransaction) -> bool:
        """Return whether a batch may be appended. A marker, or a batch of an open transaction, always may."""
        if part.commit is not None or part.producer_id in self.open:
            return True
        return len(self.open) < self._most and len(self._lasts) < MOST_UNSAVED

    def observe(self, part: InTransaction, base_offset: int) -> None:
        """Add a durable batch of a transaction."""
        producer = part.producer_id
        if part.commit is None:
            if self.open.setdefault(producer, base_offset) < self.first_open:
                self.first_open = base_offset
            return
        first = self.open.pop(producer, None)
        if first is None:
            return  # it has no batches here, or none is kept
        self.first_open = next(iter(self.open.values()), NEVER)
        if not part.commit:
            self._producers.append(producer)
            self._firsts.append(first)
            self._lasts.append(base_offset)
            self._stables.append(min(self.first_open, base_offset + 1))
            self.full = len(self._lasts) >= self._spill_at

    def aborted(self, start: int, end: int) -> list[Aborted]:
        """Return the aborted transactions in memory with batches in ``[start, end)``, or reaching over it, in the order
        of their ends.

        Below the last stable offset all are known.
        """
        found: list[Aborted] = []
        lasts, firsts, stables = self._lasts, self._firsts, self._stables
        for at in range(bisect_left(lasts, start), len(lasts)):
            if firsts[at] < end:
                found.append(Aborted(self._producers[at], firsts[at], lasts[at]))
            if stables[at] >= end:
                break
        return found

    def reach(self, start: int, limit: int) -> int:
        """Return how far a read from ``start`` on may go, at most up to ``limit``, to meet at most :data:`MOST_TOLD`
        aborted ranges that end in it; always above ``start`` if ``limit`` is. ``start`` lies behind
        :attr:`persisted`."""
        at = bisect_left(self._lasts, start) + MOST_TOLD - 1
        return min(limit, self._lasts[at] + 1) if at < len(self._lasts) else limit

    # --- blocks -----------------------------------------------------------------------------------------------------

    def surplus(self) -> Block | None:
        """Return the next block to write, None if there is too little for one."""
        if len(self._lasts) < KEPT + IN_BLOCK:
            return None
        return Block(self._producers[:IN_BLOCK], self._firsts[:IN_BLOCK], self._lasts[:IN_BLOCK], self.blocks)

    def is_persisted(self, block: Block) -> None:
        """Release the ranges of ``block``, which is durable."""
        self.persisted = block.lasts[-1]
        self.blocks = block.number + 1
        self.drop_before(self.persisted + 1)
        self._spill_at = KEPT + IN_BLOCK
        self.full = len(self._lasts) >= self._spill_at

    def put_off(self) -> None:
        """Delay the next attempt, after a block could not be written, until there is one block more."""
        self._spill_at = len(self._lasts) + IN_BLOCK
        self.full = False

    def forget(self, markers: Collection[int]) -> None:
        """Forget the aborted ranges that end with ``markers``. All their batches are gone, so none can be taken for
        committed. A reader that knows a range looks for its marker."""
        kept = bytearray(b"\1") * len(self._lasts)
        for marker in markers:
            at = bisect_left(self._lasts, marker)
            if at < len(self._lasts) and self._lasts[at] == marker:
                kept[at] = 0
        for column in self._columns():
            column[:] = array("q", compress(column, kept))

    def drop_before(self, offset: int) -> None:
        """Forget the aborted ranges that end below ``offset``; open transactions stay open."""
        gone = bisect_left(self._lasts, offset)
        if gone:
            for column in self._columns():
                del column[:gone]

    def _columns(self) -> tuple[array[int], array[int], array[int], array[int]]:
        return self._producers, self._firsts, self._lasts, self._stables

    # --- snapshots --------------------------------------------------------------------------------------------------

    def capture(self) -> bytes:
        """Return everything as bytes, for :meth:`restore`."""
        columns = [array("q", self.open), array("q", self.open.values()), *self._columns()]
        counts = _COUNTS.pack(len(self.open), len(self._lasts))
        return b"".join([counts, *map(packed, columns), _BLOCKS.pack(self.persisted, self.blocks)])

    def restore(self, data: bytes, *, stale: bool = False, former: bool = False) -> None:
        """Replace all state by a capture's.

        ``stale``: some later batches are lost. Open transactions may have ended there; one whose later batches are kept
        is opened again by them. ``former``: the capture is from before blocks. Raises DecodeError.
        """
        if len(data) < _COUNTS.size:
            raise DecodeError("snapshot of transactions is cut short")
        opened, aborted = _COUNTS.unpack_from(data)
        sizes = [opened] * _OPEN_COLUMNS + [aborted] * _ABORTED_COLUMNS
        length = _COUNTS.size + 8 * sum(sizes)
        if len(data) != length + (0 if former else _BLOCKS.size):
            raise DecodeError("snapshot of transactions has another shape")
        position = _COUNTS.size
        columns = []
        for size in sizes:
            columns.append(unpacked(data[position : position + 8 * size]))
            position += 8 * size
        self.persisted, self.blocks = (-1, 0) if former else _BLOCKS.unpack_from(data, length)
        producers, firsts, self._producers, self._firsts, self._lasts, self._stables = columns
        self.open = {} if stale else dict(zip(producers, firsts, strict=True))
        self.first_open = next(iter(self.open.values()), NEVER)
        self.full = len(self._lasts) >= self._spill_at


def packed(column: array[int]) -> bytes:
    """Encode with 64 bits a number, big-endian."""
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def unpacked(data: bytes) -> array[int]:
    """Decode the result of :func:`packed`."""
    column = array("q", data)
    if sys.byteorder == "little":
        column.byteswap()
    return column


def without_aborted(batches: Iterable[StoredBatch], aborted: Sequence[Aborted]) -> list[StoredBatch]:
    """Return ``batches`` of one read, with gaps, batches without records, in the place of aborted ones.

    ``aborted``: all aborted transactions in the range read. Formats need not know of transactions to skip gaps.
    """
    if not aborted:
        return list(batches)
    ranges = by_producer(aborted)
    return [_gap(batch) if _is_aborted(batch, ranges) else batch for batch in batches]


def by_producer(aborted: Sequence[Aborted]) -> dict[int, list[tuple[int, int]]]:
    """Return (first offset, offset of the marker) of each producer's aborted transactions, in order."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for one in aborted:
        ranges.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))
    return ranges


def _is_aborted(batch: StoredBatch, ranges: Mapping[int, list[tuple[int, int]]]) -> bool:
    try:
        part = format_of(batch.flags).describe(batch.payload).transaction
    except BatchInvalid:
        return False  # its readers get the error
    return part is not None and was_aborted(part.producer_id, batch.base_offset, ranges)


def was_aborted(producer_id: int, base_offset: int, ranges: Mapping[int, list[tuple[int, int]]]) -> bool:
    """Return whether a producer's transactional batch at ``base_offset`` is part of one of ``ranges``."""
    of_producer = ranges.get(producer_id, [])
    # One producer's transactions do not overlap: the first, in order, that ends here or later is the one.
    at = bisect_left(of_producer, base_offset, key=lambda one: one[1])
    return at < len(of_producer) and of_producer[at][0] <= base_offset


def is_marker(producer_id: int, base_offset: int, ranges: Mapping[int, list[tuple[int, int]]]) -> bool:
    """Return whether the marker at ``base_offset`` ends one of ``ranges``."""
    of_producer = ranges.get(producer_id, [])
    at = bisect_left(of_producer, base_offset, key=lambda one: one[1])
    return at < len(of_producer) and of_producer[at][1] == base_offset


def _gap(batch: StoredBatch) -> StoredBatch:
    base, end = batch.base_offset, batch.end_offset
    return batch._replace(flags=int(FormatId.KAFKA), payload=encode([], base, count=end - base))
