"""What a reader of numbered records may find: of each partition all that was acknowledged, in order, nothing twice.

A writer numbers the records of each partition from 0. It never sends one again by itself, and an idempotent producer
gives them their offsets in this order. So in the order of offsets numbers only rise, by one; a number is passed over
only where its record was not acknowledged; and none has two offsets. That a group is given an offset again, after one
of its members or its coordinator was gone, is no fault, and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FEW = 20
"""Faults that are told in words."""


@dataclass(slots=True)
class _Partition:
    """``next``: the number that is expected, ``end``: behind the last offset that was given. Numbers: ``open`` of
    records of which nothing was told yet, ``passed`` of those of them that were passed over, ``failed`` of those that
    need not be there."""

    next: int = 0
    end: int = 0
    open: set[int] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Judge:
    """Takes what a writer was told and what a reader was given, in any order of the two; not thread-safe."""

    acknowledged: int = 0
    failed: int = 0
    read: int = 0
    again: int = 0
    lost: int = 0
    doubled: int = 0
    faults: list[str] = field(default_factory=list)
    _partitions: dict[int, _Partition] = field(default_factory=dict)

    def sent(self, partition: int, number: int) -> None:
        """A record is under way."""
        self._of(partition).open.add(number)

    def told(self, partition: int, number: int, error: object) -> None:
        """A delivery report. With an ``error`` the record may be there or not."""
        kept = self._of(partition)
        kept.open.discard(number)
        if error is not None:
            self.failed += 1
            if number >= kept.next:
                kept.failed.add(number)
            kept.passed.discard(number)
            return
        self.acknowledged += 1
        if number in kept.passed:
            kept.passed.discard(number)
            self._lose(partition, number)

    def given(self, partition: int, offset: int, number: int) -> bool:
        """A record that was read; whether it is given for the first time."""
        kept = self._of(partition)
        if offset < kept.end:
            self.again += 1
            return False
        kept.end = offset + 1
        self.read += 1
        if number < kept.next:
            self.doubled += 1
            self._fault(f"partition {partition}: number {number} comes again at offset {offset}")
            return True
        for one in range(kept.next, number):
            if one in kept.open:
                kept.passed.add(one)  # its report says what that means
            elif one not in kept.failed:
                self._lose(partition, one)
        kept.failed = {one for one in kept.failed if one > number} if kept.failed else kept.failed
        kept.next = number + 1
        return True

    def _of(self, partition: int) -> _Partition:
        return self._partitions.setdefault(partition, _Partition())

    def unread(self) -> int:
        """How many acknowledged records were not read yet, at least."""
        return max(0, self.acknowledged - self.read)

    def _lose(self, partition: int, number: int) -> None:
        self.lost += 1
        self._fault(f"partition {partition}: number {number} was acknowledged and is not there")

    def _fault(self, sentence: str) -> None:
        if len(self.faults) < FEW:
            self.faults.append(sentence)
