"""Recently refused batches of idempotent producers, by partition and producer.

A producer has several batches in flight. If the first is refused and the cause ends before the next one arrives, the
next must be refused, too. Otherwise the log would have them in the wrong order, and the first could never be repeated.
The ledger detects such a gap by the producer's last sequence number. But an unknown producer may begin with any number,
because the ledger forgets idle producers (KIP-360). This table fills the gap: it knows which number must come first.

It is keyed by topic names, because a refused topic may not exist here yet, and outlives openings of a log. It is only
in memory: after a restart, producers have lost their connections and repeat everything in flight.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from bridges.errors import OutOfOrderSequence, UnknownProducer
from bridges.formats.producer import SEQUENCES, ProducerStamp, Stamp

MOST = 20_000
"""Most producers remembered, the latest refused: clients choose how many there are."""
KEPT_S = 600.0
"""Seconds for which a refusal is remembered. Clients give a batch up after two to five minutes."""

_Key = tuple[str, int, int]


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    at_s: float


class Refusals:
    """The refusals of one node; belongs to the event loop."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[_Key, _Refused] = {}

    def __len__(self) -> int:
        """Return the number of producers remembered."""
        return len(self._refused)

    def note(self, topic: str, partition: int, stamp: Stamp | None, error: Exception | None = None) -> None:
        """Remember a refused batch, unless the ledger refused it because of its sequence number."""
        if isinstance(stamp, ProducerStamp) and not isinstance(error, OutOfOrderSequence):
            self._note((topic, partition, stamp.producer_id), stamp.epoch, stamp.base_sequence)

    def _note(self, key: _Key, epoch: int, sequence: int) -> None:
        refused = self._refused
        before = refused.pop(key, None)
        if before is not None and before.epoch == epoch and _is_behind(sequence, before.sequence):
            sequence = before.sequence
        refused[key] = _Refused(epoch, sequence, time.monotonic())
        if len(refused) > MOST:
            del refused[next(iter(refused))]

    def require_first(self, topic: str, partition: int, stamp: ProducerStamp, *, written: bool) -> None:
        """Check whether a batch may be the first that the ledger knows of its producer. ``written``: whether the
        partition has ever had a record. Raises OutOfOrderSequence, UnknownProducer."""
        key = topic, partition, stamp.producer_id
        sequence = stamp.base_sequence
        refused = self._refused.get(key)
        if refused is not None and refused.epoch == stamp.epoch and time.monotonic() - refused.at_s < KEPT_S:
            if sequence == refused.sequence:
                del self._refused[key]
                return
            if _is_behind(sequence, refused.sequence):
                raise OutOfOrderSequence(
                    f"producer {stamp.producer_id} sent sequence {sequence} to {topic}-{partition}, "
                    f"where sequence {refused.sequence} was refused and must come first"
                )
        if sequence and not written:
            self._note(key, stamp.epoch, 0)  # remains even if others have written there meanwhile
            raise UnknownProducer(
                f"producer {stamp.producer_id} sent sequence {sequence} to {topic}-{partition}, "
                "which was never written to: a producer begins with sequence 0 there"
            )


def _is_behind(sequence: int, other: int) -> bool:
    return 0 < (sequence - other) % SEQUENCES < SEQUENCES // 2
