"""The end of one partition in bytes, as Pravega counts them, batches in flight included, and the appends that depend on
it.

Once a client has asked for positions, batches whose headers give their bytes are counted when they are handed over and
stored. Others, and batches of undecided transactions, are counted when they are durable and decided (search.py). An
append that depends on an unknown end waits until the end is known, or until enough is known to refuse it. So it is
decided in one step with all other appends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anabranch_kit.run.turns import step_through
from bridges.errors import AppendConditionFailed
from bridges.log.byte_positions.event_bytes import told_bytes
from bridges.log.interfaces import NOT_APPENDED

if TYPE_CHECKING:
    from bridges.errors import LogError
    from bridges.log.byte_positions.column import ByteColumn
    from bridges.log.interfaces import AppendDone, Batch
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog


def _takes(batch: Batch) -> int | None:
    """Return the bytes of a batch, if they are certain before it is read."""
    return None if batch.transaction is not None else told_bytes(batch.flags, batch.payload)


class ByteTail:
    """The end in bytes of one partition; used by its append path."""

    __slots__ = ("_asking", "_column", "_flying", "_from", "_log", "_logs", "_waiting")

    def __init__(self, log: PartitionLog, logs: Logs) -> None:
        self._log = log
        self._logs = logs
        self._column: ByteColumn | None = None
        # The bytes in flight from this offset on are known: ``_flying``.
        self._from = 0
        self._flying = 0
        # (batch, callback, end of the log at its arrival) of appends that depend on an unknown end.
        self._waiting: deque[tuple[Batch, AppendDone, int]] = deque()
        self._asking = False

    # --- counting -----------------------------------------------------------------------------------------------

    def handed_over(self, column: ByteColumn, base: int, batch: Batch) -> None:
        """Count ``batch``, which is in flight at the offset ``base``."""
        if column is not self._column:
            self._column = column
            self.restart(base)
        takes = _takes(batch)
        if takes is None:
            self.restart(base + batch.count)
        else:
            self._flying += takes

    def stored(self, column: ByteColumn, base: int, batch: Batch) -> None:
        """Count ``batch``, which is durable and no longer in flight."""
        takes = _takes(batch)
        if takes is None:
            return
        if column is self._column and base >= self._from:
            self._flying -= takes
        if column.end.offset == base and not self._log.state.transactions.open:
            column.add(base + batch.count, takes, len(batch.payload))

    def restart(self, offset: int) -> None:
        """Forget the bytes in flight: nothing is in flight from ``offset`` on, or the batches have moved."""
        self._from, self._flying = offset, 0

    def _end(self) -> int | None:
        """Return the position of the next event; None if unknown."""
        log = self._log
        length = log.byte_length
        if length is None:
            return None
        if log.next_offset == log.high_watermark:
            return length
        known = log.state.index.column is self._column and self._from <= log.high_watermark
        return length + self._flying if known else None

    # --- appends that depend on the end -------------------------------------------------------------------------

    def admits(self, batch: Batch, position: int, done: AppendDone) -> bool:
        """Return whether ``batch``, which must begin at ``position``, may be appended now. If not, it was refused, or
        waits to be appended or refused later."""
        verdict = self._verdict(position, self._log.next_offset)
        if verdict is None:
            self._waiting.append((batch, done, self._log.next_offset))
            self._ask()
        elif not verdict:
            self._refuse(position, done)
        return verdict or False

    def _verdict(self, wanted: int, asked_at: int) -> bool | None:
        """Return whether the log ends at ``wanted``; None if that is unknown. ``asked_at``: the log's end, as an
        offset, when the append arrived."""
        end = self._end()
        if end is not None:
            return end == wanted
        column = self._log.state.index.column
        if column is None or column.saved_offset < 0:
            return None
        counted = column.end
        # The end only grows. It never was at ``wanted`` if everything up to the arrival is counted and lies below.
        hopeless = counted.position > wanted or (counted.offset >= asked_at and counted.position < wanted)
        return False if hopeless else None

    def _refuse(self, wanted: int, done: AppendDone) -> None:
        log = self._log
        end = self._end()
        column = log.state.index.column
        position = end if end is not None else -1 if column is None else column.end.position
        message = f"{log.topic}-{log.partition} ends at the position {position}, not at {wanted}"
        done(NOT_APPENDED, AppendConditionFailed(message, log.next_offset, position))

    def _ask(self) -> None:
        if not self._asking:
            self._asking = True
            self._logs.positions.when_counted(self._log, self._decide_again)

    def _decide_again(self, error: LogError | None) -> None:
        self._asking = False
        if error is not None:
            self.refuse_waiting(error)
            return
        step_through(self._decide(), self._logs.schedule)

    def _decide(self) -> Iterator[None]:
        """Decide each append that waits now again."""
        log, barrier = self._log, self._logs.barrier
        for _ in range(len(self._waiting)):
            if not self._waiting:
                return
            batch, done, asked_at = self._waiting.popleft()
            assert batch.guard is not None
            wanted = batch.guard.end_position
            # A sealed partition refuses with PartitionSealed, whatever the append depends on.
            verdict = self._verdict(wanted, asked_at) if log.successors is None else True
            if verdict is None:
                self._waiting.append((batch, done, asked_at))
            elif verdict:
                barrier.call("append", log.append, batch, done, topic=log.topic, partition=log.partition)
            else:
                barrier.call("append answer", self._refuse, wanted, done, topic=log.topic, partition=log.partition)
            yield
        if self._waiting:
            column = log.state.index.column
            if column is None or column.end.offset < log.last_stable_offset:
                self._ask()
            else:
                log.add_waiter(self)  # until a transaction is decided, or batches in flight are

    def log_moved(self, log: PartitionLog) -> None:
        """Count again: the end may be known now."""
        log.remove_waiter(self)
        if self._waiting:
            self._ask()

    def refuse_waiting(self, error: LogError) -> None:
        """Refuse all waiting appends: the log failed, or cannot be counted."""
        waiting, self._waiting = self._waiting, deque()
        self._log.refuse([done for _, done, _ in waiting], error)
