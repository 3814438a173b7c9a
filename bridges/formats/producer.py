"""What a batch's header says of who wrote it."""

from __future__ import annotations

from typing import NamedTuple

SEQUENCES = 1 << 31
"""Sequence numbers wrap from 2^31 - 1 to 0."""


class ProducerStamp(NamedTuple):
    """What a batch says of its producer: id, epoch, sequence number of its first record, number of records."""

    producer_id: int
    epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.record_count - 1) % SEQUENCES
