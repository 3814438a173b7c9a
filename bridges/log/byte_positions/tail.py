"""The end of one partition in bytes, as Pravega counts them, with what is in flight, and the appends that depend on it.

Batches whose headers tell what they take are counted as they are handed over and stored, once somebody has asked for
positions. Others, and those of transactions, whose fate is not decided, are counted when they are durable and decided
(search.py). An append that depends on the end while it is not known waits until it is known, or until enough is known
to refuse it: so it is decided as one step with everything else that is appended.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from bridges.errors import AppendConditionFailed
from bridges.log.byte_positions.event_bytes import told_bytes
from bridges.log.interfaces import NOT_APPENDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridges.errors import LogError
    from bridges.log.byte_positions.column import ByteColumn
    from bridges.log.interfaces import AppendDone, Batch, Owner
    from bridges.log.partition.partition_log import PartitionLog

_DECIDED_AT_ONCE = 200
"""Appends that wait, looked at in one turn of the event loop."""


def _takes(batch: Batch) -> int | None:
    """What a batch takes of a position, if that is certain before it is read."""
    return None if batch.transaction is not None else told_bytes(batch.flags, batch.payload)


class ByteTail:
    """Of one partition; used by its append path."""

    __slots__ = ("_again", "_asking", "_column", "_flying", "_from", "_log", "_owner", "_waiting")

    def __init__(self, log: PartitionLog, owner: Owner, again: Callable[[Batch, AppendDone], None]) -> None:
        """``again`` appends a batch that had to wait."""
        self._log = log
        self._owner = owner
        self._again = again
        self._column: ByteColumn | None = None
        # Of what is in flight from this offset on, it is known how many bytes it takes: these.
        self._from = 0
        self._flying = 0
        # (batch, whom to tell, where the log ended when it came) of appends that depend on an end that is not known.
        self._waiting: deque[tuple[Batch, AppendDone, int]] = deque()
        self._asking = False

    # --- counting -----------------------------------------------------------------------------------------------

    def handed_over(self, column: ByteColumn, base: int, batch: Batch) -> None:
        """``batch`` is in flight, at the offset ``base``."""
        if column is not self._column:
            self._column = column
            self.restart(base)
        takes = _takes(batch)
        if takes is None:
            self.restart(base + batch.count)
        else:
            self._flying += takes

    def stored(self, column: ByteColumn, base: int, batch: Batch) -> None:
        """``batch`` is durable, and no longer in flight."""
        takes = _takes(batch)
        if takes is None:
            return
        if column is self._column and base >= self._from:
            self._flying -= takes
        if column.end.offset == base and not self._log.state.transactions.open:
            column.add(base + batch.count, takes, len(batch.payload))

    def restart(self, offset: int) -> None:
        """Nothing that is in flight from ``offset`` on was counted: because there is nothing, or its place changed."""
        self._from, self._flying = offset, 0

    def _end(self) -> int | None:
        """The position of the next event; None if that is not known."""
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
        """Whether ``batch``, which is to begin at ``position``, may be appended now. If not, it was refused or waits,
        to be appended or refused later."""
        verdict = self._verdict(position, self._log.next_offset)
        if verdict is None:
            self._waiting.append((batch, done, self._log.next_offset))
            self._ask()
        elif not verdict:
            self._refuse(position, done)
        return verdict or False

    def _verdict(self, wanted: int, asked_at: int) -> bool | None:
        """Whether the log ends at ``wanted``; None if that cannot be told yet. ``asked_at``: the offset at which it
        ended when that was asked."""
        end = self._end()
        if end is not None:
            return end == wanted
        column = self._log.state.index.column
        if column is None or column.saved_offset < 0:
            return None
        counted = column.end
        # The end only grows, and was elsewhere when the append came if all there was then is counted and is less.
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
            self._owner.positions.when_counted(self._log, self._counted)

    def _counted(self, error: LogError | None) -> None:
        self._asking = False
        if error is not None:
            self.refuse_waiting(error)
            return
        self._decide(len(self._waiting))

    def _decide(self, left: int) -> None:
        """Look again at the first ``left`` of those who wait."""
        log, barrier = self._log, self._owner.barrier
        for _ in range(min(left, _DECIDED_AT_ONCE, len(self._waiting))):
            batch, done, asked_at = self._waiting.popleft()
            assert batch.guard is not None
            wanted = batch.guard.end_position
            # A sealed partition says so, whatever an append depends on.
            verdict = self._verdict(wanted, asked_at) if log.successors is None else True
            if verdict is None:
                self._waiting.append((batch, done, asked_at))
            elif verdict:
                barrier.call("append", self._again, batch, done, topic=log.topic, partition=log.partition)
            else:
                barrier.call("append answer", self._refuse, wanted, done, topic=log.topic, partition=log.partition)
        left -= _DECIDED_AT_ONCE
        if left > 0 and self._waiting:
            self._owner.schedule(partial(self._decide, left))
        elif self._waiting:
            column = log.state.index.column
            if column is None or column.end.offset < log.last_stable_offset:
                self._ask()
            else:
                log.add_waiter(self)  # a transaction is open, or something is in flight

    def log_moved(self, log: PartitionLog) -> None:
        """What was not known may be now."""
        log.remove_waiter(self)
        if self._waiting:
            self._ask()

    def refuse_waiting(self, error: LogError) -> None:
        """The log failed, or cannot be counted: answer all who wait."""
        waiting, self._waiting = self._waiting, deque()
        self._log.refuse([done for _, done, _ in waiting], error)
