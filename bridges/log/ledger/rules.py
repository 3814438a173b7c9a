"""Rules of the ledger: what it remembers of each kind of writer, and how it decides by that (docs/design.md,
"Writing").

A rule turns a writer's row of bytes, and the stamp of its next batch, into a decision: append it, it is in the log
already, its first records are, or an error. A rule has no state. Rows begin with the wall clock (ms) of the writer's
last append; the rest is the rule's.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from enum import Enum
from typing import Any, NamedTuple, Protocol

from bridges.errors import EventNumberConflict, LogError, OutOfOrderSequence, ProducerFenced
from bridges.formats.producer import SEQUENCES as _SEQUENCES
from bridges.formats.producer import EventStamp, LedgerKind, ProducerStamp, SeqNoStamp

BATCHES_KEPT = 5
"""Batches remembered of each Kafka producer; a producer may have as many in flight."""


class Repeated(NamedTuple):
    """The whole batch is in the log, or in flight. It lies at these offsets, or before them where only a writer's last
    number is known."""

    base_offset: int
    end_offset: int


class Skip(NamedTuple):
    """The first ``records`` of a batch are in the log, or in flight; the others are new."""

    records: int


class Unproven(Enum):
    """The writer's row cannot prove whether earlier batches are missing."""

    WRITER = "unknown"


class Last(NamedTuple):
    """The last number of a writer, and the base offset of the batch that carried it: durable once the high watermark
    lies above."""

    number: int
    base_offset: int


class Rule(Protocol):
    """The decisions for one kind of writer."""

    def check(self, row: bytes | None, stamp: Any) -> Repeated | Skip | Unproven | None:
        """Decide about a batch: append it (None), skip its first records, or all of it. Unproven leaves the decision to
        the caller.

        ``row``: the row of its writer, None for an unknown one. Raises LogError for a batch to be refused.
        """

    def record(self, row: bytes | None, stamp: Any, base_offset: int, now_ms: int) -> bytes:
        """Return the row after a batch was appended at ``base_offset``."""

    def last(self, row: bytes) -> Last | None:
        """Return the last number in a row."""

    def valid(self, row: bytes) -> bool:
        """Return whether a row that was read from a snapshot has the right shape."""

    def stale(self, row: bytes) -> bytes:
        """Return the row of a writer that may have written more since, all of which is unknown."""


# --- Kafka ----------------------------------------------------------------------------------------------------------

# A producer takes 170 to 320 bytes of memory with its place in the table (objects took 1,030). The latest batch comes
# first, so that it is found at once.
_HEAD = struct.Struct(">qhB")
"""Wall clock (ms) of the last append, epoch, number of batches, which follow, the latest first."""
_BATCH = struct.Struct(">iiq")
"""First and last sequence number, base offset."""
_ROW = struct.Struct(">qhBiiq")
_LATEST = struct.Struct(">hBii")
_LATEST_AT = 8
_EPOCH = struct.Struct(">hB")
_HEAD_SIZE = _HEAD.size
_KEPT_OF_ROW = _HEAD.size + (BATCHES_KEPT - 1) * _BATCH.size
_COUNT_AT = 10
_NO_SEQUENCE = -1
"""First and last sequence number in the row of a producer without batches in its epoch: no batch repeats them, and the
next one begins with 0."""
_STALE = 0x80
"""A flag in the number of batches: this producer may have written other batches since, all unknown."""
_CLOCK = struct.Struct(">q")
_ID = struct.Struct(">q")


class WrittenBatch(NamedTuple):
    """A batch that the ledger remembers."""

    first_sequence: int
    last_sequence: int
    base_offset: int


class ProducerState(NamedTuple):
    """One Kafka producer on a partition; ``last_ms`` is the wall clock of its last append."""

    producer_id: int
    epoch: int
    last_ms: int
    batches: list[WrittenBatch]


class KafkaRule:
    """Rule of Kafka's idempotent producers, which number their records. The last five batches are remembered
    (docs/protocols/kafka.md, rules 29-33; KIP-98, KIP-360). A retried batch is answered with its original offset, a gap
    is refused.

    A transaction's marker carries its producer's epoch and takes no number. From then on batches of earlier epochs are
    refused, even from an unknown producer (KIP-890).
    """

    def check(self, row: bytes | None, stamp: ProducerStamp) -> Repeated | Unproven | None:
        producer_id, stamped, base_sequence, records = stamp
        if row is None:  # never seen, or expired: any sequence number may start (KIP-360)
            return Unproven.WRITER if records else None
        epoch, count, _, latest = _LATEST.unpack_from(row, _LATEST_AT)
        if stamped != epoch:
            if stamped < epoch:
                raise ProducerFenced(f"producer {producer_id} is at epoch {epoch}, not {stamped}")
            if base_sequence == 0 or not records:
                return None
            if count & _STALE:
                return Unproven.WRITER
            raise OutOfOrderSequence(f"a new producer epoch starts at sequence 0, not {base_sequence}")
        expected = (latest + 1) % _SEQUENCES
        if base_sequence == expected:
            return None
        last_sequence = stamp.last_sequence
        for first, last, base_offset in _BATCH.iter_unpack(row[_HEAD_SIZE:]):
            if first == base_sequence and last == last_sequence:
                return Repeated(base_offset, base_offset + records)
        if not records:
            return None
        if count & _STALE:
            return Unproven.WRITER
        raise OutOfOrderSequence(f"producer {producer_id} sent sequence {base_sequence}, expected {expected}")

    def record(self, row: bytes | None, stamp: ProducerStamp, base_offset: int, now_ms: int) -> bytes:
        _, epoch, first, records = stamp
        last = (first + records - 1) % _SEQUENCES
        if not records:
            return _fence(row, epoch, base_offset, now_ms)
        if row is not None:
            known, count = _EPOCH.unpack_from(row, _LATEST_AT)
            if known == epoch:
                count = min((count & ~_STALE) + 1, BATCHES_KEPT)
                return _ROW.pack(now_ms, epoch, count, first, last, base_offset) + row[_HEAD_SIZE:_KEPT_OF_ROW]
        return _ROW.pack(now_ms, epoch, 1, first, last, base_offset)

    def last(self, row: bytes) -> Last:
        _, last, base_offset = _BATCH.unpack_from(row, _HEAD_SIZE)
        return Last(last, base_offset)

    def valid(self, row: bytes) -> bool:
        if len(row) < _HEAD_SIZE:
            return False
        count = row[_COUNT_AT] & ~_STALE
        return 1 <= count <= BATCHES_KEPT and len(row) == _HEAD_SIZE + count * _BATCH.size

    def stale(self, row: bytes) -> bytes:
        return b"%b%c%b" % (row[:_COUNT_AT], row[_COUNT_AT] | _STALE, row[_HEAD_SIZE:])


