"""Stamps: a batch's claim of who wrote it, with a key for the ledger and the numbers that identify repetitions.

Every kind of writer has its own stamp (bridges/log/ledger/rules.py decides by them). A stored format's ``describe``
returns the stamp of a stored batch, so that the ledger can be rebuilt from the log.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b
from typing import ClassVar, NamedTuple, Protocol

SEQUENCES = 1 << 31
"""Kafka's sequence numbers wrap from 2^31 - 1 to 0."""

_ID = struct.Struct(">q")
_KEY_BYTES = 64
"""Longer names of producers are replaced by their digests, because clients choose how long a name is."""


FIRST_KIND_OF_FRONTS = 128
"""The kinds of writers from here up to :data:`LAST_KIND` are for fronts, which bring their rules."""
LAST_KIND = 255


class LedgerKind(IntEnum):
    """Kinds of writers, stored in snapshots; never renumber."""

    KAFKA = 1
    EVENT_NUMBER = 2
    SEQ_NO = 3


class InTransaction(NamedTuple):
    """A batch's part in a transaction of a producer (64 bits, signed). ``commit`` is None for data; for the marker that
    ends the transaction it says whether that commits or aborts."""

    producer_id: int
    epoch: int
    commit: bool | None = None


class Stamp(Protocol):
    """A batch's claim of its writer. The ledger knows the writer by ``kind`` and ``key`` (at most 64 bytes)."""

    @property
    def kind(self) -> int: ...

    @property
    def key(self) -> bytes: ...


class _Producer(NamedTuple):
    producer_id: int
    epoch: int
    base_sequence: int
    record_count: int


def producer_key(producer_id: int) -> bytes:
    """Return the ledger's key of a Kafka producer."""
    return _ID.pack(producer_id)


class ProducerStamp(_Producer):
    """Kafka: producer id, epoch, sequence number of the first record, number of records.

    Without records the stamp only carries the epoch: batches of earlier epochs are refused from then on
    (:func:`fence`).
    """

    __slots__ = ()
    kind: ClassVar[int] = LedgerKind.KAFKA

    @property
    def key(self) -> bytes:
        return _ID.pack(self[0])

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.record_count - 1) % SEQUENCES


def fence(part: InTransaction) -> ProducerStamp | None:
    """Return the stamp of the marker that ends ``part``: batches of the producer's earlier epochs are refused from then
    on (KIP-890). None for an epoch of -1, whose writers use other ways to fence."""
    return None if part.epoch < 0 else ProducerStamp(part.producer_id, part.epoch, -1, 0)


class _Event(NamedTuple):
    writer_id: bytes
    number: int
    events: int = 1
    expected: int | None = None


class EventStamp(_Event):
    """Pravega: a writer's id (16 bytes), and the number of the last of ``events`` events. ``expected``, for a
    conditional append, is the last number that the ledger must have of this writer (-1: none)."""

    __slots__ = ()
    kind: ClassVar[int] = LedgerKind.EVENT_NUMBER

    @property
    def key(self) -> bytes:
        return self.writer_id


class _SeqNos(NamedTuple):
    producer_id: bytes
    seq_nos: Sequence[int]


class SeqNoStamp(_SeqNos):
    """YDB: producer id (or message group), and the sequence number of each record, strictly ascending.

    Without gaps a ``range`` serves as well as a list.
    """

    __slots__ = ()
    kind: ClassVar[int] = LedgerKind.SEQ_NO

    @property
    def key(self) -> bytes:
        name = self.producer_id
        if len(name) <= _KEY_BYTES and not name.startswith(b"\0"):
            return name
        return b"\0" + blake2b(name, digest_size=32).digest()
