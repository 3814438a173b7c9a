"""Reading ahead: the batches that a client will probably fetch next, read while it works on its last answer.

A client that reads on asks, after each answer, for the batches behind it. Without reading ahead the node would be idle
while the client processes records, and the client while the node reads. Batches read ahead count in the memory budget
like any read. They are kept for one request of their connection, and dropped with the connection or when memory is
short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from anabranch_kit.memory.budget import Account, Kind
from bridges.log.gathering import Answer, GatherDone, Wish

if TYPE_CHECKING:
    from bridges.formats.records import StoredBatch
    from bridges.log.damage.skips import Span
    from bridges.log.partition.partition_log import PartitionLog

Gather = Callable[[Iterable[Wish], int, GatherDone], None]
"""Reads wishes, up to a number of bytes in all; see :func:`bridges.log.gathering.gather`."""
PLENTIFUL = 1 / 4
"""Part of the budget beyond which nothing is read ahead."""


class _Held(NamedTuple):
    """Batches of one partition, with the position and the log's state in which they were read."""

    offset: int
    epoch: int
    skipped: tuple[Span, ...]
    replacements: int
    batches: list[StoredBatch]
    size: int


class ReadAhead:
    """The batches read ahead for one connection."""

    __slots__ = ("_account", "_closed", "_expected", "_granted", "_held", "_then", "_turn", "reading")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._held: dict[PartitionLog, _Held] = {}
        # Where the next request is expected to go on, whether or not anything was read there.
        self._expected: dict[PartitionLog, int] = {}
        self._granted = 0
        self._then: Callable[[], None] | None = None
        self._turn = 0
        self._closed = False
        self.reading = False
        """Whether a read is in progress: see :meth:`when_read`."""

    def when_read(self, then: Callable[[], None]) -> None:
        """Call ``then`` when the read in progress has ended. Replaces an earlier callback."""
        self._then = then

    @property
    def holds(self) -> bool:
        """Return whether any batches are held."""
        return bool(self._held)

    def expects(self, log: PartitionLog | None, offset: int) -> bool:
        """Return whether a client that reads on would ask for this position."""
        return log is not None and self._expected.get(log) == offset

    def take(
        self, log: PartitionLog | None, offset: int, max_bytes: int, limit: int
    ) -> tuple[list[StoredBatch], int] | None:
        """Return the batches read ahead, as a read would, and the bytes that the budget counts for them, which the
        caller must give back; None if there are none."""
        held = None if log is None else self._held.pop(log, None)
        if held is None or log is None:
            return None
        _, epoch, skipped, replacements, batches, size = held
        left = max_bytes
        for number, batch in enumerate(batches):
            left -= len(batch.payload)
            if batch.base_offset >= limit or (number and left < 0):
                del batches[number:]
                break
        same = epoch == log.epoch and skipped is log.skipped and replacements == log.replacements
        if held.offset != offset or not same or not batches:
            self._account.give(Kind.READS, size)
            return None
        return batches, size

    def expect(self, expected: dict[PartitionLog, int]) -> int:
        """Drop unused batches after an answer, and set the positions that the next request should ask for. Return the
        number of this turn, for :meth:`read`."""
        self.drop()
        self._expected = expected
        self._turn += 1
        return self._turn

    def read(self, turn: int, gather: Gather, wishes: list[Wish], room: int) -> None:
        """Read ``wishes``, at most ``room`` bytes, if the next request has not come yet and there is memory."""
        if turn != self._turn or self.reading or self._closed or self._account.level >= PLENTIFUL:
            return
        room = self._account.grant(Kind.READS, room, 1)
        if not room:
            return
        self._granted = room
        self.reading = True

        def done(answers: list[Answer]) -> None:
            self._read(wishes, answers)

        try:
            gather(wishes, room, done)
        except BaseException:
            self._read((), [])  # a waiting request must go on
            raise

    def _read(self, wishes: Sequence[Wish], answers: list[Answer]) -> None:
        self.reading = False
        granted, self._granted = self._granted, 0
        total = 0
        if not self._closed:
            for wish, answer in zip(wishes, answers, strict=False):  # not all were taken
                if answer is not None and answer[0]:
                    size = sum([len(batch.payload) for batch in answer[0]])
                    total += size
                    log = wish.log
                    self._held[log] = _Held(wish.offset, log.epoch, log.skipped, log.replacements, answer[0], size)
        if total > granted:
            self._account.take(Kind.READS, total - granted)
        elif total < granted:
            self._account.give(Kind.READS, granted - total)
        then, self._then = self._then, None
        if then is not None:
            then()

    def drop(self) -> None:
        """Drop the held batches and give back their memory."""
        if self._held:
            self._account.give(Kind.READS, sum([held.size for held in self._held.values()]))
            self._held.clear()

    def close(self) -> None:
        """Drop everything: the connection is gone."""
        self._closed = True
        self._then = None
        self._expected = {}
        self.drop()
