"""What a client will probably fetch next, read while it works on its last answer.

A client that reads on asks, once it has an answer, for what comes behind it; the node would do nothing while the client
looks at records, and the client nothing while the node reads. What is read ahead counts in the memory budget like any
read, is kept for one request of its connection, and goes with the connection, or when memory is short.
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
"""Reads wishes, so many bytes in all; see :func:`bridges.log.gathering.gather`."""
PLENTIFUL = 1 / 4
"""Nothing is read ahead while more than this part of the budget is held."""


class _Held(NamedTuple):
    """Batches of one partition, and what they were read by."""

    offset: int
    epoch: int
    skipped: tuple[Span, ...]
    replacements: int
    batches: list[StoredBatch]
    size: int


class ReadAhead:
    """Of one connection."""

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
        """Whether a read is under way: see :meth:`when_read`."""

    def when_read(self, then: Callable[[], None]) -> None:
        """Call ``then`` when the read that is under way has ended, instead of whoever waited before."""
        self._then = then

    @property
    def holds(self) -> bool:
        """Whether anything was read."""
        return bool(self._held)

    def expects(self, log: PartitionLog | None, offset: int) -> bool:
        """Whether a client that reads on would ask for this."""
        return log is not None and self._expected.get(log) == offset

    def take(
        self, log: PartitionLog | None, offset: int, max_bytes: int, limit: int
    ) -> tuple[list[StoredBatch], int] | None:
        """Batches that were read ahead, as a read would give them, and the bytes that are counted for them, which are
        the caller's from now on; None if there are none."""
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
        """A request was answered: the next one will go on there. What was read ahead and not taken is forgotten. Gives
        the number of this turn, for :meth:`read`."""
        self.drop()
        self._expected = expected
        self._turn += 1
        return self._turn

    def read(self, turn: int, gather: Gather, wishes: list[Wish], room: int) -> None:
        """Read ``wishes`` if the next request has not come yet, ``room`` bytes at most, and if there is memory."""
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
            self._read((), [])  # nobody may wait for ever
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
        """Give back what is held."""
        if self._held:
            self._account.give(Kind.READS, sum([held.size for held in self._held.values()]))
            self._held.clear()

    def close(self) -> None:
        """The connection is gone."""
        self._closed = True
        self._then = None
        self._expected = {}
        self.drop()
