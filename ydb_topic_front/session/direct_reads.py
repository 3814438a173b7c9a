"""Direct reads of one partition session: numbered answers of a StreamDirectRead that the client acknowledges in the
session's StreamRead (docs/protocols/ydb.md, "Direct reading"); no I/O.

Only their ends are kept, not their data. A client that connects again names the last read it has got. Reads after it
are forgotten and read again: the client has never seen their numbers, so these may get other messages.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ydb_topic_front.session.read_data import Place
from ydb_topic_front.wire.statuses import bad_request

MOST_UNACKNOWLEDGED = 1000
"""Reads of a partition that are sent before the client has to acknowledge one."""


class _Read(NamedTuple):
    end: Place
    credit: int


class DirectReads:
    """Reads ``[1, last_id]`` of one partition session, in the partition's ``generation``."""

    __slots__ = ("_reads", "_start", "generation", "last_id")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        """Generation of the partition, as the client was told."""
        self.last_id = 0
        """Number of the last read that was sent."""
        self._start = Place(0)
        self._reads: deque[_Read] = deque()

    def __len__(self) -> int:
        """Return the number of unacknowledged reads."""
        return len(self._reads)

    @property
    def is_full(self) -> bool:
        """Return whether the client has to acknowledge a read before it gets another one."""
        return len(self._reads) >= MOST_UNACKNOWLEDGED

    @property
    def credit(self) -> int:
        """Return the bytes of credit that unacknowledged reads have used."""
        return sum(read.credit for read in self._reads)

    def begin(self, start: Place) -> None:
        """Note where the first read begins."""
        self._start = start

    def add(self, end: Place, credit: int) -> None:
        """Note that the next read goes up to ``end`` and has used ``credit`` bytes."""
        self.last_id += 1
        self._reads.append(_Read(end, credit))

    def acknowledge(self, read_id: int) -> None:
        """Forget a read that the client has got. Raises YdbError unless it is the next one."""
        if read_id > self.last_id:
            raise bad_request(f"direct read {read_id} was not sent: the last one is {self.last_id}")
        expected = self.last_id - len(self._reads) + 1
        if read_id != expected:
            raise bad_request(f"direct reads are acknowledged in their order: {expected} is next, not {read_id}")
        self._start = self._reads.popleft().end

    def rewind(self, last_id: int) -> tuple[Place, int, int]:
        """Forget the reads after ``last_id``, the last one that the client has got. Return where the next one begins,
        and the credit and the number of the forgotten reads. Raises YdbError."""
        if last_id > self.last_id:
            raise bad_request(f"direct read {last_id} was not sent: the last one is {self.last_id}")
        credit = number = 0
        while self._reads and self.last_id > last_id:
            credit += self._reads.pop().credit
            number += 1
            self.last_id -= 1
        return (self._reads[-1].end if self._reads else self._start), credit, number
