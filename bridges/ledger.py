"""Producer deduplication of one partition: who wrote what last (design, section 4).

Idempotent producers number their records per partition. The ledger keeps the last five batches of each producer, so a
retried batch is recognised and answered with its original offset, and a gap is refused (reference/kafka.md, rules
29-33; KIP-98, KIP-360). It is pure state: the partition log feeds it in append order, at run time and when rebuilding.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from bridges.errors import OutOfOrderSequence, ProducerFenced
from sbp_back.errors import DecodeError

BATCHES_KEPT = 5
"""Batches remembered of each producer; a producer may have that many in flight."""
_SEQUENCES = 1 << 31
"""Sequence numbers wrap from 2^31 - 1 to 0."""
_SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">BI")
_PRODUCER = struct.Struct(">qhqB")
_BATCH = struct.Struct(">iiq")


class ProducerStamp(NamedTuple):
    """What a batch says of its producer: id, epoch, sequence number of its first record, number of records."""

    producer_id: int
    epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.record_count - 1) % _SEQUENCES


class WrittenBatch(NamedTuple):
    """A batch the ledger remembers."""

    first_sequence: int
    last_sequence: int
    base_offset: int


@dataclass(slots=True)
class ProducerState:
    """One producer on this partition; ``last_ms`` is the wall clock of its last append."""

    epoch: int
    last_ms: int
    batches: deque[WrittenBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))


class Ledger:
    """The producers of one partition."""

    __slots__ = ("max_producers", "producers")

    def __init__(self, max_producers: int = 100_000) -> None:
        self.max_producers = max_producers
        # Insertion order is order of last use, so the longest idle producer is always the first.
        self.producers: dict[int, ProducerState] = {}

    def check(self, stamp: ProducerStamp) -> int | None:
        """May this batch be appended next? Returns None if so, or the base offset of the batch it repeats.

        Raises ProducerFenced (an older epoch) or OutOfOrderSequence.
        """
        state = self.producers.get(stamp.producer_id)
        if state is None:
            return None  # never seen, or expired: any sequence number may start (KIP-360)
        if stamp.epoch != state.epoch:
            if stamp.epoch < state.epoch:
                raise ProducerFenced(f"producer {stamp.producer_id} is at epoch {state.epoch}, not {stamp.epoch}")
            if stamp.base_sequence != 0:
                raise OutOfOrderSequence(f"a new producer epoch starts at sequence 0, not {stamp.base_sequence}")
            return None
        if not state.batches:
            return None
        last_sequence = stamp.last_sequence
        for batch in state.batches:
            if batch.first_sequence == stamp.base_sequence and batch.last_sequence == last_sequence:
                return batch.base_offset
        expected = (state.batches[-1].last_sequence + 1) % _SEQUENCES
        if stamp.base_sequence != expected:
            raise OutOfOrderSequence(
                f"producer {stamp.producer_id} sent sequence {stamp.base_sequence}, expected {expected}"
            )
        return None

    def record(self, stamp: ProducerStamp, base_offset: int, now_ms: int) -> None:
        """Remember a batch that was appended at ``base_offset``."""
        state = self.producers.pop(stamp.producer_id, None)
        if state is None or state.epoch != stamp.epoch:
            state = ProducerState(stamp.epoch, now_ms)
        state.last_ms = now_ms
        state.batches.append(WrittenBatch(stamp.base_sequence, stamp.last_sequence, base_offset))
        self.producers[stamp.producer_id] = state
        if len(self.producers) > self.max_producers:
            del self.producers[next(iter(self.producers))]

    def expire(self, before_ms: int) -> int:
        """Forget producers idle since ``before_ms``; returns how many."""
        idle = [producer_id for producer_id, state in self.producers.items() if state.last_ms < before_ms]
        for producer_id in idle:
            del self.producers[producer_id]
        return len(idle)

    def forget(self, stamp: ProducerStamp, base_offset: int) -> None:
        """Take back :meth:`record` for a batch that could not be stored; the latest one first."""
        state = self.producers.get(stamp.producer_id)
        if state is not None and state.batches and state.batches[-1].base_offset == base_offset:
            state.batches.pop()

    def snapshot(self, below: int) -> bytes:
        """What was written below offset ``below``, as bytes for :meth:`restore`.

        Batches at or above it may not be durable yet, so a snapshot must not vouch for them.
        """
        rows = bytearray()
        producers = 0
        for producer_id, state in self.producers.items():
            durable = [batch for batch in state.batches if batch.base_offset < below]
            if durable:
                producers += 1
                rows += _PRODUCER.pack(producer_id, state.epoch, state.last_ms, len(durable))
                for batch in durable:
                    rows += _BATCH.pack(*batch)
        return _HEAD.pack(_SNAPSHOT_VERSION, producers) + rows

    def restore(self, data: bytes) -> None:
        """Replace all state by a snapshot's. Raises DecodeError; then the state is empty."""
        self.producers.clear()
        try:
            version, count = _HEAD.unpack_from(data)
            if version != _SNAPSHOT_VERSION:
                raise DecodeError(f"producer snapshot of version {version}")
            position = _HEAD.size
            producers: dict[int, ProducerState] = {}
            for _ in range(count):
                producer_id, epoch, last_ms, batches = _PRODUCER.unpack_from(data, position)
                position += _PRODUCER.size
                state = ProducerState(epoch, last_ms)
                for _ in range(batches):
                    state.batches.append(WrittenBatch._make(_BATCH.unpack_from(data, position)))
                    position += _BATCH.size
                producers[producer_id] = state
        except struct.error as error:
            raise DecodeError("producer snapshot is cut short") from error
        self.producers = producers
