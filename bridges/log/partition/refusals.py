"""Batches of idempotent producers that were refused a moment ago, by partition and producer.

A producer has several batches in flight. Where the first is refused and the cause ends before the next one comes, that
must not be taken: the log would have them in the wrong order, and the first could never be repeated. The ledger sees
such a gap by the producer's last sequence number; but a producer that it does not know may begin with any number, since
what is known of producers expires (KIP-360). This knows what the ledger does not: which number must come first.

It goes by names, since a topic may be refused because nobody has heard of it yet, and outlives openings of a log. It is
in memory alone: the producers of a node that starts anew lost their connections, and repeat all that was in flight.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from bridges.errors import OutOfOrderSequence, UnknownProducer
from bridges.formats.producer import SEQUENCES, ProducerStamp, Stamp

_MOST = 20_000
"""Producers remembered at the same time, the latest refused: how many there are is for clients to choose."""
_KEPT_S = 600.0
"""Seconds since the last refusal. Clients give a batch up after two to five minutes."""

_Key = tuple[str, int, int]


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    at_s: float


class Refusals:
    """Of one node; belongs to the event loop."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[_Key, _Refused] = {}

    def __len__(self) -> int:
        """Producers remembered."""
        return len(self._refused)

    def note(self, topic: str, partition: int, stamp: Stamp | None, error: Exception | None = None) -> None:
        """Remember that a batch was refused, unless by what the ledger knows of its producer."""
        if isinstance(stamp, ProducerStamp) and not isinstance(error, OutOfOrderSequence):
            self._note((topic, partition, stamp.producer_id), stamp.epoch, stamp.base_sequence)

    def _note(self, key: _Key, epoch: int, sequence: int) -> None:
        refused = self._refused
        before = refused.pop(key, None)
        if before is not None and before.epoch == epoch and _is_behind(sequence, before.sequence):
            sequence = before.sequence
        refused[key] = _Refused(epoch, sequence, time.monotonic())
        if len(refused) > _MOST:
            del refused[next(iter(refused))]

    def require_first(self, topic: str, partition: int, stamp: ProducerStamp, *, written: bool) -> None:
        """Ask whether a batch may be the first that the ledger knows of its producer; ``written``: whether anything was
        ever written to the partition. Raises OutOfOrderSequence, UnknownProducer."""
        key = topic, partition, stamp.producer_id
        sequence = stamp.base_sequence
        refused = self._refused.get(key)
        if refused is not None and refused.epoch == stamp.epoch and time.monotonic() - refused.at_s < _KEPT_S:
            if sequence == refused.sequence:
                del self._refused[key]
                return
            if _is_behind(sequence, refused.sequence):
                raise OutOfOrderSequence(
                    f"producer {stamp.producer_id} sent sequence {sequence} to {topic}-{partition}, "
                    f"where sequence {refused.sequence} was refused and must come first"
                )
        if sequence and not written:
            self._note(key, stamp.epoch, 0)  # also when others have written there meanwhile
            raise UnknownProducer(
                f"producer {stamp.producer_id} sent sequence {sequence} to {topic}-{partition}, "
                "which was never written to: a producer begins with sequence 0 there"
            )


def _is_behind(sequence: int, other: int) -> bool:
    return 0 < (sequence - other) % SEQUENCES < SEQUENCES // 2
