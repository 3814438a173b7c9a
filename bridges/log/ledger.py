"""Producer deduplication of one partition: who wrote what last (design, section 4).

Idempotent producers number their records per partition. The ledger keeps the last five batches of each producer, so a
retried batch is recognised and answered with its original offset, and a gap is refused (reference/kafka.md, rules
29-33; KIP-98, KIP-360). It is pure state: the partition log feeds it in append order, at run time and when rebuilding.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from itertools import islice
from typing import NamedTuple

from bridges.errors import OutOfOrderSequence, ProducerFenced
from bridges.formats.producer import SEQUENCES as _SEQUENCES
from bridges.formats.producer import ProducerStamp
from sbp_back.errors import DecodeError

BATCHES_KEPT = 5
"""Batches remembered of each producer; a producer may have that many in flight."""
SLICE = 1000
"""Producers handled in one turn of the event loop by whatever looks at many: how many there are is for clients to
choose."""

# What is known of a producer is one row of bytes, in memory as in snapshots: 170 to 320 bytes of memory a producer with
# its place in the table (objects took 1,030), and a snapshot only strings rows together.
_HEAD = struct.Struct(">qhqB")
"""Producer id, epoch, wall clock (ms) of its last append, number of batches, which follow, oldest first."""
_BATCH = struct.Struct(">iiq")
"""First and last sequence number, base offset."""
_FIRST = struct.Struct(">qhqBiiq")
_HEAD_SIZE = _HEAD.size
_WITHOUT_OLDEST = _HEAD.size + _BATCH.size
_LAST_SEQUENCE = struct.Struct(">i")
_LAST_SEQUENCE_BACK = 12
"""Bytes from there to the end of a row."""
_LAST_MS = struct.Struct(">q")
_LAST_MS_AT = 10
_COUNT_AT = 18
_STALE = 0x80
"""In the number of batches: this producer may have written others since, of which nothing is known any more."""


class WrittenBatch(NamedTuple):
    """A batch the ledger remembers."""

    first_sequence: int
    last_sequence: int
    base_offset: int


class ProducerState(NamedTuple):
    """One producer on this partition; ``last_ms`` is the wall clock of its last append."""

    producer_id: int
    epoch: int
    last_ms: int
    batches: list[WrittenBatch]


class Ledger:
    """The producers of one partition."""

    __slots__ = ("_frozen", "_rows", "max_producers")

    def __init__(self, max_producers: int = 100_000) -> None:
        self.max_producers = max_producers
        # Insertion order is order of last use, so the longest idle producer is always the first.
        self._rows: dict[int, bytes] = {}
        # While a snapshot is read out: everything as it was, unchanged; what was written since is in the other one.
        self._frozen: dict[int, bytes] | None = None

    def __len__(self) -> int:
        """Producers known; while a snapshot is read out, some may count twice."""
        return len(self._rows) + (len(self._frozen) if self._frozen is not None else 0)

    def __contains__(self, producer_id: int) -> bool:
        return self._find(producer_id) is not None

    def _find(self, producer_id: int) -> bytes | None:
        row = self._rows.get(producer_id)
        if row is None and self._frozen is not None:
            row = self._frozen.get(producer_id)
        return row

    def get(self, producer_id: int) -> ProducerState | None:
        """What is known of a producer."""
        row = self._find(producer_id)
        return None if row is None else _state(row)

    def producer_ids(self) -> list[int]:
        """Everybody known, the longest idle first."""
        if self._frozen is None:
            return list(self._rows)
        return [*(one for one in self._frozen if one not in self._rows), *self._rows]

    def check(self, stamp: ProducerStamp) -> int | None:
        """May this batch be appended next? Returns None if so, or the base offset of the batch it repeats.

        Raises ProducerFenced (an older epoch) or OutOfOrderSequence.
        """
        producer_id, stamped, base_sequence, _ = stamp
        row = self._rows.get(producer_id) or self._find(producer_id)
        if row is None:
            return None  # never seen, or expired: any sequence number may start (KIP-360)
        _, epoch, _, count = _HEAD.unpack_from(row)
        if stamped != epoch:
            if stamped < epoch:
                raise ProducerFenced(f"producer {producer_id} is at epoch {epoch}, not {stamped}")
            if base_sequence != 0 and not count & _STALE:
                raise OutOfOrderSequence(f"a new producer epoch starts at sequence 0, not {base_sequence}")
            return None
        if not count:
            return None
        expected = (_LAST_SEQUENCE.unpack_from(row, len(row) - _LAST_SEQUENCE_BACK)[0] + 1) % _SEQUENCES
        if base_sequence == expected:
            return None
        last_sequence = stamp.last_sequence
        for first, last, base_offset in _BATCH.iter_unpack(row[_HEAD.size :]):
            if first == base_sequence and last == last_sequence:
                return int(base_offset)
        if count & _STALE:
            return None
        raise OutOfOrderSequence(f"producer {producer_id} sent sequence {base_sequence}, expected {expected}")

    def record(self, stamp: ProducerStamp, base_offset: int, now_ms: int) -> None:
        """Remember a batch that was appended at ``base_offset``."""
        producer_id, epoch, first, records = stamp
        last = (first + records - 1) % _SEQUENCES
        rows = self._rows
        row = rows.pop(producer_id, None)
        if row is None and self._frozen is not None:
            row = self._frozen.get(producer_id)
        count = 0
        if row is not None:
            _, known, _, count = _HEAD.unpack_from(row)
            count = count & ~_STALE if known == epoch else 0
        if row is None or not count:
            rows[producer_id] = _FIRST.pack(producer_id, epoch, now_ms, 1, first, last, base_offset)
        elif count < BATCHES_KEPT:
            head = _HEAD.pack(producer_id, epoch, now_ms, count + 1)
            rows[producer_id] = head + row[_HEAD_SIZE:] + _BATCH.pack(first, last, base_offset)
        else:
            head = _HEAD.pack(producer_id, epoch, now_ms, count)
            rows[producer_id] = head + row[_WITHOUT_OLDEST:] + _BATCH.pack(first, last, base_offset)
        if len(rows) > self.max_producers and self._frozen is None:
            self.shrink(self.max_producers)

    def shrink(self, producers: int) -> int:
        """Forget the longest idle producers beyond ``producers``; returns how many. Nothing while a snapshot is read
        out: that ends with it."""
        if self._frozen is not None or len(self._rows) <= producers:
            return 0
        # Some more than need be: finding the first of a table costs the more the more were taken out in front.
        surplus = len(self._rows) - producers + (producers >> 7)
        for producer_id in list(islice(self._rows, surplus)):
            del self._rows[producer_id]
        return surplus

    def expire(self, before_ms: int) -> int:
        """Forget producers idle since ``before_ms``, at most :data:`SLICE` of them; returns how many.

        Looks only at these and one more: the longest idle come first. Nothing expires while a snapshot is read out.
        """
        if self._frozen is not None:
            return 0
        idle: list[int] = []
        for producer_id, row in self._rows.items():
            if len(idle) >= SLICE or _LAST_MS.unpack_from(row, _LAST_MS_AT)[0] >= before_ms:
                break
            idle.append(producer_id)
        for producer_id in idle:
            del self._rows[producer_id]
        return len(idle)

    def forget(self, stamp: ProducerStamp, base_offset: int) -> None:
        """Take back :meth:`record` for a batch that could not be stored; the latest one first."""
        row = self._find(stamp.producer_id)
        if row is None or len(row) == _HEAD_SIZE or _BATCH.unpack_from(row, len(row) - _BATCH.size)[2] != base_offset:
            return
        self._rows[stamp.producer_id] = _cut(row, _batches(row) - 1)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def capture(self, below: int, in_flight: Collection[int] = ()) -> LedgerCapture:
        """What was written below offset ``below``, as of now, to be read out while writing goes on.

        Batches at or above it may not be durable yet, so a snapshot must not vouch for them: ``in_flight`` are the
        producers that have such. Close it; one at a time.
        """
        if self._frozen is not None:
            raise RuntimeError("another snapshot of this ledger is being read out")
        return LedgerCapture(self, below, in_flight)

    def _freeze(self) -> dict[int, bytes]:
        self._frozen, self._rows = self._rows, {}
        return self._frozen

    def _thaw(self) -> None:
        written, self._rows, self._frozen = self._rows, self._frozen or {}, None
        for producer_id, row in written.items():
            self._rows.pop(producer_id, None)  # to its place in the order
            self._rows[producer_id] = row
        self.shrink(self.max_producers)

    def restoring(self, data: bytes | memoryview, *, stale: bool = False) -> Iterator[None]:
        """Replace all state by a capture's pieces, :data:`SLICE` producers at each step.

        ``stale``: what was written since is lost, and producers may be further than is known here. Their repetitions
        are recognised, and what is none is taken for their next batch. Raises DecodeError; then the state is empty.
        """
        self._rows = {}
        rows: dict[int, bytes] = {}
        position, end = 0, len(data)
        while position < end:
            if end - position < _HEAD.size:
                raise DecodeError("producer snapshot is cut short")
            count = data[position + _COUNT_AT] & ~_STALE
            size = _HEAD.size + count * _BATCH.size
            if count > BATCHES_KEPT or end - position < size:
                raise DecodeError("producer snapshot is cut short")
            row = bytes(data[position : position + size])
            if stale:
                row = b"%b%c%b" % (row[:_COUNT_AT], count | _STALE, row[_HEAD_SIZE:])
            rows[_LAST_MS.unpack_from(row)[0]] = row
            position += size
            if len(rows) % SLICE == 0:
                yield
        self._rows = rows
        self.shrink(self.max_producers)


class LedgerCapture:
    """A ledger as it was at one instant."""

    __slots__ = ("_as_durable", "_ledger", "_rows")

    def __init__(self, ledger: Ledger, below: int, in_flight: Collection[int]) -> None:
        self._ledger: Ledger | None = ledger
        self._as_durable = {one: _below(row, below) for one in in_flight if (row := ledger._find(one)) is not None}
        self._rows = iter(ledger._freeze().items())

    def pieces(self) -> Iterator[bytes]:
        """All of it, :data:`SLICE` producers at a time."""
        durable = self._as_durable
        while rows := list(islice(self._rows, SLICE)):
            told = [durable.get(producer_id, row) for producer_id, row in rows] if durable else [row for _, row in rows]
            # A row may have no batch left: its producer's only one could not be stored.
            yield b"".join([row for row in told if len(row) > _HEAD_SIZE])

    def close(self) -> None:
        """Let the ledger go on alone. Idempotent."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger._thaw()


def _state(row: bytes) -> ProducerState:
    producer_id, epoch, last_ms, _ = _HEAD.unpack_from(row)
    return ProducerState(producer_id, epoch, last_ms, [*map(WrittenBatch._make, _BATCH.iter_unpack(row[_HEAD.size :]))])


def _batches(row: bytes) -> int:
    return (len(row) - _HEAD_SIZE) // _BATCH.size


def _cut(row: bytes, count: int) -> bytes:
    """The row with its first ``count`` batches only."""
    return (
        row[:_COUNT_AT] + bytes((count | row[_COUNT_AT] & _STALE,)) + row[_HEAD.size : _HEAD.size + count * _BATCH.size]
    )


def _below(row: bytes, below: int) -> bytes:
    """The row without batches at or above offset ``below``; nothing if none are left."""
    count = sum(batch[2] < below for batch in _BATCH.iter_unpack(row[_HEAD.size :]))
    return _cut(row, count) if count else b""
