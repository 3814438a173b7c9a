"""A combined read of several partitions: from memory where possible, the rest in one request if the backend supports
it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bridges.errors import LogError, LogUnavailable
from bridges.log.streams import stored_batches

if TYPE_CHECKING:
    from bridges.formats.records import StoredBatch
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.streams import Streams
    from sbp_back.client.gathering import Gathered, Gathering

Answer = tuple[list["StoredBatch"], LogError | None] | None
"""The batches read from one partition, or an error; None where there was no room left for its first batch."""
GatherDone = Callable[[list[Answer]], None]


class Wish(NamedTuple):
    """A read of one partition, with the arguments of :meth:`bridges.log.partition.partition_log.PartitionLog.read`."""

    log: PartitionLog
    offset: int
    max_bytes: int
    limit: int


def gather(client: Streams, wishes: Iterable[Wish], room: int, done: GatherDone, begun: bool = False) -> None:
    """Read ``wishes``, ``room`` bytes in all. The first wish that finds anything gets at least one batch (unless
    ``begun``). Then batches are added until the first batch of a partition does not fit; later wishes are not even
    taken from ``wishes``.

    ``done`` is called with an answer for each wish that was taken, maybe before this returns. Errors are those of
    ``PartitionLog.read``.
    """
    _Gathering(done, room, begun).start(client, wishes)


class _Gathering:
    """The state of one :func:`gather` call."""

    __slots__ = ("_answers", "_begun", "_done", "_found", "_here", "_later", "_left", "_numbers", "_sizes", "_wishes")

    def __init__(self, done: GatherDone, room: int, begun: bool) -> None:
        self._done = done
        self._left = room
        self._begun = self._found = begun
        self._wishes: list[Wish] = []
        self._answers: list[Answer] = []
        # Wishes in the combined request, with their bytes; then those that are read one by one.
        self._numbers: list[int] = []
        self._sizes: list[int] = []
        self._later: deque[int] = deque()
        self._here = False

    def start(self, client: Streams, wishes: Iterable[Wish]) -> None:
        plan: Gathering | None = None
        for number, wish in enumerate(wishes):
            log, offset, most, limit = wish
            self._wishes.append(wish)
            self._answers.append(None)
            if not log.is_open:
                self._answers[number] = [], LogUnavailable(f"{log.topic}-{log.partition} is not open")
                continue
            left = max(self._left, 1)
            most = min(most, left)
            answer = log.at_hand(offset, most, limit)
            if answer is not None:
                if not self._take(number, *answer):
                    break
                continue
            plan = plan or client.gathering()
            size = -1
            if plan is not None:
                size = plan.add(log.stream_id, *log.within(offset, limit), most, left if self._found else -1)
            if not size:
                break
            if size < 0:
                self._later.append(number)
                continue
            self._numbers.append(number)
            self._sizes.append(size)
            self._found = True
            self._left -= size
            if self._left <= 0:
                break
        if plan is not None and self._numbers:
            plan.run(self._gathered)
        else:
            self._go_on()

    def _take(self, number: int, batches: list[StoredBatch], error: LogError | None) -> bool:
        """Keep the answer for a partition if there is room for it; return whether there was."""
        size = sum([len(batch.payload) for batch in batches])
        if size > self._left and self._found:
            return False
        if size:
            self._found = True
            self._left -= size
        self._answers[number] = batches, error
        return True

    def _gathered(self, found: Gathered) -> None:
        for number, size, entries in zip(self._numbers, self._sizes, found, strict=True):
            if entries and not isinstance(entries, Exception):
                self._answers[number] = stored_batches(entries), None
            else:
                self._later.append(number)  # a read of its own reports the error
                self._left += size
        if self._later:
            # A failed read takes no room, but may have claimed the guaranteed first batch: its error must be reported.
            self._found = self._begun or any(answer is not None and answer[0] for answer in self._answers)
        self._go_on()

    def _go_on(self) -> None:
        """Read the remaining wishes one by one, and answer."""
        while self._later and (self._left > 0 or not self._found):
            number = self._later.popleft()
            wish = self._wishes[number]
            self._here = False
            wish.log.read(wish.offset, min(wish.max_bytes, max(self._left, 1)), partial(self._read, number), wish.limit)
            if not self._here:
                self._here = True
                return
            self._here = False
        self._finish()

    def _read(self, number: int, batches: list[StoredBatch], error: LogError | None) -> None:
        if not self._take(number, batches, error):
            self._later.clear()
        if self._here:
            self._go_on()
        else:
            self._here = True

    def _finish(self) -> None:
        self._done(self._answers)