def _fence(row: bytes | None, epoch: int, base_offset: int, now_ms: int) -> bytes:
    """Return the row of a producer once a marker of ``epoch`` is in the log."""
    if row is not None and epoch_of(row) == epoch:
        return _CLOCK.pack(now_ms) + row[_CLOCK.size :]
    # An unknown producer may continue with any number, as without the marker.
    count = 1 if row is not None else 1 | _STALE
    return _ROW.pack(now_ms, epoch, count, _NO_SEQUENCE, _NO_SEQUENCE, base_offset)


def epoch_of(row: bytes) -> int:
    """Return the epoch in a Kafka producer's row."""
    epoch: int = _EPOCH.unpack_from(row, _LATEST_AT)[0]
    return epoch


def kafka_producer(key: bytes, row: bytes) -> ProducerState:
    """Return a row of :class:`KafkaRule` as an object, with the oldest batch first."""
    last_ms, epoch, _ = _HEAD.unpack_from(row)
    batches = [*map(WrittenBatch._make, _BATCH.iter_unpack(row[_HEAD_SIZE:]))][::-1]
    return ProducerState(_ID.unpack(key)[0], epoch, last_ms, batches)


# --- one number that grows ------------------------------------------------------------------------------------------

_NUMBER = struct.Struct(">qqqI")
"""Wall clock (ms) of the last append, its last number, its base offset and its number of records."""


class _NumberRule:
    def last(self, row: bytes) -> Last:
        _, number, base_offset, _ = _NUMBER.unpack(row)
        return Last(number, base_offset)

    def valid(self, row: bytes) -> bool:
        return len(row) == _NUMBER.size

    def stale(self, row: bytes) -> bytes:
        return row


class EventNumberRule(_NumberRule):
    """Rule of Pravega's writers, whose events carry growing numbers; the last one is kept (docs/protocols/pravega.md,
    "Event numbers").

    A batch up to that number is in the log. A conditional append is refused if the writer's last number is another than
    expected: another client writes with the same id.
    """

    def check(self, row: bytes | None, stamp: EventStamp) -> Repeated | None:
        known, base_offset, count = -1, -1, 0
        if row is not None:
            _, known, base_offset, count = _NUMBER.unpack(row)
            # Answer a repetition: clients never send another batch with the last number.
            if stamp.number == known or (stamp.number < known and stamp.expected is None):
                return Repeated(base_offset, base_offset + count)
        if stamp.expected is not None and (stamp.expected != known or stamp.number < known):
            raise EventNumberConflict(f"the writer's last event number is {known}, not {stamp.expected}", known)
        return None

    def record(self, row: bytes | None, stamp: EventStamp, base_offset: int, now_ms: int) -> bytes:
        return _NUMBER.pack(now_ms, stamp.number, base_offset, stamp.events)


class SeqNoRule(_NumberRule):
    """Rule of YDB's producers, whose records carry growing numbers, with gaps; the highest is kept
    (docs/protocols/ydb.md, "Deduplication").

    Records up to that number are in the log: a whole request, or its first records.
    """

    def check(self, row: bytes | None, stamp: SeqNoStamp) -> Repeated | Skip | None:
        if row is None:
            return None
        seq_nos = stamp.seq_nos
        _, known, base_offset, count = _NUMBER.unpack(row)
        if seq_nos[0] > known:
            return None
        if seq_nos[-1] <= known:
            return Repeated(base_offset, base_offset + count)
        return Skip(bisect_right(seq_nos, known))

    def record(self, row: bytes | None, stamp: SeqNoStamp, base_offset: int, now_ms: int) -> bytes:
        return _NUMBER.pack(now_ms, stamp.seq_nos[-1], base_offset, len(stamp.seq_nos))


RULES: dict[int, Rule] = {
    LedgerKind.KAFKA: KafkaRule(),
    LedgerKind.EVENT_NUMBER: EventNumberRule(),
    LedgerKind.SEQ_NO: SeqNoRule(),
}


class _Kept:
    """Rule of a kind whose front is not installed: no client can write as one, and the rows are kept."""

    def check(self, row: bytes | None, stamp: Any) -> None:
        raise LogError(f"there is no rule for writers of kind {stamp.kind}")

    def record(self, row: bytes | None, stamp: Any, base_offset: int, now_ms: int) -> bytes:
        raise LogError(f"there is no rule for writers of kind {stamp.kind}")

    def last(self, row: bytes) -> None:
        return None

    def valid(self, row: bytes) -> bool:
        return True

    def stale(self, row: bytes) -> bytes:
        return row


KEPT: Rule = _Kept()
"""Replaces a missing rule."""
